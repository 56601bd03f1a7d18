//! The watches: pruned, decoded with care, reflected into a store, and turned into triggers.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource, ResourceExt,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        reflector::{ObjectRef, store::Writer},
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::{context::Context, files, subject::lease_of};
use crate::{
    api::{
        COMMAND_UID_LABEL, LOG_BYTES, LeaseCondition, SandboxCommand, SandboxCommandStatus, SandboxLease, SourceKind,
        condition,
    },
    plan::{lease::is_ending, queue},
};

/// Annotation that `kubectl apply` writes.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Objects in a page of a list.
const PAGE: u32 = 100;

/// Longest pause before a failed watch is tried again.
const WATCH_BACKOFF: Duration = Duration::from_secs(10);

/// Changes of one kind, already in the store when they come out. One object that cannot be read is left out and told;
/// it must not stop the others.
pub(super) fn reflected<K>(
    api: Api<DeserializeGuard<K>>,
    how: watcher::Config,
    writer: Writer<K>,
    mut prune: impl FnMut(&mut K) + Send,
) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    watcher::watcher(api, how)
        .backoff(backoff())
        .filter_map(|event| std::future::ready(readable(event).transpose()))
        .modify(move |object: &mut K| {
            object.managed_fields_mut().clear();
            // kubectl's copy of the manifest: as long as the script, and of no use here.
            object.annotations_mut().remove(LAST_APPLIED);
            prune(object);
        })
        .reflect(writer)
        .filter_map(|event| {
            if let Err(error) = &event {
                tracing::warn!(%error, kind = %K::kind(&()), "the watch failed; it is started again");
            }
            std::future::ready(event.ok())
        })
}

/// How to list, and for how long to watch. In pages: all of ten thousand objects in one answer would be the most memory
/// that is ever used. And the most recent list: from one that is older than what an earlier controller wrote, the first
/// look at a place would clear away the outcome of an attempt as nobody's. (The apiserver would ignore the size of a page
/// there, too.)
pub(super) fn watching(lasts: Duration) -> watcher::Config {
    let timeout = u32::try_from(lasts.as_secs()).unwrap_or(u32::MAX);
    watcher::Config::default().page_size(PAGE).timeout(timeout)
}

fn backoff() -> watcher::ExponentialBackoff {
    let growing = backon::ExponentialBuilder::default().with_max_delay(WATCH_BACKOFF).without_max_times().with_jitter();
    watcher::ExponentialBackoff::from(growing)
}

fn readable<K>(event: watcher::Result<Event<DeserializeGuard<K>>>) -> watcher::Result<Option<Event<K>>>
where
    K: Resource<DynamicType = ()> + Debug,
{
    let decode = |guard: DeserializeGuard<K>| {
        guard
            .0
            .inspect_err(
                |error| tracing::error!(%error, kind = %K::kind(&()), "an object cannot be read; it is left alone"),
            )
            .ok()
    };
    Ok(match event? {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::InitApply(guard) => decode(guard).map(Event::InitApply),
        Event::Apply(guard) => decode(guard).map(Event::Apply),
        Event::Delete(guard) => decode(guard).map(Event::Delete),
    })
}

/// Of a finished command only what tells which it is, whose, and how it ended; ten thousand of them would fill the memory.
pub(super) fn prune_command(command: &mut SandboxCommand) {
    if queue::unfinished(command) {
        return;
    }
    let (spec, meta) = (&mut command.spec, &mut command.metadata);
    (spec.script, spec.command, spec.stdin) = (None, None, None);
    (spec.env, spec.env_from) = (Vec::new(), Vec::new());
    (meta.labels, meta.annotations, meta.owner_references) = (None, None, None);
    let persists = queue::persists(command);
    if let Some(status) = &mut command.status {
        // Of one that carries the shell's state also whether and when it was lost.
        let lost = persists && status.exit_code.is_none();
        *status = SandboxCommandStatus {
            observed_generation: status.observed_generation,
            state: status.state,
            exit_code: status.exit_code,
            lease_uid: status.lease_uid.take(),
            attempts: status.attempts.filter(|_| lost),
            completion_time: status.completion_time.take().filter(|_| lost),
            conditions: if lost { std::mem::take(&mut status.conditions) } else { Vec::new() },
            ..SandboxCommandStatus::default()
        };
    }
}

