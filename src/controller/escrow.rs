//! Keeps copies of the keys that leases may have to be let go with, and removes those that no lease needs any more.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use kube::{Api, ResourceExt, api::ListParams};
use secrecy::ExposeSecret;
use tokio::sync::{Notify, RwLock};

use super::{
    context::{Context, reference},
    error::Error,
    owners,
};
use crate::{
    api::SandboxLease,
    cluster::{
        escrow::{self, Deposit, EscrowError, Kept},
        said,
    },
    config::CredentialEscrow,
    daytona::{Client, Key},
    plan::{
        backoff::grow,
        escrow::{Copy, Escrow, needs, refused},
    },
};

/// How often it is looked whether each copy is there and needed, when nothing has happened.
const LOOK: Duration = Duration::from_mins(10);
/// How long two looks are apart; after a failure it grows.
const PAUSE: Duration = Duration::from_secs(3);
/// For how long more news is waited for before a look, so that a thousand leases that end cost a few.
const SETTLED: Duration = Duration::from_secs(1);

/// What is known of copies. Losing it loses nothing: it is looked at again.
#[derive(Debug, Default)]
pub(super) struct Memory {
    known: Mutex<HashMap<String, Known>>,
    /// Held while it is looked which copies are needed, until those that are not are gone: none of them is to be taken
    /// for kept meanwhile.
    removing: RwLock<()>,
    news: Notify,
}

#[derive(Debug)]
enum Known {
    Kept,
    Refused(String, Instant),
}

impl Memory {
    fn note(&self, name: &str, known: Known) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), known);
    }

    /// What is known of a copy; `None`: none is wanted. One that was refused is tried `again` after this time.
    pub(super) fn of(&self, deposit: Option<&Deposit>, again: Duration) -> Escrow {
        let Some(name) = deposit.map(Deposit::name) else { return Escrow::NotWanted };
        match self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&name) {
            Some(Known::Kept) => Escrow::Kept,
            Some(Known::Refused(why, at)) if at.elapsed() < again => Escrow::Refused(why.clone()),
            Some(Known::Refused(..)) | None => Escrow::Missing,
        }
    }

    /// Takes a list for the truth about what is kept.
    fn listed(&self, all: &[Kept]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, known| matches!(known, Known::Refused(..)));
        known.extend(all.iter().map(|kept| (kept.deposit.name(), Known::Kept)));
    }

    /// A lease has let go, or its key was rotated: a copy may be needed no more.
    pub(super) fn news(&self) {
        self.news.notify_one();
    }

    /// Whether the copy is still there, as far as is known. To be asked once what makes it needed is written.
    pub(super) async fn still_kept(&self, deposit: Option<&Deposit>) -> bool {
        let _none_is_removed = self.removing.read().await;
        matches!(self.of(deposit, Duration::ZERO), Escrow::Kept | Escrow::NotWanted)
    }
}

/// The copy that is to be kept of the key which the lease uses today. One that ends has one too: its Secret may go first.
///
/// # Errors
/// With a reason for a person, when it cannot be known which one that is.
pub(super) async fn deposit(lease: &SandboxLease, client: &Client, ctx: &Context) -> Result<Option<Deposit>, String> {
    let namespace = lease.namespace().unwrap_or_default();
    let connection = lease.spec.connection.clone().filter(|_| is_kept_for(&namespace, ctx));
    let Some(connection) = connection else { return Ok(None) };
    let Some(secret) = connection.api_key_secret_ref else { return Ok(None) };
    Ok(Some(Deposit {
        namespace,
        namespace_uid: owners::namespace(lease, ctx).await?,
        secret: secret.name,
        secret_key: secret.key,
        api_url: client.endpoint().api_url.to_string(),
        organization: connection.organization_id,
        fingerprint: client.fingerprint().to_owned(),
        key: client.key().secret().clone(),
    }))
}

/// Whether copies are kept for the leases of a namespace. In the controller's own one they would go with the Secrets.
fn is_kept_for(namespace: &str, ctx: &Context) -> bool {
    ctx.config.credential_escrow == CredentialEscrow::Enabled && namespace != ctx.config.own_namespace
}

/// Keeps the copy, or notes and tells why it cannot be kept.
pub(super) async fn keep(lease: &SandboxLease, deposit: &Deposit, ctx: &Context) -> Result<(), Error> {
    let _none_is_removed = ctx.escrow.removing.read().await;
    let name = deposit.name();
    // Somebody else may have done it while this one waited.
    if ctx.escrow.of(Some(deposit), Duration::ZERO) == Escrow::Kept {
        return Ok(());
    }
    match escrow::keep(&ctx.client, &ctx.config.own_namespace, deposit).await {
        Ok(()) => {
            tracing::info!(secret = %name, key = %deposit.fingerprint, "a copy of the key is kept");
            ctx.escrow.note(&name, Known::Kept);
        }
        Err(EscrowError::Api(error)) => return Err(error.into()),
        Err(EscrowError::Refused(why)) => {
            tracing::warn!(secret = %name, namespace = %ctx.config.own_namespace, %why, "no copy of the key could be kept");
            ctx.events.publish(reference(lease), true, true, ("EscrowFailed", "Reconcile", &refused(&why)));
            ctx.escrow.note(&name, Known::Refused(why, Instant::now()));
        }
    }
    Ok(())
}

