//! Copies of keys, where the controller may not keep or remove them.

use serde_json::{Value, json};

use crate::{
    escrow::{copies, delete_namespace, home, no_key_is_shown, until_copies, until_namespace_gone},
    world::{KEY, Options, World, condition, lease_with, with_spec},
};

/// What the controller may do in its own namespace.
struct Rights {
    role: String,
    all: Vec<Value>,
}

impl Rights {
    async fn of(world: &World) -> Self {
        let roles = home(world).get(&["get", "roles", "-o", "json"]).await.unwrap();
        let roles: Value = serde_json::from_str(&roles).unwrap();
        let role = &roles["items"][0];
        let name = role["metadata"]["name"].as_str().unwrap();
        Self { role: name.to_owned(), all: role["rules"].as_array().unwrap().clone() }
    }

    async fn set(&self, world: &World, rules: &[Value]) {
        let patch = json!({ "rules": rules }).to_string();
        home(world).run(&["patch", "role", &self.role, "--type=merge", "-p", &patch]).await.unwrap();
    }

    /// All but this verb on Secrets.
    fn without(&self, verb: &str) -> Vec<Value> {
        let mut rules = self.all.clone();
        for rule in rules.iter_mut().filter(|rule| rule["resources"] == json!(["secrets"])) {
            rule["verbs"].as_array_mut().unwrap().retain(|v| v != verb);
        }
        rules
    }
}

/// Without the right to keep copies no sandbox is made; once it is given, the lease goes on.
#[tokio::test(flavor = "multi_thread")]
async fn without_rights_no_sandbox_is_made_and_it_is_told() {
    let world = World::without_controller("escrow-rights", Options::default()).await;
    let rights = Rights::of(&world).await;
    let others: Vec<Value> =
        rights.all.iter().filter(|rule| rule["resources"] != json!(["secrets"])).cloned().collect();
    rights.set(&world, &others).await;
    let controller = world.spawn_controller();
    world.lease("l").await;
    let told = world.until_reason("sblease", "l", "Ready", "EscrowFailed").await;
    assert_eq!(condition(&told, "Stalled")["status"], "True");
    let said = condition(&told, "Ready")["message"].as_str().unwrap().to_owned();
    for part in ["forbidden", "own-namespace.yaml", "--credential-escrow"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!((&told["status"]["sandbox"], world.calls("POST /api/sandbox").await), (&Value::Null, 0));
    rights.set(&world, &rights.all).await;
    world.until_ready("l").await;
    until_copies(&world, &[KEY]).await;
    no_key_is_shown(&world).await;
    drop(controller);
}

/// A copy that could not be removed is not forgotten, although nothing happens any more that would call for a look.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_could_not_be_removed_is_removed_later() {
    let world = World::start("escrow-stays").await;
    let rights = Rights::of(&world).await;
    world.lease("l").await;
    world.until_ready("l").await;
    rights.set(&world, &rights.without("delete")).await;
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    let tried = async || world.logged().matches("copies of keys could not be looked at").count() > 1;
    world.eventually("two tries", tried).await;
    assert_eq!(copies(&world).await.len(), 1);
    rights.set(&world, &rights.all).await;
    until_copies(&world, &[]).await;
}

/// With the namespace goes the right to read a command's Secret: it is forbidden then, not gone. That must not hold up what
/// waits for the command's end.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_with_a_secret_ends_although_the_right_to_read_it_is_gone() {
    let options = Options { flags: vec!["--drain-timeout=5s"], ..Options::default() };
    let mut world = World::start_with("escrow-env", options).await;
    world.kubectl.run(&["create", "secret", "generic", "token", "--from-literal=t=hush-hush"]).await.unwrap();
    world.apply(&lease_with("l", &json!({ "reclaimPolicy": "Retain" }))).await.unwrap();
    let env = json!([{ "name": "T", "valueFrom": { "secretKeyRef": { "name": "token", "key": "t" } } }]);
    world.apply(&with_spec("c", &json!({ "script": "echo x >>runs; sleep 600", "env": env }))).await.unwrap();
    world.eventually("it runs", async || world.file("runs").await.is_some()).await;
    world.kill_controller().await;
    delete_namespace(&world).await;
    world
        .eventually("the rights are gone", async || world.kubectl.get(&["get", "role"]).await.unwrap().is_empty())
        .await;
    world.start_controller();
    until_namespace_gone(&world).await;
    let sandbox = world.sandbox().await;
    assert!(sandbox.sessions.is_empty(), "{:?}", sandbox.sessions);
}
