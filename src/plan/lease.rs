//! One lease: what to do next while it is wanted. `release.rs` decides what to do when it is not.

use std::time::Duration;

use kube::ResourceExt;

use super::{
    claim::claim,
    escrow::{self, Escrow, unanswered},
    files::{is_hindered, is_unwritable, keep_files},
    lease_failure::{MISMATCH, failure, stuck},
    lease_seen::pace,
    release::{release, waits},
    sandbox::{drift, is_kept_awake},
    suspend::{is_over, suspend},
};
use crate::{
    api::{LEASE_FINALIZER, LeaseReason as Reason, SandboxLease, SessionStatus},
    daytona::{Sandbox, State},
};

pub use super::{
    abandon::{is_abandoned, orphan},
    claim::{Owner, adopts, is_ours, own_name, released, reuse_key, reuse_name},
    expiry::{expiry, is_ending, is_expired},
    lease_seen::{Credentials, Intervals, Observed, Remote, Session, Step, session_id, session_ids},
    lease_status::{Told, is_failing, status},
};

/// A decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What to do.
    pub step: Step,
    /// What to tell, written before the step is made.
    pub told: Told,
    /// When to look again by itself.
    pub again: Duration,
}

/// Decides what to do next about a lease.
#[must_use]
pub fn decide(lease: &SandboxLease, observed: &Observed, intervals: &Intervals) -> Plan {
    let ours = lease.finalizers().iter().any(|f| f == LEASE_FINALIZER);
    let deleted = lease.metadata.deletion_timestamp.is_some();
    let expiry = expiry(lease, intervals.longest_lease);
    let expired = is_expired(lease) || expiry.is_some_and(|expiry| observed.now >= expiry);
    let mut told = Told::new(lease, observed);
    told.expiry(expiry, expired, observed.now);
    let (step, mut again) = match (deleted, expired, ours) {
        (true, _, false) => (Step::Rest, intervals.idle),
        (false, true, false) => {
            told.failed(Reason::Expired, &expired_for_good(lease));
            (Step::Rest, NEVER)
        }
        (false, false, false) => {
            told.waiting(Reason::Provisioning, "the lease was accepted; its sandbox is looked for, or made");
            (Step::AddFinalizer, Duration::ZERO)
        }
        // Written first: what ends is looked at otherwise.
        (false, true, true) if !is_expired(lease) => {
            told.deleting("the lease has expired; letting go");
            (Step::Record, Duration::ZERO)
        }
        (true, _, true) | (_, true, true) => release(lease, observed, intervals, &mut told),
        (false, false, true) => keep(lease, observed, intervals, &mut told),
    };
    if let (Some(expiry), false) = (expiry, deleted || expired) {
        let left = Duration::try_from(expiry.duration_since(observed.now)).unwrap_or_default();
        again = again.min(left);
    }
    // What the last try said stands until this one has an end: conditions must not flap with each try.
    if !matches!(step, Step::Rest | Step::Adjust(..) | Step::KeepAwake(_)) && is_failing(lease) {
        told.quiet();
    }
    Plan { step, told, again }
}

/// Whether a lease that lets go, or is suspended, waits for the end of what runs. For so long a session that serves is not
/// asked about, and goes on to serve: those that run are ended through it.
#[must_use]
pub fn waits_for_commands(lease: &SandboxLease, observed: &Observed, intervals: &Intervals) -> bool {
    if is_ending(lease) {
        waits(lease, observed, intervals)
    } else {
        lease.spec.suspend && observed.running > 0 && !is_over(lease, observed, intervals)
    }
}

/// Nothing is left to be looked at.
const NEVER: Duration = Duration::from_hours(24);