/// Asks for a look at every lease and every waiting command that names a Secret or `ConfigMap` which changed, and
/// keeps the ledger of stored logs. Only metadata is watched; a value is read when it is needed.
pub(super) async fn sources<K>(
    api: Api<PartialObjectMeta<K>>,
    kind: SourceKind,
    listed: &CancellationToken,
    ctx: &Context,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    let mut events = std::pin::pin!(watcher::watcher(api, watching(ctx.config.watch)).backoff(backoff()));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object)) => {
                let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
                if let Some(bytes) = log_bytes(&object) {
                    ctx.ledger.note(kind, &namespace, &name, Some(bytes));
                }
                source_changed(&namespace, &name, kind, ctx);
            }
            Ok(Event::Delete(object)) => {
                let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
                ctx.ledger.note(kind, &namespace, &name, None);
                source_changed(&namespace, &name, kind, ctx);
            }
            Ok(Event::Init) => ctx.ledger.begin_list(kind),
            // Leases and commands are looked at when the controller starts; what the files are read from, below.
            Ok(Event::InitApply(object)) => {
                if let Some(bytes) = log_bytes(&object) {
                    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
                    ctx.ledger.list(kind, &namespace, &name, bytes);
                }
            }
            Ok(Event::InitDone) => {
                ctx.ledger.end_list(kind);
                listed.cancel();
                listed_anew(ctx);
            }
            Err(error) => tracing::warn!(%error, kind = kind.as_str(), "the watch failed; it is started again"),
        }
    }
}

/// Nobody tells what has changed between a look and the list.
fn listed_anew(ctx: &Context) {
    for lease in ctx.leases.state() {
        let has_files = !lease.spec.files.is_empty();
        if has_files {
            ctx.files.changed(&lease.uid().unwrap_or_default());
        }
        let has_key = lease.spec.connection.as_ref().is_some_and(|c| c.api_key_secret_ref.is_some());
        let ready = lease.status.as_ref().and_then(|s| condition(&s.conditions, LeaseCondition::Ready.as_str()));
        if has_files || (has_key && ready.is_none_or(|ready| ready.status != "True")) {
            ctx.hint_lease(&lease.namespace().unwrap_or_default(), &lease.name_any());
        }
    }
    for command in ctx.commands.state().iter().filter(|command| queue::held_up(command)) {
        ctx.hint_command(command);
    }
}

/// Wakes the leases of those keys that are answered again after an outage.
pub(super) async fn outages(ctx: &Context) {
    let mut back = ctx.clients.back();
    loop {
        match back.recv().await {
            Ok(back) => ctx.hint_leases(|lease| {
                ctx.board.client(&lease.uid().unwrap_or_default()).is_none_or(|client| client.is_of(&back))
            }),
            Err(RecvError::Lagged(_)) => ctx.hint_leases(|_| true),
            Err(RecvError::Closed) => return,
        }
    }
}

/// The size of a stored log; `None`: it is no log.
fn log_bytes<K: Resource>(object: &K) -> Option<u64> {
    let bytes = object.annotations().get(LOG_BYTES)?.parse().ok()?;
    object.labels().contains_key(COMMAND_UID_LABEL).then_some(bytes)
}

fn source_changed(namespace: &str, name: &str, kind: SourceKind, ctx: &Context) {
    for lease in ctx.leases.state() {
        if lease.namespace().as_deref() != Some(namespace) {
            continue;
        }
        let key = lease.spec.connection.as_ref().and_then(|c| c.api_key_secret_ref.as_ref());
        let is_key = kind == SourceKind::Secret && key.is_some_and(|key| key.name == name);
        let is_file = files::reads(&lease, kind, name);
        if is_file {
            ctx.files.changed(&lease.uid().unwrap_or_default());
        }
        if is_key || is_file {
            ctx.hint_lease(namespace, &lease.name_any());
        }
    }
    for command in ctx.commands.state() {
        let waits = queue::held_up(&command) && command.namespace().as_deref() == Some(namespace);
        if !waits {
            continue;
        }
        let of_lease = lease_of(&command, ctx);
        if command.spec.sources(kind).contains(&name)
            || of_lease.is_some_and(|lease| lease.spec.environment_sources(kind).contains(&name))
        {
            ctx.hint_command(&command);
        }
    }
}

/// Wakes commands when there is news of their lease. By lease UID.
#[derive(Default)]
pub(super) struct LeaseNews(HashMap<String, (ObjectRef<SandboxLease>, [u64; 2])>);

