//! The hands of a user: objects are made, changed and deleted from outside, and what comes of it is awaited.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};

use super::follow::{Follow, Kind, condition};
use super::names::Names;
use super::oracle::{Finding, Told, differences};
use super::others::Before;
use super::outside::{Expected, Outside};
use super::world::{Between, Trouble, World, trouble};
use crate::local_daytona::SandboxReport;
use crate::wait;

/// How long a step may take, whatever is done to the controller. Undisturbed the longest takes a few seconds. What may
/// come on top, one after the other, is a call that is carried on late (six seconds), a watch that is frozen (until it is
/// made anew, five to ten), a lead that is taken over (three) and a controller that starts; the rest is for many
/// runs on few cores.
pub const LIMIT: Duration = Duration::from_secs(45);

/// How a script ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// By itself, with this exit code.
    With(i32),
    /// Not by itself.
    Never,
}

/// For so long it is waited that what is seen from outside is as undisturbed: drift is looked for, and a call whose answer
/// did not come is asked again after the controller's own time-out.
const SETTLING: Duration = Duration::from_secs(20);
/// Without anything to compare with, what has not changed for so long has settled.
const CALM: Duration = Duration::from_millis(300);

/// A command that was made.
#[derive(Debug, Clone)]
struct Made {
    name: String,
    lease: String,
    has_to_run: bool,
    /// It may be ended by somebody else than itself.
    may_be_ended: bool,
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
    /// Commands by their UIDs.
    made: Mutex<BTreeMap<String, Made>>,
    /// What stood there before, and what was seen at moments of the undisturbed run.
    compared: Option<(Before, Option<Value>)>,
    seen: Mutex<Seen>,
}

/// What was seen at moments of this run.
#[derive(Debug, Default)]
struct Seen {
    moments: Map<String, Value>,
    findings: Vec<Finding>,
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Hands<'a> {
    /// Begins to look.
    #[must_use]
    pub fn new(world: &'a World, between: &'a Between, names: Arc<Names>) -> Self {
        let follow = Follow::new(&world.client, &world.namespace);
        let (made, seen) = (Mutex::default(), Mutex::default());
        Self { world, between, follow, names, made, compared: None, seen }
    }

    /// Compares what is seen with what stood there `before`, and with the undisturbed run, if this is not it.
    #[must_use]
    pub fn comparing(mut self, before: Before, undisturbed: Option<Value>) -> Self {
        self.compared = Some((before, undisturbed));
        self
    }

    /// The commands that have to run.
    #[must_use]
    pub fn expected(&self) -> BTreeSet<String> {
        lock(&self.made).values().filter(|made| made.has_to_run).map(|made| made.name.clone()).collect()
    }

    /// What was seen of commands until now.
    #[must_use]
    pub fn told(&self) -> Told {
        let ended = lock(&self.made).values().filter(|made| made.may_be_ended).map(|made| made.name.clone()).collect();
        Told::of(&self.follow.state(), self.expected()).of_which_ended(ended)
    }

    /// From here on these may be ended.
    fn may_end(&self, which: impl Fn(&Made) -> bool) {
        lock(&self.made).values_mut().filter(|made| which(made)).for_each(|made| made.may_be_ended = true);
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
        self.create(Kind::Lease, name, &spec.into()).await.map(drop)
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
        let uid = self.create(Kind::Command, name, &spec).await?;
        let (name, lease, may_be_ended) = (name.to_owned(), lease.to_owned(), ends == Ends::Never);
        let made = Made { name, lease, has_to_run: true, may_be_ended };
        lock(&self.made).insert(uid, made);
        Ok(())
    }

    async fn create(&self, kind: Kind, name: &str, spec: &Value) -> Result<String, Trouble> {
        let object = json!({
            "apiVersion": Kind::api_version(), "kind": kind.name(), "metadata": { "name": name }, "spec": spec,
        });
        let object: DynamicObject = serde_json::from_value(object).map_err(trouble)?;
        let api = kind.api(self.client(), &self.world.namespace);
        let made = api.create(&PostParams::default(), &object).await.map_err(trouble)?;
        let uid = made.metadata.uid.unwrap_or_default();
        self.names.created(&uid, name);
        Ok(uid)
    }