/// What became of an expired lease.
fn expired_for_good(lease: &SandboxLease) -> String {
    let sandbox = lease.status.as_ref().and_then(|s| s.sandbox.as_ref());
    let became = match sandbox.map(|sandbox| (sandbox.id.as_deref(), sandbox.state.as_deref())) {
        None | Some((None, _)) => "it had no sandbox".to_owned(),
        Some(_) if is_abandoned(lease) => "it was let go without proof, as its annotation asked".to_owned(),
        Some((Some(id), Some("destroyed"))) => format!("its sandbox {id} was deleted"),
        Some((Some(id), state)) => {
            let policy = lease.spec.reclaim_policy;
            format!("its sandbox {id} is kept ({}), as reclaimPolicy {policy:?} says", state.unwrap_or("?"))
        }
    };
    format!("the lease has expired; {became}. Nothing brings the lease back: delete it and create another")
}

/// The lease is wanted.
fn keep(lease: &SandboxLease, observed: &Observed, intervals: &Intervals, told: &mut Told) -> (Step, Duration) {
    let rest = (Step::Rest, intervals.idle);
    let status = lease.status.clone().unwrap_or_default();
    let id = status.sandbox.as_ref().and_then(|s| s.id.clone());
    if let Credentials::Missing(reason, message) = &observed.credentials {
        told.credentials(*reason, message);
        return rest;
    }
    match &observed.remote {
        Remote::NotAsked => {
            if let Credentials::Unknown(message) = &observed.credentials {
                told.waiting(Reason::ApiUnreachable, &unanswered(message));
            }
            (Step::Rest, pace(observed, intervals))
        }
        Remote::Unknown(error) => {
            told.error(error);
            (Step::Rest, pace(observed, intervals))
        }
        Remote::Unproven => {
            told.credentials(Reason::CredentialMismatch, MISMATCH);
            rest
        }
        Remote::FailedDeletion(sandbox) => {
            told.failed(Reason::SandboxError, &failure(sandbox, false));
            rest
        }
        Remote::Foreign(sandbox) => match claim(lease, sandbox, observed.owner.as_ref()) {
            Err((reason, message)) => {
                told.failed(reason, &message);
                rest
            }
            Ok(_) if status.sandbox.is_some() && lease.spec.suspend => unmade(told, intervals),
            Ok(labels) => {
                if let Some(first) = escrow::before(observed, intervals, told) {
                    return first;
                }
                if status.sandbox.is_none() {
                    told.waiting(Reason::Provisioning, "about to take the sandbox over");
                    told.intend(observed);
                    return (Step::Record, Duration::ZERO);
                }
                told.waiting(Reason::Provisioning, "taking the sandbox over");
                (Step::Claim(Box::new(sandbox.clone()), labels), pace(observed, intervals))
            }
        },
        Remote::Absent => keep_absent(lease, observed, intervals, told),
        Remote::Present(sandbox) => {
            if status.sandbox.is_none() {
                told.intend(observed);
            }
            told.sandbox(sandbox);
            // The id is recorded before anything else is done with it.
            if id.as_deref() != Some(&sandbox.id) {
                told.waiting(Reason::Provisioning, "the sandbox was created");
                return (Step::Record, Duration::ZERO);
            }
            let asked = lease.spec.connection.as_ref().and_then(|c| c.organization_id.as_ref());
            if let (Some(asked), Some(has)) = (asked, &sandbox.organization_id)
                && asked != has
            {
                let message = format!(
                    "the key belongs to organisation {has}, not to connection.organizationID {asked}; delete this lease, and \
                     create another with a key of {asked}"
                );
                told.credentials(Reason::CredentialMismatch, &message);
                return rest;
            }
            // It has just reached the sandbox: from now on this one is needed, and no longer the one before.
            if observed.escrow == Escrow::Missing {
                return (Step::KeepKey, Duration::ZERO);
            }
            let kept = if lease.spec.suspend {
                suspend(sandbox, lease, observed, intervals, told)
            } else {
                keep_sandbox(sandbox, lease, observed, intervals, told)
            };
            also(kept, sandbox, lease, observed, intervals)
        }
    }
}

