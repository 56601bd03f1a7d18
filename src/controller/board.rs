//! What the lease controller knows of each lease's sandbox since it started, for the command controller to use.
//! Losing it loses nothing: it is observed again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    daytona::{Client, Toolbox},
    plan::command::{Place, Sandbox},
    shell::Workspace,
};

/// A way into a sandbox that takes commands.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) toolbox: Toolbox,
    pub(super) workspace: Workspace,
    pub(super) sandbox: String,
    pub(super) place: Place,
    pub(super) epoch: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) enum Standing {
    /// Not looked at since the controller started, or nobody answers.
    #[default]
    Unknown,
    /// The sandbox does not run.
    Down,
    /// The sandbox is gone or failed.
    Lost,
    /// It takes commands.
    Up(Arc<Handle>),
}

/// What is wrong with a session that is thought to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Suspicion {
    /// Our files in the sandbox may be gone. Something may be running.
    Workspace,
    /// Its shell may be dead. Nothing of ours runs in it.
    Shell,
}

/// How a lease lets go of what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// It is being deleted, or has expired.
    Ending,
    /// It is suspended, and what runs is being ended, or nothing runs.
    Suspended,
}

#[derive(Debug, Default)]
struct Entry {
    standing: Standing,
    suspect: Option<Suspicion>,
    epoch: u64,
    seen: Option<(String, Instant)>,
    /// Since when the lease ends, or is suspended with nothing running; and which of them.
    leaving: Option<(Leaving, Instant)>,
    kept_awake: Option<Instant>,
    /// The last write that has to show in the next look.
    wrote: Option<&'static str>,
    recovered: bool,
    /// Whether no create call was made since the sandbox's name was recorded; `None`: an earlier controller recorded it.
    uncreated: Option<bool>,
    /// The last client that worked: it outlives the Secret, which goes first when a namespace is deleted.
    client: Option<Arc<Client>>,
    /// Attempts whose outcome is recorded; their files are removed with the next call.
    collected: Vec<String>,
}

/// Entries by lease UID.
#[derive(Debug, Default)]
pub(super) struct Board(Mutex<HashMap<String, Entry>>);

