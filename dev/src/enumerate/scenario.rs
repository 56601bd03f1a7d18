//! What is done from outside in a run, and what it leads to when nobody disturbs it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use reqwest::Method;
use serde_json::{Value, json};

use super::follow::Kind;
use super::hands::{Ends, Hands};
use super::outside::{Expected, IDLE};
use super::world::{Trouble, ask, trouble};

/// What is gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scenario {
    /// A lease with a session and three commands: one fails, one is cancelled while it runs, one runs when all is
    /// deleted.
    Sessions,
    /// The same, each command as a process of its own.
    OneShot,
    /// A lease is suspended while a command runs, and resumed.
    Suspend,
    /// A sandbox falls asleep and is woken by a command.
    Sleep,
    /// A lease leaves its sandbox stopped, and another takes it over.
    Reuse,
    /// A lease leaves its sandbox as it is.
    Retain,
    /// A file's source changes.
    Files,
    /// The namespace is deleted with all that is in it while a command runs.
    Namespace,
    /// As [`Self::Sessions`], with two controllers of which one leads; it is the one that is killed.
    Replicas,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Sessions,
        Self::OneShot,
        Self::Suspend,
        Self::Sleep,
        Self::Reuse,
        Self::Retain,
        Self::Files,
        Self::Namespace,
        Self::Replicas,
    ];

    /// Its name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::OneShot => "one-shot",
            Self::Suspend => "suspend",
            Self::Sleep => "sleep",
            Self::Reuse => "reuse",
            Self::Retain => "retain",
            Self::Files => "files",
            Self::Namespace => "namespace",
            Self::Replicas => "replicas",
        }
    }

    /// Whether it is the reference that every fault is tried on.
    #[must_use]
    pub fn is_base(self) -> bool {
        matches!(self, Self::Sessions | Self::OneShot)
    }

    /// Whether the namespace is gone with it.
    #[must_use]
    pub fn ends_namespace(self) -> bool {
        self == Self::Namespace
    }

    /// The commands that run when they and their lease are deleted together.
    #[must_use]
    pub fn deleted_at_once(self) -> &'static [&'static str] {
        match self {
            Self::Sessions | Self::OneShot | Self::Namespace | Self::Replicas => &["runs"],
            Self::Suspend | Self::Sleep | Self::Reuse | Self::Retain | Self::Files => &[],
        }
    }

    /// Whether there are two controllers.
    #[must_use]
    pub fn has_replicas(self) -> bool {
        self == Self::Replicas
    }

    /// Goes through it, and has looked at how things stand in between, and before all is deleted.
    ///
    /// # Errors
    /// When a step does not come to its end.
    pub async fn go(self, hands: &Hands<'_>) -> Result<(), Trouble> {
        match self {
            Self::Sessions | Self::Replicas => base(hands, true).await,
            Self::OneShot => base(hands, false).await,
            Self::Suspend => suspend(hands).await,
            Self::Sleep => sleep(hands).await,
            Self::Reuse => reuse(hands).await,
            Self::Retain => retain(hands).await,
            Self::Files => files(hands).await,
            Self::Namespace => namespace(hands).await,
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|scenario| scenario.name() == text);
        found.ok_or_else(|| format!("there is no scenario {text:?}, but {known}"))
    }
}

const LEASE: &str = "l";
/// The moment before all is deleted.
const END: &str = "end";
/// A sandbox that was stopped: nothing lives in it.
const STOPPED: Expected = Expected { sandbox: Some("stopped"), sessions: 0, ..IDLE };

/// Makes a lease and waits until it is ready: commands that come with their lease are the base scenario's.
async fn ready(hands: &Hands<'_>, name: &str, fields: Value) -> Result<(), Trouble> {
    hands.lease(name, fields).await?;
    hands.until_reason(Kind::Lease, name, "Ready", "Ready").await
}

async fn short(hands: &Hands<'_>, name: &str, lease: &str) -> Result<(), Trouble> {
    hands.command(name, lease, &format!("echo out {name}"), Ends::With(0), json!({})).await
}

