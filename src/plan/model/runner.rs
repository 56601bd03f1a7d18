//! The runner in a sandbox and its files (`src/shell/runner.sh` and `asking.sh`), as far as decisions can tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    daytona::{Machine, ScriptOf, Text},
    event::Nature,
    truth::{End, Truth},
};
use crate::shell::{Answer, Attempt, How, Outputs};

/// What an attempt's guard says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    Runner,
    Fenced,
    Cleared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exit {
    code: i32,
    how: How,
}

/// The controller's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) set_up: bool,
    pub(super) marks: BTreeSet<String>,
    guards: BTreeMap<String, Guard>,
    inputs: BTreeSet<String>,
    exits: BTreeMap<String, Exit>,
    killed: BTreeSet<String>,
}

/// A script that runs, with its runner.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Process {
    pub(super) script: ScriptOf,
    since: i64,
    session: Option<String>,
}

impl Machine {
    /// Its session ends, with the session's processes.
    pub(super) fn delete_session(&mut self, id: &str, now: i64, truth: &mut Truth) {
        self.sessions.remove(id);
        let ends = |process: &Process| process.script.nature == Nature::Plain && process.session.as_deref() == Some(id);
        let ends: Vec<String> = self.processes.iter().filter(|(_, p)| ends(p)).map(|(id, _)| id.clone()).collect();
        for attempt in ends {
            self.finish(&attempt, 143, End::Session, now, truth);
        }
    }

    pub(super) fn mark(&mut self, mark: &str) {
        self.disk.marks.insert(mark.to_owned());
        // What it would go back to when it failed.
        self.saved = self.disk.clone();
    }

    pub(super) fn has_mark(&self, mark: &str) -> bool {
        self.disk.marks.contains(mark)
    }

    pub(super) fn upload(&mut self, attempt: &Attempt) {
        self.disk.inputs.insert(attempt.id.clone());
    }

    /// `run` and `start`: the only place where a script is started.
    pub(super) fn run(&mut self, text: &Text, now: i64, truth: &mut Truth) {
        let Text { attempt, script, uploaded, session } = text;
        let ready = self.disk.marks.contains(&attempt.mark) && (!uploaded || self.disk.inputs.contains(&attempt.id));
        if self.disk.set_up && ready && !self.disk.guards.contains_key(&attempt.id) {
            self.disk.guards.insert(attempt.id.clone(), Guard::Runner);
            self.disk.inputs.remove(&attempt.id);
            let process = Process { script: *script, since: now, session: session.clone() };
            self.processes.insert(attempt.id.clone(), process);
            truth.started(&attempt.id, script.command, now);
        }
    }

    /// A script ends. Where its files are gone, its runner makes place for the outcome all the same.
    pub(super) fn finish(&mut self, attempt: &str, code: i32, end: End, now: i64, truth: &mut Truth) {
        if self.processes.remove(attempt).is_some() {
            let how = if self.disk.guards.contains_key(attempt) { How::Full } else { How::OutputLost };
            self.disk.exits.insert(attempt.to_owned(), Exit { code, how });
            truth.ended(attempt, code, end, now);
        }
    }

    pub(super) fn report(&self, attempt: &Attempt) -> Answer<Arc<Outputs>> {
        if let Some(Exit { code, how }) = self.disk.exits.get(&attempt.id) {
            let killed = self.disk.killed.contains(&attempt.id);
            return Answer::Done { killed, code: *code, milliseconds: 10, how: *how, streams: Arc::default() };
        }
        match self.disk.guards.get(&attempt.id) {
            None if self.has_mark(&attempt.mark) => Answer::Unseen,
            None => Answer::Lost,
            Some(Guard::Fenced) => Answer::Fenced,
            Some(Guard::Cleared) => Answer::Cleared,
            Some(Guard::Runner) if self.processes.contains_key(&attempt.id) => Answer::Running,
            Some(Guard::Runner) => {
                let session_lives = self.sessions.get(&attempt.mark) == Some(&true);
                Answer::Died { streams: Arc::default(), session_lives }
            }
        }
    }

    /// Whether nobody had taken it.
    fn take(&mut self, attempt: &Attempt) -> bool {
        let free = self.has_mark(&attempt.mark) && !self.disk.guards.contains_key(&attempt.id);
        if free {
            self.disk.guards.insert(attempt.id.clone(), Guard::Fenced);
            self.disk.inputs.remove(&attempt.id);
        }
        free
    }

    pub(super) fn fence(&mut self, attempt: &Attempt) -> Answer<Arc<Outputs>> {
        self.take(attempt);
        self.report(attempt)
    }

    pub(super) fn kill(&mut self, attempt: &Attempt, after: i64, now: i64, truth: &mut Truth) -> Answer<Arc<Outputs>> {
        let (id, guard) = (&attempt.id, self.disk.guards.get(&attempt.id).copied());
        let closed = matches!(guard, Some(Guard::Fenced | Guard::Cleared));
        let over = self.disk.exits.contains_key(id) && !self.disk.killed.contains(id);
        if self.take(attempt) || closed || over {
            return self.report(attempt);
        }
        let process = self.processes.get(id).cloned();
        if let (Some(process), Some(_)) = (&process, guard)
            && process.since + after > now
        {
            return Answer::Early((process.since + after - now).unsigned_abs());
        }
        self.disk.killed.insert(id.clone());
        if process.is_some() {
            truth.killed(id);
        }
        match process {
            Some(process) if process.script.nature == Nature::Unkillable => Answer::Survivors(vec![7]),
            Some(process) => {
                // Without a guard the runner is not found, and nobody waits for what it writes.
                let unseen = guard.is_none().then(|| self.report(attempt)).map(|_| Answer::Lost);
                self.finish(id, process.script.when_ended, End::Killed, now, truth);
                unseen.unwrap_or_else(|| self.report(attempt))
            }
            None => self.report(attempt),
        }
    }

    /// What is left of an attempt whose outcome is recorded goes.
    pub(super) fn clear(&mut self, attempt: &str) {
        let guard = self.disk.guards.get(attempt).copied();
        let done = self.disk.exits.contains_key(attempt) || !self.processes.contains_key(attempt);
        if guard != Some(Guard::Runner) || done {
            if !matches!(guard, Some(Guard::Fenced)) {
                self.disk.guards.insert(attempt.to_owned(), Guard::Cleared);
            }
            self.disk.exits.remove(attempt);
            self.disk.inputs.remove(attempt);
            self.disk.killed.remove(attempt);
        }
    }

    /// Clears all attempts but these and those that run, if the mark is there; whether it is.
    pub(super) fn sweep(&mut self, mark: &str, keep: &[String]) -> bool {
        if !self.has_mark(mark) {
            return false;
        }
        let runners = self.disk.guards.iter().filter(|(_, guard)| **guard == Guard::Runner).map(|(id, _)| id);
        let left = runners.chain(self.disk.exits.keys()).chain(&self.disk.inputs);
        let left: BTreeSet<String> = left.filter(|id| !keep.contains(id)).cloned().collect();
        for attempt in left {
            self.clear(&attempt);
        }
        true
    }
}
