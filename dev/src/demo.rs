//! `cargo demo`: a control plane, a local Daytona and the controller, and what a newcomer would type.

mod examples;
mod proof;
mod show;
mod stage;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::binaries::{self, Tool};
use crate::install::workspace;
use crate::supervise::Supervised;
use crate::{cluster, control_plane, install, kubectl, local_daytona, programs, supervise, wait};
use examples::Examples;
use show::Screen;
use stage::Stage;

/// How long the example commands may take, all together.
const COMMANDS: &str = "--timeout=180s";
/// How long letting go of sandbox and session may take.
const DELETION: &str = "--timeout=120s";
/// How many lines of a log explain a failure.
const TAIL: usize = 30;

/// What `cargo demo` is told on its command line.
#[derive(Debug, clap::Parser)]
#[command(name = "cargo demo", about = "Watch the controller at work, on this machine only")]
pub struct Options {
    /// Run through, delete everything, prove that nothing is left, and end.
    #[arg(long)]
    pub once: bool,
    /// Use the cluster of this context in your own kubeconfig instead of starting a control plane.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// Why the demo did not show what it should.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tool cannot be had.
    #[error(transparent)]
    Binaries(#[from] binaries::Error),
    /// A program of this workspace cannot be built.
    #[error(transparent)]
    Programs(#[from] programs::Error),
    /// The control plane did not start.
    #[error(transparent)]
    ControlPlane(#[from] control_plane::Error),
    /// The cluster cannot be used.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The controller's rights cannot be installed.
    #[error(transparent)]
    Install(#[from] install::Error),
    /// kubectl was refused, or what it waited for did not come.
    #[error(transparent)]
    Kubectl(#[from] kubectl::Error),
    /// A program cannot be started.
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
    /// The local Daytona did not start.
    #[error(transparent)]
    Start(#[from] local_daytona::StartError),
    /// The local Daytona does not answer.
    #[error(transparent)]
    Daytona(#[from] local_daytona::RequestError),
    /// Something did not happen in time.
    #[error(transparent)]
    TimedOut(#[from] wait::TimedOut),
    /// A program that everybody has is missing.
    #[error("`{0}` is not on PATH; type: sudo apt-get install -y {0}   (or your distribution's way)")]
    Missing(&'static str),
    /// A file or directory cannot be used.
    #[error("cannot use {}: {source}; check its owner and free space", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An example is no YAML or not as the demo needs it.
    #[error("{}: {reason}", path.display())]
    Example {
        /// The example.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The controller or the local Daytona ended.
    #[error("{0} ended by itself; the end of its log is above")]
    Ended(&'static str),
    /// The outcome is not the expected one.
    #[error("not as expected:\n  - {}", .0.join("\n  - "))]
    Differs(Vec<String>),
    /// A background task failed.
    #[error("a background task failed: {0}; please report this as a bug")]
    Task(#[from] tokio::task::JoinError),
    /// Ctrl-C before the end.
    #[error("interrupted")]
    Interrupted,
}

/// Runs the demo.
///
/// # Errors
/// When something is missing, does not start, or does not end as expected; each says what to do.
pub async fn run(options: &Options) -> Result<(), Error> {
    check_ground(options)?;
    let file_error = |path: PathBuf| move |source| Error::File { path, source };
    // The commands shown name the examples relative to the project.
    std::env::set_current_dir(workspace()).map_err(file_error(workspace().to_owned()))?;
    let directory = tempfile::Builder::new().prefix("daytona-demo-").tempdir();
    let directory = directory.map_err(file_error(std::env::temp_dir()))?;
    let interrupted = interrupted().map_err(file_error("signals".into()))?;
    tokio::pin!(interrupted);

    let examples = Examples::read(&workspace().join("examples"))?;
    let mut stage = tokio::select! {
        stage = Stage::up(options.context.as_deref(), directory.path()) => stage?,
        () = &mut interrupted => return Err(Error::Interrupted),
    };
    let mut result = tokio::select! {
        result = perform(&mut stage, &examples, options) => result,
        () = &mut interrupted => Err(Error::Interrupted),
    };
    if let Err(error) = &result
        && !matches!(error, Error::Interrupted)
    {
        stage.explain(TAIL).await;
    }
    if !options.once && matches!(result, Err(Error::Interrupted)) {
        // Until Ctrl-C is how long it runs.
        result = Ok(());
    }
    println!("\nStopping all that was started.");
    let down = stage.down().await;
    result.and(down)
}

/// Whatever would fail after minutes of building is found before.
fn check_ground(options: &Options) -> Result<(), Error> {
    let has = |program| Command::new(program).arg("--version").output().is_ok();
    if !has("bash") {
        return Err(Error::Missing("bash"));
    }
    let tools: &[Tool] = if options.context.is_some() { &[Tool::Kubectl, Tool::Helm] } else { &Tool::ALL };
    for tool in tools {
        if !binaries::is_ready(*tool)? {
            binaries::check_go(*tool)?;
        }
    }
    Ok(())
}

fn interrupted() -> std::io::Result<impl Future<Output = ()>> {
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal).into_iter();
    let (Some(interrupt), Some(terminate), Some(hangup)) = (signals.next(), signals.next(), signals.next()) else {
        return Err(std::io::ErrorKind::Other.into());
    };
    let (mut interrupt, mut terminate, mut hangup) = (interrupt?, terminate?, hangup?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// From the first `kubectl apply` on; ends early when the controller does.
async fn perform(stage: &mut Stage, examples: &Examples, options: &Options) -> Result<(), Error> {
    let mut controller = stage.prepare(examples).await?;
    let screen = stage.screen();
    let result = tokio::select! {
        result = play(stage, &screen, examples, options) => result,
        ended = ended(&mut controller) => ended,
    };
    stage.controller = Some(controller);
    result
}

async fn ended(controller: &mut Supervised) -> Result<(), Error> {
    controller.wait().await?;
    Err(Error::Ended("the controller"))
}

async fn play(stage: &Stage, screen: &Screen, examples: &Examples, options: &Options) -> Result<(), Error> {
    let mut apply = vec!["apply"];
    apply.extend(examples.files.iter().flat_map(|file| ["-f", file.as_str()]));
    screen.run(&apply).await?;
    {
        let _leases = screen.watch(&["get", "sblease", "--watch"])?;
        let _commands = screen.watch(&["get", "sbcmd", "--watch"])?;
        for command in examples.expected.iter().filter(|command| command.cancelled) {
            let name = format!("sbcmd/{}", command.name);
            screen.run(&["wait", "--for=jsonpath={.status.state}=Running", &name, COMMANDS]).await?;
            screen.run(&["patch", &name, "--type=merge", "-p", r#"{"spec":{"cancel":true}}"#]).await?;
        }
        screen.run(&["wait", "--for=condition=Finished", "sbcmd", "--all", COMMANDS]).await?;
        // The watches print the same news a moment after the wait has seen them.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    screen.run(&["get", "sblease"]).await?;
    screen.run(&["get", "sbcmd"]).await?;
    for expected in &examples.expected {
        for stream in expected.streams_to_show() {
            let path = format!("jsonpath={{.status.{stream}.tail}}");
            screen.run(&["get", "sbcmd", &expected.name, "-o", &path]).await?;
        }
    }
    screen.events(&["describe", "sblease", &examples.lease]).await?;
    proof::outcomes(&stage.kubectl(), examples).await?;
    println!("\nAll {} commands ended as their examples say.", examples.expected.len());
    if options.once {
        screen.run(&["delete", "sbcmd,sblease", "--all", DELETION]).await?;
        return proof::nothing_left(stage, examples).await;
    }
    stage.invite(examples);
    std::future::pending().await
}
