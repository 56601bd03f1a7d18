//! One lease: what to do next. A deletion is not another function but another desired state.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::{
    api::{LEASE_FINALIZER, LeaseReason as Reason, SandboxLease, SandboxLeaseStatus, sandbox_label},
    daytona::{Class, Error, Sandbox, State},
};

pub use super::lease_status::{Told, refused, status};

/// Whether the lease's key can be used.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// It can.
    Usable {
        /// API URL that it is used at.
        api_url: String,
        /// Fingerprint of the key.
        fingerprint: String,
    },
    /// It cannot, for this reason.
    Missing(Reason, String),
    /// The Kubernetes API did not tell.
    Unknown(String),
}

/// What Daytona says about the lease's sandbox.
#[derive(Clone, Debug)]
pub enum Remote {
    /// Nothing was asked, for want of a key.
    NotAsked,
    /// It cannot be known now.
    Unknown(Error),
    /// There is none, by id or, while no id is known, by name.
    Absent {
        /// For how long that has been seen.
        since: Duration,
    },
    /// There is none under this key, but this key has not shown yet that it belongs to the sandbox's organisation.
    Unproven,
    /// By id there is none, but the list still shows it, failed: its deletion did not work.
    FailedDeletion(Sandbox),
    /// It is there.
    Present(Sandbox),
}

/// What Daytona says about the lease's session.
#[derive(Clone, Debug)]
pub enum Session {
    /// It takes commands; looked at since the controller started, and nobody has complained since.
    Serving,
    /// Nothing was asked.
    NotAsked,
    /// It cannot be known now.
    Unknown(Error),
    /// There is none of that id.
    Absent,
    /// It is there; whether its shell lives is another question.
    Listed,
    /// It is there, but does not do what it is told.
    Dead,
}

/// What is known when a decision is made.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The key.
    pub credentials: Credentials,
    /// The sandbox.
    pub remote: Remote,
    /// The session that `status` names.
    pub session: Session,
    /// Commands that need the sandbox: running ones, and those whose turn it is.
    pub needed: bool,
    /// Commands that were sent and have no outcome yet.
    pub running: usize,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// Put the finalizer on.
    AddFinalizer,
    /// Take the finalizer off.
    RemoveFinalizer,
    /// Nothing but write the status, then decide again at once.
    Record,
    /// Create the sandbox of the recorded name.
    CreateSandbox,
    /// Start the sandbox.
    StartSandbox(String),
    /// Open the recorded session and prove that its shell lives.
    OpenSession,
    /// Look whether the recorded session, known to have lived, is still there; then it serves.
    ResumeSession,
    /// Delete the recorded session.
    DeleteSession,
    /// Delete the sandbox.
    DeleteSandbox(String),
}

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

/// How often things are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// While nothing is expected to change.
    pub idle: Duration,
    /// While Daytona is changing something.
    pub busy: Duration,
    /// For how long a sandbox must be seen absent before it counts as gone, when we did not delete it.
    pub absence: Duration,
    /// How long a deleted lease waits for its running commands to be ended.
    pub drain: Duration,
}

/// The name of a lease's sandbox in Daytona: known before it exists, so that a lost reply loses nothing.
#[must_use]
pub fn sandbox_name(lease: &SandboxLease) -> String {
    format!("sblease-{}", lease.uid().unwrap_or_default())
}

/// Whether a sandbox is this lease's own.
#[must_use]
pub fn is_ours(lease: &SandboxLease, sandbox: &Sandbox) -> bool {
    lease.uid().is_some_and(|uid| sandbox.label(sandbox_label::LEASE_UID) == Some(uid.as_str()))
}

/// The session's id of a generation. Never used for another lease or another generation.
#[must_use]
pub fn session_id(lease: &SandboxLease, generation: i64) -> String {
    format!("{}-{generation}", lease.uid().unwrap_or_default())
}

/// Decides what to do next about a lease.
#[must_use]
pub fn decide(lease: &SandboxLease, observed: &Observed, intervals: &Intervals, now: Timestamp) -> Plan {
    let ours = lease.finalizers().iter().any(|f| f == LEASE_FINALIZER);
    let mut told = Told::new(lease, observed);
    let plan = |step, told, again| Plan { step, told, again };
    match (lease.metadata.deletion_timestamp.is_some(), ours) {
        (true, false) => return plan(Step::Rest, told, intervals.idle),
        (false, false) => return plan(Step::AddFinalizer, told, Duration::ZERO),
        _ => {}
    }
    let (step, again) = if lease.metadata.deletion_timestamp.is_some() {
        teardown(lease, observed, intervals, now, &mut told)
    } else {
        keep(lease, observed, intervals, &mut told)
    };
    plan(step, told, again)
}

