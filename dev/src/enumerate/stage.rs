//! The commands `cargo enumerate` and `cargo soak`: a control plane of their own, and what they are told.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::journal::Journal;
use super::report::{Shard, Totals};
use super::run::Pair;
use super::scenario::Scenario;
use super::world::{Ground, Trouble, trouble};
use super::{Plan, enumerate};
use crate::control_plane::ControlPlane;
use crate::{install, programs};

/// Runs that go at once: they wait most of the time.
pub const JOBS: usize = 8;

/// What `cargo enumerate` is told on its command line.
#[derive(Debug, clap::Parser)]
#[command(name = "cargo enumerate", about = "Try every fault at every call of the controller that changes something")]
pub struct Options {
    /// One part of all pairs, such as 1/4. Parts that go on at once write to one state file, or each to its copy of one that
    /// `--minutes 0` has made: the list of all pairs is in it.
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
    /// Fail when a pair was missed or left out as well.
    #[arg(long)]
    pub strict: bool,
}

/// What `cargo soak` is told on its command line.
#[derive(Debug, clap::Parser)]
#[command(name = "cargo soak", about = "Random faults at the controller's calls, under load")]
pub struct SoakOptions {
    /// For how long.
    #[arg(long, default_value_t = 10)]
    pub minutes: u64,
    /// Decides which faults there are; left out: another each time. The order of calls differs from run to run all the
    /// same.
    #[arg(long)]
    pub seed: Option<u64>,
}

/// A control plane and the programs.
struct Stage {
    plane: ControlPlane,
    ground: Ground,
    _scratch: tempfile::TempDir,
}

impl Stage {
    async fn up([controller, daytona]: [PathBuf; 2]) -> Result<Self, Trouble> {
        let scratch = tempfile::Builder::new().prefix("enumerate-").tempdir().map_err(trouble)?;
        let plane = ControlPlane::start(&scratch.path().join("control-plane")).await.map_err(trouble)?;
        install::crds(plane.cluster(), &install::workspace().join("crds")).await.map_err(trouble)?;
        let (cluster, kubeconfig) = (plane.cluster().clone(), plane.kubeconfig());
        let ground = Ground::new(cluster, kubeconfig, [controller, daytona], scratch.path()).await?;
        Ok(Self { plane, ground, _scratch: scratch })
    }

    async fn down(self) -> Result<(), Trouble> {
        self.plane.stop().await.map_err(trouble)
    }
}

/// The controller and the local Daytona, built.
async fn built() -> Result<[PathBuf; 2], Trouble> {
    let build = |name| tokio::task::spawn_blocking(move || programs::built(name).map_err(trouble));
    let controller = build("daytona-controller").await.map_err(trouble)??;
    Ok([controller, build("local-daytona").await.map_err(trouble)??])
}

/// Tries all pairs; tells the totals.
///
/// # Errors
/// When something does not start, or a scenario goes wrong without any fault.
pub async fn run(options: &Options) -> Result<Totals, Trouble> {
    let start = Instant::now();
    let programs = built().await?;
    let mut digest = Sha256::new();
    for program in programs.iter().chain([&std::env::current_exe().map_err(trouble)?]) {
        digest.update(std::fs::read(program).map_err(trouble)?);
    }
    let digest = digest.finalize().iter().take(8).fold(0_u64, |digest, byte| digest << 8 | u64::from(*byte));
    let journal = Journal::open(&options.resume, &format!("{digest:016x}"), options.fresh)?;
    let accounts = options.resume.with_extension("failed");
    println!("Starting a control plane; what is done is kept in {}.", options.resume.display());
    let stage = Stage::up(programs).await?;
    let plan = Plan {
        scenarios: if options.scenario.is_empty() { Scenario::ALL.to_vec() } else { options.scenario.clone() },
        wanted: Box::new(|mut all: Vec<Pair>| {
            all.retain(|pair| {
                let name = pair.to_string();
                options.shard.has(&name) && name.contains(&options.only)
            });
            all
        }),
        listed: options.shard != Shard::WHOLE,
        jobs: options.jobs,
        until: options.minutes.map(|minutes| start + Duration::from_secs(minutes * 60)),
        accounts: accounts.clone(),
    };
    let report = enumerate(&stage.ground, plan, journal).await;
    let down = stage.down().await;
    let mut totals = report?.totals;
    if totals.pairs == 0 {
        println!("No pair is in this part and has {:?} in its name.", options.only);
    }
    if let Err(trouble) = down {
        println!("failed: the control plane does not end: {trouble}");
        totals.failures += 1;
    }
    println!("{} s; what failed is told in {}", start.elapsed().as_secs(), accounts.display());
    Ok(totals)
}

/// Random faults under load; tells the totals.
///
/// # Errors
/// When something does not start.
pub async fn soak(options: &SoakOptions) -> Result<Totals, Trouble> {
    let seed = options.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()) >> 32);
    println!("Starting a control plane; the seed is {seed}, to do it again: --seed {seed}");
    let stage = Stage::up(built().await?).await?;
    let totals = super::soak::soak(&stage.ground, Duration::from_secs(options.minutes * 60), seed).await;
    let down = stage.down().await;
    totals.and_then(|totals| down.map(|()| totals))
}

/// Prints the last line, whatever came of it, and says how the program ends. `strict`: nothing may be missed either.
#[must_use]
pub fn exit(program: &str, totals: Result<Totals, Trouble>, strict: bool) -> ExitCode {
    let totals = totals.unwrap_or_else(|trouble| {
        eprintln!("\n{program}: {trouble}");
        Totals { failures: 1, ..Totals::default() }
    });
    println!("{totals}");
    if totals.is_clean() && !(strict && totals.missed > 0) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
