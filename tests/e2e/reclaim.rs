//! What becomes of a sandbox when its lease ends, and sandboxes that are taken over.

use dev::{faults::Rule, local_daytona::ForcedState};
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::{World, condition, lease_with};

const UID: &str = "daytona-controller.dev/lease-uid";
const DELETES_SESSION: &str = "DELETE /toolbox/{sandbox}/process/session/{session}";
const RELEASED: &str = "daytona-controller.dev/released-by";

async fn end(world: &World, name: &str) {
    world.delete("sblease", name).await;
    world.until_gone("sblease", name).await;
}

fn reuses(name: &str, policy: &str, fields: Value) -> String {
    let mut sandbox = fields;
    sandbox["reuseKey"] = "cache".into();
    lease_with(name, &json!({ "reclaimPolicy": policy, "sandbox": sandbox }))
}

/// Fields: reclaimPolicy
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_left_as_its_lease_says_and_its_session_is_gone() {
    let world = World::start("reclaim").await;
    for (policy, state) in [("Stop", "stopped"), ("Archive", "archived"), ("Retain", "started"), ("Delete", "")] {
        world.apply(&lease_with("l", &json!({ "reclaimPolicy": policy }))).await.unwrap();
        let lease = world.until_ready("l").await;
        let uid = &lease["metadata"]["uid"];
        let before = world.calls(DELETES_SESSION).await;
        end(&world, "l").await;
        assert_eq!(world.calls(DELETES_SESSION).await, before + 1, "{policy}");
        if state.is_empty() {
            assert_eq!(world.daytona.state().await.unwrap().sandboxes.len(), 0);
            continue;
        }
        let left = world.sandbox().await;
        assert!(crate::world::walk(&left.dir, ".daytona-controller").is_none(), "{policy}: our files are left");
        assert_eq!((left.state.as_str(), &left.sessions[..]), (state, &[][..]), "{policy}");
        assert_eq!((left.labels.get(UID), &left.labels[RELEASED]), (None, uid), "{policy}");
        let seen = world.ask(Method::GET, &format!("/{}", left.id), &Value::Null).await;
        assert_eq!(seen["autoDeleteInterval"], -1, "{policy}: Daytona must not delete it");
        world.ask(Method::DELETE, &format!("/{}", left.id), &Value::Null).await;
        world.eventually("it is gone", async || world.daytona.state().await.unwrap().sandboxes.is_empty()).await;
    }
}

/// Fields: reclaimPolicy
/// Case 22.
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_can_be_changed_while_the_lease_waits_to_go() {
    let world = World::start("reclaim-change").await;
    world.apply(&lease_with("l", &json!({ "reclaimPolicy": "Stop" }))).await.unwrap();
    world.until_ready("l").await;
    let forced =
        ForcedState { state: "error".to_owned(), error_reason: Some("broken".to_owned()), ..ForcedState::default() };
    world.daytona.force_state(&world.sandbox().await.id, &forced).await.unwrap();
    world.delete("sblease", "l").await;
    let blocked = world.until_reason("sblease", "l", "CleanupBlocked", "SandboxError").await;
    assert!(condition(&blocked, "CleanupBlocked")["message"].as_str().unwrap().contains("reclaimPolicy"));
    let patch = r#"{"spec":{"reclaimPolicy":"Delete"}}"#;
    world.kubectl.run(&["patch", "sblease", "l", "--type=merge", "-p", patch]).await.unwrap();
    world.until_gone("sblease", "l").await;
    assert_eq!(world.daytona.state().await.unwrap().sandboxes.len(), 0);
}

/// Fields: sandbox.reuseKey
#[tokio::test(flavor = "multi_thread")]
async fn a_later_lease_takes_over_what_an_earlier_one_left() {
    let world = World::start("reuse").await;
    world.apply(&reuses("l", "Stop", json!({}))).await.unwrap();
    world.command("writes", "echo kept >state").await;
    world.until_finished("writes").await;
    let first = world.sandbox().await;

    world.apply(&reuses("other", "Stop", json!({}))).await.unwrap();
    let waits = world.until_reason("sblease", "other", "Ready", "ReuseConflict").await;
    assert!(condition(&waits, "Ready")["message"].as_str().unwrap().contains("/l"), "{waits:#}");
    assert_eq!(condition(&waits, "Stalled")["status"], "True");
    end(&world, "l").await;
    let taken = world.until_ready("other").await;
    assert_eq!(taken["status"]["sandbox"]["id"], first.id.as_str());
    world.apply(&crate::world::command("reads", "other", "cat state")).await.unwrap();
    assert_eq!(world.until_finished("reads").await["status"]["stdout"]["tail"], "kept\n");
    let now = world.sandbox().await;
    assert_eq!((now.labels.get(RELEASED), &now.labels[UID]), (None, &taken["metadata"]["uid"]));
    world
        .eventually("its interval is as its lease says again", async || {
            world.ask(Method::GET, &format!("/{}", first.id), &Value::Null).await["autoDeleteInterval"] == 10_080
        })
        .await;
    end(&world, "other").await;

    world.apply(&reuses("another", "Stop", json!({ "user": "root" }))).await.unwrap();
    world.until_reason("sblease", "another", "Ready", "ReuseConflict").await;
    end(&world, "another").await;
    assert_eq!(world.sandbox().await.state, "stopped", "what is not ours was touched");

    world.apply(&reuses("last", "Delete", json!({}))).await.unwrap();
    world.until_ready("last").await;
    assert_eq!(world.calls("POST /api/sandbox").await, 1, "one sandbox served all of them");
    end(&world, "last").await;
    assert_eq!(world.daytona.state().await.unwrap().sandboxes.len(), 0);
}

