//! What a sandbox's daemon answers, under `/toolbox/{sandbox}`, and the proxy before it.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, OriginalUri, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde_json::{Value, json};

use super::control::has_key;
use super::daemon::Here;
use super::problem::Problem;
use super::service::{Entry, Service};
use super::{execute, files, sessions, transfer};

pub(super) fn router(service: &Arc<Service>) -> Router {
    let routes = Router::new()
        .route("/version", get(async || Json(json!({ "version": "v0.226.1" }))))
        .route("/work-dir", get(home))
        .route("/user-home-dir", get(home))
        .route("/project-dir", get(home))
        .route("/process/execute", post(execute::execute))
        .merge(sessions::router())
        .merge(files::router())
        .merge(transfer::router())
        .fallback(async || (StatusCode::NOT_FOUND, "404 page not found"))
        // As measured: a command of 5 MB and a file of 100 MB are taken.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(Arc::clone(service), proxy));
    Router::new().nest("/toolbox/{sandbox}", routes)
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
    let open = counts.then(|| Arc::new(Open { service: Arc::clone(&service), sandbox }));
    if let Some(open) = &open {
        request.extensions_mut().insert(Arc::clone(open));
    }
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
