//! The commands `cargo enumerate` and `cargo soak`: a control plane of their own, and what they are told.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::report::{Journal, Shard, Totals};
use super::scenario::Scenario;
use super::world::{Ground, Trouble, trouble};
use super::{Order, enumerate};
use crate::control_plane::ControlPlane;
use crate::{install, programs};

/// Runs that go at once: they wait most of the time.
pub const JOBS: usize = 8;

/// What `cargo enumerate` is told on its command line.
#[derive(Debug, clap::Parser)]
#[command(name = "cargo enumerate", about = "Try every fault at every call of the controller that changes something")]
pub struct Options {
    /// One part of all pairs, such as 1/4.
    #[arg(long, default_value = "1/1")]
    pub shard: Shard,
    /// A scenario (repeatable); left out: all.
    #[arg(long)]
    pub scenario: Vec<Scenario>,
    /// Only pairs whose name holds this text.
    #[arg(long, default_value = "")]
    pub only: String,
    /// How many runs go at once.
    #[arg(long, default_value_t = JOBS)]
    pub jobs: usize,
    /// Begin no further pair after so many minutes; what is left out counts as missed, and is done by the next run.
    #[arg(long)]
    pub minutes: Option<u64>,
    /// Where it is kept what was done: the next run of the same programs goes on there.
    #[arg(long, value_name = "FILE", default_value = "target/enumerate/state.jsonl")]
    pub resume: PathBuf,
    /// Begin anew, whatever was done before.
    #[arg(long)]
    pub fresh: bool,
}

/// Tries all pairs; tells the totals.
///
/// # Errors
/// When something does not start, or a scenario goes wrong without any fault.
pub async fn run(options: &Options) -> Result<Totals, Trouble> {
    let start = Instant::now();
    let build = |name| tokio::task::spawn_blocking(move || programs::built(name).map_err(trouble));
    let controller = build("daytona-controller").await.map_err(trouble)??;
    let daytona = build("local-daytona").await.map_err(trouble)??;
    let mut digest = Sha256::new();
    for program in [&controller, &daytona, &std::env::current_exe().map_err(trouble)?] {
        digest.update(std::fs::read(program).map_err(trouble)?);
    }
    let digest = digest.finalize().iter().take(8).fold(0_u64, |digest, byte| digest << 8 | u64::from(*byte));
    let journal = Journal::open(&options.resume, &format!("{digest:016x}"), options.fresh)?;
    let scratch = tempfile::Builder::new().prefix("enumerate-").tempdir().map_err(trouble)?;
    println!("Starting a control plane; what is done is kept in {}.", options.resume.display());
    let plane = ControlPlane::start(&scratch.path().join("control-plane")).await.map_err(trouble)?;
    install::crds(plane.cluster(), &install::workspace().join("crds")).await.map_err(trouble)?;
    let ground =
        Ground::new(plane.cluster().clone(), plane.kubeconfig(), [controller, daytona], scratch.path()).await?;
    let scenarios = if options.scenario.is_empty() { Scenario::ALL.to_vec() } else { options.scenario.clone() };
    let order = Order {
        scenarios,
        wanted: Box::new(|pair| {
            let name = pair.to_string();
            options.shard.has(&name) && name.contains(&options.only)
        }),
        jobs: options.jobs,
        until: options.minutes.map(|minutes| start + Duration::from_secs(minutes * 60)),
        accounts: options.resume.with_extension("failed"),
    };
    let totals = enumerate(&ground, order, journal).await;
    plane.stop().await.map_err(trouble)?;
    let totals = totals?;
    println!(
        "{} s; accounts of failures: {}",
        start.elapsed().as_secs(),
        options.resume.with_extension("failed").display()
    );
    Ok(totals)
}
