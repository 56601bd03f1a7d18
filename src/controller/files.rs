//! Brings a lease's files into its sandbox, and knows when there is nothing to bring.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use kube::ResourceExt;
use tokio::sync::Semaphore;

use super::{board::Suspicion, context::Context, error::Error, observe::workspace, report::api};
use crate::{
    api::{FileMapping, FileSource, SandboxLease, SourceKind, cut},
    cluster::refs::{Source, source},
    daytona::{Class, Toolbox},
    plan::{
        files::{Files, Gathering, Hindrance, Object, Wanted, in_step},
        lease::{Told, is_ending},
    },
    shell::{Unfiled, filed},
};

/// Leases whose sources are read at once, merely to know whether they changed: each may be some MiB.
const READERS: usize = 8;

/// What is known of the files of one lease. It is read again when a source has changed.
#[derive(Debug, Default)]
struct Entry {
    /// How often a source was said to have changed.
    changes: u64,
    /// What was read, of which spec and directories, after so many changes.
    known: Option<(u64, Key, Files)>,
    /// Whether the sandbox had them at the last look.
    in_step: bool,
}

/// The spec's generation, the sandbox's work directory, and its user's home.
type Key = (Option<i64>, Option<String>, Option<String>);

/// Entries by lease UID. Losing them costs reading the sources once.
#[derive(Debug)]
pub(super) struct Memory {
    leases: Mutex<HashMap<String, Entry>>,
    readers: Semaphore,
}

impl Default for Memory {
    fn default() -> Self {
        Self { leases: Mutex::default(), readers: Semaphore::new(READERS) }
    }
}

impl Memory {
    fn leases(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Whether the sandbox may not have the files as they are now.
    fn is_behind(&self, lease: &str) -> bool {
        let is = |e: &Entry| !e.in_step || e.known.as_ref().is_none_or(|(changes, ..)| *changes != e.changes);
        self.leases().get(lease).is_some_and(is)
    }

    /// What is known, if that is of now.
    fn known(&self, lease: &str, key: &Key) -> Option<Files> {
        let leases = self.leases();
        let entry = leases.get(lease)?;
        let known = entry.known.as_ref().filter(|(changes, of, _)| *changes == entry.changes && of == key);
        known.map(|(.., files)| files.clone())
    }

    fn changes(&self, lease: &str) -> u64 {
        self.leases().entry(lease.to_owned()).or_default().changes
    }

    fn learn(&self, lease: &str, changes: u64, key: Key, files: Files) {
        self.leases().entry(lease.to_owned()).or_default().known = Some((changes, key, files));
    }

    /// Notes whether the sandbox has the files. True when it has, and had not.
    fn note(&self, lease: &str, in_step: bool) -> bool {
        let mut leases = self.leases();
        let entry = leases.entry(lease.to_owned()).or_default();
        std::mem::replace(&mut entry.in_step, in_step) != in_step && in_step
    }
}

/// Whether commands have to wait until the sandbox has the lease's files as they are now.
pub(super) fn hold_commands(lease: &SandboxLease, ctx: &Context) -> bool {
    // What is suspended gets no files, and what drains there waits for none.
    if is_ending(lease) || lease.spec.suspend {
        return false;
    }
    let looked_at = lease.status.as_ref().and_then(|s| s.observed_generation);
    let unseen = !lease.spec.files.is_empty() && looked_at != lease.metadata.generation;
    unseen || ctx.files.is_behind(&lease.uid().unwrap_or_default())
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
    let files = if let Some(files) = ctx.files.known(&uid, &key(lease)) {
        files
    } else {
        let _reader = ctx.files.readers.acquire().await;
        match read(lease, ctx).await {
            Ok(read) => as_seen(&read),
            Err(error) => Files::Unknown(error.to_string()),
        }
    };
    if ctx.files.note(&uid, in_step(lease, &files)) {
        ctx.hint_commands_of(&lease.namespace().unwrap_or_default(), &lease.name_any(), false);
    }
    files
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
    toolbox.upload("upload the lease's files", uploads).await.map_err(|error| match error.class {
        Class::Refused => Error::Sandbox(error.to_string()),
        _ => error.into(),
    })?;
    let done = toolbox.execute("put the lease's files in their places", &workspace.file(&id), ctx.config.hold).await?;
    match filed(&id, &done.result) {
        Ok(()) => {
            tracing::info!(files = count, "brought the files into the sandbox");
            told.filed(digest, writable_dirs);
            Ok(true)
        }
        Err(Unfiled::Failed(all)) => {
            let more = if all.len() > SHOWN { format!("; and {} more", all.len() - SHOWN) } else { String::new() };
            let shown: Vec<String> = all.iter().take(SHOWN).map(|why| cut(why, 200)).collect();
            Err(Error::Sandbox(format!("files could not be brought in or taken away: {}{more}", shown.join("; "))))
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

/// Reads all that the lease wants, and remembers which that is.
async fn read(lease: &SandboxLease, ctx: &Context) -> kube::Result<Result<Wanted, Hindrance>> {
    let uid = lease.uid().unwrap_or_default();
    // What changes while it is read counts as later.
    let changes = ctx.files.changes(&uid);
    let read = gather(lease, ctx).await?;
    ctx.files.learn(&uid, changes, key(lease), as_seen(&read));
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
    let (_, work_dir, home_dir) = key(lease);
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

/// What the files depend on besides their sources.
fn key(lease: &SandboxLease) -> Key {
    let sandbox = lease.status.as_ref().and_then(|s| s.sandbox.clone()).unwrap_or_default();
    (lease.metadata.generation, sandbox.work_dir, sandbox.home_dir)
}
