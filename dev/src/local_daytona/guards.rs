//! What stands before the control plane's routes: who may come in, how often, and to do what.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{OriginalUri, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::limits::{FAILED_AUTH, Verdict, limiter};
use super::problem::Problem;
use super::routes;
use super::service::Service;
use crate::faults::Mode;

/// How the call is to fail, if a rule says so.
pub(super) type As = Option<Extension<Mode>>;

/// Everybody who may fail to authenticate is on this machine.
const ANYBODY: &str = "127.0.0.1";

/// Whether the request carries the key that is accepted now.
pub(super) fn has_key(headers: &HeaderMap, service: &Service) -> Option<bool> {
    carries(headers, &service.key())
}

/// Whether the request carries this key.
pub(super) fn carries(headers: &HeaderMap, key: &str) -> Option<bool> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    Some(value.strip_prefix("Bearer ") == Some(key))
}

/// Lets the provider lose the sandbox in the path first, if a rule says so.
pub(super) async fn lose_first(service: &Service, mode: Option<Mode>, path: &str) {
    let lost = mode == Some(Mode::SandboxLost);
    if let Some(sandbox) = routes::name(path).sandbox.filter(|_| lost) {
        // What is not there cannot be lost, and is answered as that.
        let _ = service.lose(&sandbox).await;
    }
}

pub(super) async fn authenticate(
    State(service): State<Arc<Service>>,
    OriginalUri(uri): OriginalUri,
    mode: As,
    request: Request,
    next: Next,
) -> Response {
    let limit = service.settings().rate_limits.and_then(|limits| limits.of(FAILED_AUTH));
    let now = service.clock.now();
    let limiters = &service.limiters;
    if let Some(verdict) = limit.and_then(|limit| limiters.blocked(FAILED_AUTH, ANYBODY, limit, now)) {
        return refuse(&verdict);
    }
    if has_key(request.headers(), &service) == Some(true) {
        lose_first(&service, mode.map(|mode| mode.0), uri.path()).await;
        return next.run(request).await;
    }
    let unauthorized = Problem::Control(StatusCode::UNAUTHORIZED, "Invalid credentials".to_owned());
    match limit.map(|limit| limiters.count(FAILED_AUTH, ANYBODY, limit, now)) {
        Some(verdict) if verdict.refused => refuse(&verdict),
        verdict => told(verdict, unauthorized.into_response()),
    }
}

/// Counts the call for its limiter, if there is one.
pub(super) async fn limit(
    State(service): State<Arc<Service>>,
    OriginalUri(uri): OriginalUri,
    request: Request,
    next: Next,
) -> Response {
    let limiter = limiter(request.method(), uri.path());
    let Some(limit) = service.settings().rate_limits.and_then(|limits| limits.of(limiter)) else {
        return next.run(request).await;
    };
    let verdict = service.limiters.count(limiter, &service.organization(), limit, service.clock.now());
    if verdict.refused { refuse(&verdict) } else { told(Some(verdict), next.run(request).await) }
}

/// A key may be allowed a part only. Reading, and reporting activity, needs nothing.
pub(super) async fn permit(
    State(service): State<Arc<Service>>,
    OriginalUri(uri): OriginalUri,
    request: Request,
    next: Next,
) -> Response {
    let needed = match *request.method() {
        Method::GET => None,
        Method::DELETE => Some("delete:sandboxes"),
        _ if uri.path().ends_with("/last-activity") => None,
        _ => Some("write:sandboxes"),
    };
    let allowed = service.settings().permissions;
    match (needed, allowed) {
        (Some(needed), Some(allowed)) if !allowed.iter().any(|permission| permission == needed) => {
            Problem::forbidden("Access denied").into_response()
        }
        _ => next.run(request).await,
    }
}

fn refuse(verdict: &Verdict) -> Response {
    let message = "ThrottlerException: Too Many Requests".to_owned();
    let mut response = Problem::Control(StatusCode::TOO_MANY_REQUESTS, message).into_response();
    verdict.tell(response.headers_mut());
    response
}

fn told(verdict: Option<Verdict>, mut response: Response) -> Response {
    if let Some(verdict) = verdict {
        verdict.tell(response.headers_mut());
    }
    response
}
