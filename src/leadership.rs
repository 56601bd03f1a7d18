//! Whether this process may act on the world: asked before each call that could change something.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// A claim to be the only one that acts, which ends by itself. Its copies are one.
#[derive(Clone, Debug)]
pub struct Leadership(Option<Arc<Mutex<Option<Instant>>>>);

/// Why a call was not made.
#[derive(Debug, thiserror::Error)]
#[error("this controller does not lead; the call was left to the one that does")]
pub struct NotLeading;

impl Leadership {
    /// Of a process that is alone: held for ever.
    #[must_use]
    pub fn of_one() -> Self {
        Self(None)
    }

    /// Of one among several: not held yet.
    #[must_use]
    pub fn of_several() -> Self {
        Self(Some(Arc::default()))
    }

    /// Whether this process may act now.
    ///
    /// # Errors
    /// When it does not lead, or has not been able to say for too long that it does.
    pub fn check(&self) -> Result<(), NotLeading> {
        let held = self.0.as_ref().is_none_or(|until| {
            let until = until.lock().unwrap_or_else(PoisonError::into_inner);
            until.is_some_and(|until| Instant::now() < until)
        });
        if held { Ok(()) } else { Err(NotLeading) }
    }

    /// Holds it until then.
    pub fn hold(&self, until: Instant) {
        self.set(Some(until));
    }

    /// Gives it up.
    pub fn give_up(&self) {
        self.set(None);
    }

    fn set(&self, until: Option<Instant>) {
        if let Some(held) = &self.0 {
            *held.lock().unwrap_or_else(PoisonError::into_inner) = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_claim_ends_by_itself_for_all_who_ask() {
        let claim = Leadership::of_several();
        let asker = claim.clone();
        assert!(asker.check().is_err());
        claim.hold(Instant::now() + Duration::from_mins(1));
        assert!(asker.check().is_ok());
        claim.hold(Instant::now());
        assert!(asker.check().is_err());
        claim.hold(Instant::now() + Duration::from_mins(1));
        claim.give_up();
        assert!(asker.check().is_err());
        let alone = Leadership::of_one();
        alone.give_up();
        assert!(alone.check().is_ok());
    }
}