fn recorded(lease: &SandboxLease) -> SandboxLeaseStatus {
    lease.status.clone().unwrap_or_default()
}

/// The lease is wanted.
fn keep(lease: &SandboxLease, observed: &Observed, intervals: &Intervals, told: &mut Told) -> (Step, Duration) {
    let status = recorded(lease);
    let id = status.sandbox.as_ref().and_then(|s| s.id.clone());
    if let Credentials::Missing(reason, message) = &observed.credentials {
        told.credentials(*reason, message);
        return (Step::Rest, intervals.idle);
    }
    match &observed.remote {
        Remote::NotAsked => {
            if let Credentials::Unknown(message) = &observed.credentials {
                told.waiting(Reason::ApiUnreachable, &format!("the Kubernetes API did not tell the key: {message}"));
            }
            (Step::Rest, intervals.busy)
        }
        Remote::Unknown(error) => {
            told.error(error);
            (Step::Rest, intervals.busy)
        }
        Remote::Unproven => {
            told.credentials(Reason::CredentialMismatch, MISMATCH);
            (Step::Rest, intervals.idle)
        }
        Remote::FailedDeletion(sandbox) => {
            told.failed(Reason::SandboxError, &failure(sandbox));
            (Step::Rest, intervals.idle)
        }
        Remote::Absent { since } => match (&id, &status.sandbox) {
            (Some(id), _) if *since >= intervals.absence => {
                told.failed(
                    Reason::SandboxLost,
                    &format!("Daytona no longer knows sandbox {id}; its data is gone, so no other is made in its place: delete this lease and create another"),
                );
                (Step::Rest, intervals.idle)
            }
            // One answer may be wrong: say nothing until it has been seen for a while.
            (Some(_), _) => (Step::Rest, intervals.busy),
            (None, None) => {
                told.waiting(Reason::Provisioning, "about to create the sandbox");
                told.intend(lease, observed);
                (Step::Record, Duration::ZERO)
            }
            (None, Some(_)) => {
                told.retrying(lease, Reason::Provisioning, "creating the sandbox");
                (Step::CreateSandbox, Duration::ZERO)
            }
        },
        Remote::Present(sandbox) if !is_ours(lease, sandbox) => {
            told.failed(
                Reason::NameConflict,
                &format!(
                    "sandbox {} has the name {} but is not this lease's (its label {} differs); it is left alone",
                    sandbox.id,
                    sandbox.name,
                    sandbox_label::LEASE_UID
                ),
            );
            (Step::Rest, intervals.idle)
        }
        Remote::Present(sandbox) => {
            told.sandbox(sandbox);
            // The id is recorded before anything else is done with it.
            if id.as_deref() != Some(&sandbox.id) {
                told.waiting(Reason::Provisioning, "the sandbox was created");
                return (Step::Record, Duration::ZERO);
            }
            keep_sandbox(lease, sandbox, observed, intervals, told)
        }
    }
}

fn keep_sandbox(
    lease: &SandboxLease,
    sandbox: &Sandbox,
    observed: &Observed,
    intervals: &Intervals,
    told: &mut Told,
) -> (Step, Duration) {
    let status = recorded(lease);
    let word = sandbox.state.as_str();
    match &sandbox.state {
        State::Started => keep_session(lease, observed, intervals, told),
        State::Stopped | State::Archived | State::Paused if observed.needed => {
            let reason = if observed.running > 0 { Reason::SandboxStopped } else { Reason::Restoring };
            told.waiting(reason, &format!("the sandbox is {word}; starting it for a command"));
            (Step::StartSandbox(sandbox.id.clone()), intervals.busy)
        }
        State::Stopped | State::Archived | State::Paused => {
            told.ready(Reason::Asleep, &format!("the sandbox is {word}; the next command wakes it"));
            (Step::Rest, intervals.idle)
        }
        State::Changing(_) => {
            let reason = if status.session.is_some() { Reason::Restoring } else { Reason::Provisioning };
            told.waiting(reason, &format!("the sandbox is {word}"));
            (Step::Rest, intervals.busy)
        }
        State::Failed(_) => {
            told.failed(Reason::SandboxError, &failure(sandbox));
            (Step::Rest, intervals.idle)
        }
        State::Destroyed(_) => {
            told.failed(
                Reason::SandboxLost,
                "somebody deleted the sandbox; its data is gone, so no other is made in its place: delete this lease and create another",
            );
            (Step::Rest, intervals.idle)
        }
        State::Unheard(_) => {
            told.waiting(
                Reason::SandboxStateUnknown,
                &format!("the sandbox is in a state that this version does not know: {word:?}"),
            );
            (Step::Rest, intervals.busy)
        }
    }
}

