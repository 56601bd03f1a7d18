//! The official Python SDK, as somebody uses it who has no controller.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::Error;
use crate::install::workspace;
use crate::local_daytona::LocalDaytona;
use crate::python;

/// A Python process with the SDK and one sandbox. It ends with its stdin, so with this process.
#[derive(Debug)]
pub(super) struct Sdk {
    _process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Sdk {
    /// Starts it, and creates a sandbox and a session by the SDK.
    pub(super) async fn start(daytona: &LocalDaytona) -> Result<Self, Error> {
        let python = tokio::task::spawn_blocking(python::sdk).await??;
        let script = workspace().join("dev/python/bench.py");
        let mut process = Command::new(python)
            .arg(script)
            .env("DAYTONA_API_URL", daytona.base_url())
            .env("DAYTONA_API_KEY", daytona.api_key())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::Sdk)?;
        let (Some(orders), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(Error::Sdk(std::io::ErrorKind::BrokenPipe.into()));
        };
        let mut sdk = Self { _process: process, orders, answers: BufReader::new(answers).lines() };
        sdk.answer().await?;
        Ok(sdk)
    }

    /// `execute_session_command`, synchronous, then its logs. How long that took, by the SDK's own clock.
    pub(super) async fn exec(&mut self, command: &str) -> Result<Duration, Error> {
        self.ask(json!({ "session": command })).await
    }

    /// `process.exec`. How long that took.
    pub(super) async fn execute(&mut self, command: &str) -> Result<Duration, Error> {
        self.ask(json!({ "one-shot": command })).await
    }

    async fn ask(&mut self, order: Value) -> Result<Duration, Error> {
        self.orders.write_all(format!("{order}\n").as_bytes()).await.map_err(Error::Sdk)?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Duration, Error> {
        let line = self.answers.next_line().await.map_err(Error::Sdk)?.unwrap_or_default();
        let seconds = line.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds.ok_or_else(|| Error::Wrong(format!("the SDK's process said {line:?}; see what it printed above")))
    }
}
