//! Leases that are let go although the Secret of their key is gone, and the copies that make it possible.

use base64::{Engine, prelude::BASE64_STANDARD};
use dev::{
    faults::Rule,
    install::{Release, workspace},
    kubectl::Kubectl,
    local_daytona::Settings,
};
use serde_json::{Value, json};

use crate::world::{KEY, Options, PLANE, World, alive, condition, lease_with};

const DISABLED: &str = "--credential-escrow=Disabled";
const OF_TYPE: &str = "type=daytona-controller.dev/escrow";
const NEW_KEY: &str = "dtn_the-key-after-the-rotation";

pub(super) fn home(world: &World) -> Kubectl {
    PLANE.kubectl(Some(&world.home))
}

async fn start(name: &str, escrow: &'static str) -> World {
    World::start_with(name, Options { flags: vec![escrow], ..Options::default() }).await
}

/// The copies that are kept.
pub(super) async fn copies(world: &World) -> Vec<Value> {
    let all = home(world).get(&["get", "secrets", "--field-selector", OF_TYPE, "-o", "json"]).await.unwrap();
    serde_json::from_str::<Value>(&all).unwrap()["items"].as_array().unwrap().clone()
}

fn decoded(secret: &Value, key: &str) -> String {
    let text = secret["data"][key].as_str().unwrap_or_default();
    String::from_utf8(BASE64_STANDARD.decode(text).unwrap()).unwrap()
}

pub(super) async fn until_copies(world: &World, keys: &[&str]) {
    world
        .eventually(&format!("copies of {} keys", keys.len()), async || {
            let mut kept: Vec<String> = copies(world).await.iter().map(|secret| decoded(secret, "api-key")).collect();
            kept.sort_unstable();
            kept == keys
        })
        .await;
}

async fn secret(world: &World, key: &str) {
    let metadata = json!({ "name": "daytona" });
    let manifest =
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { "api-key": key } });
    world.apply(&manifest.to_string()).await.unwrap();
}

/// A lease with a command that runs; gives the process.
async fn running(world: &World) -> String {
    world.lease("l").await;
    world.command("runs", "echo $$ >pid; sleep 600").await;
    world.eventually("it runs", async || world.file("pid").await.is_some_and(|pid| pid.ends_with('\n'))).await;
    world.file("pid").await.unwrap()
}

pub(super) async fn delete_namespace(world: &World) {
    world.kubectl.run(&["delete", "namespace", &world.namespace, "--wait=false"]).await.unwrap();
}

async fn until_secret_gone(world: &World) {
    world.eventually("the Secret is gone", async || world.get("secret", "daytona").await.is_null()).await;
}

pub(super) async fn until_namespace_gone(world: &World) {
    let get = ["get", "namespace", &world.namespace, "--ignore-not-found"];
    world.eventually("the namespace is gone", async || world.kubectl.get(&get).await.unwrap().is_empty()).await;
}

/// Nothing runs, nothing is kept, and nobody was shown a key.
async fn nothing_is_left(world: &World, pid: &str) {
    assert!(!alive(pid) && world.daytona.state().await.unwrap().sandboxes.is_empty());
    until_copies(world, &[]).await;
    no_key_is_shown(world).await;
}

/// cases.md 52.
pub(super) async fn no_key_is_shown(world: &World) {
    let mut shown = world.logged();
    for namespace in [&world.namespace, &world.home] {
        let kubectl = PLANE.kubectl(Some(namespace));
        shown += &kubectl.get(&["get", "sblease,sbcmd,events", "-o", "yaml"]).await.unwrap();
    }
    for key in [KEY, NEW_KEY, "dtn_wrong"] {
        assert!(!shown.contains(key) && !shown.contains(&BASE64_STANDARD.encode(key)), "a key is shown");
    }
}

/// cases.md 45: whatever goes first, and with or without copies while the controller lives.
#[tokio::test(flavor = "multi_thread")]
async fn case_45_a_namespace_goes_with_secret_lease_and_running_command_in_every_order() {
    let orders: [(&str, &str, &[[&str; 2]]); 5] = [
        ("escrow-at-once", "--credential-escrow=Enabled", &[]),
        ("escrow-secret", "--credential-escrow=Enabled", &[["secret", "daytona"]]),
        ("escrow-lease", "--credential-escrow=Enabled", &[["sblease", "l"]]),
        (
            "escrow-command",
            "--credential-escrow=Enabled",
            &[["sbcmd", "runs"], ["secret", "daytona"], ["sblease", "l"]],
        ),
        ("escrow-off", DISABLED, &[["secret", "daytona"]]),
    ];
    futures::future::join_all(orders.map(async |(name, escrow, first)| {
        let world = start(name, escrow).await;
        let pid = running(&world).await;
        assert_eq!(copies(&world).await.len(), usize::from(escrow != DISABLED), "{name}");
        for [kind, object] in first {
            world.delete(kind, object).await;
        }
        delete_namespace(&world).await;
        until_namespace_gone(&world).await;
        nothing_is_left(&world, &pid).await;
    }))
    .await;
}

