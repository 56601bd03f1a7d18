//! What a decision about a command is made from, and what it can be.

use std::{sync::Arc, time::Duration};

use super::{
    logs::{Log, Stored},
    queue::Turn,
};
use crate::{
    api::{CommandDefaults, CommandReason as Reason, SandboxCommandStatus, SuspendPolicy},
    shell::{Answer, Outputs},
};

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
    /// It has expired, and only its object is left, or will be.
    Expired {
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
        /// What is to become of running commands, if it is suspended.
        suspended: Option<SuspendPolicy>,
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
    /// It runs, and takes commands.
    Up {
        /// Its id.
        id: String,
        /// Where they are sent.
        place: Place,
        /// Grows whenever the place was looked at anew.
        epoch: u64,
        /// Whether more may be fed into it: not while it is suspected of something.
        trusted: bool,
    },
}

/// How a command is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Fed into the lease's session.
    Session,
    /// As a process of its own.
    OneShot,
}

/// Where commands are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// How they are started there.
    pub launcher: Launcher,
    /// Id of the session, or of the workspace where there is none.
    pub id: String,
    /// Its generation.
    pub generation: i64,
}

/// What a command is to run with: its script, variables and standard input, with all that they are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// Nothing depends on them now.
    NotAsked,
    /// They are there.
    Ready {
        /// Which versions of the Secrets they are from; `None` where there are none.
        secrets: Option<String>,
    },
    /// An object that they are read from is not there (yet).
    Missing(Reason, String),
    /// Nothing can be run with them.
    Unfit(String),
}

/// What is known of an attempt that was sent, or may have been.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The last answer about it since the controller started.
    pub answer: Option<Answer<Arc<Outputs>>>,
    /// That answer is a kill's: nothing of the attempt is left.
    pub killed: bool,
    /// Its output is not shown, for nobody knows any more which secrets are in it.
    pub withheld: bool,
    /// What became of its logs, once they were stored.
    pub stored: Option<Stored>,
    /// How often in a row something of it was left after a kill, and which processes the last time.
    pub survived: (u32, Vec<u32>),
    /// How many answers about it in a row made no sense.
    pub garbled: u32,
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
    /// What stands between it and its start.
    pub turn: Turn,
    /// What it is to run with.
    pub inputs: Inputs,
    /// What is known of the attempt.
    pub sent: Sent,
    /// What the lease says for commands that say nothing of it.
    pub defaults: Option<CommandDefaults>,
    /// Name of a Persist command whose loss ends this one, if there is one.
    pub lost: Option<String>,
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
    /// Send the recorded attempt to the place of this epoch.
    Submit {
        /// The place's epoch.
        epoch: u64,
    },
    /// Have somebody wait for the attempt's end.
    Wait,
    /// Make sure that the attempt does not run.
    Kill {
        /// Seconds between TERM and KILL.
        grace: u64,
        /// Unless it has run for less than this, by the sandbox's own clock: 0, or the time that it may run.
        after: u64,
    },
    /// Store the logs of the ended command.
    Store(Vec<Log>),
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
