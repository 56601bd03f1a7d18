//! Watches the namespace from outside, from the start: what there is now, what has ended, and what changed after it had.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::TryStreamExt;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::world::Trouble;

const GROUP: &str = "daytona-controller.dev";
const VERSION: &str = "v1alpha1";

/// One of our two kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `SandboxLease`.
    Lease,
    /// `SandboxCommand`.
    Command,
}

impl Kind {
    /// Its name in manifests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lease => "SandboxLease",
            Self::Command => "SandboxCommand",
        }
    }

    /// Its objects in a namespace.
    #[must_use]
    pub fn api(self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, self.name()));
        Api::namespaced_with(client.clone(), namespace, &resource)
    }

    /// The group and version of both.
    #[must_use]
    pub fn api_version() -> String {
        format!("{GROUP}/{VERSION}")
    }
}

/// A watch on both kinds.
#[derive(Debug)]
pub struct Follow {
    seen: Arc<Seen>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Seen {
    state: Mutex<State>,
    more: Notify,
}

/// What a watch has told.
#[derive(Debug, Default)]
pub struct State {
    /// What there is, with its spec and status.
    pub objects: BTreeMap<(Kind, String), Value>,
    /// The last status of every command that there ever was, by its name.
    pub statuses: BTreeMap<String, Value>,
    /// By UID, the result of each command that has finished.
    results: BTreeMap<String, Value>,
    /// Results that changed.
    pub changed: Vec<String>,
}

impl State {
    /// Notes a version of an object.
    pub fn applied(&mut self, kind: Kind, name: &str, uid: &str, object: &Value) {
        let status = object.get("status").cloned().unwrap_or_default();
        if kind == Kind::Command {
            let result = result(&status);
            if let Some(before) = self.results.get(uid)
                && *before != result
            {
                self.changed.push(format!("the result of {name} was {before} and is {result}"));
            } else if status.get("state").is_some_and(|state| state == "Finished") {
                self.results.insert(uid.to_owned(), result);
            }
            self.statuses.insert(name.to_owned(), status);
        }
        self.objects.insert((kind, name.to_owned()), object.clone());
    }
}

/// Of a status what may not change once a command has finished: all but the generation that was looked at last.
fn result(status: &Value) -> Value {
    let mut status = status.clone();
    let forget = |object: &mut Value| {
        object.as_object_mut().map(|object| object.remove("observedGeneration"));
    };
    forget(&mut status);
    status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten().for_each(forget);
    status
}

impl Follow {
    /// Begins to watch.
    #[must_use]
    pub fn new(client: &Client, namespace: &str) -> Self {
        let seen = Arc::new(Seen::default());
        let mut tasks = JoinSet::new();
        for kind in [Kind::Lease, Kind::Command] {
            let (api, noted) = (kind.api(client, namespace), Arc::clone(&seen));
            tasks.spawn(async move {
                loop {
                    let events = watcher::watcher(api.clone(), watcher::Config::default());
                    let _ = events
                        .try_for_each(async |event| {
                            noted.note(kind, event);
                            Ok(())
                        })
                        .await;
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            });
        }
        Self { seen, _tasks: tasks }
    }

    /// Waits until `look` finds something in what was told.
    ///
    /// # Errors
    /// With what was seen last, when it does not within the limit.
    pub async fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut(&State) -> Option<T>,
    ) -> Result<T, Trouble> {
        let found = async {
            loop {
                let more = self.seen.more.notified();
                if let Some(found) = look(&self.state()) {
                    return found;
                }
                more.await;
            }
        };
        let in_vain = |_| {
            let state = self.state();
            let all: Vec<&Value> = state.objects.values().collect();
            let all = serde_json::to_string_pretty(&all).unwrap_or_default();
            format!("waited {} s in vain for {what}; there is:\n{all}", limit.as_secs())
        };
        tokio::time::timeout(limit, found).await.map_err(in_vain)
    }

    /// What was told.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.seen.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn note(&self, kind: Kind, event: Event<DynamicObject>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Apply(object) | Event::InitApply(object) => {
                let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
                let object = serde_json::to_value(&object).unwrap_or_default();
                state.applied(kind, &name, &uid, &object);
            }
            Event::Delete(object) => {
                // Its last version comes with its end.
                let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
                let last = serde_json::to_value(&object).unwrap_or_default();
                state.applied(kind, &name, &uid, &last);
                state.objects.remove(&(kind, name));
            }
            Event::Init | Event::InitDone => {}
        }
        drop(state);
        self.more.notify_waiters();
    }
}

/// A condition of an object, or null.
#[must_use]
pub fn condition<'a>(object: &'a Value, type_: &str) -> &'a Value {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let found = conditions.into_iter().flatten().find(|one| one.get("type").is_some_and(|own| own == type_));
    found.unwrap_or(&Value::Null)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(state: &str, code: i32, generation: i32) -> Value {
        let conditions = json!([{ "type": "Finished", "observedGeneration": generation }]);
        json!({ "status": { "state": state, "exitCode": code, "observedGeneration": generation, "conditions": conditions } })
    }

    #[test]
    fn a_finished_result_that_changes_is_told() {
        let mut state = State::default();
        for object in [status("Running", 0, 1), status("Finished", 3, 1), status("Finished", 3, 2)] {
            state.applied(Kind::Command, "c", "uid", &object);
        }
        assert_eq!(state.changed, Vec::<String>::new(), "the generation that was looked at may change");
        state.applied(Kind::Command, "c", "another", &status("Running", 0, 1));
        assert_eq!(state.changed.len(), 0, "another command of the same name");
        state.applied(Kind::Command, "c", "uid", &status("Finished", 0, 2));
        state.applied(Kind::Command, "c", "uid", &status("Running", 3, 2));
        assert_eq!(state.changed.len(), 2, "{:?}", state.changed);
    }
}
