//! Daytona's sandboxes, and what can become of them.

use std::collections::BTreeMap;

use super::{
    event::{Nature, Script},
    runner::{Disk, Process},
    truth::Truth,
};
use crate::{
    api::sandbox_label as label,
    daytona::{Class, Sandbox, Setting, State},
    shell::Attempt,
};

/// Which command's script, and how it takes signals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ScriptOf {
    pub(super) command: usize,
    pub(super) code: i32,
    pub(super) when_ended: i32,
    pub(super) nature: Nature,
}

impl ScriptOf {
    pub(super) fn new(command: usize, script: &Script) -> Self {
        Self { command, code: script.code, when_ended: script.when_ended, nature: script.nature }
    }
}

/// What it is changing into.
#[derive(Clone, Debug, PartialEq)]
enum Next {
    Nothing,
    State(State),
    Gone,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Machine {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, serde_json::Value>,
    pub(super) state: State,
    next: Next,
    recoverable: bool,
    forgets: bool,
    pub(super) auto_delete: i32,
    /// Our label, when somebody has taken it off.
    taken_off: Option<serde_json::Value>,
    /// Whether the shell lives, by session.
    pub(super) sessions: BTreeMap<String, bool>,
    pub(super) disk: Disk,
    pub(super) saved: Disk,
    /// By attempt.
    pub(super) processes: BTreeMap<String, Process>,
    /// Its deletion failed: it is only in the list.
    pub(super) only_listed: bool,
}

impl Machine {
    pub(super) fn new(id: &str, name: &str, labels: BTreeMap<String, serde_json::Value>) -> Self {
        Self {
            id: id.to_owned(),
            name: name.to_owned(),
            labels,
            state: State::Changing("creating".to_owned()),
            next: Next::State(State::Started),
            recoverable: false,
            forgets: false,
            auto_delete: 10_080,
            taken_off: None,
            sessions: BTreeMap::new(),
            disk: Disk::default(),
            saved: Disk::default(),
            processes: BTreeMap::new(),
            only_listed: false,
        }
    }

    pub(super) fn owner(&self) -> Option<&str> {
        self.labels.get(label::LEASE_UID).and_then(serde_json::Value::as_str)
    }

    /// As Daytona describes it.
    pub(super) fn described(&self) -> Sandbox {
        Sandbox {
            id: self.id.clone(),
            name: self.name.clone(),
            organization_id: Some("org".to_owned()),
            state: self.state.clone(),
            error_reason: None,
            recoverable: Some(self.recoverable),
            labels: self.labels.clone(),
            toolbox_proxy_url: None,
            target: None,
            created_at: None,
            auto_stop_interval: None,
            auto_archive_interval: None,
            auto_delete_interval: Some(f64::from(self.auto_delete)),
        }
    }

    fn changes(&mut self, word: &str, into: State) {
        (self.state, self.next) = (State::Changing(word.to_owned()), Next::State(into));
    }

    /// All that runs in it ends without a trace of how.
    fn end_all(&mut self, truth: &mut Truth) {
        self.sessions.clear();
        for (attempt, _) in std::mem::take(&mut self.processes) {
            truth.vanished(&attempt);
        }
    }

    pub(super) fn change(&mut self, change: &Change, now: i64, truth: &mut Truth) -> Result<(), Class> {
        match change {
            Change::Delete => self.delete(truth),
            _ if self.only_listed => return Err(Class::Gone),
            Change::Start => self.start()?,
            Change::Stop => self.stop(truth)?,
            Change::Archive => self.archive()?,
            Change::Recover => self.recover(truth)?,
            Change::Set(Setting::AutoDelete(minutes)) => self.auto_delete = *minutes,
            Change::Set(Setting::Labels(labels)) => self.labels.clone_from(labels),
            Change::Set(Setting::AutoStop(_) | Setting::AutoArchive(_)) => {}
            Change::DeleteSession(_) if self.state != State::Started => return Err(Class::NotYet),
            Change::DeleteSession(session) => self.delete_session(session, now, truth),
        }
        Ok(())
    }

    pub(super) fn start(&mut self) -> Result<(), Class> {
        match self.state {
            State::Started => Ok(()),
            State::Stopped | State::Archived | State::Paused => {
                self.changes("starting", State::Started);
                Ok(())
            }
            State::Changing(_) | State::Destroyed(_) => Err(Class::Conflict),
            State::Failed(_) | State::Unheard(_) => Err(Class::Refused),
        }
    }

