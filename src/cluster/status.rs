//! Writes a status, and only when it changed.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};

use super::MANAGER;

/// Writes `new` in place of `old` by server-side apply, carrying the resourceVersion that was decided on: if the
/// object has changed since, the write fails with a conflict and the decision is made again.
///
/// Returns the object as it is now; `None` when it is gone.
pub async fn apply<K, S>(api: &Api<K>, object: &K, old: Option<&S>, new: &S) -> kube::Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    S: Serialize + PartialEq,
{
    if old == Some(new) {
        return Ok(Some(object.clone()));
    }
    let body = serde_json::json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": { "resourceVersion": object.resource_version(), "uid": object.uid() },
        "status": new,
    });
    match api.patch_status(&object.name_any(), &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
