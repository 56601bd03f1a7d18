//! Case 84: a sandbox that Daytona has paused is frozen with what runs in it. Nothing of that has ended.

use dev::{faults::Rule, local_daytona::ForcedState};
use serde_json::{Value, json};

use crate::world::{World, alive, lease, lease_with, one_shot};

async fn pause(world: &World) {
    let paused = ForcedState { state: "paused".to_owned(), ..ForcedState::default() };
    world.daytona.force_state(&world.sandbox().await.id, &paused).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_frozen_is_not_left_in_a_sandbox_that_is_given_away() {
    let world = World::start("paused-retain").await;
    world.apply(&lease_with("l", &json!({ "reclaimPolicy": "Retain" }))).await.unwrap();
    world.until_ready("l").await;
    pause(&world).await;
    world.until_reason("sblease", "l", "Ready", "Asleep").await;
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    let sandbox = world.sandbox().await;
    assert_eq!(sandbox.state, "stopped");
    assert!(sandbox.sessions.is_empty(), "{sandbox:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_frozen_is_not_told_as_ended() {
    let world = World::start("paused-cancel").await;
    world.apply(&one_shot("l", 1)).await.unwrap();
    world.command("c", "echo $$ >pid; sleep 300").await;
    world.eventually("it runs", async || world.file("pid").await.is_some_and(|pid| pid.ends_with('\n'))).await;
    let pid = world.file("pid").await.unwrap();
    // It cannot be resumed for now, nor spoken to.
    for method in ["GET", "POST", "DELETE"] {
        world.daytona.add_rule(Rule::on(method, "/toolbox/.*").answer(502, "")).await.unwrap();
    }
    let start = world.daytona.add_rule(Rule::on("POST", ".*/start").answer(502, "")).await.unwrap();
    pause(&world).await;
    world.eventually("a start is tried", async || world.daytona.fired(start).await.unwrap() > 1).await;
    let cancel = r#"{"spec":{"cancel":true}}"#;
    world.kubectl.run(&["patch", "sbcmd", "c", "--type=merge", "--patch", cancel]).await.unwrap();
    let fired = world.daytona.fired(start).await.unwrap();
    world.eventually("it is tried again", async || world.daytona.fired(start).await.unwrap() > fired + 1).await;
    assert_eq!(world.get("sbcmd", "c").await["status"]["state"], "Running");
    assert!(alive(&pid));
    world.daytona.clear_rules().await.unwrap();
    let done = world.until_finished("c").await;
    assert!(!alive(&pid), "{done:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_frozen_goes_on_in_the_same_session() {
    let world = World::start("paused-resumes").await;
    world.apply(&lease("l")).await.unwrap();
    world.command("c", "echo x >>runs; while [ ! -e go ]; do sleep 0.05; done; exit 7").await;
    world.eventually("it runs", async || world.file("runs").await.is_some()).await;
    pause(&world).await;
    world.eventually("it is resumed", async || world.sandbox().await.state == "started").await;
    world.until_ready("l").await;
    std::fs::write(world.path("runs").await.unwrap().with_file_name("go"), "").unwrap();
    let done: Value = world.until_finished("c").await;
    assert_eq!(done["status"]["exitCode"], 7, "{done:#}");
    assert_eq!(world.file("runs").await.as_deref(), Some("x\n"));
    assert_eq!(world.get("sblease", "l").await["status"]["session"]["generation"], 1);
}
