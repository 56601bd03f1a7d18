//! Leases that are suspended, that expire, and that fall asleep.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::{Options, World, alive, condition, lease_with, one_shot, with_spec};

async fn patch(world: &World, spec: &Value) {
    let patch = json!({ "spec": spec }).to_string();
    world.kubectl.run(&["patch", "sblease", "l", "--type=merge", "-p", &patch]).await.unwrap();
}

async fn interval(world: &World, id: &str, name: &str) -> Value {
    world.ask(Method::GET, &format!("/{id}"), &Value::Null).await[name].clone()
}

/// A script that says that it runs, and goes on until the file `go` is there.
const WAITS: &str = "echo $$ >begun; until test -e go; do sleep 0.1; done; echo done";

/// Fields: suspend, suspendPolicy, status.session.generation, status.lastSessionGeneration
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_lease_drains_stops_and_comes_back_with_a_new_session() {
    let world = World::start("suspend").await;
    world.lease("l").await;
    world.command("runs", WAITS).await;
    world.eventually("it runs", async || world.path("begun").await.is_some()).await;
    patch(&world, &json!({ "suspend": true })).await;
    world.command("waits", "echo later").await;
    world.until_reason("sbcmd", "waits", "Succeeded", "LeaseSuspended").await;
    let draining = world.until_reason("sblease", "l", "Ready", "Suspended").await;
    assert_eq!(condition(&draining, "Reconciling")["status"], "True", "{draining:#}");

    let sandbox = world.sandbox().await;
    std::fs::write(world.path("begun").await.unwrap().with_file_name("go"), "").unwrap();
    assert_eq!(world.until_finished("runs").await["status"]["exitCode"], 0);
    let suspended = world.until_ready("l").await;
    assert_eq!(condition(&suspended, "Ready")["reason"], "Suspended");
    assert_eq!(suspended["status"]["session"], Value::Null);
    assert_eq!(suspended["status"]["observedGeneration"], suspended["metadata"]["generation"]);
    let stopped = world.sandbox().await;
    assert_eq!((stopped.id.as_str(), stopped.state.as_str()), (sandbox.id.as_str(), "stopped"));
    world
        .eventually("Daytona deletes nothing", async || interval(&world, &sandbox.id, "autoDeleteInterval").await == -1)
        .await;
    assert_eq!(world.calls("POST /api/sandbox/{sandbox}/start").await, 0, "nothing woke it");

    patch(&world, &json!({ "suspend": false })).await;
    assert_eq!(world.until_finished("waits").await["status"]["stdout"]["tail"], "later\n");
    let back = world.until_reason("sblease", "l", "Ready", "Ready").await;
    assert_eq!(back["status"]["session"]["generation"], 2, "an id is never used again");
    world
        .eventually("the interval is back", async || {
            interval(&world, &sandbox.id, "autoDeleteInterval").await == 10_080
        })
        .await;
}

/// Fields: suspendPolicy
/// Case 30.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspension_can_end_what_runs_and_a_suspended_lease_can_be_deleted() {
    let world = World::start("suspend-cancel").await;
    for sessions in [true, false] {
        let fields = json!({ "suspendPolicy": "Cancel", "useSessions": sessions });
        world.apply(&lease_with("l", &fields)).await.unwrap();
        let name = format!("runs-{sessions}");
        world.command(&name, WAITS).await;
        world.eventually("it runs", async || world.file("begun").await.is_some_and(|pid| pid.ends_with('\n'))).await;
        let pid = world.file("begun").await.unwrap();
        patch(&world, &json!({ "suspend": true })).await;
        let ended = world.until_finished(&name).await;
        assert_eq!(condition(&ended, "Succeeded")["reason"], "LeaseSuspended", "{ended:#}");
        assert!(!alive(&pid), "it lives");
        world.until_ready("l").await;
        assert_eq!(world.sandbox().await.state, "stopped");
        world.delete("sblease", "l").await;
        world.until_gone("sblease", "l").await;
        assert_eq!(world.daytona.state().await.unwrap().sandboxes.len(), 0);
    }
    assert_eq!(world.calls("POST /api/sandbox/{sandbox}/start").await, 0, "none was started to prove anything");
}

