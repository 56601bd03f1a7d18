//! The sessions of a sandbox, as its daemon answers for them.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, Query};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::faults::Mode;

use super::calls::Subject;
use super::command::{BeingWritten, Command, Order};
use super::daemon::{Daemon, Here, OpenError};
use super::follow::{self, Bonds, Follower, Until};
use super::output::{Form, split, strip, text};
use super::problem::{Problem, missing_field};
use super::session::{ExecError, Session};
use super::toolbox::Open;

/// How often a synchronous exec looks whether it is done; hence it never takes less.
const SYNC_POLL: std::time::Duration = std::time::Duration::from_millis(50);

/// The session of a sandbox's own main process. No sandbox here has one.
const ENTRYPOINT: &str = "entrypoint";

pub(super) fn router() -> Router {
    Router::new()
        .route("/process/session", post(open_session).get(list_sessions))
        .route("/process/session/entrypoint/logs", get(async || Problem::no_session()))
        .route("/process/session/{id}", get(read_session).delete(close_session))
        .route("/process/session/{id}/exec", post(exec))
        .route("/process/session/{id}/command/{command}", get(read_command))
        .route("/process/session/{id}/command/{command}/logs", get(read_logs))
        .route("/process/session/{id}/command/{command}/input", post(give_input))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OpenSession {
    #[serde(default)]
    session_id: String,
}

async fn open_session(Extension(daemon): Here, bytes: Bytes) -> Result<Response, Problem> {
    let body: OpenSession = serde_json::from_slice(&bytes).map_err(Problem::invalid_body)?;
    let id = body.session_id;
    if id.is_empty() {
        return Err(Problem::invalid_body(missing_field("CreateSessionRequest", "SessionId")));
    }
    if id == ENTRYPOINT {
        let message = "provided session ID is reserved and cannot be created/overridden";
        return Err(Problem::daemon_bad_request(message));
    }
    daemon.open_session(&id).map_err(|error| match error {
        OpenError::Exists => {
            Problem::Daemon(StatusCode::CONFLICT, "CONFLICT", "conflict: session already exists".to_owned())
        }
        OpenError::Gone => Problem::Empty(StatusCode::BAD_GATEWAY),
        OpenError::Io(error) => Problem::Unclassified(error.to_string()),
    })?;
    let mut response = StatusCode::CREATED.into_response();
    response.extensions_mut().insert(Subject::Session(id));
    Ok(response)
}

async fn list_sessions(Extension(daemon): Here) -> Result<Json<Vec<Value>>, Problem> {
    Ok(Json(daemon.show_sessions()?))
}

async fn read_session(Extension(daemon): Here, Path((_, id)): Path<(String, String)>) -> Result<Json<Value>, Problem> {
    Ok(Json(daemon.show_session(&id).ok_or_else(Problem::no_session)??))
}

async fn close_session(Extension(daemon): Here, Path((_, id)): Path<(String, String)>) -> Result<StatusCode, Problem> {
    not_entrypoint(&id, "can't delete entrypoint session")?;
    if daemon.is_broken(&id) {
        let dir = daemon.session_dir(&id);
        return Err(Problem::daemon_bad_request(format!("unlinkat {dir}: file name too long")));
    }
    daemon.close_session(session(&daemon, &id)?).await;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Exec {
    command: String,
    #[serde(default)]
    run_async: bool,
    #[serde(default, rename = "async")]
    old_async: bool,
    /// Whether input that is given later stays out of the log.
    #[serde(default)]
    suppress_input_echo: bool,
}

async fn exec(
    Extension(daemon): Here,
    Path((_, id)): Path<(String, String)>,
    mode: Option<Extension<Mode>>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Problem> {
    not_entrypoint(&id, "can't execute command in entrypoint session")?;
    let empty = || Problem::Empty(StatusCode::BAD_REQUEST);
    let body: Exec = serde_json::from_slice(&bytes).map_err(|_| empty())?;
    if body.command.trim().is_empty() {
        return Err(empty());
    }
    let failed = |why: String| Problem::Unclassified(format!("failed to execute command: {why}"));
    let session = daemon.session(&id).ok_or_else(|| failed("not found: session not found".to_owned()))?;
    let is_async = body.run_async || body.old_async;
    let order = Order {
        text: body.command,
        is_async,
        quiet_input: body.suppress_input_echo,
        unpublished: is(mode.as_ref(), Mode::ExitCodeNeverPublished),
    };
    let dead = is(mode.as_ref(), Mode::DeadShell);
    let accepted = if dead { session.exec_in_dead_shell(order).await } else { session.exec(order).await };
    let command = accepted.map_err(|error| failed(error.to_string()))?;
    if is_async {
        let answer = json!({
            "cmdId": command.id, "output": null, "stdout": null, "stderr": null, "exitCode": null,
        });
        return Ok((StatusCode::ACCEPTED, Json(answer)).into_response());
    }
    let code = outcome(&session, &command).await.map_err(|error| failed(error.to_string()))?;
    let log = command.log.read().map_err(|error| failed(error.to_string()))?;
    let (output, stdout, stderr) = match Form::asked(&headers) {
        Form::Stripped => (text(&strip(&log)), Value::Null, Value::Null),
        Form::Raw => (text(&log), Value::Null, Value::Null),
        Form::Split => {
            let (stdout, stderr) = split(&log);
            (text(&log), text(&stdout), text(&stderr))
        }
    };
    let answer = json!({
        "cmdId": command.id, "output": output, "stdout": stdout, "stderr": stderr, "exitCode": code,
    });
    Ok(Json(answer).into_response())
}

/// Waits for the exit code for as long as it takes.
async fn outcome(session: &Session, command: &Command) -> Result<i32, ExecError> {
    loop {
        tokio::select! {
            () = tokio::time::sleep(SYNC_POLL) => {}
            () = session.gone.cancelled() => return Err(ExecError::Cancelled),
        }
        if let Some(code) = command.exit_code()? {
            let _ = command.show();
            return Ok(code);
        }
    }
}

async fn read_command(
    Extension(daemon): Here,
    Path((_, id, command)): Path<(String, String, String)>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(find_command(&daemon, &id, &command)?.show()?))
}

#[derive(Deserialize)]
struct Follow {
    follow: Option<String>,
}

/// The whole log, or all that comes of it as it comes.
async fn read_logs(
    Extension(daemon): Here,
    Path((_, id, command)): Path<(String, String, String)>,
    Query(query): Query<Follow>,
    open: Option<Extension<Arc<Open>>>,
    mode: Option<Extension<Mode>>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let follows = query.follow.as_deref() == Some("true");
    let upgrades = headers.get(header::UPGRADE).is_some_and(|value| value == "websocket");
    if !follows && !upgrades {
        return read_log(&*find_command(&daemon, &id, &command)?, Form::asked(&headers));
    }
    let early = is(mode.as_ref(), Mode::FollowClosesEarly);
    let until = |command: &Command| match (early, follows) {
        (true, _) => Until::Place(command.early_end()),
        (false, true) => Until::TheEnd,
        (false, false) => Until::AllIsRead,
    };
    let bonds = Bonds { _open: open.map(|Extension(open)| open), lost: daemon.lost.clone() };
    let found = session(&daemon, &id).and_then(|session| {
        let command = session.command(&command).ok_or_else(Problem::no_command)?;
        Ok((session, command))
    });
    if upgrades {
        let (session, command) = found?;
        let until = until(&command);
        let follower = Follower::new(session, command, Form::asked(&headers), until);
        return Ok(follow::upgrade(upgrade, &headers, follower, bonds));
    }
    // The runner is told no more than that the handshake failed.
    let (session, command) = found
        .map_err(|_| Problem::daemon_bad_request("failed to create outgoing request: websocket: bad handshake"))?;
    let until = until(&command);
    Ok(follow::stream(Follower::new(session, command, Form::Stripped, until), bonds))
}

fn read_log(command: &Command, form: Form) -> Result<Response, Problem> {
    let log = command.log.read().map_err(|error| Problem::Unclassified(format!("failed to read logs: {error}")))?;
    let plain = |bytes: Vec<u8>| {
        let body = Body::from(bytes);
        ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
    };
    Ok(match form {
        Form::Split => {
            let (stdout, stderr) = split(&log);
            Json(json!({ "output": text(&log), "stdout": text(&stdout), "stderr": text(&stderr) })).into_response()
        }
        _ if log.is_empty() => Response::new(Body::empty()),
        Form::Raw => plain(log),
        Form::Stripped => plain(strip(&log)),
    })
}

impl From<BeingWritten> for Problem {
    fn from(error: BeingWritten) -> Self {
        Self::Unclassified(error.to_string())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Input {
    #[serde(default)]
    data: String,
}

async fn give_input(
    Extension(daemon): Here,
    Path((_, id, command)): Path<(String, String, String)>,
    bytes: Bytes,
) -> Result<StatusCode, Problem> {
    not_entrypoint(&id, "can't send input to entrypoint session")?;
    let body: Input = serde_json::from_slice(&bytes).map_err(Problem::invalid_body)?;
    if body.data.is_empty() {
        return Err(Problem::invalid_body(missing_field("SessionSendInputRequest", "Data")));
    }
    let command = find_command(&daemon, &id, &command)?;
    let pipe = command.input().map_err(|shown| match shown {
        Some(code) => Problem::Daemon(
            StatusCode::GONE,
            "GONE",
            format!("gone: command has already completed with exit code {code}"),
        ),
        None => {
            internal(&format!("failed to open input pipe: open {}: no such file or directory", command.input_path()))
        }
    })?;
    let line = if body.data.ends_with('\n') { body.data } else { body.data + "\n" };
    let failed = |error: std::io::Error| internal(&format!("failed to write to input pipe: {error}"));
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        pipe.writable().await.map_err(failed)?;
        match pipe.try_write(rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(error)),
        }
    }
    if !command.order.quiet_input {
        command.log.echo(line.as_bytes()).map_err(failed)?;
    }
    Ok(StatusCode::NO_CONTENT)
}

fn internal(message: &str) -> Problem {
    let message = format!("internal server error: {message}");
    Problem::Daemon(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_SERVER_ERROR", message)
}

fn is(mode: Option<&Extension<Mode>>, wanted: Mode) -> bool {
    mode.is_some_and(|Extension(mode)| *mode == wanted)
}

fn not_entrypoint(id: &str, message: &str) -> Result<(), Problem> {
    if id == ENTRYPOINT { Err(Problem::daemon_bad_request(message)) } else { Ok(()) }
}

fn session(daemon: &Daemon, id: &str) -> Result<Arc<Session>, Problem> {
    daemon.session(id).ok_or_else(Problem::no_session)
}

fn find_command(daemon: &Daemon, id: &str, command: &str) -> Result<Arc<Command>, Problem> {
    session(daemon, id)?.command(command).ok_or_else(Problem::no_command)
}