async fn base(hands: &Hands<'_>, sessions: bool) -> Result<(), Trouble> {
    let parallel = if sessions { 1 } else { 2 };
    hands.lease(LEASE, json!({ "useSessions": sessions, "maxParallelCommands": parallel })).await?;
    // Its input travels as a file, and its output is longer than its tail.
    let fields = json!({ "stdin": { "value": "input\n" }, "logs": { "tailBytes": 64 } });
    hands.command("fails", LEASE, "cat; seq 1 100; echo bad >&2", Ends::With(3), fields).await?;
    hands.command("cancelled", LEASE, "echo out", Ends::Never, json!({})).await?;
    hands.command("runs", LEASE, "echo out", Ends::Never, json!({})).await?;
    hands.until_finished("fails").await?;
    hands.until_begun("cancelled").await?;
    hands.change(Kind::Command, "cancelled", &json!({ "cancel": true })).await?;
    hands.until_finished("cancelled").await?;
    hands.until_begun("runs").await?;
    hands.until_reason(Kind::Lease, LEASE, "Ready", "Ready").await?;
    hands.look(END, &Expected { sessions: usize::from(sessions), running: &["runs"], ..IDLE }).await?;
    hands.delete_all().await
}

async fn suspend(hands: &Hands<'_>) -> Result<(), Trouble> {
    ready(hands, LEASE, json!({ "useSessions": true, "suspendPolicy": "Cancel" })).await?;
    short(hands, "before", LEASE).await?;
    hands.command("runs", LEASE, "echo out", Ends::Never, json!({})).await?;
    hands.until_finished("before").await?;
    hands.until_begun("runs").await?;
    hands.change(Kind::Lease, LEASE, &json!({ "suspend": true })).await?;
    hands.until_finished("runs").await?;
    hands.until_reason(Kind::Lease, LEASE, "Ready", "Suspended").await?;
    hands.look("suspended", &STOPPED).await?;
    short(hands, "behind", LEASE).await?;
    hands.change(Kind::Lease, LEASE, &json!({ "suspend": false })).await?;
    hands.until_finished("behind").await?;
    end(hands).await
}

async fn sleep(hands: &Hands<'_>) -> Result<(), Trouble> {
    ready(hands, LEASE, json!({ "useSessions": true, "sandbox": { "autoStopMinutes": 1 } })).await?;
    short(hands, "before", LEASE).await?;
    hands.until_finished("before").await?;
    hands.until_reason(Kind::Lease, LEASE, "Ready", "Ready").await?;
    let world = hands.world;
    let mut looks = 0_u32;
    hands
        .until("the sandbox to fall asleep", async || {
            // What the controller still has to do keeps it awake, and then it is idle again.
            if looks.is_multiple_of(20) && world.daytona.advance_clock(Duration::from_mins(3)).await.is_err() {
                return false;
            }
            looks += 1;
            world.sandboxes().await.is_ok_and(|ours| ours.iter().any(|sandbox| sandbox.state == "stopped"))
        })
        .await?;
    hands.until_reason(Kind::Lease, LEASE, "Ready", "Asleep").await?;
    hands.look("asleep", &STOPPED).await?;
    short(hands, "wakes", LEASE).await?;
    hands.until_finished("wakes").await?;
    end(hands).await
}

async fn reuse(hands: &Hands<'_>) -> Result<(), Trouble> {
    let fields = |policy| json!({ "useSessions": true, "reclaimPolicy": policy, "sandbox": { "reuseKey": "cache" } });
    ready(hands, "first", fields("Stop")).await?;
    hands.command("writes", "first", "echo kept >state", Ends::With(0), json!({})).await?;
    hands.until_finished("writes").await?;
    hands.delete(Kind::Lease, "first").await?;
    hands.until_gone(Kind::Lease, "first").await?;
    hands.look("left", &Expected { copies: None, ..STOPPED }).await?;
    hands.until_released_by("first").await?;
    ready(hands, "second", fields("Delete")).await?;
    hands.command("reads", "second", "cat state", Ends::With(0), json!({})).await?;
    hands.until_finished("reads").await?;
    hands.until_reason(Kind::Lease, "second", "Ready", "Ready").await?;
    hands.look(END, &IDLE).await?;
    hands.delete_all().await
}

