//! What belongs to somebody else and looks like ours: other leases' sandboxes, logs and copies of keys that are none of
//! the controller's, leases that it does not watch. It has to be there after a run as it was before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write as _};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, ListParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource, ResourceExt};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::follow::Kind;
use super::oracle::{Finding, Wrong};
use super::world::{Trouble, World, ask, trouble};
use crate::local_daytona::{LocalDaytona, SandboxReport};

/// The name of what does not even look like ours.
pub const FOREIGN: &str = "foreign";

const OURS: &str = "daytona-controller.dev";
/// Of what a sandbox of a lease that says nothing of it is made, as `src/plan/claim.rs` puts it together.
const PLAIN: &str = "[null,null,null,null,null,false,[],false,[],null]";

/// The sandboxes of others: their names by their ids.
pub type Others = BTreeMap<String, String>;

/// Half a digest, as our names have it.
fn hex(text: &str) -> String {
    Sha256::digest(text).iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Makes all of it, before there is a controller.
///
/// # Errors
/// When something of it is refused.
pub async fn place(client: &Client, daytona: &LocalDaytona, namespace: &str, home: &str) -> Result<Others, Trouble> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let uid = async |name| Ok::<_, Trouble>(namespaces.get(name).await.map_err(trouble)?.uid().unwrap_or_default());
    let (cluster, here) = (uid("kube-system").await?, uid(namespace).await?);
    let others = sandboxes(daytona, &cluster, namespace, &here).await?;
    let (maps, secrets) = (Api::<ConfigMap>::namespaced, Api::<Secret>::namespaced);
    let command = Uuid::new_v4().to_string();
    let log = |stream: &str, field: &str| {
        json!({
            "metadata": {
                "name": format!("fails-{command}-{stream}"), "annotations": { format!("{OURS}/log-bytes"): "6" },
                "labels": { format!("{OURS}/command-uid"): command, "app.kubernetes.io/managed-by": "daytona-controller" },
            },
            field: { stream: "theirs" }, "immutable": true,
        })
    };
    for at in [namespace, home] {
        let nothing = json!({ "metadata": { "name": FOREIGN } });
        create(maps(client.clone(), at), nothing.clone()).await?;
        create(secrets(client.clone(), at), nothing).await?;
    }
    create(maps(client.clone(), namespace), log("stdout", "data")).await?;
    create(secrets(client.clone(), namespace), log("stderr", "stringData")).await?;
    // Its name is not that of what it holds; and what is kept for a namespace that is none of ours to judge.
    let broken = copy(namespace, &here, &hex("another"));
    create(secrets(client.clone(), namespace), broken.clone()).await?;
    create(secrets(client.clone(), home), broken).await?;
    let elsewhere = Uuid::new_v4().to_string();
    let parts = json!([elsewhere, "daytona", "api-key", "http://127.0.0.1:9/api", null, hex(FOREIGN)]);
    create(secrets(client.clone(), home), copy("elsewhere", &elsewhere, &hex(&parts.to_string()))).await?;
    let lease = json!({ "metadata": { "name": "l" }, "spec": {} });
    create(Kind::Lease.api(client, home), lease).await?;
    let command = json!({ "metadata": { "name": "fails" }, "spec": { "leaseRef": { "name": "l" }, "script": "true" } });
    create(Kind::Command.api(client, home), command).await?;
    Ok(others)
}

fn copy(of: &str, of_uid: &str, name: &str) -> Value {
    let label = |name: &str| format!("{OURS}/escrow-{name}");
    json!({
        "metadata": {
            "name": format!("sbescrow-{name}"),
            "labels": { label("namespace"): of, label("namespace-uid"): of_uid, label("key-fingerprint"): hex(FOREIGN) },
        },
        "type": format!("{OURS}/escrow"), "immutable": true,
        "stringData": {
            "namespace": of, "namespace-uid": of_uid, "secret": "daytona", "secret-key": "api-key",
            "api-url": "http://127.0.0.1:9/api", "api-key": "theirs",
        },
    })
}

