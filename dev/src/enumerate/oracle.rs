//! What has to hold at the end of a run, read from the outside: what the scripts themselves wrote down, what the local
//! Daytona and this machine's process table show, what a watch from outside has seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ListParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::follow::State;
use super::world::{FOREIGN, Trouble, World, trouble};
use crate::local_daytona::SandboxReport;
use crate::wait;

/// What the cluster and the machine may take to clear away what has lost its owner. A new cluster learns within half a
/// minute that there is a kind which can own something.
const CLEARING: Duration = Duration::from_mins(1);

/// What was found wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    /// Something else than the undisturbed run, or no end at all.
    Failure,
    /// A script ran more than once.
    DoubleRun,
    /// Something is left.
    Leak,
    /// An outcome is told to be unknown although it was known.
    Unknown,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its kind.
    pub wrong: Wrong,
    /// What it is.
    pub text: String,
}

impl Finding {
    /// A finding.
    #[must_use]
    pub fn new(wrong: Wrong, text: impl Into<String>) -> Self {
        Self { wrong, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrong = match self.wrong {
            Wrong::Failure => "failure",
            Wrong::DoubleRun => "double run",
            Wrong::Leak => "leak",
            Wrong::Unknown => "unknown",
        };
        write!(f, "{wrong}: {}", self.text)
    }
}

/// What the scripts wrote: `begin NAME` when they began, `end NAME CODE` right before they exited by themselves.
#[must_use]
pub fn scripts(written: &str, commands: &BTreeSet<String>) -> Vec<Finding> {
    let mut begun: BTreeMap<&str, usize> = BTreeMap::new();
    for name in written.lines().filter_map(|line| line.strip_prefix("begin ")) {
        *begun.entry(name).or_default() += 1;
    }
    let mut found: Vec<Finding> = begun
        .iter()
        .filter(|(_, count)| **count > 1)
        .map(|(name, count)| Finding::new(Wrong::DoubleRun, format!("{name} ran {count} times")))
        .collect();
    let never = commands.iter().filter(|name| !begun.contains_key(name.as_str()));
    found.extend(never.map(|name| Finding::new(Wrong::Failure, format!("{name} never ran"))));
    found
}

/// What the statuses tell is what the shells saw.
#[must_use]
pub fn outcomes(written: &str, statuses: &BTreeMap<String, Value>) -> Vec<Finding> {
    let mut found = Vec::new();
    let ends: BTreeMap<&str, &str> =
        written.lines().filter_map(|line| line.strip_prefix("end ")?.split_once(' ')).collect();
    for (name, status) in statuses {
        let finished = status.get("state").is_some_and(|state| state == "Finished");
        let object = json!({ "status": status });
        let reason = super::follow::condition(&object, "Succeeded").get("reason").cloned().unwrap_or_default();
        let code = status.get("exitCode").and_then(Value::as_i64);
        if ["OutcomeUnknown", "AlreadyExecuted"].iter().any(|unknown| reason == *unknown) {
            found.push(Finding::new(Wrong::Unknown, format!("{name}: {reason}")));
            continue;
        }
        let seen = ends.get(name.as_str()).and_then(|code| code.parse::<i64>().ok());
        let wrong = match (seen, code) {
            // A script that was ended may have been about to exit by itself.
            (Some(seen), Some(code)) => seen != code && code < 128,
            (Some(_), None) => finished,
            // Nobody exits with these unless a signal ends it.
            (None, Some(code)) => code < 128,
            (None, None) => false,
        };
        if wrong {
            let text = format!("{name}: its shell saw {seen:?}, its status tells {code:?} ({reason})");
            found.push(Finding::new(Wrong::Failure, text));
        }
    }
    found
}

/// The sandboxes that are left, save for the one of somebody else.
#[must_use]
pub fn sandboxes(left: &[SandboxReport], foreign: &str) -> Vec<Finding> {
    let ours = left.iter().filter(|sandbox| sandbox.id != foreign);
    ours.map(|sandbox| Finding::new(Wrong::Leak, format!("sandbox {} is left, {}", sandbox.name, sandbox.state)))
        .collect()
}

/// What was there before a run and has to be there after it, unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Before {
    sandbox: Value,
    /// Kind, name and resourceVersion of everything in the namespace that could be ours.
    objects: BTreeSet<(String, String, String)>,
    /// Names of the Secrets where the controller would live.
    home: BTreeSet<String>,
    /// Number of the last call that Daytona has seen.
    calls: u64,
}

