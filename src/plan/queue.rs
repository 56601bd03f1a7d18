//! The order of commands in a lease: one at a time, in the order in which they were accepted.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::api::{CommandState, SandboxCommand};

/// What the order goes by. A command that was not accepted yet stands where its present resourceVersion puts it.
type Place<'a> = (i64, Option<Timestamp>, &'a str);

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

/// How many unfinished commands of the same lease have their turn before `this`; one that runs is always before.
#[must_use]
pub fn ahead<'a>(this: &SandboxCommand, of_lease: impl IntoIterator<Item = &'a SandboxCommand>) -> usize {
    let (uid, mine) = (this.uid(), place(this));
    of_lease
        .into_iter()
        .filter(|other| other.uid() != uid && unfinished(other))
        // A queued command that is being deleted will not run; one that runs holds the session until it has ended.
        .filter(|other| running(other) || (other.metadata.deletion_timestamp.is_none() && place(other) < mine))
        .count()
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
    (recorded.or_else(|| sequence(command)).unwrap_or(i64::MAX), created, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{SandboxCommandSpec, SandboxCommandStatus};

    fn command(name: &str, sequence: Option<i64>, version: &str, state: Option<CommandState>) -> SandboxCommand {
        let spec: SandboxCommandSpec =
            serde_json::from_value(serde_json::json!({ "leaseRef": { "name": "l" }, "script": "true" })).unwrap();
        let mut command = SandboxCommand::new(name, spec);
        command.metadata.uid = Some(name.to_owned());
        command.metadata.resource_version = Some(version.to_owned());
        command.status = Some(SandboxCommandStatus { state, sequence, ..SandboxCommandStatus::default() });
        command
    }

    #[test]
    fn commands_go_in_the_order_of_acceptance() {
        let a = command("a", Some(9), "50", Some(CommandState::Queued));
        let b = command("b", Some(10), "40", Some(CommandState::Queued));
        let new = command("new", None, "60", None);
        let all = [&new, &b, &a];
        assert_eq!(all.map(|c| ahead(c, all)), [2, 1, 0]);
    }

    #[test]
    fn a_running_command_is_before_all_and_a_finished_one_before_none() {
        let done = command("done", Some(1), "1", Some(CommandState::Finished));
        let runs = command("runs", Some(30), "2", Some(CommandState::Running));
        let next = command("next", Some(20), "3", Some(CommandState::Queued));
        assert_eq!(ahead(&next, [&done, &runs, &next]), 1);
    }

    #[test]
    fn where_versions_are_no_numbers_age_and_name_decide() {
        let (a, b) = (command("a", None, "x", None), command("b", None, "y", None));
        assert_eq!([ahead(&a, [&a, &b]), ahead(&b, [&a, &b])], [0, 1]);
    }
}
