//! Stores the log of a command in an object of its own.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client, Resource, ResourceExt, api::PostParams};

use super::{MANAGER, is_refusal};
use crate::api::{COMMAND_UID_LABEL, LOG_BYTES, LogRef, SandboxCommand};

/// What became of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is there.
    Stored,
    /// The API server does not take it, for this reason; trying again changes nothing.
    Refused(String),
}

/// Stores a log, owned by its command. Doing it again is fine.
///
/// # Errors
/// When the API server did not answer, or is busy: try again.
pub async fn store(client: &Client, command: &SandboxCommand, at: &LogRef, content: Vec<u8>) -> kube::Result<Kept> {
    let namespace = command.namespace().unwrap_or_default();
    let metadata = metadata(command, at, content.len());
    if at.kind == "Secret" {
        let data = BTreeMap::from([(at.key.clone(), ByteString(content))]);
        let secret = Secret { metadata, data: Some(data), immutable: Some(true), ..Secret::default() };
        return create(&Api::namespaced(client.clone(), &namespace), &secret, |found| found.data == secret.data).await;
    }
    let (text, binary) = match String::from_utf8(content) {
        Ok(text) if is_plain(&text) => (Some(BTreeMap::from([(at.key.clone(), text)])), None),
        Ok(text) => (None, Some(BTreeMap::from([(at.key.clone(), ByteString(text.into_bytes()))]))),
        Err(other) => (None, Some(BTreeMap::from([(at.key.clone(), ByteString(other.into_bytes()))]))),
    };
    let map = ConfigMap { metadata, data: text, binary_data: binary, immutable: Some(true) };
    let same = |found: &ConfigMap| found.data == map.data && found.binary_data == map.binary_data;
    create(&Api::namespaced(client.clone(), &namespace), &map, same).await
}

/// Whether JSON does not blow it up: it writes a control character with six bytes, and a request may hold three
/// mebibytes.
fn is_plain(text: &str) -> bool {
    text.chars().filter(|c| c.is_control() && !matches!(c, '\n' | '\t' | '\r')).count() <= text.len() / 8
}

fn metadata(command: &SandboxCommand, at: &LogRef, bytes: usize) -> ObjectMeta {
    let owner = command.owner_ref(&()).map(|owner| OwnerReference { block_owner_deletion: None, ..owner });
    let labels =
        [(COMMAND_UID_LABEL, command.uid().unwrap_or_default()), ("app.kubernetes.io/managed-by", MANAGER.to_owned())];
    ObjectMeta {
        name: Some(at.name.clone()),
        labels: Some(labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        annotations: Some(BTreeMap::from([(LOG_BYTES.to_owned(), bytes.to_string())])),
        owner_references: owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

async fn create<K>(api: &Api<K>, object: &K, same: impl Fn(&K) -> bool) -> kube::Result<Kept>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    match api.create(&PostParams::default(), object).await {
        Ok(_) => Ok(Kept::Stored),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            // Stored before, when its command's outcome could not be written; or somebody else's.
            let found = api.get(&object.name_any()).await?;
            let ours = found.owner_references() == object.owner_references() && same(&found);
            let taken = || format!("{} {} is there already and is not this log", K::kind(&()), object.name_any());
            Ok(if ours { Kept::Stored } else { Kept::Refused(taken()) })
        }
        Err(kube::Error::Api(status)) if is_refusal(status.code) => Ok(Kept::Refused(status.message.clone())),
        Err(error) => Err(error),
    }
}
