//! The texts and uploads that put a lease's files in their places; `filing.sh` is the other end.

use std::fmt::{self, Write as _};

use sha2::{Digest, Sha256};

use super::{Upload, Workspace, hex};
use crate::shell::job::quote;

/// A file that is to be in the sandbox.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// Absolute path without control characters.
    pub path: String,
    /// Permissions, octal.
    pub mode: String,
    /// Whether it is written only if it never was, and is not removed when it is not named any more.
    pub once: bool,
    /// Content.
    pub content: Vec<u8>,
}

impl fmt::Debug for File {
    /// Without the content, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({}, {} bytes)", self.path, self.content.len())
    }
}

/// Why not all files are as they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfiled {
    /// Some could not be written or removed; the others were. One `PATH: REASON` each.
    Failed(Vec<String>),
    /// Not all of the upload was there; nothing was touched.
    Incomplete,
    /// Somebody is at it, and could not be ended; nothing was touched.
    Busy,
    /// The answer is not the runner's.
    Garbled,
}

impl Workspace {
    /// What has to be uploaded before [`Self::file`] is sent. `id`, of `[A-Za-z0-9-]`, is used once.
    #[must_use]
    pub fn stage(&self, id: &str, files: Vec<File>) -> Vec<Upload> {
        let beside = self.base.rsplit_once('/').map_or("", |(directory, _)| directory);
        let upload = |name: &str, content| Upload { path: format!("{beside}/files/stage/{id}/{name}"), content };
        let mut plan = String::new();
        let mut uploads = Vec::with_capacity(files.len() + 1);
        for file in files {
            let key = key(&file.path);
            let access = if file.once { "rw" } else { "ro" };
            let _ = writeln!(plan, "{access} {} {} {key} {}|", file.mode, file.content.len(), file.path);
            uploads.push(upload(&key, file.content));
        }
        plan.push_str("end\n");
        uploads.push(upload("plan", plan.into_bytes()));
        uploads
    }

    /// One-shot text that puts the staged files in their places, each at once, and removes those that an earlier stage
    /// named and this one does not. [`filed`] reads what it prints.
    #[must_use]
    pub fn file(&self, id: &str) -> String {
        format!("exec sh {} file {}", quote(&self.runner()), quote(id))
    }
}

/// What became of the files of this stage.
///
/// # Errors
/// See [`Unfiled`].
pub fn filed(id: &str, text: &str) -> Result<(), Unfiled> {
    let start = format!("dtc1 {id} ");
    let mut failed = Vec::new();
    for said in text.lines().filter_map(|line| line.strip_prefix(&start)) {
        match said.split_once(' ') {
            Some(("failed", why)) => failed.push(why.to_owned()),
            None if said == "filed" && failed.is_empty() => return Ok(()),
            None if said == "unfinished" && !failed.is_empty() => return Err(Unfiled::Failed(failed)),
            None if said == "incomplete" => return Err(Unfiled::Incomplete),
            None if said == "busy" => return Err(Unfiled::Busy),
            _ => return Err(Unfiled::Garbled),
        }
    }
    Err(Unfiled::Garbled)
}

/// The name of a file's own files in the workspace.
pub(super) fn key(path: &str) -> String {
    hex(Sha256::digest(path).iter().take(16))
}
