//! Calls to Daytona and writes to Kubernetes, and what becomes of them. Late are calls that create, start or change
//! something; not those that set up, upload or look, nor writes to Kubernetes, which an older object does not take. One
//! that creates does not arrive after its repetition: where that one's sandbox was deleted within seconds, nobody would
//! look for another. None arrives later than the absence grace.

use kube::ResourceExt;

use super::{
    Halt, World,
    daytona::{Change, Late, Machine},
    event::{Fault, Key},
    kube::Conflict,
    truth::Truth,
};
use crate::{
    api::SandboxLease,
    daytona::{Class, Error, Sandbox, Setting, State},
    plan::lease::Session,
};

fn error(operation: &'static str, class: Class, status: Option<u16>) -> Error {
    Error { operation, class, status, message: format!("{class:?}") }
}

/// As an answer of Daytona's.
fn answered(operation: &'static str, class: Class) -> Halt {
    Halt::Daytona(error(operation, class, Some(400)))
}

/// As no answer at all.
fn unheard(operation: &'static str) -> Halt {
    Halt::Daytona(error(operation, Class::Unclear, None))
}

impl World {
    fn fault(&mut self, write: bool) -> Option<Fault> {
        let trouble = self.trouble.as_mut().filter(|trouble| trouble.writes || !write)?;
        if trouble.at > 0 {
            trouble.at -= 1;
            return None;
        }
        let fault = self.trouble.take().map(|trouble| trouble.fault);
        // Drawn for a world, it is never the usual one itself.
        fault.map(|fault| if matches!(fault, Fault::Usual) { self.scenario.usual } else { fault })
    }

    /// A write to Kubernetes.
    pub(super) fn write<T>(&mut self, apply: impl FnOnce(&mut Self) -> Result<T, Conflict>) -> Result<T, Halt> {
        match self.fault(true) {
            None => apply(self).map_err(|_| Halt::Kube),
            Some(Fault::DiesBefore) => Err(Halt::Died),
            Some(Fault::DiesAfter | Fault::DiesLate) => {
                drop(apply(self));
                Err(Halt::Died)
            }
            Some(Fault::Lost | Fault::Late | Fault::Garbled) => {
                drop(apply(self));
                Err(Halt::Kube)
            }
            Some(Fault::Refused(_) | Fault::Usual) => Err(Halt::Kube),
        }
    }

    /// A call to Daytona that changes something.
    pub(super) fn call<T>(
        &mut self,
        operation: &'static str,
        late: Option<Late>,
        apply: impl FnOnce(&mut Self) -> Result<T, Class>,
    ) -> Result<T, Halt> {
        let fault = self.fault(false);
        self.log(|| format!("    {operation}{}", fault.map(|fault| format!(": {fault:?}")).unwrap_or_default()));
        self.changes += 1;
        let (now, later) = (self.now, matches!(fault, Some(Fault::Late | Fault::DiesLate)));
        if later {
            self.late.extend(late.map(|late| (now, late)));
        }
        match fault {
            None => apply(self).map_err(|class| answered(operation, class)),
            Some(Fault::DiesBefore | Fault::DiesLate) => Err(Halt::Died),
            Some(Fault::DiesAfter) => {
                drop(apply(self));
                Err(Halt::Died)
            }
            Some(Fault::Late | Fault::Usual) => Err(unheard(operation)),
            Some(Fault::Lost | Fault::Garbled) => {
                drop(apply(self));
                Err(unheard(operation))
            }
            Some(Fault::Refused(class)) => Err(answered(operation, class)),
        }
    }

    /// A look, which is answered or not.
    fn ask<T>(&mut self, operation: &'static str, see: impl FnOnce(&Self) -> T, lie: Option<T>) -> Result<T, Halt> {
        let fault = self.fault(false);
        let lies = !self.lied;
        if lie.is_some() {
            self.lied = false;
        }
        match (fault, lie) {
            (None, _) => Ok(see(self)),
            (Some(Fault::DiesBefore | Fault::DiesAfter | Fault::DiesLate), _) => Err(Halt::Died),
            // Twice in a row it does not lie.
            (Some(Fault::Refused(Class::Gone)), Some(lie)) if lies => {
                self.lied = true;
                Ok(lie)
            }
            (Some(Fault::Refused(class)), _) if class != Class::Gone => Err(answered(operation, class)),
            (Some(_), _) => Err(unheard(operation)),
        }
    }

    pub(super) fn sandbox(&mut self, id_or_name: &str, key: Key) -> Result<Option<Sandbox>, Halt> {
        let is = |machine: &&Machine| {
            (machine.id == id_or_name || machine.name == id_or_name) && !machine.only_listed && key == Key::Right
        };
        self.ask("look at the sandbox", |world| world.machines.iter().find(is).map(Machine::described), Some(None))
    }

    pub(super) fn listed_sandbox(&mut self, id: &str, key: Key) -> Result<Option<Sandbox>, Halt> {
        let is = |machine: &&Machine| machine.id == id && key == Key::Right;
        self.ask("list the sandbox", |world| world.machines.iter().find(is).map(Machine::described), None)
    }

