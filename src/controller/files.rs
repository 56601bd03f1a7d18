//! Brings a lease's files into its sandbox, and knows when there is nothing to bring.

use std::{
    collections::HashMap,
    hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kube::ResourceExt;
use tokio::sync::Semaphore;

use super::{board::Suspicion, context::Context, error::Error, observe::workspace, report::api};
use crate::{
    api::{FileMapping, FileSource, REQUESTED_AT, SandboxLease, SourceKind, cut},
    cluster::{
        refs::{Source, source},
        said,
    },
    daytona::{Class, Toolbox},
    plan::{
        backoff::grow,
        files::{Files, Gathering, Hindrance, Object, Wanted, in_step},
        lease::{Told, is_ending},
    },
    shell::{Unfiled, filed},
};

/// Leases whose sources are read at once, merely to know whether they changed: each may be some MiB.
const READERS: usize = 8;

/// The same of those that are brought in, which are in memory until they have arrived.
const WRITERS: usize = 32;

/// The first wait and the longest after files could not be written: most of that only a person mends.
const FIRST_WAIT: Duration = Duration::from_secs(30);
const LONGEST_WAIT: Duration = Duration::from_mins(10);

/// What is known of the files of one lease. It is read again when a source has changed.
#[derive(Debug, Default)]
struct Entry {
    /// How often a source was said to have changed.
    changes: u64,
    /// What was read, for which lease, after so many changes.
    known: Option<(u64, Key, Files)>,
    /// Whether the sandbox had them at the last look.
    in_step: bool,
    /// What could not be written.
    failure: Option<Failure>,
    /// Since when the sources cannot be read.
    unread: Option<Instant>,
}

impl Entry {
    /// Whether the sandbox may not have the files as they are now.
    fn is_behind(&self) -> bool {
        !self.in_step || self.known.as_ref().is_none_or(|(changes, ..)| *changes != self.changes)
    }
}

/// Files that could not be written.
#[derive(Debug)]
struct Failure {
    digest: Option<String>,
    message: String,
    times: u32,
    again: Instant,
}

/// What the files depend on besides their sources: the entries, the sandbox's work directory, and its user's home.
#[derive(Clone, Debug)]
struct Key {
    generation: Option<i64>,
    entries: u64,
    directories: (Option<String>, Option<String>),
}

impl Key {
    fn new(lease: &SandboxLease) -> Self {
        Self { generation: lease.metadata.generation, entries: entries(lease), directories: directories(lease) }
    }

    /// Whether the lease has the same entries. Its generation also changes with each renewal.
    fn is_of(&self, lease: &SandboxLease) -> bool {
        self.generation == lease.metadata.generation || self.entries == entries(lease)
    }
}

/// What the lease's entries are.
fn entries(lease: &SandboxLease) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(&lease.spec.files).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

fn directories(lease: &SandboxLease) -> (Option<String>, Option<String>) {
    let sandbox = lease.status.as_ref().and_then(|s| s.sandbox.clone()).unwrap_or_default();
    (sandbox.work_dir, sandbox.home_dir)
}

/// Entries by lease UID. Losing them costs reading the sources once.
#[derive(Debug)]
pub(super) struct Memory {
    leases: Mutex<HashMap<String, Entry>>,
    readers: Semaphore,
    writers: Semaphore,
}

impl Default for Memory {
    fn default() -> Self {
        Self { leases: Mutex::default(), readers: Semaphore::new(READERS), writers: Semaphore::new(WRITERS) }
    }
}

impl Memory {
    fn leases(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, lease: &str, change: impl FnOnce(&mut Entry) -> T) -> T {
        change(self.leases().entry(lease.to_owned()).or_default())
    }

    /// A source may have changed.
    pub(super) fn changed(&self, lease: &str) {
        if let Some(entry) = self.leases().get_mut(lease) {
            entry.changes += 1;
        }
    }

    pub(super) fn forget(&self, lease: &str) {
        self.leases().remove(lease);
    }

    /// What is known, if that is of now.
    fn known(&self, uid: &str, lease: &SandboxLease) -> Option<Files> {
        let mut leases = self.leases();
        let entry = leases.get_mut(uid)?;
        let (changes, key, files) = entry.known.as_mut()?;
        if *changes != entry.changes || !key.is_of(lease) || key.directories != directories(lease) {
            return None;
        }
        // So that the entries need not be compared at the next look.
        key.generation = lease.metadata.generation;
        Some(files.clone())
    }

    fn changes(&self, lease: &str) -> u64 {
        self.with(lease, |entry| entry.changes)
    }

    fn learn(&self, lease: &str, changes: u64, key: Key, files: Files) {
        self.with(lease, |entry| {
            entry.known = Some((changes, key, files));
            entry.unread = None;
        });
    }

    /// For how long the sources could not be read.
    fn unread(&self, lease: &str) -> Duration {
        self.with(lease, |entry| entry.unread.get_or_insert_with(Instant::now).elapsed())
    }

    /// Whether the sandbox may not have the files as they are now.
    fn is_behind(&self, lease: &str) -> bool {
        self.leases().get(lease).is_some_and(Entry::is_behind)
    }

    /// Notes whether the sandbox has the files. True when it has, and did not, or was not known to.
    fn note(&self, lease: &str, was_behind: bool, in_step: bool) -> bool {
        self.with(lease, |entry| {
            let had = std::mem::replace(&mut entry.in_step, in_step);
            (was_behind || !had) && !entry.is_behind()
        })
    }

    /// These files could not be written; when to try again.
    fn fail(&self, lease: &str, digest: Option<String>, message: String) -> Duration {
        self.with(lease, |entry| {
            let before = entry.failure.take().filter(|before| before.digest == digest);
            let times = before.map_or(0, |before| before.times + 1);
            let wait = grow(FIRST_WAIT, LONGEST_WAIT, times, RandomState::new().hash_one(lease));
            entry.failure = Some(Failure { digest, message, times, again: Instant::now() + wait });
            wait
        })
    }

    /// What keeps these files from being written, and for how long not to try again.
    fn failure(&self, lease: &str, digest: Option<&str>) -> Option<(String, Duration)> {
        let leases = self.leases();
        let failure = leases.get(lease)?.failure.as_ref().filter(|failure| failure.digest.as_deref() == digest)?;
        Some((failure.message.clone(), failure.again.saturating_duration_since(Instant::now())))
    }

    fn worked(&self, lease: &str) {
        self.with(lease, |entry| entry.failure = None);
    }
}

/// Whether commands have to wait until the sandbox has the lease's files as they are now.
pub(super) fn hold_commands(lease: &SandboxLease, ctx: &Context) -> bool {
    // What is suspended gets no files, and what drains there waits for none.
    if is_ending(lease) || lease.spec.suspend {
        return false;
    }
    let leases = ctx.files.leases();
    let entry = leases.get(&lease.uid().unwrap_or_default());
    let known = entry.and_then(|entry| entry.known.as_ref());
    let looked_at = lease.status.as_ref().and_then(|s| s.observed_generation);
    let unseen = known.map_or_else(
        || !lease.spec.files.is_empty() && looked_at != lease.metadata.generation,
        |(_, key, _)| !key.is_of(lease),
    );
    unseen || entry.is_some_and(Entry::is_behind)
}

/// Whether the lease reads files from this object.
pub(super) fn reads(lease: &SandboxLease, kind: SourceKind, name: &str) -> bool {
    lease.spec.files.iter().any(|mapping| mapping.reads(kind, name))
}

/// Which files are wanted. Nothing is read that is known already.
pub(super) async fn observe(lease: &SandboxLease, ctx: &Context) -> Files {
    let uid = lease.uid().unwrap_or_default();
    let recorded = lease.status.as_ref().and_then(|s| s.files_digest.as_ref());
    if lease.spec.files.is_empty() && recorded.is_none() {
        ctx.files.forget(&uid);
        return Files::Wanted(None);
    }
    let was_behind = ctx.files.is_behind(&uid);
    let files = if let Some(files) = ctx.files.known(&uid, lease) {
        files
    } else {
        let _reader = ctx.files.readers.acquire().await;
        match read(lease, ctx).await {
            Ok(read) => as_seen(&read),
            Err(error) => Files::Unknown(said(&error), ctx.files.unread(&uid)),
        }
    };
    let has_them = in_step(lease, &files);
    if ctx.files.note(&uid, was_behind, has_them) {
        ctx.hint_commands_of(&lease.namespace().unwrap_or_default(), &lease.name_any(), false);
    }
    match files {
        Files::Wanted(digest) if !has_them => match ctx.files.failure(&uid, digest.as_deref()) {
            Some((message, _)) if is_asked(lease) => Files::Unwritable(digest, message, Duration::ZERO),
            Some((message, wait)) => Files::Unwritable(digest, message, wait),
            None => Files::Wanted(digest),
        },
        other => other,
    }
}

/// Whether a person asks for another look.
fn is_asked(lease: &SandboxLease) -> bool {
    let handled = lease.status.as_ref().and_then(|s| s.last_handled_reconcile_at.as_ref());
    lease.annotations().get(REQUESTED_AT).is_some_and(|asked| handled != Some(&cut(asked, 256)))
}

/// Puts the files into the sandbox, each at once or not at all, removes what is wanted no more, and tells so. False:
/// the lease has changed, and nothing was done.
pub(super) async fn sync(
    lease: &SandboxLease,
    toolbox: &Toolbox,
    told: &mut Told,
    ctx: &Context,
) -> Result<bool, Error> {
    let uid = lease.uid().unwrap_or_default();
    // A source that changes often must not keep an idle sandbox awake, nor a file that cannot be written.
    let toolbox = toolbox.unnoticed();
    // Before they are read: a thousand sandboxes must not have a thousand times some MiB in memory.
    let _place = toolbox.long_place().await;
    let _writer = ctx.files.writers.acquire().await;
    // Where a source has just gone, the next look tells.
    let Ok(Wanted { files, digest, writable_dirs }) = read(lease, ctx).await? else { return Ok(false) };
    // The object may come from a cache that is behind: what is old must not come after what is new.
    let live = api(lease, ctx).get_opt(&lease.name_any()).await?;
    if live.as_ref().and_then(ResourceExt::resource_version) != lease.resource_version() {
        return Ok(false);
    }
    let (count, workspace) = (files.len(), workspace(lease));
    // Never used twice: what an earlier controller has under way must not meet ours.
    let id = format!("files-{:016x}", RandomState::new().hash_one(&uid));
    let uploads = workspace.stage(&id, files).into_iter().map(|file| (file.path, file.content)).collect();
    let unfiled = |message: String| {
        let wait = ctx.files.fail(&uid, digest.clone(), message.clone());
        Err(Error::Unfiled(message, wait))
    };
    match toolbox.upload("upload the lease's files", uploads).await {
        Err(error) if error.class == Class::Refused => return unfiled(error.to_string()),
        sent => sent?,
    }
    let done = toolbox.execute("put the lease's files in their places", &workspace.file(&id), ctx.config.hold).await?;
    match filed(&id, &done.result) {
        Ok(()) => {
            tracing::info!(files = count, "brought the files into the sandbox");
            ctx.files.worked(&uid);
            told.filed(digest, writable_dirs);
            Ok(true)
        }
        Err(Unfiled::Failed(all)) => {
            let more = if all.len() > SHOWN { format!("; and {} more", all.len() - SHOWN) } else { String::new() };
            let shown: Vec<String> = all.iter().take(SHOWN).map(|why| ends(why, 400)).collect();
            unfiled(format!("files could not be brought in or taken away: {}{more}", shown.join("; ")))
        }
        Err(Unfiled::Incomplete) => {
            Err(Error::Sandbox("not all of the files had arrived; they are sent again".to_owned()))
        }
        Err(Unfiled::Busy) => Err(Error::Sandbox(
            "somebody else is putting files there, and could not be ended; it is tried again".to_owned(),
        )),
        Err(Unfiled::Garbled) => {
            // Perhaps somebody removed our programs.
            if let Some(handle) = ctx.board.handle(&uid) {
                ctx.board.suspect(&uid, handle.epoch, Suspicion::Workspace);
            }
            Err(Error::Sandbox("the files could not be put in their places; it is tried again".to_owned()))
        }
    }
}

/// Failures that a message names.
const SHOWN: usize = 4;

/// A text of at most about so many characters: what is left out is in the middle, for the reason is at the end.
fn ends(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let half = most / 2;
    text.chars().take(half).chain(['…']).chain(text.chars().skip(count - half)).collect()
}

/// Reads all that the lease wants, and remembers which that is.
async fn read(lease: &SandboxLease, ctx: &Context) -> kube::Result<Result<Wanted, Hindrance>> {
    let uid = lease.uid().unwrap_or_default();
    // What changes while it is read counts as later.
    let changes = ctx.files.changes(&uid);
    let read = gather(lease, ctx).await?;
    ctx.files.learn(&uid, changes, Key::new(lease), as_seen(&read));
    Ok(read)
}

/// As the decision sees it.
fn as_seen(read: &Result<Wanted, Hindrance>) -> Files {
    match read {
        Ok(wanted) => Files::Wanted(wanted.digest.clone()),
        Err(Hindrance(reason, message)) => Files::Hindered(*reason, message.clone()),
    }
}

/// Reads one object at a time.
async fn gather(lease: &SandboxLease, ctx: &Context) -> kube::Result<Result<Wanted, Hindrance>> {
    if lease.spec.files.is_empty() {
        return Ok(Ok(Wanted::default()));
    }
    let (work_dir, home_dir) = directories(lease);
    let mut gathering = Gathering::new(work_dir.as_deref(), home_dir.as_deref());
    let mut mappings: Vec<(Option<(SourceKind, &str)>, &FileMapping)> =
        lease.spec.files.iter().map(|mapping| (object(mapping), mapping)).collect();
    mappings.sort_by_key(|(object, mapping)| (*object, &mapping.path));
    let mut last: Option<(SourceKind, &str)> = None;
    let mut found: Option<Source> = None;
    for (of, mapping) in mappings {
        if of != last {
            found = None;
            if let Some((kind, name)) = of {
                found = source(&ctx.client, &lease.namespace().unwrap_or_default(), kind, name).await?;
            }
            last = of;
        }
        let object = found.as_ref().map(|source| Object { version: &source.version, data: &source.data });
        if let Err(hindrance) = gathering.add(mapping, object) {
            return Ok(Err(hindrance));
        }
    }
    Ok(gathering.finish())
}

/// What a mapping reads.
fn object(mapping: &FileMapping) -> Option<(SourceKind, &str)> {
    match mapping.source() {
        FileSource::Inline(_) => None,
        FileSource::Key(kind, key) => Some((kind, &key.name)),
        FileSource::Whole(kind, object) => Some((kind, &object.name)),
    }
}

#[cfg(test)]
mod tests;
