//! One lease: what to do next. A deletion is not another function but another desired state.

use std::time::Duration;

use kube::ResourceExt;

use super::release::release;
use crate::{
    api::{LEASE_FINALIZER, LeaseReason as Reason, SandboxLease, SessionStatus, sandbox_label},
    daytona::{Class, Error, Sandbox, State},
};

pub use super::lease_status::{Told, is_failing, status};

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
    Absent,
    /// There is none under this key, but this key has not shown yet that it belongs to the sandbox's organisation.
    Unproven,
    /// By id there is none, but the list still shows it, failed: its deletion did not work.
    FailedDeletion(Sandbox),
    /// There is one that does not carry this lease's label.
    Foreign(Sandbox),
    /// It is there, and ours.
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
    /// For how long the sandbox has been seen like this. One look may be wrong.
    pub since: Duration,
    /// For how long the lease has been seen leaving.
    pub leaving: Duration,
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
pub fn decide(lease: &SandboxLease, observed: &Observed, intervals: &Intervals) -> Plan {
    let ours = lease.finalizers().iter().any(|f| f == LEASE_FINALIZER);
    let leaving = lease.metadata.deletion_timestamp.is_some();
    let mut told = Told::new(lease, observed);
    let (step, again) = match (leaving, ours) {
        (true, false) => (Step::Rest, intervals.idle),
        (false, false) => {
            told.waiting(Reason::Provisioning, "new; about to ask Daytona");
            (Step::AddFinalizer, Duration::ZERO)
        }
        (true, true) => release(lease, observed, intervals, &mut told),
        (false, true) => keep(lease, observed, intervals, &mut told),
    };
    // What the last try said stands until this one has an end: conditions must not flap with each try.
    if step != Step::Rest && is_failing(lease) {
        told.quiet();
    }
    Plan { step, told, again }
}

/// How soon to look again at what Daytona is changing: the longer it takes, the later.
pub(super) fn pace(observed: &Observed, intervals: &Intervals) -> Duration {
    intervals.busy.max((observed.since / 8).min(SLOWEST_PACE))
}

const SLOWEST_PACE: Duration = Duration::from_secs(30);

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
            told.sandbox(sandbox);
            // The id is recorded before anything else is done with it.
            if id.as_deref() != Some(&sandbox.id) {
                told.waiting(Reason::Provisioning, "the sandbox was created");
                return (Step::Record, Duration::ZERO);
            }
            keep_sandbox(sandbox, lease, observed, intervals, told)
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
    let session = lease.status.as_ref().and_then(|s| s.session.as_ref());
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
    let Some(session) = session else {
        told.waiting(Reason::Provisioning, "opening the session");
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
            told.ready(Reason::Ready, "the sandbox runs and its session takes commands");
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
            told.waiting(Reason::Provisioning, "opening the session");
            (Step::OpenSession, Duration::ZERO)
        }
    }
}

pub(super) const MISMATCH: &str = "the key does not show the sandbox and has not proved that it belongs to the same \
     Daytona organisation, so its \"not found\" proves nothing: put a key of the organisation that owns the sandbox \
     into the Secret";

const LOST: &str = "its data is gone, so no other is made in its place: delete this lease and create another";

pub(super) fn failure(sandbox: &Sandbox) -> String {
    let why = sandbox.error_reason.as_deref().unwrap_or("no reason given");
    let state = sandbox.state.as_str();
    format!("sandbox {} is in state {state}: {why}. Recover or delete it in Daytona, or delete this lease", sandbox.id)
}

fn conflict(sandbox: &Sandbox) -> String {
    let (id, name, label) = (&sandbox.id, &sandbox.name, sandbox_label::LEASE_UID);
    format!(
        "sandbox {id} has the name {name} but not this lease's label {label}; it is left alone. Rename or delete it in \
         Daytona, or delete this lease"
    )
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
