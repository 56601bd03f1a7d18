//! `cargo bench-local`: what the controller costs beside the service's own calls and the official SDK, measured side by
//! side in one run on this machine. How to read it: `docs/performance.md`.

mod figures;
mod kubernetes;
mod latency;
mod load;
mod outage;
mod raw;
mod report;
mod sdk;
mod stage;
mod throughput;
mod writes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::{control_plane, install, kubectl, local_daytona, programs, python, supervise};
pub use report::Results;
use stage::Stage;

/// How long anything may take that should happen.
const LIMIT: Duration = Duration::from_mins(15);

/// What `cargo bench-local` is told on its command line.
#[derive(Debug, clap::Parser)]
#[command(name = "cargo bench-local", about = "Measure the controller beside raw calls and the SDK, on this machine")]
pub struct Options {
    /// How often each short command is run by each of the three.
    #[arg(long, default_value_t = 200)]
    pub rounds: usize,
    /// Leases of the throughput.
    #[arg(long, default_value_t = 100)]
    pub leases: usize,
    /// Commands per lease of the throughput.
    #[arg(long, default_value_t = 20)]
    pub per_lease: usize,
    /// Leases of the load; those of the throughput count.
    #[arg(long, default_value_t = 1000)]
    pub load_leases: usize,
    /// Finished commands of the load; those of the throughput count.
    #[arg(long, default_value_t = 10_000)]
    pub finished: usize,
    /// Queued commands of the load.
    #[arg(long, default_value_t = 1000)]
    pub queued: usize,
    /// How long nothing happens at the end.
    #[arg(long, default_value_t = 60)]
    pub idle: u64,
    /// Nothing but this: how often Daytona is asked by a controller that starts with 200 leases, also when Daytona wants
    /// fewer calls or does not answer.
    #[arg(long)]
    pub outages: bool,
    /// A twentieth of everything: to try it, not to believe it.
    #[arg(long)]
    pub quick: bool,
    /// Where the results go.
    #[arg(long, value_name = "FILE", default_value = "target/bench-local.json")]
    pub json: PathBuf,
    /// Results of an earlier run, to be shown beside these.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
}

impl Options {
    /// As it is meant: `quick` applied.
    fn meant(&self) -> Self {
        let part = |all: usize| if self.quick { (all / 20).max(2) } else { all };
        Self {
            rounds: part(self.rounds),
            leases: part(self.leases),
            load_leases: part(self.load_leases),
            finished: part(self.finished),
            queued: part(self.queued),
            idle: if self.quick { self.idle.min(5) } else { self.idle },
            json: self.json.clone(),
            against: self.against.clone(),
            ..*self
        }
    }

    /// A long command is worth fewer rounds.
    fn long_rounds(&self) -> usize {
        (self.rounds / 5).max(2)
    }

    fn idle_seconds(&self) -> u64 {
        self.idle.max(1)
    }
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program of this workspace cannot be built.
    #[error(transparent)]
    Programs(#[from] programs::Error),
    /// The control plane did not start.
    #[error(transparent)]
    ControlPlane(#[from] control_plane::Error),
    /// The controller's rights cannot be installed.
    #[error(transparent)]
    Install(#[from] install::Error),
    /// kubectl was refused.
    #[error(transparent)]
    Kubectl(#[from] kubectl::Error),
    /// The apiserver refused, or cannot be reached.
    #[error("the apiserver: {0}")]
    Kube(#[from] kube::Error),
    /// The admin's kubeconfig cannot be used.
    #[error("the control plane's kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// A program cannot be started.
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
    /// The local Daytona did not start.
    #[error(transparent)]
    Start(#[from] local_daytona::StartError),
    /// The local Daytona does not answer.
    #[error(transparent)]
    Daytona(#[from] local_daytona::RequestError),
    /// A raw call failed.
    #[error("a raw call: {0}")]
    Raw(#[from] reqwest::Error),
    /// The SDK cannot be installed.
    #[error(transparent)]
    Python(#[from] python::Error),
    /// The SDK's process cannot be spoken to.
    #[error("the process with the SDK: {0}; see what it printed above")]
    Sdk(std::io::Error),
    /// A command did not do what it is measured for.
    #[error("{0}")]
    Wrong(String),
    /// A file or directory cannot be used.
    #[error("cannot use {}: {source}; check its owner and free space", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An earlier run's results cannot be read.
    #[error("{} has no results: {source}", path.display())]
    Results {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A background task failed.
    #[error("a background task failed: {0}; please report this as a bug")]
    Task(#[from] tokio::task::JoinError),
}

/// Measures everything, prints it, and keeps it as JSON.
///
/// # Errors
/// When something does not start or a command does not end as it should: then there is no figure.
pub async fn run(options: &Options) -> Result<(), Error> {
    let options = options.meant();
    let against = options.against.as_deref().map(read).transpose()?;
    let file_error = |path: PathBuf| move |source| Error::File { path, source };
    let directory = tempfile::Builder::new().prefix("daytona-bench-").tempdir();
    let directory = directory.map_err(file_error(std::env::temp_dir()))?;
    if cfg!(debug_assertions) {
        eprintln!("This is not a release build: its figures say nothing. Type: cargo bench-local");
    }
    println!("Starting a control plane, a local Daytona and the controller.");
    let mut stage = Stage::up(directory.path()).await?;
    if options.outages {
        let curves = outage::measure(&mut stage).await;
        stage.down().await?;
        println!("{}", curves?);
        return Ok(());
    }
    let results = measure(&mut stage, &options).await;
    stage.down().await?;
    let results = results?;
    let json = serde_json::to_string_pretty(&results).unwrap_or_default();
    std::fs::write(&options.json, json + "\n").map_err(file_error(options.json.clone()))?;
    println!("Results: {}\n", options.json.display());
    if let Some(against) = against {
        println!("{}", results.compared_with(&against));
    }
    println!("{results}");
    Ok(())
}

async fn measure(stage: &mut Stage, options: &Options) -> Result<Results, Error> {
    let latency = latency::measure(stage, options).await?;
    let throughput = throughput::measure(stage, options).await?;
    let load = load::measure(stage, options).await?;
    Ok(Results { latency, throughput, load })
}

fn read(path: &Path) -> Result<Results, Error> {
    let file_error = |source| Error::File { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(file_error)?;
    serde_json::from_str(&text).map_err(|source| Error::Results { path: path.to_owned(), source })
}

fn progress(what: &str, length: usize) -> ProgressBar {
    let bar = ProgressBar::new(length as u64).with_message(what.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{msg:30} {bar:30} {pos:>6}/{len} {elapsed_precise}") {
        bar.set_style(style);
    }
    bar
}

/// Until something is looked at again.
async fn look() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}
