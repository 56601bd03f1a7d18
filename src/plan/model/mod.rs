//! A small world in memory, on which the decisions are carried out in arbitrary order: a lease and its commands as the
//! apiserver keeps them, sandboxes and what runs in them, and a controller that forgets, is behind, loses answers and
//! dies. Then all goes well again, all is deleted, and what has happened is judged (`oracle.rs`, `truth.rs`).
//!
//! How decisions are carried out is written here a second time, for the controller itself needs two servers; where it
//! differs, the head of the file says so. That both make the same calls in the same order for a step is held by
//! `mirror.rs`. Nothing holds that both ask and remember the same between them: a resourceVersion or an epoch that
//! `controller/` forgets to look at is not seen here, but by the tests from outside and by `cargo enumerate`.
//!
//! Not in it: two controllers at once, and the claim to lead; writes to Kubernetes that arrive late (by then another
//! version is there, or it is as if the answer was lost); lists that are behind, which `controller/watches.rs` keeps
//! from; what a command wrote, and its logs; files, copies of keys, abandoned leases, the sweep of orphans; Daytona's
//! intervals, but for the one that deletes.

mod calls;
mod change;
mod command;
mod daytona;
mod event;
mod happens;
mod kube;
mod launch;
mod lease;
mod memory;
mod mirror;
mod observe;
mod oracle;
mod runner;
mod tests;
mod truth;

use std::collections::{BTreeMap, BTreeSet};

use ::kube::ResourceExt;
use k8s_openapi::jiff::Timestamp;

use self::{
    command::Wait,
    daytona::{Late, Machine},
    event::{CALM, COMMANDS, Event, Key, Scenario, Trouble, WHOLE, Wants},
    kube::Kube,
    memory::Memory,
    truth::Truth,
};
use super::{lease::is_ending, lease_seen::INTERVALS};
use crate::{
    api::{ReclaimPolicy, SandboxLease, sandbox_label::LEASE_UID},
    daytona::Error,
};

/// Why a reconcile came to its end.
#[derive(Debug)]
enum Halt {
    /// The controller died.
    Died,
    /// Kubernetes: another object is there now, or the call failed.
    Kube,
    Daytona(Error),
    Sandbox,
    DeadSession,
    Garbled,
}

/// Rounds within which all comes to rest when all goes well. The slowest are a running time, the time to end it, and the
/// time to drain.
const ROUNDS: usize = 40;

/// When the world begins, in seconds.
const EPOCH: i64 = 1_000_000;

/// Seconds in a round.
const ROUND: i64 = 10;

struct World {
    scenario: Scenario,
    now: i64,
    kube: Kube,
    machines: Vec<Machine>,
    /// As it was at first.
    stranger: Machine,
    made: u32,
    late: Vec<(i64, Late)>,
    key: Key,
    secret: Option<u8>,
    memory: Memory,
    lease_task: lease::Task,
    command_tasks: [command::Task; COMMANDS],
    waits: Vec<Wait>,
    trouble: Option<Trouble>,
    /// Whether the last look at a sandbox was answered with a lie.
    lied: bool,
    /// Calls to Daytona that change something.
    changes: usize,
    /// What a lease's end may leave its sandbox as.
    asked: BTreeMap<String, Vec<ReclaimPolicy>>,
    /// Sandboxes that somebody else has changed while the lease was at it.
    handled: BTreeSet<String>,
    /// Sandboxes that a late call of a lease has changed which did not have them any more.
    belated: BTreeSet<String>,
    truth: Truth,
    told: Option<Vec<String>>,
}

