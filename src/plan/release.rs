//! A lease lets go: commands, session, sandbox, finalizer, each only when the one before is proved gone, unless a person
//! abandons what may be left.

use std::time::Duration;

use super::{
    abandon::is_abandoned,
    claim::{adopts, is_released, reuse_key},
    escrow::{Escrow, unanswered},
    lease_failure::{MISMATCH, failure, stuck},
    lease_seen::{Credentials, Intervals, Observed, Remote, Session, Step, pace},
    lease_status::Told,
    sandbox::spared,
};
use crate::{
    api::{LeaseReason as Reason, ReclaimPolicy, SandboxLease, SandboxStatus, sandbox_label},
    daytona::{Sandbox, State},
};

/// Decides what to do next about a lease that is being deleted, or has expired.
pub(super) fn release(
    lease: &SandboxLease,
    observed: &Observed,
    intervals: &Intervals,
    told: &mut Told,
) -> (Step, Duration) {
    told.deleting("letting go");
    if is_abandoned(lease) {
        return (Step::Abandon, Duration::ZERO);
    }
    let wait = (Step::Rest, pace(observed, intervals));
    let Some(recorded) = lease.status.as_ref().and_then(|s| s.sandbox.as_ref()) else {
        // Nothing was ever intended, so nothing can be there, unless somebody wiped the status: the finalizer is not put
        // on before something is written.
        let written = lease.status.as_ref().and_then(|s| s.observed_generation).is_some_and(|seen| seen >= 0);
        match &observed.remote {
            Remote::Present(sandbox) => {
                told.intend(observed);
                told.sandbox(sandbox);
            }
            _ if written => return (Step::RemoveFinalizer, Duration::ZERO),
            _ if observed.name.is_empty() => return wait,
            _ => told.intend(observed),
        }
        return (Step::Record, Duration::ZERO);
    };
    let name = recorded.id.as_deref().unwrap_or(&recorded.name);
    if let Credentials::Missing(reason, message) = &observed.credentials {
        told.blocked(*reason, &format!("cannot ask Daytona whether sandbox {name} is gone: {message}"));
        return (Step::Rest, intervals.while_blocked());
    }
    // By name one look is not enough: a create call whose reply was lost may still be under way.
    let sure = recorded.id.is_some() || observed.since >= intervals.unheard;
    match &observed.remote {
        Remote::NotAsked => {
            if let Credentials::Unknown(message) = &observed.credentials {
                told.blocked(Reason::ApiUnreachable, &unanswered(message));
            }
            wait
        }
        Remote::Unknown(error) => {
            told.blocked_by(error, name);
            wait
        }
        Remote::Unproven => {
            told.blocked(Reason::CredentialMismatch, MISMATCH);
            (Step::Rest, intervals.while_blocked())
        }
        Remote::FailedDeletion(sandbox) => {
            told.blocked(
                Reason::SandboxError,
                &format!("Daytona could not delete the sandbox: {}", failure(sandbox, true)),
            );
            let again = policy(lease) == ReclaimPolicy::Delete;
            (if again { Step::DeleteSandbox(sandbox.id.clone()) } else { Step::Rest }, pace(observed, intervals))
        }
        Remote::Absent if sure => {
            told.sandbox_gone();
            (Step::RemoveFinalizer, Duration::ZERO)
        }
        // It was given out of our hands; who has it now, if anybody, may do with it what he likes.
        Remote::Foreign(sandbox) if recorded.id.is_some() && is_released(lease, sandbox) => {
            (Step::RemoveFinalizer, Duration::ZERO)
        }
        Remote::Foreign(sandbox)
            if recorded.id.is_some()
                && (policy(lease) != ReclaimPolicy::Delete || reuse_key(lease).is_some())
                && sandbox.label(sandbox_label::LEASE_UID).is_some() =>
        {
            (Step::RemoveFinalizer, Duration::ZERO)
        }
        // The name was somebody else's all along, so ours was never created. Labels may lag.
        Remote::Foreign(_) if recorded.id.is_none() && observed.since >= intervals.absence => {
            (Step::RemoveFinalizer, Duration::ZERO)
        }
        Remote::Absent | Remote::Foreign(_) if recorded.id.is_none() => {
            told.deleting("making sure that no sandbox appears under the lease's name");
            wait
        }
        Remote::Absent => wait,
        Remote::Foreign(sandbox) => {
            let (id, label) = (&sandbox.id, sandbox_label::LEASE_UID);
            let message = format!(
                "sandbox {id} no longer carries this lease's label {label}; it is left alone. Put the label back, or \
                 delete the sandbox in Daytona"
            );
            told.blocked(Reason::OwnershipConflict, &message);
            (Step::Rest, intervals.while_blocked())
        }
        Remote::Present(sandbox) => {
            told.sandbox(sandbox);
            // Its Secret may be gone before it is.
            if observed.escrow == Escrow::Missing && recorded.id.is_some() {
                return (Step::KeepKey, Duration::ZERO);
            }
            release_sandbox(sandbox, recorded, lease, observed, intervals, told)
        }
    }
}

