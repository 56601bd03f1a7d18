//! /livez and /readyz.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use axum::{Router, http::StatusCode, routing::get};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Whether this process does what is asked of it: it has listed what there is, or waits to lead.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<State>);

#[derive(Debug)]
struct State {
    stands_by: AtomicBool,
    /// Scopes that have not listed what there is.
    unlisted: AtomicUsize,
}

impl Readiness {
    /// Not ready until [`Self::listed`] was called this often.
    #[must_use]
    pub fn after(scopes: usize) -> Self {
        Self(Arc::new(State { stands_by: AtomicBool::new(false), unlisted: AtomicUsize::new(scopes) }))
    }

    /// Another process leads; this one waits, which is all it has to do.
    pub fn stand_by(&self) {
        self.0.stands_by.store(true, Ordering::Release);
    }

    /// This process leads.
    pub fn lead(&self) {
        self.0.stands_by.store(false, Ordering::Release);
    }

    /// One scope has listed what there is.
    pub fn listed(&self) {
        self.0.unlisted.fetch_sub(1, Ordering::AcqRel);
    }

    fn is_ready(&self) -> bool {
        self.0.stands_by.load(Ordering::Acquire) || self.0.unlisted.load(Ordering::Acquire) == 0
    }
}

/// Serves until `stop`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: TcpListener, readiness: Readiness, stop: CancellationToken) -> std::io::Result<()> {
    let ready = move || {
        let answer = if readiness.is_ready() {
            (StatusCode::OK, "ok\n")
        } else {
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "the watches have not listed their objects yet; are the CRDs installed?\n",
            )
        };
        std::future::ready(answer)
    };
    let router = Router::new().route("/livez", get(|| async { "ok\n" })).route("/readyz", get(ready));
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}
