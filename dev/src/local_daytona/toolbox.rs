//! What a sandbox's daemon answers, under `/toolbox/{sandbox}`, and the proxy before it.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, OriginalUri, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::calls::Subject;
use super::command::Command;
use super::control::has_key;
use super::daemon::{Daemon, Here, OpenError};
use super::output::{Form, split, strip, text};
use super::problem::Problem;
use super::service::{Entry, Service};
use super::session::{ExecError, Session};
use super::{execute, files, transfer};

/// How often a synchronous exec looks whether it is done; hence it never takes less.
const SYNC_POLL: std::time::Duration = std::time::Duration::from_millis(50);

pub(super) fn router(service: &Arc<Service>) -> Router {
    let routes = Router::new()
        .route("/version", get(async || Json(json!({ "version": "v0.226.1" }))))
        .route("/work-dir", get(home))
        .route("/user-home-dir", get(home))
        .route("/project-dir", get(home))
        .route("/process/session", post(open_session).get(list_sessions))
        .route("/process/session/{id}", get(read_session).delete(close_session))
        .route("/process/session/{id}/exec", post(exec))
        .route("/process/session/{id}/command/{command}", get(read_command))
        .route("/process/session/{id}/command/{command}/logs", get(read_logs))
        .route("/process/session/{id}/command/{command}/input", post(give_input))
        .route("/process/execute", post(execute::execute))
        .merge(files::router())
        .merge(transfer::router())
        .fallback(async || (StatusCode::NOT_FOUND, "404 page not found"))
        // As measured: a command of 5 MB and a file of 100 MB are taken.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(Arc::clone(service), proxy));
    Router::new().nest("/toolbox/{sandbox}", routes)
}

/// Counts a request as activity for as long as it is open.
struct Open {
    service: Arc<Service>,
    sandbox: String,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.service.leave(&self.sandbox);
    }
}

async fn proxy(
    State(service): State<Arc<Service>>,
    OriginalUri(uri): OriginalUri,
    mut request: Request,
    next: Next,
) -> Response {
    let sandbox = uri.path().split('/').nth(2).unwrap_or_default().to_owned();
    match has_key(request.headers(), &service) {
        Some(true) => {}
        Some(false) => return unknown(),
        None => {
            let message = "missing authentication: provide a preview access token (via header, query \
                           parameter, or cookie) or an API key or JWT";
            return Problem::unauthorized(message).into_response();
        }
    }
    let skip = "X-Daytona-Skip-Last-Activity-Update";
    let counts = request.headers().get(skip).is_none_or(|value| value != "true");
    let daemon = match service.enter(&sandbox, counts) {
        Entry::Ready(daemon) => daemon,
        Entry::Unknown => return unknown(),
        Entry::NotStarted => {
            let message = "no IP address found. Is the Sandbox started?";
            return Problem::daemon_bad_request(message).into_response();
        }
    };
    let _open = counts.then(|| Open { service: Arc::clone(&service), sandbox });
    request.extensions_mut().insert(Arc::clone(&daemon));
    tokio::select! {
        biased;
        () = daemon.lost.cancelled() => StatusCode::BAD_GATEWAY.into_response(),
        // The other end is gone in mid-request: what the handler made of it does not get out.
        response = next.run(request) => {
            if daemon.lost.is_cancelled() { StatusCode::BAD_GATEWAY.into_response() } else { response }
        }
    }
}

/// An unknown, deleted or foreign sandbox is not told from a wrong key.
fn unknown() -> Response {
    Problem::unauthorized("authentication failed: Bearer token is invalid").into_response()
}