/// Daytona knows no such sandbox: it is made, or it was lost.
fn keep_absent(lease: &SandboxLease, observed: &Observed, intervals: &Intervals, told: &mut Told) -> (Step, Duration) {
    let rest = (Step::Rest, intervals.idle);
    let recorded = lease.status.as_ref().and_then(|s| s.sandbox.as_ref());
    if let Some(id) = recorded.and_then(|sandbox| sandbox.id.as_ref()) {
        if observed.since < intervals.absence {
            return (Step::Rest, pace(observed, intervals));
        }
        told.failed(Reason::SandboxLost, &format!("Daytona no longer knows sandbox {id}; {LOST}"));
        return rest;
    }
    if let Some(id) = adopts(lease) {
        let message = format!(
            "Daytona knows no sandbox of the id {id:?} for this key: delete this lease, and create another with the id of \
             one that is there"
        );
        told.failed(Reason::InvalidSpec, &message);
        return rest;
    }
    if lease.spec.suspend {
        return unmade(told, intervals);
    }
    // Nothing is paid for before it can be used.
    if recorded.is_none() && is_hindered(observed, told) {
        return rest;
    }
    if let Some(first) = escrow::before(observed, intervals, told) {
        return first;
    }
    if recorded.is_some() {
        told.waiting(Reason::Provisioning, "creating the sandbox");
        return (Step::CreateSandbox, Duration::ZERO);
    }
    told.waiting(Reason::Provisioning, "about to create the sandbox");
    told.intend(observed);
    (Step::Record, Duration::ZERO)
}

/// No sandbox is made while the lease is suspended.
fn unmade(told: &mut Told, intervals: &Intervals) -> (Step, Duration) {
    told.ready(Reason::Suspended, "the lease is suspended, and no sandbox was made");
    (Step::Rest, intervals.idle)
}

/// For how long keeping a sandbox awake comes before its files.
const AWAKE_FIRST: Duration = Duration::from_mins(5);

/// What is done where nothing else is: drift is corrected, and a sandbox that is not to sleep is kept awake.
fn also(
    kept: (Step, Duration),
    sandbox: &Sandbox,
    lease: &SandboxLease,
    observed: &Observed,
    intervals: &Intervals,
) -> (Step, Duration) {
    let (step, again) = kept;
    // Nothing else is to be done, and what is under way does not change what will be seen.
    let settled = match &sandbox.state {
        State::Started => matches!(observed.session, Session::Serving) && !lease.spec.suspend,
        state => state.is_down(),
    };
    let awake = sandbox.state == State::Started && is_kept_awake(lease);
    let often = intervals.dead_man / 3;
    // Files that cannot be brought in must not let it fall asleep; nor must they wait for ever where this does not work.
    let due = observed.kept_awake.is_some_and(|since| since >= often && since < often + AWAKE_FIRST);
    if settled && step == Step::SyncFiles && awake && due {
        return (Step::KeepAwake(sandbox.id.clone()), intervals.busy);
    }
    if !settled || step != Step::Rest {
        return (step, again);
    }
    let drift = drift(lease, sandbox, observed.owner.as_ref(), intervals);
    if !drift.is_empty() {
        (Step::Adjust(sandbox.id.clone(), drift), again)
    } else if awake && observed.kept_awake.is_none_or(|since| since >= often) {
        (Step::KeepAwake(sandbox.id.clone()), again.min(often))
    } else {
        (step, if awake { again.min(often) } else { again })
    }
}

