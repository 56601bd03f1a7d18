//! Puts a finalizer on and takes it off. kube's own helper takes it off as soon as a cleanup returns; ours goes only
//! when the decision says so.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;

/// Puts the finalizer on and returns the object as it is then; `None` when it is gone.
pub async fn add<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let mut all = object.finalizers().to_vec();
    all.push(finalizer.to_owned());
    write(api, object, &all).await
}

/// Takes the finalizer off; the object may be gone with it.
pub async fn remove<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let rest: Vec<String> = object.finalizers().iter().filter(|f| *f != finalizer).cloned().collect();
    write(api, object, &rest).await
}

/// A list is replaced as a whole, hence the resourceVersion: somebody else's finalizer must not get lost.
async fn write<K>(api: &Api<K>, object: &K, finalizers: &[String]) -> kube::Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let body = serde_json::json!({
        "metadata": { "resourceVersion": object.resource_version(), "uid": object.uid(), "finalizers": finalizers },
    });
    match api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(body)).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
