//! The order of commands in a lease: by `order`, then as they were accepted, so many at a time as the lease allows.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::api::{CommandCondition, CommandReason, CommandState, SandboxCommand, ShellState, condition};

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
pub fn sort<C: AsRef<SandboxCommand>>(commands: &mut [C]) {
    commands.sort_by(|a, b| place(a.as_ref()).cmp(&place(b.as_ref())));
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
    // A queued command that is being deleted will not run; one that runs holds its place until it has ended.
    let mut before: Vec<_> = waiting
        .into_iter()
        .filter(|other| other.metadata.deletion_timestamp.is_none() && !held_up(other) && place(other) < mine)
        .collect();
    before.sort_by(|a, b| place(a).cmp(&place(b)));
    let mut free = parallel.saturating_sub(running.len());
    let mut persist_taken = running.iter().any(|other| persists(other));
    for other in &before {
        if !(persists(other) && persist_taken) {
            free = free.saturating_sub(1);
        }
        persist_taken |= persists(other);
    }
    Turn { ahead: running.len() + before.len(), now: free > 0 && !(persists(this) && persist_taken) }
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
    use crate::api::{SandboxCommandSpec, SandboxCommandStatus, Stamp, Truth, set_condition};

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
    fn where_versions_are_no_numbers_age_and_name_decide() {
        let (a, b) = (command("a", None, "x", None), command("b", None, "y", None));
        assert_eq!([ahead(&a, &[&a, &b]), ahead(&b, &[&a, &b])], [0, 1]);
    }
}