impl LeaseNews {
    pub(super) fn take(&mut self, event: &Event<SandboxLease>, ctx: &Context) {
        let (lease, gone) = match event {
            Event::Apply(lease) | Event::InitApply(lease) => (lease, false),
            Event::Delete(lease) => (lease, true),
            Event::InitDone => return self.forget_missing(ctx),
            Event::Init => return,
        };
        let uid = lease.uid().unwrap_or_default();
        let ready = lease.status.as_ref().and_then(|s| condition(&s.conditions, LeaseCondition::Ready.as_str()));
        let mut digest = DefaultHasher::new();
        (gone, lease.uid(), is_ending(lease)).hash(&mut digest);
        ready.map(|c| (&c.reason, &c.message)).hash(&mut digest);
        (lease.metadata.generation, lease.status.as_ref().and_then(|s| s.observed_generation)).hash(&mut digest);
        let mut key_digest = DefaultHasher::new();
        let recorded = lease.status.as_ref().and_then(|s| s.connection.as_ref());
        (lease.uid(), lease.finalizers().is_empty(), recorded.map(|c| &c.key_fingerprint)).hash(&mut key_digest);
        let digest = [digest.finish(), key_digest.finish()];
        if gone {
            self.0.remove(&uid);
            return forget(&uid, &ObjectRef::from_obj(lease), ctx);
        }
        let before = self.0.insert(uid, (ObjectRef::from_obj(lease), digest)).map(|(_, digest)| digest);
        if before.is_none_or(|[_, key]| key != digest[1]) {
            ctx.escrow.news();
        }
        if before == Some(digest) {
            return;
        }
        // Those that wait for a lease of this name are bound to it.
        let all = before.is_none() || is_ending(lease);
        ctx.hint_commands_of(&lease.namespace().unwrap_or_default(), &lease.name_any(), all);
    }

    /// What went while the watch was down: nobody tells of it.
    fn forget_missing(&mut self, ctx: &Context) {
        let there: HashSet<String> = ctx.leases.state().iter().filter_map(|lease| lease.uid()).collect();
        for (uid, (lease, _)) in self.0.extract_if(|uid, _| !there.contains(uid)) {
            forget(&uid, &lease, ctx);
        }
    }
}

fn forget(uid: &str, lease: &ObjectRef<SandboxLease>, ctx: &Context) {
    ctx.board.forget(uid);
    ctx.files.forget(uid);
    ctx.failures.reset(uid);
    ctx.escrow.news();
    ctx.hint_commands_of(lease.namespace.as_deref().unwrap_or_default(), &lease.name, true);
}

/// Wakes the next command when one has ended, and the lease when its gauges have changed.
pub(super) fn command_news(event: &Event<SandboxCommand>, pending: &Pending, ctx: &Arc<Context>) {
    let (command, gone) = match event {
        Event::Apply(command) => (command, false),
        Event::Delete(command) => (command, true),
        Event::InitDone => {
            // Ends that nobody was told of: the watch was down.
            let there: HashSet<String> = ctx.commands.state().iter().filter_map(|command| command.uid()).collect();
            ctx.keep_commands(&|uid| there.contains(uid));
            for (namespace, lease) in ctx.by_lease.leases() {
                ctx.hint_next(&namespace, &lease);
            }
            return;
        }
        Event::Init | Event::InitApply(_) => return,
    };
    let (namespace, lease) = (command.namespace().unwrap_or_default(), &command.spec.lease_ref.name);
    if gone {
        ctx.forget_command(&command.uid().unwrap_or_default());
        ctx.sequences.forget(&command.uid().unwrap_or_default());
        ctx.failures.reset(&command.uid().unwrap_or_default());
    }
    // One that is held up or being deleted holds up nobody.
    let leaves = gone || command.metadata.deletion_timestamp.is_some();
    if leaves || !queue::unfinished(command) || queue::held_up(command) {
        ctx.hint_next(&namespace, lease);
    }
    pending.hint_lease_later(&namespace, lease, ctx);
}

/// Leases that will be looked at for their gauges, so that a hundred commands cost one look.
#[derive(Clone, Default)]
pub(super) struct Pending(Arc<Mutex<HashSet<(String, String)>>>);

impl Pending {
    fn hint_lease_later(&self, namespace: &str, name: &str, ctx: &Arc<Context>) {
        let key = (namespace.to_owned(), name.to_owned());
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !pending.insert(key.clone()) {
            return;
        }
        let (this, ctx) = (self.clone(), Arc::clone(ctx));
        tokio::spawn(async move {
            let stop = ctx.stop.clone();
            if stop.run_until_cancelled(tokio::time::sleep(ctx.config.gauges)).await.is_some() {
                this.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
                ctx.hint_lease(&key.0, &key.1);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::{InitialListStrategy, ListSemantic};

    use super::*;

    #[test]
    fn no_list_is_older_than_what_was_written_before_it() {
        let how = watching(Duration::from_mins(5));
        let most_recent = (ListSemantic::MostRecent, InitialListStrategy::ListWatch);
        assert_eq!((how.list_semantic, how.initial_list_strategy), most_recent);
        assert_eq!((how.page_size, how.timeout), (Some(PAGE), Some(300)));
    }
}
