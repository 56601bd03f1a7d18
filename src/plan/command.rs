//! One command: what to do next. The checks stand in the order in which they take effect.

use std::time::Duration;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;

use super::{
    command_end::{GARBLED, Stop, concluded, ended, stop, unreachable_for_good},
    command_status,
    outcome::Outcome,
    queue,
};
use crate::{
    api::{
        COMMAND_FINALIZER, CommandReason as Reason, CommandState, LeaseReason, SandboxCommand, SandboxCommandStatus,
        SuspendPolicy,
    },
    shell::Answer,
};

pub use super::command_end::due;
pub use super::command_seen::{Again, Inputs, Launcher, Lease, Observed, Place, Sandbox, Sent, Step};

/// Only so many places in the queue are told.
const TOLD_POSITIONS: usize = 10;

/// How often a waiting command looks again by itself; events come first.
const LOOK: Duration = Duration::from_secs(10);

/// How often one that waits for others looks at its place: a write each time, for each of those whose place is told.
const LOOK_AT_PLACE: Duration = Duration::from_secs(30);

/// How often an attempt is sent to a session that does not start it.
const SENT_TO_A_SESSION: u32 = 2;

/// How many attempts are made when none of them is started.
const MOST_ATTEMPTS: i32 = 5;

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
        // Before anything is sent: what runs must be ended before the object may go. It comes after the first status, which
        // holds the command's place: it changes the resourceVersion by which that is reckoned.
        Some(CommandState::Running) if !ours => Step::AddFinalizer,
        Some(CommandState::Running) => run(command, &status, observed, deleted, now),
        // Never sent: the intent to send is recorded before.
        _ if deleted => Step::RemoveFinalizer,
        _ => queued(command, &status, observed, now),
    }
}

fn queued(command: &SandboxCommand, old: &SandboxCommandStatus, observed: &Observed, now: Timestamp) -> Step {
    let mut status = old.clone();
    status.accepted_time = status.accepted_time.or(Some(Time(now)));
    status.sequence = status.sequence.or_else(|| queue::sequence(command));
    let ahead = observed.turn.ahead;
    status.queue_position = (ahead < TOLD_POSITIONS).then(|| i32::try_from(ahead + 1).unwrap_or(i32::MAX));

    let deadline = starting_deadline(command);
    let over = if command.spec.cancel {
        status.cancel_time = status.cancel_time.or(Some(Time(now)));
        Some(never(Reason::Cancelled, "spec.cancel was set before it was this command's turn"))
    } else if ended_without_it(status.lease_uid.as_deref(), &observed.lease) {
        if let Lease::Expired { uid, .. } = &observed.lease {
            status.lease_uid.get_or_insert_with(|| uid.clone());
        }
        Some(never(Reason::LeaseEnded, "the lease ended before it was this command's turn"))
    } else if let Some(lost) = &observed.lost {
        Some(never(
            Reason::SessionLost,
            &format!(
                "the Persist command {lost:?} before it was lost, so its changes are missing (onSessionLost: Continue would \
                 go on without them)"
            ),
        ))
    } else if deadline.is_some_and(|deadline| now >= deadline) {
        Some(too_late(command))
    } else {
        None
    };
    if let Some(outcome) = over {
        return finish(command, status, &outcome, now);
    }
    let (reason, message) = match &observed.lease {
        Lease::Missing => {
            let name = &command.spec.lease_ref.name;
            (
                Reason::LeaseNotFound,
                format!("waiting for a SandboxLease named {name:?} in this namespace; create it, or another command"),
            )
        }
        Lease::Terminating { .. } => {
            (Reason::LeaseTerminating, "the lease of that name is being deleted; waiting for the next one".to_owned())
        }
        // Told above.
        Lease::Expired { .. } => (Reason::WaitingForLease, "the lease has expired".to_owned()),
        Lease::Present { uid, suspended: Some(_), .. } => {
            status.lease_uid = Some(uid.clone());
            (Reason::LeaseSuspended, "the lease is suspended; waiting until its spec.suspend is false".to_owned())
        }
        Lease::Present { uid, sandbox, reason, message, suspended: None } => {
            status.lease_uid = Some(uid.clone());
            match (sandbox, &observed.inputs) {
                _ if !observed.turn.now => {
                    (Reason::Queued, "waiting for its turn among the commands of the lease".to_owned())
                }
                // Before the sandbox is looked at: nothing is woken for what cannot run.
                (_, Inputs::Missing(reason, message)) => (*reason, message.clone()),
                (_, Inputs::Unfit(_)) => return attempt(command, &status, observed, sandbox, now),
                (Sandbox::Up { trusted: true, .. }, _) => {
                    return attempt(command, &status, observed, sandbox, now);
                }
                (Sandbox::Unknown | Sandbox::Down | Sandbox::Lost | Sandbox::Up { .. }, _) => {
                    let outage = *reason == LeaseReason::ApiUnreachable.as_str();
                    let waiting = if outage { Reason::ApiUnreachable } else { Reason::WaitingForLease };
                    (waiting, format!("waiting for the lease ({reason}): {message}"))
                }
            }
        }
    };
    let status = command_status::waiting(command, status, reason, &message, now);
    let look = match ahead {
        // Those that wait for the same object may be very many; the watch tells when it is there.
        0 if matches!(observed.inputs, Inputs::Missing(..)) => 2 * LOOK_AT_PLACE,
        0 => LOOK,
        1..TOLD_POSITIONS => LOOK_AT_PLACE,
        _ => 2 * LOOK_AT_PLACE,
    };
    let look =
        deadline.and_then(|d| Duration::try_from(d.duration_since(now)).ok()).map_or(look, |left| left.min(look));
    if status == *old { Step::Look(look) } else { Step::Record(Box::new(status), Again::After(look)) }
}

