//! How fast places in queues are told. They are for people to read, and each is a write: with a thousand queues that
//! move they would take the apiserver's time from the commands that run.

use std::sync::{Mutex, PoisonError};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The average time between two, all commands together.
const EVERY: SignedDuration = SignedDuration::from_millis(200);

/// For how long nothing has to be told so that as much may be told at once.
const SAVED: SignedDuration = SignedDuration::from_secs(10);

/// When the next one is due; it may be in the past.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Timestamp>);

impl Pace {
    /// Whether another place may be told now.
    pub(super) fn allows(&self, now: Timestamp) -> bool {
        let mut due = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock may be set back.
        if *due > now + SAVED {
            *due = now - SAVED;
        }
        let allowed = *due <= now;
        if allowed {
            *due = (*due).max(now - SAVED) + EVERY;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifty_at_once_and_five_a_second() {
        let (pace, start) = (Pace::default(), Timestamp::from_second(1_000_000).unwrap());
        let told = |after: i64| {
            let now = start + SignedDuration::from_secs(after);
            (0..1000).filter(|_| pace.allows(now)).count()
        };
        assert_eq!((told(0), told(0), told(1), told(3)), (51, 0, 5, 10));
        assert_eq!(told(1000), 51, "no more is saved up");
        assert_eq!(told(10), 51, "the clock was set back");
    }
}
