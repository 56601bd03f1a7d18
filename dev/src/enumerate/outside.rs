//! What a run has made, as it is seen from outside at one moment: sandboxes with their sessions, processes of scripts,
//! stored logs, copies of keys. No word of the controller's own is in it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::Path;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::names::Names;
use super::oracle::{Finding, Wrong};
use super::others::Before;
use super::world::{Trouble, World, trouble};
use crate::local_daytona::SandboxReport;

/// What has to be seen at a moment, whatever the undisturbed run shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The state of the one sandbox that there is; `None`: none is left.
    pub sandbox: Option<&'static str>,
    /// How many sessions it has.
    pub sessions: usize,
    /// The scripts that run.
    pub running: &'static [&'static str],
    /// How many copies of keys there are; `None`: one that is not needed any more may be there yet.
    pub copies: Option<usize>,
}

/// One sandbox, started, in which nothing runs.
pub const IDLE: Expected = Expected { sandbox: Some("started"), sessions: 1, running: &[], copies: Some(1) };

/// What is seen.
#[derive(Debug, Clone)]
pub struct Outside {
    sandboxes: Vec<SandboxReport>,
    /// The commands that have live processes, and those that speak for none.
    running: BTreeSet<String>,
    /// All live processes of sandboxes.
    processes: Vec<String>,
    /// What was stored beside the commands.
    objects: Vec<Value>,
    /// What was stored where the controller lives.
    copies: Vec<Value>,
}

impl Outside {
    /// Looks. `before`: what is not of this run. `commands`: their names by their UIDs.
    ///
    /// # Errors
    /// When it cannot be seen.
    pub async fn look(world: &World, before: &Before, commands: &BTreeMap<String, String>) -> Result<Self, Trouble> {
        let processes = processes(world.directory.path()).map_err(trouble)?;
        let speaks_for = |process: &Process| {
            let named = commands.iter().filter(|(uid, _)| process.names(uid)).map(|(_, name)| name.clone());
            named.collect::<Vec<_>>()
        };
        let (mut objects, mut copies) = (Vec::new(), Vec::new());
        for (at, objects) in [(&world.namespace, &mut objects), (&world.home, &mut copies)] {
            let maps = world.api::<ConfigMap>(at).list(&ListParams::default()).await.map_err(trouble)?;
            let secrets = world.api::<Secret>(at).list(&ListParams::default()).await.map_err(trouble)?;
            for map in maps.into_iter().filter(|map| !before.has(at, "ConfigMap", &map.name_any())) {
                objects.push(stored("ConfigMap", at, &serde_json::to_value(&map).map_err(trouble)?));
            }
            for secret in secrets.into_iter().filter(|secret| !before.has(at, "Secret", &secret.name_any())) {
                objects.push(stored("Secret", at, &serde_json::to_value(&secret).map_err(trouble)?));
            }
        }
        Ok(Self {
            sandboxes: world.sandboxes().await?,
            running: processes.iter().flat_map(speaks_for).collect(),
            processes: processes.iter().map(|process| process.told.clone()).collect(),
            objects,
            copies,
        })
    }

