//! Looks for sandboxes of ours that no lease speaks for any more, as after a finalizer that was taken off by force.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Resource, ResourceExt, api::ListParams};

use super::{context::Context, escrow, owners};
use crate::{
    api::{SandboxLease, sandbox_label as label},
    config::OrphanPolicy,
    daytona::{self, Client, Sandbox},
    plan::orphan::{Named, is_orphan, named, spared},
};

/// Longest wait before the first look: no key is known before leases were looked at.
const FIRST: Duration = Duration::from_mins(1);
/// How often an orphan that stays is told of.
const REMINDER: Duration = Duration::from_hours(1);

/// Looks at all sandboxes again and again. Ends with the controller.
pub(super) async fn sweep(ctx: &Context) {
    ctx.listed().await;
    let mut sightings = Sightings::default();
    let interval = ctx.config.orphans.interval;
    tokio::time::sleep(interval.min(FIRST)).await;
    loop {
        if let Err(why) = round(&mut sightings, ctx).await {
            tracing::warn!(%why, "sandboxes could not be looked through for orphans; it is tried again");
        }
        tokio::time::sleep(interval).await;
    }
}

/// A sandbox, and with which key it was seen.
struct Found {
    sandbox: Sandbox,
    named: Named,
    client: Arc<Client>,
}

async fn round(sightings: &mut Sightings, ctx: &Context) -> Result<(), String> {
    let cluster = owners::cluster(ctx).await?;
    let found = found(&cluster, ctx).await;
    // After the sandboxes: each lease is there before its sandbox is.
    let watched: BTreeSet<String> = ctx.leases.state().iter().filter_map(|lease| lease.uid()).collect();
    let mut listed = BTreeMap::new();
    for namespace in found.iter().filter(|f| !watched.contains(&f.named.lease_uid)).map(|f| &f.named.namespace) {
        if !listed.contains_key(namespace) {
            listed.insert(namespace, leases_of(namespace, ctx).await);
        }
    }
    let gone = |named: &Named| is_orphan(named, &watched, listed.get(&named.namespace).and_then(Option::as_ref));
    for found in found.iter().filter(|found| gone(&found.named)) {
        // A list may be behind, so nothing is told on its word either.
        match still(found, &cluster, ctx).await {
            Ok(Some(sandbox)) => orphan(&sandbox, found, sightings, ctx).await,
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(sandbox = %found.sandbox.id, %error, "what may be an orphan could not be looked at");
            }
        }
    }
    sightings.end_round();
    tracing::debug!(sandboxes = found.len(), "looked for orphans");
    Ok(())
}

/// All sandboxes that are ours to judge, under each key that is known.
async fn found(cluster: &str, ctx: &Context) -> Vec<Found> {
    let mut all = HashMap::new();
    let mut labels = vec![(label::CLUSTER_ID, cluster)];
    labels.extend(ctx.namespace.as_deref().map(|namespace| (label::LEASE_NAMESPACE, namespace)));
    for client in clients(ctx).await {
        match client.labelled_sandboxes(&labels).await {
            Ok(sandboxes) => all.extend(sandboxes.into_iter().filter_map(|sandbox| {
                let named = named(&sandbox, cluster, ctx.namespace.as_deref())?;
                Some((sandbox.id.clone(), Found { sandbox, named, client: Arc::clone(&client) }))
            })),
            Err(error) => {
                let (api_url, key) = (client.endpoint().api_url.as_str(), client.fingerprint());
                tracing::warn!(api_url, key, %error, "sandboxes could not be looked through for orphans");
            }
        }
    }
    all.into_values().collect()
}

/// A client for each key that is known: those of leases, those that are kept, and the controller's own.
async fn clients(ctx: &Context) -> Vec<Arc<Client>> {
    let leases = ctx.leases.state();
    let mut all: Vec<_> =
        leases.iter().filter_map(|lease| ctx.board.client(&lease.uid().unwrap_or_default())).collect();
    match escrow::all(ctx).await {
        Ok(kept) => all.extend(kept.iter().filter_map(|kept| escrow::client_of(&kept.deposit, ctx).ok())),
        Err(error) => tracing::debug!(%error, "the copies of keys could not be listed"),
    }
    if let (Some(endpoint), Some(key)) = (ctx.config.allowed.first(), &ctx.config.key) {
        all.extend(ctx.clients.get(endpoint, key, None));
    }
    let mut seen = HashSet::new();
    all.retain(|client| seen.insert((client.endpoint().api_url.clone(), client.fingerprint().to_owned())));
    all
}

/// The UIDs of a namespace's leases, as they are now; `None`: it cannot be known.
async fn leases_of(namespace: &str, ctx: &Context) -> Option<BTreeSet<String>> {
    let api = Api::<SandboxLease>::namespaced(ctx.client.clone(), namespace);
    match api.list_metadata(&ListParams::default()).await {
        Ok(leases) => Some(leases.items.iter().filter_map(ResourceExt::uid).collect()),
        Err(error) => {
            tracing::warn!(namespace, %error, "its leases could not be listed, so none of its sandboxes is judged");
            None
        }
    }
}

/// The sandbox as it is now, if it still names the same lease.
async fn still(found: &Found, cluster: &str, ctx: &Context) -> Result<Option<Sandbox>, daytona::Error> {
    let now = found.client.sandbox(&found.sandbox.id).await?;
    Ok(now.filter(|now| named(now, cluster, ctx.namespace.as_deref()).as_ref() == Some(&found.named)))
}

