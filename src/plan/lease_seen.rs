//! What a decision about a lease is made from, and what it can be.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::{claim::Owner, escrow::Escrow, files::Files};
use crate::{
    api::{LeaseReason as Reason, SandboxLease, SessionStatus},
    daytona::{Class, Error, Sandbox, Setting},
};

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

impl Remote {
    /// Whether it is the key that keeps it from being known, so that another may show it.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        match self {
            Self::Unproven => true,
            Self::Unknown(error) => error.class == Class::Unauthorized,
            Self::NotAsked | Self::Absent | Self::FailedDeletion(_) | Self::Foreign(_) | Self::Present(_) => false,
        }
    }
}

/// What is known of the place that `status` names: what Daytona says about the session, or, in a lease without
/// sessions, whether the workspace was looked at.
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
    /// The copy of the key, with which the lease can be let go when the Secret is gone.
    pub escrow: Escrow,
    /// Where the lease lives; not asked of one that ends.
    pub owner: Option<Owner>,
    /// The sandbox.
    pub remote: Remote,
    /// The session that `status` names.
    pub session: Session,
    /// Its files.
    pub files: Files,
    /// The sandbox's name in Daytona: known before it exists, so that a lost reply loses nothing.
    pub name: String,
    /// The time.
    pub now: Timestamp,
    /// Commands that need the sandbox: running ones, and those whose turn it is.
    pub needed: bool,
    /// Commands that were sent and have no outcome yet.
    pub running: usize,
    /// Whether something runs, and all of it should have been ended by now.
    pub overdue: bool,
    /// For how long the sandbox has been seen like this. One look may be wrong.
    pub since: Duration,
    /// For how long the lease has been seen ending, or suspended with nothing running.
    pub leaving: Duration,
    /// Since when the sandbox was last kept awake on purpose, if it was.
    pub kept_awake: Option<Duration>,
    /// Whether Daytona was asked to recover the sandbox since it ran last.
    pub recovered: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// Put the finalizer on.
    AddFinalizer,
    /// Take the finalizer off.
    RemoveFinalizer,
    /// Take the finalizer off without proof, as a person asked, and tell what may be left behind.
    Abandon,
    /// Nothing but write the status, then decide again at once.
    Record,
    /// Keep a copy of the key.
    KeepKey,
    /// Create the sandbox of the recorded name.
    CreateSandbox,
    /// Make a sandbox that is nobody's this lease's own, by these labels, if it is still as it was seen.
    Claim(Box<Sandbox>, BTreeMap<String, serde_json::Value>),
    /// Start the sandbox.
    StartSandbox(String),
    /// Have Daytona recover the sandbox from its error.
    RecoverSandbox(String),
    /// Keep the sandbox from being stopped for idleness.
    KeepAwake(String),
    /// Stop the sandbox.
    StopSandbox(String),
    /// Move the stopped sandbox to slower storage.
    ArchiveSandbox(String),
    /// Set what the sandbox has otherwise than its lease says.
    Adjust(String, Vec<Setting>),
    /// Keep Daytona from deleting the sandbox for its age.
    Spare(String),
    /// Give the sandbox out of the lease's hands; from then on it is not ours.
    HandOver(String),
    /// Open the recorded session and prove that its shell lives; without sessions, make the recorded workspace.
    OpenSession,
    /// Bring the lease's files into the sandbox, and take away those that are wanted no more.
    SyncFiles,
    /// Look whether the recorded place, known to have served, is still whole; then it serves.
    ResumeSession,
    /// Delete the recorded session.
    DeleteSession,
    /// Delete the sandbox.
    DeleteSandbox(String),
}

/// How often things are looked at, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// While nothing is expected to change.
    pub idle: Duration,
    /// While Daytona is changing something.
    pub busy: Duration,
    /// For how long a sandbox must be seen absent before it counts as gone, when we did not delete it.
    pub absence: Duration,
    /// For how long a call may still take effect whose answer nobody heard. What comes later is an orphan.
    pub unheard: Duration,
    /// How long a lease that ends waits for its running commands to be ended.
    pub drain: Duration,
    /// After how long what Daytona is changing counts as stuck.
    pub stuck: Duration,
    /// Idleness after which Daytona stops a sandbox that is kept awake, when nobody does so any more.
    pub dead_man: Duration,
    /// The longest that a lease may last.
    pub longest_lease: Option<Duration>,
}

impl Intervals {
    /// While a lease cannot be let go until somebody does something.
    #[must_use]
    pub fn while_blocked(&self) -> Duration {
        self.idle.min(LONGEST_BLOCKED)
    }
}

const LONGEST_BLOCKED: Duration = Duration::from_secs(30);

/// Id of the session of a generation, or of the workspace where there is none. Never used for another lease or
/// another generation.
#[must_use]
pub fn session_id(lease: &SandboxLease, generation: i64) -> String {
    let kind = if lease.spec.use_sessions { "" } else { "w" };
    format!("{}-{kind}{generation}", lease.uid().unwrap_or_default())
}

/// Ids of the sessions that may live: the recorded one, and while that one has never served, the one before it. It is
/// deleted only when its successor is opened.
#[must_use]
pub fn session_ids(lease: &SandboxLease, recorded: &SessionStatus) -> Vec<String> {
    let before = recorded.generation - 1;
    let before = (before > 0 && recorded.creation_time.is_none()).then(|| session_id(lease, before));
    std::iter::once(recorded.id.clone()).chain(before).collect()
}

/// How soon to look again at what Daytona is changing: the longer it takes, the later.
pub(super) fn pace(observed: &Observed, intervals: &Intervals) -> Duration {
    intervals.busy.max((observed.since / 8).min(SLOWEST_PACE))
}

const SLOWEST_PACE: Duration = Duration::from_secs(30);

/// Those of the tests.
#[cfg(test)]
pub(super) const INTERVALS: Intervals = Intervals {
    idle: Duration::from_mins(1),
    busy: Duration::from_secs(1),
    absence: Duration::from_secs(10),
    unheard: Duration::from_secs(50),
    drain: Duration::from_mins(1),
    stuck: Duration::from_mins(30),
    dead_man: Duration::from_hours(2),
    longest_lease: None,
};