    /// What of it is not as it has to be, undisturbed or not.
    #[must_use]
    pub fn wrong(&self, expected: &Expected) -> Vec<Finding> {
        let mut wrong = Vec::new();
        let Expected { sandbox, sessions, running, copies } = *expected;
        let seen: Vec<_> = self.sandboxes.iter().map(|s| (s.name.as_str(), s.state.as_str(), &s.sessions)).collect();
        let right = match (&*seen, sandbox) {
            ([], None) => true,
            ([(_, state, here)], Some(wanted)) => *state == wanted && here.len() == sessions,
            _ => false,
        };
        if !right {
            let here: usize = seen.iter().map(|(.., sessions)| sessions.len()).sum();
            let too_many = seen.len() > sandbox.iter().len() || here > sessions;
            let text =
                format!("sandboxes, their state and sessions: {seen:?}, not {sandbox:?} with {sessions} sessions");
            wrong.push(Finding::new(if too_many { Wrong::Leak } else { Wrong::Failure }, text));
        }
        let wanted: BTreeSet<String> = running.iter().map(|name| (*name).to_owned()).collect();
        for name in self.running.difference(&wanted) {
            let text = format!("{name} has ended, but not all of its processes: {:#?}", self.processes);
            wrong.push(Finding::new(Wrong::Leak, text));
        }
        for name in wanted.difference(&self.running) {
            wrong.push(Finding::new(Wrong::Failure, format!("{name} should run, but has no process")));
        }
        let kept = self.copies.len();
        if copies.is_some_and(|copies| copies != kept) {
            let text = format!("copies of keys: {:?}, not {copies:?} of them", self.copies);
            wrong.push(Finding::new(if copies < Some(kept) { Wrong::Leak } else { Wrong::Failure }, text));
        }
        // The shell of a session has none of a script's marks.
        if sessions == 0 && wanted.is_empty() && self.running.is_empty() && !self.processes.is_empty() {
            let text = format!("processes although nothing is to run: {:#?}", self.processes);
            wrong.push(Finding::new(Wrong::Leak, text));
        }
        wrong
    }

    /// What has to be the same in every run.
    #[must_use]
    pub fn facts(&self, names: &Names, expected: &Expected) -> Value {
        let told = |value: &Value| match value {
            Value::String(text) => names.told(text).into(),
            other => other.clone(),
        };
        let sandboxes: Vec<Value> = self
            .sandboxes
            .iter()
            .map(|sandbox| {
                let labels: BTreeMap<&String, Value> = sandbox.labels.iter().map(|(n, v)| (n, told(v))).collect();
                let sessions: Vec<String> = sandbox.sessions.iter().map(|id| whose(&names.told(id))).collect();
                json!({
                    "name": names.told(&sandbox.name), "state": [sandbox.state, sandbox.desired_state],
                    "labels": labels, "sessions": sessions,
                    "stop, archive, delete":
                        [sandbox.auto_stop_interval, sandbox.auto_archive_interval, sandbox.auto_delete_interval],
                })
            })
            .collect();
        let copies = self.copies.iter().filter(|_| expected.copies.is_some());
        let mut objects: Vec<Value> =
            self.objects.iter().chain(copies).map(|object| everywhere(object, &told)).collect();
        objects.sort_by_cached_key(ToString::to_string);
        json!({ "sandboxes": sandboxes, "running": self.running, "objects": objects })
    }
}

/// Of a session whose it is. Its number is no fact: one whose shell did not answer in time was deleted, and another made.
fn whose(session: &str) -> String {
    let (whose, number) = session.rsplit_once('-').unwrap_or((session, ""));
    if number.bytes().all(|byte| byte.is_ascii_digit()) { whose } else { session }.to_owned()
}

/// Of an object what does not tell when it was made.
fn stored(kind: &str, at: &str, object: &Value) -> Value {
    let of = |pointer: &str| object.pointer(pointer).cloned().unwrap_or_default();
    let owners: Vec<Value> = of("/metadata/ownerReferences")
        .as_array()
        .into_iter()
        .flatten()
        .map(|owner| json!([owner.get("kind"), owner.get("name")]))
        .collect();
    // A key is not told.
    let keys = |data: &Value| data.as_object().map(|data| data.keys().cloned().collect::<Vec<_>>());
    let data = if kind == "Secret" { json!(keys(&of("/data"))) } else { of("/data") };
    json!({
        "kind": kind, "at": at, "name": of("/metadata/name"), "labels": of("/metadata/labels"), "owners": owners,
        "type": of("/type"), "immutable": of("/immutable"), "data": data,
    })
}

