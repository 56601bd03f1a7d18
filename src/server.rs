//! /livez and /readyz.

use std::sync::{
    Arc, Mutex, PoisonError,
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
    /// What somebody has to do before anything can begin.
    hindrance: Mutex<Option<String>>,
    /// Scopes that have not listed what there is.
    unlisted: AtomicUsize,
}

impl Readiness {
    /// Not ready until [`Self::listed`] was called this often.
    #[must_use]
    pub fn after(scopes: usize) -> Self {
        Self(Arc::new(State {
            stands_by: AtomicBool::new(false),
            hindrance: Mutex::default(),
            unlisted: AtomicUsize::new(scopes),
        }))
    }

    /// Somebody has to do this first; nothing, for `None`.
    pub fn wait_for(&self, hindrance: Option<String>) {
        *self.0.hindrance.lock().unwrap_or_else(PoisonError::into_inner) = hindrance;
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

    /// What there is to wait for; nothing when ready.
    fn waits_for(&self) -> Option<String> {
        let hindrance = self.0.hindrance.lock().unwrap_or_else(PoisonError::into_inner);
        hindrance.clone().or_else(|| {
            let ready = self.0.stands_by.load(Ordering::Acquire) || self.0.unlisted.load(Ordering::Acquire) == 0;
            (!ready).then(|| "the watches have not listed their objects yet".to_owned())
        })
    }
}

/// Serves until `stop`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: TcpListener, readiness: Readiness, stop: CancellationToken) -> std::io::Result<()> {
    let ready = move || {
        let answer = readiness.waits_for().map_or_else(
            || (StatusCode::OK, "ok\n".to_owned()),
            |what| (StatusCode::SERVICE_UNAVAILABLE, format!("{what}\n")),
        );
        std::future::ready(answer)
    };
    let router = Router::new().route("/livez", get(|| async { "ok\n" })).route("/readyz", get(ready));
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}
