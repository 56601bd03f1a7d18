//! What is known of the attempts that were sent, since the controller started. Losing it loses nothing: the runner in
//! the sandbox is asked again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::error::Error;
use crate::{
    plan::{command::Sent, logs::Stored},
    shell::{Answer, Attempt, Job, Outputs, Redactor},
};

/// What a command runs with.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) job: Job,
    pub(super) redactor: Redactor,
    /// Which versions of its Secrets that is.
    pub(super) secrets: Option<String>,
}

#[derive(Debug, Default)]
struct Entry {
    /// What the rest is about; news of another attempt must not be taken for news of this one.
    attempt: String,
    sent: Sent,
    /// What it runs with: kept until it has ended, for its secrets must not be shown.
    prepared: Option<Arc<Prepared>>,
    waiting: bool,
    failure: Option<Error>,
}

impl Entry {
    fn answer(&mut self, Masked { answer, withheld }: Masked, killed: bool) {
        (self.sent.answer, self.sent.withheld, self.sent.killed) = (Some(answer), withheld, killed);
        self.sent.garbled = 0;
    }
}

/// An answer in which nothing secret is left.
#[derive(Debug)]
pub(super) struct Masked {
    pub(super) answer: Answer<Arc<Outputs>>,
    /// Its output is not shown at all.
    pub(super) withheld: bool,
}

/// Somebody waits for an attempt's end; nobody any more when this is dropped, however that comes about.
pub(super) struct Waiting {
    attempts: Arc<Attempts>,
    command: String,
    attempt: Attempt,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.attempts.change(&self.command, &self.attempt, |entry| entry.waiting = false);
    }
}

/// Entries by command UID, each about the command's present attempt.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<HashMap<String, Entry>>);

impl Attempts {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, command: &str, attempt: &Attempt, change: impl FnOnce(&mut Entry) -> T) -> T {
        let mut entries = self.entries();
        let entry = entries.entry(command.to_owned()).or_default();
        if entry.attempt != attempt.id {
            *entry = Entry { attempt: attempt.id.clone(), ..Entry::default() };
        }
        change(entry)
    }

    /// For news that may come when the command was forgotten, or is at its next attempt.
    fn change(&self, command: &str, attempt: &Attempt, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.entries().get_mut(command).filter(|entry| entry.attempt == attempt.id) {
            change(entry);
        }
    }

    pub(super) fn sent(&self, command: &str, attempt: &Attempt) -> Sent {
        let entries = self.entries();
        let entry = entries.get(command).filter(|entry| entry.attempt == attempt.id);
        entry.map(|e| e.sent.clone()).unwrap_or_default()
    }

    /// This controller has just recorded the intent to send it, to run with this.
    pub(super) fn intended(&self, command: &str, attempt: &Attempt, prepared: Option<Arc<Prepared>>) {
        self.with(command, attempt, |entry| (entry.sent.fresh, entry.prepared) = (true, prepared));
    }

    /// What it runs with, where this controller has started it.
    pub(super) fn prepared(&self, command: &str, attempt: &Attempt) -> Option<Arc<Prepared>> {
        let entries = self.entries();
        entries.get(command).filter(|entry| entry.attempt == attempt.id)?.prepared.clone()
    }

    /// It is about to be sent to the session of this epoch: from here on it may have arrived.
    pub(super) fn sending(&self, command: &str, attempt: &Attempt, epoch: u64, prepared: &Arc<Prepared>) {
        self.with(command, attempt, |entry| {
            entry.prepared = Some(Arc::clone(prepared));
            let old = std::mem::take(&mut entry.sent);
            let times = if old.epoch == Some(epoch) { old.times + 1 } else { 1 };
            entry.sent = Sent { epoch: Some(epoch), times, command_id: old.command_id, ..Sent::default() };
        });
    }

    /// Daytona took it, under this id.
    pub(super) fn accepted(&self, command: &str, attempt: &Attempt, id: Option<String>) {
        self.change(command, attempt, |entry| {
            if id.is_some() {
                entry.sent.command_id = id;
            }
        });
    }

    /// Daytona refused the text as such.
    pub(super) fn refused(&self, command: &str, attempt: &Attempt, why: String) {
        self.change(command, attempt, |entry| entry.sent.refused = Some(why));
    }

    pub(super) fn answered(&self, command: &str, attempt: &Attempt, masked: Masked) {
        // What was answered to a kill or a fence is the last word; an answer from before may come after it.
        self.change(command, attempt, |entry| {
            if !entry.sent.killed && entry.sent.answer != Some(Answer::Fenced) {
                entry.answer(masked, false);
            }
        });
    }

    /// The answer of a kill: nothing of the attempt is left.
    pub(super) fn ended(&self, command: &str, attempt: &Attempt, masked: Masked) {
        self.with(command, attempt, |entry| entry.answer(masked, true));
    }

    /// An answer about it made no sense.
    pub(super) fn garbled(&self, command: &str, attempt: &Attempt) {
        self.with(command, attempt, |entry| entry.sent.garbled += 1);
    }

    /// After a kill these processes were left.
    pub(super) fn survived(&self, command: &str, attempt: &Attempt, pids: Vec<u32>) {
        self.with(command, attempt, |entry| entry.sent.survived = (entry.sent.survived.0 + 1, pids));
    }

    /// What became of its logs.
    pub(super) fn stored(&self, command: &str, attempt: &Attempt, stored: Stored) {
        self.with(command, attempt, |entry| entry.sent.stored = Some(stored));
    }

    pub(super) fn failed(&self, command: &str, attempt: &Attempt, error: Error) {
        self.change(command, attempt, |entry| entry.failure = Some(error));
    }

    /// Why the last wait failed; told once.
    pub(super) fn take_failure(&self, command: &str) -> Option<Error> {
        self.entries().get_mut(command)?.failure.take()
    }

    /// Takes the right to wait for its end, given back on drop. `None`: somebody waits already.
    pub(super) fn begin_wait(self: &Arc<Self>, command: &str, attempt: &Attempt) -> Option<Waiting> {
        let taken = self.with(command, attempt, |entry| std::mem::replace(&mut entry.waiting, true));
        let (attempts, command, attempt) = (Arc::clone(self), command.to_owned(), attempt.clone());
        (!taken).then_some(Waiting { attempts, command, attempt })
    }

    /// Forgets all but these.
    pub(super) fn keep(&self, there: &dyn Fn(&str) -> bool) {
        self.entries().retain(|command, _| there(command));
    }

    pub(super) fn forget(&self, command: &str) {
        self.entries().remove(command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_another_attempt_is_no_news_of_this_one() {
        let attempts = Arc::new(Attempts::default());
        let [first, second] = [1, 2].map(|n| Attempt::new("c", n, "s"));
        let masked = |answer| Masked { answer, withheld: false };
        attempts.intended("c", &first, None);
        let waiting = attempts.begin_wait("c", &first).unwrap();
        assert!(attempts.begin_wait("c", &first).is_none(), "two wait for one end");
        attempts.intended("c", &second, None);
        attempts.answered("c", &first, masked(Answer::Fenced));
        assert_eq!(attempts.sent("c", &second), Sent { fresh: true, ..Sent::default() });
        let other = attempts.begin_wait("c", &second).unwrap();
        drop(waiting);
        assert!(attempts.begin_wait("c", &second).is_none(), "the end of one wait ended another");
        drop(other);
        attempts.forget("c");
        attempts.answered("c", &second, masked(Answer::Running));
        assert_eq!(attempts.sent("c", &second), Sent::default(), "what was forgotten came back");
    }
}
