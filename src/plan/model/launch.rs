//! The calls that start, await and end an attempt: what `controller/launch.rs` does.

use std::sync::Arc;

use kube::ResourceExt;

use super::{
    Halt, World,
    command::{Next, Wait, attempt, lease_uid},
    daytona::{Late, Machine, ScriptOf, Text},
    memory::{Prepared, Suspicion},
};
use crate::{
    api::SandboxCommand,
    daytona::Class,
    plan::command::Launcher,
    shell::{Answer, Attempt, Outputs},
};

impl World {
    fn text_of(&self, which: usize, attempt: &Attempt, session: Option<&str>) -> Text {
        Text {
            attempt: attempt.clone(),
            script: ScriptOf::new(which, &self.scenario.scripts[which]),
            uploaded: self.scenario.secret,
            session: session.map(str::to_owned),
        }
    }

    pub(super) fn submit(
        &mut self,
        which: usize,
        command: SandboxCommand,
        epoch: u64,
        prepared: Prepared,
    ) -> Result<Next, Halt> {
        let (Some(handle), Some((uid, attempt))) = (self.handle(&command), attempt(&command)) else {
            return Ok(None);
        };
        if handle.epoch != epoch {
            return Ok(Some(command));
        }
        let refused = |world: &mut Self| {
            world.truth.refused.insert(which);
            if let Some(entry) = world.memory.known(&uid, &attempt) {
                entry.sent.refused = Some("refused".to_owned());
            }
        };
        if self.scenario.secret {
            if !self.memory.sent(&uid, &attempt).fresh {
                return self.fence(command);
            }
            let uploaded = self.toolbox("upload the command's files", &handle.sandbox, None, |machine, _, _| {
                machine.upload(&attempt);
                Ok(())
            });
            if is(&uploaded, Class::Refused) {
                refused(self);
            }
            uploaded?;
        }
        self.memory.sending(&uid, &attempt, epoch, prepared);
        if handle.place.launcher == Launcher::OneShot {
            self.begin_wait(which, &command, true);
            return Ok(None);
        }
        let text = self.text_of(which, &attempt, Some(&handle.place.id));
        let deaf = self.scenario.deaf;
        let late = Late::Text { sandbox: handle.sandbox.clone(), text: text.clone() };
        let sent = self.toolbox("feed the session", &handle.sandbox, Some(late), |machine, truth, now| {
            match machine.sessions.get(&handle.place.id) {
                Some(true) => machine.run(&text, now, truth),
                // It is taken, and never read.
                Some(false) if deaf => {}
                Some(false) | None => return Err(Class::Gone),
            }
            Ok(())
        });
        match sent {
            Ok(()) => {
                if let Some(entry) = self.memory.known(&uid, &attempt) {
                    entry.sent.command_id = Some("id".to_owned());
                }
                Ok(Some(command))
            }
            sent => {
                if is(&sent, Class::Refused) {
                    refused(self);
                } else if is(&sent, Class::Gone) {
                    self.suspect(&command, epoch, Suspicion::Shell);
                }
                sent.map(|()| None)
            }
        }
    }

    pub(super) fn begin_wait(&mut self, which: usize, command: &SandboxCommand, start: bool) {
        if let (Some(handle), Some((uid, attempt))) = (self.handle(command), attempt(command))
            && !std::mem::replace(&mut self.memory.entry(&uid, &attempt).waiting, true)
        {
            self.waits.push(Wait { which, command: command.clone(), handle, attempt, start });
        }
    }

    /// The call of somebody who waits for this command comes back.
    pub(super) fn wait_comes_back(&mut self, which: usize) -> Result<(), Halt> {
        let Some(at) = self.waits.iter().position(|wait| wait.which == which) else { return Ok(()) };
        let mut wait = self.waits.remove(at);
        let uid = wait.command.uid().unwrap_or_default();
        match self.wait_once(&wait) {
            Ok(Answer::Running) => {
                wait.start = false;
                self.waits.push(wait);
                return Ok(());
            }
            Ok(answer) => self.memory.answered(&uid, &wait.attempt, answer),
            Err(Halt::Died) => return Err(Halt::Died),
            Err(_) => {
                if let Some(entry) = self.memory.known(&uid, &wait.attempt) {
                    entry.failed = true;
                }
            }
        }
        if let Some(entry) = self.memory.known(&uid, &wait.attempt) {
            entry.waiting = false;
        }
        Ok(())
    }