/// cases.md 45: nothing but the copy knows the key when the next controller starts.
#[tokio::test(flavor = "multi_thread")]
async fn case_45_a_namespace_goes_although_the_controller_is_killed_in_the_middle() {
    for (name, held) in [
        ("escrow-dead", None),
        ("escrow-killed-session", Some("/toolbox/.*/process/session/.*")),
        ("escrow-killed-sandbox", Some("/api/sandbox/.*")),
    ] {
        let mut world = World::start(name).await;
        let pid = running(&world).await;
        if let Some(held) = held {
            let rule = world.daytona.add_rule(Rule::on("DELETE", held).hang()).await.unwrap();
            delete_namespace(&world).await;
            world.eventually("it is at it", async || world.daytona.fired(rule).await.unwrap() > 0).await;
        }
        world.kill_controller().await;
        world.daytona.clear_rules().await.unwrap();
        if held.is_none() {
            delete_namespace(&world).await;
        }
        until_secret_gone(&world).await;
        world.start_controller();
        until_namespace_gone(&world).await;
        nothing_is_left(&world, &pid).await;
    }
}

/// cases.md 46, with copies: the Secret is gone for good.
#[tokio::test(flavor = "multi_thread")]
async fn case_46_a_lease_whose_secret_is_gone_for_good_is_let_go_with_the_copy() {
    let mut world = World::start("escrow-gone").await;
    let pid = running(&world).await;
    world.kill_controller().await;
    world.delete("secret", "daytona").await;
    world.start_controller();
    world.until_reason("sblease", "l", "Ready", "SecretNotFound").await;
    let before = world.daytona.calls().await.unwrap().len();
    world.until_reason("sblease", "l", "Stalled", "SecretNotFound").await;
    assert_eq!(world.daytona.calls().await.unwrap().len(), before, "the copy is used for a lease that is wanted");
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    nothing_is_left(&world, &pid).await;
}

/// cases.md 46, without copies.
#[tokio::test(flavor = "multi_thread")]
async fn case_46_without_copies_the_deletion_waits_for_the_secret() {
    let options = Options { flags: vec![DISABLED, "--lease-poll=1h"], ..Options::default() };
    let mut world = World::start_with("escrow-without", options).await;
    let pid = running(&world).await;
    assert_eq!(copies(&world).await.len(), 0);
    world.kill_controller().await;
    world.delete("secret", "daytona").await;
    world.delete("sblease", "l").await;
    world.start_controller();
    let blocked = world.until_reason("sblease", "l", "CleanupBlocked", "SecretNotFound").await;
    let said = condition(&blocked, "CleanupBlocked")["message"].as_str().unwrap().to_owned();
    let id = world.sandbox().await.id;
    for part in ["\"daytona\"", "\"api-key\"", &format!("daytona-controller.dev/abandon={id}")] {
        assert!(said.contains(part), "{said}");
    }
    assert!(alive(&pid));
    secret(&world, KEY).await;
    world.until_gone("sblease", "l").await;
    nothing_is_left(&world, &pid).await;
}

/// cases.md 48: the next call uses the new key, and the copy of it replaces that of the old one, with which nothing could
/// be let go any more.
#[tokio::test(flavor = "multi_thread")]
async fn case_48_a_rotation_replaces_the_copy() {
    let mut world = World::start("escrow-rotates").await;
    let pid = running(&world).await;
    until_copies(&world, &[KEY]).await;
    let rotated = Settings { api_key: Some(NEW_KEY.to_owned()), ..Settings::default() };
    world.daytona.set(rotated).await.unwrap();
    // A key that does not reach the sandbox replaces nothing.
    secret(&world, "dtn_wrong").await;
    world.until_reason("sblease", "l", "Ready", "Unauthorized").await;
    until_copies(&world, &[KEY]).await;
    secret(&world, NEW_KEY).await;
    until_copies(&world, &[NEW_KEY]).await;
    world.until_ready("l").await;
    assert_eq!((world.calls("POST /api/sandbox").await, alive(&pid)), (1, true));
    world.kill_controller().await;
    delete_namespace(&world).await;
    until_secret_gone(&world).await;
    world.start_controller();
    until_namespace_gone(&world).await;
    nothing_is_left(&world, &pid).await;
}

