//! One command: what to do next. The checks stand in the order in which they take effect.

use std::time::Duration;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;

use super::{command_status, outcome::Outcome, queue};
use crate::{
    api::{
        COMMAND_FINALIZER, CommandReason as Reason, CommandState, LeaseReason, SandboxCommand, SandboxCommandStatus,
    },
    shell::Answer,
};

/// Seconds between TERM and KILL.
pub const GRACE_SECONDS: u64 = 10;
/// Only so many places in the queue are told.
const TOLD_POSITIONS: usize = 10;

/// The lease that a command names, as far as it matters to the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// There is none of that name.
    Missing,
    /// It is being deleted.
    Terminating {
        /// Its UID.
        uid: String,
        /// Its sandbox.
        sandbox: Sandbox,
    },
    /// It is there.
    Present {
        /// Its UID.
        uid: String,
        /// Its sandbox.
        sandbox: Sandbox,
        /// Reason of its Ready condition.
        reason: String,
        /// Message of its Ready condition.
        message: String,
    },
}

/// What is known of the lease's sandbox, by the controller's own observation since it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// Not looked at yet, or nobody answers.
    Unknown,
    /// It does not run; nothing runs in it.
    Down,
    /// It is gone, or failed for good: nothing will ever run in it again.
    Lost,
    /// It runs, and its session takes commands.
    Up {
        /// Its id.
        id: String,
        /// The session's id.
        session: String,
        /// The session's generation.
        generation: i64,
        /// Grows whenever the session was looked at anew.
        epoch: u64,
        /// Whether more may be fed into it: not while it is suspected of something.
        trusted: bool,
    },
}

/// What is known of an attempt that was sent, or may have been.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The last answer about it since the controller started.
    pub answer: Option<Answer>,
    /// That answer is a kill's: nothing of the attempt is left.
    pub killed: bool,
    /// The epoch of the session that this controller last sent it to.
    pub epoch: Option<u64>,
    /// How often it was sent in that epoch.
    pub times: u32,
    /// Daytona's id of the command, where it told it.
    pub command_id: Option<String>,
    /// Daytona refused the text as such, in these words.
    pub refused: Option<String>,
    /// This controller recorded the intent to send it, and has not sent it yet.
    pub fresh: bool,
}

/// What is known when a decision is made.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The lease of that name.
    pub lease: Lease,
    /// How many commands have their turn before this one.
    pub ahead: usize,
    /// What is known of the attempt.
    pub sent: Sent,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing, until something changes.
    Rest,
    /// Nothing but look again after this time.
    Look(Duration),
    /// Put the finalizer on.
    AddFinalizer,
    /// Take the finalizer off.
    RemoveFinalizer,
    /// Write this status, then decide again (at once, if told so).
    Record(Box<SandboxCommandStatus>, Again),
    /// Feed the recorded attempt into the session of this epoch.
    Submit {
        /// The session's epoch.
        epoch: u64,
    },
    /// Have somebody wait for the attempt's end.
    Wait,
    /// Make sure that the attempt does not run.
    Kill {
        /// Unless it has run for less than this, by the sandbox's own clock: 0, or the time that it may run.
        after: u64,
    },
    /// It was sent, and nobody started it: make sure that nobody will, so that it can be sent as a new attempt.
    Fence,
    /// The session does not take commands although it should: have the lease look at it.
    Suspect {
        /// The session's epoch.
        epoch: u64,
    },
}

/// When to decide again after a status was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// At once.
    AtOnce,
    /// After this time, if nothing happens before.
    After(Duration),
}

/// How often a waiting command looks again by itself; events come first.
const LOOK: Duration = Duration::from_secs(10);

/// How often an attempt is sent to a session that does not start it.
const SENT_TO_A_SESSION: u32 = 2;

