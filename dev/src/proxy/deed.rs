//! What is done at a call, other than by a rule.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;

use super::{Call, Phase};
use crate::faults::{Action, When};

/// Ends the caller; comes back when it is dead.
pub type Kill = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// Decides at each call, in the order of arrival, what is done at it.
pub type Meddler = Box<dyn FnMut(&Call) -> Option<Deed> + Send>;

/// What is done at a call.
pub enum Deed {
    /// The caller is killed.
    Kill(Phase, Kill),
    /// What a rule's action says, instead of the call or on its answer.
    Act(When, Action),
    /// The call takes so long, and is carried to its end although its caller has given up: it reaches the service late,
    /// or ([`When::After`]) at once and is answered late.
    Late(When, Duration),
    /// What is told on a watch is disturbed.
    Watch(Disturbance),
}

/// What is done to the events of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disturbance {
    /// Each is told so much later: the caller acts on an old state.
    Hold(Duration),
    /// From the first on all that come within so long are never told; then the watch ends as one that is too old, and the
    /// caller has to list again. What was between is never seen.
    Miss(Duration),
    /// After each, so many of the last are told once again, the oldest first: the caller sees the past, then the present.
    Replay(usize),
    /// From the first on nothing is told any more, and the connection stays.
    Freeze,
}

impl fmt::Debug for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(phase, _) => f.debug_tuple("Kill").field(phase).finish(),
            Self::Act(when, action) => f.debug_tuple("Act").field(when).field(action).finish(),
            Self::Late(when, by) => f.debug_tuple("Late").field(when).field(by).finish(),
            Self::Watch(disturbance) => f.debug_tuple("Watch").field(disturbance).finish(),
        }
    }
}
