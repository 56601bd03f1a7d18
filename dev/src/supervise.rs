//! Starting programs so that nothing of them outlives this process: the starter's side of the `supervise`
//! program, which see.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::programs;

/// The byte on `supervise`'s stdin that asks for an immediate SIGKILL.
pub const KILL_ORDER: u8 = b'k';

/// How often a running program is looked at while it is waited for.
const LOOK: Duration = Duration::from_millis(10);

/// Why a program was not started or is out of control.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The `supervise` program itself is missing.
    #[error(transparent)]
    Programs(#[from] programs::Error),
    /// The log file cannot be written.
    #[error("cannot write the log {}: {source}; check the directory's owner and free space", path.display())]
    Log {
        /// The log file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The supervisor did not start, or ended before it had started the program.
    #[error("cannot start {program} under supervision: {reason}; see {}", log.display())]
    Start {
        /// The program that was asked for.
        program: String,
        /// What went wrong.
        reason: String,
        /// The log, which has what the supervisor said.
        log: PathBuf,
    },
    /// The supervisor cannot be waited for.
    #[error("lost the supervisor of a program: {0}; look for it with: ps -ef | grep supervise")]
    Lost(std::io::Error),
}

/// A program about to be started under supervision.
#[derive(Debug)]
pub struct Program<'a> {
    command: &'a Command,
    log: &'a Path,
    grace: Duration,
    scratch: Option<&'a Path>,
}

impl<'a> Program<'a> {
    /// The program, arguments, variables and directory of `command`; its output is appended to `log`.
    /// The command's stdio and `env_clear` are not taken over.
    #[must_use]
    pub fn new(command: &'a Command, log: &'a Path) -> Self {
        Self { command, log, grace: Duration::from_secs(10), scratch: None }
    }

    /// How long the program may take to end after TERM before it is killed. Ten seconds unless said.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// A directory to remove when the program has ended, even if this process no longer lives by then.
    #[must_use]
    pub fn scratch(mut self, directory: &'a Path) -> Self {
        self.scratch = Some(directory);
        self
    }

    /// Starts it. Blocks for the moment that takes, and on first use until `supervise` is built.
    ///
    /// # Errors
    /// When the supervisor or the log is missing. A program that cannot be executed is no error here:
    /// it ends with 127 and says so in its log.
    pub fn spawn(self) -> Result<Supervised, Error> {
        let program = self.command.get_program().display().to_string();
        let failed = |reason: String| Error::Start { program: program.clone(), reason, log: self.log.to_owned() };
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log)
            .map_err(|source| Error::Log { path: self.log.to_owned(), source })?;
        let mut supervise = Command::new(programs::built("supervise")?);
        supervise.arg(format!("--grace-ms={}", self.grace.as_millis()));
        if let Some(scratch) = self.scratch {
            supervise.arg("--scratch").arg(scratch);
        }
        supervise.arg("--").arg(self.command.get_program()).args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => supervise.env(name, value),
                None => supervise.env_remove(name),
            };
        }
        if let Some(directory) = self.command.get_current_dir() {
            supervise.current_dir(directory);
        }
        // A group of its own: Ctrl-C is for us to answer, in an order that makes sense.
        supervise.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = supervise.spawn().map_err(|error| failed(error.to_string()))?;
        let (orders, report) = (child.stdin.take(), child.stdout.take());
        let mut supervised = Supervised { child: Some(child), orders, pid: 0 };
        let mut line = String::new();
        if let Some(report) = report {
            // An error leaves the line empty, which is reported below.
            let _ = BufReader::new(report).read_line(&mut line);
        }
        supervised.pid = line.trim().parse().map_err(|_| failed("the supervisor gave no process id".to_owned()))?;
        Ok(supervised)
    }
}

/// A program that runs under supervision. It and all its descendants end when this is dropped or this
/// process ends, however it ends.
#[derive(Debug)]
pub struct Supervised {
    /// Taken on drop only.
    child: Option<Child>,
    orders: Option<ChildStdin>,
    pid: u32,
}

impl Supervised {
    /// Starts `command` with its output appended to `log` and ten seconds of grace: see [`Program`].
    ///
    /// # Errors
    /// As [`Program::spawn`].
    pub fn spawn(command: &Command, log: &Path) -> Result<Self, Error> {
        Program::new(command, log).spawn()
    }

    /// The process id of the program itself. It may have ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the program or anything it left behind is still there.
    ///
    /// # Errors
    /// When the supervisor cannot be asked for.
    pub fn is_running(&mut self) -> Result<bool, Error> {
        Ok(self.ended()?.is_none())
    }

    /// The exit status once program and descendants have ended: the program's code, 128 and the signal if
    /// one ended it, 127 if it could not be executed.
    ///
    /// # Errors
    /// When the supervisor cannot be asked for.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        match &mut self.child {
            Some(child) => child.try_wait().map_err(Error::Lost),
            None => Ok(None),
        }
    }

    /// Waits until program and descendants have ended by themselves.
    ///
    /// # Errors
    /// When the supervisor cannot be asked for.
    pub async fn wait(&mut self) -> Result<ExitStatus, Error> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// TERM, after the grace KILL for all that is left; waits for the end of it.
    ///
    /// # Errors
    /// When the supervisor cannot be asked for.
    pub async fn terminate(&mut self) -> Result<ExitStatus, Error> {
        self.orders = None;
        self.wait().await
    }

    /// SIGKILL to the program, as a crash would, then to all it left; waits for the end of it.
    ///
    /// # Errors
    /// When the supervisor cannot be asked for.
    pub async fn kill(&mut self) -> Result<ExitStatus, Error> {
        if let Some(orders) = &mut self.orders {
            // A supervisor that is gone has taken the program along.
            let _ = orders.write_all(&[KILL_ORDER]);
        }
        self.wait().await
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(mut child) = self.child.take() {
            // Only to collect it; nothing waits for this thread.
            std::thread::spawn(move || child.wait());
        }
    }
}

/// A command that becomes `command`, and that the kernel kills when the calling thread ends: for short
/// calls, whose stdio has to stay their caller's. Arguments can still be added.
///
/// # Errors
/// When `supervise` cannot be built.
pub fn tied(command: &Path) -> Result<Command, Error> {
    let mut tied = Command::new(programs::built("supervise")?);
    tied.arg(format!("--tied-to={}", std::process::id())).arg("--").arg(command);
    Ok(tied)
}

/// Runs a command with `input` as its standard input, and collects what it prints.
///
/// # Errors
/// When it cannot be started. Its exit code is for the caller to judge.
pub async fn output(mut command: Command, input: &str) -> std::io::Result<std::process::Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A program may end without reading; its exit code tells.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), feed);
    output
}

/// The last `lines` lines of a log, for an error message. Empty if it cannot be read.
#[must_use]
pub fn log_tail(log: &Path, lines: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<_> = text.lines().collect();
    all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
}