/// Tells of an orphan, and deletes it where that is asked for and it has been seen for long enough.
async fn orphan(sandbox: &Sandbox, found: &Found, sightings: &mut Sightings, ctx: &Context) {
    let sighting = sightings.note(&sandbox.id, Instant::now());
    let spared = spared(sandbox, &found.named);
    if sighting.is_news {
        report(sandbox, found, spared, ctx).await;
    }
    let delete = ctx.config.orphans.policy == OrphanPolicy::Delete && spared.is_none();
    if !delete || sighting.times < 2 || sighting.lasts < ctx.config.orphans.grace {
        return;
    }
    if let Err(why) = remove(sandbox, found, ctx).await {
        tracing::warn!(sandbox = %sandbox.id, %why, "an orphan could not be deleted; it is tried again");
    }
}

async fn report(sandbox: &Sandbox, found: &Found, spared: Option<&str>, ctx: &Context) {
    let Named { namespace, lease, lease_uid, .. } = &found.named;
    let (id, api_url) = (&sandbox.id, found.client.endpoint().api_url.as_str());
    tracing::warn!(sandbox = %id, api_url, namespace, lease, lease_uid, "an orphan: its lease is gone");
    let then = match (ctx.config.orphans.policy, spared) {
        (OrphanPolicy::Report, _) => "delete it in Daytona if nobody needs it".to_owned(),
        (OrphanPolicy::Delete, None) => "it will be deleted".to_owned(),
        (OrphanPolicy::Delete, Some(why)) => format!("{why}, so it is left to you to delete it in Daytona"),
    };
    let note = format!("sandbox {id} at {api_url} is left of this lease, which is gone; {then}");
    tell(&found.named, true, ("OrphanedSandbox", "Sweep", &note), ctx).await;
}

/// An event where people look for what becomes of it. Labels are anybody's who has the key: what another namespace is told
/// there must name that very one.
async fn tell(named: &Named, bad: bool, what: (&str, &str, &str), ctx: &Context) {
    match owners::by_name(&named.namespace, ctx).await {
        Ok(uid) if uid.as_ref() == Some(&named.namespace_uid) => ctx.events.publish(gone(named), bad, bad, what),
        Ok(_) => {}
        Err(error) => tracing::warn!(namespace = named.namespace, %error, "an orphan's namespace cannot be told of it"),
    }
}

/// Deletes it, if there is still nothing that speaks for it.
async fn remove(sandbox: &Sandbox, found: &Found, ctx: &Context) -> Result<(), String> {
    let api = Api::<SandboxLease>::namespaced(ctx.client.clone(), &found.named.namespace);
    let lease = api.get_opt(&found.named.lease).await.map_err(|error| error.to_string())?;
    if lease.is_some_and(|lease| lease.uid().as_ref() == Some(&found.named.lease_uid)) {
        return Err("its lease is there after all".to_owned());
    }
    found.client.delete_sandbox(&sandbox.id).await.map_err(|error| error.to_string())?;
    let Named { namespace, lease, .. } = &found.named;
    tracing::warn!(sandbox = %sandbox.id, namespace, lease, "deleted an orphan");
    let note = format!("sandbox {}, which was left of this lease, is being deleted", sandbox.id);
    tell(&found.named, false, ("OrphanDeleted", "Sweep", &note), ctx).await;
    Ok(())
}

fn gone(named: &Named) -> ObjectReference {
    ObjectReference {
        api_version: Some(SandboxLease::api_version(&()).into_owned()),
        kind: Some(SandboxLease::kind(&()).into_owned()),
        namespace: Some(named.namespace.clone()),
        name: Some(named.lease.clone()),
        uid: Some(named.lease_uid.clone()),
        ..ObjectReference::default()
    }
}

/// Which orphans were seen, since when, and how often. A list leaves out something now and then: what is missed once is
/// not forgotten.
#[derive(Debug, Default)]
struct Sightings(HashMap<String, Seen>);

#[derive(Debug)]
struct Seen {
    first: Instant,
    told: Instant,
    times: u32,
    /// Rounds since it was seen last.
    missed: u32,
}

/// What is known of an orphan that was just seen.
struct Sighting {
    lasts: Duration,
    times: u32,
    /// Whether it is to be told (again).
    is_news: bool,
}

impl Sightings {
    fn note(&mut self, sandbox: &str, now: Instant) -> Sighting {
        let fresh = Seen { first: now, told: now, times: 0, missed: 0 };
        let seen = self.0.entry(sandbox.to_owned()).or_insert(fresh);
        (seen.times, seen.missed) = (seen.times.saturating_add(1), 0);
        let is_news = seen.times == 1 || now.duration_since(seen.told) >= REMINDER;
        if is_news {
            seen.told = now;
        }
        Sighting { lasts: now.duration_since(seen.first), times: seen.times, is_news }
    }

    fn end_round(&mut self) {
        self.0.retain(|_, seen| {
            seen.missed += 1;
            seen.missed <= 3
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_is_told_once_and_remembered_although_a_list_leaves_it_out() {
        let (mut sightings, start) = (Sightings::default(), Instant::now());
        let see = |sightings: &mut Sightings, minutes: u64| {
            let seen = sightings.note("s", start + Duration::from_mins(minutes));
            sightings.end_round();
            (seen.times, seen.lasts.as_secs() / 60, seen.is_news)
        };
        assert_eq!(see(&mut sightings, 0), (1, 0, true));
        assert_eq!(see(&mut sightings, 10), (2, 10, false));
        sightings.end_round();
        assert_eq!(see(&mut sightings, 30), (3, 30, false));
        assert_eq!(see(&mut sightings, 70), (4, 70, true), "somebody may have missed it");
        for _ in 0..3 {
            sightings.end_round();
        }
        assert_eq!(see(&mut sightings, 110), (1, 0, true), "it had gone");
    }
}
