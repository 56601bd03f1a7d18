//! The hands of a user: objects are made, changed and deleted from outside, and what comes of it is awaited.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};

use super::follow::{Follow, Kind, condition};
use super::names::Names;
use super::world::{Between, Trouble, World, trouble};
use crate::wait;

/// How long a step may take, whatever is done to the controller.
pub const LIMIT: Duration = Duration::from_secs(75);

/// How a script ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// By itself, with this exit code.
    With(i32),
    /// Not by itself.
    Never,
}

/// A user's hands in one run.
pub struct Hands<'a> {
    /// Where the run is made.
    pub world: &'a World,
    /// What the controller sees of it.
    pub between: &'a Between,
    /// What is seen of it from outside.
    pub follow: Follow,
    names: Arc<Names>,
    expected: Mutex<BTreeSet<String>>,
}

impl<'a> Hands<'a> {
    /// Begins to look.
    #[must_use]
    pub fn new(world: &'a World, between: &'a Between, names: Arc<Names>) -> Self {
        let follow = Follow::new(&world.client, &world.namespace);
        Self { world, between, follow, names, expected: Mutex::default() }
    }

    /// The commands that have to run.
    #[must_use]
    pub fn expected(&self) -> BTreeSet<String> {
        self.list().clone()
    }

    fn list(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> &Client {
        &self.world.client
    }

    /// Makes a lease that uses the Secret with the key.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn lease(&self, name: &str, fields: Value) -> Result<(), Trouble> {
        let mut spec = Map::from_iter([("connection".to_owned(), json!({ "apiKeySecretRef": { "name": "daytona" } }))]);
        if let Value::Object(fields) = fields {
            spec.extend(fields);
        }
        self.create(Kind::Lease, name, &spec.into()).await
    }