async fn home(Extension(daemon): Here) -> Json<Value> {
    Json(json!({ "dir": daemon.environment.home }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OpenSession {
    session_id: String,
}

async fn open_session(Extension(daemon): Here, bytes: Bytes) -> Result<Response, Problem> {
    let body: OpenSession = serde_json::from_slice(&bytes).map_err(|_| Problem::invalid_body())?;
    let id = body.session_id;
    if id.is_empty() {
        return Err(Problem::invalid_body());
    }
    if id == "entrypoint" {
        return Err(Problem::daemon_bad_request("session id entrypoint is reserved"));
    }
    daemon.open_session(&id).map_err(|error| match error {
        OpenError::Exists => {
            Problem::Daemon(StatusCode::CONFLICT, "CONFLICT", "conflict: session already exists".to_owned())
        }
        OpenError::Gone => Problem::Empty(StatusCode::BAD_GATEWAY),
        OpenError::Io(error) => Problem::Unclassified(format!("failed to create session: {error}")),
    })?;
    let mut response = StatusCode::CREATED.into_response();
    response.extensions_mut().insert(Subject::Session(id));
    Ok(response)
}

async fn list_sessions(Extension(daemon): Here) -> Json<Vec<Value>> {
    Json(daemon.show_sessions())
}

async fn read_session(Extension(daemon): Here, Path((_, id)): Path<(String, String)>) -> Result<Json<Value>, Problem> {
    Ok(Json(session(&daemon, &id)?.show()))
}

async fn close_session(Extension(daemon): Here, Path((_, id)): Path<(String, String)>) -> Result<StatusCode, Problem> {
    if id == "entrypoint" || daemon.is_broken(&id) {
        return Err(Problem::daemon_bad_request("cannot delete this session"));
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
}

async fn exec(
    Extension(daemon): Here,
    Path((_, id)): Path<(String, String)>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Problem> {
    let empty = || Problem::Empty(StatusCode::BAD_REQUEST);
    let body: Exec = serde_json::from_slice(&bytes).map_err(|_| empty())?;
    if body.command.trim().is_empty() {
        return Err(empty());
    }
    let failed = |why: String| Problem::Unclassified(format!("failed to execute command: {why}"));
    let session = daemon.session(&id).ok_or_else(|| failed("not found: session not found".to_owned()))?;
    let is_async = body.run_async || body.old_async;
    let command = session.exec(&body.command, is_async).await.map_err(|error| failed(error.to_string()))?;
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
            () = session.cancelled.cancelled() => return Err(ExecError::Cancelled),
        }
        if let Some(code) = command.exit_code() {
            command.show();
            return Ok(code);
        }
    }
}

async fn read_command(
    Extension(daemon): Here,
    Path((_, id, command)): Path<(String, String, String)>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(find_command(&daemon, &id, &command)?.show()))
}

/// The whole log; `follow=true` makes no difference over plain HTTP.
async fn read_logs(
    Extension(daemon): Here,
    Path((_, id, command)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let log = find_command(&daemon, &id, &command)?
        .log
        .read()
        .map_err(|error| Problem::Unclassified(format!("failed to read logs: {error}")))?;
    let plain = |bytes: Vec<u8>| {
        let body = Body::from(bytes);
        ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
    };
    Ok(match Form::asked(&headers) {
        Form::Split => {
            let (stdout, stderr) = split(&log);
            Json(json!({ "output": text(&log), "stdout": text(&stdout), "stderr": text(&stderr) })).into_response()
        }
        _ if log.is_empty() => Response::new(Body::empty()),
        Form::Raw => plain(log),
        Form::Stripped => plain(strip(&log)),
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Input {
    data: String,
}

async fn give_input(
    Extension(daemon): Here,
    Path((_, id, command)): Path<(String, String, String)>,
    bytes: Bytes,
) -> Result<StatusCode, Problem> {
    let body: Input = serde_json::from_slice(&bytes).map_err(|_| Problem::Empty(StatusCode::BAD_REQUEST))?;
    if body.data.is_empty() {
        return Err(Problem::Empty(StatusCode::BAD_REQUEST));
    }
    let command = find_command(&daemon, &id, &command)?;
    let pipe = command.input().map_err(|shown| match shown {
        Some(code) => Problem::Daemon(
            StatusCode::GONE,
            "GONE",
            format!("gone: command has already completed with exit code {code}"),
        ),
        None => Problem::Unclassified("failed to open input pipe: no such file or directory".to_owned()),
    })?;
    let line = if body.data.ends_with('\n') { body.data } else { body.data + "\n" };
    let failed = |error: std::io::Error| Problem::Unclassified(format!("failed to write input: {error}"));
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        pipe.writable().await.map_err(failed)?;
        match pipe.try_write(rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

fn session(daemon: &Daemon, id: &str) -> Result<Arc<Session>, Problem> {
    daemon.session(id).ok_or_else(Problem::no_session)
}

fn find_command(daemon: &Daemon, id: &str, command: &str) -> Result<Arc<Command>, Problem> {
    session(daemon, id)?.command(command).ok_or_else(Problem::no_command)
}
