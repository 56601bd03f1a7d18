//! One budget per URL and key: how many calls may be under way, and until when Daytona wants none.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use reqwest::header::HeaderMap;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::outage::Outage;

/// Calls under way at once for one key. Held waits are counted apart, since they do nothing but wait.
const CALLS: usize = 64;
const HELD: usize = 4096;
/// Calls with a long text that one key may have made ready at once. Each is held in memory until it is sent.
const LONG: usize = 16;
/// Longest pause taken from a header: a mistake in a header must not silence a key for a day.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// Which of Daytona's limiters counts a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Limiter {
    Create,
    Lifecycle,
    Other,
    /// Toolbox calls: not limited by the control plane.
    Toolbox,
    /// Toolbox calls that are held open.
    Held,
}

impl Limiter {
    pub(super) fn is_toolbox(self) -> bool {
        matches!(self, Self::Toolbox | Self::Held)
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Create => "sandbox-create",
            Self::Lifecycle => "sandbox-lifecycle",
            Self::Other | Self::Toolbox | Self::Held => "authenticated",
        }
    }
}

#[derive(Debug)]
pub(super) struct Budget {
    calls: Semaphore,
    held: Semaphore,
    long: Semaphore,
    paused: Mutex<HashMap<Limiter, Instant>>,
    pub(super) outage: Outage,
}

impl Budget {
    pub(super) fn new() -> Self {
        let [calls, held, long] = [CALLS, HELD, LONG].map(Semaphore::new);
        Self { calls, held, long, paused: Mutex::default(), outage: Outage::default() }
    }

    /// A place for one call, or how long Daytona wants no such call.
    pub(super) async fn admit(&self, limiter: Limiter) -> Result<Option<SemaphorePermit<'_>>, Duration> {
        if let Some(left) = self.pause_left(limiter) {
            return Err(left);
        }
        let places = if limiter == Limiter::Held { &self.held } else { &self.calls };
        // The semaphore is never closed; without a permit the call would merely be uncounted.
        Ok(places.acquire().await.ok())
    }

    /// A place for one call with a long text, to be had before the text is made.
    pub(super) async fn admit_long(&self) -> Option<SemaphorePermit<'_>> {
        self.long.acquire().await.ok()
    }

    fn pause_left(&self, limiter: Limiter) -> Option<Duration> {
        let paused = self.paused.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let left = paused.get(&limiter)?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Takes note of a 429.
    pub(super) fn pause(&self, limiter: Limiter, length: Duration) {
        let until = Instant::now() + length.min(LONGEST_PAUSE);
        let mut paused = self.paused.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        paused.entry(limiter).and_modify(|old| *old = until.max(*old)).or_insert(until);
    }
}

/// How long to wait, from `Retry-After` (seconds or a date) or Daytona's form `Retry-After-<limiter>` (seconds).
/// A date is measured against the answer's own `Date`: the two clocks need not agree with ours.
pub(super) fn retry_after(headers: &HeaderMap, limiter: Limiter) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    let cap = |length: Duration| length.min(LONGEST_PAUSE);
    let seconds = |text: &str| text.parse::<u32>().ok().map(|s| Duration::from_secs(s.into()));
    text(&format!("retry-after-{}", limiter.suffix()))
        .and_then(seconds)
        .or_else(|| {
            let plain = text("retry-after")?;
            seconds(plain).or_else(|| {
                let until = httpdate::parse_http_date(plain).ok()?;
                let from = httpdate::parse_http_date(text("date")?).ok()?;
                until.duration_since(from).ok()
            })
        })
        .map(cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect()
    }

    #[test]
    fn both_forms_of_retry_after_are_understood() {
        let secs = |s| Some(Duration::from_secs(s));
        assert_eq!(retry_after(&headers(&[("retry-after", "7")]), Limiter::Other), secs(7));
        let own = headers(&[("Retry-After-sandbox-create", "30")]);
        assert_eq!(retry_after(&own, Limiter::Create), secs(30));
        assert_eq!(retry_after(&own, Limiter::Lifecycle), None);
        let date =
            headers(&[("date", "Sun, 29 Nov 2026 10:00:00 GMT"), ("retry-after", "Sun, 29 Nov 2026 10:00:20 GMT")]);
        assert_eq!(retry_after(&date, Limiter::Other), secs(20));
        assert_eq!(retry_after(&headers(&[("retry-after", "soon")]), Limiter::Other), None);
        assert_eq!(retry_after(&headers(&[("retry-after", "86400")]), Limiter::Other), secs(600));
    }

    #[tokio::test]
    async fn a_pause_holds_for_its_limiter_alone() {
        let budget = Budget::new();
        budget.pause(Limiter::Create, Duration::from_secs(30));
        assert!(budget.admit(Limiter::Create).await.is_err_and(|left| left > Duration::from_secs(25)));
        assert!(budget.admit(Limiter::Lifecycle).await.is_ok());
    }
}