/// Lives through `events`, then to the end.
///
/// # Errors
/// What was wrong.
fn live(scenario: &Scenario, events: &[Event], told: bool) -> Result<(), String> {
    let mut world = World::new(scenario.clone());
    world.told = told.then(Vec::new);
    let end = world.live(events);
    let story = world.told.map(|lines| lines.join("\n")).unwrap_or_default();
    end.map_err(|wrong| format!("{wrong}\n{story}"))
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let name = if !scenario.taken {
            "stranger"
        } else if scenario.wants == Wants::Reused {
            "sbreuse"
        } else {
            "sblease-lease-1"
        };
        let machine = |id: &str, name: &str| {
            let mut machine = Machine::new(id, name, BTreeMap::from([("team".to_owned(), "a".into())]));
            machine.settle();
            machine
        };
        let stranger = machine("stranger", name);
        let mut machines = vec![stranger.clone()];
        if scenario.wants == Wants::Adopted {
            machines.push(machine("adopted", "theirs"));
        }
        let mut world = Self {
            scenario,
            now: 0,
            kube: Kube::default(),
            machines,
            stranger,
            made: 0,
            late: Vec::new(),
            key: Key::Right,
            secret: Some(1),
            memory: Memory::default(),
            lease_task: lease::Task::default(),
            command_tasks: [command::Task::Idle, command::Task::Idle],
            waits: Vec::new(),
            trouble: None,
            lied: false,
            changes: 0,
            asked: BTreeMap::new(),
            handled: BTreeSet::new(),
            belated: BTreeSet::new(),
            truth: Truth::default(),
            told: None,
        };
        world.create_lease();
        for which in 0..COMMANDS {
            world.kube.create_command(which, &world.scenario, world.time());
        }
        world.catch_up();
        world
    }

    fn live(&mut self, events: &[Event]) -> Result<(), String> {
        let calm = CALM.iter().take(self.scenario.calm);
        for event in calm.chain(events) {
            self.log(|| format!("--- {event:?}"));
            self.happens(*event);
            self.right()?;
        }
        self.log(|| "--- all goes well".to_owned());
        self.heal();
        self.rest("with all that is wanted")?;
        self.judge_at_rest();
        self.right()?;
        self.log(|| "--- all is deleted".to_owned());
        self.delete_lease();
        for which in 0..COMMANDS {
            self.delete_command(which);
        }
        self.rest("with all deleted")?;
        self.judge_the_end();
        self.right()
    }

    fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.told {
            let line = line();
            // What is only looked at again is no news.
            if !line.ends_with("→ Rest") && !line.contains("→ Look(") {
                lines.push(line);
            }
        }
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_second(EPOCH + self.now).unwrap()
    }

    fn right(&mut self) -> Result<(), String> {
        self.judge();
        if self.truth.wrong.is_empty() { Ok(()) } else { Err(self.truth.wrong.join("\n")) }
    }

    /// The watches show what there is.
    fn catch_up(&mut self) {
        let kube = &mut self.kube;
        let gone = |seen: Option<&str>, now: Option<&str>| seen.filter(|uid| now != Some(uid)).map(str::to_owned);
        let uid = |lease: &Option<SandboxLease>| lease.as_ref().and_then(ResourceExt::uid);
        if let Some(lease) = gone(uid(&kube.seen_lease).as_deref(), uid(&kube.lease).as_deref()) {
            self.memory.boards.remove(&lease);
        }
        kube.seen_lease.clone_from(&kube.lease);
        for (seen, live) in kube.seen_commands.iter_mut().zip(&kube.commands) {
            if let (Some(seen), None) = (&*seen, live) {
                let uid = seen.uid().unwrap_or_default();
                self.memory.forget_command(&uid);
                self.memory.latest.remove(&uid);
            }
            seen.clone_from(live);
            if let Some(command) = seen {
                self.memory.accept(command);
            }
        }
    }

    /// A call that went wrong ends a reconcile; one in which the controller died ends more.
    fn take_halt<T: Default>(&mut self, result: Result<T, Halt>) -> T {
        if let Err(halt) = &result {
            self.log(|| format!("    {halt:?}"));
        }
        if matches!(result, Err(Halt::Died)) {
            self.restart();
        }
        result.unwrap_or_default()
    }

    /// It lists what there is now: on an older list its first look at a place would clear what it must not
    /// (`controller/watches.rs`, `watching`). From then on its watches may be behind.
    fn restart(&mut self) {
        self.memory = Memory::default();
        (self.lease_task, self.command_tasks) = (lease::Task::Idle, [command::Task::Idle, command::Task::Idle]);
        (self.waits, self.trouble) = (Vec::new(), None);
        self.catch_up();
    }

    fn look_at_lease(&mut self, phases: u8) {
        for _ in 0..phases {
            let result = self.lease_phase();
            if !self.take_halt(result) {
                return;
            }
        }
        if phases == WHOLE {
            self.truth.wrong.push("the lease is looked at over and over without a pause".to_owned());
        }
    }

    fn look_at_command(&mut self, which: usize, phases: u8) {
        for _ in 0..phases {
            let result = self.command_phase(which);
            if !self.take_halt(result) {
                return;
            }
        }
        if phases == WHOLE {
            self.truth.wrong.push(format!("command {which} is looked at over and over without a pause"));
        }
    }

    /// From here on nothing goes wrong, and what a person has to mend is mended.
    fn heal(&mut self) {
        (self.key, self.secret, self.trouble) = (Key::Right, self.secret.or(Some(1)), None);
        self.arrive_all();
        if self.scenario.resumes {
            self.kube.change_lease(|lease| lease.spec.suspend = false);
        }
        let uid = self.kube.lease.as_ref().and_then(ResourceExt::uid).unwrap_or_default();
        let lease = self.kube.lease.as_ref().filter(|lease| !is_ending(lease));
        let has = lease.and_then(|lease| lease.status.as_ref()?.sandbox.as_ref()?.id.clone());
        for machine in self.machines.iter_mut().filter(|machine| machine.id != "stranger") {
            machine.mend(&uid);
            if self.belated.contains(&machine.id) && has.as_ref() == Some(&machine.id) && machine.owner().is_none() {
                machine.labels.insert(LEASE_UID.to_owned(), uid.clone().into());
            }
        }
    }

    /// Everything is looked at until there is nothing more to do; then a look changes nothing.
    fn rest(&mut self, when: &str) -> Result<(), String> {
        let mut quiet = 0;
        for _ in 0..ROUNDS {
            let before = (self.kube.writes, self.changes);
            self.round();
            self.right()?;
            quiet = if before == (self.kube.writes, self.changes) { quiet + 1 } else { 0 };
        }
        // Longer than anything that is waited for.
        if quiet < 10 {
            Err(format!("{when} it does not come to rest: {quiet} quiet rounds of {ROUNDS}"))
        } else {
            Ok(())
        }
    }

    fn round(&mut self) {
        self.pass(ROUND);
        self.settle();
        self.catch_up();
        self.look_at_lease(WHOLE);
        for which in 0..COMMANDS {
            self.catch_up();
            self.look_at_command(which, WHOLE);
            self.end_script(which);
            let result = self.wait_comes_back(which);
            self.take_halt(result);
        }
    }
}
