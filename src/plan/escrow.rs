//! When a copy of a lease's key has to be there, and until when.

use std::time::Duration;

use kube::ResourceExt;

use super::{
    expiry::is_ending,
    lease_seen::{Intervals, Observed, Step},
    lease_status::Told,
};
use crate::api::{LEASE_FINALIZER, LeaseReason as Reason, SandboxLease};

/// What is known of the copy of the key that a lease uses today.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Escrow {
    /// None is kept of this one.
    NotWanted,
    /// It is there.
    Kept,
    /// It is not there, as far as is known.
    Missing,
    /// It could not be made a moment ago, for this reason.
    Refused(String),
    /// Which one it would be is not known now, for this reason.
    Unknown(String),
}

/// A copy, as far as it matters who needs it.
#[derive(Clone, Copy, Debug)]
pub struct Copy<'a> {
    /// Secret that the key was read from.
    pub secret: &'a str,
    /// Where it is used.
    pub api_url: &'a str,
    /// Organisation that is named beside it.
    pub organization: Option<&'a str>,
    /// Fingerprint of the key.
    pub fingerprint: &'a str,
}

/// Whether a lease of the copy's namespace needs it: its sandbox was reached with this key last, or it is about to be made
/// with it.
#[must_use]
pub fn needs(lease: &SandboxLease, copy: &Copy) -> bool {
    if !lease.finalizers().iter().any(|f| f == LEASE_FINALIZER) {
        return false;
    }
    let asked = lease.spec.connection.as_ref();
    if asked.and_then(|c| c.organization_id.as_deref()) != copy.organization {
        return false;
    }
    if let Some(recorded) = lease.status.as_ref().and_then(|status| status.connection.as_ref()) {
        return recorded.api_url == copy.api_url && recorded.key_fingerprint == copy.fingerprint;
    }
    let secret = asked.and_then(|c| c.api_key_secret_ref.as_ref());
    !is_ending(lease) && secret.is_some_and(|secret| secret.name == copy.secret)
}

/// What comes before the sandbox is made or taken over: it must not depend on a key that may be lost tomorrow. `None`:
/// nothing does.
pub(super) fn before(observed: &Observed, intervals: &Intervals, told: &mut Told) -> Option<(Step, Duration)> {
    match &observed.escrow {
        Escrow::NotWanted | Escrow::Kept => None,
        Escrow::Missing => {
            told.waiting(Reason::Provisioning, "keeping a copy of the key, with which the sandbox can be let go");
            Some((Step::KeepKey, Duration::ZERO))
        }
        Escrow::Refused(why) => {
            told.failed(Reason::EscrowFailed, &refused(why));
            Some((Step::Rest, intervals.idle))
        }
        Escrow::Unknown(why) => {
            told.waiting(Reason::ApiUnreachable, &unanswered(why));
            Some((Step::Rest, intervals.while_blocked()))
        }
    }
}

/// What is told where the Kubernetes API did not say what has to be known.
pub(super) fn unanswered(why: &str) -> String {
    format!("the Kubernetes API did not tell what has to be known first: {why}")
}

/// What is told where no copy can be made.
#[must_use]
pub fn refused(why: &str) -> String {
    format!(
        "no copy of the key could be kept in the controller's own namespace, so that the sandbox could not be let go \
         if this namespace is deleted: {why}. The cluster's administrator can give the rights (the chart's \
         templates/own-namespace.yaml), or go without copies (credentialEscrow: Disabled, --credential-escrow)"
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
    use serde_json::json;

    use super::*;
    use crate::api::{ConnectionStatus, SandboxLeaseStatus};

    const COPY: Copy<'_> = Copy { secret: "daytona", api_url: "https://d/", organization: None, fingerprint: "k" };

    fn lease(recorded: Option<(&str, &str)>) -> SandboxLease {
        let spec = json!({ "connection": { "apiKeySecretRef": { "name": "daytona" } } });
        let mut lease = SandboxLease::new("l", serde_json::from_value(spec).unwrap());
        lease.metadata.finalizers = Some(vec![LEASE_FINALIZER.to_owned()]);
        let connection = recorded.map(|(url, key)| ConnectionStatus {
            api_url: url.to_owned(),
            organization_id: None,
            key_fingerprint: key.to_owned(),
        });
        lease.status = Some(SandboxLeaseStatus { connection, ..SandboxLeaseStatus::default() });
        lease
    }

    fn deleted(mut lease: SandboxLease) -> SandboxLease {
        lease.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        lease
    }

    #[test]
    fn a_copy_is_needed_as_long_as_a_sandbox_may_have_to_be_let_go_with_it() {
        let reached = lease(Some(("https://d/", "k")));
        assert!(needs(&reached, &COPY) && needs(&deleted(reached.clone()), &COPY));
        assert!(!needs(&lease(Some(("https://d/", "another"))), &COPY), "it was rotated");
        assert!(!needs(&lease(Some(("https://other/", "k"))), &COPY));
        assert!(!needs(&reached, &Copy { organization: Some("o"), ..COPY }));
        let mut released = reached;
        released.metadata.finalizers = None;
        assert!(!needs(&released, &COPY), "it was let go");
    }

    #[test]
    fn a_copy_is_needed_before_anything_is_recorded() {
        assert!(needs(&lease(None), &COPY));
        assert!(!needs(&lease(None), &Copy { secret: "another", ..COPY }));
        assert!(!needs(&deleted(lease(None)), &COPY), "nothing was made, and nothing will be");
    }
}
