//! The UIDs of the cluster and of the leases' namespaces, asked for once.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use kube::{
    ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use tokio::sync::OnceCell;

use super::context::Context;
use crate::{
    api::SandboxLease,
    cluster::{
        refs::{cluster_uid, namespace_uid},
        said,
    },
    plan::lease::Owner,
};

/// UIDs by namespace, each with the lease that it was asked for. A namespace outlives its leases: as long as that lease
/// is there, another of this name has the same namespace.
#[derive(Debug, Default)]
pub(super) struct Owners {
    cluster: OnceCell<String>,
    namespaces: Mutex<HashMap<String, (ObjectRef<SandboxLease>, String)>>,
}

impl Owners {
    fn known(&self, namespace: &str, leases: &Store<SandboxLease>) -> Option<String> {
        let namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let (witness, uid) = namespaces.get(namespace)?;
        let there = leases.get(witness)?;
        (there.uid() == witness.extra.uid).then(|| uid.clone())
    }

    fn note(&self, lease: &SandboxLease, uid: &str) {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        namespaces.insert(lease.namespace().unwrap_or_default(), (ObjectRef::from_obj(lease), uid.to_owned()));
    }
}

/// Whose the lease's sandbox is.
pub(super) async fn owner(lease: &SandboxLease, ctx: &Context) -> Result<Owner, String> {
    let (cluster, namespace) = tokio::try_join!(cluster(ctx), namespace(lease, ctx))?;
    Ok(Owner { cluster, namespace })
}

/// The cluster, as its administrator calls it or by the UID of the namespace that is as old as itself.
pub(super) async fn cluster(ctx: &Context) -> Result<String, String> {
    if let Some(id) = &ctx.config.cluster_id {
        return Ok(id.clone());
    }
    let uid = ctx.owners.cluster.get_or_try_init(async || {
        let uid = cluster_uid(&ctx.client).await.map_err(|error| said(&error))?;
        uid.ok_or_else(|| "the namespace kube-system is not there: name the cluster by --cluster-id".to_owned())
    });
    uid.await.cloned()
}

/// The UID of the lease's namespace.
pub(super) async fn namespace(lease: &SandboxLease, ctx: &Context) -> Result<String, String> {
    let name = lease.namespace().unwrap_or_default();
    if let Some(uid) = ctx.owners.known(&name, &ctx.leases) {
        return Ok(uid);
    }
    let uid = namespace_uid(&ctx.client, &name).await.map_err(|error| said(&error))?;
    let uid = uid.ok_or_else(|| format!("the lease's namespace {name} is not there"))?;
    ctx.owners.note(lease, &uid);
    Ok(uid)
}

/// The UID of a namespace of which perhaps no lease is left; `None`: there is no such namespace.
pub(super) async fn by_name(name: &str, ctx: &Context) -> kube::Result<Option<String>> {
    match ctx.owners.known(name, &ctx.leases) {
        Some(uid) => Ok(Some(uid)),
        None => namespace_uid(&ctx.client, name).await,
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::{reflector, watcher::Event};

    use super::*;

    fn lease(name: &str, uid: &str) -> SandboxLease {
        let mut lease = SandboxLease::new(name, serde_json::from_value(serde_json::json!({})).unwrap());
        (lease.metadata.uid, lease.metadata.namespace) = (Some(uid.to_owned()), Some("n".to_owned()));
        lease
    }

    #[test]
    fn a_namespace_is_known_as_long_as_the_lease_that_showed_it_is_there() {
        let (leases, mut writer) = reflector::store();
        let owners = Owners::default();
        let first = lease("a", "1");
        owners.note(&first, "old");
        assert_eq!(owners.known("n", &leases), None);
        writer.apply_watcher_event(&Event::Apply(first.clone()));
        writer.apply_watcher_event(&Event::Apply(lease("b", "2")));
        assert_eq!(owners.known("n", &leases).as_deref(), Some("old"));
        assert_eq!(owners.known("m", &leases), None);
        // The namespace may have been deleted and made again since.
        writer.apply_watcher_event(&Event::Apply(lease("a", "3")));
        assert_eq!(owners.known("n", &leases), None);
        owners.note(&lease("b", "2"), "new");
        assert_eq!(owners.known("n", &leases).as_deref(), Some("new"));
        writer.apply_watcher_event(&Event::Delete(lease("b", "2")));
        assert_eq!(owners.known("n", &leases), None);
    }
}
