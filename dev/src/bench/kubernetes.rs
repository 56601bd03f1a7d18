//! The Kubernetes side: commands go in, their ends are seen on a watch, and the apiserver says who wrote how much.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures::TryStreamExt;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::Error;
use super::writes::Writes;
use crate::control_plane::ControlPlane;

const GROUP: &str = "daytona-controller.dev";
const VERSION: &str = "v1alpha1";

/// The label that tells the parts of the benchmark apart.
const PART: &str = "bench";

/// One namespace, as its admin sees it.
#[derive(Clone)]
pub(super) struct Namespace {
    client: Client,
    name: String,
}

impl Namespace {
    pub(super) async fn connect(plane: &ControlPlane, name: &str) -> Result<Self, Error> {
        let kubeconfig = Kubeconfig::read_from(plane.kubeconfig())?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self { client: Client::try_from(config)?, name: name.to_owned() })
    }

    /// Another namespace of the same cluster.
    pub(super) fn beside(&self, name: &str) -> Self {
        Self { client: self.client.clone(), name: name.to_owned() }
    }

    fn commands(&self) -> Api<DynamicObject> {
        self.api("SandboxCommand")
    }

    pub(super) fn leases(&self) -> Api<DynamicObject> {
        self.api("SandboxLease")
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, kind));
        Api::namespaced_with(self.client.clone(), &self.name, &resource)
    }

    pub(super) async fn create_lease(&self, name: &str, use_sessions: bool) -> Result<(), Error> {
        let spec = json!({ "connection": { "apiKeySecretRef": { "name": "daytona" } }, "useSessions": use_sessions });
        self.create(&self.leases(), "SandboxLease", json!({ "name": name }), &spec).await
    }

    /// Posts a command of a part of the benchmark.
    pub(super) async fn create_command(&self, part: &str, name: &str, lease: &str, script: &str) -> Result<(), Error> {
        let spec = json!({ "leaseRef": { "name": lease }, "script": script });
        let metadata = json!({ "name": name, "labels": { PART: part } });
        self.create(&self.commands(), "SandboxCommand", metadata, &spec).await
    }

    async fn create(&self, api: &Api<DynamicObject>, kind: &str, metadata: Value, spec: &Value) -> Result<(), Error> {
        let object =
            json!({ "apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "metadata": metadata, "spec": spec });
        let object = serde_json::from_value(object).map_err(|error| Error::Wrong(error.to_string()))?;
        api.create(&PostParams::default(), &object).await?;
        Ok(())
    }

    /// A merge patch on a command's status: what a plain program writes.
    pub(super) async fn patch_status(&self, name: &str, patch: &Value) -> Result<(), Error> {
        self.commands().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Watches the commands of a part of the benchmark.
    pub(super) fn follow(&self, part: &str) -> Follow {
        let seen = Arc::new(Seen::default());
        let config = watcher::Config::default().labels(&format!("{PART}={part}"));
        let (events, noted) = (watcher(self.commands(), config), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            let events = events.default_backoff().applied_objects();
            let end = events.try_for_each(async |command| {
                noted.note(&command);
                Ok(())
            });
            // Whoever waits for an end is told after its limit.
            let _ = end.await;
        });
        Follow { seen, task }
    }

    /// What was written so far, by everybody.
    pub(super) async fn writes(&self) -> Result<Writes, Error> {
        let request = axum::http::Request::get("/metrics").body(Vec::new());
        let request = request.map_err(|error| Error::Wrong(error.to_string()))?;
        Ok(Writes::read(&self.client.request_text(request).await?))
    }
}

/// How a command ended, seen from outside.
#[derive(Debug, Clone)]
pub(super) struct End {
    /// When its end was seen.
    pub(super) at: Instant,
    /// Its whole object.
    pub(super) command: Arc<DynamicObject>,
}

impl End {
    /// The exit code in its status.
    pub(super) fn exit_code(&self) -> Option<i64> {
        self.command.data.pointer("/status/exitCode").and_then(Value::as_i64)
    }

    pub(super) fn stdout(&self) -> &str {
        self.command.data.pointer("/status/stdout/tail").and_then(Value::as_str).unwrap_or_default()
    }
}

/// The ends of commands, as a watch shows them.
#[derive(Debug)]
pub(super) struct Follow {
    seen: Arc<Seen>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Seen {
    ended: Mutex<HashMap<String, End>>,
    more: Notify,
}

impl Seen {
    fn note(&self, command: &DynamicObject) {
        if !is_true(command, "Finished") {
            return;
        }
        let at = Instant::now();
        let end = || End { at, command: Arc::new(command.clone()) };
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).entry(command.name_any()).or_insert_with(end);
        self.more.notify_waiters();
    }
}

impl Follow {
    /// Waits for the end of one command.
    pub(super) async fn end(&self, name: &str) -> Result<End, Error> {
        let ended = || self.ended(|all| all.get(name).cloned());
        self.wait(&format!("command {name} to end"), ended).await
    }

    /// Waits until `count` commands have ended; says when the last of them did.
    pub(super) async fn ends(&self, count: usize) -> Result<Instant, Error> {
        let last = |all: &HashMap<String, End>| all.values().map(|end| end.at).max().unwrap_or_else(Instant::now);
        let ended = || self.ended(|all| (all.len() >= count).then(|| last(all)));
        self.wait(&format!("{count} commands to end"), ended).await
    }

    /// How many have ended.
    pub(super) fn count(&self) -> usize {
        self.ended(HashMap::len)
    }

    /// How many have ended otherwise than with 0.
    pub(super) fn failures(&self) -> usize {
        self.ended(|all| all.values().filter(|end| end.exit_code() != Some(0)).count())
    }

    fn ended<T>(&self, look: impl FnOnce(&HashMap<String, End>) -> T) -> T {
        look(&self.seen.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn wait<T>(&self, what: &str, look: impl Fn() -> Option<T>) -> Result<T, Error> {
        let found = async {
            loop {
                let more = self.seen.more.notified();
                if let Some(found) = look() {
                    return found;
                }
                more.await;
            }
        };
        let in_vain = |_| Error::Wrong(format!("waited {} s in vain for {what}", super::LIMIT.as_secs()));
        tokio::time::timeout(super::LIMIT, found).await.map_err(in_vain)
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether a condition is True.
pub(super) fn is_true(object: &DynamicObject, type_: &str) -> bool {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let condition = conditions.into_iter().flatten().find(|condition| condition.get("type") == Some(&type_.into()));
    condition.is_some_and(|condition| condition.get("status") == Some(&"True".into()))
}
