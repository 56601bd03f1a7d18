//! The lease's reconcile: what `controller/lease.rs` and `report.rs` do, in three phases
//! between which anything may happen. How long to wait is not looked at: it may be looked at any time.

use kube::ResourceExt;

use super::{
    Halt, INTERVALS, World,
    event::Key,
    kube::Conflict,
    memory::{Handle, Standing, Suspicion},
    observe::looks,
};
use crate::{
    api::{CommandGauges, SandboxLease},
    daytona::{Class, Error, Sandbox, State},
    plan::{
        command::{Launcher, Place},
        lease::{Observed, Plan, Remote, Session, Step, Told, decide, is_ending, status},
        queue,
    },
};

/// What was seen, and the key to act with.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) observed: Observed,
    pub(super) key: Option<Key>,
}

impl Seen {
    pub(super) fn sandbox(&self) -> Option<&Sandbox> {
        match &self.observed.remote {
            Remote::Present(sandbox) => Some(sandbox),
            _ => None,
        }
    }

    fn failure(&self) -> Option<&Error> {
        match (&self.observed.remote, &self.observed.session) {
            (Remote::Unknown(error), _) | (_, Session::Unknown(error)) => Some(error),
            _ => None,
        }
    }
}

/// How far a reconcile has come.
#[derive(Debug, Default)]
pub(super) enum Task {
    #[default]
    Idle,
    /// Decides again, on what was just written.
    Holds(Box<SandboxLease>),
    Decided(Box<(SandboxLease, Plan, Seen)>),
    Reported(Box<(SandboxLease, Plan, Seen)>),
}

/// What a step led to.
pub(super) enum Next {
    Now(Box<SandboxLease>),
    Later,
}

impl Next {
    pub(super) fn now(lease: SandboxLease) -> Self {
        Self::Now(Box::new(lease))
    }
}

impl World {
    /// One phase further; false: the reconcile is at its end.
    pub(super) fn lease_phase(&mut self) -> Result<bool, Halt> {
        self.lease_task = match std::mem::take(&mut self.lease_task) {
            Task::Idle => match self.kube.seen_lease.clone() {
                Some(lease) => self.lease_decide(lease)?,
                None => Task::Idle,
            },
            Task::Holds(lease) => self.lease_decide(*lease)?,
            Task::Decided(decided) => {
                let (lease, plan, seen) = *decided;
                let intended = |lease: &SandboxLease| lease.status.as_ref().is_some_and(|s| s.sandbox.is_some());
                let before = intended(&lease);
                let reported = self.report(&lease, &plan.told)?;
                if let Some(lease) = reported.as_ref().filter(|lease| !before && intended(lease)) {
                    self.memory.board(&lease.uid().unwrap_or_default()).uncreated = Some(true);
                }
                match reported {
                    None => Task::Idle,
                    Some(_) if plan.step == Step::Rest && seen.failure().is_some() => Task::Idle,
                    Some(lease) => Task::Reported(Box::new((lease, plan, seen))),
                }
            }
            Task::Reported(reported) => {
                let (lease, plan, seen) = *reported;
                match self.lease_act(&lease, &plan, &seen) {
                    Ok(Next::Now(lease)) => Task::Holds(lease),
                    Ok(Next::Later) => Task::Idle,
                    Err(Halt::Daytona(error)) => {
                        let board = self.memory.board(&lease.uid().unwrap_or_default());
                        let told = after_failure(&lease, plan, &error, board.uncreated == Some(true));
                        self.report(&lease, &told)?;
                        Task::Idle
                    }
                    Err(halt @ (Halt::Sandbox | Halt::DeadSession)) => {
                        let mut told = plan.told;
                        told.sandbox_disobeys("it does not do what it is told");
                        if matches!(halt, Halt::DeadSession) {
                            told.renew_session(&lease);
                        }
                        self.report(&lease, &told)?;
                        Task::Idle
                    }
                    Err(halt) => return Err(halt),
                }
            }
        };
        Ok(!matches!(self.lease_task, Task::Idle))
    }

    fn lease_decide(&mut self, lease: SandboxLease) -> Result<Task, Halt> {
        let seen = self.observe_lease(&lease)?;
        let plan = decide(&lease, &seen.observed, &INTERVALS);
        self.log(|| {
            let Observed { session, running, since, leaving, .. } = &seen.observed;
            let (uid, looks) = (lease.uid().unwrap_or_default(), looks(&seen.observed.remote));
            format!(
                "{uid}: {looks} for {since:?}, {session:?}, {running} run, leaving for {leaving:?} → {:?}",
                plan.step
            )
        });
        self.note_standing(&lease, &seen);
        Ok(Task::Decided(Box::new((lease, plan, seen))))
    }