    /// Changes an object's spec.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn change(&self, kind: Kind, name: &str, spec: &Value) -> Result<(), Trouble> {
        let is_set = |field: &str| spec.get(field).is_some_and(|value| *value == true);
        match kind {
            Kind::Command if is_set("cancel") => self.may_end(|made| made.name == name),
            Kind::Lease if is_set("suspend") => self.may_end(|made| made.lease == name),
            Kind::Command | Kind::Lease => {}
        }
        let patch = Patch::Merge(json!({ "spec": spec }));
        let api = kind.api(self.client(), &self.world.namespace);
        api.patch(name, &PatchParams::default(), &patch).await.map(drop).map_err(trouble)
    }

    /// Deletes an object, without waiting.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn delete(&self, kind: Kind, name: &str) -> Result<(), Trouble> {
        self.may_end(|made| if kind == Kind::Command { made.name == name } else { made.lease == name });
        let api = kind.api(self.client(), &self.world.namespace);
        api.delete(name, &DeleteParams::default()).await.map(drop).map_err(trouble)
    }

    /// Deletes all leases and all commands, and waits until they are gone.
    ///
    /// # Errors
    /// When they are not within the limit.
    pub async fn delete_all(&self) -> Result<(), Trouble> {
        self.may_end(|_| true);
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
        for made in lock(&self.made).values_mut().filter(|made| made.name == name) {
            (made.has_to_run, made.may_be_ended) = (false, true);
        }
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

    /// Waits until the sandbox carries no lease's label any more, but that of the one which has left it behind.
    ///
    /// # Errors
    /// When it does not within the limit.
    pub async fn until_released_by(&self, lease: &str) -> Result<(), Trouble> {
        let handed_over = |sandbox: &SandboxReport| {
            let label =
                |name: &str| sandbox.labels.get(&format!("daytona-controller.dev/{name}")).and_then(Value::as_str);
            label("lease-uid").is_none() && label("released-by").is_some_and(|uid| self.names.told(uid) == lease)
        };
        let look = async || self.world.sandboxes().await.is_ok_and(|ours| ours.iter().all(handed_over));
        self.until(&format!("the sandbox to be handed over by {lease}"), look).await
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

    /// Looks at everything at a moment of the scenario, from outside and in statuses, and notes it: what is not as it has
    /// to be, or not as in the undisturbed run, is a finding. Everybody has the time to come to it.
    ///
    /// # Errors
    /// When it cannot be seen.
    pub async fn look(&self, moment: &str, expected: &Expected) -> Result<(), Trouble> {
        let Some((before, undisturbed)) = &self.compared else { return Ok(()) };
        let undisturbed = undisturbed.as_ref().map(|all| all.get(moment).unwrap_or(&Value::Null));
        let start = Instant::now();
        let mut last = Value::Null;
        let wrong = loop {
            let commands = lock(&self.made).iter().map(|(uid, made)| (uid.clone(), made.name.clone())).collect();
            let outside = Outside::look(self.world, before, &commands).await?;
            let mut wrong = outside.wrong(expected);
            let mut now = self.standing();
            if let (Value::Object(now), Value::Object(facts)) = (&mut now, outside.facts(&self.names, expected)) {
                now.extend(facts);
            }
            let settled = wrong.is_empty() && now == *undisturbed.unwrap_or(&last);
            last = now;
            if settled {
                break wrong;
            }
            if start.elapsed() > SETTLING {
                wrong.extend(undisturbed.map(|was| differences(was, &last)).unwrap_or_default());
                break wrong;
            }
            tokio::time::sleep(CALM).await;
        };
        let mut seen = lock(&self.seen);
        seen.findings
            .extend(wrong.into_iter().map(|Finding { wrong, text }| Finding::new(wrong, format!("{moment}: {text}"))));
        seen.moments.insert(moment.to_owned(), last);
        Ok(())
    }

    /// What was seen at moments, and what was wrong at them.
    #[must_use]
    pub fn looked(&self) -> (Map<String, Value>, Vec<Finding>) {
        let seen = std::mem::take(&mut *lock(&self.seen));
        (seen.moments, seen.findings)
    }

    /// How leases stand and commands have ended: what must be the same in every run. Of a command that has not ended,
    /// nothing. (The number of attempts is no part of it: one that was fenced off before it began leads to another.)
    fn standing(&self) -> Value {
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
                // Whether a shell that is ended still says that its child was, is chance.
                let was_ended = of("/exitCode").and_then(Value::as_i64).is_some_and(|code| code >= 128);
                let errors = of("/stderr/tail").filter(|_| !was_ended);
                let tails = (of("/stdout/tail"), errors, of("/stdout/bytes"));
                (name.clone(), json!([reason, of("/exitCode"), tails]))
            })
            .collect();
        json!({ "leases": leases, "commands": commands })
    }
}
