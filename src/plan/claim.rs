//! Which sandbox a lease may have: the one that it makes, one that it is told to adopt, or one that an earlier lease
//! left behind.

use std::{collections::BTreeMap, fmt::Write as _};

use kube::ResourceExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::orphan::REUSED;
use crate::{
    api::{LeaseReason as Reason, SandboxLease, sandbox_label as label},
    daytona::{Sandbox, State},
};

/// The name of the sandbox of a lease that has it for itself.
#[must_use]
pub fn own_name(lease: &SandboxLease) -> String {
    name_of(&lease.uid().unwrap_or_default())
}

/// The same of a lease of which only the UID is known.
pub(super) fn name_of(lease_uid: &str) -> String {
    format!("sblease-{lease_uid}")
}

/// The name of the sandbox of all leases of a namespace with the same reuseKey. Two clusters, and two namespaces of the
/// same name one after the other, do not share it.
#[must_use]
pub fn reuse_name(cluster_uid: &str, namespace_uid: &str, key: &str) -> String {
    format!("{REUSED}{}", hex(&format!("{cluster_uid}\n{namespace_uid}\n{key}")))
}

/// The reuseKey of a lease.
#[must_use]
pub fn reuse_key(lease: &SandboxLease) -> Option<&str> {
    lease.spec.sandbox.as_ref()?.reuse_key.as_deref()
}

/// The id of the sandbox that a lease is to adopt.
#[must_use]
pub fn adopts(lease: &SandboxLease) -> Option<&str> {
    lease.spec.sandbox.as_ref()?.adopt.as_ref().map(|adopt| adopt.id.as_str())
}

/// Where a lease lives. With its UID it tells whose a sandbox is when the lease is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// UID of the cluster, or what its administrator calls it.
    pub cluster: String,
    /// UID of the namespace.
    pub namespace: String,
}

/// Labels by which a sandbox is judged when no lease speaks for it any more.
pub(super) fn marks(lease: &SandboxLease, owner: Option<&Owner>) -> BTreeMap<String, String> {
    let Some(Owner { cluster, namespace }) = owner else { return BTreeMap::new() };
    BTreeMap::from([
        (label::CLUSTER_ID.to_owned(), cluster.clone()),
        (label::NAMESPACE_UID.to_owned(), namespace.clone()),
        (label::RECLAIM_POLICY.to_owned(), format!("{:?}", lease.spec.reclaim_policy)),
    ])
}

/// Labels that make a sandbox this lease's own, on top of those that it has.
#[must_use]
pub(super) fn ownership(lease: &SandboxLease, owner: Option<&Owner>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (label::LEASE_UID.to_owned(), lease.uid().unwrap_or_default()),
        (label::LEASE_NAMESPACE.to_owned(), lease.namespace().unwrap_or_default()),
        (label::LEASE_NAME.to_owned(), lease.name_any()),
    ]);
    labels.extend(marks(lease, owner));
    if reuse_key(lease).is_some() {
        labels.insert(label::DIGEST.to_owned(), digest(lease));
    }
    labels
}

/// Digest of what cannot be changed of a sandbox once it is made.
fn digest(lease: &SandboxLease) -> String {
    let spec = lease.spec.sandbox.clone().unwrap_or_default();
    let target = lease.spec.connection.as_ref().and_then(|c| c.target.as_ref());
    let parts = json!([
        spec.snapshot,
        spec.image,
        spec.resources,
        spec.language,
        spec.user,
        spec.public.unwrap_or(false),
        spec.volumes,
        spec.network_block_all.unwrap_or(false),
        spec.network_allow_list,
        target
    ]);
    hex(&parts.to_string())
}