fn keep_sandbox(
    sandbox: &Sandbox,
    lease: &SandboxLease,
    observed: &Observed,
    intervals: &Intervals,
    told: &mut Told,
) -> (Step, Duration) {
    let word = sandbox.state.as_str();
    let session = lease.status.as_ref().and_then(|s| s.place());
    match &sandbox.state {
        State::Started => {
            told.sandbox_runs();
            keep_session(session, lease, observed, intervals, told)
        }
        // Nothing is woken for what cannot run; what may be running is looked after.
        State::Stopped | State::Archived | State::Paused
            if observed.running == 0 && (is_hindered(observed, told) || is_unwritable(observed, told)) =>
        {
            (Step::Rest, intervals.idle)
        }
        // What was never made fit for commands, or was suspended, is started for its own sake; an idle one is not.
        State::Stopped | State::Archived | State::Paused if observed.needed || session.is_none() => {
            let reason = if observed.running > 0 { Reason::SandboxStopped } else { Reason::Restoring };
            told.waiting(reason, &format!("the sandbox is {word}; starting it"));
            (Step::StartSandbox(sandbox.id.clone()), pace(observed, intervals))
        }
        State::Stopped | State::Archived | State::Paused => {
            told.ready(Reason::Asleep, &format!("the sandbox is {word}; the next command wakes it"));
            (Step::Rest, intervals.idle)
        }
        State::Changing(_) if observed.since >= intervals.stuck => {
            told.failed(Reason::SandboxError, &stuck(sandbox, false, intervals));
            (Step::Rest, pace(observed, intervals))
        }
        State::Changing(_) => {
            let reason = if session.is_some() { Reason::Restoring } else { Reason::Provisioning };
            told.waiting(reason, &format!("the sandbox is {word}"));
            (Step::Rest, pace(observed, intervals))
        }
        // What ran when it failed is told as lost first: it must not be found again in older files.
        State::Failed(_) if sandbox.recoverable == Some(true) && !observed.recovered && observed.running > 0 => {
            told.waiting(Reason::Restoring, &format!("the sandbox is in state {word}; what ran in it is lost"));
            (Step::Rest, pace(observed, intervals))
        }
        State::Failed(_) if sandbox.recoverable == Some(true) && !observed.recovered => {
            told.waiting(Reason::Restoring, &format!("the sandbox is in state {word}; having Daytona recover it"));
            told.files_in_doubt();
            (Step::RecoverSandbox(sandbox.id.clone()), pace(observed, intervals))
        }
        State::Failed(_) => {
            told.failed(Reason::SandboxError, &failure(sandbox, false));
            (Step::Rest, pace(observed, intervals).max(intervals.absence))
        }
        State::Destroyed(_) => {
            told.failed(Reason::SandboxLost, &format!("somebody deleted the sandbox; {LOST}"));
            (Step::Rest, intervals.idle)
        }
        State::Unheard(_) => {
            let message = format!(
                "the sandbox is in a state that this version does not know: {word:?}; waiting for another. If it \
                 stays, upgrade the controller"
            );
            told.waiting(Reason::SandboxStateUnknown, &message);
            (Step::Rest, pace(observed, intervals))
        }
    }
}

fn keep_session(
    session: Option<&SessionStatus>,
    lease: &SandboxLease,
    observed: &Observed,
    intervals: &Intervals,
    told: &mut Told,
) -> (Step, Duration) {
    let opening = if lease.spec.use_sessions { "opening the session" } else { "preparing the sandbox for commands" };
    let Some(session) = session else {
        told.waiting(Reason::Provisioning, opening);
        told.renew_session(lease);
        return (Step::Record, Duration::ZERO);
    };
    let lived = session.creation_time.is_some();
    let renew = |told: &mut Told, message: &str| {
        told.waiting(Reason::Restoring, message);
        told.renew_session(lease);
        (Step::Record, Duration::ZERO)
    };
    match &observed.session {
        Session::Serving => keep_files(lease, observed, intervals, told),
        Session::Unknown(error) => {
            told.error(error);
            (Step::Rest, pace(observed, intervals))
        }
        // An id that has lived is never used again: a deletion under way could hit the newcomer.
        Session::Absent if lived => renew(told, "the session is gone; a new one is opened"),
        Session::Dead => renew(told, "the session's shell does not answer; a new one is opened"),
        Session::Listed | Session::NotAsked if lived => (Step::ResumeSession, Duration::ZERO),
        Session::Absent | Session::Listed | Session::NotAsked => {
            told.waiting(Reason::Provisioning, opening);
            (Step::OpenSession, Duration::ZERO)
        }
    }
}

const LOST: &str = "its data is gone, so no other is made in its place: delete this lease and create another";

#[cfg(test)]
mod tests;
