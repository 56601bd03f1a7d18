//! A command's reconcile: what `controller/command.rs` and `subject.rs` do, in two phases. Not here: Persist and
//! `lost_before`, stored logs, what is withheld after a restart, the watch's shorter copies of
//! finished commands, and the hints: any command may be looked at any time.

use kube::ResourceExt;

use super::{
    Halt, World,
    memory::{Handle, Prepared, Suspicion},
};
use crate::{
    api::{
        COMMAND_FINALIZER, CommandReason, CommandState, LEASE_FINALIZER, SandboxCommand, SandboxCommandStatus,
        SandboxLease, condition,
    },
    plan::{
        command::{self as plan, Inputs, Lease, Observed, Sandbox, Sent, Step},
        lease::is_expired,
        queue::{self, Turn},
    },
    shell::{Answer, Attempt, How},
};

/// How far a reconcile has come.
#[derive(Debug, Default)]
pub(super) enum Task {
    #[default]
    Idle,
    Holds(Box<SandboxCommand>),
    Decided(Box<(SandboxCommand, Step, Option<Prepared>)>),
}

/// A task that holds a call until an attempt has ended.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) which: usize,
    pub(super) command: SandboxCommand,
    pub(super) handle: Handle,
    pub(super) attempt: Attempt,
    /// It starts it, too.
    pub(super) start: bool,
}

/// What a step led to: the object to decide on again at once, if any.
pub(super) type Next = Option<SandboxCommand>;

/// The command's UID and its present attempt, once one is recorded.
pub(super) fn attempt(command: &SandboxCommand) -> Option<(String, Attempt)> {
    let (uid, status) = (command.uid()?, command.status.as_ref()?);
    let mark = status.session_id.as_deref().or(status.workspace_id.as_deref())?;
    let attempt = Attempt::new(&uid, status.attempts?, mark);
    Some((uid, attempt))
}

pub(super) fn lease_uid(command: &SandboxCommand) -> Option<&str> {
    command.status.as_ref()?.lease_uid.as_deref()
}

fn parallel(lease: &SandboxLease) -> usize {
    if lease.spec.use_sessions { 1 } else { usize::try_from(lease.spec.max_parallel_commands).unwrap() }
}

impl World {
    /// One phase further; false: the reconcile is at its end.
    pub(super) fn command_phase(&mut self, which: usize) -> Result<bool, Halt> {
        let next = match std::mem::take(&mut self.command_tasks[which]) {
            Task::Idle => match self.kube.seen_commands[which].clone() {
                Some(command) => self.command_decide(which, self.latest(command)),
                None => Task::Idle,
            },
            Task::Holds(command) => self.command_decide(which, *command),
            Task::Decided(decided) => {
                let (command, step, prepared) = *decided;
                let next = self.command_act(which, command, step, prepared)?;
                next.map_or(Task::Idle, |command| Task::Holds(Box::new(command)))
            }
        };
        self.command_tasks[which] = next;
        Ok(!matches!(self.command_tasks[which], Task::Idle))
    }

    /// The newer one of the watch's copy and what was written last.
    fn latest(&self, seen: SandboxCommand) -> SandboxCommand {
        let latest = self.memory.latest.get(&seen.uid().unwrap_or_default());
        latest.filter(|latest| queue::sequence(latest) > queue::sequence(&seen)).cloned().unwrap_or(seen)
    }

    fn note_latest(&mut self, command: &SandboxCommand) {
        self.memory.latest.insert(command.uid().unwrap_or_default(), command.clone());
    }

    fn command_decide(&mut self, which: usize, mut command: SandboxCommand) -> Task {
        self.memory.accept(&mut command);
        let (observed, prepared) = self.observe_command(&command);
        let step = plan::decide(&command, &observed, self.time());
        self.log(|| {
            let Observed { lease, sent, .. } = &observed;
            let next = match &step {
                Step::Record(status, _) => {
                    let told = condition(&status.conditions, "Succeeded").map(|c| (&c.reason, &c.message));
                    format!("{:?}, {told:?}", status.state)
                }
                step => format!("{step:?}"),
            };
            let Sent { answer, fresh, .. } = sent;
            format!("command {which}: {lease:?}, answer {answer:?}, fresh {fresh} → {next}")
        });
        Task::Decided(Box::new((command, step, prepared)))
    }