/// The same with `told` for each text in it.
fn everywhere(value: &Value, told: &impl Fn(&Value) -> Value) -> Value {
    match value {
        Value::Array(all) => all.iter().map(|one| everywhere(one, told)).collect(),
        Value::Object(all) => all.iter().map(|(name, one)| (name.clone(), everywhere(one, told))).collect(),
        other => told(other),
    }
}

/// A live process of a sandbox.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its id and command line, for a person.
    pub told: String,
    /// All of its command line and environment.
    text: String,
}

impl Process {
    /// Whether it is of an attempt of the command with this UID.
    fn names(&self, uid: &str) -> bool {
        self.text.contains(&format!("{uid}-"))
    }
}

/// Processes of this machine that live in a sandbox below `directory`: its paths stand in their environment, or they
/// are in it.
///
/// # Errors
/// When one that may be such a process cannot be looked at.
pub fn processes(directory: &Path) -> io::Result<Vec<Process>> {
    let wanted = directory.join("daytona");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        match look(&entry.path(), &wanted) {
            Ok(process) => found.extend(process),
            // It has ended meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(NO_SUCH_PROCESS) => {}
            // It has rights that we have not, and so none of what we started has.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", entry.path().display()))),
        }
    }
    Ok(found)
}

/// What reading a file of a process says that ends meanwhile.
const NO_SUCH_PROCESS: i32 = 3;

