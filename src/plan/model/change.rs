//! The steps of a lease, carried out: what `controller/lease.rs` (`act`, `in_session`), `change.rs` and `prepare.rs` do.
//! The calls of one step follow each other without a break; each may fail, be lost or be the controller's last.

use kube::ResourceExt;

use super::{
    Halt, INTERVALS, World,
    command::attempt,
    daytona::{Change, Late, Machine},
    event::Key,
    lease::{Next, Seen},
    memory::Suspicion,
    runner::Disk,
};
use crate::{
    api::{LEASE_FINALIZER, SandboxLease, SessionStatus},
    daytona::{CREATE, Class, START, Sandbox, Setting, State},
    plan::{
        lease::{Plan, Remote, Session, Step, Told, is_ending, is_ours, released, session_id, session_ids},
        queue,
        sandbox::wanted,
    },
};

impl World {
    pub(super) fn lease_act(&mut self, lease: &SandboxLease, plan: &Plan, seen: &Seen) -> Result<Next, Halt> {
        let uid = lease.uid().unwrap_or_default();
        match &plan.step {
            Step::Rest => return Ok(Next::Later),
            Step::Record => return Ok(Next::now(lease.clone())),
            Step::AddFinalizer => {
                let now = self.write_finalizers(lease, |all| all.push(LEASE_FINALIZER.to_owned()))?;
                return Ok(now.map_or(Next::Later, Next::now));
            }
            Step::RemoveFinalizer => {
                // On its way out it counts as gone where a look at it says so, too, and the list knows of no failure.
                let going = |machine: &Machine| self.lied && matches!(machine.state, State::Destroyed(_));
                let there = |machine: &&Machine| {
                    machine.owner() == Some(&uid) && !going(machine) && !self.belated.contains(&machine.id)
                };
                if let Some(machine) = self.machines.iter().find(there) {
                    let wrong = format!("{uid} lets go while sandbox {} is {:?}", machine.id, machine.state);
                    self.truth.wrong.push(wrong);
                }
                let left = self.write_finalizers(lease, |all| all.retain(|f| f != LEASE_FINALIZER))?;
                self.memory.boards.remove(&uid);
                let left = left.filter(|lease| lease.metadata.deletion_timestamp.is_none());
                return Ok(left.map_or(Next::Later, Next::now));
            }
            _ => {}
        }
        let Some(key) = seen.key else { return Ok(Next::Later) };
        // What is changed was seen to be the lease's own.
        let ours = match (&seen.observed.remote, &plan.step) {
            (_, Step::CreateSandbox | Step::Claim(..)) => true,
            (Remote::Present(sandbox) | Remote::FailedDeletion(sandbox), _) => is_ours(lease, sandbox),
            _ => false,
        };
        if !ours {
            self.truth
                .wrong
                .push(format!("{:?} on what is not the lease's own: {:?}", plan.step, seen.observed.remote));
        }
        if let Some(next) = self.change(lease, plan, seen)? {
            return Ok(next);
        }
        match seen.sandbox() {
            Some(sandbox) => self.in_session(lease, &plan.step, &plan.told, sandbox, seen, key),
            None => Ok(Next::Later),
        }
    }

    fn change(&mut self, lease: &SandboxLease, plan: &Plan, seen: &Seen) -> Result<Option<Next>, Halt> {
        let uid = lease.uid().unwrap_or_default();
        match &plan.step {
            Step::CreateSandbox => {
                let live = self.kube.lease.as_ref().and_then(ResourceExt::resource_version);
                if live != lease.resource_version() {
                    return Ok(Some(Next::Later));
                }
                let new = wanted(lease, &seen.observed.name, None, &INTERVALS);
                let labels = new.labels.into_iter().map(|(name, value)| (name, value.into())).collect();
                self.memory.board(&uid).seen = None;
                let late = Late::Create { name: new.name, labels, auto_delete: new.auto_delete_interval };
                let made = self.call(CREATE, Some(late.clone()), |world| world.arrive(late));
                let board = self.memory.board(&uid);
                board.seen = None;
                let certain = |halt: &Halt| matches!(halt, Halt::Daytona(error) if error.class == Class::Refused);
                let certain = made.as_ref().is_err_and(certain);
                board.uncreated = board.uncreated.map(|none| none && certain);
                made?;
                return Ok(Some(Next::now(lease.clone())));
            }
            Step::Claim(wanted, labels) => {
                let now = self.sandbox(&wanted.id, Key::Right)?;
                if now.is_some_and(|now| now.labels == wanted.labels) {
                    self.memory.board(&uid).seen = None;
                    let taken = self.set(lease, &wanted.id, Setting::Labels(labels.clone()));
                    self.memory.board(&uid).seen = None;
                    taken?;
                }
            }
            Step::StartSandbox(id) => self.tell(START, lease, id, Change::Start)?,
            Step::StopSandbox(id) => {
                self.tidy_at_the_end(lease, seen)?;
                self.tell("stop the sandbox", lease, id, Change::Stop)?;
            }
            Step::ArchiveSandbox(id) => self.tell("archive the sandbox", lease, id, Change::Archive)?,
            Step::RecoverSandbox(id) => {
                self.tell("recover the sandbox", lease, id, Change::Recover)?;
                self.memory.board(&uid).recovered = true;
            }
            Step::KeepAwake(_) => {}
            Step::Spare(id) => self.set(lease, id, Setting::AutoDelete(-1))?,
            Step::HandOver(id) => {
                if let Some(now) = self.sandbox(id, Key::Right)?.filter(|now| is_ours(lease, now)) {
                    self.tidy_at_the_end(lease, seen)?;
                    self.set(lease, id, Setting::Labels(released(lease, &now)))?;
                }
            }
            Step::Adjust(id, settings) => {
                for setting in settings {
                    match self.set(lease, id, setting.clone()) {
                        Ok(()) | Err(Halt::Daytona(_)) => {}
                        Err(halt) => return Err(halt),
                    }
                }
            }
            Step::DeleteSandbox(id) => self.tell("delete the sandbox", lease, id, Change::Delete)?,
            _ => return Ok(None),
        }
        Ok(Some(Next::Later))
    }