    fn observe_command(&mut self, command: &SandboxCommand) -> (Observed, Option<Prepared>) {
        let finished = !queue::unfinished(command);
        let bound = lease_uid(command).filter(|_| !finished);
        let mut found = self.kube.seen_lease.clone();
        if bound.is_some() && found.as_ref().and_then(ResourceExt::uid).as_deref() != bound {
            found.clone_from(&self.kube.lease);
        }
        let others: Vec<&SandboxCommand> =
            if finished { Vec::new() } else { self.kube.seen_commands.iter().flatten().collect() };
        let turn = queue::turn(command, others, found.as_ref().map_or(1, parallel));
        let lease = found.map_or(Lease::Missing, |lease| self.lease_view(&lease));
        let attempt = attempt(command);
        let sent = attempt.as_ref().map(|a| self.memory.sent(&a.0, &a.1)).unwrap_or_default();
        let known = attempt.and_then(|a| self.memory.prepared(&a.0, &a.1));
        let (inputs, prepared) = if !to_be_started(command, turn, &lease, &sent) {
            (Inputs::NotAsked, None)
        } else if let Some(known) = known {
            (Inputs::Ready { secrets: known.secrets.clone() }, Some(known))
        } else if !self.scenario.secret {
            (Inputs::Ready { secrets: None }, Some(Prepared { secrets: None }))
        } else if let Some(version) = self.secret {
            let secrets = Some(format!("version {version}"));
            (Inputs::Ready { secrets: secrets.clone() }, Some(Prepared { secrets }))
        } else {
            (Inputs::Missing(CommandReason::SecretNotFound, "there is none".to_owned()), None)
        };
        (Observed { lease, turn, inputs, sent, defaults: None, lost: None }, prepared)
    }

    fn lease_view(&mut self, lease: &SandboxLease) -> Lease {
        let uid = lease.uid().unwrap_or_default();
        let sandbox = self.memory.boards.get(&uid).map_or(Sandbox::Unknown, super::memory::Board::sandbox);
        if lease.metadata.deletion_timestamp.is_some() {
            return Lease::Terminating { uid, sandbox };
        }
        if is_expired(lease) {
            let let_go = !lease.finalizers().iter().any(|f| f == LEASE_FINALIZER);
            return Lease::Expired { uid, sandbox: if let_go { Sandbox::Lost } else { sandbox } };
        }
        let suspended = lease.spec.suspend.then_some(lease.spec.suspend_policy);
        let ready = lease.status.as_ref().and_then(|s| condition(&s.conditions, "Ready"));
        let (reason, message) = ready.map(|c| (c.reason.clone(), c.message.clone())).unwrap_or_default();
        Lease::Present { uid, sandbox, reason, message, suspended }
    }

    fn command_act(
        &mut self,
        which: usize,
        command: SandboxCommand,
        step: Step,
        prepared: Option<Prepared>,
    ) -> Result<Next, Halt> {
        let uid = command.uid().unwrap_or_default();
        match step {
            Step::Rest => self.memory.forget_command(&uid),
            Step::Look(_) => {
                if !queue::running(&command) {
                    self.memory.leave_slot(&uid);
                }
            }
            Step::AddFinalizer => {
                let finalizer = COMMAND_FINALIZER.to_owned();
                let now = self.write(|world| {
                    world.kube.write_command(which, &command, |live| {
                        live.metadata.finalizers.get_or_insert_default().push(finalizer);
                    })
                })?;
                return Ok(now.inspect(|now| self.note_latest(now)));
            }
            Step::RemoveFinalizer => {
                if queue::running(&command) {
                    self.truth.wrong.push(format!("command {which} is let go while it runs"));
                }
                let now = self.write(|world| {
                    world.kube.write_command(which, &command, |live| {
                        live.metadata.finalizers.get_or_insert_default().retain(|f| f != COMMAND_FINALIZER);
                    })
                })?;
                if let Some(now) = now.filter(|now| now.metadata.deletion_timestamp.is_none()) {
                    self.note_latest(&now);
                }
                self.memory.forget_command(&uid);
            }
            Step::Record(new, again) => return self.record(which, &command, &new, again, prepared),
            Step::Submit { epoch } => {
                if let Some(prepared) = prepared {
                    return self.submit(which, command, epoch, prepared);
                }
            }
            Step::Wait => {
                if !self.memory.take_failure(&uid) {
                    self.begin_wait(which, &command, false);
                }
            }
            Step::Kill { after, .. } => return self.kill(command, after),
            Step::Fence => return self.fence(command),
            // No output is long enough to be stored.
            Step::Store(logs) => self.truth.wrong.push(format!("logs are to be stored: {logs:?}")),
            Step::Suspect { epoch } => self.suspect(&command, epoch, Suspicion::Shell),
        }
        Ok(None)
    }