fn hex(text: &str) -> String {
    Sha256::digest(text).iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Whether a sandbox is this lease's own.
#[must_use]
pub fn is_ours(lease: &SandboxLease, sandbox: &Sandbox) -> bool {
    lease.uid().is_some_and(|uid| sandbox.label(label::LEASE_UID) == Some(uid.as_str()))
}

/// Whether a sandbox that was this lease's has been given out of its hands: by it, or even by who had it next.
#[must_use]
pub(super) fn is_released(lease: &SandboxLease, sandbox: &Sandbox) -> bool {
    !is_ours(lease, sandbox) && sandbox.label(label::RELEASED_BY).is_some()
}

/// The labels of a sandbox that this lease gives out of its hands.
#[must_use]
pub fn released(lease: &SandboxLease, sandbox: &Sandbox) -> BTreeMap<String, Value> {
    let mut labels = sandbox.labels.clone();
    labels.remove(label::LEASE_UID);
    labels.insert(label::RELEASED_BY.to_owned(), lease.uid().unwrap_or_default().into());
    labels
}

/// The labels that take over a sandbox which is not this lease's; or why it must be left alone.
pub(super) fn claim(
    lease: &SandboxLease,
    sandbox: &Sandbox,
    claimant: Option<&Owner>,
) -> Result<BTreeMap<String, Value>, (Reason, String)> {
    let id = &sandbox.id;
    let owner = sandbox.label(label::LEASE_UID).map(|_| {
        let of = |name| sandbox.label(name).unwrap_or("?");
        format!("lease {}/{}", of(label::LEASE_NAMESPACE), of(label::LEASE_NAME))
    });
    if lease.status.as_ref().and_then(|s| s.sandbox.as_ref()).is_some_and(|s| s.id.is_some()) {
        let whose = owner.unwrap_or_else(|| format!("nobody: the label {} was taken off it", label::LEASE_UID));
        let then = "it is left alone. Put this lease's label back, or delete this lease";
        return Err((Reason::OwnershipConflict, format!("sandbox {id} belongs to {whose}; {then}")));
    }
    let (reuse, adopt) = (reuse_key(lease), adopts(lease));
    let no = |reason, why: String| Err((reason, format!("sandbox {id} {why}")));
    match (&owner, reuse, adopt) {
        (Some(owner), _, Some(_)) => {
            let why = format!("is leased by {owner}, so it cannot be adopted; it is free when that lease has ended");
            return no(Reason::OwnershipConflict, why);
        }
        (Some(owner), Some(key), _) if sandbox.label(label::DIGEST).is_some() => {
            let why = format!(
                "of reuseKey {key:?} is leased by {owner}; it can be taken over when that lease has ended, with a \
                 reclaimPolicy other than Delete"
            );
            return no(Reason::ReuseConflict, why);
        }
        (None, Some(key), _) if sandbox.label(label::RELEASED_BY).is_some() => {
            if sandbox.label(label::DIGEST) != Some(digest(lease).as_str()) {
                let why = format!(
                    "of reuseKey {key:?} was made with another snapshot, image, resources, target or other immutable \
                     field of sandbox; delete it in Daytona, or create a lease with another reuseKey"
                );
                return no(Reason::ReuseConflict, why);
            }
        }
        (None, _, Some(_)) => {}
        _ => {
            let why = format!(
                "has the name {} but not this lease's label {}; it is left alone. Rename or delete it in Daytona, or \
                 delete this lease",
                sandbox.name,
                label::LEASE_UID
            );
            return no(Reason::NameConflict, why);
        }
    }
    let conflict = if adopt.is_some() { Reason::OwnershipConflict } else { Reason::ReuseConflict };
    let asked = lease.spec.connection.as_ref().and_then(|c| c.organization_id.as_deref());
    if let (Some(asked), Some(has)) = (asked, &sandbox.organization_id)
        && asked != has
    {
        return no(conflict, format!("belongs to organisation {has}, not to {asked}"));
    }
    if let State::Failed(word) | State::Destroyed(word) = &sandbox.state {
        return no(
            conflict,
            format!("is in state {word}, so it cannot be taken over; recover or delete it in Daytona"),
        );
    }
    let mut labels = sandbox.labels.clone();
    labels.remove(label::RELEASED_BY);
    labels.extend(ownership(lease, claimant).into_iter().map(|(name, value)| (name, value.into())));
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(sandbox: &Value) -> SandboxLease {
        let mut lease = SandboxLease::new("l", serde_json::from_value(json!({ "sandbox": sandbox })).unwrap());
        (lease.metadata.uid, lease.metadata.namespace) = (Some("u".to_owned()), Some("n".to_owned()));
        lease
    }

    fn sandbox(labels: &[(&str, &str)]) -> Sandbox {
        let mut sandbox: Sandbox =
            serde_json::from_value(json!({ "id": "s", "name": "x", "state": "stopped" })).unwrap();
        sandbox.labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        sandbox
    }

    fn refused(lease: &SandboxLease, sandbox: &Sandbox) -> Reason {
        claim(lease, sandbox, None).unwrap_err().0
    }

    #[test]
    fn what_is_nobodys_can_be_adopted_and_keeps_its_labels() {
        let adopts = lease(&json!({ "adopt": { "id": "s" } }));
        let labels = claim(&adopts, &sandbox(&[("team", "a"), (label::RELEASED_BY, "other")]), None).unwrap();
        let names: Vec<&str> = labels.keys().map(String::as_str).collect();
        assert_eq!(names, [label::LEASE_NAME, label::LEASE_NAMESPACE, label::LEASE_UID, "team"]);
        assert_eq!(refused(&adopts, &sandbox(&[(label::LEASE_UID, "other")])), Reason::OwnershipConflict);
        let failed = Sandbox { state: "error".to_owned().into(), ..sandbox(&[]) };
        assert_eq!(refused(&adopts, &failed), Reason::OwnershipConflict);
    }

    #[test]
    fn what_was_released_is_taken_over_if_it_is_what_is_asked_for() {
        let reuses = lease(&json!({ "reuseKey": "k", "image": "debian:12" }));
        let made = ownership(&reuses, None);
        let digest = made[label::DIGEST].as_str();
        let left = sandbox(&[(label::RELEASED_BY, "other"), (label::DIGEST, digest)]);
        let labels = claim(&reuses, &left, None).unwrap();
        assert_eq!((labels[label::LEASE_UID].as_str(), labels.get(label::RELEASED_BY)), (Some("u"), None));
        let other = lease(&json!({ "reuseKey": "k", "image": "debian:13" }));
        assert_eq!(refused(&other, &left), Reason::ReuseConflict);
        let more =
            lease(&json!({ "reuseKey": "k", "image": "debian:12", "labels": { "a": "b" }, "autoStopMinutes": 5 }));
        assert!(claim(&more, &left, None).is_ok(), "what can be changed makes no difference");
        let leased = sandbox(&[(label::LEASE_UID, "other"), (label::DIGEST, digest)]);
        assert_eq!(refused(&reuses, &leased), Reason::ReuseConflict);
        assert_eq!(refused(&reuses, &sandbox(&[])), Reason::NameConflict, "it was never ours");
        assert_eq!(refused(&lease(&json!({})), &left), Reason::NameConflict, "nobody asked for it");
    }

    #[test]
    fn a_name_is_for_one_key_of_one_namespace_of_one_cluster() {
        let names =
            [("c", "n", "k"), ("d", "n", "k"), ("c", "m", "k"), ("c", "n", "l")].map(|(c, n, k)| reuse_name(c, n, k));
        let all: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!((all.len(), names[0].len()), (4, 40));
    }

    #[test]
    fn what_is_released_names_who_had_it() {
        let lease = lease(&json!({}));
        let mine = sandbox(&[(label::LEASE_UID, "u"), ("team", "a")]);
        assert!(is_ours(&lease, &mine) && !is_released(&lease, &mine));
        let left = Sandbox { labels: released(&lease, &mine), ..mine };
        assert!(!is_ours(&lease, &left) && is_released(&lease, &left));
        assert_eq!(left.label("team"), Some("a"));
    }
}
