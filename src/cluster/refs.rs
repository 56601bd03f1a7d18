//! Reads what leases refer to.

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, Client};

use crate::api::CONTROLLER_KEY_LABEL;

/// Why a key of a Secret cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is no such Secret.
    #[error("Secret {0:?} does not exist in this namespace; create it")]
    SecretNotFound(String),
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
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// The value of a Secret's key, as text.
pub async fn secret_key(client: &Client, namespace: &str, name: &str, key: &str) -> Result<String, KeyError> {
    let secret = Api::<Secret>::namespaced(client.clone(), namespace)
        .get_opt(name)
        .await?
        .ok_or_else(|| KeyError::SecretNotFound(name.to_owned()))?;
    let value = secret
        .data
        .and_then(|mut data| data.remove(key))
        .ok_or_else(|| KeyError::KeyNotFound { secret: name.to_owned(), key: key.to_owned() })?;
    String::from_utf8(value.0).map_err(|_| KeyError::NotText { secret: name.to_owned(), key: key.to_owned() })
}

/// Whether the cluster's administrator lets leases of this namespace use the controller's own key.
pub async fn controller_key_allowed(client: &Client, namespace: &str) -> kube::Result<bool> {
    let namespace = Api::<Namespace>::all(client.clone()).get_opt(namespace).await?;
    let label = namespace.and_then(|n| n.metadata.labels?.remove(CONTROLLER_KEY_LABEL));
    Ok(label.as_deref() == Some("allowed"))
}
