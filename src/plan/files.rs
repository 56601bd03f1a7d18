//! A lease's files: which are wanted, whether they are there, and what keeps them from being brought in.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use sha2::{Digest, Sha256};

use super::{
    lease_seen::{Intervals, Observed, Step, pace},
    lease_status::Told,
};
use crate::{
    api::{
        Access, FileMapping, FileSource, LeaseCondition, LeaseReason as Reason, SandboxLease, SourceKind, condition,
        cut,
    },
    shell::{File, hex},
};

/// Most files of a lease, and most bytes in all of them: they travel in one call.
const MOST_FILES: usize = 256;
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// How the names begin under which files are made beside their places.
const TEMPORARY: &str = ".dtc-new";

/// Stands for a directory that is not known yet; no path can have it.
const NOWHERE: &str = "\0";

/// What is known of a lease's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// Which are wanted, as `status.filesDigest` says it once they are there; `None`: none.
    Wanted(Option<String>),
    /// They cannot be brought in before somebody mends something.
    Hindered(Reason, String),
    /// Which are wanted, what kept them from being written the last time, and for how long not to try again.
    Unwritable(Option<String>, String, Duration),
    /// The Kubernetes API did not tell, for so long.
    Unknown(String, Duration),
}

/// Why files cannot be brought in before somebody mends something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hindrance(pub Reason, pub String);

/// A Secret or `ConfigMap`, as far as it matters here.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    /// Its UID and resourceVersion.
    pub version: &'a str,
    /// Its keys and values.
    pub data: &'a BTreeMap<String, Vec<u8>>,
}

impl fmt::Debug for Object<'_> {
    /// Without the values, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({}, {} keys)", self.version, self.data.len())
    }
}

/// All that a lease wants in its sandbox.
#[derive(Debug, Default)]
pub struct Wanted {
    /// The files.
    pub files: Vec<File>,
    /// What `status.filesDigest` is when they are there.
    pub digest: Option<String>,
    /// What `status.writableDirs` is then.
    pub writable_dirs: Vec<String>,
}

/// Gathers what a lease wants, mapping by mapping, so that not all sources have to be in memory at once.
#[derive(Debug)]
pub struct Gathering {
    work_dir: String,
    kept_dir: String,
    files: BTreeMap<String, File>,
    bytes: usize,
    digest: Sha256,
    writable_dirs: BTreeSet<String>,
}

impl Gathering {
    /// Nothing yet. While the sandbox's directories are not known, relative paths lead to a place of their own, and
    /// what is gathered only tells whether something is missing.
    #[must_use]
    pub fn new(work_dir: Option<&str>, home_dir: Option<&str>) -> Self {
        Self {
            work_dir: work_dir.unwrap_or(NOWHERE).trim_end_matches('/').to_owned(),
            kept_dir: format!("{}/.daytona-controller", home_dir.unwrap_or(NOWHERE).trim_end_matches('/')),
            files: BTreeMap::new(),
            bytes: 0,
            digest: Sha256::new(),
            writable_dirs: BTreeSet::new(),
        }
    }

    /// Takes in a mapping; `object` is what it reads, unless there is no such object. The order counts.
    ///
    /// # Errors
    /// When what it reads is not there, or does not fit with the rest.
    pub fn add(&mut self, mapping: &FileMapping, object: Option<Object<'_>>) -> Result<(), Hindrance> {
        let path = match mapping.path.strip_prefix('/') {
            Some(_) => mapping.path.clone(),
            None => format!("{}/{}", self.work_dir, mapping.path),
        };
        let access = if mapping.access == Access::ReadOnly { "ro" } else { "rw" };
        self.note([path.as_str(), access, &mapping.mode]);
        let directory = match mapping.source() {
            FileSource::Inline(text) => {
                self.note(["inline", text]);
                self.put(mapping, path.clone(), text.as_bytes())?;
                parent(&path)
            }
            FileSource::Key(kind, key) => {
                let value = object.and_then(|object| object.data.get(&key.key));
                self.note(["key", kind.as_str(), &key.name, &key.key]);
                self.note_version(kind, object.filter(|_| value.is_some()), value.into_iter());
                match value {
                    Some(value) => self.put(mapping, path.clone(), value)?,
                    None if key.optional => {}
                    None if object.is_none() => return Err(missing(kind, &key.name)),
                    None => {
                        let message = format!(
                            "{} {:?} has no key {:?}, which is to be the file {}; add it",
                            kind.as_str(),
                            key.name,
                            key.key,
                            mapping.path
                        );
                        return Err(Hindrance(not_found(kind), message));
                    }
                }
                parent(&path)
            }
            FileSource::Whole(kind, reference) => {
                self.note(["whole", kind.as_str(), &reference.name]);
                self.note_version(kind, object, object.into_iter().flat_map(|o| o.data.values()));
                for (key, value) in object.into_iter().flat_map(|object| object.data) {
                    self.note([key.as_str()]);
                    self.put(mapping, format!("{path}/{key}"), value)?;
                }
                if object.is_none() && !reference.optional {
                    return Err(missing(kind, &reference.name));
                }
                &path
            }
        };
        if mapping.access == Access::ReadWrite {
            self.writable_dirs.insert(cut(directory, 2048));
        }
        Ok(())
    }