fn release_sandbox(
    sandbox: &Sandbox,
    recorded: &SandboxStatus,
    lease: &SandboxLease,
    observed: &Observed,
    intervals: &Intervals,
    told: &mut Told,
) -> (Step, Duration) {
    let wait = pace(observed, intervals);
    let id = sandbox.id.clone();
    if recorded.id.as_ref() != Some(&id) {
        return (Step::Record, Duration::ZERO);
    }
    match &sandbox.state {
        State::Destroyed(_) if observed.since >= intervals.stuck => {
            told.blocked(Reason::SandboxError, &stuck(sandbox, true, intervals));
            return (Step::Rest, wait);
        }
        State::Destroyed(word) => {
            told.deleting(&format!("sandbox {id} is {word}; waiting until Daytona says that it is gone"));
            return (Step::Rest, wait);
        }
        State::Started => {}
        // A session lives only in a running sandbox, so nothing is started to prove that it is gone. An error is no proof
        // that nothing runs in it.
        State::Failed(_) if policy(lease) == ReclaimPolicy::Retain && recorded_session(lease) => {
            let message = format!(
                "its session may live still, so it is not given away: {}. Or set spec.reclaimPolicy to another",
                failure(sandbox, true)
            );
            told.blocked(Reason::SandboxError, &message);
            return (Step::Rest, wait);
        }
        // Frozen with all that runs in it, which would go on for whoever wakes it.
        State::Paused
            if policy(lease) != ReclaimPolicy::Delete && (recorded_session(lease) || observed.running > 0) =>
        {
            told.deleting(&format!("stopping sandbox {id}, which is paused with its session"));
            return (spared(sandbox).unwrap_or(Step::StopSandbox(id)), wait);
        }
        State::Stopped | State::Archived => {
            told.session_gone();
            return reclaim(sandbox, lease, observed, intervals, told);
        }
        // Nobody has seen the session's end: it is recorded until the sandbox is gone, for the policy may change.
        State::Paused | State::Failed(_) => return reclaim(sandbox, lease, observed, intervals, told),
        State::Changing(_) | State::Unheard(_) if policy(lease) == ReclaimPolicy::Delete => {
            return reclaim(sandbox, lease, observed, intervals, told);
        }
        State::Changing(word) | State::Unheard(word) => {
            told.deleting(&format!("waiting until sandbox {id} ({word}) has settled"));
            if observed.since >= intervals.stuck {
                told.blocked(Reason::SandboxError, &stuck(sandbox, true, intervals));
            }
            return (Step::Rest, wait);
        }
    }
    let waits = waits(lease, observed, intervals) && lease.status.as_ref().is_some_and(|s| s.place().is_some());
    if waits && observed.leaving < intervals.drain {
        // The commands are ended by their own controller, which needs a way into the sandbox.
        if !matches!(observed.session, Session::Serving) {
            return (Step::ResumeSession, wait);
        }
        told.deleting(&format!("ending {} running command(s)", observed.running));
        return (Step::Rest, intervals.busy);
    }
    if waits {
        // Whoever has it next would have what runs in it.
        let message = format!(
            "{} command(s) in sandbox {id} could not be ended yet, so it is not given away. If they cannot be, set \
             spec.reclaimPolicy to Stop",
            observed.running
        );
        told.blocked(Reason::SandboxError, &message);
        let resume = !matches!(observed.session, Session::Serving);
        return (if resume { Step::ResumeSession } else { Step::Rest }, wait);
    }
    let Some(session) = lease.status.as_ref().and_then(|s| s.session.as_ref()) else {
        return reclaim(sandbox, lease, observed, intervals, told);
    };
    match &observed.session {
        Session::Absent => {
            told.session_gone();
            (Step::Record, Duration::ZERO)
        }
        // Nobody answers for it, or it cannot be deleted. With its sandbox it ends for certain, where that is to end.
        Session::Unknown(_) if observed.leaving >= intervals.drain && policy(lease) != ReclaimPolicy::Retain => {
            reclaim(sandbox, lease, observed, intervals, told)
        }
        _ if observed.leaving >= 2 * intervals.drain && policy(lease) != ReclaimPolicy::Retain => {
            reclaim(sandbox, lease, observed, intervals, told)
        }
        Session::Unknown(error) => {
            told.blocked_by(error, &session.id);
            (Step::DeleteSession, wait)
        }
        Session::Serving | Session::NotAsked | Session::Listed | Session::Dead => {
            told.deleting(&format!("deleting session {}", session.id));
            (Step::DeleteSession, wait)
        }
    }
}