/// A client with the copy of the key that reached the lease's sandbox last; `None`: there is no such copy.
///
/// # Errors
/// With a reason for a person, when it cannot be known, or must not be used.
pub(super) async fn client(lease: &SandboxLease, ctx: &Context) -> Result<Option<Arc<Client>>, String> {
    let namespace = lease.namespace().unwrap_or_default();
    let recorded = lease.status.as_ref().and_then(|status| status.connection.as_ref());
    let (Some(recorded), true) = (recorded, is_kept_for(&namespace, ctx)) else { return Ok(None) };
    let uid = owners::namespace(lease, ctx).await?;
    let found = escrow::find(&ctx.client, &ctx.config.own_namespace, &uid, &recorded.key_fingerprint).await;
    let found = found.map_err(|error| format!("its copy could not be read: {}", said(&error)))?;
    let asked = lease.spec.connection.as_ref().and_then(|c| c.organization_id.as_deref());
    let fits = |kept: &&Kept| kept.deposit.api_url == recorded.api_url && kept.deposit.organization.as_deref() == asked;
    found.iter().find(fits).map(|kept| client_of(&kept.deposit, ctx)).transpose()
}

/// A client with a copy. The allow-list holds for it as for every key.
pub(super) fn client_of(deposit: &Deposit, ctx: &Context) -> Result<Arc<Client>, String> {
    let endpoint = ctx.config.endpoint(&deposit.api_url);
    let endpoint = endpoint.ok_or_else(|| format!("{} is not on the allow-list any more", deposit.api_url))?;
    let key = Key::new(deposit.key.expose_secret()).map_err(|why| format!("its copy is no API key: {why}"))?;
    if key.fingerprint() != deposit.fingerprint {
        return Err("its copy is of another key".to_owned());
    }
    ctx.clients.get(endpoint, &key, deposit.organization.as_deref()).map_err(|error| error.to_string())
}

/// Reads what is kept, so that leases need not ask one by one.
pub(super) async fn load(ctx: &Context) {
    match all(ctx).await {
        Ok(all) => ctx.escrow.listed(&all),
        Err(error) => {
            tracing::warn!(%error, "the copies of keys could not be listed; each is looked for when it is wanted");
        }
    }
}

/// The copies that are kept for the namespaces which this controller watches.
pub(super) async fn all(ctx: &Context) -> kube::Result<Vec<Kept>> {
    if ctx.config.credential_escrow == CredentialEscrow::Disabled {
        return Ok(Vec::new());
    }
    escrow::all(&ctx.client, &ctx.config.own_namespace, ctx.namespace.as_deref()).await
}

/// Removes what no lease needs, whenever a lease has let go, and now and then. Ends with the controller.
pub(super) async fn tend(ctx: &Context) {
    if ctx.config.credential_escrow == CredentialEscrow::Disabled {
        return;
    }
    ctx.listed().await;
    let mut failures = 0;
    loop {
        let next = match remove_unneeded(ctx).await {
            Ok(()) => {
                failures = 0;
                LOOK
            }
            Err(error) => {
                tracing::warn!(%error, "copies of keys could not be looked at; it is tried again");
                failures += 1;
                grow(PAUSE, LOOK, failures, 0)
            }
        };
        tokio::time::sleep(PAUSE).await;
        let _ = tokio::time::timeout(next, ctx.escrow.news.notified()).await;
        tokio::time::sleep(SETTLED).await;
    }
}

async fn remove_unneeded(ctx: &Context) -> kube::Result<()> {
    // From here on nobody takes a copy for kept. What was taken for kept before is written down with its lease, and so
    // seen below.
    let _removing = ctx.escrow.removing.write().await;
    let all = all(ctx).await?;
    ctx.escrow.listed(&all);
    let here = ctx.leases.state();
    let here: Vec<&SandboxLease> = here.iter().map(|lease| &**lease).collect();
    let mut by_namespace = BTreeMap::<&str, Vec<&Kept>>::new();
    for kept in &all {
        by_namespace.entry(&kept.deposit.namespace).or_default().push(kept);
    }
    for (namespace, copies) in by_namespace {
        // Its leases went before it: what is kept for another of the same name is of no use.
        let uid = owners::by_name(namespace, ctx).await?;
        let mut copies = copies.into_iter().filter(|kept| !is_needed(kept, uid.as_deref(), &here)).peekable();
        if copies.peek().is_none() {
            continue;
        }
        // The watch may be behind, and a list may lie: what both do not show is not there.
        let live = Api::<SandboxLease>::namespaced(ctx.client.clone(), namespace).list(&ListParams::default()).await?;
        let live: Vec<&SandboxLease> = live.items.iter().collect();
        for kept in copies.filter(|kept| !is_needed(kept, uid.as_deref(), &live)) {
            escrow::remove(&ctx.client, &ctx.config.own_namespace, kept).await?;
            let name = kept.deposit.name();
            tracing::info!(secret = %name, namespace, "removed the copy of a key that no lease needs");
            ctx.escrow.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        }
    }
    tracing::debug!("looked at the copies of keys");
    Ok(())
}

fn is_needed(kept: &Kept, namespace_uid: Option<&str>, leases: &[&SandboxLease]) -> bool {
    let Deposit { namespace, secret, api_url, organization, fingerprint, .. } = &kept.deposit;
    let copy = Copy { secret, api_url, organization: organization.as_deref(), fingerprint };
    let here = |lease: &&&SandboxLease| lease.metadata.namespace.as_ref() == Some(namespace);
    namespace_uid == Some(&kept.deposit.namespace_uid) && leases.iter().filter(here).any(|lease| needs(lease, &copy))
}
