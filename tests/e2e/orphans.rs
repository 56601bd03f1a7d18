//! Sandboxes of ours that no lease speaks for any more.

use std::collections::{BTreeMap, BTreeSet};

use dev::faults::{Mode, Rule};
use futures::{StreamExt, stream};
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::{Options, PLANE, World};

const OURS: &str = "daytona-controller.dev/";
const REPORT: &str = "--orphan-policy=Report";
const DELETE: &str = "--orphan-policy=Delete";

async fn world(name: &str, policy: &'static str) -> World {
    let flags = vec![policy, "--orphan-interval=1s", "--orphan-grace=2s"];
    let world = World::start_with(name, Options { flags, ..Options::default() }).await;
    // Its key is the one under which is looked.
    world.lease("l").await;
    world.until_ready("l").await;
    world
}

async fn uid_of_namespace(name: &str) -> String {
    let uid = "jsonpath={.metadata.uid}";
    PLANE.kubectl(None).get(&["get", "namespace", name, "-o", uid]).await.unwrap()
}

/// What a sandbox of a lease with this UID is labelled with, in the world's namespace.
async fn labels(world: &World, lease_uid: &str) -> BTreeMap<String, Value> {
    let (cluster, namespace) = (uid_of_namespace("kube-system").await, uid_of_namespace(&world.namespace).await);
    let labels = [
        ("cluster-id", cluster.as_str()),
        ("namespace-uid", &namespace),
        ("lease-namespace", &world.namespace),
        ("lease-name", "gone"),
        ("lease-uid", lease_uid),
        ("reclaim-policy", "Delete"),
    ];
    labels.map(|(name, value)| (format!("{OURS}{name}"), value.into())).into()
}

async fn make(world: &World, name: &str, labels: &BTreeMap<String, Value>) -> String {
    let made = world.ask(Method::POST, "", &json!({ "name": name, "labels": labels })).await;
    made["id"].as_str().unwrap().to_owned()
}

/// Waits until it has been looked so many times more.
async fn rounds(world: &World, more: usize) {
    let looks = || world.logged().matches("looked for orphans").count();
    let before = looks();
    world.eventually("more looks", async || looks() >= before + more).await;
}

async fn there(world: &World) -> BTreeSet<String> {
    world.daytona.state().await.unwrap().sandboxes.into_iter().map(|sandbox| sandbox.id).collect()
}