    /// Writes the status if it changed; `None`: the lease is gone.
    pub(super) fn report(&mut self, lease: &SandboxLease, told: &Told) -> Result<Option<SandboxLease>, Halt> {
        let new = status(lease, told, self.gauges(lease), self.time());
        if lease.status.as_ref() == Some(&new) {
            return Ok(Some(lease.clone()));
        }
        self.write(|world| world.kube.write_lease(lease, |live| live.status = Some(new)))
    }

    pub(super) fn write_finalizers(
        &mut self,
        lease: &SandboxLease,
        change: impl FnOnce(&mut Vec<String>),
    ) -> Result<Option<SandboxLease>, Halt> {
        self.write(|world| -> Result<_, Conflict> {
            world.kube.write_lease(lease, |live| change(live.metadata.finalizers.get_or_insert_default()))
        })
    }

    fn gauges(&self, lease: &SandboxLease) -> CommandGauges {
        let mut gauges = CommandGauges::default();
        for command in self.kube.seen_commands.iter().flatten() {
            let status = command.status.clone().unwrap_or_default();
            if status.lease_uid != lease.uid() {
                continue;
            }
            let place = match (queue::unfinished(command), queue::running(command), status.exit_code) {
                (_, true, _) => &mut gauges.running,
                (true, false, _) => &mut gauges.queued,
                (false, _, Some(0)) => &mut gauges.succeeded,
                (false, _, _) => &mut gauges.failed,
            };
            *place += 1;
        }
        gauges
    }

    fn note_standing(&mut self, lease: &SandboxLease, seen: &Seen) {
        let sure = seen.observed.since >= INTERVALS.absence;
        let standing = match &seen.observed.remote {
            Remote::Present(sandbox) => match &sandbox.state {
                State::Started if matches!(seen.observed.session, Session::Serving | Session::Unknown(_)) => return,
                State::Started | State::Changing(_) | State::Paused | State::Unheard(_) => Standing::Unknown,
                State::Stopped | State::Archived => Standing::Down,
                State::Destroyed(_) => Standing::Lost,
                State::Failed(_) if sure => Standing::Lost,
                State::Failed(_) => return,
            },
            Remote::Absent | Remote::FailedDeletion(_) if sure => Standing::Lost,
            Remote::Foreign(_) => Standing::Unknown,
            Remote::Absent | Remote::FailedDeletion(_) | Remote::Unknown(_) | Remote::Unproven | Remote::NotAsked => {
                return;
            }
        };
        self.memory.board(&lease.uid().unwrap_or_default()).standing = standing;
    }

    /// Lets commands be sent there.
    pub(super) fn serve(&mut self, lease: &SandboxLease, sandbox: &str, key: Key, suspect: Option<Suspicion>) {
        let Some(place) = lease.status.as_ref().and_then(|s| s.place().cloned()) else { return };
        let launcher = if lease.spec.use_sessions { Launcher::Session } else { Launcher::OneShot };
        let board = self.memory.board(&lease.uid().unwrap_or_default());
        board.epoch += 1;
        board.suspect = suspect;
        board.standing = Standing::Up(Handle {
            key,
            sandbox: sandbox.to_owned(),
            place: Place { launcher, id: place.id, generation: place.generation },
            epoch: board.epoch,
        });
    }
}

fn after_failure(lease: &SandboxLease, plan: Plan, error: &Error, never_created: bool) -> Told {
    let mut told = plan.told;
    let leaving = is_ending(lease);
    match (&plan.step, error.class) {
        (Step::DeleteSandbox(_), Class::Gone)
        | (Step::StopSandbox(_) | Step::ArchiveSandbox(_) | Step::RecoverSandbox(_), Class::Conflict) => {}
        (Step::DeleteSandbox(object), _) => told.blocked_by(error, &format!("sandbox {object}")),
        (Step::StopSandbox(id) | Step::ArchiveSandbox(id) | Step::Spare(id) | Step::HandOver(id), _) if leaving => {
            told.blocked_by(error, &format!("sandbox {id}"));
        }
        _ if leaving => told.blocked_by(error, "the lease's session"),
        (Step::CreateSandbox, Class::Refused) if !never_created => {
            told.error(error);
            told.intended_still(lease);
        }
        (Step::CreateSandbox | Step::StartSandbox(_), Class::Conflict) => {}
        _ => told.error(error),
    }
    told
}
