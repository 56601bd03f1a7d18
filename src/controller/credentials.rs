//! Finds the key that a lease is to use, and the client for it.

use std::sync::Arc;

use kube::ResourceExt;

use super::{context::Context, escrow};
use crate::{
    api::{LeaseReason as Reason, SandboxLease},
    cluster::{
        refs::{KeyError, controller_key_allowed, secret_key},
        said,
    },
    config::ControllerKeyFor,
    daytona::{Client, Endpoint, Key},
    plan::lease::{Credentials, is_ending},
};

/// The lease's key, and a client that uses it.
///
/// A lease that ends falls back to the client that worked last, and to the copy of the key: when a namespace is deleted,
/// the Secret goes first.
pub(super) async fn resolve(lease: &SandboxLease, ctx: &Context) -> Found {
    let problem = match find(lease, ctx).await {
        Ok(client) => return Found { credentials: usable(&client), client: Some(client), is_todays: true },
        Err(problem) if !is_ending(lease) => return Found::nothing(problem),
        Err(problem) => problem,
    };
    let remembered = ctx.board.client(&lease.uid().unwrap_or_default());
    let kept = if remembered.is_some() { Ok(remembered) } else { escrow::client(lease, ctx).await };
    match (kept, problem) {
        (Ok(Some(client)), _) => Found { credentials: usable(&client), client: Some(client), is_todays: false },
        (Err(why), Credentials::Missing(reason, problem)) => {
            let message = format!("{problem}; nor does the copy of its key help: {why}");
            Found::nothing(Credentials::Missing(reason, message))
        }
        (_, problem) => Found::nothing(problem),
    }
}

/// A key that can be used for a lease, or why there is none.
pub(super) struct Found {
    pub(super) credentials: Credentials,
    pub(super) client: Option<Arc<Client>>,
    /// Whether it is the one that the lease names today.
    pub(super) is_todays: bool,
}

impl Found {
    pub(super) fn nothing(credentials: Credentials) -> Self {
        Self { credentials, client: None, is_todays: false }
    }
}

/// As the decision sees it.
pub(super) fn usable(client: &Client) -> Credentials {
    Credentials::Usable { api_url: client.endpoint().api_url.to_string(), fingerprint: client.fingerprint().to_owned() }
}

async fn find(lease: &SandboxLease, ctx: &Context) -> Result<Arc<Client>, Credentials> {
    let namespace = lease.namespace().unwrap_or_default();
    let connection = lease.spec.connection.clone().unwrap_or_default();
    let endpoint = endpoint(lease, ctx)?;
    let key = if let Some(secret) = &connection.api_key_secret_ref {
        let text = secret_key(&ctx.client, &namespace, &secret.name, &secret.key).await.map_err(|e| missing(&e))?;
        Key::new(&text).map_err(|why| {
            let message = format!("key {:?} of Secret {:?} is no API key: {why}", secret.key, secret.name);
            Credentials::Missing(Reason::SecretInvalid, message)
        })?
    } else {
        own_key(&namespace, endpoint, ctx).await?
    };
    ctx.clients
        .get(endpoint, &key, connection.organization_id.as_deref())
        .map_err(|e| Credentials::Unknown(e.to_string()))
}

/// The URL that is recorded counts for the lease's whole life: elsewhere a "not found" proves nothing.
fn endpoint<'a>(lease: &SandboxLease, ctx: &'a Context) -> Result<&'a Endpoint, Credentials> {
    let recorded = lease.status.as_ref().and_then(|s| s.connection.as_ref()).map(|c| c.api_url.as_str());
    let asked = lease.spec.connection.as_ref().and_then(|c| c.api_url.as_deref());
    match recorded.or(asked) {
        None => ctx.config.allowed.first().ok_or_else(|| {
            Credentials::Missing(Reason::UrlNotAllowed, "the controller was started without a Daytona URL".to_owned())
        }),
        Some(url) => ctx.config.endpoint(url).ok_or_else(|| {
            let message = format!(
                "{url} is not on the controller's allow-list; the cluster's administrator can add it (the chart's allowApiUrls, --allow-api-url)"
            );
            Credentials::Missing(Reason::UrlNotAllowed, message)
        }),
    }
}

async fn own_key(namespace: &str, endpoint: &Endpoint, ctx: &Context) -> Result<Key, Credentials> {
    // A recorded URL may be one of other days: the controller's own key goes to its own API only.
    if ctx.config.allowed.first() != Some(endpoint) {
        let message = format!(
            "the sandbox lives at {}, which is no longer the controller's own API, so its own key is not sent there: \
             set spec.connection.apiKeySecretRef",
            endpoint.api_url
        );
        return Err(Credentials::Missing(Reason::CredentialMismatch, message));
    }
    let denied = |message: &str| Credentials::Missing(Reason::ControllerKeyNotAllowed, message.to_owned());
    let allowed = match ctx.config.key_for {
        ControllerKeyFor::All => true,
        ControllerKeyFor::None => false,
        ControllerKeyFor::Labelled => {
            controller_key_allowed(&ctx.client, namespace).await.map_err(|e| Credentials::Unknown(said(&e)))?
        }
    };
    if !allowed {
        return Err(denied(
            "this namespace may not use the controller's own key: set spec.connection.apiKeySecretRef, or have the \
             cluster's administrator label the namespace daytona-controller.dev/controller-key=allowed",
        ));
    }
    ctx.config.key.clone().ok_or_else(|| {
        denied("the controller has no key of its own (DAYTONA_API_KEY): set spec.connection.apiKeySecretRef")
    })
}

fn missing(error: &KeyError) -> Credentials {
    let message = error.to_string();
    match error {
        KeyError::SecretNotFound { .. } => Credentials::Missing(Reason::SecretNotFound, message),
        KeyError::KeyNotFound { .. } | KeyError::NotText { .. } => Credentials::Missing(Reason::SecretInvalid, message),
        KeyError::Api(_) => Credentials::Unknown(message),
    }
}