/// Decides what to do next about a command.
#[must_use]
pub fn decide(command: &SandboxCommand, observed: &Observed, now: Timestamp) -> Step {
    let status = command.status.clone().unwrap_or_default();
    let ours = command.finalizers().iter().any(|f| f == COMMAND_FINALIZER);
    let deleted = command.metadata.deletion_timestamp.is_some();
    match status.state {
        _ if deleted && !ours => Step::Rest,
        Some(CommandState::Finished) if ours => Step::RemoveFinalizer,
        // Nothing of the outcome changes any more, but it is told for which generation it holds.
        Some(CommandState::Finished) if status.observed_generation != command.metadata.generation => {
            Step::Record(Box::new(command_status::observed(status, command)), Again::AtOnce)
        }
        Some(CommandState::Finished) => Step::Rest,
        // Somebody took it off; what runs must be ended before the object may go.
        Some(CommandState::Running) if !ours => Step::AddFinalizer,
        Some(CommandState::Running) => run(command, &status, observed, deleted, now),
        // Never sent: the intent to send is recorded before.
        _ if deleted => Step::RemoveFinalizer,
        _ => queued(command, &status, observed, ours, now),
    }
}

fn queued(
    command: &SandboxCommand,
    old: &SandboxCommandStatus,
    observed: &Observed,
    ours: bool,
    now: Timestamp,
) -> Step {
    let mut status = old.clone();
    status.accepted_time = status.accepted_time.or(Some(Time(now)));
    status.sequence = status.sequence.or_else(|| queue::sequence(command));
    status.queue_position =
        (observed.ahead < TOLD_POSITIONS).then(|| i32::try_from(observed.ahead + 1).unwrap_or(i32::MAX));

    if ended_without_it(status.lease_uid.as_deref(), &observed.lease) {
        let message = "the lease ended before it was this command's turn; it never ran";
        return finish(command, status, &Outcome::without_result(Reason::LeaseEnded, message), now);
    }
    let (reason, message) = match &observed.lease {
        Lease::Missing => {
            let name = &command.spec.lease_ref.name;
            (Reason::LeaseNotFound, format!("waiting for a SandboxLease named {name:?} in this namespace"))
        }
        Lease::Terminating { .. } => {
            (Reason::LeaseTerminating, "the lease of that name is being deleted; waiting for the next one".to_owned())
        }
        Lease::Present { uid, sandbox, reason, message } => {
            status.lease_uid = Some(uid.clone());
            match sandbox {
                _ if observed.ahead > 0 => {
                    (Reason::Queued, "waiting for the commands that were accepted before it".to_owned())
                }
                Sandbox::Up { trusted: true, .. } if !ours => return Step::AddFinalizer,
                Sandbox::Up { id, session, generation, trusted: true, .. } => {
                    return start(command, status, id, session, *generation, now);
                }
                Sandbox::Unknown | Sandbox::Down | Sandbox::Lost | Sandbox::Up { .. } => {
                    let outage = *reason == LeaseReason::ApiUnreachable.as_str();
                    let waiting = if outage { Reason::ApiUnreachable } else { Reason::WaitingForLease };
                    (waiting, format!("waiting for the lease ({reason}): {message}"))
                }
            }
        }
    };
    let status = command_status::waiting(command, status, reason, &message, now);
    let look = if observed.ahead < TOLD_POSITIONS { LOOK } else { 6 * LOOK };
    if status == *old { Step::Look(look) } else { Step::Record(Box::new(status), Again::After(look)) }
}

/// Whether the lease that a waiting command is bound to has ended, or is about to.
fn ended_without_it(bound: Option<&str>, lease: &Lease) -> bool {
    bound.is_some_and(|bound| match lease {
        Lease::Present { uid, .. } => uid != bound,
        Lease::Missing | Lease::Terminating { .. } => true,
    })
}

/// The intent to send it, recorded before it is sent.
fn start(
    command: &SandboxCommand,
    mut status: SandboxCommandStatus,
    sandbox: &str,
    session: &str,
    generation: i64,
    now: Timestamp,
) -> Step {
    status.sandbox_id = Some(command_status::id(sandbox));
    status.session_id = Some(command_status::id(session));
    status.session_generation = Some(generation);
    Step::Record(Box::new(command_status::starting(command, status, now)), Again::AtOnce)
}