impl Before {
    /// As it is now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn see(world: &World) -> Result<Self, Trouble> {
        let calls = world.daytona.calls().await.map_err(trouble)?.last().map_or(0, |call| call.seq);
        let home = Api::<Secret>::namespaced(world.client.clone(), &world.home);
        Ok(Self {
            sandbox: foreign_sandbox(world).await?,
            objects: objects(world).await?,
            home: names(&home).await?,
            calls,
        })
    }
}

/// Everything at the end of a run after which nothing is to be left. `gone`: the namespace itself is.
///
/// # Errors
/// When something cannot be read.
pub async fn all(
    world: &World,
    before: &Before,
    gone: bool,
    written: &str,
    seen: &Told,
) -> Result<Vec<Finding>, Trouble> {
    let mut found = scripts(written, &seen.commands);
    found.extend(outcomes(written, &seen.statuses));
    found.extend(seen.changed.iter().map(|text| Finding::new(Wrong::Failure, text)));
    found.extend(left(world, before, gone).await?);
    let foreign = foreign_sandbox(world).await?;
    if foreign != before.sandbox {
        let text = format!("somebody else's sandbox was {} and is {foreign}", before.sandbox);
        found.push(Finding::new(Wrong::Failure, text));
    }
    for call in world.daytona.calls_since(before.calls).await.map_err(trouble)? {
        let about = |name: &str| call.sandbox.as_deref() == Some(name);
        let reads = call.method == "GET" && call.route.starts_with("GET /api/");
        if (about(&world.foreign) || about(FOREIGN)) && !reads {
            found.push(Finding::new(Wrong::Failure, format!("somebody else's sandbox was called: {}", call.route)));
        }
    }
    Ok(found)
}

/// What a watch from outside has seen of a run.
#[derive(Debug, Default)]
pub struct Told {
    /// The commands that should have run.
    pub commands: BTreeSet<String>,
    /// The last status of each.
    pub statuses: BTreeMap<String, Value>,
    /// Finished results that changed.
    pub changed: Vec<String>,
}

impl Told {
    /// What was seen, of commands that should have run.
    #[must_use]
    pub fn of(state: &State, commands: BTreeSet<String>) -> Self {
        Self { commands, statuses: state.statuses.clone(), changed: state.changed.clone() }
    }
}

/// What is left once everybody had the time to clear away.
async fn left(world: &World, before: &Before, gone: bool) -> Result<Vec<Finding>, Trouble> {
    let mut last = Ok(Vec::new());
    let _ = wait::until("everything to be cleared away", CLEARING, async || {
        last = left_now(world, before, gone).await;
        matches!(&last, Ok(left) if left.is_empty()).then_some(())
    })
    .await;
    last
}

async fn left_now(world: &World, before: &Before, gone: bool) -> Result<Vec<Finding>, Trouble> {
    let state = world.daytona.state().await.map_err(trouble)?;
    let mut found = sandboxes(&state.sandboxes, &world.foreign);
    let processes = processes(world.directory.path());
    found.extend(processes.into_iter().map(|text| Finding::new(Wrong::Leak, format!("a process is left: {text}"))));
    let home = Api::<Secret>::namespaced(world.client.clone(), &world.home);
    let secrets = names(&home).await?;
    found.extend(
        secrets.difference(&before.home).map(|name| Finding::new(Wrong::Leak, format!("Secret {name} is left"))),
    );
    if gone {
        return Ok(found);
    }
    let objects = objects(world).await?;
    let left = objects.difference(&before.objects);
    found.extend(left.map(|(kind, name, _)| Finding::new(Wrong::Leak, format!("{kind} {name} is left, or changed"))));
    let lost = before.objects.difference(&objects);
    found
        .extend(lost.map(|(kind, name, _)| Finding::new(Wrong::Failure, format!("{kind} {name} is gone, or changed"))));
    Ok(found)
}

async fn objects(world: &World) -> Result<BTreeSet<(String, String, String)>, Trouble> {
    let mut all = BTreeSet::new();
    versions::<ConfigMap>(world, &mut all).await?;
    versions::<Secret>(world, &mut all).await?;
    Ok(all)
}

async fn versions<K>(world: &World, all: &mut BTreeSet<(String, String, String)>) -> Result<(), Trouble>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + Clone + std::fmt::Debug,
    K: serde::de::DeserializeOwned,
{
    let api = Api::<K>::namespaced(world.client.clone(), &world.namespace);
    for object in api.list_metadata(&ListParams::default()).await.map_err(trouble)? {
        all.insert((K::kind(&()).into_owned(), object.name_any(), object.resource_version().unwrap_or_default()));
    }
    Ok(())
}