/// The answer to the label write is lost; or the controller dies around it.
///
/// Fields: sandbox.reuseKey
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_label_write_changes_nothing() {
    let world = World::start("reuse-lost").await;
    world.apply(&reuses("l", "Retain", json!({}))).await.unwrap();
    world.until_ready("l").await;
    let rule = world.daytona.add_rule(Rule::on("PUT", ".*/labels").after().cut().times(1)).await.unwrap();
    end(&world, "l").await;
    assert_eq!(world.daytona.fired(rule).await.unwrap(), 1);
    let rule = world.daytona.add_rule(Rule::on("PUT", ".*/labels").after().cut().times(1)).await.unwrap();
    world.apply(&reuses("m", "Delete", json!({}))).await.unwrap();
    world.until_ready("m").await;
    assert_eq!((world.daytona.fired(rule).await.unwrap(), world.calls("POST /api/sandbox").await), (1, 1));
}

/// Fields: sandbox.adopt
#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_sandbox_is_labelled_used_and_given_back() {
    let world = World::start("adopt").await;
    let body = json!({ "labels": { "team": "a" }, "autoStopInterval": 0, "autoDeleteInterval": -1 });
    let made = world.ask(Method::POST, "", &body).await;
    let id = made["id"].as_str().unwrap();
    let adopts = |name: &str, policy: &str| {
        lease_with(
            name,
            &json!({ "reclaimPolicy": policy, "sandbox": { "adopt": { "id": id }, "labels": { "more": "b" } } }),
        )
    };
    let refused = world.apply(&adopts("l", "Delete")).await.unwrap_err().to_string();
    assert!(refused.contains("never deleted"), "{refused}");
    world.apply(&adopts("l", "Retain")).await.unwrap();
    let ready = world.until_ready("l").await;
    assert_eq!(ready["status"]["sandbox"]["id"], id);
    assert_eq!(ready["status"]["sandbox"]["name"], made["name"]);
    world.command("c", "echo here").await;
    assert_eq!(world.until_finished("c").await["status"]["exitCode"], 0);

    world.apply(&adopts("m", "Retain")).await.unwrap();
    world.until_reason("sblease", "m", "Ready", "OwnershipConflict").await;
    end(&world, "m").await;

    end(&world, "l").await;
    let left = world.sandbox().await;
    assert_eq!(
        (left.state.as_str(), left.labels["team"].as_str(), left.labels["more"].as_str()),
        ("started", Some("a"), Some("b"))
    );
    assert_eq!(left.labels.get(UID), None);
    let seen = world.ask(Method::GET, &format!("/{id}"), &Value::Null).await;
    assert_eq!(
        (&seen["autoStopInterval"], &seen["autoDeleteInterval"]),
        (&json!(0), &json!(-1)),
        "it was not asked to"
    );
    assert_eq!(world.calls("DELETE /api/sandbox/{sandbox}").await, 0);
    world
        .apply(&lease_with("n", &json!({ "reclaimPolicy": "Stop", "sandbox": { "adopt": { "id": "nowhere" } } })))
        .await
        .unwrap();
    world.until_reason("sblease", "n", "Ready", "InvalidSpec").await;
    end(&world, "n").await;
    assert_eq!(world.calls("POST /api/sandbox").await, 1, "the test's own");
}

/// Case 33.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_is_recovered_from_once_and_then_told() {
    let world = World::start("recover").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let id = world.sandbox().await.id;
    let broken = |recoverable| ForcedState {
        state: "error".to_owned(),
        error_reason: Some("disk full".to_owned()),
        recoverable: Some(recoverable),
        ..ForcedState::default()
    };
    world.daytona.force_state(&id, &broken(true)).await.unwrap();
    let recovers = "POST /api/sandbox/{sandbox}/recover";
    world.eventually("it is recovered", async || world.calls(recovers).await == 1).await;
    world.command("c", "echo back").await;
    assert_eq!(world.until_finished("c").await["status"]["exitCode"], 0);
    assert_eq!(world.calls(recovers).await, 1);
    world.daytona.force_state(&id, &broken(false)).await.unwrap();
    let told = world.until_reason("sblease", "l", "Ready", "SandboxError").await;
    assert_eq!(condition(&told, "Stalled")["status"], "True");
    assert!(condition(&told, "Ready")["message"].as_str().unwrap().contains("disk full"));
    assert_eq!(world.calls("POST /api/sandbox").await, 1, "it is never replaced");
}