impl Board {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, lease: &str, change: impl FnOnce(&mut Entry) -> T) -> T {
        change(self.entries().entry(lease.to_owned()).or_default())
    }

    pub(super) fn handle(&self, lease: &str) -> Option<Arc<Handle>> {
        match &self.entries().get(lease)?.standing {
            Standing::Up(handle) => Some(Arc::clone(handle)),
            Standing::Unknown | Standing::Down | Standing::Lost => None,
        }
    }

    /// The sandbox as the command's decision sees it.
    pub(super) fn sandbox(&self, lease: &str) -> Sandbox {
        let entries = self.entries();
        let Some(entry) = entries.get(lease) else { return Sandbox::Unknown };
        match &entry.standing {
            Standing::Unknown => Sandbox::Unknown,
            Standing::Down => Sandbox::Down,
            Standing::Lost => Sandbox::Lost,
            Standing::Up(handle) => Sandbox::Up {
                trusted: entry.suspect.is_none(),
                id: handle.sandbox.clone(),
                place: handle.place.clone(),
                epoch: handle.epoch,
            },
        }
    }

    /// Notes how the sandbox stands. True when that is news.
    pub(super) fn put(&self, lease: &str, standing: Standing) -> bool {
        self.with(lease, |entry| {
            let news = !matches!(
                (&entry.standing, &standing),
                (Standing::Unknown, Standing::Unknown)
                    | (Standing::Down, Standing::Down)
                    | (Standing::Lost, Standing::Lost)
            );
            entry.standing = standing;
            news
        })
    }

    /// Makes a handle known; every handle has an epoch of its own.
    pub(super) fn serve(&self, lease: &str, suspect: Option<Suspicion>, make: impl FnOnce(u64) -> Handle) {
        self.with(lease, |entry| {
            entry.epoch += 1;
            entry.suspect = suspect;
            entry.standing = Standing::Up(Arc::new(make(entry.epoch)));
        });
    }

    /// Whether commands could be sent there since the controller started.
    pub(super) fn has_served(&self, lease: &str) -> bool {
        self.entries().get(lease).is_some_and(|entry| entry.epoch > 0)
    }

    /// The session of this epoch does not do what it is told. True when that is news.
    pub(super) fn suspect(&self, lease: &str, epoch: u64, suspicion: Suspicion) -> bool {
        self.with(lease, |entry| {
            let present = matches!(&entry.standing, Standing::Up(handle) if handle.epoch == epoch);
            let news = present && entry.suspect.is_none_or(|known| known < suspicion);
            if news {
                entry.suspect = Some(suspicion);
            }
            news
        })
    }

    pub(super) fn suspicion(&self, lease: &str) -> Option<Suspicion> {
        self.entries().get(lease).and_then(|e| e.suspect)
    }

    /// Notes how the sandbox looks; for how long it has looked so.
    pub(super) fn since(&self, lease: &str, looks: &str) -> Duration {
        self.with(lease, |entry| match &entry.seen {
            Some((same, since)) if same == looks => since.elapsed(),
            _ => {
                entry.seen = Some((looks.to_owned(), Instant::now()));
                Duration::ZERO
            }
        })
    }

    /// Something was done to the sandbox: how it looked before counts no more.
    pub(super) fn changed(&self, lease: &str) {
        self.with(lease, |entry| entry.seen = None);
    }

    /// For how long the lease has been seen leaving like this. By our own clock: the API server's may differ.
    pub(super) fn leaving(&self, lease: &str, now: Option<Leaving>) -> Duration {
        self.with(lease, |entry| {
            let same = entry.leaving.filter(|(how, _)| Some(*how) == now);
            entry.leaving = now.map(|how| same.unwrap_or_else(|| (how, Instant::now())));
            entry.leaving.map(|(_, since)| since.elapsed()).unwrap_or_default()
        })
    }

    /// Notes a write that has to show in the next look; whether the one before was the same, so that it did not show.
    pub(super) fn wrote_again(&self, lease: &str, what: &'static str) -> bool {
        self.with(lease, |entry| entry.wrote.replace(what) == Some(what))
    }

    /// The sandbox's name was recorded: a create call comes next.
    pub(super) fn intended(&self, lease: &str) {
        self.with(lease, |entry| entry.uncreated = Some(true));
    }

    /// A create call was made. `certain`: it did not take effect.
    pub(super) fn created(&self, lease: &str, certain: bool) {
        self.with(lease, |entry| entry.uncreated = entry.uncreated.map(|none| none && certain));
    }

    /// Whether no create call can have taken effect, now or later.
    pub(super) fn never_created(&self, lease: &str) -> bool {
        self.entries().get(lease).is_some_and(|entry| entry.uncreated == Some(true))
    }

    /// The sandbox was kept from being stopped for idleness.
    pub(super) fn keep_awake(&self, lease: &str) {
        self.with(lease, |entry| entry.kept_awake = Some(Instant::now()));
    }

    /// Since when it was last kept awake.
    pub(super) fn kept_awake(&self, lease: &str) -> Option<Duration> {
        self.entries().get(lease)?.kept_awake.map(|at| at.elapsed())
    }

    /// Whether Daytona was asked to recover the sandbox since it ran last.
    pub(super) fn set_recovered(&self, lease: &str, recovered: bool) {
        self.with(lease, |entry| entry.recovered = recovered);
    }

    pub(super) fn recovered(&self, lease: &str) -> bool {
        self.entries().get(lease).is_some_and(|entry| entry.recovered)
    }

    pub(super) fn keep_client(&self, lease: &str, client: &Arc<Client>) {
        self.with(lease, |entry| entry.client = Some(Arc::clone(client)));
    }

    pub(super) fn client(&self, lease: &str) -> Option<Arc<Client>> {
        self.entries().get(lease).and_then(|e| e.client.clone())
    }

    /// Attempts whose outcome is recorded, or whose files could not be removed after all.
    pub(super) fn collected(&self, lease: &str, attempts: impl IntoIterator<Item = String>) {
        self.with(lease, |entry| entry.collected.extend(attempts));
    }

    /// The collected attempts, at most as many as fit into one text.
    pub(super) fn take_collected(&self, lease: &str) -> Vec<String> {
        self.with(lease, |entry| {
            let from = entry.collected.len().saturating_sub(64);
            entry.collected.split_off(from)
        })
    }

    pub(super) fn forget(&self, lease: &str) {
        self.entries().remove(lease);
    }
}
