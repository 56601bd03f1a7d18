//! What the controller remembers, and forgets when it is started anew (`controller/board.rs`, `attempts.rs`, `slots.rs`,
//! `latest.rs`, `sequences.rs`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::ResourceExt;

use super::event::Key;
use crate::{
    api::SandboxCommand,
    plan::{
        command::{Place, Sandbox, Sent},
        queue::{sequence, unfinished},
    },
    shell::{Answer, Attempt, Outputs},
};

#[derive(Clone, Debug)]
pub(super) struct Handle {
    pub(super) key: Key,
    pub(super) sandbox: String,
    pub(super) place: Place,
    pub(super) epoch: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) enum Standing {
    #[default]
    Unknown,
    Down,
    Lost,
    Up(Handle),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Suspicion {
    Workspace,
    Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    Ending,
    Suspended,
}

#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) standing: Standing,
    pub(super) suspect: Option<Suspicion>,
    pub(super) epoch: u64,
    pub(super) seen: Option<(String, i64)>,
    pub(super) leaving: Option<(Leaving, i64)>,
    pub(super) recovered: bool,
    pub(super) uncreated: Option<bool>,
    pub(super) client: Option<Key>,
    pub(super) collected: Vec<String>,
}

impl Board {
    pub(super) fn handle(&self) -> Option<&Handle> {
        match &self.standing {
            Standing::Up(handle) => Some(handle),
            Standing::Unknown | Standing::Down | Standing::Lost => None,
        }
    }

    pub(super) fn sandbox(&self) -> Sandbox {
        match &self.standing {
            Standing::Unknown => Sandbox::Unknown,
            Standing::Down => Sandbox::Down,
            Standing::Lost => Sandbox::Lost,
            Standing::Up(handle) => Sandbox::Up {
                trusted: self.suspect.is_none(),
                id: handle.sandbox.clone(),
                place: handle.place.clone(),
                epoch: handle.epoch,
            },
        }
    }

    pub(super) fn suspect(&mut self, epoch: u64, suspicion: Suspicion) {
        let present = self.handle().is_some_and(|handle| handle.epoch == epoch);
        if present && self.suspect.is_none_or(|known| known < suspicion) {
            self.suspect = Some(suspicion);
        }
    }
}

/// What a command runs with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Prepared {
    pub(super) secrets: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Entry {
    attempt: String,
    pub(super) sent: Sent,
    pub(super) prepared: Option<Prepared>,
    pub(super) waiting: bool,
    pub(super) failed: bool,
}

impl Entry {
    fn answer(&mut self, answer: Answer<Arc<Outputs>>, killed: bool) {
        (self.sent.answer, self.sent.killed, self.sent.garbled) = (Some(answer), killed, 0);
    }
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) boards: BTreeMap<String, Board>,
    attempts: BTreeMap<String, Entry>,
    slots: BTreeMap<String, BTreeSet<String>>,
    pub(super) latest: BTreeMap<String, SandboxCommand>,
    sequences: BTreeMap<String, i64>,
}

impl Memory {
    /// Fills in a command's place, if its status does not tell it.
    pub(super) fn accept(&mut self, command: &mut SandboxCommand) {
        let uid = command.uid().unwrap_or_default();
        if !unfinished(command) {
            self.sequences.remove(&uid);
        } else if command.status.as_ref().is_none_or(|s| s.sequence.is_none())
            && let Some(version) = sequence(command)
        {
            let first = *self.sequences.entry(uid).or_insert(version);
            command.status.get_or_insert_default().sequence = Some(first);
        }
    }

    pub(super) fn board(&mut self, lease: &str) -> &mut Board {
        self.boards.entry(lease.to_owned()).or_default()
    }

    /// For news that begins something.
    pub(super) fn entry(&mut self, command: &str, attempt: &Attempt) -> &mut Entry {
        let entry = self.attempts.entry(command.to_owned()).or_default();
        if entry.attempt != attempt.id {
            *entry = Entry { attempt: attempt.id.clone(), ..Entry::default() };
        }
        entry
    }

    /// For news that may come too late.
    pub(super) fn known(&mut self, command: &str, attempt: &Attempt) -> Option<&mut Entry> {
        self.attempts.get_mut(command).filter(|entry| entry.attempt == attempt.id)
    }

    pub(super) fn sent(&self, command: &str, attempt: &Attempt) -> Sent {
        let entry = self.attempts.get(command).filter(|entry| entry.attempt == attempt.id);
        entry.map(|entry| entry.sent.clone()).unwrap_or_default()
    }

    pub(super) fn prepared(&self, command: &str, attempt: &Attempt) -> Option<Prepared> {
        self.attempts.get(command).filter(|entry| entry.attempt == attempt.id)?.prepared.clone()
    }

    pub(super) fn sending(&mut self, command: &str, attempt: &Attempt, epoch: u64, prepared: Prepared) {
        let entry = self.entry(command, attempt);
        entry.prepared = Some(prepared);
        let old = std::mem::take(&mut entry.sent);
        let times = if old.epoch == Some(epoch) { old.times + 1 } else { 1 };
        entry.sent = Sent { epoch: Some(epoch), times, command_id: old.command_id, ..Sent::default() };
    }

    pub(super) fn answered(&mut self, command: &str, attempt: &Attempt, answer: Answer<Arc<Outputs>>) {
        if let Some(entry) = self.known(command, attempt)
            && !entry.sent.killed
            && entry.sent.answer != Some(Answer::Fenced)
        {
            entry.answer(answer, false);
        }
    }

    pub(super) fn ended(&mut self, command: &str, attempt: &Attempt, answer: Answer<Arc<Outputs>>) {
        self.entry(command, attempt).answer(answer, true);
    }

    pub(super) fn take_failure(&mut self, command: &str) -> bool {
        self.attempts.get_mut(command).is_some_and(|entry| std::mem::take(&mut entry.failed))
    }

    /// `present`: all commands that there are, with whether they run.
    pub(super) fn take_slot(
        &mut self,
        lease: &str,
        command: &str,
        parallel: usize,
        present: &[(String, bool)],
    ) -> bool {
        let slots = self.slots.entry(lease.to_owned()).or_default();
        let counts = present.iter().filter(|(uid, runs)| *runs || slots.contains(uid)).map(|(uid, _)| uid);
        let mut others: BTreeSet<String> = counts.cloned().collect();
        slots.retain(|uid| others.contains(uid));
        others.remove(command);
        let free = others.len() < parallel;
        if free {
            slots.insert(command.to_owned());
        }
        free
    }

    pub(super) fn slots_taken(&self, lease: &str, of: &BTreeSet<String>) -> usize {
        self.slots.get(lease).map_or(0, |slots| slots.intersection(of).count())
    }

    pub(super) fn leave_slot(&mut self, command: &str) {
        for slots in self.slots.values_mut() {
            slots.remove(command);
        }
    }

    pub(super) fn forget_command(&mut self, command: &str) {
        self.attempts.remove(command);
        self.leave_slot(command);
    }
}