    pub(super) fn stop(&mut self, truth: &mut Truth) -> Result<(), Class> {
        match self.state {
            State::Started | State::Paused => {
                self.end_all(truth);
                self.changes("stopping", State::Stopped);
                Ok(())
            }
            State::Stopped | State::Archived => Ok(()),
            State::Changing(_) | State::Destroyed(_) => Err(Class::Conflict),
            State::Failed(_) | State::Unheard(_) => Err(Class::Refused),
        }
    }

    fn archive(&mut self) -> Result<(), Class> {
        match self.state {
            State::Stopped => {
                self.changes("archiving", State::Archived);
                Ok(())
            }
            State::Archived => Ok(()),
            _ => Err(Class::Conflict),
        }
    }

    fn recover(&mut self, truth: &mut Truth) -> Result<(), Class> {
        if !self.recoverable || !matches!(self.state, State::Failed(_)) {
            return Err(Class::Refused);
        }
        if self.forgets {
            truth.damaged(&self.disk.marks);
            self.disk = self.saved.clone();
        }
        self.changes("restoring", State::Started);
        Ok(())
    }

    pub(super) fn delete(&mut self, truth: &mut Truth) {
        self.end_all(truth);
        (self.state, self.next, self.only_listed) = (State::Destroyed("destroying".to_owned()), Next::Gone, false);
    }

    pub(super) fn pause(&mut self) {
        if self.state == State::Started {
            self.changes("pausing", State::Paused);
        }
    }

    pub(super) fn fail(&mut self, recoverable: bool, forgets: bool, truth: &mut Truth) {
        if !matches!(self.state, State::Destroyed(_)) {
            self.end_all(truth);
            (self.state, self.next) = (State::Failed("error".to_owned()), Next::Nothing);
            (self.recoverable, self.forgets) = (recoverable, forgets);
        }
    }

    pub(super) fn fail_deletion(&mut self) {
        if self.next == Next::Gone {
            (self.state, self.next, self.only_listed) = (State::Failed("error".to_owned()), Next::Nothing, true);
        }
    }

    pub(super) fn save(&mut self) {
        self.saved = self.disk.clone();
    }

    /// Our files go, while what runs goes on.
    pub(super) fn wipe(&mut self, truth: &mut Truth) {
        truth.damaged(&self.disk.marks);
        self.disk = Disk::default();
    }

    /// Daytona deletes it for its age, if it may.
    pub(super) fn age(&mut self, truth: &mut Truth) {
        if self.auto_delete >= 0 && matches!(self.state, State::Stopped | State::Archived) {
            self.delete(truth);
        }
    }

    /// Our label is taken off, or put back while this is the lease.
    pub(super) fn relabel(&mut self, on: bool, lease: &str) {
        let name = label::LEASE_UID;
        if !on {
            self.taken_off = self.labels.remove(name).or_else(|| self.taken_off.take());
        } else if let Some(taken_off) = self.taken_off.take_if(|uid| uid.as_str() == Some(lease)) {
            self.labels.entry(name.to_owned()).or_insert(taken_off);
        }
    }

    /// Whether somebody has taken our label off, and not put it back.
    pub(super) fn is_unlabelled(&self) -> bool {
        self.taken_off.is_some()
    }

    /// A person has mended what Daytona could not.
    pub(super) fn mend(&mut self, lease: &str) {
        self.relabel(true, lease);
        if self.only_listed {
            (self.state, self.next) = (State::Destroyed("destroying".to_owned()), Next::Gone);
        } else if matches!(self.state, State::Failed(_)) {
            (self.state, self.next) = (State::Stopped, Next::Nothing);
        }
    }

    /// What it is changing into is reached; false: it is gone.
    pub(super) fn settle(&mut self) -> bool {
        match std::mem::replace(&mut self.next, Next::Nothing) {
            Next::Nothing => {}
            Next::State(state) => self.state = state,
            Next::Gone => return false,
        }
        true
    }
}

/// A text that starts an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Text {
    pub(super) attempt: Attempt,
    pub(super) script: ScriptOf,
    pub(super) uploaded: bool,
    /// The session that it is fed into; `None`: a process of its own.
    pub(super) session: Option<String>,
}

/// What is done to a sandbox.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Start,
    Stop,
    Archive,
    Recover,
    Delete,
    Set(Setting),
    DeleteSession(String),
}

/// A call that is still under way although nobody waits for its answer.
#[derive(Clone, Debug)]
pub(super) enum Late {
    Create {
        name: String,
        labels: BTreeMap<String, serde_json::Value>,
        auto_delete: i32,
    },
    /// For a lease, which need not have the sandbox any more.
    Change {
        sandbox: String,
        lease: String,
        change: Change,
    },
    Text {
        sandbox: String,
        text: Text,
    },
}
