//! What is known of the attempts that were sent, since the controller started. Losing it loses nothing: the runner in
//! the sandbox is asked again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::error::Error;
use crate::{plan::command::Sent, shell::Answer};

#[derive(Debug, Default)]
struct Entry {
    sent: Sent,
    waiting: bool,
    failure: Option<Error>,
}

/// Somebody waits for a command's end; nobody any more when this is dropped, however that comes about.
pub(super) struct Waiting {
    attempts: Arc<Attempts>,
    command: String,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(entry) = self.attempts.entries().get_mut(&self.command) {
            entry.waiting = false;
        }
    }
}

/// Entries by command UID.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<HashMap<String, Entry>>);

impl Attempts {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, command: &str, change: impl FnOnce(&mut Entry) -> T) -> T {
        change(self.entries().entry(command.to_owned()).or_default())
    }

    pub(super) fn sent(&self, command: &str) -> Sent {
        self.entries().get(command).map(|e| e.sent.clone()).unwrap_or_default()
    }

    /// This controller has just recorded the intent to send it.
    pub(super) fn intended(&self, command: &str) {
        self.with(command, |entry| entry.sent.fresh = true);
    }

    /// It was sent to the session of this epoch, or may have been.
    pub(super) fn submitted(&self, command: &str, epoch: u64, command_id: Option<String>) {
        self.with(command, |entry| {
            entry.sent = Sent {
                answer: None,
                epoch: Some(epoch),
                command_id: command_id.or_else(|| entry.sent.command_id.take()),
                fresh: false,
            };
        });
    }

    pub(super) fn answered(&self, command: &str, answer: Answer) {
        self.with(command, |entry| entry.sent.answer = Some(answer));
    }

    pub(super) fn failed(&self, command: &str, error: Error) {
        self.with(command, |entry| entry.failure = Some(error));
    }

    /// Why the last wait failed; told once.
    pub(super) fn take_failure(&self, command: &str) -> Option<Error> {
        self.entries().get_mut(command)?.failure.take()
    }

    /// Takes the right to wait for its end, given back on drop. `None`: somebody waits already.
    pub(super) fn begin_wait(self: &Arc<Self>, command: &str) -> Option<Waiting> {
        let taken = self.with(command, |entry| std::mem::replace(&mut entry.waiting, true));
        (!taken).then(|| Waiting { attempts: Arc::clone(self), command: command.to_owned() })
    }

    pub(super) fn forget(&self, command: &str) {
        self.entries().remove(command);
    }
}
