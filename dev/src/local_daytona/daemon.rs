//! What runs in a started sandbox and answers for it: it ends with the sandbox, its sessions with it.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Extension;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::command::BeingWritten;
use super::environment::Environment;
use super::lock;
use super::session::Session;

/// The daemon that answers a request, put there by the proxy.
pub(super) type Here = Extension<Arc<Daemon>>;

/// A file name cannot be longer; the id of a session is one.
const LONGEST_ID: usize = 255;

/// Why a session was not opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("session already exists")]
    Exists,
    #[error("the daemon is gone")]
    Gone,
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) environment: Environment,
    /// Cancelled when the sandbox stops or the daemon restarts.
    pub(super) lost: CancellationToken,
    grace: Duration,
    sessions: Mutex<HashMap<String, Option<Arc<Session>>>>,
}

impl Daemon {
    pub(super) fn start(environment: Environment, grace: Duration) -> Arc<Self> {
        Arc::new(Self { environment, lost: CancellationToken::new(), grace, sessions: Mutex::default() })
    }

    pub(super) fn open_session(&self, id: &str) -> Result<(), OpenError> {
        let mut sessions = lock(&self.sessions);
        if self.lost.is_cancelled() {
            return Err(OpenError::Gone);
        }
        if sessions.contains_key(id) {
            return Err(OpenError::Exists);
        }
        if id.len() > LONGEST_ID {
            // As measured: it fails, and stays registered all the same.
            sessions.insert(id.to_owned(), None);
            return Err(io::Error::other(format!("mkdir {}: file name too long", self.session_dir(id))).into());
        }
        let session = Session::open(&self.environment, id)?;
        sessions.insert(id.to_owned(), Some(session));
        Ok(())
    }

    pub(super) fn session(&self, id: &str) -> Option<Arc<Session>> {
        lock(&self.sessions).get(id)?.clone()
    }

    /// Registered, but without a shell.
    pub(super) fn is_broken(&self, id: &str) -> bool {
        matches!(lock(&self.sessions).get(id), Some(None))
    }

    pub(super) fn session_ids(&self) -> Vec<String> {
        let mut ids: Vec<_> = lock(&self.sessions).keys().cloned().collect();
        ids.sort();
        ids
    }

    /// Where a session of this name has its files.
    pub(super) fn session_dir(&self, id: &str) -> String {
        self.environment.home.join(".daytona/sessions").join(id).display().to_string()
    }

    pub(super) fn show_session(&self, id: &str) -> Option<Result<Value, BeingWritten>> {
        lock(&self.sessions).get(id).map(|session| show(id, session.as_deref()))
    }

    pub(super) fn show_sessions(&self) -> Result<Vec<Value>, BeingWritten> {
        lock(&self.sessions).iter().map(|(id, session)| show(id, session.as_deref())).collect()
    }

    /// Deletes a session. When the caller leaves, the grace ends, not the deletion.
    pub(super) async fn close_session(self: &Arc<Self>, session: Arc<Session>) {
        let hurry = CancellationToken::new();
        let _leaving = hurry.clone().drop_guard();
        let daemon = Arc::clone(self);
        let closing = tokio::spawn(async move {
            session.close(daemon.grace, &hurry).await;
            // By its id: as measured, a late one takes a newcomer of the same name with it.
            lock(&daemon.sessions).remove(&session.id);
        });
        let _ = closing.await;
    }

    /// The daemon ends: its sessions are forgotten. Their processes are the caller's to end.
    pub(super) fn lose(&self) {
        let mut sessions = lock(&self.sessions);
        self.lost.cancel();
        for session in sessions.drain().filter_map(|(_, session)| session) {
            session.lose();
        }
    }
}

fn show(id: &str, session: Option<&Session>) -> Result<Value, BeingWritten> {
    session.map_or_else(|| Ok(json!({ "sessionId": id, "commands": [] })), Session::show)
}
