//! Whether anybody still speaks for a sandbox that carries our labels.

use std::collections::BTreeSet;

use super::claim::name_of;
use crate::{
    api::sandbox_label as label,
    daytona::{Sandbox, State},
};

/// The lease that a sandbox's labels name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Named {
    /// Its namespace.
    pub namespace: String,
    /// UID of that namespace.
    pub namespace_uid: String,
    /// Its name.
    pub lease: String,
    /// Its UID.
    pub lease_uid: String,
}

/// The lease to which a sandbox belongs, where that is ours to judge: a lease of this cluster, in the namespace that is
/// watched (or any), which has not left the sandbox behind on purpose. `None` also of a sandbox that is going anyway.
#[must_use]
pub fn named(sandbox: &Sandbox, cluster: &str, namespace: Option<&str>) -> Option<Named> {
    let text = |name| sandbox.label(name).filter(|text| !text.is_empty()).map(str::to_owned);
    if text(label::CLUSTER_ID)? != cluster || matches!(sandbox.state, State::Destroyed(_)) {
        return None;
    }
    // Whoever has it by now, or nobody: it was given out of our hands.
    if sandbox.labels.contains_key(label::RELEASED_BY) {
        return None;
    }
    let named = Named {
        namespace: text(label::LEASE_NAMESPACE)?,
        namespace_uid: text(label::NAMESPACE_UID)?,
        lease: text(label::LEASE_NAME)?,
        lease_uid: text(label::LEASE_UID)?,
    };
    namespace.is_none_or(|watched| watched == named.namespace).then_some(named)
}

/// Whether that lease is gone: neither what is watched nor what its namespace was just seen to hold has it. Where the
/// namespace could not be looked at, nothing is.
#[must_use]
pub fn is_orphan(named: &Named, watched: &BTreeSet<String>, listed: Option<&BTreeSet<String>>) -> bool {
    listed.is_some_and(|listed| !watched.contains(&named.lease_uid) && !listed.contains(&named.lease_uid))
}

/// Why an orphan is not for us to delete; `None`: it was made by us, for a lease that wanted it deleted.
#[must_use]
pub fn spared(sandbox: &Sandbox, named: &Named) -> Option<&'static str> {
    let reused = sandbox.label(label::DIGEST).is_some() && sandbox.name.starts_with(REUSED);
    if sandbox.label(label::RECLAIM_POLICY) != Some("Delete") {
        Some("its lease did not want it deleted")
    } else if sandbox.name != name_of(&named.lease_uid) && !reused {
        Some("it was not made by us, or was renamed: it has another name")
    } else {
        None
    }
}

/// Beginning of the names of sandboxes that several leases use one after the other.
pub(super) const REUSED: &str = "sbreuse-";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sandbox(changes: &[(&str, Option<&str>)]) -> Sandbox {
        let mut labels = json!({
            label::CLUSTER_ID: "c", label::NAMESPACE_UID: "u", label::LEASE_NAMESPACE: "n", label::LEASE_NAME: "l",
            label::LEASE_UID: "gone", label::RECLAIM_POLICY: "Delete",
        });
        for (name, value) in changes {
            labels[*name] = value.map_or(Value::Null, Into::into);
        }
        let json = json!({ "id": "s", "name": "sblease-gone", "state": "started", "labels": labels });
        serde_json::from_value(json).unwrap()
    }

    fn set(uids: &[&str]) -> BTreeSet<String> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    #[test]
    fn only_what_is_named_by_this_cluster_and_namespace_is_judged() {
        let ours = named(&sandbox(&[]), "c", None).unwrap();
        assert_eq!((ours.namespace.as_str(), ours.lease.as_str(), ours.lease_uid.as_str()), ("n", "l", "gone"));
        assert_eq!(named(&sandbox(&[]), "c", Some("n")), Some(ours));
        assert_eq!(named(&sandbox(&[]), "another", None), None);
        assert_eq!(named(&sandbox(&[]), "c", Some("another")), None);
        let judged =
            [label::CLUSTER_ID, label::NAMESPACE_UID, label::LEASE_NAMESPACE, label::LEASE_NAME, label::LEASE_UID];
        for lacks in judged {
            for value in [None, Some("")] {
                assert_eq!(named(&sandbox(&[(lacks, value)]), "c", None), None, "{lacks}");
            }
        }
        assert_eq!(named(&sandbox(&[(label::RELEASED_BY, Some("gone"))]), "c", None), None);
        let going = Sandbox { state: "destroying".to_owned().into(), ..sandbox(&[]) };
        assert_eq!(named(&going, "c", None), None);
    }

    #[test]
    fn no_lease_is_gone_on_the_word_of_one_list() {
        let named = named(&sandbox(&[]), "c", None).unwrap();
        let (with, without) = (set(&["gone", "a"]), set(&["a"]));
        assert!(is_orphan(&named, &without, Some(&without)));
        assert!(is_orphan(&named, &set(&[]), Some(&set(&[]))), "of a namespace that is gone nothing is listed");
        assert!(!is_orphan(&named, &with, Some(&without)), "the list lies");
        assert!(!is_orphan(&named, &without, Some(&with)), "the watch is behind");
        assert!(!is_orphan(&named, &without, None), "it could not be looked at");
    }

    #[test]
    fn what_somebody_may_want_is_spared() {
        let spared = |sandbox: &Sandbox| super::spared(sandbox, &named(sandbox, "c", None).unwrap()).is_some();
        assert!(!spared(&sandbox(&[])));
        for policy in [Some("Stop"), Some("Archive"), Some("Retain"), None] {
            assert!(spared(&sandbox(&[(label::RECLAIM_POLICY, policy)])));
        }
        let called = |name: &str, labels| Sandbox { name: name.to_owned(), ..sandbox(labels) };
        assert!(spared(&called("adopted", &[])) && spared(&called("sblease-another", &[])));
        assert!(spared(&called("sbreuse-x", &[])) && !spared(&called("sbreuse-x", &[(label::DIGEST, Some("d"))])));
    }
}