    /// Makes a command whose script writes down when it begins and when it exits, and runs `script` between. It has to
    /// run.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn command(
        &self,
        name: &str,
        lease: &str,
        script: &str,
        ends: Ends,
        fields: Value,
    ) -> Result<(), Trouble> {
        let file = self.between.scripts.display();
        let end = match ends {
            Ends::With(code) => format!("echo 'end {name} {code}' >>'{file}'; exit {code}"),
            Ends::Never => "sleep 3600".to_owned(),
        };
        let script = format!("echo 'begin {name}' >>'{file}'; {script}\n{end}\n");
        let mut spec = json!({ "leaseRef": { "name": lease }, "script": script, "terminationGracePeriodSeconds": 1 });
        if let (Value::Object(fields), Some(spec)) = (fields, spec.as_object_mut()) {
            spec.extend(fields);
        }
        self.list().insert(name.to_owned());
        self.create(Kind::Command, name, &spec).await
    }

    async fn create(&self, kind: Kind, name: &str, spec: &Value) -> Result<(), Trouble> {
        let object = json!({
            "apiVersion": Kind::api_version(), "kind": kind.name(), "metadata": { "name": name }, "spec": spec,
        });
        let object: DynamicObject = serde_json::from_value(object).map_err(trouble)?;
        let api = kind.api(self.client(), &self.world.namespace);
        let made = api.create(&PostParams::default(), &object).await.map_err(trouble)?;
        self.names.created(&made.metadata.uid.unwrap_or_default(), name);
        Ok(())
    }

    /// Changes an object's spec.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn change(&self, kind: Kind, name: &str, spec: &Value) -> Result<(), Trouble> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let api = kind.api(self.client(), &self.world.namespace);
        api.patch(name, &PatchParams::default(), &patch).await.map(drop).map_err(trouble)
    }

    /// Deletes an object, without waiting.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn delete(&self, kind: Kind, name: &str) -> Result<(), Trouble> {
        let api = kind.api(self.client(), &self.world.namespace);
        api.delete(name, &DeleteParams::default()).await.map(drop).map_err(trouble)
    }

    /// Deletes all leases and all commands, and waits until they are gone.
    ///
    /// # Errors
    /// When they are not within the limit.
    pub async fn delete_all(&self) -> Result<(), Trouble> {
        for kind in [Kind::Lease, Kind::Command] {
            let api = kind.api(self.client(), &self.world.namespace);
            let _ = api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.map_err(trouble)?;
        }
        let empty = |state: &super::follow::State| state.objects.is_empty().then_some(());
        self.follow.until("all to be gone", LIMIT, empty).await
    }

    /// Waits until an object is gone.
    ///
    /// # Errors
    /// When it is not within the limit.
    pub async fn until_gone(&self, kind: Kind, name: &str) -> Result<(), Trouble> {
        let key = (kind, name.to_owned());
        let what = format!("{} {name} to be gone", kind.name());
        self.follow.until(&what, LIMIT, |state| (!state.objects.contains_key(&key)).then_some(())).await
    }

    /// Waits until an object's condition has this reason.
    ///
    /// # Errors
    /// When it has not within the limit.
    pub async fn until_reason(&self, kind: Kind, name: &str, type_: &str, reason: &str) -> Result<(), Trouble> {
        let key = (kind, name.to_owned());
        let what = format!("{type_} of {name} with reason {reason}");
        let look = |state: &super::follow::State| {
            let found = condition(state.objects.get(&key)?, type_).get("reason")?;
            (*found == reason).then_some(())
        };
        self.follow.until(&what, LIMIT, look).await
    }

    /// Waits until a command is Finished.
    ///
    /// # Errors
    /// When it is not within the limit.
    pub async fn until_finished(&self, name: &str) -> Result<(), Trouble> {
        let what = format!("command {name} to be Finished");
        let look = |state: &super::follow::State| {
            let status = state.statuses.get(name)?.get("state")?;
            (*status == "Finished").then_some(())
        };
        self.follow.until(&what, LIMIT, look).await
    }

    /// A command need not run any more: it, or its lease, is about to be ended.
    pub fn need_not_run(&self, name: &str) {
        self.list().remove(name);
    }

    /// The commands that are there and have not ended.
    #[must_use]
    pub fn under_way(&self) -> Vec<String> {
        let state = self.follow.state();
        let commands = state.objects.iter().filter(|((kind, _), _)| *kind == Kind::Command);
        let goes_on = |object: &Value| object.pointer("/status/state").is_none_or(|state| state != "Finished");
        commands.filter(|(_, object)| goes_on(object)).map(|((_, name), _)| name.clone()).collect()
    }

    /// Waits until a script has begun, by its own word.
    ///
    /// # Errors
    /// When it has not within the limit.
    pub async fn until_begun(&self, name: &str) -> Result<(), Trouble> {
        let line = format!("begin {name}");
        self.until(&format!("{name} to begin"), async || self.written().lines().any(|other| other == line)).await
    }

    /// Waits until something else is as it should be.
    ///
    /// # Errors
    /// When it is not within the limit.
    pub async fn until(&self, what: &str, mut check: impl AsyncFnMut() -> bool) -> Result<(), Trouble> {
        wait::until(what, LIMIT, async || check().await.then_some(())).await.map_err(trouble)
    }

    /// What the scripts have written down.
    #[must_use]
    pub fn written(&self) -> String {
        std::fs::read_to_string(&self.between.scripts).unwrap_or_default()
    }

    /// How leases stand and commands have ended: what must be the same in every run. Of a command that has not ended,
    /// nothing. (The number of attempts is no part of it: one that was fenced off before it began leads to another.)
    #[must_use]
    pub fn standing(&self) -> Value {
        let state = self.follow.state();
        let leases = state.objects.iter().filter(|((kind, _), _)| *kind == Kind::Lease);
        let leases: Map<String, Value> = leases
            .map(|((_, name), object)| {
                let ready = condition(object, "Ready");
                (name.clone(), json!([ready.get("status"), ready.get("reason")]))
            })
            .collect();
        let ended = state.statuses.iter().filter(|(_, status)| status.get("state").is_some_and(|s| s == "Finished"));
        let commands: Map<String, Value> = ended
            .map(|(name, status)| {
                let reason = condition(&json!({ "status": status }), "Succeeded").get("reason").cloned();
                let of = |pointer| status.pointer(pointer);
                let tails = (of("/stdout/tail"), of("/stderr/tail"), of("/stdout/bytes"));
                (name.clone(), json!([reason, of("/exitCode"), tails]))
            })
            .collect();
        json!({ "leases": leases, "commands": commands })
    }
}
