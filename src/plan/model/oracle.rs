//! What must hold, judged by what happened in the world and not by what status says of it.

use std::collections::BTreeMap;

use kube::ResourceExt;

use super::{
    EPOCH, World,
    daytona::Machine,
    event::{COMMANDS, Nature, Wants},
    truth::{Clock, outcome},
};
use crate::{
    api::{
        CommandState, ReclaimPolicy, SandboxCommand, SandboxCommandStatus, SandboxLease, SuspendPolicy, condition,
        sandbox_label as label,
    },
    daytona::State,
    plan::{
        lease::{adopts, own_name, reuse_key},
        queue,
    },
};

/// Whether a lease is Ready, and the reason.
pub(super) fn told(lease: &SandboxLease) -> (bool, String) {
    let ready = lease.status.as_ref().and_then(|s| condition(&s.conditions, "Ready"));
    ready.map(|c| (c.status == "True", c.reason.clone())).unwrap_or_default()
}

fn is_finished(command: &SandboxCommand) -> bool {
    command.status.as_ref().is_some_and(|s| s.state == Some(CommandState::Finished))
}

impl World {
    /// Notes what befalls the commands that are recorded as running.
    fn note_fates(&mut self) {
        let leases = [&self.kube.lease, &self.kube.seen_lease];
        for (command, fate) in self.kube.commands.iter().zip(&mut self.truth.fates) {
            let Some(status) = command.as_ref().filter(|c| queue::running(c)).and_then(|c| c.status.as_ref()) else {
                continue;
            };
            let machine = self.machines.iter().find(|machine| Some(&machine.id) == status.sandbox_id.as_ref());
            let state = machine.map(|machine| &machine.state);
            fate.down |= state != Some(&State::Started);
            fate.lost |= matches!(state, None | Some(State::Failed(_) | State::Destroyed(_)));
            fate.not_ours |= machine.and_then(Machine::owner) != status.lease_uid.as_deref();
            // As it is, or as the watch still shows it.
            for lease in leases.into_iter().flatten().filter(|l| l.spec.suspend && l.uid() == status.lease_uid) {
                fate.suspended = true;
                fate.cut_short |= lease.spec.suspend_policy == SuspendPolicy::Cancel;
            }
        }
    }

    /// A command's status is about to be written in place of another.
    pub(super) fn judge_command(&mut self, which: usize, new: &SandboxCommandStatus) {
        self.note_fates();
        let Some(command) = &self.kube.commands[which] else { return };
        let deadline = self.scenario.scripts[which].deadline.map(i64::from);
        let clock = Clock { now: self.now, epoch: EPOCH, deadline };
        let uid = command.uid().unwrap_or_default();
        self.truth.command_written(which, &uid, command.status.as_ref(), new, clock);
    }

    /// What must hold at any time.
    pub(super) fn judge(&mut self) {
        self.note_fates();
        let mut owners = BTreeMap::<String, usize>::new();
        for machine in &self.machines {
            if let Some(owner) = machine.owner() {
                *owners.entry(owner.to_owned()).or_default() += 1;
            }
        }
        if let Some((owner, count)) = owners.iter().find(|(_, count)| **count > 1) {
            self.truth.wrong.push(format!("lease {owner} has {count} sandboxes"));
        }
        let stranger = self.machines.iter().find(|machine| machine.id == self.stranger.id);
        if stranger != Some(&self.stranger) {
            self.truth.wrong.push("a stranger's sandbox was changed".to_owned());
        }
    }

    /// What must hold when all is well and what is wanted stays: what can run has run.
    pub(super) fn judge_at_rest(&mut self) {
        let lease = self.kube.lease.as_ref();
        let mut wrong: Vec<String> = lease.and_then(|lease| self.rests_without_cause(lease)).into_iter().collect();
        let serves = lease.is_some_and(|lease| told(lease).0 && !lease.spec.suspend);
        for (command, script) in self.kube.commands.iter().zip(&self.scenario.scripts) {
            let Some(command) = command.as_ref().filter(|command| !is_finished(command)) else { continue };
            let bound = command.status.as_ref().and_then(|s| s.lease_uid.as_ref());
            let why = if queue::running(command) {
                "although there was time for it to end"
            } else if command.spec.cancel || command.metadata.deletion_timestamp.is_some() {
                "although nobody wants it"
            } else if script.deadline.is_some_and(|deadline| self.now >= i64::from(deadline)) {
                "although it is too late for it to start"
            } else if bound.is_some_and(|bound| lease.and_then(|lease| lease.metadata.uid.as_ref()) != Some(bound)) {
                "although its lease has ended"
            } else if serves {
                "although the lease is Ready"
            } else {
                continue;
            };
            let status = command.status.clone().unwrap_or_default();
            wrong.push(format!("{} rests as {:?}, {:?}, {why}", command.name_any(), status.state, outcome(&status)));
        }
        self.truth.wrong.append(&mut wrong);
    }