async fn retain(hands: &Hands<'_>) -> Result<(), Trouble> {
    ready(hands, LEASE, json!({ "useSessions": true, "reclaimPolicy": "Retain" })).await?;
    short(hands, "before", LEASE).await?;
    hands.command("cancelled", LEASE, "echo out", Ends::Never, json!({})).await?;
    hands.until_finished("before").await?;
    hands.until_begun("cancelled").await?;
    hands.change(Kind::Command, "cancelled", &json!({ "cancel": true })).await?;
    hands.until_finished("cancelled").await?;
    hands.until_reason(Kind::Lease, LEASE, "Ready", "Ready").await?;
    hands.look(END, &IDLE).await?;
    hands.delete(Kind::Lease, LEASE).await?;
    hands.until_gone(Kind::Lease, LEASE).await?;
    hands.look("kept", &Expected { sessions: 0, copies: Some(0), ..IDLE }).await?;
    hands.until_released_by(LEASE).await?;
    let world = hands.world;
    for sandbox in world.sandboxes().await? {
        ask(&world.daytona, Method::DELETE, &format!("/sandbox/{}", sandbox.id), &Value::Null).await?;
    }
    hands.delete_all().await
}

async fn files(hands: &Hands<'_>) -> Result<(), Trouble> {
    let maps = hands.world.config_maps();
    let mut map = ConfigMap::default();
    map.metadata.name = Some("source".to_owned());
    map.data = Some([("key".to_owned(), "old\n".to_owned())].into());
    maps.create(&PostParams::default(), &map).await.map_err(trouble)?;
    let source = json!({ "name": "source", "key": "key" });
    let files = json!([{ "path": "file", "configMapKeyRef": source }]);
    ready(hands, LEASE, json!({ "useSessions": true, "files": files })).await?;
    hands.command("before", LEASE, "cat file", Ends::With(0), json!({})).await?;
    hands.until_finished("before").await?;
    let patch = Patch::Merge(json!({ "data": { "key": "new\n" } }));
    maps.patch("source", &PatchParams::default(), &patch).await.map_err(trouble)?;
    let world = hands.world;
    hands
        .until("the file to follow", async || {
            let Ok(ours) = world.sandboxes().await else { return false };
            ours.iter()
                .any(|s| std::fs::read_to_string(s.dir.join("home/daytona/file")).is_ok_and(|text| text == "new\n"))
        })
        .await?;
    hands.command("after", LEASE, "cat file", Ends::With(0), json!({})).await?;
    hands.until_finished("after").await?;
    end(hands).await?;
    maps.delete("source", &DeleteParams::default()).await.map(drop).map_err(trouble)
}

async fn namespace(hands: &Hands<'_>) -> Result<(), Trouble> {
    ready(hands, LEASE, json!({ "useSessions": true })).await?;
    short(hands, "before", LEASE).await?;
    hands.command("runs", LEASE, "echo out", Ends::Never, json!({})).await?;
    hands.until_finished("before").await?;
    hands.until_begun("runs").await?;
    hands.look(END, &Expected { running: &["runs"], ..IDLE }).await?;
    let namespaces = Api::<Namespace>::all(hands.world.client.clone());
    let name = &hands.world.namespace;
    let _ = namespaces.delete(name, &DeleteParams::default()).await.map_err(trouble)?;
    let gone = async || matches!(namespaces.get_opt(name).await, Ok(None));
    if let Err(late) = hands.until("the namespace to be gone", gone).await {
        let namespace = namespaces.get_opt(name).await.map_err(trouble)?;
        let conditions = namespace.and_then(|namespace| namespace.status?.conditions).unwrap_or_default();
        let told: Vec<_> = conditions.into_iter().filter(|c| c.status == "True").filter_map(|c| c.message).collect();
        return Err(format!("{late}: {told:?}"));
    }
    Ok(())
}

async fn end(hands: &Hands<'_>) -> Result<(), Trouble> {
    hands.until_reason(Kind::Lease, LEASE, "Ready", "Ready").await?;
    hands.look(END, &IDLE).await?;
    hands.delete_all().await
}
