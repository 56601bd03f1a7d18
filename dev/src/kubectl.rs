//! Calling kubectl: always our own, always with an explicit cluster.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::supervise;

/// Longer than any `--timeout` that is passed; a server that cannot be reached must not hold us for ever.
const LIMIT: Duration = Duration::from_mins(5);

/// kubectl for one cluster as one user, and perhaps one namespace.
#[derive(Debug, Clone)]
pub struct Kubectl {
    /// The binary.
    pub binary: PathBuf,
    /// The kubeconfig; the reader's own (`KUBECONFIG` or `~/.kube/config`) if none.
    pub kubeconfig: Option<PathBuf>,
    /// The context in it; the current one if none.
    pub context: Option<String>,
    /// The namespace of every call; the context's if none.
    pub namespace: Option<String>,
    /// Where kubectl remembers what the server offers. Per cluster: two servers on one port would mix.
    pub cache: PathBuf,
}

/// What kubectl printed, having exited with 0.
#[derive(Debug, Clone)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error: warnings.
    pub stderr: String,
}

/// Why a kubectl call gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// kubectl exited with another code than 0.
    #[error("`kubectl {call}` failed ({code}): {stderr}{stdout}")]
    Failed {
        /// The arguments as given.
        call: String,
        /// The exit code, or the signal.
        code: String,
        /// Standard output: some commands explain themselves there.
        stdout: String,
        /// Standard error.
        stderr: String,
    },
    /// kubectl did not run.
    #[error("cannot run `kubectl {call}`: {source}; is {} executable?", binary.display())]
    NotRun {
        /// The arguments as given.
        call: String,
        /// The binary.
        binary: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// kubectl did not end.
    #[error("`kubectl {call}` did not end within {} s; is the cluster reachable?", LIMIT.as_secs())]
    TimedOut {
        /// The arguments as given.
        call: String,
    },
    /// The call cannot be tied to this process.
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
}

impl Kubectl {
    /// The same for another namespace.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// The same as the user of another kubeconfig.
    #[must_use]
    pub fn with_kubeconfig(&self, kubeconfig: &Path) -> Self {
        Self { kubeconfig: Some(kubeconfig.to_owned()), context: None, ..self.clone() }
    }

    /// Runs `kubectl ARGS`.
    ///
    /// # Errors
    /// When it cannot be run or exits with another code than 0.
    pub async fn run(&self, arguments: &[&str]) -> Result<Output, Error> {
        self.run_with_input(arguments, "").await
    }

    /// Runs `kubectl ARGS` and gives its standard output without surrounding white space.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn get(&self, arguments: &[&str]) -> Result<String, Error> {
        Ok(self.run(arguments).await?.stdout.trim().to_owned())
    }

    /// Applies the objects in `yaml` (or JSON) on the server's side.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn apply(&self, yaml: &str) -> Result<Output, Error> {
        self.run_with_input(&["apply", "--server-side", "--force-conflicts", "-f", "-"], yaml).await
    }

    /// Runs `kubectl ARGS` with `input` as its standard input.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn run_with_input(&self, arguments: &[&str], input: &str) -> Result<Output, Error> {
        let call = || arguments.join(" ");
        let not_run = |source| Error::NotRun { call: call(), binary: self.binary.clone(), source };
        let command = self.tied(arguments)?;
        let output = tokio::time::timeout(LIMIT, supervise::output(command, input)).await;
        let output = output.map_err(|_| Error::TimedOut { call: call() })?.map_err(not_run)?;
        let [stdout, stderr] = [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
        if output.status.success() {
            Ok(Output { stdout, stderr })
        } else {
            Err(Error::Failed { call: call(), code: output.status.to_string(), stdout, stderr })
        }
    }

    /// `kubectl ARGS` as a command that ends with the calling thread, for a long run such as `get --watch`.
    ///
    /// # Errors
    /// When `supervise` cannot be built.
    pub fn tied(&self, arguments: &[&str]) -> Result<Command, supervise::Error> {
        let mut command = supervise::tied(&self.binary)?;
        command.args(self.global_arguments()).args(arguments);
        Ok(command)
    }

    fn global_arguments(&self) -> Vec<PathBuf> {
        let mut arguments = vec!["--cache-dir".into(), self.cache.clone()];
        if let Some(kubeconfig) = &self.kubeconfig {
            arguments.extend(["--kubeconfig".into(), kubeconfig.clone()]);
        }
        if let Some(context) = &self.context {
            arguments.extend(["--context".into(), context.into()]);
        }
        if let Some(namespace) = &self.namespace {
            arguments.extend(["--namespace".into(), namespace.into()]);
        }
        arguments
    }
}
