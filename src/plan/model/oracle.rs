//! What must hold, judged by what happened in the world and not by what status says of it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    World,
    event::{COMMANDS, Nature, Wants},
};
use crate::{
    api::{CommandState, ReclaimPolicy, SandboxCommand, SandboxCommandStatus, condition, sandbox_label as label},
    daytona::State,
};

/// What became of an attempt that was started.
#[derive(Clone, Debug, Default)]
struct Run {
    command: usize,
    starts: u32,
    code: Option<i32>,
    /// It ended without a trace.
    vanished: bool,
}

/// What really happened.
#[derive(Debug, Default)]
pub(super) struct Truth {
    runs: BTreeMap<String, Run>,
    /// Sandboxes in which our files were removed, or that went back to those of an earlier day.
    damaged: BTreeSet<String>,
    /// Sandboxes that failed or were deleted.
    lost: BTreeSet<String>,
    /// Commands of which answers were garbled.
    pub(super) garbled: BTreeSet<usize>,
    /// Commands whose scripts were told to be impossible to end.
    pub(super) survived: BTreeSet<usize>,
    pub(super) wrong: Vec<String>,
}

impl Truth {
    pub(super) fn started(&mut self, attempt: &str, command: usize) {
        let run = self.runs.entry(attempt.to_owned()).or_default();
        run.command = command;
        run.starts += 1;
        let starts: u32 = self.runs.values().filter(|run| run.command == command).map(|run| run.starts).sum();
        if starts > 1 {
            self.wrong.push(format!("script {command} was started {starts} times, now as {attempt}"));
        }
    }

    pub(super) fn ended(&mut self, attempt: &str, code: i32) {
        self.runs.entry(attempt.to_owned()).or_default().code = Some(code);
    }

    pub(super) fn vanished(&mut self, attempt: &str) {
        self.runs.entry(attempt.to_owned()).or_default().vanished = true;
    }

    pub(super) fn damaged(&mut self, sandbox: &str) {
        self.damaged.insert(sandbox.to_owned());
    }

    pub(super) fn lost(&mut self, sandbox: &str) {
        self.lost.insert(sandbox.to_owned());
    }

    fn run_of(&self, command: usize) -> Option<&Run> {
        self.runs.values().find(|run| run.command == command)
    }

    /// Judges a status that is written in place of another.
    pub(super) fn command_written(
        &mut self,
        which: usize,
        old: Option<&SandboxCommandStatus>,
        new: &SandboxCommandStatus,
    ) {
        let old = old.cloned().unwrap_or_default();
        let wrong = match (old.state, new.state) {
            (Some(CommandState::Finished), state) if state != old.state || outcome(&old) != outcome(new) => {
                Some("a finished command changed")
            }
            (Some(CommandState::Running), Some(CommandState::Queued) | None) => Some("what was sent was queued again"),
            _ if new.attempts < old.attempts => Some("attempts became fewer"),
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.wrong.push(format!("{wrong}: {:?} → {:?}", outcome(&old), outcome(new)));
        }
        if new.state == Some(CommandState::Finished)
            && old.state != new.state
            && let Err(wrong) = self.judge(which, new)
        {
            self.wrong.push(format!("command {which} finished as {:?}: {wrong}", outcome(new)));
        }
    }

    /// Whether an outcome is what happened.
    fn judge(&self, which: usize, status: &SandboxCommandStatus) -> Result<(), &'static str> {
        let run = self.run_of(which);
        let (reason, message, _) = told(status);
        let says_never =
            message.contains("never ran") || message.contains("never will") || message.contains("nothing ran");
        if let Some(code) = status.exit_code
            && run.and_then(|run| run.code) != Some(code)
        {
            return Err("its script has another exit code, or none");
        }
        if says_never && run.is_some() {
            return Err("it ran");
        }
        let is_in = |all: &BTreeSet<String>| status.sandbox_id.as_ref().is_some_and(|id| all.contains(id));
        let (damaged, lost) = (is_in(&self.damaged), is_in(&self.lost));
        let known = self.garbled.contains(&which) || self.survived.contains(&which);
        let vanished = run.is_some_and(|run| run.vanished);
        match reason.as_str() {
            "OutcomeUnknown" if !damaged && !known => Err("its evidence was there"),
            "SandboxLost" if !lost => Err("its sandbox was there"),
            // What sleeps and is suspended is not woken to tell.
            "SessionLost" if message.contains("the lease is suspended") => Ok(()),
            "ShellExited" | "SessionLost" if run.is_some() && !vanished && !damaged => {
                Err("its script had not ended without a trace")
            }
            "Succeeded" | "NonZeroExit" | "Signalled" if status.exit_code.is_none() => Err("it has no exit code"),
            _ => Ok(()),
        }
    }
}

/// What must not change of a finished command.
fn outcome(status: &SandboxCommandStatus) -> (Option<i32>, Option<i32>, (String, String, String)) {
    (status.exit_code, status.attempts, told(status))
}

fn told(status: &SandboxCommandStatus) -> (String, String, String) {
    condition(&status.conditions, "Succeeded")
        .map(|c| (c.reason.clone(), c.message.clone(), c.status.clone()))
        .unwrap_or_default()
}

fn is_finished(command: &SandboxCommand) -> bool {
    command.status.as_ref().is_some_and(|s| s.state == Some(CommandState::Finished))
}

impl World {
    /// What must hold at any time.
    pub(super) fn judge(&mut self) {
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

    /// What must hold when all is well and nothing was deleted: what can run has run.
    pub(super) fn judge_at_rest(&mut self) {
        let Some(lease) = &self.kube.lease else { return };
        let ready = lease.status.as_ref().and_then(|s| condition(&s.conditions, "Ready").cloned());
        let serves = ready.as_ref().is_some_and(|c| c.status == "True") && !lease.spec.suspend;
        for which in 0..COMMANDS {
            let Some(command) = &self.kube.commands[which] else { continue };
            let waits_for_another = command
                .status
                .as_ref()
                .and_then(|s| s.lease_uid.as_ref())
                .is_some_and(|uid| Some(uid) != lease.metadata.uid.as_ref());
            if serves && !waits_for_another && !is_finished(command) {
                let status = command.status.clone().unwrap_or_default();
                let wrong = format!("command {which} rests as {:?}, although the lease is Ready", outcome(&status));
                self.truth.wrong.push(wrong);
            }
        }
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
        for machine in self.machines.iter().filter(|machine| machine.id != self.stranger.id) {
            let released_by = machine.labels.get(label::RELEASED_BY).and_then(serde_json::Value::as_str);
            if let Some(owner) = machine.owner() {
                wrong.push(format!("sandbox {} is still that of lease {owner}", machine.id));
            }
            let Some(owner) = released_by else { continue };
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
                && let Err(why) = self.truth.judge(which, status)
            {
                wrong.push(format!("command {which} had finished as {:?}: {why}", outcome(status)));
            }
        }
        self.truth.wrong.append(&mut wrong);
    }
}