    pub(super) fn session_exists(&mut self, sandbox: &str, session: &str) -> Result<bool, Halt> {
        let found = self.ask(
            "look at the session",
            |world| {
                let machine = world.machines.iter().find(|machine| machine.id == sandbox);
                let machine = machine.filter(|machine| machine.state == State::Started);
                machine.map(|machine| machine.sessions.contains_key(session))
            },
            None,
        )?;
        found.ok_or_else(|| answered("look at the session", Class::NotYet))
    }

    /// Something is done to a lease's sandbox.
    pub(super) fn tell(
        &mut self,
        operation: &'static str,
        lease: &SandboxLease,
        id: &str,
        change: Change,
    ) -> Result<(), Halt> {
        let late = Late::Change { sandbox: id.to_owned(), lease: lease.uid().unwrap_or_default(), change };
        self.call(operation, Some(late.clone()), |world| world.arrive(late))
    }

    pub(super) fn set(&mut self, lease: &SandboxLease, id: &str, setting: Setting) -> Result<(), Halt> {
        self.tell("set something", lease, id, Change::Set(setting))
    }

    /// A call to the toolbox of a sandbox, which has to run.
    pub(super) fn toolbox<T>(
        &mut self,
        operation: &'static str,
        id: &str,
        late: Option<Late>,
        apply: impl FnOnce(&mut Machine, &mut Truth, i64) -> Result<T, Class>,
    ) -> Result<T, Halt> {
        self.call(operation, late, |world| {
            let machine = world.machines.iter_mut().find(|machine| machine.id == id).ok_or(Class::Gone)?;
            if machine.state != State::Started {
                return Err(Class::NotYet);
            }
            apply(machine, &mut world.truth, world.now)
        })
    }

    /// A text for the runner, which has to be there.
    pub(super) fn text<T>(
        &mut self,
        operation: &'static str,
        id: &str,
        late: Option<Late>,
        apply: impl FnOnce(&mut Machine, &mut Truth, i64) -> Result<T, Class>,
    ) -> Result<T, Halt> {
        let garbled =
            matches!(self.trouble, Some(trouble) if trouble.at == 0 && matches!(trouble.fault, Fault::Garbled));
        let answer = self.toolbox(operation, id, late, |machine, truth, now| {
            if machine.disk.set_up { apply(machine, truth, now).map(Some) } else { Ok(None) }
        });
        match answer {
            Err(_) if garbled => Err(Halt::Garbled),
            answer => answer?.ok_or(Halt::Garbled),
        }
    }

    /// Has a session's shell do something.
    pub(super) fn probe(
        &mut self,
        sandbox: &str,
        session: &str,
        apply: impl FnOnce(&mut Machine, &str) -> bool,
    ) -> Result<Session, Halt> {
        let deaf = self.scenario.deaf;
        let done =
            self.toolbox("probe the session", sandbox, None, |machine, _, _| match machine.sessions.get(session) {
                Some(true) => Ok(machine.disk.set_up && apply(machine, session)),
                Some(false) if deaf => Err(Class::Unclear),
                Some(false) | None => Err(Class::Gone),
            });
        Ok(match done {
            Ok(true) => Session::Listed,
            Ok(false) => Session::Dead,
            Err(Halt::Daytona(error)) if error.class == Class::Gone => Session::Dead,
            // A dead shell never answers.
            Err(Halt::Daytona(error)) if error.class == Class::Unclear && (error.status.is_none() || deaf) => {
                Session::Dead
            }
            Err(Halt::Daytona(error)) => Session::Unknown(error),
            Err(halt) => return Err(halt),
        })
    }

    /// A call gets to Daytona.
    pub(super) fn arrive(&mut self, late: Late) -> Result<(), Class> {
        match late {
            Late::Create { name, labels, auto_delete } => {
                if self.machines.iter().any(|machine| machine.name == name) {
                    return Err(Class::Conflict);
                }
                self.made += 1;
                self.late.retain(|(_, late)| !matches!(late, Late::Create { .. }));
                let mut machine = Machine::new(&format!("box-{}", self.made), &name, labels);
                machine.auto_delete = auto_delete;
                self.machines.push(machine);
            }
            Late::Change { sandbox, change, .. } => {
                let machine = self.machines.iter_mut().find(|machine| machine.id == sandbox).ok_or(Class::Gone)?;
                machine.change(&change, self.now, &mut self.truth)?;
            }
            Late::Text { sandbox, text } => {
                let found = self.machines.iter_mut().find(|machine| machine.id == sandbox);
                let machine = found.filter(|machine| machine.state == State::Started).ok_or(Class::Gone)?;
                if text.session.as_ref().is_none_or(|session| machine.sessions.get(session) == Some(&true)) {
                    machine.run(&text, self.now, &mut self.truth);
                }
            }
        }
        Ok(())
    }
}
