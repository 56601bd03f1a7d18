//! A lease that cannot prove that it has let go, and is let go by a person.

use dev::{
    faults::{Mode, Rule},
    local_daytona::ForcedState,
};
use serde_json::Value;

use crate::world::{KEY, Options, World, condition, lease_with};

async fn annotate(world: &World, value: &str) {
    let annotation = format!("daytona-controller.dev/abandon={value}");
    world.kubectl.run(&["annotate", "sblease", "l", &annotation, "--overwrite"]).await.unwrap();
}

async fn until_message(world: &World, type_: &str, text: &str) -> Value {
    let holds = |o: &Value| condition(o, type_)["message"].as_str().is_some_and(|m| m.contains(text));
    world.until("sblease", "l", &format!("{type_} says {text:?}"), holds).await
}

async fn told_of(world: &World, id: &str) {
    world
        .eventually("the event names the orphan", async || {
            let events = world.kubectl.get(&["get", "events", "-o", "json"]).await.unwrap();
            let events: Value = serde_json::from_str(&events).unwrap();
            events["items"].as_array().unwrap().iter().any(|event| {
                let note = event["message"].as_str().unwrap_or_default();
                event["reason"] == "Abandoned"
                    && event["type"] == "Warning"
                    && [id, world.daytona.base_url()].iter().all(|part| note.contains(part))
                    && !note.contains(KEY)
            })
        })
        .await;
    let logged = world.logged();
    let told = |line: &&str| line.contains("abandoned") && line.contains(id) && line.contains(world.daytona.base_url());
    assert!(logged.lines().any(|line| told(&line)), "the log does not name the orphan");
    assert!(!logged.contains(KEY));
}

/// cases.md 19: by id the sandbox is gone, but the list still shows it in an error.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_deletion_failed_is_told_and_can_be_abandoned() {
    let world = World::start("abandon").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let id = world.sandbox().await.id;
    annotate(&world, &id).await;
    world.daytona.add_rule(Rule::on("DELETE", "/api/sandbox/.*").mode(Mode::ErroredButListed)).await.unwrap();
    // On a lease that is wanted it does nothing; taken back, it does nothing later either.
    world.command("c", "echo runs").await;
    assert_eq!(world.until_finished("c").await["status"]["exitCode"], 0);
    annotate(&world, "another").await;
    world.delete("sblease", "l").await;
    let blocked = world.until_reason("sblease", "l", "CleanupBlocked", "SandboxError").await;
    let said = condition(&blocked, "CleanupBlocked")["message"].as_str().unwrap().to_owned();
    assert!(said.contains("\"another\"") && said.contains(&format!("{id:?}")), "{said}");
    annotate(&world, &id).await;
    world.until_gone("sblease", "l").await;
    told_of(&world, &id).await;
}

/// cases.md 20: Daytona never ends deleting. Beside it, another lease goes its way.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_deleted_for_ever_holds_up_nobody_and_can_be_abandoned() {
    let options = Options { flags: vec!["--stuck-after=2s"], ..Options::default() };
    let world = World::start_with("abandon-stuck", options).await;
    world.lease("l").await;
    world.until_ready("l").await;
    let id = world.sandbox().await.id;
    let stuck = ForcedState { state: "destroying".to_owned(), ..ForcedState::default() };
    world.daytona.force_state(&id, &stuck).await.unwrap();
    world.delete("sblease", "l").await;
    world.until_reason("sblease", "l", "CleanupBlocked", "SandboxError").await;
    until_message(&world, "CleanupBlocked", &format!("daytona-controller.dev/abandon={id}")).await;
    world.lease("other").await;
    world.until_ready("other").await;
    annotate(&world, &id).await;
    world.until_gone("sblease", "l").await;
    told_of(&world, &id).await;
    world.delete("sblease", "other").await;
    world.until_gone("sblease", "other").await;
}

/// Daytona hangs, something runs, and the lease has no id yet, or has one.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_abandoned_at_once_although_nobody_answers() {
    let world = World::start("abandon-hung").await;
    world.lease("l").await;
    world.command("c", "echo begun >begun; sleep 600").await;
    world.eventually("it runs", async || world.path("begun").await.is_some()).await;
    let id = world.sandbox().await.id;
    for method in ["GET", "POST", "DELETE"] {
        world.daytona.add_rule(Rule::on(method, "/(api|toolbox)/.*").hang()).await.unwrap();
    }
    world.delete("sblease", "l").await;
    world.until("sblease", "l", "going", |o| o["metadata"]["deletionTimestamp"].is_string()).await;
    annotate(&world, &id).await;
    world.until_gone("sblease", "l").await;
    told_of(&world, &id).await;
    assert_eq!(condition(&world.until_finished("c").await, "Succeeded")["reason"], "LeaseEnded");
    assert_eq!(world.sandbox().await.id, id, "it was left alone");
}

/// Of an expired lease the object stays, and says what became of its sandbox.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_can_be_abandoned_too() {
    let world = World::start("abandon-expired").await;
    world.daytona.add_rule(Rule::on("DELETE", "/api/sandbox/.*").answer(500, "out of order")).await.unwrap();
    world.apply(&lease_with("l", &serde_json::json!({ "leaseDurationSeconds": 5 }))).await.unwrap();
    world.until_ready("l").await;
    let id = world.sandbox().await.id;
    world.until_reason("sblease", "l", "CleanupBlocked", "APIUnreachable").await;
    annotate(&world, &id).await;
    let left = until_message(&world, "Ready", "without proof").await;
    assert_eq!((&left["metadata"]["finalizers"], &condition(&left, "CleanupBlocked")), (&Value::Null, &Value::Null));
    told_of(&world, &id).await;
}