/// A key that came later and does not reach the sandbox hinders no deletion: that which did reach it is used.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_in_the_secret_hinders_no_deletion() {
    let mut world = World::start("escrow-wrong").await;
    let pid = running(&world).await;
    secret(&world, "dtn_wrong").await;
    world.until_reason("sblease", "l", "Ready", "Unauthorized").await;
    world.kill_controller().await;
    world.delete("sblease", "l").await;
    world.start_controller();
    world.until_gone("sblease", "l").await;
    nothing_is_left(&world, &pid).await;
}

/// A key that is rotated while the lease waits to go is kept too: it may be the only one that can let go.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_while_the_lease_waits_to_go_replaces_the_copy() {
    let mut world = World::start("escrow-waits").await;
    let pid = running(&world).await;
    world.daytona.add_rule(Rule::on("DELETE", "/api/sandbox/.*").answer(500, "out of order")).await.unwrap();
    world.delete("sblease", "l").await;
    world.until_reason("sblease", "l", "CleanupBlocked", "APIUnreachable").await;
    let rotated = Settings { api_key: Some(NEW_KEY.to_owned()), ..Settings::default() };
    world.daytona.set(rotated).await.unwrap();
    secret(&world, NEW_KEY).await;
    until_copies(&world, &[NEW_KEY]).await;
    world.kill_controller().await;
    world.delete("secret", "daytona").await;
    world.daytona.clear_rules().await.unwrap();
    world.start_controller();
    world.until_gone("sblease", "l").await;
    nothing_is_left(&world, &pid).await;
}

/// cases.md 49: a Secret that is late or wrong is noticed, and only a key that works is kept.
#[tokio::test(flavor = "multi_thread")]
async fn case_49_only_a_key_that_works_is_kept() {
    let options = Options { flags: vec!["--lease-poll=1h"], ..Options::default() };
    let world = World::start_with("escrow-late", options).await;
    world.delete("secret", "daytona").await;
    world.lease("l").await;
    for (key, reason) in [(None, "SecretNotFound"), (Some(""), "SecretInvalid"), (Some("dtn_wrong"), "Unauthorized")] {
        if let Some(key) = key {
            secret(&world, key).await;
        }
        world.until_reason("sblease", "l", "Ready", reason).await;
        assert_eq!(copies(&world).await.len(), 0, "{reason}");
    }
    secret(&world, &format!("{KEY}\n")).await;
    world.until_ready("l").await;
    let kept = copies(&world).await;
    let [copy] = &kept[..] else { panic!("{} copies", kept.len()) };
    assert_eq!((&copy["immutable"], decoded(copy, "api-key")), (&json!(true), KEY.to_owned()));
    assert_eq!(decoded(copy, "api-url"), world.daytona.base_url());
    let namespace = PLANE.kubectl(None).get(&["get", "namespace", &world.namespace, "-o", "json"]).await.unwrap();
    let namespace: Value = serde_json::from_str(&namespace).unwrap();
    let label = &copy["metadata"]["labels"]["daytona-controller.dev/escrow-namespace-uid"];
    assert_eq!(label, &namespace["metadata"]["uid"]);
    no_key_is_shown(&world).await;
}

/// Two leases of one key need one copy, until the second has ended too. What an administrator removes is made again.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_last_lease_removes_the_copy() {
    let mut world = World::start("escrow-last").await;
    world.lease("a").await;
    world.apply(&lease_with("b", &json!({ "leaseDurationSeconds": 3600 }))).await.unwrap();
    for lease in ["a", "b"] {
        world.until_ready(lease).await;
    }
    until_copies(&world, &[KEY]).await;
    world.delete("sblease", "a").await;
    world.until_gone("sblease", "a").await;
    // A controller that has just started looks at once.
    world.kill_controller().await;
    home(&world).run(&["delete", "secrets", "--field-selector", OF_TYPE]).await.unwrap();
    world.start_controller();
    until_copies(&world, &[KEY]).await;
    world.kill_controller().await;
    let looks = world.logged().matches("looked at the copies").count();
    world.start_controller();
    world.eventually("a look", async || world.logged().matches("looked at the copies").count() > looks).await;
    assert_eq!(copies(&world).await.len(), 1, "b needs it");
    // An expired one stays, and needs nothing any more.
    let short = r#"{"spec":{"leaseDurationSeconds":1}}"#;
    world.kubectl.run(&["patch", "sblease", "b", "--type=merge", "-p", short]).await.unwrap();
    until_copies(&world, &[]).await;
    let expired = world.get("sblease", "b").await;
    assert_eq!(condition(&expired, "Ready")["reason"], "Expired");
    no_key_is_shown(&world).await;
}

