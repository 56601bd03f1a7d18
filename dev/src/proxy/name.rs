//! What a call is called, so that it can be found again in another run.

use axum::http::Method;

use crate::local_daytona::routes;

/// What tells a call from others in every run alike.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Name {
    /// Path with placeholders for what differs from run to run.
    pub route: String,
    /// What it is about, by a name that is the same in every run; empty where nothing is told.
    pub object: String,
}

/// Names calls.
pub trait Naming: Send + Sync {
    /// Whether the body is needed for the name. It is then read whole before the call is passed on.
    fn reads_body(&self, method: &Method, path: &str) -> bool;

    /// The name of a call; `body` is empty unless it was asked for.
    fn name(&self, method: &Method, path: &str, body: &[u8]) -> Name;

    /// Whether the service may hold such a call back on purpose, for longer than it takes to act on it.
    fn may_be_held(&self, _: &Name) -> bool {
        true
    }
}

/// By Daytona's routes alone, as in the local Daytona's call log; any other path is its own name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Routes;

impl Naming for Routes {
    fn reads_body(&self, _: &Method, _: &str) -> bool {
        false
    }

    fn name(&self, _: &Method, path: &str, _: &[u8]) -> Name {
        Name { route: routes::name(path).pattern, object: String::new() }
    }
}
