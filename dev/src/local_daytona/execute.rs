//! One-shot commands: the script is the stdin of a shell of its own, both outputs are one pipe.

use std::collections::BTreeMap;
use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::{Extension, Json};
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::Child;

use super::daemon::Daemon;
use super::daemon::Here;
use super::problem::{Problem, missing_field};
use super::processes::{self, Process};

/// How long a background child that holds the output is waited for after the shell has ended.
const OUTPUT_GRACE: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
pub(super) struct Execute {
    #[serde(default)]
    pub(super) command: String,
    pub(super) cwd: Option<String>,
    #[serde(default)]
    pub(super) envs: BTreeMap<String, String>,
    /// Seconds; 0 is none.
    pub(super) timeout: Option<u32>,
}

struct Running {
    child: Child,
    shell: Process,
    output: pipe::Receiver,
}

pub(super) async fn execute(Extension(daemon): Here, bytes: Bytes) -> Result<Json<Value>, Problem> {
    let body: Execute = serde_json::from_slice(&bytes)
        .map_err(|error| Problem::daemon_bad_request(format!("invalid request body: {error}")))?;
    if body.command.is_empty() {
        let missing = missing_field("ExecuteRequest", "Command");
        return Err(Problem::daemon_bad_request(format!("invalid request body: {missing}")));
    }
    if body.command.trim().is_empty() {
        return Err(Problem::daemon_bad_request("command cannot be empty or whitespace-only"));
    }
    start_and_wait(daemon, body).await
}

/// Runs it in a shell of its own.
pub(super) async fn start_and_wait(daemon: Arc<Daemon>, body: Execute) -> Result<Json<Value>, Problem> {
    if let Some(name) = body.envs.keys().find(|name| !is_env_name(name)) {
        return Err(Problem::daemon_bad_request(format!("invalid environment variable name: '{name}'")));
    }
    // A caller that leaves does not stop it.
    let running = tokio::spawn(async move { run(&daemon, body).await });
    running.await.unwrap_or_else(|error| Err(Problem::Unclassified(error.to_string())))
}

async fn run(daemon: &Arc<Daemon>, body: Execute) -> Result<Json<Value>, Problem> {
    let running = match start(daemon, &body) {
        Ok(running) => running,
        // The service says so with a 200.
        Err(error) => {
            let shell = daemon.environment.shell.path.display();
            let reason = if error.kind() == io::ErrorKind::NotFound {
                "no such file or directory".to_owned()
            } else {
                error.to_string()
            };
            return Ok(answer(-1, &format!("fork/exec {shell}: {reason}")));
        }
    };
    let Running { mut child, shell, mut output } = running;
    let mut stdin = child.stdin.take();
    let script = body.command.into_bytes();
    tokio::spawn(async move {
        if let Some(stdin) = &mut stdin {
            // A shell that ends before the end of its script is no failure.
            let _ = stdin.write_all(&script).await;
        }
    });
    let limit = match body.timeout {
        None | Some(0) => Duration::MAX,
        Some(seconds) => Duration::from_secs(seconds.into()),
    };
    let mut result = Vec::new();
    let mut status = None;
    let timed_out = tokio::select! {
        () = collect(&mut child, &mut output, &mut result, &mut status) => false,
        () = tokio::time::sleep(limit) => true,
    };
    if timed_out {
        for process in processes::descendants_in_group(shell.pid) {
            processes::signal(&process, Signal::KILL);
        }
        // A child outside the group that holds the output delays the answer, as measured.
        collect(&mut child, &mut output, &mut result, &mut status).await;
    }
    daemon.environment.processes.ended(&shell);
    if timed_out {
        return Err(Problem::Daemon(
            StatusCode::REQUEST_TIMEOUT,
            "REQUEST_TIMEOUT",
            "request timeout: command execution timeout".to_owned(),
        ));
    }
    let code = status.and_then(|status| status.code()).unwrap_or(-1);
    Ok(answer(code, &String::from_utf8_lossy(&result)))
}

fn start(daemon: &Arc<Daemon>, body: &Execute) -> io::Result<Running> {
    let environment = &daemon.environment;
    let (reader, writer) = io::pipe()?;
    let mut command = environment.command(&environment.shell.path);
    command.envs(&body.envs).stdout(writer.try_clone()?).stderr(writer);
    if let Some(cwd) = body.cwd.as_deref().filter(|cwd| !cwd.is_empty()) {
        command.current_dir(environment.home.join(cwd));
    }
    let (child, shell) = environment.processes.spawn(&mut command)?;
    // The command still holds our copies of the writing end.
    drop(command);
    if daemon.lost.is_cancelled() {
        processes::signal(&shell, Signal::KILL);
    }
    let output = pipe::Receiver::from_owned_fd(reader.into())?;
    Ok(Running { child, shell, output })
}

/// Reads until the end of the output, but at most for a while after the shell's end. May be dropped
/// and begun again.
async fn collect(
    child: &mut Child,
    output: &mut pipe::Receiver,
    result: &mut Vec<u8>,
    status: &mut Option<ExitStatus>,
) {
    let grace = async {
        match child.wait().await {
            Ok(ended) => *status = Some(ended),
            Err(_) => return,
        }
        tokio::time::sleep(OUTPUT_GRACE).await;
    };
    let read = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count) = output.read(&mut buffer).await {
            if count == 0 {
                break;
            }
            result.extend_from_slice(buffer.get(..count).unwrap_or_default());
        }
    };
    let drained = tokio::select! {
        () = grace => false,
        () = read => true,
    };
    if drained && status.is_none() {
        *status = child.wait().await.ok();
    }
}

fn answer(code: i32, result: &str) -> Json<Value> {
    Json(json!({ "exitCode": code, "result": result }))
}

fn is_env_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
