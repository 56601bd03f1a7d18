//! Wires the two controllers to their watches.

use std::{fmt::Debug, sync::Arc};

use futures::{Stream, StreamExt, stream};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::{
        Controller, PredicateConfig, WatchStreamExt,
        controller::{self, Action},
        predicates, reflector,
        reflector::ObjectRef,
        watcher::Event,
    },
};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    attempts::Attempts,
    board::Board,
    by_lease::ByLease,
    claims::Claims,
    command,
    context::Context,
    error::{Error, Failures},
    escrow, files,
    latest::Latest,
    lease,
    ledger::Ledger,
    owners::Owners,
    pace::Pace,
    sequences::Sequences,
    slots::Slots,
    sweep,
    turns::Turns,
    watches,
};
use crate::{
    api::{SandboxCommand, SandboxLease, SourceKind},
    cluster::events::Events,
    config::Config,
    daytona::Clients,
};

/// Hints that may wait to be taken. One that finds no place is dropped, and costs one poll.
const HINTS: usize = 16_384;
/// Reconciles under way at once, of each kind. Many, for most of them wait for an answer: those of a Daytona that
/// hangs must not hold up the others. What one key may do at once is limited in its client.
const CONCURRENCY: u16 = 2048;

/// Commands that are looked at at once, the time apart in which they wait for Daytona. All of them ask the same apiserver.
const TURNS: usize = 64;

/// What is watched.
#[derive(Clone, Debug)]
pub struct Scope {
    /// One namespace, or all.
    pub namespace: Option<String>,
}

impl Scope {
    fn api<K>(&self, client: &Client) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        }
    }
}

/// Runs both controllers until `stop`, which lets reconciles that are under way end. Calls `listed` once the watches
/// have listed what there is.
pub async fn start(
    client: Client,
    config: Arc<Config>,
    clients: Arc<Clients>,
    scope: Scope,
    listed: impl FnOnce() + Send,
    stop: CancellationToken,
) {
    let sequences = Arc::new(Sequences::default());
    let (leases, lease_writer) = reflector::store();
    let (commands, command_writer) = reflector::store();
    let (lease_hints, lease_hinted) = mpsc::channel(HINTS);
    let (command_hints, command_hinted) = mpsc::channel(HINTS);
    let ctx = Arc::new(Context {
        client: client.clone(),
        config: Arc::clone(&config),
        clients,
        namespace: scope.namespace.clone(),
        owners: Owners::default(),
        escrow: escrow::Memory::default(),
        leases: leases.clone(),
        commands: commands.clone(),
        by_lease: ByLease::default(),
        board: Board::default(),
        attempts: Arc::new(Attempts::default()),
        failures: Failures::default(),
        files: files::Memory::default(),
        latest: Latest::default(),
        sequences: Arc::clone(&sequences),
        slots: Slots::default(),
        ledger: Ledger::default(),
        events: Events::new(client.clone()),
        lease_hints,
        command_hints,
        listed: CancellationToken::new(),
        sources_listed: CancellationToken::new(),
        pace: Pace::default(),
        claims: Claims::default(),
        lease_turns: Turns::default(),
        command_turns: Semaphore::new(TURNS),
        stop: stop.clone(),
        clock: system_time,
    });

    let mut news = watches::LeaseNews::default();
    let tap = Arc::clone(&ctx);
    let lease_events = watches::reflected(
        scope.api::<DeserializeGuard<SandboxLease>>(&client),
        watches::watching(config.watch),
        lease_writer,
        |_| {},
    )
    .inspect(move |event| news.take(event, &tap));
    let pending = watches::Pending::default();
    let tap = Arc::clone(&ctx);
    let command_events = watches::reflected(
        scope.api::<DeserializeGuard<SandboxCommand>>(&client),
        watches::watching(config.watch),
        command_writer,
        move |command| {
            sequences.accept(command);
            watches::prune_command(command);
        },
    )
    .inspect(move |event| {
        tap.by_lease.take(event);
        tap.latest.take(event);
        watches::command_news(event, &pending, &tap);
    });

    let lease_controller = Controller::for_stream(changed(lease_events), leases.clone())
        .with_config(controller::Config::default().concurrency(CONCURRENCY))
        .reconcile_on(received(lease_hinted))
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(lease::reconcile, |l, e, ctx| lease::error_policy(&l, e, &ctx), Arc::clone(&ctx))
        .for_each(async |result| log(result));
    let command_controller = Controller::for_stream(changed(command_events), commands.clone())
        .with_config(controller::Config::default().concurrency(CONCURRENCY))
        .reconcile_on(received(command_hinted))
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(command::reconcile, |c, e, ctx| command::error_policy(&c, e, &ctx), Arc::clone(&ctx))
        .for_each(async |result| log(result));

    let ready = async {
        let (leases, commands, ()) =
            tokio::join!(leases.wait_until_ready(), commands.wait_until_ready(), escrow::load(&ctx));
        if leases.is_ok() && commands.is_ok() {
            tracing::info!(?scope, "watching");
            ctx.listed.cancel();
            listed();
        }
    };
    let (secrets_listed, maps_listed) = (CancellationToken::new(), CancellationToken::new());
    let secrets = scope.api::<PartialObjectMeta<Secret>>(&client);
    let secrets = watches::sources(secrets, SourceKind::Secret, &secrets_listed, &ctx);
    let maps = scope.api::<PartialObjectMeta<ConfigMap>>(&client);
    let maps = watches::sources(maps, SourceKind::ConfigMap, &maps_listed, &ctx);
    let both = async {
        tokio::join!(secrets_listed.cancelled(), maps_listed.cancelled());
        ctx.sources_listed.cancel();
    };
    let outages = watches::outages(&ctx);
    let sources = async { tokio::join!(secrets, maps, both, outages, escrow::tend(&ctx), sweep::sweep(&ctx)) };
    tokio::join!(lease_controller, command_controller, ready, stop.run_until_cancelled(sources));
}

#[allow(clippy::disallowed_methods, reason = "this is where the time comes from")]
fn system_time() -> Timestamp {
    Timestamp::now()
}

/// The objects whose change can call for a decision. A change of status alone is our own doing.
fn changed<K>(
    events: impl Stream<Item = Event<K>> + Send + 'static,
) -> impl Stream<Item = kube::runtime::watcher::Result<K>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    use kube::runtime::Predicate;
    let changed = predicates::generation.combine(predicates::finalizers).combine(predicates::annotations);
    events.map(Ok).touched_objects().predicate_filter(changed, PredicateConfig::default())
}

fn received<K>(mut hints: mpsc::Receiver<ObjectRef<K>>) -> impl Stream<Item = ObjectRef<K>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Send + 'static,
{
    stream::poll_fn(move |cx| hints.poll_recv(cx))
}

fn log<K: Resource<DynamicType = ()>, E: std::error::Error>(
    result: Result<(ObjectRef<K>, Action), controller::Error<Error, E>>,
) {
    match result {
        Ok((object, action)) => tracing::debug!(%object, ?action, "reconciled"),
        Err(controller::Error::ObjectNotFound(object)) => tracing::debug!(%object, "already gone"),
        Err(controller::Error::ReconcilerFailed(error, object)) if error.is_conflict() => {
            tracing::debug!(%object, "it changed meanwhile; looking again");
        }
        Err(controller::Error::ReconcilerFailed(error, object)) => {
            tracing::warn!(%object, %error, "the reconcile failed");
        }
        Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "the controller met an error"),
    }
}
