//! The order of commands in a lease: by `order`, then as they were accepted, so many at a time as the lease allows.

use std::borrow::Borrow;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::api::{
    CommandCondition, CommandReason, CommandState, SandboxCommand, SandboxCommandStatus, ShellState, condition,
};

/// What the order goes by. A command that was not accepted yet stands where its present resourceVersion puts it.
type Place<'a> = (i32, i64, Option<Timestamp>, &'a str);

/// Whether a command still needs the lease.
#[must_use]
pub fn unfinished(command: &SandboxCommand) -> bool {
    command.status.as_ref().and_then(|s| s.state) != Some(CommandState::Finished)
}

/// Whether a command was sent to a sandbox and has no outcome yet.
#[must_use]
pub fn running(command: &SandboxCommand) -> bool {
    command.status.as_ref().and_then(|s| s.state) == Some(CommandState::Running)
}

/// Sorted by turn.
pub fn sort<C: Borrow<SandboxCommand>>(commands: &mut [C]) {
    commands.sort_by(|a, b| place(a.borrow()).cmp(&place(b.borrow())));
}

/// What stands between a waiting command and its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Commands that run or have their turn before it.
    pub ahead: usize,
    /// Whether it can start now.
    pub now: bool,
}

/// Whether something that a waiting command names is missing. Others do not wait for it, and no sandbox is woken.
#[must_use]
pub fn held_up(command: &SandboxCommand) -> bool {
    let held = [CommandReason::SecretNotFound, CommandReason::ConfigMapNotFound];
    let status = command.status.as_ref().filter(|s| s.state == Some(CommandState::Queued));
    let reason = status.and_then(|s| condition(&s.conditions, CommandCondition::Succeeded.as_str()));
    reason.is_some_and(|c| held.iter().any(|r| r.as_str() == c.reason))
}

/// Whether a command's directory and variables carry over: such commands never overlap.
#[must_use]
pub fn persists(command: &SandboxCommand) -> bool {
    command.spec.shell_state == ShellState::Persist
}

/// The Persist command of this lease that was lost while `this`, another one, waited: its changes are missing. What came
/// after the loss knows of it.
#[must_use]
pub fn lost_before<'a>(
    this: &SandboxCommand,
    of_lease: impl IntoIterator<Item = &'a SandboxCommand>,
) -> Option<&'a SandboxCommand> {
    let status = this.status.as_ref().filter(|_| persists(this))?;
    let (lease, accepted) = (status.lease_uid.as_ref()?, &status.accepted_time.as_ref()?.0);
    of_lease.into_iter().find(|other| {
        let Some(status) = other.status.as_ref().filter(|_| persists(other) && !unfinished(other)) else {
            return false;
        };
        status.lease_uid.as_ref() == Some(lease)
            && is_loss(status)
            // In the same second nobody knows which was first; what is ended here has not run.
            && status.completion_time.as_ref().is_some_and(|completed| completed.0 >= *accepted)
    })
}

/// Whether an outcome means that what a command did to its surroundings is not known. One that was ended because of such
/// a loss has no attempt, and is none itself; one that was ended on purpose is none either.
#[must_use]
pub fn is_loss(status: &SandboxCommandStatus) -> bool {
    use CommandReason::{OutcomeUnknown, SandboxLost, SessionLost, ShellExited};
    let reason = condition(&status.conditions, CommandCondition::Succeeded.as_str()).map(|c| c.reason.as_str());
    let losses = [SessionLost, ShellExited, OutcomeUnknown, SandboxLost];
    status.attempts.is_some() && losses.iter().any(|loss| reason == Some(loss.as_str()))
}

/// The turn of `this` among the commands of its lease, of which `parallel` may run at once.
#[must_use]
pub fn turn<'a>(
    this: &SandboxCommand,
    of_lease: impl IntoIterator<Item = &'a SandboxCommand>,
    parallel: usize,
) -> Turn {
    let (uid, mine) = (this.uid(), place(this));
    let others = of_lease.into_iter().filter(|other| other.uid() != uid && unfinished(other));
    let (running, waiting): (Vec<_>, Vec<_>) = others.partition(|other| running(other));
    let mut before: Vec<_> = waiting.into_iter().filter(|other| will_run(other) && place(other) < mine).collect();
    sort(&mut before);
    let mut room = Room::beside(&running, parallel);
    for other in &before {
        room.take(other);
    }
    Turn { ahead: running.len() + before.len(), now: room.has(this) }
}

