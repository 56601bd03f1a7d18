//! Errors of a reconcile, and the one place that decides when it is tried again.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use kube::{Resource, runtime::controller::Action};

use crate::{
    daytona::{self, CREATE, Class, START},
    plan::backoff::{grow, spread},
};

/// Why a reconcile did not get to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The Kubernetes API.
    #[error("Kubernetes API: {0}")]
    Kube(#[from] kube::Error),
    /// Daytona.
    #[error("Daytona: {0}")]
    Daytona(#[from] daytona::Error),
    /// The runner in the sandbox did not do what it is there for.
    #[error("sandbox: {0}")]
    Sandbox(String),
    /// A lease's files could not be written; when to try again.
    #[error("sandbox: {0}")]
    Unfiled(String, Duration),
    /// A session cannot be used, for this reason.
    #[error("sandbox: {0}; another session is opened")]
    DeadSession(String),
    /// The reconcile took longer than it may.
    #[error("the reconcile took too long; it is tried again")]
    TimedOut,
    /// The search for secret values in an output did not come to its end; nothing of the output is shown.
    #[error("an output could not be searched for secrets ({0}); it is asked for again")]
    Search(#[from] tokio::task::JoinError),
}

impl Error {
    /// The object has changed since the decision: look again, nothing is wrong.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if status.is_conflict())
    }

    /// `first`: what ends goes before what begins.
    fn requeue(&self, failures: u32, seed: u64, first: bool) -> Duration {
        let grow = |first, cap| grow(Duration::from_secs(first), Duration::from_secs(cap), failures, seed);
        match self {
            Self::Kube(kube::Error::Api(status)) if status.is_conflict() => Duration::from_millis(200),
            Self::Daytona(error) => match error.class {
                Class::Throttled(length) if first => length + spread(Duration::from_millis(500), seed),
                Class::Throttled(length) => length + Duration::from_millis(500) + grow(1, 5),
                // All are asked for a look when it answers again.
                Class::NotMade => grow(30, 60),
                Class::Unauthorized => grow(30, 600),
                Class::Refused if [CREATE, START].contains(&error.operation) => grow(30, 600),
                Class::Gone | Class::Conflict | Class::NotYet => grow(1, 15),
                Class::Refused | Class::Unavailable | Class::Unclear => grow(1, 30),
            },
            Self::Unfiled(_, wait) => *wait,
            Self::Kube(_) | Self::Sandbox(_) | Self::DeadSession(_) | Self::TimedOut | Self::Search(_) => grow(1, 30),
        }
    }
}

/// Failures in a row by object UID, and under which generation of its spec.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<HashMap<String, (Option<i64>, u32)>>);

impl Failures {
    /// When to try again after this error, after `cap` at the latest; `first`: whether what ends goes before what begins.
    pub(super) fn requeue<K: Resource>(&self, object: &K, cap: Duration, first: bool, error: &Error) -> Action {
        let (uid, generation) = (object.meta().uid.clone().unwrap_or_default(), object.meta().generation);
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (under, count) = failures.entry(uid.clone()).or_default();
        // A spec that was changed may be one that works.
        if *under != generation {
            (*under, *count) = (generation, 0);
        }
        let mut seed = DefaultHasher::new();
        uid.hash(&mut seed);
        let wait = error.requeue(*count, seed.finish(), first).min(cap);
        if !error.is_conflict() {
            *count += 1;
        }
        Action::requeue(wait)
    }

    pub(super) fn reset(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::SandboxLease;

    const CAP: Duration = Duration::from_secs(30);

    fn lease(generation: i64) -> SandboxLease {
        let mut lease = SandboxLease::new("l", serde_json::from_value(serde_json::json!({})).unwrap());
        (lease.metadata.uid, lease.metadata.generation) = (Some("u".to_owned()), Some(generation));
        lease
    }

    fn failed(class: Class) -> Error {
        let error = daytona::Error { operation: "look", class, status: None, message: String::new() };
        Error::Daytona(error)
    }

    fn wait(failures: &Failures, lease: &SandboxLease, first: bool, class: Class) -> Duration {
        let action = failures.requeue(lease, CAP, first, &failed(class));
        // What kube shows of it: there is no getter.
        let text = format!("{action:?}");
        let shown = text.split_once("Some(").unwrap().1.split_once(')').unwrap().0;
        let shown = shown.strip_suffix("ms").map_or_else(
            || shown.trim_end_matches('s').parse::<f64>().unwrap(),
            |ms| ms.parse::<f64>().unwrap() / 1000.0,
        );
        Duration::from_secs_f64(shown)
    }

    /// Case 82: what goes is never long in a back-off.
    #[test]
    fn waits_grow_to_their_cap_and_begin_anew_with_another_spec() {
        for class in [Class::Unavailable, Class::Unclear, Class::Unauthorized, Class::Refused, Class::NotMade] {
            let failures = Failures::default();
            let waits: Vec<_> = (0..20).map(|_| wait(&failures, &lease(1), true, class)).collect();
            assert!(waits.iter().all(|wait| *wait <= CAP), "{class:?}: {waits:?}");
            assert!(waits[19] >= CAP / 2, "{class:?}: {waits:?}");
            // Unauthorized begins at the cap; all others begin well below it again.
            let anew = wait(&failures, &lease(2), true, class);
            assert!(anew < CAP / 2 || matches!(class, Class::Unauthorized | Class::NotMade), "{class:?}: {anew:?}");
        }
        let failures = Failures::default();
        for _ in 0..20 {
            wait(&failures, &lease(1), false, Class::Unclear);
        }
        assert!(wait(&failures, &lease(2), false, Class::Unclear) < Duration::from_secs(3), "case 39");
    }

    /// Case 72: after a pause what ends is tried before what begins.
    #[test]
    fn after_a_pause_what_ends_goes_first() {
        let pause = Class::Throttled(Duration::from_secs(7));
        let (first, then) = (Failures::default(), Failures::default());
        let (ends, begins) = (wait(&first, &lease(1), true, pause), wait(&then, &lease(1), false, pause));
        assert!(ends >= Duration::from_secs(7) && ends < begins, "{ends:?} {begins:?}");
    }
}