    /// What is wrong with a lease that rests as this one does; `None`: it is Ready, or has a reason not to be.
    fn rests_without_cause(&self, lease: &SandboxLease) -> Option<String> {
        let (ready, reason) = told(lease);
        let uid = lease.uid().unwrap_or_default();
        let status = lease.status.clone().unwrap_or_default();
        let sandbox = status.sandbox.unwrap_or_default();
        let is = |machine: &&Machine| match (&sandbox.id, adopts(lease)) {
            (Some(id), _) => machine.id == *id,
            (None, Some(id)) => machine.id == id,
            (None, None) if reuse_key(lease).is_some() => machine.name == "sbreuse",
            (None, None) => machine.name == own_name(lease),
        };
        let machine = self.machines.iter().find(is);
        let over = self.truth.leases[&uid] <= self.now;
        let caused = lease.metadata.deletion_timestamp.is_none()
            && match (ready, reason.as_str()) {
                (true, "Ready" | "Asleep") => !over && !lease.spec.suspend && machine.is_some(),
                (true, "Suspended") => !over && lease.spec.suspend,
                (false, "Expired") => over && lease.finalizers().is_empty(),
                (false, "SandboxLost") => !over && sandbox.id.is_some() && machine.is_none(),
                (false, "InvalidSpec") => !over && adopts(lease).is_some() && machine.is_none(),
                // What was given away may be taken, but not for the second time.
                (false, "NameConflict" | "ReuseConflict" | "OwnershipConflict") => {
                    let is_free = |machine: &Machine| {
                        let given_away = machine.labels.contains_key(label::RELEASED_BY) || adopts(lease).is_some();
                        machine.owner().is_none() && given_away && sandbox.id.is_none()
                    };
                    !over && machine.is_some_and(|m| m.owner() != Some(&uid) && !is_free(m))
                }
                _ => false,
            };
        let state = machine.map(|machine| (&machine.state, machine.owner()));
        (!caused).then(|| format!("{uid} rests as {ready}, {reason}, without cause; its sandbox: {state:?}"))
    }

    /// What must hold when all was deleted.
    pub(super) fn judge_the_end(&mut self) {
        let mut wrong = Vec::new();
        if let Some(lease) = &self.kube.lease {
            wrong.push(format!("the lease is still there: {:?}", lease.status));
        }
        for command in self.kube.commands.iter().flatten() {
            wrong.push(format!("a command is still there: {:?}", command.status));
        }
        // What a late call has done to it, its next lease has to show, and cannot undo.
        let judged = |machine: &&Machine| machine.id != self.stranger.id && !self.belated.contains(&machine.id);
        for machine in self.machines.iter().filter(judged) {
            let released_by = machine.labels.get(label::RELEASED_BY).and_then(serde_json::Value::as_str);
            if let Some(owner) = machine.owner() {
                wrong.push(format!("sandbox {} is still that of lease {owner}", machine.id));
            }
            let Some(owner) = released_by else {
                if machine.id.starts_with("box-") && machine.owner().is_none() && !machine.is_unlabelled() {
                    wrong.push(format!("nobody names sandbox {}, which is {:?}", machine.id, machine.state));
                }
                continue;
            };
            // It may have been changed while the lease was on its way out; each of them is what was asked for.
            let asked = self.asked.get(owner).cloned().unwrap_or_default();
            let adopts = self.scenario.wants == Wants::Adopted;
            let is = |policy: &ReclaimPolicy| match policy {
                ReclaimPolicy::Delete => adopts,
                ReclaimPolicy::Retain => true,
                ReclaimPolicy::Stop => machine.state.is_down() && machine.state != State::Paused,
                ReclaimPolicy::Archive => machine.state == State::Archived,
            };
            if !self.handled.contains(&machine.id) && !asked.iter().any(is) {
                wrong.push(format!("sandbox {} is {:?}, asked for was {asked:?}", machine.id, machine.state));
            }
            if machine.auto_delete >= 0 && !adopts {
                wrong.push(format!("Daytona will delete sandbox {}, which is to be kept", machine.id));
            }
            if !machine.sessions.is_empty() {
                wrong.push(format!("sandbox {} has sessions {:?}", machine.id, machine.sessions));
            }
            let left = machine.processes.values().filter(|p| p.script.nature != Nature::Unkillable);
            let left: Vec<usize> = left.map(|p| p.script.command).collect();
            if !left.is_empty() {
                wrong.push(format!("scripts {left:?} still run in sandbox {}", machine.id));
            }
        }
        // What was said never to have run has not run since.
        for which in 0..COMMANDS {
            if let Some(status) = &self.kube.last[which]
                && status.state == Some(CommandState::Finished)
                && let Err(why) = self.truth.still_holds(which, status)
            {
                wrong.push(format!("command {which} had finished as {:?}: {why}", outcome(status)));
            }
        }
        self.truth.wrong.append(&mut wrong);
    }
}
