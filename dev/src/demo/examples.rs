//! What the examples contain, and what they say about their own outcome.

use std::path::Path;

use serde_json::Value;

use super::Error;

/// The prefix of the annotations that say how a command ends.
const EXPECT: &str = "demo.daytona-controller.dev/expect-";
/// On a command that is to be cancelled when it runs.
const CANCEL: &str = "demo.daytona-controller.dev/cancel";

/// The examples that the demo applies.
#[derive(Debug)]
pub(super) struct Examples {
    /// The files, relative to the project, those with leases first.
    pub(super) files: Vec<String>,
    /// The name of the first lease.
    pub(super) lease: String,
    /// The Secret and the key in it that the first lease reads its API key from.
    pub(super) secret: (String, String),
    /// How each command shall end.
    pub(super) expected: Vec<Expected>,
    /// How many sandboxes shall be left behind, stopped, when everything is deleted.
    pub(super) kept: usize,
}

/// How a command shall end; what is absent may be anything.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) name: String,
    pub(super) exit: Option<String>,
    pub(super) stdout: Option<String>,
    pub(super) stderr: Option<String>,
    pub(super) reason: Option<String>,
    /// Whether it is cancelled when it runs.
    pub(super) cancelled: bool,
}

impl Expected {
    fn of(command: &Value) -> Self {
        let annotation = |what: &str| {
            let value = command.pointer("/metadata/annotations")?.get(format!("{EXPECT}{what}"))?;
            value.as_str().map(str::to_owned)
        };
        Self {
            name: text(command, "/metadata/name").unwrap_or_default(),
            exit: annotation("exit"),
            stdout: annotation("stdout"),
            stderr: annotation("stderr"),
            reason: annotation("reason"),
            cancelled: command.pointer("/metadata/annotations").is_some_and(|all| all.get(CANCEL).is_some()),
        }
    }

    /// The output streams of which something is expected.
    pub(super) fn streams_to_show(&self) -> impl Iterator<Item = &'static str> {
        let has = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        [("stdout", has(&self.stdout)), ("stderr", has(&self.stderr))]
            .into_iter()
            .filter_map(|(stream, shown)| shown.then_some(stream))
    }
}

impl Examples {
    /// Reads all leases and commands in a directory, and what they are read from. Files with other objects, such as a
    /// Secret to fill in, are left out.
    pub(super) fn read(directory: &Path) -> Result<Self, Error> {
        let unreadable = |source| Error::File { path: directory.to_owned(), source };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                let objects = objects(&path)?;
                files.push((path, objects));
            }
        }
        let is = |object: &Value, kind: &str| text(object, "/kind").as_deref() == Some(kind);
        let ours = |object: &Value| ["SandboxLease", "SandboxCommand", "ConfigMap"].iter().any(|kind| is(object, kind));
        files.retain(|(_, objects)| !objects.is_empty() && objects.iter().all(ours));
        let has_lease = |objects: &[Value]| objects.iter().any(|object| is(object, "SandboxLease"));
        // The plainest first.
        files.sort_by_key(|(path, objects)| (!has_lease(objects), objects.len(), path.clone()));

        let all = || files.iter().flat_map(|(_, objects)| objects);
        let wrong = |reason: &str| Error::Example { path: directory.to_owned(), reason: reason.to_owned() };
        let lease = all().find(|object| is(object, "SandboxLease")).ok_or_else(|| wrong("has no lease"))?;
        let secret = "/spec/connection/apiKeySecretRef";
        let expected: Vec<_> = all().filter(|object| is(object, "SandboxCommand")).map(Expected::of).collect();
        if expected.iter().all(|expected| expected.exit.is_none()) {
            return Err(wrong("no command says how it ends, by the annotation expect-exit"));
        }
        Ok(Self {
            lease: text(lease, "/metadata/name").unwrap_or_default(),
            secret: (
                text(lease, &format!("{secret}/name")).ok_or_else(|| wrong("the lease names no apiKeySecretRef"))?,
                text(lease, &format!("{secret}/key")).unwrap_or_else(|| "api-key".to_owned()),
            ),
            files: files
                .iter()
                .filter_map(|(path, _)| Some(format!("examples/{}", path.file_name()?.to_str()?)))
                .collect(),
            expected,
            kept: all().filter(|object| is(object, "SandboxLease") && is_kept(object)).count(),
        })
    }
}

/// Whether a lease makes a sandbox, and leaves it behind.
fn is_kept(lease: &Value) -> bool {
    let policy = text(lease, "/spec/reclaimPolicy");
    let suspended = lease.pointer("/spec/suspend").and_then(Value::as_bool);
    policy.is_some_and(|policy| policy != "Delete") && suspended != Some(true)
}

fn objects(path: &Path) -> Result<Vec<Value>, Error> {
    let yaml = std::fs::read_to_string(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&yaml)
        .map_err(|error| Error::Example { path: path.to_owned(), reason: error.to_string() })?;
    Ok(objects.into_iter().filter(Value::is_object).collect())
}

fn text(object: &Value, pointer: &str) -> Option<String> {
    object.pointer(pointer)?.as_str().map(str::to_owned)
}
