//! What both controllers share.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::{
    Client, Resource, ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    attempts::Attempts, board::Board, by_lease::ByLease, claims::Claims, error::Failures, escrow, files,
    latest::Latest, ledger::Ledger, owners::Owners, pace::Pace, sequences::Sequences, slots::Slots, turns::Turns,
};
use crate::{
    api::{SandboxCommand, SandboxLease},
    cluster::events::Events,
    config::Config,
    daytona::Clients,
    plan::{
        lease::{adopts, is_ending, reuse_key},
        queue,
    },
};

/// What both controllers share. One per watched namespace (or one for all).
pub struct Context {
    pub(super) client: Client,
    pub(super) config: Arc<Config>,
    pub(super) clients: Arc<Clients>,
    /// The namespace that is watched, or all.
    pub(super) namespace: Option<String>,
    pub(super) owners: Owners,
    pub(super) escrow: escrow::Memory,
    pub(super) leases: Store<SandboxLease>,
    pub(super) commands: Store<SandboxCommand>,
    pub(super) by_lease: ByLease,
    pub(super) board: Board,
    pub(super) attempts: Arc<Attempts>,
    pub(super) failures: Failures,
    pub(super) files: files::Memory,
    pub(super) latest: Latest,
    pub(super) sequences: Arc<Sequences>,
    pub(super) slots: Slots,
    pub(super) ledger: Ledger,
    pub(super) events: Events,
    pub(super) lease_hints: mpsc::Sender<ObjectRef<SandboxLease>>,
    pub(super) command_hints: mpsc::Sender<ObjectRef<SandboxCommand>>,
    /// Cancelled once both watches have listed what there is. (A store's own wait wakes one waiter only.)
    pub(super) listed: CancellationToken,
    /// Cancelled once the Secrets and `ConfigMaps` were listed.
    pub(super) sources_listed: CancellationToken,
    pub(super) pace: Pace,
    pub(super) claims: Claims,
    pub(super) lease_turns: Turns,
    /// Commands that are looked at at once.
    pub(super) command_turns: Semaphore,
    pub(super) stop: CancellationToken,
    pub(super) clock: fn() -> Timestamp,
}

impl Context {
    /// The time, in whole seconds as Kubernetes writes it. The only clock that decisions see.
    pub(super) fn now(&self) -> Timestamp {
        let now = (self.clock)();
        Timestamp::from_second(now.as_second()).unwrap_or(now)
    }

    /// Waits until both watches have listed what there is: what is merely not listed yet must not look missing.
    pub(super) async fn listed(&self) {
        self.listed.cancelled().await;
    }

    /// Asks for a look at a lease. A hint that finds the channel full is dropped: a poll sees the same a little later.
    pub(super) fn hint_lease(&self, namespace: &str, name: &str) {
        let _ = self.lease_hints.try_send(ObjectRef::new(name).within(namespace));
    }

    /// Asks for a look at the leases that may have waited for this one's sandbox.
    pub(super) fn hint_leases_after(&self, ended: &SandboxLease) {
        // By which way they ask for it is not known here.
        let waits = |other: &SandboxLease| {
            let takes_over = reuse_key(other).is_some() || adopts(other).is_some();
            let has = other.status.as_ref().and_then(|s| s.sandbox.as_ref()).is_some_and(|s| s.id.is_some());
            takes_over && !has && ended.uid() != other.uid()
        };
        for other in self.leases.state().iter().filter(|other| waits(other)) {
            self.hint_lease(&other.namespace().unwrap_or_default(), &other.name_any());
        }
    }

    /// Asks for a look at leases and at their commands that run or are next; first at what ends.
    pub(super) fn hint_leases(&self, which: impl Fn(&SandboxLease) -> bool) {
        let all = self.leases.state().into_iter().filter(|lease| which(lease));
        let (ending, others): (Vec<_>, Vec<_>) = all.partition(|lease| is_ending(lease));
        for lease in ending.iter().chain(&others) {
            let (namespace, name) = (lease.namespace().unwrap_or_default(), lease.name_any());
            self.hint_lease(&namespace, &name);
            self.hint_commands_of(&namespace, &name, false);
        }
    }

    /// The command does not run any more.
    pub(super) fn forget_command(&self, uid: &str) {
        self.attempts.forget(uid);
        self.slots.leave(uid);
    }

    /// Only these commands are there still. (A place in a lease is taken back when the next one looks for one.)
    pub(super) fn keep_commands(&self, there: &dyn Fn(&str) -> bool) {
        self.attempts.keep(there);
        self.sequences.keep(there);
    }

    /// Asks for a look at a command.
    pub(super) fn hint_command(&self, command: &SandboxCommand) {
        let _ = self.command_hints.try_send(ObjectRef::from_obj(command));
    }

    /// The commands that name this lease.
    pub(super) fn commands_of(&self, namespace: &str, lease: &str) -> Vec<Arc<SandboxCommand>> {
        self.by_lease.of(namespace, lease, &self.commands)
    }

    /// Asks for a look at the commands of a lease that can do something with its news: those that run or are next, or
    /// all of them, as when it ends.
    pub(super) fn hint_commands_of(&self, namespace: &str, lease: &str, all: bool) {
        let mut commands = self.commands_of(namespace, lease);
        commands.retain(|c| queue::unfinished(c) && (all || queue::running(c)));
        for command in &commands {
            self.hint_command(command);
        }
        if !all {
            self.hint_next(namespace, lease);
        }
    }

    /// Asks for a look at the commands of a lease whose turn has come. The others look at their place now and then:
    /// each move of a long queue would else be told by all of it.
    pub(super) fn hint_next(&self, namespace: &str, lease: &str) {
        let parallel = self.leases.get(&ObjectRef::new(lease).within(namespace)).map_or(1, |lease| parallel(&lease));
        for command in queue::next(self.commands_of(namespace, lease), parallel) {
            self.hint_command(&command);
        }
    }
}

/// How many commands of a lease may run at once.
pub(super) fn parallel(lease: &SandboxLease) -> usize {
    if lease.spec.use_sessions { 1 } else { usize::try_from(lease.spec.max_parallel_commands).unwrap_or(1) }
}

/// A reference for events; resourceVersion is left out, or repeats would not be counted together.
pub(super) fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    ObjectReference { resource_version: None, ..object.object_ref(&()) }
}

/// How long one reconcile may take. Longer than any single call in it, the held ones apart.
pub(super) const RECONCILE_LIMIT: Duration = Duration::from_mins(2);
