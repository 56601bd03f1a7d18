//! The service's clock: the real one, moved forward by whoever tests what happens later.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in the service's time, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(i64);

impl Moment {
    pub(super) fn millis(self) -> i64 {
        self.0
    }

    pub(super) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    /// Farther than any clock is moved.
    pub(super) const NEVER: Self = Self(i64::MAX);

    pub(super) fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }

    /// Seconds from now on until this moment, rounded up.
    pub(super) fn seconds_after(self, now: Self) -> i64 {
        (self.0 - now.0).max(0).saturating_add(999) / 1000
    }

    /// A date, or a date and time, as clients write them.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let day = || text.parse::<jiff::civil::Date>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
        let instant = text.parse::<jiff::Timestamp>().ok().or_else(|| day().map(|day| day.timestamp()))?;
        Some(Self(instant.as_millisecond()))
    }

    /// Whole or part minutes from `earlier` to this moment have reached `minutes`.
    pub(super) fn minutes_since(self, earlier: Self) -> i64 {
        (self.0 - earlier.0).div_euclid(60_000)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(timestamp) => write!(formatter, "{timestamp:.3}"),
            Err(_) => formatter.write_str("0001-01-01T00:00:00Z"),
        }
    }
}

/// Real time plus what was added to it.
#[derive(Debug, Default)]
pub(super) struct Clock {
    ahead: AtomicI64,
}

impl Clock {
    /// The only place that asks the machine for the time.
    #[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is given")]
    pub(super) fn now(&self) -> Moment {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment(millis(real).saturating_add(self.ahead.load(Ordering::SeqCst)))
    }

    pub(super) fn advance(&self, by: Duration) {
        self.ahead.fetch_add(millis(by), Ordering::SeqCst);
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advance_moves_now_and_nothing_else() {
        let clock = Clock::default();
        let before = clock.now();
        clock.advance(Duration::from_hours(1));
        assert_eq!(clock.now().minutes_since(before), 60);
    }

    #[test]
    fn a_moment_reads_as_rfc_3339() {
        assert_eq!(Moment(1_700_000_000_123).to_string(), "2023-11-14T22:13:20.123Z");
        for text in ["2023-11-14T22:13:20.123Z", "2023-11-14T23:13:20.123+01:00"] {
            assert_eq!(Moment::parse(text), Some(Moment(1_700_000_000_123)));
        }
        assert_eq!(Moment::parse("1970-01-02"), Some(Moment(86_400_000)));
        assert_eq!(Moment::parse("yesterday"), None);
    }
}