    /// Whatever outlives its lease is left without our files.
    fn tidy_at_the_end(&mut self, lease: &SandboxLease, seen: &Seen) -> Result<(), Halt> {
        let Some(sandbox) = seen.sandbox().filter(|_| is_ending(lease) && seen.observed.running == 0) else {
            return Ok(());
        };
        let home = lease.status.as_ref().and_then(|s| s.sandbox.as_ref()?.home_dir.as_ref());
        if sandbox.state != State::Started || home.is_none() {
            return Ok(());
        }
        let done = self.toolbox("remove the controller's files", &sandbox.id, None, |machine, _, _| {
            machine.disk = Disk::default();
            Ok(())
        });
        match done {
            Err(Halt::Died) => Err(Halt::Died),
            _ => Ok(()),
        }
    }

    fn in_session(
        &mut self,
        lease: &SandboxLease,
        step: &Step,
        told: &Told,
        sandbox: &Sandbox,
        seen: &Seen,
        key: Key,
    ) -> Result<Next, Halt> {
        let Some(session) = lease.status.as_ref().and_then(|s| s.place().cloned()) else {
            return Ok(Next::now(lease.clone()));
        };
        let (mut told, mut suspect, id) = (told.clone(), None, &sandbox.id);
        match step {
            Step::OpenSession => {
                self.toolbox("ask for the directories", id, None, |_, _, _| Ok(()))?;
                told.directories("/work", "/home");
                self.set_up(id)?;
                if lease.spec.use_sessions {
                    self.open_session(id, lease, &session)?;
                } else {
                    self.text("look at the workspace", id, None, |machine, _, _| {
                        machine.mark(&session.id);
                        Ok(())
                    })?;
                }
                told.session_lives(self.time());
            }
            Step::ResumeSession => {
                self.set_up(id)?;
                let served = self.memory.board(&lease.uid().unwrap_or_default()).epoch > 0;
                let keep = self.running_attempts();
                let ends = is_ending(lease) || lease.spec.suspend;
                if !ends {
                    let whole = self.text("look at the workspace", id, None, |machine, _, _| {
                        Ok(if served { machine.has_mark(&session.id) } else { machine.sweep(&session.id, &keep) })
                    })?;
                    if !whole && seen.observed.running == 0 {
                        return Err(Halt::DeadSession);
                    }
                    suspect = (!whole).then_some(Suspicion::Workspace);
                }
            }
            Step::DeleteSession => {
                for session in session_ids(lease, &session) {
                    self.delete_session(lease, id, &session)?;
                }
                return Ok(Next::now(lease.clone()));
            }
            _ => return Ok(Next::now(lease.clone())),
        }
        let Some(lease) = self.report(lease, &told)? else { return Ok(Next::Later) };
        self.serve(&lease, id, key, suspect);
        Ok(if suspect.is_some() { Next::Later } else { Next::now(lease) })
    }

    fn set_up(&mut self, sandbox: &str) -> Result<(), Halt> {
        self.toolbox("set up the workspace", sandbox, None, |machine, _, _| {
            machine.disk.set_up = true;
            Ok(())
        })
    }

    fn delete_session(&mut self, lease: &SandboxLease, sandbox: &str, session: &str) -> Result<(), Halt> {
        match self.tell("delete the session", lease, sandbox, Change::DeleteSession(session.to_owned())) {
            Err(Halt::Daytona(error)) if error.class == Class::Gone => Ok(()),
            done => done,
        }
    }

    fn open_session(&mut self, sandbox: &str, lease: &SandboxLease, session: &SessionStatus) -> Result<(), Halt> {
        if session.generation > 1 {
            self.delete_session(lease, sandbox, &session_id(lease, session.generation - 1))?;
        }
        match self.toolbox("open the session", sandbox, None, |machine, _, _| {
            if machine.sessions.contains_key(&session.id) {
                return Err(Class::Conflict);
            }
            machine.sessions.insert(session.id.clone(), true);
            Ok(())
        }) {
            Err(Halt::Daytona(error)) if error.class == Class::Conflict => {}
            done => done?,
        }
        let proved = self.probe(sandbox, &session.id, |machine, id| {
            machine.mark(id);
            true
        })?;
        match proved {
            Session::Listed => Ok(()),
            Session::Unknown(error) => Err(Halt::Daytona(error)),
            _ => Err(Halt::DeadSession),
        }
    }

    /// The attempts of the lease's commands that run, or may.
    fn running_attempts(&self) -> Vec<String> {
        let running = self.kube.seen_commands.iter().flatten().filter(|c| queue::running(c));
        running.filter_map(|c| Some(attempt(c)?.1.id)).collect()
    }
}