async fn events(world: &World, reason: &str) -> Vec<String> {
    let all = world.kubectl.get(&["get", "events", "-o", "json"]).await.unwrap();
    let all: Value = serde_json::from_str(&all).unwrap();
    let all = all["items"].as_array().unwrap().iter().filter(|event| event["reason"] == reason);
    all.map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_is_told_and_left_alone_unless_asked_otherwise() {
    let world = world("orphan-report", REPORT).await;
    let orphan = make(&world, "sblease-lost", &labels(&world, "lost").await).await;
    world
        .eventually("the event", async || events(&world, "OrphanedSandbox").await.iter().any(|e| e.contains(&orphan)))
        .await;
    rounds(&world, 5).await;
    assert!(there(&world).await.contains(&orphan), "it was deleted");
    let logged = world.logged();
    let told: Vec<&str> = logged.lines().filter(|line| line.contains("an orphan")).collect();
    assert!(told.len() == 1 && told[0].contains(&orphan), "{told:?}");
}

/// A finalizer that was taken off by force leaves its sandbox behind, labelled by the controller itself.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_finalizer_left_is_deleted_where_that_is_asked_for() {
    let mut world = world("orphan-forced", DELETE).await;
    world.apply(&crate::world::lease("lost")).await.unwrap();
    let lost = world.until_ready("lost").await;
    let id = lost["status"]["sandbox"]["id"].as_str().unwrap().to_owned();
    rounds(&world, 4).await;
    assert!(there(&world).await.contains(&id), "a lease has it");
    world.kill_controller().await;
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    world.kubectl.run(&["patch", "sblease", "lost", "--type=merge", "-p", patch]).await.unwrap();
    world.kubectl.run(&["delete", "sblease", "lost"]).await.unwrap();
    // A list leaves it out now and then.
    world.daytona.add_rule(Rule::on("GET", "/api/sandbox").mode(Mode::FlappingList)).await.unwrap();
    world.start_controller();
    world.eventually("it is deleted", async || !there(&world).await.contains(&id)).await;
    world.eventually("the event", async || events(&world, "OrphanDeleted").await.iter().any(|e| e.contains(&id))).await;
    assert_eq!(events(&world, "OrphanedSandbox").await.len(), 1);
    let kept = world.get("sblease", "l").await["status"]["sandbox"]["id"].as_str().unwrap().to_owned();
    assert_eq!(there(&world).await, BTreeSet::from([kept]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_ours_or_may_be_wanted_is_left_alone() {
    let world = world("orphan-spared", DELETE).await;
    let lease = world.get("sblease", "l").await;
    let with = async |lease_uid: &str, changes: &[(&str, Option<&str>)]| {
        let mut labels = labels(&world, lease_uid).await;
        for (name, value) in changes {
            let name = format!("{OURS}{name}");
            match value {
                Some(value) => labels.insert(name, (*value).into()),
                None => labels.remove(&name),
            };
        }
        labels
    };
    let mut left = BTreeSet::from([lease["status"]["sandbox"]["id"].as_str().unwrap().to_owned()]);
    let uid = lease["metadata"]["uid"].as_str().unwrap();
    for (name, labels) in [
        ("sblease-a", with("a", &[("cluster-id", Some("another"))]).await),
        ("sblease-b", with("b", &[("lease-namespace", Some("elsewhere"))]).await),
        ("sblease-c", with("c", &[("released-by", Some("c")), ("lease-uid", None)]).await),
        ("sblease-d", with("d", &[("released-by", Some("c"))]).await),
        ("sblease-e", with("e", &[("cluster-id", None)]).await),
        ("foreign", BTreeMap::new()),
        ("fork-of-a-lease-that-is-there", with(uid, &[]).await),
    ] {
        left.insert(make(&world, name, &labels).await);
    }
    rounds(&world, 5).await;
    assert_eq!(there(&world).await, left);
    assert_eq!(events(&world, "OrphanedSandbox").await, Vec::<String>::new(), "nothing of that is an orphan");

    // These are orphans, and still not for us to delete.
    let mut told = BTreeSet::new();
    for (name, labels) in [
        ("sblease-f", with("f", &[("reclaim-policy", Some("Retain"))]).await),
        ("sblease-g", with("g", &[("reclaim-policy", None)]).await),
        ("fork-or-adopted", with("h", &[]).await),
    ] {
        told.insert(make(&world, name, &labels).await);
    }
    let orphan = make(&world, "sblease-i", &with("i", &[]).await).await;
    world.eventually("the one orphan is deleted", async || !there(&world).await.contains(&orphan)).await;
    world
        .eventually("they are told", async || {
            let all = events(&world, "OrphanedSandbox").await;
            told.iter().all(|id| all.iter().any(|event| event.contains(id) && event.contains("left to you")))
        })
        .await;
    rounds(&world, 4).await;
    assert_eq!(there(&world).await, &left | &told);
    assert_eq!(world.calls("DELETE /api/sandbox/{sandbox}").await, 1);
}

/// cases.md 24: Daytona gives at most so many in one answer.
#[tokio::test(flavor = "multi_thread")]
async fn case_24_all_pages_of_a_long_list_are_read() {
    let world = world("orphan-pages", REPORT).await;
    let labels = labels(&world, "x").await;
    let made: BTreeSet<String> = stream::iter(0..250)
        .map(|number| {
            let mut labels = labels.clone();
            labels.insert(format!("{OURS}lease-uid"), format!("lost-{number}").into());
            let world = &world;
            async move { make(world, &format!("sblease-lost-{number}"), &labels).await }
        })
        .buffer_unordered(8)
        .collect()
        .await;
    assert_eq!(made.len(), 250);
    world
        .eventually("all of them are told", async || {
            let logged = world.logged();
            let told = logged.lines().filter(|line| line.contains("an orphan"));
            let told: Vec<&str> = told.collect();
            made.iter().all(|id| told.iter().any(|line| line.contains(id.as_str())))
        })
        .await;
}