fn keep_session(lease: &SandboxLease, observed: &Observed, intervals: &Intervals, told: &mut Told) -> (Step, Duration) {
    let session = recorded(lease).session;
    let generation = session.as_ref().map_or(1, |s| s.generation);
    let lived = session.as_ref().is_some_and(|s| s.creation_time.is_some());
    let renew = |told: &mut Told, message: &str| {
        told.session_lost(message);
        told.renew_session(lease, generation + 1);
        (Step::Record, Duration::ZERO)
    };
    match (&observed.session, lived) {
        _ if session.is_none() => {
            told.waiting(Reason::Provisioning, "opening the session");
            told.renew_session(lease, 1);
            (Step::Record, Duration::ZERO)
        }
        (Session::Serving, _) => {
            told.ready(Reason::Ready, "the sandbox runs and its session takes commands");
            (Step::Rest, intervals.idle)
        }
        (Session::Unknown(error), _) => {
            told.error(error);
            (Step::Rest, intervals.busy)
        }
        // An id that has lived is never used again: a deletion under way could hit the newcomer.
        (Session::Absent, true) => renew(told, "the session is gone; a new one is opened"),
        (Session::Dead, _) => renew(told, "the session's shell does not answer; a new one is opened"),
        (Session::Absent | Session::Listed | Session::NotAsked, false) => {
            told.waiting(Reason::Provisioning, "opening the session");
            (Step::OpenSession, Duration::ZERO)
        }
        (Session::Listed | Session::NotAsked, true) => (Step::ResumeSession, Duration::ZERO),
    }
}

/// The lease is to go. Each stage lets go of one thing, and only on proof.
fn teardown(
    lease: &SandboxLease,
    observed: &Observed,
    intervals: &Intervals,
    now: Timestamp,
    told: &mut Told,
) -> (Step, Duration) {
    let status = recorded(lease);
    told.deleting("releasing");
    // Nothing was ever intended, so nothing can be there.
    let Some(sandbox_status) = &status.sandbox else {
        return (Step::RemoveFinalizer, Duration::ZERO);
    };
    let name = sandbox_status.id.clone().unwrap_or_else(|| sandbox_status.name.clone());
    if let Credentials::Missing(reason, message) = &observed.credentials {
        told.blocked(*reason, &format!("cannot ask Daytona whether sandbox {name} is gone: {message}"));
        return (Step::Rest, intervals.idle);
    }
    match &observed.remote {
        Remote::NotAsked => {
            if let Credentials::Unknown(message) = &observed.credentials {
                told.blocked(Reason::ApiUnreachable, &format!("the Kubernetes API did not tell the key: {message}"));
            }
            (Step::Rest, intervals.busy)
        }
        Remote::Unknown(error) => {
            told.blocked_by(error, &name);
            (Step::Rest, intervals.busy)
        }
        Remote::Unproven => {
            told.blocked(Reason::CredentialMismatch, MISMATCH);
            (Step::Rest, intervals.idle)
        }
        Remote::FailedDeletion(sandbox) => {
            told.blocked(Reason::SandboxError, &format!("Daytona could not delete the sandbox. {}", failure(sandbox)));
            (Step::DeleteSandbox(sandbox.id.clone()), intervals.busy)
        }
        // A create call whose reply was lost may still be under way: by name, one look is not enough.
        Remote::Absent { since } if sandbox_status.id.is_none() && *since < intervals.absence => {
            told.deleting("making sure that no sandbox appears under the lease's name");
            (Step::Rest, intervals.busy)
        }
        Remote::Absent { .. } => (Step::RemoveFinalizer, Duration::ZERO),
        Remote::Present(sandbox) if !is_ours(lease, sandbox) => {
            if sandbox_status.id.is_none() {
                // The name was somebody else's all along, so ours was never created.
                return (Step::RemoveFinalizer, Duration::ZERO);
            }
            told.blocked(
                Reason::NameConflict,
                &format!("sandbox {} no longer carries this lease's label {}; it is left alone. Put the label back, or delete the sandbox", sandbox.id, sandbox_label::LEASE_UID),
            );
            (Step::Rest, intervals.idle)
        }
        Remote::Present(sandbox) => {
            told.sandbox(sandbox);
            release(lease, sandbox, observed, intervals, now, told)
        }
    }
}

