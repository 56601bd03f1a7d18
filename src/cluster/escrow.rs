//! Copies of Daytona keys in the controller's own namespace. A namespace that is deleted takes its Secrets along within
//! seconds; what its leases hold in Daytona is let go with the copy.

use std::{collections::BTreeMap, fmt::Write as _};

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use super::{MANAGER, is_refusal};
use crate::api::{cut, escrow as names};

/// A key, and where it may be used. All of it stands in one immutable Secret, so that none of it can be paired with
/// something else.
#[derive(Clone, Debug)]
pub struct Deposit {
    /// Namespace of the leases that it is for.
    pub namespace: String,
    /// UID of that namespace.
    pub namespace_uid: String,
    /// Secret of that namespace from which the key was read.
    pub secret: String,
    /// Key in that Secret.
    pub secret_key: String,
    /// Base URL of the API that it is for.
    pub api_url: String,
    /// Organisation that is named beside it.
    pub organization: Option<String>,
    /// Fingerprint of the key.
    pub fingerprint: String,
    /// The Daytona API key.
    pub key: SecretString,
}

impl Deposit {
    /// The name of its Secret: one for each namespace, Secret, key, URL and organisation.
    #[must_use]
    pub fn name(&self) -> String {
        let Self { namespace_uid, secret, secret_key, api_url, organization, fingerprint, .. } = self;
        let parts = serde_json::json!([namespace_uid, secret, secret_key, api_url, organization, fingerprint]);
        Sha256::digest(parts.to_string()).iter().take(16).fold("sbescrow-".to_owned(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        })
    }

    fn data(&self) -> BTreeMap<String, ByteString> {
        let organization = self.organization.as_deref().map(|organization| (ORGANIZATION, organization));
        [
            (NAMESPACE, self.namespace.as_str()),
            (NAMESPACE_UID, &self.namespace_uid),
            (SECRET, &self.secret),
            (SECRET_KEY, &self.secret_key),
            (API_URL, &self.api_url),
            (API_KEY, self.key.expose_secret()),
        ]
        .into_iter()
        .chain(organization)
        .map(|(name, value)| (name.to_owned(), ByteString(value.as_bytes().to_vec())))
        .collect()
    }
}

/// Keys in the data of an escrow Secret.
const NAMESPACE: &str = "namespace";
const NAMESPACE_UID: &str = "namespace-uid";
const SECRET: &str = "secret";
const SECRET_KEY: &str = "secret-key";
const API_URL: &str = "api-url";
const API_KEY: &str = "api-key";
const ORGANIZATION: &str = "organization-id";

/// Why a copy could not be made.
#[derive(Debug, thiserror::Error)]
pub enum EscrowError {
    /// The API server does not take it; nothing changes until somebody changes something.
    #[error("{0}")]
    Refused(String),
    /// The API server did not answer, or is busy: try again.
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// A copy that is there.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What it holds.
    pub deposit: Deposit,
    uid: Option<String>,
    resource_version: Option<String>,
}

/// Makes the copy, unless it is there already.
///
/// # Errors
/// When it cannot be made, with what the API server said, but for the key.
pub async fn keep(client: &Client, own_namespace: &str, deposit: &Deposit) -> Result<(), EscrowError> {
    let name = deposit.name();
    let text = |text: &str| text.to_owned();
    let labels = BTreeMap::from([
        (text(names::NAMESPACE), deposit.namespace.clone()),
        (text(names::NAMESPACE_UID), deposit.namespace_uid.clone()),
        (text(names::FINGERPRINT), deposit.fingerprint.clone()),
        (text("app.kubernetes.io/managed-by"), text(MANAGER)),
    ]);
    let secret = Secret {
        metadata: ObjectMeta { name: Some(name.clone()), labels: Some(labels), ..ObjectMeta::default() },
        type_: Some(text(names::TYPE)),
        immutable: Some(true),
        data: Some(deposit.data()),
        ..Secret::default()
    };
    match api(client, own_namespace).create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let found = find(client, own_namespace, &deposit.namespace_uid, &deposit.fingerprint).await?;
            let same = |kept: &Kept| kept.deposit.name() == name && kept.deposit.data() == deposit.data();
            if found.iter().any(same) {
                return Ok(());
            }
            Err(EscrowError::Refused(format!("Secret {name:?} is there already and is no such copy; delete it")))
        }
        Err(kube::Error::Api(status)) if is_refusal(status.code) => {
            Err(EscrowError::Refused(cut(&masked(&status.message, deposit), 400)))
        }
        Err(error) => Err(error.into()),
    }
}

/// An admission webhook may repeat what it was shown: the key as it is, or as a Secret holds it.
fn masked(text: &str, deposit: &Deposit) -> String {
    let key = deposit.key.expose_secret();
    let held = serde_json::to_value(ByteString(key.as_bytes().to_vec())).ok();
    let held = held.as_ref().and_then(|held| held.as_str()).unwrap_or(key);
    text.replace(key, "***").replace(held, "***")
}

/// The copies of a key that are kept for a namespace.
///
/// # Errors
/// When the API server does not tell.
pub async fn find(
    client: &Client,
    own_namespace: &str,
    namespace_uid: &str,
    fingerprint: &str,
) -> kube::Result<Vec<Kept>> {
    let labels = format!("{}={namespace_uid},{}={fingerprint}", names::NAMESPACE_UID, names::FINGERPRINT);
    list(client, own_namespace, Some(labels)).await
}

