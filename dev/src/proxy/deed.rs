//! What is done at a call, other than by a rule.

use std::cmp::Ordering;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU64};
use std::time::Duration;

use futures::future::BoxFuture;

use super::{Call, Phase};
use crate::faults::{Action, When};

/// Ends the caller, whose end of the connection is at this address; comes back when it is dead.
pub type Kill = Box<dyn FnOnce(SocketAddr) -> BoxFuture<'static, ()> + Send>;

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
    /// What is told on a watch is disturbed, from an event on.
    Watch(FromEvent, Disturbance),
}

/// From which event on watches are disturbed. Clones count together: an event is counted on whichever watch it comes. What
/// is no change of an object, such as a bookmark, is none.
#[derive(Debug, Clone)]
pub struct FromEvent {
    nth: u64,
    seen: Arc<AtomicU64>,
}

impl FromEvent {
    /// From the n-th on, from 1.
    #[must_use]
    pub fn nth(nth: u64) -> Self {
        Self { nth, seen: Arc::default() }
    }

    /// Counts one that comes: whether it is before the chosen one, the chosen one, or after it.
    pub(super) fn comes(&self) -> Ordering {
        (self.seen.fetch_add(1, atomic::Ordering::Relaxed) + 1).cmp(&self.nth)
    }

    /// Whether it has come.
    pub(super) fn has_come(&self) -> bool {
        self.seen.load(atomic::Ordering::Relaxed) >= self.nth
    }
}

/// What is done to the events of a watch. What is told that is no event keeps its place among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disturbance {
    /// Each from the chosen one on is told so much later: the caller acts on an old state.
    Hold(Duration),
    /// The chosen one and all that come within so long after it are never told; then the watch ends as one that is too old,
    /// and the caller has to list again. What was between is never seen. Other watches go on as they are.
    Miss(Duration),
    /// After each from the chosen one on, so many of the last are told once again, the oldest first: the caller sees the
    /// past, then the present.
    Replay(usize),
    /// From the chosen one on nothing is told any more on its watch, and the connection stays. Other watches go on as they
    /// are.
    Freeze,
}

impl fmt::Debug for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(phase, _) => f.debug_tuple("Kill").field(phase).finish(),
            Self::Act(when, action) => f.debug_tuple("Act").field(when).field(action).finish(),
            Self::Late(when, by) => f.debug_tuple("Late").field(when).field(by).finish(),
            Self::Watch(from, disturbance) => f.debug_tuple("Watch").field(from).field(disturbance).finish(),
        }
    }
}