fn never(reason: Reason, message: &str) -> Outcome {
    Outcome::without_result(reason, format!("{message}; it never ran"))
}

fn too_late(command: &SandboxCommand) -> Outcome {
    let seconds = command.spec.starting_deadline_seconds.unwrap_or_default();
    never(Reason::StartDeadlineExceeded, &format!("it was not started within startingDeadlineSeconds ({seconds})"))
}

/// When it must have been started.
fn starting_deadline(command: &SandboxCommand) -> Option<Timestamp> {
    let (seconds, created) = (command.spec.starting_deadline_seconds?, command.metadata.creation_timestamp.as_ref()?);
    created.0.checked_add(SignedDuration::from_secs(seconds.into())).ok()
}

/// Whether the lease that a waiting command is bound to has ended, or is about to. An expired one is the end of all
/// that name it, for no other can come in its place.
fn ended_without_it(bound: Option<&str>, lease: &Lease) -> bool {
    if matches!(lease, Lease::Expired { .. }) {
        return true;
    }
    bound.is_some_and(|bound| match lease {
        Lease::Present { uid, .. } => uid != bound,
        Lease::Missing | Lease::Terminating { .. } | Lease::Expired { .. } => true,
    })
}

/// The intent to send it as a new attempt, recorded before it is sent.
fn attempt(
    command: &SandboxCommand,
    status: &SandboxCommandStatus,
    observed: &Observed,
    sandbox: &Sandbox,
    now: Timestamp,
) -> Step {
    match (&observed.inputs, sandbox) {
        (Inputs::Unfit(why), _) => {
            let outcome = Outcome::without_result(Reason::StartFailed, format!("nothing ran: {why}"));
            finish(command, status.clone(), &outcome, now)
        }
        // All of them are known not to have been started.
        _ if status.attempts.is_some_and(|attempts| attempts >= MOST_ATTEMPTS) => {
            let message = format!("nothing ran: the sandbox took it {MOST_ATTEMPTS} times and never started it");
            finish(command, status.clone(), &Outcome::without_result(Reason::StartFailed, message), now)
        }
        (Inputs::Ready { secrets }, Sandbox::Up { id, place, .. }) => {
            let status = SandboxCommandStatus {
                sandbox_id: Some(command_status::id(id)),
                secrets_version: secrets.clone(),
                command_defaults: observed.defaults.clone(),
                ..command_status::sent_to(status.clone(), place)
            };
            Step::Record(Box::new(command_status::starting(command, status, place.launcher, now)), Again::AtOnce)
        }
        (Inputs::Missing(_, why), _) => wait_for(command, status, why, now),
        (Inputs::NotAsked | Inputs::Ready { .. }, _) => Step::Look(LOOK),
    }
}

/// It was recorded as running, and certainly does not run; what it is to run with is gone meanwhile.
fn wait_for(command: &SandboxCommand, status: &SandboxCommandStatus, why: &str, now: Timestamp) -> Step {
    let told = command_status::running(command, status.clone(), &format!("not started yet: {why}"), now);
    if told == *status { Step::Look(LOOK) } else { Step::Record(Box::new(told), Again::After(LOOK)) }
}