/// Those of a lease's commands whose turn it is, of which `parallel` may run at once; with those being deleted, which
/// will not run and hold up nobody.
#[must_use]
pub fn next<C: Borrow<SandboxCommand>>(of_lease: Vec<C>, parallel: usize) -> Vec<C> {
    let of_lease = of_lease.into_iter().filter(|command| unfinished(command.borrow()));
    let (running, mut waiting): (Vec<_>, Vec<_>) = of_lease.partition(|command| running(command.borrow()));
    sort(&mut waiting);
    let mut room = Room::beside(&running, parallel);
    waiting.retain(|command| {
        let now = room.has(command.borrow()) && !held_up(command.borrow());
        if will_run(command.borrow()) {
            room.take(command.borrow());
        }
        now
    });
    waiting
}

/// A queued command that is being deleted will not run; one that runs holds its place until it has ended.
fn will_run(waiting: &SandboxCommand) -> bool {
    waiting.metadata.deletion_timestamp.is_none() && !held_up(waiting)
}

/// What commands in their turn leave for those behind them.
struct Room {
    free: usize,
    persist_taken: bool,
}

impl Room {
    fn beside<C: Borrow<SandboxCommand>>(running: &[C], parallel: usize) -> Self {
        Self {
            free: parallel.saturating_sub(running.len()),
            persist_taken: running.iter().any(|command| persists(command.borrow())),
        }
    }

    fn has(&self, command: &SandboxCommand) -> bool {
        self.free > 0 && !(persists(command) && self.persist_taken)
    }

    fn take(&mut self, command: &SandboxCommand) {
        if !(persists(command) && self.persist_taken) {
            self.free = self.free.saturating_sub(1);
        }
        self.persist_taken |= persists(command);
    }
}

/// `metadata.resourceVersion` as a number; comparable within a resource from Kubernetes 1.35 on, and in practice on
/// every etcd-backed server before.
#[must_use]
pub fn sequence(command: &SandboxCommand) -> Option<i64> {
    command.metadata.resource_version.as_deref()?.parse().ok()
}

