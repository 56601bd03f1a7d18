//! Events, and what they do to the world.

use kube::ResourceExt;

use super::{
    INTERVALS, World,
    daytona::{Late, Machine},
    event::{Deed, Event, Fault, Key, Trouble, WHOLE, Wants},
    lease,
    truth::End,
};
use crate::{
    api::ReclaimPolicy,
    daytona::State,
    plan::lease::{expiry, is_ending},
};

impl World {
    pub(super) fn happens(&mut self, event: Event) {
        match event {
            Event::Lease { fresh, phases, trouble } => {
                if fresh {
                    self.catch_up();
                }
                self.trouble = trouble;
                self.look_at_lease(phases);
            }
            Event::Command { which, fresh, phases, trouble } => {
                if fresh {
                    self.catch_up();
                }
                self.trouble = trouble;
                self.look_at_command(which, phases);
            }
            Event::Wait { which, trouble } => {
                self.trouble = trouble;
                let result = self.wait_comes_back(which);
                self.take_halt(result);
            }
            Event::Delay(which) => {
                let trouble = Some(Trouble { at: 0, writes: false, fault: Fault::Late });
                self.happens(Event::Command { which, fresh: true, phases: WHOLE, trouble });
                self.happens(Event::Wait { which, trouble });
                // The first look after a wait that failed tells of that.
                for _ in 0..2 {
                    self.happens(Event::Command { which, fresh: true, phases: WHOLE, trouble: None });
                }
                self.happens(Event::Wait { which, trouble: None });
            }
            Event::Restart => self.restart(),
            Event::Arrive => self.arrive_all(),
            Event::Pass(seconds) => self.pass(seconds),
            Event::Settle => self.settle(),
            Event::End(which) => self.end_script(which),
            Event::Do(deed) => self.somebody_does(deed),
            Event::DeleteLease => {
                self.note_asked();
                self.delete_lease();
            }
            Event::CreateLease => self.create_lease(),
            Event::Suspend(suspend, policy) => self.kube.change_lease(|lease| {
                (lease.spec.suspend, lease.spec.suspend_policy) = (suspend, policy);
            }),
            Event::Reclaim(policy) => {
                if policy != ReclaimPolicy::Delete || self.scenario.wants != Wants::Adopted {
                    self.note_asked();
                    self.kube.change_lease(|lease| lease.spec.reclaim_policy = policy);
                    self.note_asked();
                }
            }
            Event::TouchLease => self.kube.change_lease(|_| {}),
            Event::TouchCommand(which) => self.kube.change_command(which, |_| {}),
            Event::Cancel(which) => {
                self.truth.cancelled.insert(which);
                self.kube.change_command(which, |command| command.spec.cancel = true);
            }
            Event::DeleteCommand(which) => self.delete_command(which),
            Event::HoldKey(key) => self.key = key,
            Event::HoldSecret(version) => self.secret = version,
        }
        self.trouble = None;
    }

    pub(super) fn create_lease(&mut self) {
        if self.kube.lease.is_none() {
            let now = self.time();
            let uid = self.kube.create_lease(&self.scenario, now);
            self.truth.leases.insert(uid, self.scenario.lasts.map_or(i64::MAX, |lasts| self.now + lasts));
            self.key = Key::Right;
            self.note_asked();
        }
    }

    pub(super) fn delete_lease(&mut self) {
        if let Some(ends) = self.kube.lease.as_ref().and_then(|lease| self.truth.leases.get_mut(&lease.uid()?)) {
            *ends = self.now.min(*ends);
        }
        let now = self.time();
        self.kube.delete_lease(now);
    }

    pub(super) fn delete_command(&mut self, which: usize) {
        self.truth.cancelled.insert(which);
        let now = self.time();
        self.kube.delete_command(which, now);
    }