    /// What was gathered.
    ///
    /// # Errors
    /// When the files cannot all be in one place.
    pub fn finish(self) -> Result<Wanted, Hindrance> {
        for path in self.files.keys() {
            let above = std::iter::successors(Some(parent(path)), |path| (path.len() > 1).then(|| parent(path)));
            if let Some(file) = above.into_iter().find(|above| self.files.contains_key(*above)) {
                let message = format!("files: {file} would be a file and the directory of {path}; change a path");
                return Err(Hindrance(Reason::InvalidSpec, message.replace(&format!("{NOWHERE}/"), "")));
            }
        }
        Ok(Wanted {
            files: self.files.into_values().collect(),
            digest: Some(hex(self.digest.finalize().iter().take(16))),
            writable_dirs: self.writable_dirs.into_iter().collect(),
        })
    }

    fn put(&mut self, mapping: &FileMapping, path: String, content: &[u8]) -> Result<(), Hindrance> {
        // As it was written, where it is not known yet to which directory it is relative.
        let unfit = |message: String| Err(Hindrance(Reason::InvalidSpec, message.replace(&format!("{NOWHERE}/"), "")));
        if path.starts_with(&format!("{}/", self.kept_dir)) || path == self.kept_dir {
            return unfit(format!("files: {} is the controller's own; choose another path than {path}", self.kept_dir));
        }
        if path.split('/').any(|part| part.starts_with(TEMPORARY)) {
            return unfit(format!(
                "files: the controller uses names that begin with {TEMPORARY} while it writes; choose another than {path}"
            ));
        }
        if self.files.contains_key(&path) {
            return unfit(format!("files: two entries write {path}; change one"));
        }
        self.bytes += content.len();
        if self.bytes > MOST_BYTES || self.files.len() >= MOST_FILES {
            return unfit(format!(
                "files: more than {MOST_FILES} files or {MOST_BYTES} bytes in all; map fewer, or have a command fetch \
                 them"
            ));
        }
        let once = mapping.access == Access::ReadWrite;
        let file = File { path: path.clone(), mode: mapping.mode.clone(), once, content: content.to_vec() };
        self.files.insert(path, file);
        Ok(())
    }

    /// Of a Secret only the version counts: nobody who reads the digest can try values. Of a `ConfigMap`, which has no
    /// secrets, the content: it may be written often without a change.
    fn note_version<'a>(
        &mut self,
        kind: SourceKind,
        object: Option<Object<'_>>,
        values: impl Iterator<Item = &'a Vec<u8>>,
    ) {
        match (kind, object) {
            (_, None) => self.note(["none"]),
            (SourceKind::Secret, Some(object)) => self.note(["version", object.version]),
            (SourceKind::ConfigMap, Some(_)) => {
                self.note(["content"]);
                values.for_each(|value| self.note([value.as_slice()]));
            }
        }
    }

    fn note<const N: usize>(&mut self, fields: [impl AsRef<[u8]>; N]) {
        for field in fields {
            let field = field.as_ref();
            self.digest.update(field.len().to_le_bytes());
            self.digest.update(field);
        }
    }
}

fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

fn not_found(kind: SourceKind) -> Reason {
    match kind {
        SourceKind::Secret => Reason::SecretNotFound,
        SourceKind::ConfigMap => Reason::ConfigMapNotFound,
    }
}

fn missing(kind: SourceKind, name: &str) -> Hindrance {
    let message = format!("{} {name:?}, which files names, is not in this namespace; create it", kind.as_str());
    Hindrance(not_found(kind), message)
}

/// In place of a digest: some files may be there and some not. Nothing that is wanted has it, so that also a spec that
/// goes back to what it was has them brought in again.
const UNDER_WAY: &str = "-";

/// Whether the sandbox has the files that are wanted.
#[must_use]
pub fn in_step(lease: &SandboxLease, files: &Files) -> bool {
    let recorded = lease.status.as_ref().and_then(|s| s.files_digest.as_deref());
    matches!(files, Files::Wanted(digest) if digest.as_deref() == recorded)
}

