//! Refusals, in the two shapes the service has: the control plane's and the sandbox daemon's.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::clock::Moment;

/// A refusal. Its body names the path, which only the server knows: it is written there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    /// The control plane's shape.
    #[error("{1}")]
    Control(StatusCode, String),
    /// The daemon's shape, with a code.
    #[error("{2}")]
    Daemon(StatusCode, &'static str, String),
    /// What the daemon did not classify: no code, no path, the zero time.
    #[error("{0}")]
    Unclassified(String),
    /// Many 4xx of the daemon have no body at all.
    #[error("{0}")]
    Empty(StatusCode),
}

impl Problem {
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::Control(StatusCode::BAD_REQUEST, message.into())
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::Control(StatusCode::FORBIDDEN, message.into())
    }

    /// What a class of sandboxes cannot do.
    pub(super) fn unsupported(what: &str) -> Self {
        Self::Control(StatusCode::UNPROCESSABLE_ENTITY, format!("{what} is not supported for this sandbox"))
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::Control(StatusCode::CONFLICT, message.into())
    }

    pub(super) fn no_sandbox(id_or_name: &str) -> Self {
        Self::Control(StatusCode::NOT_FOUND, format!("Sandbox with ID or name {id_or_name} not found"))
    }

    pub(super) fn invalid_body(why: impl std::fmt::Display) -> Self {
        let why = why.to_string();
        let why = if why.starts_with("EOF ") { "EOF" } else { &why };
        Self::Daemon(StatusCode::BAD_REQUEST, "INVALID_REQUEST_BODY", format!("invalid body request: {why}"))
    }

    pub(super) fn daemon_bad_request(message: impl Into<String>) -> Self {
        Self::Daemon(StatusCode::BAD_REQUEST, "BAD_REQUEST", format!("bad request: {}", message.into()))
    }

    pub(super) fn unauthorized(message: &str) -> Self {
        Self::Daemon(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", format!("unauthorized: {message}"))
    }

    pub(super) fn no_session() -> Self {
        Self::Daemon(StatusCode::NOT_FOUND, "NOT_FOUND", "not found: session not found".to_owned())
    }

    pub(super) fn no_command() -> Self {
        Self::Daemon(StatusCode::NOT_FOUND, "NOT_FOUND", "not found: command not found".to_owned())
    }

    /// The whole answer. `path` is the one the answering part saw.
    pub(super) fn respond(&self, method: &str, path: &str, now: Moment) -> Response {
        let (status, body) = match self {
            Self::Control(status, message) => (
                *status,
                json!({
                    "path": path, "timestamp": now.to_string(), "statusCode": status.as_u16(),
                    "error": status.canonical_reason().unwrap_or_default(), "message": message,
                }),
            ),
            Self::Daemon(status, code, message) => (
                *status,
                json!({
                    "statusCode": status.as_u16(), "message": message, "code": code,
                    "timestamp": now.to_string(), "path": path, "method": method,
                }),
            ),
            Self::Unclassified(message) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                json!({
                    "statusCode": 500, "message": message,
                    "timestamp": "0001-01-01T00:00:00Z", "path": "",
                }),
            ),
            Self::Empty(status) => return status.into_response(),
        };
        (status, [(header::CONTENT_TYPE, "application/json")], Body::from(body.to_string())).into_response()
    }
}

/// In the words of the daemon's validator.
pub(super) fn missing_field(kind: &str, field: &str) -> String {
    format!("Key: '{kind}.{field}' Error:Field validation for '{field}' failed on the 'required' tag")
}

impl IntoResponse for Problem {
    /// Carries the refusal to the server, which knows the path.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(self);
        response
    }
}
