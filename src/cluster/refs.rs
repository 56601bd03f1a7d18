//! Reads what leases refer to.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{Api, Client, ResourceExt};

use super::said;
use crate::api::{CONTROLLER_KEY_LABEL, SourceKind};

/// Why a key of a Secret cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is no such Secret.
    #[error("Secret {secret:?} does not exist in this namespace; create it, with the API key in {key:?}")]
    SecretNotFound {
        /// The Secret.
        secret: String,
        /// The key that it should have.
        key: String,
    },
    /// The Secret lacks the key.
    #[error("Secret {secret:?} has no key {key:?}; add it")]
    KeyNotFound {
        /// The Secret.
        secret: String,
        /// The key.
        key: String,
    },
    /// The value is not text.
    #[error("key {key:?} of Secret {secret:?} is not text; put the API key there as it is")]
    NotText {
        /// The Secret.
        secret: String,
        /// The key.
        key: String,
    },
    /// The Kubernetes API did not answer.
    #[error("{}", said(.0))]
    Api(#[from] kube::Error),
}

/// The value of a Secret's key, as text.
pub async fn secret_key(client: &Client, namespace: &str, name: &str, key: &str) -> Result<String, KeyError> {
    let secret = Api::<Secret>::namespaced(client.clone(), namespace)
        .get_opt(name)
        .await?
        .ok_or_else(|| KeyError::SecretNotFound { secret: name.to_owned(), key: key.to_owned() })?;
    let value = secret
        .data
        .and_then(|mut data| data.remove(key))
        .ok_or_else(|| KeyError::KeyNotFound { secret: name.to_owned(), key: key.to_owned() })?;
    String::from_utf8(value.0).map_err(|_| KeyError::NotText { secret: name.to_owned(), key: key.to_owned() })
}

/// What a Secret or `ConfigMap` holds, and in which version.
pub struct Source {
    /// Its UID and resourceVersion.
    pub version: String,
    /// Its keys and values; of a `ConfigMap` both `data` and `binaryData`.
    pub data: BTreeMap<String, Vec<u8>>,
}

/// Reads a Secret or `ConfigMap`; `None` when there is none of that name.
pub async fn source(client: &Client, namespace: &str, kind: SourceKind, name: &str) -> kube::Result<Option<Source>> {
    let version = |uid: Option<String>, version: Option<String>| {
        format!("{}/{}", uid.unwrap_or_default(), version.unwrap_or_default())
    };
    Ok(match kind {
        SourceKind::Secret => {
            let found = Api::<Secret>::namespaced(client.clone(), namespace).get_opt(name).await?;
            found.map(|secret| Source {
                version: version(secret.uid(), secret.resource_version()),
                data: secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect(),
            })
        }
        SourceKind::ConfigMap => {
            let found = Api::<ConfigMap>::namespaced(client.clone(), namespace).get_opt(name).await?;
            found.map(|map| Source {
                version: version(map.uid(), map.resource_version()),
                data: {
                    let text = map.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes()));
                    let binary = map.binary_data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0));
                    text.chain(binary).collect()
                },
            })
        }
    })
}

/// The namespace whose UID stands for the cluster: it is as old as the cluster, and cannot be deleted.
const CLUSTER: &str = "kube-system";

/// UID of the cluster.
pub async fn cluster_uid(client: &Client) -> kube::Result<Option<String>> {
    namespace_uid(client, CLUSTER).await
}

/// UID of a namespace; `None` when there is no such namespace.
pub async fn namespace_uid(client: &Client, namespace: &str) -> kube::Result<Option<String>> {
    Ok(Api::<Namespace>::all(client.clone()).get_opt(namespace).await?.and_then(|namespace| namespace.uid()))
}

/// Whether the cluster's administrator lets leases of this namespace use the controller's own key.
pub async fn controller_key_allowed(client: &Client, namespace: &str) -> kube::Result<bool> {
    let namespace = Api::<Namespace>::all(client.clone()).get_opt(namespace).await?;
    let label = namespace.and_then(|n| n.metadata.labels?.remove(CONTROLLER_KEY_LABEL));
    Ok(label.as_deref() == Some("allowed"))
}