    fn wait_once(&mut self, wait: &Wait) -> Result<Answer<Arc<Outputs>>, Halt> {
        let lease = lease_uid(&wait.command).unwrap_or_default().to_owned();
        let collected = std::mem::take(&mut self.memory.board(&lease).collected);
        let text = wait.start.then(|| self.text_of(wait.which, &wait.attempt, None));
        let late = text.clone().map(|text| Late::Text { sandbox: wait.handle.sandbox.clone(), text });
        let answer = self.text("wait for the command", &wait.handle.sandbox, late, |machine, truth, now| {
            if let Some(text) = &text {
                machine.run(text, now, truth);
            }
            let answer = machine.report(&wait.attempt);
            for attempt in &collected {
                machine.clear(attempt);
            }
            Ok(answer)
        });
        if matches!(answer, Err(Halt::Daytona(_))) {
            self.memory.board(&lease).collected.extend(collected);
            if wait.start && is(&answer, Class::Refused) {
                self.truth.refused.insert(wait.which);
                let uid = wait.command.uid().unwrap_or_default();
                if let Some(entry) = self.memory.known(&uid, &wait.attempt) {
                    entry.sent.refused = Some("refused".to_owned());
                }
            }
        }
        self.understood(&wait.command, &wait.attempt, wait.handle.epoch, answer)
    }

    pub(super) fn fence(&mut self, command: SandboxCommand) -> Result<Next, Halt> {
        let (Some(handle), Some((uid, attempt))) = (self.handle(&command), attempt(&command)) else {
            return Ok(None);
        };
        let answer = self.text("fence the command", &handle.sandbox, None, |machine, _, _| Ok(machine.fence(&attempt)));
        let answer = self.understood(&command, &attempt, handle.epoch, answer)?;
        self.memory.answered(&uid, &attempt, certain(answer));
        Ok(Some(command))
    }

    pub(super) fn kill(&mut self, command: SandboxCommand, after: u64) -> Result<Next, Halt> {
        let (Some(handle), Some((uid, attempt))) = (self.handle(&command), attempt(&command)) else {
            return Ok(None);
        };
        let after = i64::try_from(after).unwrap();
        let answer = self.text("end the command", &handle.sandbox, None, |machine: &mut Machine, truth, now| {
            Ok(machine.kill(&attempt, after, now, truth))
        });
        match self.understood(&command, &attempt, handle.epoch, answer)? {
            Answer::Early(_) | Answer::Ending(_) => Ok(None),
            Answer::Survivors(pids) => {
                self.truth.survived(&attempt);
                let survived = &mut self.memory.entry(&uid, &attempt).sent.survived;
                *survived = (survived.0 + 1, pids);
                Err(Halt::Sandbox)
            }
            Answer::Running => Err(Halt::Sandbox),
            answer => {
                self.memory.ended(&uid, &attempt, certain(answer));
                Ok(Some(command))
            }
        }
    }

    fn understood<T>(
        &mut self,
        command: &SandboxCommand,
        attempt: &Attempt,
        epoch: u64,
        answer: Result<T, Halt>,
    ) -> Result<T, Halt> {
        if matches!(answer, Ok(_) | Err(Halt::Garbled)) {
            self.truth.answered(attempt, answer.is_ok());
        }
        if matches!(answer, Err(Halt::Garbled)) {
            self.memory.entry(&command.uid().unwrap_or_default(), attempt).sent.garbled += 1;
            self.suspect(command, epoch, Suspicion::Workspace);
        }
        answer
    }
}

fn certain<S>(answer: Answer<S>) -> Answer<S> {
    match answer {
        Answer::Unseen => Answer::Lost,
        answer => answer,
    }
}

fn is<T>(result: &Result<T, Halt>, class: Class) -> bool {
    matches!(result, Err(Halt::Daytona(error)) if error.class == class)
}