/// Whether the end of what runs is waited for: for a while, and for as long as it takes where the sandbox is given away.
pub(super) fn waits(lease: &SandboxLease, observed: &Observed, intervals: &Intervals) -> bool {
    observed.running > 0 && (observed.leaving < intervals.drain || policy(lease) == ReclaimPolicy::Retain)
}

fn recorded_session(lease: &SandboxLease) -> bool {
    lease.status.as_ref().is_some_and(|status| status.session.is_some())
}

/// What is to become of the sandbox. An adopted one is never deleted, whatever may be said.
fn policy(lease: &SandboxLease) -> ReclaimPolicy {
    match lease.spec.reclaim_policy {
        ReclaimPolicy::Delete if adopts(lease).is_some() => ReclaimPolicy::Retain,
        policy => policy,
    }
}

/// No session is left: the sandbox is brought into the state that is asked for.
fn reclaim(
    sandbox: &Sandbox,
    lease: &SandboxLease,
    observed: &Observed,
    intervals: &Intervals,
    told: &mut Told,
) -> (Step, Duration) {
    let (id, word) = (sandbox.id.clone(), sandbox.state.as_str());
    let wait = pace(observed, intervals);
    let policy = policy(lease);
    // What is adopted and left as it is, is.
    let untouched = adopts(lease).is_some() && policy == ReclaimPolicy::Retain;
    match (policy, &sandbox.state) {
        (ReclaimPolicy::Delete, _) => {
            told.deleting(&format!("deleting sandbox {id} ({word})"));
            (Step::DeleteSandbox(id), wait)
        }
        (ReclaimPolicy::Stop | ReclaimPolicy::Archive, State::Failed(_)) => {
            let other = if adopts(lease).is_some() { "Retain" } else { "Delete or Retain" };
            let message = format!(
                "a sandbox in error can be neither stopped nor archived: {}. Or set spec.reclaimPolicy to {other}",
                failure(sandbox, true)
            );
            told.blocked(Reason::SandboxError, &message);
            (Step::Rest, wait)
        }
        _ if spared(sandbox).is_some() && !untouched => {
            told.deleting(&format!("keeping Daytona from deleting sandbox {id} for its age"));
            (Step::Spare(id), wait)
        }
        // Only what is stopped can be archived.
        (ReclaimPolicy::Stop | ReclaimPolicy::Archive, State::Started | State::Paused) => {
            told.deleting(&format!("stopping sandbox {id}"));
            (Step::StopSandbox(id), wait)
        }
        (ReclaimPolicy::Archive, State::Stopped) => {
            told.deleting(&format!("archiving sandbox {id}"));
            (Step::ArchiveSandbox(id), wait)
        }
        _ => {
            told.deleting(&format!("leaving sandbox {id} ({word}) behind"));
            (Step::HandOver(id), wait)
        }
    }
}