fn release(
    lease: &SandboxLease,
    sandbox: &Sandbox,
    observed: &Observed,
    intervals: &Intervals,
    now: Timestamp,
    told: &mut Told,
) -> (Step, Duration) {
    let status = recorded(lease);
    let id = sandbox.id.clone();
    if status.sandbox.as_ref().and_then(|s| s.id.as_ref()) != Some(&id) {
        return (Step::Record, Duration::ZERO);
    }
    // The commands that run are ended by their own controller, which needs a way into the sandbox.
    match &sandbox.state {
        State::Destroyed(word) => {
            told.deleting(&format!("sandbox {id} is {word}; waiting until Daytona says that it is gone"));
            return (Step::Rest, intervals.busy);
        }
        State::Started => {}
        // A session lives only in a running sandbox: here it is gone, and nothing is started to prove it.
        State::Stopped
        | State::Archived
        | State::Paused
        | State::Failed(_)
        | State::Changing(_)
        | State::Unheard(_) => {
            told.session_gone();
            told.deleting(&format!("deleting sandbox {id} ({})", sandbox.state.as_str()));
            return (Step::DeleteSandbox(id), intervals.busy);
        }
    }
    let since = lease.metadata.deletion_timestamp.as_ref().map(|t| now.duration_since(t.0)).unwrap_or_default();
    let drain = SignedDuration::try_from(intervals.drain).unwrap_or(SignedDuration::MAX);
    if observed.running > 0 && since < drain {
        if !matches!(observed.session, Session::Serving) {
            return (Step::ResumeSession, intervals.busy);
        }
        told.deleting(&format!("ending {} running command(s)", observed.running));
        return (Step::Rest, intervals.busy);
    }
    let Some(session) = &status.session else {
        told.deleting(&format!("deleting sandbox {id}"));
        return (Step::DeleteSandbox(id), intervals.busy);
    };
    match &observed.session {
        Session::Absent => {
            told.session_gone();
            (Step::Record, Duration::ZERO)
        }
        Session::Unknown(error) => {
            told.blocked_by(error, &session.id);
            (Step::DeleteSession, intervals.busy)
        }
        Session::Serving | Session::NotAsked | Session::Listed | Session::Dead => {
            told.deleting(&format!("deleting session {}", session.id));
            (Step::DeleteSession, Duration::ZERO)
        }
    }
}

const MISMATCH: &str = "the key does not show the sandbox and has not proved that it belongs to the same Daytona organisation, so its \"not found\" proves nothing: put a key of the organisation that owns the sandbox into the Secret";

fn failure(sandbox: &Sandbox) -> String {
    let why = sandbox.error_reason.as_deref().unwrap_or("no reason given");
    format!("sandbox {} is in state {}: {why}", sandbox.id, sandbox.state.as_str())
}

/// What a refused create call means. Daytona answers all of them with 400; only the text tells them apart.
#[must_use]
pub fn refusal(error: &Error) -> (Reason, String) {
    let text = error.message.to_lowercase();
    let reason = match error.class {
        Class::Unauthorized => Reason::Unauthorized,
        _ if text.contains("limit exceeded") || text.contains("quota") => Reason::QuotaExceeded,
        _ if text.contains("snapshot")
            && ["not found", "not active", "not available", "does not exist"].iter().any(|t| text.contains(t)) =>
        {
            Reason::SnapshotNotFound
        }
        _ => Reason::InvalidSpec,
    };
    (reason, error.to_string())
}

#[cfg(test)]
mod tests;