fn run(
    command: &SandboxCommand,
    status: &SandboxCommandStatus,
    observed: &Observed,
    deleted: bool,
    now: Timestamp,
) -> Step {
    let bound = status.lease_uid.as_deref().unwrap_or_default();
    let (sandbox, lease_stops) = match &observed.lease {
        Lease::Present { uid, sandbox, suspended, .. } if uid == bound => {
            let cancels = *suspended == Some(SuspendPolicy::Cancel);
            (sandbox, cancels.then_some(Reason::LeaseSuspended))
        }
        Lease::Terminating { uid, sandbox } | Lease::Expired { uid, sandbox } if uid == bound => {
            (sandbox, Some(Reason::LeaseEnded))
        }
        // The lease is gone, and a lease goes only after its sandbox, or has given it out of its hands.
        Lease::Missing | Lease::Present { .. } | Lease::Terminating { .. } | Lease::Expired { .. } => {
            (&Sandbox::Lost, Some(Reason::LeaseEnded))
        }
    };
    let stop = stop(command, status, deleted, lease_stops, now);
    let answered = concluded(&observed.sent, status, stop.as_ref());
    let suspended = matches!(&observed.lease, Lease::Present { suspended: Some(_), .. });
    let gone = || unreachable_for_good(sandbox, suspended, stop.as_ref());
    if let Some(outcome) = answered.or_else(gone) {
        return ended(command, status, &outcome, observed, now);
    }
    // Its time cannot be over, for it never began.
    let stop = stop.filter(|_| observed.sent.answer != Some(Answer::Fenced));
    if let Some(Stop(reason, why)) = &stop {
        // Whoever waits for its end should see what keeps it.
        let mut told = status.clone();
        if command.spec.cancel {
            told.cancel_time.get_or_insert(Time(now));
        }
        told.lease_suspended |= *reason == Reason::LeaseSuspended;
        let told = command_status::running(command, told, &format!("being ended: {why}"), now);
        if told != *status {
            return Step::Record(Box::new(told), Again::AtOnce);
        }
    }
    let Sandbox::Up { place, epoch, trusted, .. } = sandbox else { return Step::Look(LOOK) };
    let renewed = observed.sent.epoch != Some(*epoch);
    let kill = |after| Step::Kill { grace: command.spec.termination_grace_period_seconds.unsigned_abs().into(), after };
    match &observed.sent.answer {
        // Nothing is made anew for it.
        Some(Answer::Fenced) if suspended => {
            let outcome = never(Reason::LeaseSuspended, "the lease was suspended before it had begun");
            finish(command, status.clone(), &outcome, now)
        }
        Some(Answer::Unseen) if suspended && !trusted && stop.is_none() => Step::Fence,
        // It will never start, and it has to run still: once the place was looked at, as a new attempt.
        Some(Answer::Fenced) if starting_deadline(command).is_some_and(|deadline| now >= deadline) => {
            finish(command, status.clone(), &too_late(command), now)
        }
        Some(Answer::Fenced) if !trusted => wait_for(command, status, "the lease is looked at first", now),
        Some(Answer::Unseen) if !trusted && stop.is_none() => Step::Look(LOOK),
        Some(Answer::Fenced) if renewed || place.launcher == Launcher::OneShot => {
            attempt(command, status, observed, sandbox, now)
        }
        Some(Answer::Fenced) if matches!(observed.inputs, Inputs::Unfit(_)) => {
            attempt(command, status, observed, sandbox, now)
        }
        Some(Answer::Fenced) => Step::Suspect { epoch: *epoch },
        Some(Answer::Died { .. } | Answer::Lost) => kill(0),
        // Nobody will learn from it any more what became of it.
        _ if stop.is_none() && observed.sent.garbled >= GARBLED => kill(0),
        _ if stop.is_some() => {
            let timed_out = stop.is_some_and(|Stop(reason, _)| reason == Reason::TimedOut);
            kill(if timed_out { command.spec.timeout().unsigned_abs().into() } else { 0 })
        }
        None if observed.sent.refused.is_some() => Step::Fence,
        None if observed.sent.fresh => Step::Submit { epoch: *epoch },
        Some(Answer::Unseen) if command_status::sent_to(status.clone(), place) != *status => {
            // Certain not to have started in the old place; the guard keeps a late copy from running twice.
            let status = command_status::sent_to(status.clone(), place);
            Step::Record(Box::new(SandboxCommandStatus { start_time: Some(Time(now)), ..status }), Again::AtOnce)
        }
        Some(Answer::Unseen) if observed.sent.refused.is_some() => Step::Fence,
        Some(Answer::Unseen) if renewed || observed.sent.times < SENT_TO_A_SESSION => match &observed.inputs {
            // A copy that is under way may still start with the values of before: what must not be shown would not be
            // known. So it must not start, and another attempt is made.
            Inputs::Ready { secrets } if *secrets != status.secrets_version => Step::Fence,
            Inputs::Ready { .. } => Step::Submit { epoch: *epoch },
            Inputs::Missing(_, why) => wait_for(command, status, why, now),
            Inputs::Unfit(_) => Step::Fence,
            Inputs::NotAsked => Step::Look(LOOK),
        },
        Some(Answer::Unseen) => Step::Fence,
        // Without an answer: recorded by an earlier controller, it may have been sent. Look before sending.
        _ => Step::Wait,
    }
}

fn finish(command: &SandboxCommand, status: SandboxCommandStatus, outcome: &Outcome, now: Timestamp) -> Step {
    Step::Record(Box::new(command_status::finished(command, status, outcome, None, now)), Again::AtOnce)
}

#[cfg(test)]
mod tests;
