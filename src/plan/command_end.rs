//! How a command ends: what has to be done to it, and what its last answer means.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    command_seen::{Again, Observed, Sandbox, Sent, Step},
    command_status,
    logs::{Stored, logs, without_log},
    outcome::Outcome,
};
use crate::{
    api::{CommandReason as Reason, OutputReason, SandboxCommand, SandboxCommandStatus},
    shell::{Answer, How, Outputs},
};

const UNKNOWN: &str = "the controller's files in the sandbox were removed or changed: whether and how it ended cannot be \
     known; what was left of it was ended, and it is not sent again";

const NOTHING_LEFT: &str = "all that it started was seen to have ended";

/// Why a running command has to end.
pub(super) struct Stop(pub(super) Reason, pub(super) String);

/// Why it has to end, if it has to.
pub(super) fn stop(
    command: &SandboxCommand,
    status: &SandboxCommandStatus,
    deleted: bool,
    lease_stops: Option<Reason>,
    now: Timestamp,
) -> Option<Stop> {
    if deleted {
        Some(Stop(Reason::Cancelled, "it was deleted while it ran".to_owned()))
    } else if command.spec.cancel || status.cancel_time.is_some() {
        Some(Stop(Reason::Cancelled, "spec.cancel was set while it ran".to_owned()))
    } else if let Some(reason) = lease_stops {
        let what = if reason == Reason::LeaseSuspended { "was suspended" } else { "ended" };
        Some(Stop(reason, format!("the lease {what} while it ran")))
    } else if status.lease_suspended {
        Some(Stop(Reason::LeaseSuspended, "the lease was suspended while it ran".to_owned()))
    } else if due(command, status).is_some_and(|due| now >= due) {
        let seconds = command.spec.timeout();
        Some(Stop(Reason::TimedOut, format!("it ran longer than timeoutSeconds ({seconds})")))
    } else {
        None
    }
}

/// After so many answers in a row that make no sense, what runs is ended; after as many to that, it is given up.
pub(super) const GARBLED: u32 = 4;
/// Exit codes of what is ended with its session or its sandbox: by HUP, KILL or TERM.
const SIGNALLED_BY_US: [i32; 3] = [129, 137, 143];
/// After so many kills in a row, what still lives cannot be ended.
pub(super) const SURVIVED: u32 = 3;

/// What the last answer from the sandbox means, if it is the last word.
pub(super) fn concluded(sent: &Sent, status: &SandboxCommandStatus, stop: Option<&Stop>) -> Option<Outcome> {
    given_up(sent, stop).or_else(|| answered(sent, status, stop))
}

/// What cannot be brought to an end in the sandbox must not keep the lease, or a deletion, waiting for ever.
fn given_up(sent: &Sent, stop: Option<&Stop>) -> Option<Outcome> {
    let left = if sent.garbled >= 2 * GARBLED {
        "the controller's files in the sandbox were changed, so nobody knows whether it has ended".to_owned()
    } else if sent.survived.0 >= SURVIVED {
        let pids: Vec<String> = sent.survived.1.iter().take(16).map(u32::to_string).collect();
        format!(
            "processes {} of the sandbox could not be ended (are they another user's?); they live until the sandbox \
             ends",
            pids.join(", ")
        )
    } else {
        return None;
    };
    Some(match stop {
        Some(Stop(reason, message)) => Outcome::without_result(*reason, format!("{message}; {left}")),
        None => Outcome::without_result(Reason::OutcomeUnknown, left),
    })
}

fn answered(sent: &Sent, status: &SandboxCommandStatus, stop: Option<&Stop>) -> Option<Outcome> {
    match sent.answer.as_ref()? {
        Answer::Done { code, milliseconds, how, streams, killed } => {
            let outcome = Outcome::ended(*code, *milliseconds, *how, Outputs::clone(streams));
            // What ended by itself ended by itself, even if we were about to end it.
            Some(match stop {
                // Its session's end, or its sandbox's, ends it by a signal.
                Some(Stop(reason @ (Reason::LeaseEnded | Reason::LeaseSuspended), message))
                    if !killed && SIGNALLED_BY_US.contains(code) =>
                {
                    outcome.because(*reason, message)
                }
                _ if !killed => outcome,
                Some(Stop(reason, message)) => outcome.because(*reason, format!("{message}; {NOTHING_LEFT}")),
                // Ended because nothing was known of it: the code is the kill's, not its own.
                None => Outcome { exit_code: None, ..outcome.because(Reason::OutcomeUnknown, UNKNOWN) },
            })
        }
        // What is left of it has to be ended first.
        Answer::Died { .. } | Answer::Lost if !sent.killed => None,
        Answer::Died { streams, session_lives } => {
            // Without a session there is no other shell than its own.
            let (reason, message) = if *session_lives || status.session_id.is_none() {
                (
                    Reason::ShellExited,
                    "the process that ran it ended (killed, or the sandbox was stopped), so its exit code is not known",
                )
            } else {
                (
                    Reason::SessionLost,
                    "the shell that ran it ended (killed, or the sandbox was stopped), so its exit code is not known",
                )
            };
            let lost = Outcome::without_result(reason, format!("{message}; {NOTHING_LEFT}"));
            let outcome = match stop {
                Some(Stop(reason, message)) => lost.because(*reason, format!("{message}; {NOTHING_LEFT}")),
                None => lost,
            };
            Some(Outcome { outputs: Some(Outputs::clone(streams)), ..outcome })
        }
        Answer::Fenced => match (stop, &sent.refused) {
            (Some(Stop(reason @ (Reason::Cancelled | Reason::LeaseEnded | Reason::LeaseSuspended), message)), _) => {
                Some(Outcome::without_result(*reason, format!("{message}; it had not begun and never will")))
            }
            (_, Some(text)) => Some(Outcome::without_result(Reason::StartFailed, format!("nothing ran: {text}"))),
            // Its time cannot be over, for it never began.
            _ => None,
        },
        Answer::Lost | Answer::Cleared => Some(Outcome::without_result(Reason::OutcomeUnknown, UNKNOWN)),
        Answer::Running | Answer::Unseen | Answer::Survivors(_) | Answer::Early(_) | Answer::Ending(_) => None,
    }
}

