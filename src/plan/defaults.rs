//! What holds for a command that says nothing of it.

use crate::api::{CommandDefaults, CommandState, SandboxCommand};

/// Fills in what the command leaves to its lease, for deciding only: what is written never has it. One that was started
/// keeps what it was started with.
#[must_use]
pub fn with_defaults(mut command: SandboxCommand, of_lease: Option<&CommandDefaults>) -> SandboxCommand {
    let status = command.status.as_ref();
    let started = status.is_some_and(|s| s.attempts.is_some() && s.state != Some(CommandState::Queued));
    let defaults = if started { status.and_then(|s| s.command_defaults.clone()) } else { of_lease.cloned() };
    let Some(defaults) = defaults else { return command };
    let spec = &mut command.spec;
    spec.timeout_seconds = spec.timeout_seconds.or(defaults.timeout_seconds);
    if let Some(of_lease) = defaults.logs {
        let logs = spec.logs.get_or_insert_default();
        logs.store = logs.store.or(of_lease.store);
        logs.tail_bytes = logs.tail_bytes.or(of_lease.tail_bytes);
        logs.max_bytes = logs.max_bytes.or(of_lease.max_bytes);
    }
    command
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn command(spec: &Value, status: &Value) -> SandboxCommand {
        let mut all = json!({ "leaseRef": { "name": "l" }, "script": "true" });
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let mut command = SandboxCommand::new("c", serde_json::from_value(all).unwrap());
        command.status = Some(serde_json::from_value(status.clone()).unwrap());
        command
    }

    fn seen(command: &SandboxCommand, of_lease: Option<&CommandDefaults>) -> (i32, usize, usize) {
        let spec = with_defaults(command.clone(), of_lease).spec;
        (spec.timeout(), spec.tail_bytes(), spec.max_bytes())
    }

    #[test]
    fn a_command_wins_over_its_lease_field_by_field_and_keeps_what_it_started_with() {
        let of_lease: CommandDefaults =
            serde_json::from_value(json!({ "timeoutSeconds": 60, "logs": { "tailBytes": 10, "maxBytes": 20 } }))
                .unwrap();
        let new = command(&json!({}), &json!({}));
        assert_eq!(seen(&new, None), (3600, 4096, 65536));
        assert_eq!(seen(&new, Some(&of_lease)), (60, 10, 20));
        let own = command(&json!({ "timeoutSeconds": 5, "logs": { "maxBytes": 7 } }), &json!({ "state": "Queued" }));
        assert_eq!(seen(&own, Some(&of_lease)), (5, 10, 7));
        let started = json!({ "state": "Running", "attempts": 1, "commandDefaults": { "timeoutSeconds": 90 } });
        assert_eq!(seen(&command(&json!({}), &started), Some(&of_lease)), (90, 4096, 65536));
    }
}