/// What is told of a lease's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filed {
    pub(super) digest: Option<String>,
    pub(super) writable_dirs: Vec<String>,
    /// Whether it is told that they are being brought in, in place of Ready.
    pub(super) unsynced: bool,
}

impl Filed {
    /// What is recorded.
    pub(super) fn new(lease: &SandboxLease, observed: &Observed) -> Self {
        let recorded = lease.status.clone().unwrap_or_default();
        let unsynced = unsynced(lease, observed);
        Self { digest: recorded.files_digest, writable_dirs: recorded.writable_dirs, unsynced }
    }
}

impl Told {
    /// Commands can be run.
    pub(super) fn serving(&mut self) {
        let with = if self.sessions { "its session takes" } else { "takes" };
        self.ready(Reason::Ready, &format!("the sandbox runs and {with} commands"));
        if self.files.unsynced {
            self.waiting(Reason::SyncingFiles, "the lease's files are being brought into the sandbox");
        }
    }

    /// The files are in the sandbox as this digest says; `None`: there are none to be kept.
    pub fn filed(&mut self, digest: Option<String>, writable_dirs: Vec<String>) {
        self.files = Filed { digest, writable_dirs, unsynced: false };
    }

    /// The files could not be written, and most often only a person can mend that.
    pub fn unfiled(&mut self, message: &str) {
        self.unwritable(message, "It is tried again within ten minutes, and at once when the files change");
    }

    fn unwritable(&mut self, message: &str, then: &str) {
        let message = format!("{message}. {then}");
        self.waiting(Reason::SandboxError, &message);
        self.stalled = true;
    }

    /// What is in the sandbox is not known any more; nothing, where nothing was to be there.
    pub(super) fn files_in_doubt(&mut self) {
        if self.files.digest.is_some() {
            self.files.digest = Some(UNDER_WAY.to_owned());
        }
    }

    /// All runs, but commands wait until a person mends something.
    fn hindered(&mut self, reason: Reason, message: &str) {
        self.serving();
        self.waiting(reason, message);
        self.stalled = true;
    }
}

/// Whether the lease is not ready for want of its files. One that is Ready stays so while a source's change is brought
/// in, but not when its own spec asks for other files than it has.
fn unsynced(lease: &SandboxLease, observed: &Observed) -> bool {
    let conditions = lease.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    let ready = condition(conditions, LeaseCondition::Ready.as_str());
    let was_ready = ready.is_some_and(|ready| {
        ready.reason == Reason::Ready.as_str() && ready.observed_generation == lease.metadata.generation
    });
    !was_ready && !in_step(lease, &observed.files)
}

/// Tells what keeps the files from being brought in, where something does, and no sandbox runs.
pub(super) fn is_hindered(observed: &Observed, told: &mut Told) -> bool {
    let Files::Hindered(reason, message) = &observed.files else { return false };
    told.failed(*reason, message);
    true
}

/// Tells that a sandbox that sleeps is not woken for files that could not be written in it.
pub(super) fn is_unwritable(observed: &Observed, told: &mut Told) -> bool {
    let Files::Unwritable(_, message, _) = &observed.files else { return false };
    told.unwritable(
        message,
        "The sandbox sleeps, and is not started for that; it is tried again when the files change",
    );
    true
}

/// What to do about the files of a sandbox that takes commands.
pub(super) fn keep_files(
    lease: &SandboxLease,
    observed: &Observed,
    intervals: &Intervals,
    told: &mut Told,
) -> (Step, Duration) {
    told.serving();
    match &observed.files {
        Files::Wanted(_) if in_step(lease, &observed.files) => (Step::Rest, intervals.idle),
        Files::Unwritable(_, message, wait) if !wait.is_zero() => {
            told.unfiled(message);
            (Step::Rest, intervals.idle.min(*wait))
        }
        Files::Wanted(_) | Files::Unwritable(..) => {
            // Written first: from here on the sandbox has neither the one nor the other.
            if told.files.digest.as_deref() == Some(UNDER_WAY) {
                return (Step::SyncFiles, Duration::ZERO);
            }
            told.files.digest = Some(UNDER_WAY.to_owned());
            (Step::Record, Duration::ZERO)
        }
        Files::Hindered(reason, message) => {
            told.hindered(*reason, message);
            (Step::Rest, intervals.idle)
        }
        Files::Unknown(message, since) => {
            if told.files.unsynced || *since >= intervals.absence {
                told.waiting(Reason::ApiUnreachable, &format!("the Kubernetes API did not tell the files: {message}"));
            }
            (Step::Rest, pace(observed, intervals))
        }
    }
}

#[cfg(test)]
mod tests;