    /// Until it ends the lease's last word counts; from then on any.
    fn note_asked(&mut self) {
        let Some(lease) = &self.kube.lease else { return };
        let expired = expiry(lease, INTERVALS.longest_lease).is_some_and(|at| self.time() >= at);
        let (asked, policy) =
            (self.asked.entry(lease.uid().unwrap_or_default()).or_default(), lease.spec.reclaim_policy);
        if !is_ending(lease) && !expired {
            asked.clear();
        }
        asked.push(policy);
    }

    pub(super) fn pass(&mut self, seconds: i64) {
        let limit = i64::try_from(INTERVALS.absence.as_secs()).unwrap();
        // A call that nobody waits for is not under way for ever; for longer than the grace, nobody could know of it.
        if self.late.iter().any(|(since, _)| self.now + seconds >= since + limit) {
            self.arrive_all();
        }
        self.now += seconds;
    }

    pub(super) fn arrive_all(&mut self) {
        for (_, late) in std::mem::take(&mut self.late) {
            let theirs = match &late {
                Late::Change { sandbox, lease, .. } => {
                    let machine = self.machines.iter().find(|machine| machine.id == *sandbox);
                    machine.filter(|machine| machine.owner() != Some(lease)).cloned()
                }
                Late::Create { .. } | Late::Text { .. } => None,
            };
            let arrived = self.arrive(late.clone());
            if let Some(before) = theirs.filter(|before| !self.machines.contains(before)) {
                self.belated.insert(before.id);
            }
            self.log(|| format!("    arrived: {late:?}, {arrived:?}"));
        }
    }

    pub(super) fn settle(&mut self) {
        self.machines.retain_mut(Machine::settle);
    }

    pub(super) fn end_script(&mut self, which: usize) {
        for machine in self.machines.iter_mut().filter(|machine| machine.state == State::Started) {
            let runs = machine.processes.iter().find(|(_, process)| process.script.command == which);
            if let Some((attempt, code)) = runs.map(|(attempt, process)| (attempt.clone(), process.script.code)) {
                machine.finish(&attempt, code, End::Itself, self.now, &mut self.truth);
            }
        }
    }

    fn somebody_does(&mut self, deed: Deed) {
        let busy = !matches!(self.lease_task, lease::Task::Idle);
        let owned = |machine: &&mut Machine| machine.labels.keys().any(|name| name.starts_with("daytona-controller"));
        let uid = self.kube.lease.as_ref().and_then(ResourceExt::uid).unwrap_or_default();
        let known = self.kube.lease.as_ref().and_then(|lease| lease.status.as_ref()?.sandbox.as_ref()?.id.clone());
        let Some(machine) = self.machines.iter_mut().find(owned) else { return };
        let changes = |late: &Late| matches!(late, Late::Change { sandbox, .. } if *sandbox == machine.id);
        // Given out of our hands, or about to be: whoever has it may do with it what he likes.
        if busy || machine.owner().is_none() || self.late.iter().any(|(_, late)| changes(late)) {
            self.handled.insert(machine.id.clone());
        }
        let truth = &mut self.truth;
        match deed {
            Deed::Stop => drop(machine.stop(truth)),
            Deed::Pause => machine.pause(),
            Deed::Start => drop(machine.start()),
            Deed::Delete => machine.delete(truth),
            Deed::Fail { recoverable, forgets } => {
                machine.fail(recoverable, forgets, truth);
                let id = machine.id.clone();
                // Its connections end with it.
                self.late.retain(|(_, late)| !matches!(late, Late::Text { sandbox, .. } if *sandbox == id));
            }
            // By name it could not be found again.
            Deed::FailDeletion if known.as_ref() == Some(&machine.id) => machine.fail_deletion(),
            Deed::FailDeletion => {}
            Deed::Save => machine.save(),
            Deed::Wipe => machine.wipe(truth),
            Deed::KillShells => machine.sessions.values_mut().for_each(|lives| *lives = false),
            Deed::Label(on) => machine.relabel(on, &uid),
            Deed::Age => machine.age(truth),
        }
    }
}