    fn record(
        &mut self,
        which: usize,
        command: &SandboxCommand,
        new: &SandboxCommandStatus,
        again: plan::Again,
        prepared: Option<Prepared>,
    ) -> Result<Next, Halt> {
        let old = command.status.clone().unwrap_or_default();
        if new.state == Some(CommandState::Finished) {
            self.doubt(command);
        }
        if new.state == Some(CommandState::Running) && old.state != new.state && !self.may_start(command) {
            return Ok(None);
        }
        let now = if command.status.as_ref() == Some(new) {
            command.clone()
        } else {
            let written = self.write(|world| {
                world.kube.writable_command(which, command)?;
                world.judge_command(which, new);
                world.kube.write_command(which, command, |live| live.status = Some(new.clone()))
            })?;
            let Some(now) = written else {
                self.memory.leave_slot(&command.uid().unwrap_or_default());
                return Ok(None);
            };
            now
        };
        self.note_latest(&now);
        let uid = now.uid().unwrap_or_default();
        match new.state {
            Some(CommandState::Queued) => self.memory.leave_slot(&uid),
            Some(CommandState::Running) if new.attempts != old.attempts => {
                if let Some((uid, attempt)) = attempt(&now) {
                    let entry = self.memory.entry(&uid, &attempt);
                    (entry.sent.fresh, entry.prepared) = (true, prepared);
                }
            }
            Some(CommandState::Finished) if old.state != new.state => {
                self.memory.leave_slot(&uid);
                if let (Some(lease), Some((uid, attempt))) = (new.lease_uid.as_deref(), attempt(command)) {
                    let all = 1..=new.attempts.unwrap_or(1);
                    let all = all.map(|n| Attempt::new(&uid, n, &attempt.mark).id);
                    self.memory.board(lease).collected.extend(all);
                }
            }
            _ => {}
        }
        Ok((again == plan::Again::AtOnce).then_some(now))
    }

    fn may_start(&mut self, command: &SandboxCommand) -> bool {
        let Some(lease) = self.kube.seen_lease.clone() else { return false };
        let present = self.kube.seen_commands.iter().flatten();
        let present: Vec<_> = present.filter_map(|c| Some((c.uid()?, queue::running(c)))).collect();
        let (lease_uid, uid) = (lease.uid().unwrap_or_default(), command.uid().unwrap_or_default());
        self.memory.take_slot(&lease_uid, &uid, parallel(&lease), &present)
    }

    fn doubt(&mut self, command: &SandboxCommand) {
        let Some((uid, attempt)) = attempt(command) else { return };
        let doubt = match self.memory.sent(&uid, &attempt).answer {
            Some(Answer::Lost | Answer::Done { how: How::OutputLost, .. }) => Suspicion::Workspace,
            Some(Answer::Died { session_lives: false, .. }) => Suspicion::Shell,
            _ => return,
        };
        if let Some(handle) = self.handle(command) {
            self.suspect(command, handle.epoch, doubt);
        }
    }

    pub(super) fn suspect(&mut self, command: &SandboxCommand, epoch: u64, suspicion: Suspicion) {
        if let Some(lease) = lease_uid(command) {
            self.memory.board(lease).suspect(epoch, suspicion);
        }
    }

    /// The way into the sandbox that the attempt was recorded for; no other will do.
    pub(super) fn handle(&self, command: &SandboxCommand) -> Option<Handle> {
        let handle = self.memory.boards.get(lease_uid(command)?)?.handle()?;
        let recorded = command.status.as_ref()?.sandbox_id.as_deref()?;
        (handle.sandbox == recorded).then(|| handle.clone())
    }
}

fn to_be_started(command: &SandboxCommand, turn: Turn, lease: &Lease, sent: &Sent) -> bool {
    let present = matches!(lease, Lease::Present { suspended: None, .. });
    match command.status.as_ref().and_then(|s| s.state) {
        Some(CommandState::Finished) => false,
        Some(CommandState::Running) => {
            matches!(lease, Lease::Present { .. })
                && (sent.fresh || matches!(sent.answer, Some(Answer::Unseen | Answer::Fenced)))
        }
        Some(CommandState::Queued) | None => {
            present && turn.now && !command.spec.cancel && command.metadata.deletion_timestamp.is_none()
        }
    }
}