async fn create<K>(api: Api<K>, mut object: Value) -> Result<(), Trouble>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    // Only our own kinds have a spec.
    let kind = object.get("spec").map(|spec| spec.get("script").map_or(Kind::Lease, |_| Kind::Command));
    if let (Some(kind), Some(object)) = (kind, object.as_object_mut()) {
        let names = [("apiVersion", Kind::api_version()), ("kind", kind.name().to_owned())];
        object.extend(names.map(|(field, name)| (field.to_owned(), name.into())));
    }
    let object: K = serde_json::from_value(object).map_err(trouble)?;
    api.create(&PostParams::default(), &object).await.map(drop).map_err(trouble)
}

/// One that is nothing like ours; one of another lease of this namespace, which is gone; one of another cluster's lease
/// with the very names that are used here; one that was left behind under another reuseKey.
async fn sandboxes(daytona: &LocalDaytona, cluster: &str, namespace: &str, uid: &str) -> Result<Others, Trouble> {
    let label = |name: &str| format!("{OURS}/{name}");
    let somebody = || Uuid::new_v4().to_string();
    let labels = |cluster: &str, policy: &str, whose: Value| {
        let mut labels = json!({
            label("cluster-id"): cluster, label("namespace-uid"): uid, label("lease-namespace"): namespace,
            label("lease-name"): "l", label("reclaim-policy"): policy,
        });
        if let (Value::Object(labels), Value::Object(whose)) = (&mut labels, whose) {
            labels.extend(whose);
        }
        labels
    };
    let (gone, far) = (somebody(), somebody());
    let left = json!({ label("released-by"): somebody(), label("sandbox-digest"): hex(PLAIN) });
    let all = [
        (FOREIGN.to_owned(), json!({ "team": FOREIGN })),
        (format!("sblease-{gone}"), labels(cluster, "Delete", json!({ label("lease-uid"): gone }))),
        (format!("sblease-{far}"), labels(&somebody(), "Delete", json!({ label("lease-uid"): far }))),
        (format!("sbreuse-{}", hex(FOREIGN)), labels(cluster, "Stop", left)),
    ];
    let mut others = Others::new();
    for (name, labels) in all {
        // None of them ever sleeps.
        let body = json!({ "name": name, "labels": labels, "autoStopInterval": 0, "autoDeleteInterval": -1 });
        let made = ask(daytona, Method::POST, "/sandbox", &body).await?;
        let id = made.get("id").and_then(Value::as_str);
        let id = id.ok_or_else(|| format!("no sandbox of somebody else was made: {made}"))?;
        others.insert(id.to_owned(), name);
    }
    Ok(others)
}

/// Where it lies, its kind, name and resourceVersion.
type Object = [String; 4];

/// What was there before a run and has to be there after it, unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Before {
    /// By their ids.
    sandboxes: BTreeMap<String, Value>,
    /// All that could be ours in the namespace, and where the controller would live.
    pub(super) objects: BTreeSet<Object>,
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
        Ok(Self { sandboxes: sandboxes_of_others(world).await?, objects: objects(world).await?, calls })
    }

    /// Whether it was there before, as it is or not.
    pub(super) fn has(&self, at: &str, kind: &str, name: &str) -> bool {
        self.objects
            .iter()
            .any(|[at_, kind_, name_, _]| (at_.as_str(), kind_.as_str(), name_.as_str()) == (at, kind, name))
    }

    /// What of others' sandboxes was changed or used since.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) async fn touched(&self, world: &World) -> Result<Vec<Finding>, Trouble> {
        let mut found = changed(&self.sandboxes, &sandboxes_of_others(world).await?);
        for call in world.daytona.calls_since(self.calls).await.map_err(trouble)? {
            let Some(name) = call.sandbox.as_deref() else { continue };
            let theirs = world.others.contains_key(name) || world.others.values().any(|other| other == name);
            let reads = call.method == "GET" && call.route.starts_with("GET /api/");
            if theirs && !reads {
                let text = format!("somebody else's sandbox {name} was called: {}", call.route);
                found.push(Finding::new(Wrong::Failure, text));
            }
        }
        Ok(found)
    }

    /// What has come, has gone or was changed since, of what lies where the controller lives (`home`), or beside.
    pub(super) fn compared(&self, now: &BTreeSet<Object>, at: &str) -> Vec<Finding> {
        let of_place = |all: &BTreeSet<Object>, others: &BTreeSet<Object>, wrong, what: &str| {
            let here = all.difference(others).filter(|[place, ..]| place == at);
            here.map(|[place, kind, name, _]| {
                Finding::new(wrong, format!("{kind} {place}/{name} is {what}, or changed"))
            })
            .collect::<Vec<_>>()
        };
        let mut found = of_place(now, &self.objects, Wrong::Leak, "left");
        found.extend(of_place(&self.objects, now, Wrong::Failure, "gone"));
        found
    }
}

