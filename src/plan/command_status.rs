//! What a command's status says.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    command_seen::{Launcher, Place},
    logs::Stored,
    outcome::{Outcome, duration_text, shown},
};
use crate::api::{
    CommandCondition as Type, CommandReason as Reason, CommandState, SandboxCommand, SandboxCommandStatus, Stamp,
    Truth, cut, remove_condition, set_condition,
};

/// Longest last line that status shows, in characters.
const LAST_LINE_CHARS: usize = 120;

/// The status of a command that waits.
pub(super) fn waiting(
    command: &SandboxCommand,
    mut status: SandboxCommandStatus,
    reason: Reason,
    message: &str,
    now: Timestamp,
) -> SandboxCommandStatus {
    let stamp = stamp(command, now);
    status.state = Some(CommandState::Queued);
    set(&mut status, stamp, Type::Started, Truth::False, reason, message);
    progress(&mut status, stamp, reason, message);
    status
}

/// The status of a command that is about to be sent, as a new attempt.
pub(super) fn starting(
    command: &SandboxCommand,
    mut status: SandboxCommandStatus,
    launcher: Launcher,
    now: Timestamp,
) -> SandboxCommandStatus {
    let stamp = stamp(command, now);
    status.state = Some(CommandState::Running);
    status.queue_position = None;
    status.attempts = Some(status.attempts.unwrap_or(0) + 1);
    status.start_time = Some(Time(now));
    let (sent, running) = match launcher {
        Launcher::Session => ("sent to the lease's session", "running in the lease's session"),
        Launcher::OneShot => ("sent to the lease's sandbox", "running in the lease's sandbox"),
    };
    set(&mut status, stamp, Type::Started, Truth::True, Reason::Running, sent);
    progress(&mut status, stamp, Reason::Running, running);
    status
}

/// The status of a command that runs, with something to say.
pub(super) fn running(
    command: &SandboxCommand,
    mut status: SandboxCommandStatus,
    message: &str,
    now: Timestamp,
) -> SandboxCommandStatus {
    progress(&mut status, stamp(command, now), Reason::Running, message);
    status
}

/// The status of a command that has ended. Its outcome never changes after this.
pub(super) fn finished(
    command: &SandboxCommand,
    mut status: SandboxCommandStatus,
    outcome: &Outcome,
    stored: Option<&Stored>,
    now: Timestamp,
) -> SandboxCommandStatus {
    let stamp = stamp(command, now);
    let succeeded = outcome.reason == Reason::Succeeded;
    status.state = Some(CommandState::Finished);
    status.queue_position = None;
    status.exit_code = outcome.exit_code;
    status.completion_time = Some(Time(now));
    status.duration_milliseconds = outcome.milliseconds;
    status.duration = outcome.milliseconds.map(duration_text);
    if let Some(outputs) = &outcome.outputs {
        let log = |stream: &str| stored?.refs.iter().find(|log| log.key == stream).cloned();
        status.last_line = outputs.last_line().map(|line| line.chars().take(LAST_LINE_CHARS).collect());
        status.stdout = Some(Box::new(shown(&outputs.stdout, log("stdout"))));
        status.stderr = Some(Box::new(shown(&outputs.stderr, log("stderr"))));
    }
    if let Some(stored) = stored {
        let all = &mut status.conditions;
        let type_ = Type::OutputStored.as_str();
        set_condition(all, type_, stored.complete.into(), stored.reason.as_str(), &stored.message, stamp);
    }
    let (reason, message) = (outcome.reason, outcome.message.as_str());
    let never_began = matches!(reason, Reason::StartFailed | Reason::StartDeadlineExceeded);
    if status.start_time.is_none() || never_began {
        set(&mut status, stamp, Type::Started, Truth::False, reason, message);
    }
    set(&mut status, stamp, Type::Finished, Truth::True, reason, message);
    set(&mut status, stamp, Type::Succeeded, succeeded.into(), reason, message);
    set(&mut status, stamp, Type::Ready, succeeded.into(), reason, message);
    remove_condition(&mut status.conditions, Type::Reconciling.as_str());
    if succeeded {
        remove_condition(&mut status.conditions, Type::Stalled.as_str());
    } else {
        set(&mut status, stamp, Type::Stalled, Truth::True, reason, message);
    }
    observed(status, command)
}

/// The same status, for the object's present generation.
pub(super) fn observed(mut status: SandboxCommandStatus, command: &SandboxCommand) -> SandboxCommandStatus {
    let generation = command.metadata.generation;
    status.observed_generation = generation;
    for condition in &mut status.conditions {
        condition.observed_generation = generation;
    }
    status
}

/// The same status, for a command that is sent to this place.
pub(super) fn sent_to(mut status: SandboxCommandStatus, place: &Place) -> SandboxCommandStatus {
    let (id_, generation) = (Some(id(&place.id)), Some(place.generation));
    match place.launcher {
        Launcher::Session => (status.session_id, status.session_generation) = (id_, generation),
        Launcher::OneShot => status.workspace_id = id_,
    }
    status
}

/// An id from outside, cut to what the schema takes.
pub(super) fn id(text: &str) -> String {
    cut(text, 128)
}

fn stamp(command: &SandboxCommand, now: Timestamp) -> Stamp {
    Stamp { generation: command.metadata.generation, now }
}

/// The conditions of a command that is on its way.
fn progress(status: &mut SandboxCommandStatus, stamp: Stamp, reason: Reason, message: &str) {
    status.observed_generation = stamp.generation;
    set(status, stamp, Type::Finished, Truth::False, reason, message);
    set(status, stamp, Type::Succeeded, Truth::Unknown, reason, message);
    set(status, stamp, Type::Ready, Truth::False, reason, message);
    set(status, stamp, Type::Reconciling, Truth::True, reason, message);
}

fn set(status: &mut SandboxCommandStatus, stamp: Stamp, type_: Type, truth: Truth, reason: Reason, message: &str) {
    set_condition(&mut status.conditions, type_.as_str(), truth, reason.as_str(), message, stamp);
}
