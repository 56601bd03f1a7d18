//! How many calls an organisation may make in a minute, and what its callers are told of it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::clock::Moment;
use super::lock;
use super::model::RateLimits;
use super::routes;

const MINUTE: Duration = Duration::from_mins(1);
pub(super) const FAILED_AUTH: &str = "failed-auth";

/// The limiter that a call counts for: creations and changes of state have their own.
pub(super) fn limiter(method: &Method, path: &str) -> &'static str {
    let pattern = routes::name(path).pattern;
    let operation = pattern.strip_prefix("/api/sandbox/{sandbox}");
    match (method.as_str(), operation) {
        ("POST", None) if pattern == "/api/sandbox" => "sandbox-create",
        ("POST", Some("/fork")) => "sandbox-create",
        ("DELETE", Some("")) | ("POST", Some("/start" | "/stop" | "/pause" | "/resize" | "/recover" | "/archive")) => {
            "sandbox-lifecycle"
        }
        _ => "authenticated",
    }
}

impl RateLimits {
    pub(super) fn of(&self, limiter: &str) -> Option<u32> {
        match limiter {
            "sandbox-create" => self.sandbox_create,
            "sandbox-lifecycle" => self.sandbox_lifecycle,
            FAILED_AUTH => self.failed_auth,
            _ => self.authenticated,
        }
    }
}

/// The calls of one organisation that one limiter has counted.
#[derive(Debug)]
struct Window {
    ends: Moment,
    hits: u32,
    /// Whoever exceeds it waits for a whole minute from then on.
    blocked: bool,
}

/// What the limiters have counted.
#[derive(Debug, Default)]
pub(super) struct Limiters(Mutex<HashMap<(&'static str, String), Window>>);

/// What one call made of a limiter.
#[derive(Debug)]
pub(super) struct Verdict {
    limiter: &'static str,
    limit: u32,
    remaining: u32,
    seconds: i64,
    pub(super) refused: bool,
}

impl Limiters {
    /// Counts a call, and says whether it may go on.
    pub(super) fn count(&self, limiter: &'static str, of: &str, limit: u32, now: Moment) -> Verdict {
        let mut windows = lock(&self.0);
        let fresh = || Window { ends: now.after(MINUTE), hits: 0, blocked: false };
        let window = windows.entry((limiter, of.to_owned())).or_insert_with(fresh);
        if window.ends <= now {
            *window = fresh();
        }
        window.hits = window.hits.saturating_add(1);
        // A failed authentication is refused when it reaches its limit, all else when it is beyond.
        let refused = if limiter == FAILED_AUTH { window.hits >= limit } else { window.hits > limit };
        if refused && !window.blocked {
            *window = Window { ends: now.after(MINUTE), hits: window.hits, blocked: true };
        }
        let remaining = limit.saturating_sub(window.hits);
        Verdict { limiter, limit, remaining, seconds: window.ends.seconds_after(now), refused: window.blocked }
    }

    /// Whether a limiter refuses everything now, for how many seconds.
    pub(super) fn blocked(&self, limiter: &'static str, of: &str, limit: u32, now: Moment) -> Option<Verdict> {
        let windows = lock(&self.0);
        let window = windows.get(&(limiter, of.to_owned())).filter(|window| window.blocked && window.ends > now)?;
        Some(Verdict { limiter, limit, remaining: 0, seconds: window.ends.seconds_after(now), refused: true })
    }
}

impl Verdict {
    /// The plain `Retry-After` is that of failed authentication alone.
    pub(super) fn tell(&self, headers: &mut HeaderMap) {
        let mut tell = |name: String, value: String| {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(&value)) {
                headers.insert(name, value);
            }
        };
        let plain = self.limiter == FAILED_AUTH;
        if self.refused {
            let name = if plain { "Retry-After".to_owned() } else { format!("Retry-After-{}", self.limiter) };
            tell(name, self.seconds.to_string());
        }
        if !self.refused || plain {
            tell(format!("X-RateLimit-Limit-{}", self.limiter), self.limit.to_string());
            tell(format!("X-RateLimit-Remaining-{}", self.limiter), self.remaining.to_string());
            tell(format!("X-RateLimit-Reset-{}", self.limiter), self.seconds.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creations_and_changes_of_state_have_limiters_of_their_own() {
        for (method, path, expected) in [
            (Method::POST, "/api/sandbox", "sandbox-create"),
            (Method::POST, "/api/sandbox/x/fork", "sandbox-create"),
            (Method::DELETE, "/api/sandbox/x", "sandbox-lifecycle"),
            (Method::POST, "/api/sandbox/x/stop", "sandbox-lifecycle"),
            (Method::GET, "/api/sandbox", "authenticated"),
            (Method::GET, "/api/sandbox/x", "authenticated"),
            (Method::POST, "/api/sandbox/x/last-activity", "authenticated"),
            (Method::POST, "/api/sandbox/x/autostop/3", "authenticated"),
        ] {
            assert_eq!(limiter(&method, path), expected, "{method} {path}");
        }
    }
}