/// Fields: suspend
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_created_suspended_makes_no_sandbox_until_it_is_not() {
    let world = World::start("suspend-new").await;
    world.apply(&lease_with("l", &json!({ "suspend": true }))).await.unwrap();
    world.command("c", "echo now").await;
    world.until_reason("sblease", "l", "Ready", "Suspended").await;
    world.until_reason("sbcmd", "c", "Succeeded", "LeaseSuspended").await;
    assert_eq!(world.calls("POST /api/sandbox").await, 0);
    patch(&world, &json!({ "suspend": false })).await;
    assert_eq!(world.until_finished("c").await["status"]["exitCode"], 0);
}

/// Fields: leaseDurationSeconds, renewTime, status.expiryTime, status.expiredTime
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_lets_go_and_stays_behind() {
    let world = World::start("expiry").await;
    // Long enough for a command to be running by then on a busy machine; the end is brought about by the spec.
    world.apply(&lease_with("l", &json!({ "leaseDurationSeconds": 3600 }))).await.unwrap();
    world.command("runs", WAITS).await;
    world.eventually("it runs", async || world.path("begun").await.is_some()).await;
    world.command("waits", "echo never").await;
    let lease = world.until_ready("l").await;
    let columns = world.kubectl.get(&["get", "sblease", "l"]).await.unwrap();
    assert!(
        columns.contains("EXPIRES") && columns.contains(lease["status"]["expiryTime"].as_str().unwrap()),
        "{columns}"
    );
    let (id, sandbox) = (world.sandbox().await.id, &lease["status"]["sandbox"]);
    assert_eq!(
        (interval(&world, &id, "autoDeleteInterval").await, &sandbox["autoDeleteMinutes"]),
        (json!(60), &json!(60)),
        "Daytona's own limits end with the lease"
    );
    patch(&world, &json!({ "leaseDurationSeconds": 1 })).await;
    for name in ["runs", "waits"] {
        let ended = world.until_finished(name).await;
        assert_eq!(condition(&ended, "Succeeded")["reason"], "LeaseEnded", "{ended:#}");
    }
    let expired = world
        .until("sblease", "l", "expired for good", |l| {
            condition(l, "Ready")["reason"] == "Expired" && condition(l, "Stalled")["status"] == "True"
        })
        .await;
    assert_eq!(condition(&expired, "Reconciling"), Value::Null);
    assert_eq!(expired["metadata"]["finalizers"], Value::Null);
    assert_eq!(expired["status"]["sandbox"]["state"], "destroyed");
    let message = condition(&expired, "Ready")["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&id) && message.contains("was deleted"), "{message}");
    assert_eq!(world.daytona.state().await.unwrap().sandboxes.len(), 0);

    patch(&world, &json!({ "leaseDurationSeconds": 3600, "renewTime": "2999-01-01T00:00:00Z" })).await;
    world.until("sblease", "l", "seen", |l| l["status"]["observedGeneration"] == l["metadata"]["generation"]).await;
    world.command("late", "echo never").await;
    assert_eq!(condition(&world.until_finished("late").await, "Succeeded")["reason"], "LeaseEnded");
    assert_eq!(world.calls("POST /api/sandbox").await, 1);
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
}

/// Fields: leaseDurationSeconds, status.expiryTime
#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_can_limit_every_lease() {
    let world =
        World::start_with("expiry-limit", Options { flags: vec!["--max-lease-duration=2h"], ..Options::default() })
            .await;
    world.apply(&lease_with("l", &json!({ "leaseDurationSeconds": 864_000 }))).await.unwrap();
    let ready = world.until_ready("l").await;
    let seconds = |time: &Value| time.as_str().unwrap().parse::<Timestamp>().unwrap().as_second();
    let lasts = seconds(&ready["status"]["expiryTime"]) - seconds(&ready["metadata"]["creationTimestamp"]);
    assert_eq!(lasts, 7200);
}