/// All copies, or those that are kept for the namespaces of this name.
///
/// # Errors
/// When the API server does not tell.
pub async fn all(client: &Client, own_namespace: &str, namespace: Option<&str>) -> kube::Result<Vec<Kept>> {
    let labels = namespace.map(|namespace| format!("{}={namespace}", names::NAMESPACE));
    list(client, own_namespace, labels).await
}

async fn list(client: &Client, own_namespace: &str, labels: Option<String>) -> kube::Result<Vec<Kept>> {
    let of_type = ListParams::default().fields(&format!("type={}", names::TYPE));
    let wanted = ListParams { label_selector: labels, ..of_type };
    Ok(api(client, own_namespace).list(&wanted).await?.into_iter().filter_map(read).collect())
}

/// Removes a copy, if it is still the one that was seen.
///
/// # Errors
/// When the API server does not take the deletion.
pub async fn remove(client: &Client, own_namespace: &str, kept: &Kept) -> kube::Result<()> {
    let seen = Preconditions { uid: kept.uid.clone(), resource_version: kept.resource_version.clone() };
    let delete = DeleteParams { preconditions: Some(seen), ..DeleteParams::default() };
    match api(client, own_namespace).delete(&kept.deposit.name(), &delete).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

fn api(client: &Client, own_namespace: &str) -> Api<Secret> {
    Api::namespaced(client.clone(), own_namespace)
}

/// What a Secret holds; `None`: it is no copy of ours, or not as we make them.
fn read(secret: Secret) -> Option<Kept> {
    let label = |name: &str| secret.labels().get(name).cloned();
    let (uid, resource_version, name) = (secret.uid(), secret.resource_version(), secret.name_any());
    let (of, of_uid, fingerprint) =
        (label(names::NAMESPACE)?, label(names::NAMESPACE_UID)?, label(names::FINGERPRINT)?);
    if secret.type_.as_deref() != Some(names::TYPE) {
        return None;
    }
    let mut data = secret.data.unwrap_or_default();
    let mut text = |name: &str| String::from_utf8(data.remove(name)?.0).ok();
    let deposit = Deposit {
        namespace: text(NAMESPACE)?,
        namespace_uid: text(NAMESPACE_UID)?,
        secret: text(SECRET)?,
        secret_key: text(SECRET_KEY)?,
        api_url: text(API_URL)?,
        organization: text(ORGANIZATION),
        fingerprint,
        key: SecretString::from(text(API_KEY)?),
    };
    let told_apart = deposit.namespace == of && deposit.namespace_uid == of_uid && deposit.name() == name;
    told_apart.then_some(Kept { deposit, uid, resource_version })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deposit() -> Deposit {
        let text = |text: &str| text.to_owned();
        Deposit {
            namespace: text("n"),
            namespace_uid: text("u"),
            secret: text("daytona"),
            secret_key: text("api-key"),
            api_url: text("https://daytona.example/api"),
            organization: Some(text("o")),
            fingerprint: text("f"),
            key: SecretString::from("dtn_secret"),
        }
    }

    #[test]
    fn a_refusal_repeats_the_key_in_no_form() {
        // `dtn_secret`, and as a Secret holds it.
        let said = "denied: stringData dtn_secret, data ZHRuX3NlY3JldA==";
        assert_eq!(masked(said, &deposit()), "denied: stringData ***, data ***");
    }

    fn secret() -> Secret {
        let labels = [(names::NAMESPACE, "n"), (names::NAMESPACE_UID, "u"), (names::FINGERPRINT, "f")];
        Secret {
            metadata: ObjectMeta {
                name: Some(deposit().name()),
                labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            type_: Some(names::TYPE.to_owned()),
            data: Some(deposit().data()),
            ..Secret::default()
        }
    }

    #[test]
    fn a_copy_is_one_for_each_namespace_secret_key_url_and_organisation() {
        let changes: [fn(&mut Deposit); 7] = [
            |_| {},
            |d| d.namespace_uid = "v".to_owned(),
            |d| d.secret = "other".to_owned(),
            |d| d.secret_key = "other".to_owned(),
            |d| d.api_url = "https://other.example/api".to_owned(),
            |d| d.organization = None,
            |d| d.fingerprint = "g".to_owned(),
        ];
        let names: std::collections::BTreeSet<String> = changes
            .iter()
            .map(|change| {
                let mut deposit = deposit();
                change(&mut deposit);
                deposit.name()
            })
            .collect();
        assert_eq!(names.len(), changes.len());
        assert!(!format!("{:?}", deposit()).contains("dtn_secret"), "the key is shown");
    }

    #[test]
    fn only_what_is_as_we_make_it_is_read() {
        let kept = read(secret()).unwrap().deposit;
        assert_eq!((kept.data(), kept.name()), (deposit().data(), deposit().name()));
        let wrong: [fn(&mut Secret); 6] = [
            |s| s.type_ = Some("Opaque".to_owned()),
            |s| s.metadata.labels = None,
            |s| s.metadata.name = Some("other".to_owned()),
            |s| s.data = None,
            |s| {
                // The key of one namespace under the label of another.
                s.metadata.labels.as_mut().unwrap().insert(names::NAMESPACE_UID.to_owned(), "v".to_owned());
            },
            |s| {
                s.data.as_mut().unwrap().insert(API_URL.to_owned(), ByteString(b"https://evil.example".to_vec()));
            },
        ];
        for change in wrong {
            let mut secret = secret();
            change(&mut secret);
            assert!(read(secret).is_none());
        }
    }
}
