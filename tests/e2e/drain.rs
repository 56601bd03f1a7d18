//! Leases that end, or are suspended, while something runs that does not end by itself.

use dev::faults::Rule;
use serde_json::{Value, json};

use crate::world::{Options, World, alive, condition, lease_with, one_shot, with_spec};

const DELETES_SESSION: &str = "DELETE /toolbox/{sandbox}/process/session/{session}";
const BROKEN: &str = "bad gateway";

async fn world(name: &str) -> World {
    World::start_with(name, Options { flags: vec!["--drain-timeout=2s", "--command-hold=2s"], ..Options::default() })
        .await
}

/// Runs on although it is sent TERM.
async fn stubborn(world: &World, name: &str, grace: u32) -> String {
    let script = "trap '' TERM; echo $$ >pid; while :; do sleep 0.2; done";
    let spec = json!({ "script": script, "terminationGracePeriodSeconds": grace });
    world.apply(&with_spec(name, &spec)).await.unwrap();
    world.eventually("it runs", async || world.file("pid").await.is_some_and(|pid| pid.ends_with('\n'))).await;
    world.file("pid").await.unwrap()
}

async fn patch(world: &World, spec: &Value) {
    let patch = json!({ "spec": spec }).to_string();
    world.kubectl.run(&["patch", "sblease", "l", "--type=merge", "-p", &patch]).await.unwrap();
}

async fn break_toolbox(world: &World) {
    for method in ["GET", "POST", "DELETE"] {
        world.daytona.add_rule(Rule::on(method, "/toolbox/.*").answer(502, BROKEN)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_in_time_ends_with_its_session_and_nobody_is_hurried() {
    let world = world("drain-session").await;
    world.lease("l").await;
    let pid = stubborn(&world, "c", 30).await;
    world.daytona.add_rule(Rule::on("POST", ".*/process/execute").answer(502, BROKEN)).await.unwrap();
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert!(!alive(&pid) && world.daytona.state().await.unwrap().sandboxes.is_empty());
    let ended = world.until_finished("c").await;
    assert_eq!(condition(&ended, "Succeeded")["reason"], "LeaseEnded", "{ended:#}");
    assert!(world.calls(DELETES_SESSION).await <= 3, "deleted again and again");
}

/// A dead toolbox keeps no sandbox: with it everything ends for certain.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_nobody_can_reach_into_goes_all_the_same() {
    let world = world("drain-dead").await;
    for policy in ["Delete", "Stop"] {
        world.apply(&lease_with("l", &json!({ "reclaimPolicy": policy }))).await.unwrap();
        let name = format!("c-{}", policy.to_lowercase());
        let pid = stubborn(&world, &name, 1).await;
        break_toolbox(&world).await;
        world.delete("sblease", "l").await;
        world.until_gone("sblease", "l").await;
        assert!(!alive(&pid), "{policy}: it lives");
        assert_eq!(condition(&world.until_finished(&name).await, "Succeeded")["reason"], "LeaseEnded");
        world.daytona.clear_rules().await.unwrap();
        let left = world.daytona.state().await.unwrap().sandboxes;
        assert!(left.iter().all(|sandbox| policy == "Stop" && sandbox.state == "stopped"), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_given_to_nobody_while_something_of_the_lease_runs_in_it() {
    let world = world("drain-retain").await;
    for sessions in [true, false] {
        let mut lease: Value = serde_json::from_str(&one_shot("l", 1)).unwrap();
        lease["spec"]["useSessions"] = sessions.into();
        lease["spec"]["reclaimPolicy"] = "Retain".into();
        world.apply(&lease.to_string()).await.unwrap();
        let name = format!("c-{sessions}");
        // Longer than the lease waits.
        let pid = stubborn(&world, &name, 6).await;
        world.delete("sblease", "l").await;
        world.until_reason("sblease", "l", "CleanupBlocked", "SandboxError").await;
        assert!(!world.sandbox().await.labels.contains_key("daytona-controller.dev/released-by"));
        world.until_gone("sblease", "l").await;
        assert!(!alive(&pid), "it lives on in a sandbox that was given away");
        assert_eq!(condition(&world.until_finished(&name).await, "Succeeded")["reason"], "LeaseEnded");
        let id = world.sandbox().await.id;
        world.ask(reqwest::Method::DELETE, &format!("/{id}"), &Value::Null).await;
        world.eventually("it is gone", async || world.daytona.state().await.unwrap().sandboxes.is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspension_stops_what_nobody_can_reach_into() {
    let world = world("drain-suspend").await;
    world.apply(&lease_with("l", &json!({ "suspendPolicy": "Cancel" }))).await.unwrap();
    let pid = stubborn(&world, "c", 1).await;
    break_toolbox(&world).await;
    patch(&world, &json!({ "suspend": true })).await;
    let suspended = world.until_ready("l").await;
    assert_eq!(condition(&suspended, "Ready")["reason"], "Suspended");
    assert!(!alive(&pid) && world.sandbox().await.state == "stopped");
    assert_eq!(condition(&world.until_finished("c").await, "Succeeded")["reason"], "LeaseSuspended");
}

/// The time of a suspension is none of the grace.
#[tokio::test(flavor = "multi_thread")]
async fn what_drained_for_long_is_ended_with_its_grace_all_the_same() {
    let world = World::start_with(
        "drain-grace",
        Options { flags: vec!["--drain-timeout=4s", "--command-hold=2s"], ..Options::default() },
    )
    .await;
    world.apply(&one_shot("l", 1)).await.unwrap();
    let script = "trap 'echo bye; exit 0' TERM; echo $$ >pid; while :; do sleep 0.1; done";
    world.command("c", script).await;
    world.eventually("it runs", async || world.file("pid").await.is_some()).await;
    patch(&world, &json!({ "suspend": true })).await;
    world.until_reason("sblease", "l", "Ready", "Suspended").await;
    // Longer than it would be waited for: so many looks, a tenth of a second or more between them.
    let looks = "GET /api/sandbox/{sandbox}";
    let before = world.calls(looks).await;
    world.eventually("it has been suspended for long", async || world.calls(looks).await >= before + 20).await;
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    let ended = world.until_finished("c").await;
    assert_eq!(ended["status"]["stdout"]["tail"], "bye\n", "{ended:#}");
}