const UNKNOWN: &str = "the controller's files in the sandbox were removed: whether and how it ended cannot be known; \
     what was left of it was ended, and it is not sent again";

/// Why a running command has to end.
struct Stop(Reason, String);

fn run(
    command: &SandboxCommand,
    status: &SandboxCommandStatus,
    observed: &Observed,
    deleted: bool,
    now: Timestamp,
) -> Step {
    let bound = status.lease_uid.as_deref().unwrap_or_default();
    let (sandbox, lease_ends) = match &observed.lease {
        Lease::Present { uid, sandbox, .. } if uid == bound => (sandbox, false),
        Lease::Terminating { uid, sandbox } if uid == bound => (sandbox, true),
        // The lease is gone, and a lease goes only after its sandbox.
        Lease::Missing | Lease::Present { .. } | Lease::Terminating { .. } => (&Sandbox::Lost, true),
    };
    let stop = stop(command, status, deleted, lease_ends, now);
    let answered = concluded(&observed.sent, stop.as_ref());
    if let Some(outcome) = answered.or_else(|| unreachable_for_good(sandbox, stop.as_ref())) {
        let command_id = observed.sent.command_id.as_deref().map(command_status::id);
        let command_id = command_id.or_else(|| status.command_id.clone());
        return finish(command, SandboxCommandStatus { command_id, ..status.clone() }, &outcome, now);
    }
    if let Some(Stop(_, why)) = &stop {
        // Whoever waits for its end should see what keeps it.
        let told = command_status::running(command, status.clone(), &format!("being ended: {why}"), now);
        if told != *status {
            return Step::Record(Box::new(told), Again::AtOnce);
        }
    }
    let Sandbox::Up { id, session, generation, epoch, trusted } = sandbox else { return Step::Look(LOOK) };
    let renewed = observed.sent.epoch != Some(*epoch);
    match &observed.sent.answer {
        // It will never start, and it has to run still: once the session was looked at, as a new attempt.
        Some(Answer::Fenced) if !trusted => Step::Look(LOOK),
        Some(Answer::Unseen) if !trusted && stop.is_none() => Step::Look(LOOK),
        Some(Answer::Fenced) if renewed => start(command, status.clone(), id, session, *generation, now),
        Some(Answer::Fenced) => Step::Suspect { epoch: *epoch },
        Some(Answer::Died(_) | Answer::Lost) => Step::Kill { after: 0 },
        _ if stop.is_some() => {
            let timed_out = stop.is_some_and(|Stop(reason, _)| reason == Reason::TimedOut);
            Step::Kill { after: if timed_out { command.spec.timeout_seconds.unsigned_abs().into() } else { 0 } }
        }
        None if observed.sent.fresh => Step::Submit { epoch: *epoch },
        Some(Answer::Unseen) if status.session_id.as_deref() != Some(session) => {
            // Certain not to have started in the old session; the guard keeps a late copy from running twice.
            let status = SandboxCommandStatus {
                session_id: Some(command_status::id(session)),
                session_generation: Some(*generation),
                start_time: Some(Time(now)),
                ..status.clone()
            };
            Step::Record(Box::new(status), Again::AtOnce)
        }
        Some(Answer::Unseen) if observed.sent.refused.is_some() => Step::Fence,
        Some(Answer::Unseen) if renewed || observed.sent.times < SENT_TO_A_SESSION => Step::Submit { epoch: *epoch },
        Some(Answer::Unseen) => Step::Fence,
        // Without an answer: recorded by an earlier controller, it may have been sent. Look before sending.
        _ => Step::Wait,
    }
}

