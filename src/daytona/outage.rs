//! Whether the service behind a URL answers at all. Where it has not for some calls in a row, one call for all tries
//! whether it is back: a thousand leases that each ask on their own would be the next outage.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Failures in a row after which a service is taken to be down. One bad answer is no outage, and a sandbox that fails
/// alone is outnumbered by the calls about others.
const DOWN: u32 = 5;

/// How often it is tried then.
pub(super) const PROBE: Duration = Duration::from_secs(10);

/// After how long without a call that was refused nothing is tried any more. Leases ask each minute.
const FORGOTTEN: Duration = Duration::from_mins(10);

#[derive(Debug, Default)]
pub(super) struct Outage(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Failures in a row of the control plane and of toolboxes.
    control: u32,
    toolbox: u32,
    /// Why it is taken to be down: said once, so that what is told of it does not change with each try.
    cause: Option<String>,
    /// When a call was last not made for it.
    asked: Option<Instant>,
}

impl Outage {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There was an answer, whatever it said.
    pub(super) fn heard(&self, toolbox: bool) {
        let mut state = self.state();
        if toolbox { state.toolbox = 0 } else { state.control = 0 }
    }

    /// There was none that the service itself gave. Whether it is now taken to be down, and is to be tried.
    pub(super) fn unheard(&self, toolbox: bool, cause: &str) -> bool {
        let mut state = self.state();
        let failures = if toolbox { &mut state.toolbox } else { &mut state.control };
        *failures = failures.saturating_add(1);
        let down = state.control >= DOWN && state.cause.is_none();
        if down {
            (state.cause, state.asked) = (Some(cause.to_owned()), Some(Instant::now()));
        }
        down
    }

    /// Why a call is not made now. A toolbox is another service, which may answer although the control plane does not.
    pub(super) fn cause(&self, toolbox: bool) -> Option<String> {
        let mut state = self.state();
        if toolbox && state.toolbox < DOWN || state.cause.is_none() {
            return None;
        }
        state.asked = Some(Instant::now());
        state.cause.clone()
    }

    /// Whether nobody has wanted to call for long.
    pub(super) fn is_forgotten(&self) -> bool {
        self.state().asked.is_none_or(|asked| asked.elapsed() > FORGOTTEN)
    }

    /// It answers again.
    pub(super) fn over(&self) {
        *self.state() = State::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_some_failures_in_a_row_and_is_told_once() {
        let outage = Outage::default();
        for _ in 0..DOWN - 1 {
            assert!(!outage.unheard(false, "500"));
        }
        outage.heard(false);
        for _ in 0..DOWN - 1 {
            assert!(!outage.unheard(false, "500"));
        }
        assert_eq!(outage.cause(false), None);
        assert!(outage.unheard(false, "500"));
        assert!(!outage.unheard(false, "502"), "one tries for all");
        assert_eq!(outage.cause(false).as_deref(), Some("500"));
        // An answer to a call that was under way is not yet the end of it.
        outage.heard(false);
        assert!(outage.cause(false).is_some());
        outage.over();
        assert_eq!(outage.cause(false), None);
    }

    #[test]
    fn toolboxes_that_answer_are_used_and_never_an_outage_by_themselves() {
        let outage = Outage::default();
        for _ in 0..3 * DOWN {
            assert!(!outage.unheard(true, "502"));
        }
        assert_eq!(outage.cause(true), None);
        outage.heard(true);
        for _ in 0..DOWN {
            outage.unheard(false, "500");
        }
        assert!(outage.cause(false).is_some() && outage.cause(true).is_none());
        for _ in 0..DOWN {
            outage.unheard(true, "502");
        }
        assert!(outage.cause(true).is_some());
    }
}
