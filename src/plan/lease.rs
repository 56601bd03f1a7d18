//! One lease: what to do next while it is wanted. `release.rs` decides what to do when it is not.

use std::time::Duration;

use kube::ResourceExt;

use super::{
    lease_seen::pace,
    lease_status::{MISMATCH, failure},
    release::release,
    sandbox::drift,
};
use crate::{
    api::{LEASE_FINALIZER, LeaseReason as Reason, SandboxLease, SessionStatus, sandbox_label},
    daytona::{Sandbox, State},
};

pub use super::{
    lease_seen::{Credentials, Intervals, Observed, Remote, Session, Step, is_ours, sandbox_name, session_id},
    lease_status::{Told, is_failing, status},
};

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    let leaving = lease.metadata.deletion_timestamp.is_some();
    let mut told = Told::new(lease, observed);
    let (step, again) = match (leaving, ours) {
        (true, false) => (Step::Rest, intervals.idle),
        (false, false) => {
            told.waiting(Reason::Provisioning, "the lease was accepted; its sandbox is looked for, or made");
            (Step::AddFinalizer, Duration::ZERO)
        }
        (true, true) => release(lease, observed, intervals, &mut told),
        (false, true) => keep(lease, observed, intervals, &mut told),
    };
    // What the last try said stands until this one has an end: conditions must not flap with each try.
    if !matches!(step, Step::Rest | Step::Adjust(..)) && is_failing(lease) {
        told.quiet();
    }
    Plan { step, told, again }
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
                told.waiting(Reason::ApiUnreachable, &format!("the Kubernetes API did not tell the key: {message}"));
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
            told.failed(Reason::SandboxError, &failure(sandbox));
            rest
        }
        Remote::Foreign(sandbox) => {
            told.failed(Reason::NameConflict, &conflict(sandbox));
            rest
        }
        Remote::Absent => match (&id, &status.sandbox) {
            (Some(id), _) if observed.since >= intervals.absence => {
                told.failed(Reason::SandboxLost, &format!("Daytona no longer knows sandbox {id}; {LOST}"));
                rest
            }
            (Some(_), _) => (Step::Rest, pace(observed, intervals)),
            (None, None) => {
                told.waiting(Reason::Provisioning, "about to create the sandbox");
                told.intend(lease, observed);
                (Step::Record, Duration::ZERO)
            }
            (None, Some(_)) => {
                told.waiting(Reason::Provisioning, "creating the sandbox");
                (Step::CreateSandbox, Duration::ZERO)
            }
        },
        Remote::Present(sandbox) => {
            if status.sandbox.is_none() {
                told.intend(lease, observed);
            }
            told.sandbox(sandbox);
            // The id is recorded before anything else is done with it.
            if id.as_deref() != Some(&sandbox.id) {
                told.waiting(Reason::Provisioning, "the sandbox was created");
                return (Step::Record, Duration::ZERO);
            }
            let kept = keep_sandbox(sandbox, lease, observed, intervals, told);
            // Nothing else is to be done, and what is under way does not change what will be seen.
            let settled = match &sandbox.state {
                State::Started => matches!(observed.session, Session::Serving),
                state => matches!(state, State::Stopped | State::Archived | State::Paused),
            };
            let drift = if settled && kept.0 == Step::Rest { drift(lease, sandbox) } else { Vec::new() };
            if drift.is_empty() { kept } else { (Step::Adjust(sandbox.id.clone(), drift), kept.1) }
        }
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
        State::Stopped | State::Archived | State::Paused if observed.needed => {
            let reason = if observed.running > 0 { Reason::SandboxStopped } else { Reason::Restoring };
            told.waiting(reason, &format!("the sandbox is {word}; starting it for a command"));
            (Step::StartSandbox(sandbox.id.clone()), pace(observed, intervals))
        }
        State::Stopped | State::Archived | State::Paused => {
            told.ready(Reason::Asleep, &format!("the sandbox is {word}; the next command wakes it"));
            (Step::Rest, intervals.idle)
        }
        State::Changing(_) => {
            let reason = if session.is_some() { Reason::Restoring } else { Reason::Provisioning };
            told.waiting(reason, &format!("the sandbox is {word}"));
            (Step::Rest, pace(observed, intervals))
        }
        State::Failed(_) => {
            told.failed(Reason::SandboxError, &failure(sandbox));
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
        told.renew_session(lease, 1);
        return (Step::Record, Duration::ZERO);
    };
    let lived = session.creation_time.is_some();
    let renew = |told: &mut Told, message: &str| {
        told.waiting(Reason::Restoring, message);
        told.renew_session(lease, session.generation + 1);
        (Step::Record, Duration::ZERO)
    };
    match &observed.session {
        Session::Serving => {
            told.serving();
            (Step::Rest, intervals.idle)
        }
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

fn conflict(sandbox: &Sandbox) -> String {
    let (id, name, label) = (&sandbox.id, &sandbox.name, sandbox_label::LEASE_UID);
    format!(
        "sandbox {id} has the name {name} but not this lease's label {label}; it is left alone. Rename or delete it in \
         Daytona, or delete this lease"
    )
}

#[cfg(test)]
mod tests;