async fn names(api: &Api<Secret>) -> Result<BTreeSet<String>, Trouble> {
    let all = api.list_metadata(&ListParams::default()).await.map_err(trouble)?;
    Ok(all.iter().map(ResourceExt::name_any).collect())
}

/// Somebody else's sandbox; when it was last used is no matter of ours.
async fn foreign_sandbox(world: &World) -> Result<Value, Trouble> {
    let sandbox = world.daytona.sandbox(&world.foreign).await.map_err(trouble)?;
    let mut sandbox = serde_json::to_value(sandbox).map_err(trouble)?;
    if let Some(sandbox) = sandbox.as_object_mut() {
        sandbox.remove("lastActivityAt");
    }
    Ok(sandbox)
}

/// Processes of this machine that live in a sandbox below `directory`: its paths stand in their environment.
#[must_use]
pub fn processes(directory: &Path) -> Vec<String> {
    let wanted = directory.join("daytona").display().to_string();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let live = entries.filter_map(|entry| {
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        if !String::from_utf8_lossy(&environment).contains(&wanted) {
            return None;
        }
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        Some(format!("{} {}", entry.file_name().display(), line.chars().take(120).collect::<String>()))
    });
    live.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrongs(found: &[Finding]) -> Vec<Wrong> {
        found.iter().map(|finding| finding.wrong).collect()
    }

    fn told(state: &str, code: Option<i64>, reason: &str) -> BTreeMap<String, Value> {
        let conditions = json!([{ "type": "Succeeded", "reason": reason }]);
        [("a".to_owned(), json!({ "state": state, "exitCode": code, "conditions": conditions }))].into()
    }

    #[test]
    fn a_script_that_ran_twice_or_never_is_found() {
        let commands = ["a", "b"].map(str::to_owned).into();
        assert_eq!(scripts("begin a\nend a 0\nbegin b\n", &commands), []);
        assert_eq!(wrongs(&scripts("begin a\nbegin b\nbegin a\n", &commands)), [Wrong::DoubleRun]);
        assert_eq!(wrongs(&scripts("begin a\n", &commands)), [Wrong::Failure]);
        // Not even one that nobody waits for may run twice.
        assert_eq!(wrongs(&scripts("begin a\nbegin b\nbegin c\nbegin c\n", &commands)), [Wrong::DoubleRun]);
    }

    #[test]
    fn an_outcome_that_its_shell_did_not_see_is_found() {
        let (ended, cut_short) = ("begin a\nend a 3\n", "begin a\n");
        for (written, status) in [
            (ended, told("Finished", Some(3), "NonZeroExit")),
            (ended, told("Running", None, "Running")),
            (cut_short, told("Finished", Some(143), "Cancelled")),
            (cut_short, told("Finished", None, "LeaseEnded")),
            // It was ended after its last word.
            (ended, told("Finished", Some(143), "Cancelled")),
        ] {
            assert_eq!(outcomes(written, &status), [], "{written} {status:?}");
        }
        for (written, status) in [
            (ended, told("Finished", Some(0), "Succeeded")),
            (ended, told("Finished", None, "SessionLost")),
            (cut_short, told("Finished", Some(0), "Succeeded")),
        ] {
            assert_eq!(wrongs(&outcomes(written, &status)), [Wrong::Failure], "{written} {status:?}");
        }
        let unknown = told("Finished", None, "OutcomeUnknown");
        assert_eq!(wrongs(&outcomes(ended, &unknown)), [Wrong::Unknown]);
    }

    #[test]
    fn a_sandbox_that_is_left_is_found_unless_it_is_somebody_elses() {
        let sandbox = |id: &str| SandboxReport {
            id: id.to_owned(),
            name: id.to_owned(),
            state: "stopped".to_owned(),
            desired_state: "stopped".to_owned(),
            labels: BTreeMap::new(),
            sessions: Vec::new(),
            processes: 0,
            dir: "/nowhere".into(),
            auto_stop_interval: 0,
            last_activity_at: String::new(),
        };
        assert_eq!(sandboxes(&[sandbox("theirs")], "theirs"), []);
        assert_eq!(wrongs(&sandboxes(&[sandbox("theirs"), sandbox("ours")], "theirs")), [Wrong::Leak]);
    }

    #[test]
    fn a_process_that_is_left_is_found_by_its_environment() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new("sleep");
        command.arg("60").env("HOME", directory.path().join("daytona/x"));
        let mut child = command.spawn().unwrap();
        let found = processes(directory.path());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(processes(directory.path()), Vec::<String>::new());
    }
}