fn look(process: &Path, wanted: &Path) -> io::Result<Option<Process>> {
    let environment = std::fs::read(process.join("environ"))?;
    let environment = String::from_utf8_lossy(&environment).replace('\0', "\n");
    if !environment.contains(&*wanted.to_string_lossy())
        && !std::fs::read_link(process.join("cwd"))?.starts_with(wanted)
    {
        return Ok(None);
    }
    let line = std::fs::read(process.join("cmdline"))?;
    // One that has ended and was not collected yet.
    if line.is_empty() {
        return Ok(None);
    }
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let id = process.file_name().unwrap_or_default().display().to_string();
    Ok(Some(Process {
        told: format!("{id} {}", line.chars().take(160).collect::<String>()),
        text: line + "\n" + &environment,
    }))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sandbox(state: &str, sessions: &[&str]) -> SandboxReport {
        SandboxReport {
            id: "id".to_owned(),
            name: "sblease-6b9f486b-ba6f-4e48-82f2-54933e367ceb".to_owned(),
            state: state.to_owned(),
            desired_state: state.to_owned(),
            labels: BTreeMap::new(),
            sessions: sessions.iter().map(|id| (*id).to_owned()).collect(),
            processes: 0,
            dir: "/nowhere".into(),
            auto_stop_interval: 15,
            auto_archive_interval: 60,
            auto_delete_interval: 10_080,
            last_activity_at: String::new(),
        }
    }

    fn outside(sandboxes: &[SandboxReport], running: &[&str], processes: &[&str]) -> Outside {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Outside {
            sandboxes: sandboxes.to_vec(),
            running: texts(running).into_iter().collect(),
            processes: texts(processes),
            objects: Vec::new(),
            copies: vec![Value::Null],
        }
    }

    #[test]
    fn a_sandbox_session_or_process_too_much_is_wrong_and_so_is_one_too_few() {
        let one = || [sandbox("started", &["a"])];
        assert_eq!(outside(&one(), &[], &["sh"]).wrong(&IDLE), []);
        let runs = Expected { running: &["runs"], ..IDLE };
        assert_eq!(outside(&one(), &["runs"], &["sh", "sleep"]).wrong(&runs), []);
        let none = Expected { sandbox: None, ..IDLE };
        assert_eq!(outside(&[], &[], &[]).wrong(&none), []);
        let no_session = Expected { sessions: 0, ..IDLE };
        let no_copy = Expected { copies: Some(0), ..IDLE };
        let two_copies = Expected { copies: Some(2), ..IDLE };
        assert_eq!(outside(&one(), &[], &[]).wrong(&Expected { copies: None, ..IDLE }), []);
        for (seen, expected, what) in [
            (outside(&[], &[], &[]), &IDLE, "no sandbox"),
            (outside(&[sandbox("started", &["a"]), sandbox("stopped", &[])], &[], &[]), &IDLE, "two sandboxes"),
            (outside(&[sandbox("stopped", &[])], &[], &[]), &IDLE, "it sleeps"),
            (outside(&[sandbox("started", &["a", "b"])], &[], &[]), &IDLE, "two sessions"),
            (outside(&[sandbox("started", &[])], &[], &[]), &IDLE, "no session"),
            (outside(&one(), &["ended"], &["sleep"]), &IDLE, "a script that goes on"),
            (outside(&one(), &[], &["sh"]), &runs, "a script that does not"),
            (outside(&[sandbox("started", &[])], &[], &["sleep"]), &no_session, "a stray process"),
            (outside(&one(), &[], &[]), &none, "a sandbox that is left"),
            (outside(&one(), &[], &[]), &no_copy, "a copy of a key that is left"),
            (outside(&one(), &[], &[]), &two_copies, "a copy of a key that is not there"),
        ] {
            assert_eq!(seen.wrong(expected).len(), 1, "{what}: {:?}", seen.wrong(expected));
        }
    }

    #[test]
    fn facts_are_told_without_what_differs_from_run_to_run() {
        let names = Names::new("ns-7").unwrap();
        names.created("6b9f486b-ba6f-4e48-82f2-54933e367ceb", "l");
        let map = json!({
            "metadata": {
                "name": "c-6b9f486b-ba6f-4e48-82f2-54933e367ceb-stdout", "uid": "x", "labels": { "a": "b" },
                "ownerReferences": [{ "kind": "SandboxCommand", "name": "c", "uid": "x" }],
            },
            "data": { "stdout": "text" }, "immutable": true,
        });
        let mut seen =
            outside(&[sandbox("started", &["6b9f486b-ba6f-4e48-82f2-54933e367ceb-2", "theirs"])], &["c"], &[]);
        seen.objects = vec![stored("ConfigMap", "ns-7", &map)];
        seen.copies = vec![json!("copy")];
        let told = seen.facts(&names, &Expected { copies: None, ..IDLE });
        assert_eq!(
            told,
            json!({
                "sandboxes": [{
                    "name": "sblease-l", "state": ["started", "started"], "labels": {}, "sessions": ["l", "theirs"],
                    "stop, archive, delete": [15, 60, 10080],
                }],
                "running": ["c"],
                "objects": [{
                    "kind": "ConfigMap", "at": "{namespace}", "name": "c-l-stdout", "labels": { "a": "b" },
                    "owners": [["SandboxCommand", "c"]], "type": null, "immutable": true, "data": { "stdout": "text" },
                }],
            })
        );
        assert_ne!(seen.facts(&names, &IDLE), told, "a copy is a fact where there has to be one");
        let key = json!({ "metadata": { "name": "k" }, "type": "t", "data": { "api-key": "c2VjcmV0" } });
        assert_eq!(stored("Secret", "ns-7", &key)["data"], json!(["api-key"]), "a key is not told");
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_is_left_is_found_by_its_environment_and_by_where_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("daytona/x");
        std::fs::create_dir_all(&home).unwrap();
        let mut marked = Command::new("sleep");
        marked.arg("60").env("HOME", &home).env("DTC_ATTEMPT", "uid-1");
        let mut bare = Command::new("sleep");
        bare.arg("60").env_clear().current_dir(&home);
        let children = [marked, bare].map(|mut command| command.spawn().unwrap());
        let found = processes(directory.path()).unwrap();
        children.into_iter().for_each(end);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found.iter().filter(|process| process.names("uid")).count(), 1);
        assert_eq!(processes(directory.path()).unwrap().len(), 0);
    }
}