fn place(command: &SandboxCommand) -> Place<'_> {
    let recorded = command.status.as_ref().and_then(|s| s.sequence);
    let created = command.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let name = command.metadata.name.as_deref().unwrap_or_default();
    (command.spec.order, recorded.or_else(|| sequence(command)).unwrap_or(i64::MAX), created, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{SandboxCommandSpec, Stamp, Truth, set_condition};

    fn command(name: &str, sequence: Option<i64>, version: &str, state: Option<CommandState>) -> SandboxCommand {
        let spec: SandboxCommandSpec =
            serde_json::from_value(serde_json::json!({ "leaseRef": { "name": "l" }, "script": "true" })).unwrap();
        let mut command = SandboxCommand::new(name, spec);
        command.metadata.uid = Some(name.to_owned());
        command.metadata.resource_version = Some(version.to_owned());
        command.status = Some(SandboxCommandStatus { state, sequence, ..SandboxCommandStatus::default() });
        command
    }

    fn ahead(this: &SandboxCommand, all: &[&SandboxCommand]) -> usize {
        turn(this, all.iter().copied(), 1).ahead
    }

    #[test]
    fn commands_go_in_the_order_of_acceptance() {
        let a = command("a", Some(9), "50", Some(CommandState::Queued));
        let b = command("b", Some(10), "40", Some(CommandState::Queued));
        let new = command("new", None, "60", None);
        let all = [&new, &b, &a];
        assert_eq!(all.map(|c| ahead(c, &all)), [2, 1, 0]);
        assert_eq!(all.map(|c| turn(c, all, 2).now), [false, true, true]);
    }

    #[test]
    fn a_smaller_order_goes_first() {
        let [mut early, mut late] = ["early", "late"].map(|n| command(n, Some(5), "5", Some(CommandState::Queued)));
        (early.spec.order, late.spec.order) = (-1, 1);
        let usual = command("usual", Some(4), "4", Some(CommandState::Queued));
        let all = [&late, &usual, &early];
        assert_eq!(all.map(|c| ahead(c, &all)), [2, 1, 0]);
    }

    #[test]
    fn those_are_next_whose_turn_it_is() {
        let queued = |name, sequence| command(name, Some(sequence), "1", Some(CommandState::Queued));
        let (mut first, mut second, mut third, fourth) =
            (queued("first", 1), queued("second", 2), queued("third", 3), queued("fourth", 4));
        let runs = command("runs", Some(9), "2", Some(CommandState::Running));
        let agree = |all: &[&SandboxCommand], parallel| {
            let next: Vec<_> = next(all.to_vec(), parallel).iter().map(|c| c.name_any()).collect();
            let turns = all.iter().filter(|c| !running(c) && !held_up(c));
            let mut one_by_one: Vec<_> =
                turns.filter(|c| turn(c, all.iter().copied(), parallel).now).copied().collect();
            sort(&mut one_by_one);
            assert_eq!(next, one_by_one.iter().map(|c| c.name_any()).collect::<Vec<_>>());
            next
        };
        assert_eq!(agree(&[&fourth, &third, &second, &first], 1), ["first"]);
        assert!(agree(&[&first, &runs], 1).is_empty());
        assert_eq!(agree(&[&third, &first, &second, &runs], 3), ["first", "second"]);
        second.spec.shell_state = ShellState::Persist;
        third.spec.shell_state = ShellState::Persist;
        assert_eq!(agree(&[&first, &second, &third, &fourth], 3), ["first", "second", "fourth"]);
        // What is being deleted is looked at in its turn, and holds up nobody.
        first.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        assert_eq!(agree(&[&first, &second, &third, &fourth], 1), ["first", "second"]);
    }

    #[test]
    fn a_running_command_is_before_all_and_a_finished_one_before_none() {
        let done = command("done", Some(1), "1", Some(CommandState::Finished));
        let runs = command("runs", Some(30), "2", Some(CommandState::Running));
        let next = command("next", Some(20), "3", Some(CommandState::Queued));
        let all = [&done, &runs, &next];
        assert_eq!(turn(&next, all, 1), Turn { ahead: 1, now: false });
        assert_eq!(turn(&next, all, 2), Turn { ahead: 1, now: true });
    }

    #[test]
    fn persist_commands_never_overlap_and_others_pass_them() {
        let [mut runs, mut waits] = [("runs", CommandState::Running, 1), ("waits", CommandState::Queued, 2)]
            .map(|(n, s, q)| command(n, Some(q), "1", Some(s)));
        runs.spec.shell_state = ShellState::Persist;
        waits.spec.shell_state = ShellState::Persist;
        let passes = command("passes", Some(3), "1", Some(CommandState::Queued));
        let all = [&runs, &waits, &passes];
        assert_eq!(all.map(|c| turn(c, all, 2).now), [true, false, true]);
        let mut second = command("second", Some(4), "1", Some(CommandState::Queued));
        second.spec.shell_state = ShellState::Persist;
        let all = [&waits, &second, &passes];
        assert_eq!(all.map(|c| turn(c, all, 8).now), [true, false, true]);
    }

    #[test]
    fn nobody_waits_for_a_command_that_is_held_up() {
        let mut held = command("held", Some(1), "1", Some(CommandState::Queued));
        let stamp = Stamp { generation: None, now: Timestamp::UNIX_EPOCH };
        let conditions = &mut held.status.as_mut().unwrap().conditions;
        set_condition(conditions, "Succeeded", Truth::Unknown, "SecretNotFound", "", stamp);
        let next = command("next", Some(2), "2", Some(CommandState::Queued));
        assert_eq!(ahead(&next, &[&held, &next]), 0);
        assert!(held_up(&held) && !held_up(&next));
    }

    #[test]
    fn the_loss_of_a_persist_command_is_one_for_those_that_waited_behind_it() {
        let persist = |name, state, reason: &str, at: i64| {
            let mut command = command(name, Some(1), "1", Some(state));
            command.spec.shell_state = ShellState::Persist;
            let time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::from_second(at).unwrap()));
            let status = command.status.as_mut().unwrap();
            status.lease_uid = Some("lease".to_owned());
            (status.accepted_time, status.completion_time, status.attempts) = (time.clone(), time, Some(1));
            let stamp = Stamp { generation: None, now: Timestamp::UNIX_EPOCH };
            set_condition(&mut status.conditions, "Succeeded", Truth::Unknown, reason.to_owned().leak(), "", stamp);
            command
        };
        let lost = persist("lost", CommandState::Finished, "SessionLost", 5);
        let waits = persist("waits", CommandState::Queued, "Queued", 4);
        let later = persist("later", CommandState::Queued, "Queued", 6);
        let failed = persist("failed", CommandState::Finished, "NonZeroExit", 9);
        let all = [&lost, &waits, &later, &failed];
        let found = |this| lost_before(this, all).map(ResourceExt::name_any);
        assert_eq!((found(&waits).as_deref(), found(&later)), (Some("lost"), None));
        let mut isolated = waits.clone();
        isolated.spec.shell_state = ShellState::Isolated;
        assert_eq!(lost_before(&isolated, all), None);
    }

    #[test]
    fn where_versions_are_no_numbers_age_and_name_decide() {
        let (a, b) = (command("a", None, "x", None), command("b", None, "y", None));
        assert_eq!([ahead(&a, &[&a, &b]), ahead(&b, &[&a, &b])], [0, 1]);
    }
}