/// cases.md 11 and 15: an idle sandbox falls asleep, nothing keeps it awake or wakes it but a command.
///
/// Fields: sandbox.autoStopMinutes
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_sandbox_falls_asleep_and_the_next_command_wakes_it() {
    let world = World::start("sleep").await;
    world.apply(&lease_with("l", &json!({ "sandbox": { "autoStopMinutes": 1 } }))).await.unwrap();
    world.until_ready("l").await;
    let looks = "GET /api/sandbox/{sandbox}";
    let before = world.calls(looks).await;
    world.eventually("it is looked at", async || world.calls(looks).await > before + 1).await;
    world.daytona.advance_clock(Duration::from_mins(3)).await.unwrap();
    let asleep = world.until_reason("sblease", "l", "Ready", "Asleep").await;
    assert_eq!(
        (&condition(&asleep, "Ready")["status"], world.sandbox().await.state.as_str()),
        (&json!("True"), "stopped")
    );
    assert_eq!(world.calls("POST /api/sandbox/{sandbox}/start").await, 0);
    assert_eq!(world.calls("POST /api/sandbox/{sandbox}/last-activity").await, 0);
    world.command("wakes", "echo up").await;
    assert_eq!(world.until_finished("wakes").await["status"]["exitCode"], 0);
    let awake = world.until_reason("sblease", "l", "Ready", "Ready").await;
    assert_eq!(awake["status"]["session"]["generation"], 2);
}

/// Fields: sandbox.autoStopMinutes
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_not_to_sleep_is_kept_awake_and_stops_when_the_controller_is_gone() {
    let options = Options { flags: vec!["--dead-man-minutes=3"], ..Options::default() };
    let mut world = World::start_with("awake", options).await;
    world.apply(&lease_with("l", &json!({ "sandbox": { "autoStopMinutes": 0 } }))).await.unwrap();
    world.until_ready("l").await;
    let id = world.sandbox().await.id;
    assert_eq!(interval(&world, &id, "autoStopInterval").await, 3);
    let kept = "POST /api/sandbox/{sandbox}/last-activity";
    world.eventually("it is kept awake", async || world.calls(kept).await == 1).await;
    world.kill_controller().await;
    world.daytona.advance_clock(Duration::from_mins(5)).await.unwrap();
    world.eventually("it is stopped", async || world.sandbox().await.state == "stopped").await;
}

/// A Persist command that is lost takes those behind it along, unless its lease goes on.
///
/// Fields: onSessionLost
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_behind_a_lost_persist_command_ends_or_goes_on() {
    let world = World::start("persist-lost").await;
    for policy in ["Fail", "Continue"] {
        let mut lease: Value = serde_json::from_str(&one_shot("l", 1)).unwrap();
        lease["spec"]["onSessionLost"] = policy.into();
        world.apply(&lease.to_string()).await.unwrap();
        let name = |what: &str| format!("{what}-{}", policy.to_lowercase());
        let persist = |script: &str| json!({ "shellState": "Persist", "script": script });
        world.apply(&with_spec(&name("saved"), &persist("export A=saved"))).await.unwrap();
        world.until_finished(&name("saved")).await;
        world.apply(&with_spec(&name("lost"), &persist("export A=lost; echo >begun; sleep 100"))).await.unwrap();
        world.eventually("it runs", async || world.path("begun").await.is_some()).await;
        world.apply(&with_spec(&name("behind"), &persist("echo $A"))).await.unwrap();
        world.command(&name("isolated"), "echo on").await;
        world.until("sbcmd", &name("behind"), "queued", |c| c["status"]["acceptedTime"] != Value::Null).await;
        let id = world.sandbox().await.id;
        world.ask(Method::POST, &format!("/{id}/stop"), &Value::Null).await;
        let lost = world.until_finished(&name("lost")).await;
        assert_eq!(lost["status"]["exitCode"], Value::Null);
        let behind = world.until_finished(&name("behind")).await;
        if policy == "Fail" {
            assert_eq!(condition(&behind, "Succeeded")["reason"], "SessionLost", "{behind:#}");
            assert_eq!(behind["status"]["attempts"], Value::Null);
        } else {
            assert_eq!(behind["status"]["stdout"]["tail"], "saved\n", "{behind:#}");
        }
        assert_eq!(world.until_finished(&name("isolated")).await["status"]["exitCode"], 0);
        world.delete("sblease", "l").await;
        world.until_gone("sblease", "l").await;
    }
}