/// What is left to say when the sandbox can never tell any more, or nothing can run in it that had to be ended.
pub(super) fn unreachable_for_good(sandbox: &Sandbox, suspended: bool, stop: Option<&Stop>) -> Option<Outcome> {
    match (sandbox, stop) {
        // Nothing starts it to tell how it ended.
        (Sandbox::Down, None) if suspended => Some(Outcome::without_result(
            Reason::SessionLost,
            "its sandbox was stopped while it ran, and the lease is suspended; its exit code is not known",
        )),
        (Sandbox::Lost, None) => Some(Outcome::without_result(
            Reason::SandboxLost,
            "the sandbox is gone or failed; its exit code is not known",
        )),
        (Sandbox::Lost | Sandbox::Down, Some(Stop(reason, message))) => {
            let message =
                format!("{message}; its sandbox did not run any more, or was let go: its exit code is not known");
            Some(Outcome::without_result(*reason, message))
        }
        (Sandbox::Down, None) | (Sandbox::Unknown | Sandbox::Up { .. }, _) => None,
    }
}

/// Records the outcome, once its logs are stored.
pub(super) fn ended(
    command: &SandboxCommand,
    status: &SandboxCommandStatus,
    outcome: &Outcome,
    observed: &Observed,
    now: Timestamp,
) -> Step {
    let sent = &observed.sent;
    let stored = match (&outcome.outputs, &sent.stored) {
        (None, _) if matches!(sent.answer, Some(Answer::Fenced)) => None,
        (None, _) => Some(Stored::nothing(false, OutputReason::OutputLost, "what it wrote cannot be known any more")),
        (Some(_), _) if sent.withheld => Some(Stored::nothing(
            false,
            OutputReason::SecretChanged,
            "a Secret of the command changed, or cannot be read any more, and the controller was restarted while it \
             ran: what must not be shown of its output is not known, so nothing of it is",
        )),
        (Some(_), Some(stored)) => Some(stored.clone()),
        (Some(outputs), None) => {
            let logs = logs(command, outputs);
            if logs.is_empty() {
                Some(without_log(outputs))
            } else if command.metadata.deletion_timestamp.is_some() {
                let message = "the command is being deleted, and its logs would go with it";
                Some(Stored::nothing(false, OutputReason::StoreRefused, message))
            } else {
                return Step::Store(logs);
            }
        }
    };
    let stored = match &sent.answer {
        Some(Answer::Done { how: How::OutputLost, .. }) => Some(Stored {
            complete: false,
            reason: OutputReason::OutputLost,
            message: "something of what it wrote is lost: its files were removed or changed, or the disk was full"
                .to_owned(),
            ..stored.unwrap_or_else(|| Stored::nothing(false, OutputReason::OutputLost, ""))
        }),
        _ => stored,
    };
    let command_id = sent.command_id.as_deref().map(command_status::id).or_else(|| status.command_id.clone());
    let status = SandboxCommandStatus { command_id, ..status.clone() };
    let finished = command_status::finished(command, status, outcome, stored.as_ref(), now);
    Step::Record(Box::new(finished), Again::AtOnce)
}

/// When the running time is over. Times are whole seconds, so the start was up to a second later than it says.
#[must_use]
pub fn due(command: &SandboxCommand, status: &SandboxCommandStatus) -> Option<Timestamp> {
    let started = status.start_time.as_ref()?.0;
    started.checked_add(SignedDuration::from_secs(i64::from(command.spec.timeout()) + 1)).ok()
}