/// The same Secret name and the same key in two namespaces: each has a copy of its own, and each controller removes only
/// those of the namespaces that it watches.
#[tokio::test(flavor = "multi_thread")]
async fn namespaces_share_no_copy() {
    let second = "escrow-second";
    let flags = vec!["--watch-namespace=escrow-second"];
    let mut world = World::without_controller("escrow-first", Options { flags, ..Options::default() }).await;
    let other = PLANE.kubectl(Some(second));
    other.run(&["create", "namespace", second]).await.unwrap();
    other.run(&["create", "secret", "generic", "daytona", &format!("--from-literal=api-key={KEY}")]).await.unwrap();
    let release = Release {
        chart: &workspace().join("charts/daytona-controller"),
        name: &world.namespace,
        namespace: &world.home,
        values: json!({ "watchNamespaces": [world.namespace, second] }),
    };
    release.install(PLANE.cluster()).await.unwrap();
    world.start_controller();
    world.lease("l").await;
    other.apply(&crate::world::lease("l")).await.unwrap();
    world.until_ready("l").await;
    other.run(&["wait", "--for=condition=Ready", "sblease/l", "--timeout=60s"]).await.unwrap();
    until_copies(&world, &[KEY, KEY]).await;
    // As if of a namespace that another controller watches.
    let mut foreign = copies(&world).await.remove(0);
    foreign["metadata"] = json!({ "name": "sbescrow-of-another", "labels": foreign["metadata"]["labels"] });
    foreign["metadata"]["labels"]["daytona-controller.dev/escrow-namespace"] = "another".into();
    home(&world).apply(&foreign.to_string()).await.unwrap();
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    let of = |copies: Vec<Value>| {
        let mut of: Vec<String> = copies
            .iter()
            .map(|c| c["metadata"]["labels"]["daytona-controller.dev/escrow-namespace"].as_str().unwrap().to_owned())
            .collect();
        of.sort_unstable();
        of
    };
    world.eventually("its own is gone", async || of(copies(&world).await) == ["another", second]).await;
    other.run(&["delete", "namespace", second, "--timeout=60s"]).await.unwrap();
    world.eventually("that of the second is gone", async || of(copies(&world).await) == ["another"]).await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
    no_key_is_shown(&world).await;
}

/// A Secret of the copy's name that is no copy: it is told, neither read nor changed nor deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_secret_of_the_same_name_is_left_alone() {
    let mut world = World::start("escrow-foreign").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let copy = copies(&world).await.remove(0);
    let name = copy["metadata"]["name"].as_str().unwrap().to_owned();
    world.kill_controller().await;
    home(&world).run(&["delete", "secret", &name]).await.unwrap();
    let mut foreign = copy.clone();
    foreign["metadata"] = json!({ "name": name, "labels": copy["metadata"]["labels"] });
    foreign["type"] = "Opaque".into();
    home(&world).apply(&foreign.to_string()).await.unwrap();
    let foreign = home(&world).get(&["get", "secret", &name, "-o", "json"]).await.unwrap();
    world.start_controller();
    let told = world.until_reason("sblease", "l", "CredentialsValid", "EscrowFailed").await;
    assert!(condition(&told, "CredentialsValid")["message"].as_str().unwrap().contains(&name), "{told:#}");
    assert_eq!(condition(&told, "Ready")["status"], "True", "what runs goes on");
    world.kill_controller().await;
    world.delete("secret", "daytona").await;
    world.delete("sblease", "l").await;
    world.start_controller();
    world.until_reason("sblease", "l", "CleanupBlocked", "SecretNotFound").await;
    secret(&world, KEY).await;
    world.until_gone("sblease", "l").await;
    world.eventually("a look", async || world.logged().contains("looked at the copies")).await;
    assert_eq!(home(&world).get(&["get", "secret", &name, "-o", "json"]).await.unwrap(), foreign);
    no_key_is_shown(&world).await;
}

/// In the controller's own namespace a copy would go with the Secret.
#[tokio::test(flavor = "multi_thread")]
async fn no_copy_is_kept_for_leases_of_the_controllers_own_namespace() {
    let mut world = World::without_controller("escrow-own", Options::default()).await;
    world.home.clone_from(&world.namespace);
    world.start_controller();
    world.lease("l").await;
    world.until_ready("l").await;
    assert_eq!(copies(&world).await.len(), 0);
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
}