fn stop(
    command: &SandboxCommand,
    status: &SandboxCommandStatus,
    deleted: bool,
    lease_ends: bool,
    now: Timestamp,
) -> Option<Stop> {
    if deleted {
        Some(Stop(Reason::Cancelled, "it was deleted while it ran".to_owned()))
    } else if lease_ends {
        Some(Stop(Reason::LeaseEnded, "the lease ended while it ran".to_owned()))
    } else if due(command, status).is_some_and(|due| now >= due) {
        let seconds = command.spec.timeout_seconds;
        Some(Stop(Reason::TimedOut, format!("it ran longer than timeoutSeconds ({seconds})")))
    } else {
        None
    }
}

/// What the last answer from the sandbox means, if it is the last word.
fn concluded(sent: &Sent, stop: Option<&Stop>) -> Option<Outcome> {
    match sent.answer.as_ref()? {
        Answer::Done { code, milliseconds, how, streams, killed } => {
            let outcome = Outcome::ended(*code, *milliseconds, *how, streams.clone());
            // What ended by itself ended by itself, even if we were about to end it.
            Some(match stop {
                _ if !killed => outcome,
                Some(Stop(reason, message)) => outcome.because(*reason, message),
                // Ended because nothing was known of it: the code is the kill's, not its own.
                None => Outcome { exit_code: None, ..outcome.because(Reason::OutcomeUnknown, UNKNOWN) },
            })
        }
        // What is left of it has to be ended first.
        Answer::Died(_) | Answer::Lost if !sent.killed => None,
        Answer::Died(streams) => {
            let message = "its shell ended without telling an exit code (killed, or the sandbox was stopped)";
            let lost = Outcome::without_result(Reason::SessionLost, message);
            let outcome = match stop {
                Some(Stop(reason, message)) => lost.because(*reason, message),
                None => lost,
            };
            Some(Outcome { streams: Some(streams.clone()), ..outcome })
        }
        Answer::Fenced => match (stop, &sent.refused) {
            (Some(Stop(reason @ (Reason::Cancelled | Reason::LeaseEnded), message)), _) => {
                Some(Outcome::without_result(*reason, format!("{message}; it had not begun and never will")))
            }
            (_, Some(text)) => Some(Outcome::without_result(Reason::StartFailed, format!("nothing ran: {text}"))),
            // Its time cannot be over, for it never began.
            _ => None,
        },
        Answer::Lost | Answer::Cleared => Some(Outcome::without_result(Reason::OutcomeUnknown, UNKNOWN)),
        Answer::Running | Answer::Unseen | Answer::Survivors | Answer::Early(_) => None,
    }
}

/// What is left to say when the sandbox can never tell any more, or nothing can run in it that had to be ended.
fn unreachable_for_good(sandbox: &Sandbox, stop: Option<&Stop>) -> Option<Outcome> {
    match (sandbox, stop) {
        (Sandbox::Lost, None) => Some(Outcome::without_result(
            Reason::SandboxLost,
            "the sandbox is gone or failed; its exit code is not known",
        )),
        (Sandbox::Lost | Sandbox::Down, Some(Stop(reason, message))) => {
            let message = format!("{message}; the sandbox no longer ran, its exit code is not known");
            Some(Outcome::without_result(*reason, message))
        }
        (Sandbox::Down, None) | (Sandbox::Unknown | Sandbox::Up { .. }, _) => None,
    }
}

/// When the running time is over. Times are whole seconds, so the start was up to a second later than it says.
#[must_use]
pub fn due(command: &SandboxCommand, status: &SandboxCommandStatus) -> Option<Timestamp> {
    let started = status.start_time.as_ref()?.0;
    started.checked_add(SignedDuration::from_secs(i64::from(command.spec.timeout_seconds) + 1)).ok()
}

fn finish(command: &SandboxCommand, status: SandboxCommandStatus, outcome: &Outcome, now: Timestamp) -> Step {
    Step::Record(Box::new(command_status::finished(command, status, outcome, now)), Again::AtOnce)
}

#[cfg(test)]
mod tests;
