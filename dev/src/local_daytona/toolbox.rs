//! What a sandbox's daemon answers, under `/toolbox/{sandbox}`, and the proxy before it.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, OriginalUri, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde_json::{Map, Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::faults::Mode;

use super::daemon::Here;
use super::guards::{As, has_key, lose_first};
use super::problem::Problem;
use super::service::{Entry, Service};
use super::{bulk, code_run, execute, files, ports, search, sessions, transfer};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const JSON_UTF_8: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// A method that nothing serves, to ask whether a path is known.
const PROBE: &[u8] = b"PROBE";

pub(super) fn router(service: &Arc<Service>) -> Router {
    let routes = Router::new()
        .route("/version", get(async || Json(json!({ "version": "v0.226.1" }))))
        .route("/work-dir", get(home))
        .route("/user-home-dir", get(home))
        .route("/project-dir", get(home))
        .route("/init", post(init))
        .route("/process/execute", post(execute::execute))
        .route("/process/code-run", post(code_run::code_run))
        .merge(ports::router())
        .merge(sessions::router())
        .merge(files::router())
        .merge(search::router())
        .merge(transfer::router())
        .merge(bulk::router())
        .fallback(async || StatusCode::NOT_FOUND)
        .method_not_allowed_fallback(async || StatusCode::METHOD_NOT_ALLOWED)
        // As measured: a command of 5 MB and a file of 100 MB are taken.
        .layer(DefaultBodyLimit::disable());
    let front = Front { service: Arc::clone(service), routes: routes.clone() };
    let routes = routes.layer(middleware::from_fn_with_state(front, proxy));
    // Which methods a path has is told to nobody.
    let silent = ServiceExt::<Request>::map_response(routes, |mut response: Response| {
        response.headers_mut().remove(header::ALLOW);
        response
    });
    Router::new().nest_service("/toolbox/{sandbox}", silent)
}

/// What stands before the routes.
#[derive(Clone)]
struct Front {
    service: Arc<Service>,
    routes: Router,
}

/// Counts a request as activity for as long as it is open. Who streams keeps it.
#[derive(Debug)]
pub(super) struct Open {
    service: Arc<Service>,
    sandbox: String,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.service.leave(&self.sandbox);
    }
}

async fn proxy(
    State(front): State<Front>,
    OriginalUri(uri): OriginalUri,
    mode: As,
    mut request: Request,
    next: Next,
) -> Response {
    let service = &front.service;
    let sandbox = uri.path().split('/').nth(2).unwrap_or_default().to_owned();
    match has_key(request.headers(), service) {
        Some(true) => {}
        Some(false) => return unknown(),
        None => {
            let message = "missing authentication: provide a preview access token (via header, query \
                           parameter, or cookie) or an API key or JWT";
            return Problem::unauthorized(message).into_response();
        }
    }
    lose_first(service, mode.map(|mode| mode.0), uri.path()).await;
    let skip = "X-Daytona-Skip-Last-Activity-Update";
    let counts = request.headers().get(skip).is_none_or(|value| value != "true");
    let daemon = match service.enter(&sandbox, counts) {
        Entry::Ready(daemon) => daemon,
        Entry::Unknown => return unknown(),
        Entry::NotStarted(why) => return Problem::daemon_bad_request(why).into_response(),
    };
    let open = counts.then(|| Arc::new(Open { service: Arc::clone(service), sandbox: sandbox.clone() }));
    if let Some(open) = &open {
        request.extensions_mut().insert(Arc::clone(open));
    }
    if request.extensions().get() == Some(&Mode::DaemonKilled) {
        // That it is gone by now is all the same to the caller.
        let _ = service.restart_daemon(&sandbox).await;
        return StatusCode::BAD_GATEWAY.into_response();
    }
    request.extensions_mut().insert(Arc::clone(&daemon));
    request.extensions_mut().insert(service.clock.now());
    tokio::select! {
        biased;
        () = daemon.lost.cancelled() => StatusCode::BAD_GATEWAY.into_response(),
        // The other end is gone in mid-request: what the handler made of it does not get out.
        response = answer(&front, &sandbox, request, next) => {
            if daemon.lost.is_cancelled() { StatusCode::BAD_GATEWAY.into_response() } else { response }
        }
    }
}

/// What the daemon's own server makes of a request: no route knows HEAD, or any method that it does not name.
async fn answer(front: &Front, sandbox: &str, request: Request, next: Next) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    // An id with a slash in it is accepted, but no path leads to it.
    let mut response = if method == Method::HEAD || uri.path().to_ascii_lowercase().contains("%2f") {
        nowhere()
    } else {
        let response = next.run(request).await;
        if let Some(problem) = response.extensions().get::<Problem>() {
            problem.respond(method.as_str(), uri.path(), front.service.clock.now())
        } else if response.status() == StatusCode::NOT_FOUND {
            match uri.path().strip_suffix('/') {
                Some(path) if is_known(path, &front.routes).await => return moved(sandbox, &method, path, uri.query()),
                _ => nowhere(),
            }
        } else if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            nowhere()
        } else {
            response
        }
    };
    // Only refusals come without the character set.
    if response.status().is_success() && response.headers().get(header::CONTENT_TYPE) == Some(&JSON) {
        response.headers_mut().insert(header::CONTENT_TYPE, JSON_UTF_8);
    }
    if let Ok(id) = Uuid::new_v4().to_string().parse() {
        response.headers_mut().insert("X-Request-Id", id);
    }
    response
}

async fn is_known(path: &str, routes: &Router) -> bool {
    let probe = Method::from_bytes(PROBE).ok().map(|method| Request::builder().method(method).uri(path));
    let Some(Ok(probe)) = probe.map(|probe| probe.body(Body::empty())) else {
        return false;
    };
    let answer: Result<Response, Infallible> = routes.clone().oneshot(probe).await;
    answer.is_ok_and(|answer| answer.status() == StatusCode::METHOD_NOT_ALLOWED)
}

/// A slash too many. The proxy puts its own part before the path.
fn moved(sandbox: &str, method: &Method, path: &str, query: Option<&str>) -> Response {
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    let place = format!("/toolbox/{sandbox}{path}{query}");
    let location = [(header::LOCATION, place.as_str())];
    if method != Method::GET {
        return (StatusCode::TEMPORARY_REDIRECT, location).into_response();
    }
    let body = format!("<a href=\"{path}{query}\">Moved Permanently</a>.\n\n");
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (StatusCode::MOVED_PERMANENTLY, location, kind, body).into_response()
}

fn nowhere() -> Response {
    (StatusCode::NOT_FOUND, [(header::CONTENT_TYPE, "text/plain")], "404 page not found").into_response()
}
/// An unknown, deleted or foreign sandbox is not told from a wrong key.
fn unknown() -> Response {
    Problem::unauthorized("authentication failed: Bearer token is invalid").into_response()
}

/// For the service's own use: it tells the daemon the key under which it reports what it does.
async fn init(bytes: Bytes) -> Result<Json<Value>, Problem> {
    serde_json::from_slice::<Map<String, Value>>(&bytes).map_err(|_| Problem::Empty(StatusCode::BAD_REQUEST))?;
    Ok(Json(json!({ "message": "Auth token set and telemetry initialized successfully" })))
}

async fn home(Extension(daemon): Here) -> Json<Value> {
    Json(json!({ "dir": daemon.environment.home }))
}
