//! When a lease expires.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::api::SandboxLease;

/// When the lease expires, if it does: its duration after the later of its creation and its renewal, and no later than
/// the longest that is allowed after its creation.
#[must_use]
pub fn expiry(lease: &SandboxLease, longest: Option<Duration>) -> Option<Timestamp> {
    let created = lease.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let from = created.max(lease.spec.renew_time.as_ref().map(|time| time.0))?;
    let after = |from: Timestamp, lasts: SignedDuration| from.checked_add(lasts).ok();
    let asked = lease.spec.lease_duration_seconds.and_then(|seconds| after(from, SignedDuration::from_secs(seconds)));
    let most = created.zip(longest.and_then(|longest| SignedDuration::try_from(longest).ok()));
    let most = most.and_then(|(created, longest)| after(created, longest));
    match (asked, most) {
        (Some(asked), Some(most)) => Some(asked.min(most)),
        (asked, most) => asked.or(most),
    }
}

/// Whether the lease is letting go, or has: it is being deleted, or was seen to have expired.
#[must_use]
pub fn is_ending(lease: &SandboxLease) -> bool {
    lease.metadata.deletion_timestamp.is_some() || is_expired(lease)
}

/// Whether the lease was seen to have expired. It stays so whatever becomes of its spec.
#[must_use]
pub fn is_expired(lease: &SandboxLease) -> bool {
    lease.status.as_ref().is_some_and(|status| status.expired_time.is_some())
}

/// Minutes, rounded up, from a lease's creation to its expiry: no limit of Daytona's own is longer.
#[must_use]
pub(super) fn whole_minutes(lease: &SandboxLease, longest: Option<Duration>) -> Option<i32> {
    let created = lease.metadata.creation_timestamp.as_ref()?.0;
    let seconds = expiry(lease, longest)?.duration_since(created).as_secs();
    Some(i32::try_from(seconds.saturating_add(59) / 60).unwrap_or(i32::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;

    fn lease(spec: Value) -> SandboxLease {
        let mut lease = SandboxLease::new("l", serde_json::from_value(spec).unwrap());
        lease.metadata.creation_timestamp = Some(Time("2026-01-31T12:00:00Z".parse().unwrap()));
        lease
    }

    fn at(spec: Value, longest: Option<u64>) -> Option<String> {
        expiry(&lease(spec), longest.map(Duration::from_secs)).map(|time| time.to_string())
    }

    /// Fields: leaseDurationSeconds, renewTime
    #[test]
    fn a_lease_expires_its_duration_after_the_later_of_creation_and_renewal() {
        assert_eq!(at(json!({}), None), None);
        let hour = json!({ "leaseDurationSeconds": 3600 });
        assert_eq!(at(hour.clone(), None).as_deref(), Some("2026-01-31T13:00:00Z"));
        assert_eq!(at(hour.clone(), Some(60)).as_deref(), Some("2026-01-31T12:01:00Z"), "no longer than allowed");
        assert_eq!(at(json!({}), Some(60)).as_deref(), Some("2026-01-31T12:01:00Z"), "nor without a word of its own");
        assert_eq!(at(hour, Some(7200)).as_deref(), Some("2026-01-31T13:00:00Z"));
        let renewed = json!({ "leaseDurationSeconds": 60, "renewTime": "2026-01-31T12:30:00Z" });
        assert_eq!(at(renewed, None).as_deref(), Some("2026-01-31T12:31:00Z"));
        let before = json!({ "leaseDurationSeconds": 60, "renewTime": "2020-01-31T12:30:00Z" });
        assert_eq!(at(before, None).as_deref(), Some("2026-01-31T12:01:00Z"));
        let never = json!({ "leaseDurationSeconds": 315_360_000, "renewTime": "9999-01-01T00:00:00Z" });
        assert_eq!(at(never.clone(), None), None, "beyond what a clock can show");
        assert_eq!(at(never, Some(60)).as_deref(), Some("2026-01-31T12:01:00Z"), "no renewal goes beyond the limit");
    }

    #[test]
    fn daytonas_own_limits_are_counted_from_the_creation() {
        let renewed = lease(json!({ "leaseDurationSeconds": 61, "renewTime": "2026-01-31T12:30:00Z" }));
        assert_eq!(whole_minutes(&renewed, None), Some(32));
        assert_eq!(whole_minutes(&lease(json!({ "leaseDurationSeconds": 1 })), None), Some(1));
        assert_eq!(whole_minutes(&lease(json!({})), None), None);
    }
}