fn changed(before: &BTreeMap<String, Value>, now: &BTreeMap<String, Value>) -> Vec<Finding> {
    let other = before.iter().filter(|(id, was)| now.get(*id) != Some(was));
    other
        .map(|(id, was)| {
            let is = now.get(id).unwrap_or(&Value::Null);
            Finding::new(Wrong::Failure, format!("somebody else's sandbox was {was} and is {is}"))
        })
        .collect()
}

/// Others' sandboxes; when they were used last is no matter of ours.
async fn sandboxes_of_others(world: &World) -> Result<BTreeMap<String, Value>, Trouble> {
    let all = world.daytona.state().await.map_err(trouble)?.sandboxes;
    let others = all.into_iter().filter(|sandbox| world.others.contains_key(&sandbox.id));
    let seen = |sandbox: SandboxReport| {
        let id = sandbox.id.clone();
        let mut sandbox = serde_json::to_value(sandbox).map_err(trouble)?;
        if let Some(sandbox) = sandbox.as_object_mut() {
            sandbox.remove("lastActivityAt");
        }
        Ok((id, sandbox))
    };
    others.map(seen).collect()
}

/// All that could be ours: `ConfigMap`s, Secrets and, where the controller does not look, leases and commands.
///
/// # Errors
/// When it cannot be read.
pub(super) async fn objects(world: &World) -> Result<BTreeSet<Object>, Trouble> {
    let mut all = BTreeSet::new();
    let every = ListParams::default();
    for at in [&world.namespace, &world.home] {
        let mut note = |kind: &str, found: Vec<[String; 2]>| {
            all.extend(found.into_iter().map(|[name, version]| [at.clone(), kind.to_owned(), name, version]));
        };
        note("ConfigMap", versions(&world.api::<ConfigMap>(at).list_metadata(&every).await.map_err(trouble)?.items));
        note("Secret", versions(&world.api::<Secret>(at).list_metadata(&every).await.map_err(trouble)?.items));
        if *at == world.home {
            for kind in [Kind::Lease, Kind::Command] {
                let found = kind.api(&world.client, at).list_metadata(&every).await.map_err(trouble)?;
                note(kind.name(), versions(&found.items));
            }
        }
    }
    Ok(all)
}

fn versions<K: Resource>(all: &[PartialObjectMeta<K>]) -> Vec<[String; 2]> {
    all.iter().map(|object| [object.name_any(), object.resource_version().unwrap_or_default()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(at: &str, name: &str, version: &str) -> Object {
        [at, "Secret", name, version].map(str::to_owned)
    }

    fn before(objects: &[Object]) -> Before {
        Before { sandboxes: BTreeMap::new(), objects: objects.iter().cloned().collect(), calls: 0 }
    }

    #[test]
    fn what_is_new_gone_or_changed_is_found_where_it_lies() {
        let before =
            before(&[object("home", "same", "1"), object("home", "changed", "1"), object("home", "gone", "1")]);
        let now = [object("home", "same", "1"), object("home", "changed", "2"), object("home", "new", "1")];
        let now = now.into_iter().collect();
        let found: Vec<String> = before.compared(&now, "home").iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "leak: Secret home/changed is left, or changed",
                "leak: Secret home/new is left, or changed",
                "failure: Secret home/changed is gone, or changed",
                "failure: Secret home/gone is gone, or changed",
            ]
        );
        assert_eq!(before.compared(&now, "elsewhere"), []);
        assert!(before.has("home", "Secret", "changed") && !before.has("home", "Secret", "new"));
    }

    #[test]
    fn a_sandbox_of_others_that_is_gone_or_changed_is_found() {
        let all = |state: &str| BTreeMap::from([("a".to_owned(), json!({ "state": state }))]);
        assert_eq!(changed(&all("started"), &all("started")), []);
        assert_eq!(changed(&all("started"), &all("stopped")).len(), 1);
        assert_eq!(changed(&all("started"), &BTreeMap::new()).len(), 1);
    }
}
