//! What is told of a lease's sandbox when something is wrong with it, and what to do next.

use super::{lease_seen::Intervals, outcome::duration_text};
use crate::{
    api::LeaseReason as Reason,
    daytona::{Class, Error, Sandbox},
};

pub(super) const MISMATCH: &str = "the key does not show the sandbox and has not proved that it belongs to the same \
     Daytona organisation, so its \"not found\" proves nothing: put a key of the organisation that owns the sandbox \
     into the Secret";

/// The sandbox is in an error; whether the lease is being let go anyway.
pub(super) fn failure(sandbox: &Sandbox, ending: bool) -> String {
    let why = sandbox.error_reason.as_deref().unwrap_or("no reason given");
    let (id, state) = (&sandbox.id, sandbox.state.as_str());
    format!("sandbox {id} is in state {state}: {why}. Recover or delete it in Daytona{}", or_delete_the_lease(ending))
}

/// Daytona has been changing the sandbox for too long; whether the lease is being let go anyway.
pub(super) fn stuck(sandbox: &Sandbox, ending: bool, intervals: &Intervals) -> String {
    let (id, word) = (&sandbox.id, sandbox.state.as_str());
    let long = duration_text(i64::try_from(intervals.stuck.as_millis()).unwrap_or(i64::MAX));
    let then = or_delete_the_lease(ending);
    format!("sandbox {id} has been {word} for more than {long}; look at it in Daytona{then}")
}

fn or_delete_the_lease(ending: bool) -> &'static str {
    if ending { "" } else { ", or delete this lease" }
}

/// What a refused create call means. Daytona answers all of them with 400; only the text tells them apart.
pub(super) fn refusal(error: &Error) -> (Reason, String) {
    let text = error.message.to_lowercase();
    let reason = match error.class {
        Class::Unauthorized => Reason::Unauthorized,
        _ if text.contains("limit exceeded") || text.contains("quota") => Reason::QuotaExceeded,
        _ if text.contains("snapshot")
            && ["not found", "not active", "not available", "does not exist"].iter().any(|t| text.contains(t)) =>
        {
            Reason::SnapshotNotFound
        }
        _ => Reason::InvalidSpec,
    };
    (reason, error.to_string())
}
