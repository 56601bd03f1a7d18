//! What a lease says of a sandbox in each of the states that Daytona knows, and of what Daytona refuses.

use dev::local_daytona::{ForcedState, Settings};
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::{KEY, Options, World, condition, lease, lease_with, one_shot};

async fn force(world: &World, state: &str) {
    let forced = ForcedState { state: state.to_owned(), ..ForcedState::default() };
    world.daytona.force_state(&world.sandbox().await.id, &forced).await.unwrap();
}

fn minute(time: &Value) -> String {
    time.as_str().unwrap().chars().take("2026-01-31T12:00".len()).collect()
}

/// The reasons that the events of leases tell.
async fn reasons(world: &World) -> Vec<String> {
    let lease = "involvedObject.kind=SandboxLease";
    let events = ["get", "events", "--field-selector", lease, "-o", "json", "--sort-by=.metadata.creationTimestamp"];
    let events: Value = serde_json::from_str(&world.kubectl.get(&events).await.unwrap()).unwrap();
    events["items"].as_array().unwrap().iter().map(|e| e["reason"].as_str().unwrap().to_owned()).collect()
}

/// Each state has its reason within the poll period, and none of them is left by itself for another.
///
/// Fields: status.conditions, status.sandbox.state, status.observedGeneration
#[tokio::test(flavor = "multi_thread")]
async fn each_state_of_a_sandbox_is_told_by_its_own_reason() {
    let world = World::start("states").await;
    world.lease("l").await;
    world.until_ready("l").await;
    for (state, reason, ready) in [
        ("stopped", "Asleep", "True"),
        ("archived", "Asleep", "True"),
        ("restoring", "Restoring", "False"),
        ("paused", "Asleep", "True"),
        ("error", "SandboxError", "False"),
        ("build_failed", "SandboxError", "False"),
        ("levitating", "SandboxStateUnknown", "False"),
        ("resizing", "Restoring", "False"),
        ("started", "Ready", "True"),
    ] {
        force(&world, state).await;
        let told = world
            .until("sblease", "l", &format!("{state}: {reason}"), |l| {
                l["status"]["sandbox"]["state"] == state && condition(l, "Ready")["reason"] == reason
            })
            .await;
        assert_eq!(condition(&told, "Ready")["status"], ready, "{state}");
        // Looked at twice more: it stays so.
        let looks = "GET /api/sandbox/{sandbox}";
        let (before, version) = (world.calls(looks).await, &told["metadata"]["resourceVersion"]);
        world.eventually("it is looked at", async || world.calls(looks).await >= before + 3).await;
        let later = world.get("sblease", "l").await;
        assert_eq!(&later["metadata"]["resourceVersion"], version, "{state}: it was written again: {later:#}");
    }
    assert_eq!(world.calls("POST /api/sandbox/{sandbox}/start").await, 0, "it was started for its own sake");
    assert_eq!(world.calls("POST /api/sandbox").await, 1);
    let reasons = reasons(&world).await;
    assert!(reasons.contains(&"SandboxError".to_owned()), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_daytona_never_ends_changing_is_told() {
    let options = Options { flags: vec!["--stuck-after=2s"], ..Options::default() };
    let world = World::start_with("stuck", options).await;
    world.lease("l").await;
    world.until_ready("l").await;
    force(&world, "restoring").await;
    let stuck = world.until_reason("sblease", "l", "Ready", "SandboxError").await;
    let message = condition(&stuck, "Ready")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("restoring") && message.contains(&world.sandbox().await.id), "{message}");
    world.command("waits", "true").await;
    world.until_reason("sbcmd", "waits", "Succeeded", "WaitingForLease").await;
    force(&world, "started").await;
    world.until_ready("l").await;
    assert_eq!(world.until_finished("waits").await["status"]["exitCode"], 0);

    world.daytona.set(Settings { delete_delay_seconds: Some(3600), ..Settings::default() }).await.unwrap();
    world.delete("sblease", "l").await;
    let blocked = world.until_reason("sblease", "l", "CleanupBlocked", "SandboxError").await;
    let message = condition(&blocked, "CleanupBlocked")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("destroying"), "{message}");
    world.daytona.advance_clock(std::time::Duration::from_hours(2)).await.unwrap();
    world.until_gone("sblease", "l").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archived_or_paused_sandbox_is_brought_back_by_the_next_command() {
    let world = World::start("archived").await;
    world.lease("l").await;
    world.command("before", "echo kept >file").await;
    world.until_finished("before").await;
    let id = world.sandbox().await.id;
    for step in ["stop", "archive"] {
        world.ask(Method::POST, &format!("/{id}/{step}"), &Value::Null).await;
        let state = if step == "stop" { "stopped" } else { "archived" };
        world.eventually(state, async || world.sandbox().await.state == state).await;
    }
    world.command("after", "cat file").await;
    assert_eq!(world.until_finished("after").await["status"]["stdout"]["tail"], "kept\n");
    force(&world, "paused").await;
    world.until_reason("sblease", "l", "Ready", "Asleep").await;
    world.command("resumed", "cat file").await;
    assert_eq!(world.until_finished("resumed").await["status"]["stdout"]["tail"], "kept\n");
}

/// cases.md 67 and 72: what Daytona refuses is told, and tried again when there is room.
#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_quota_is_told_and_taken_up_when_there_is_room() {
    let world = World::start("quota").await;
    world.daytona.set(Settings { total_cpu: Some(0), ..Settings::default() }).await.unwrap();
    world.lease("l").await;
    let told = world.until_reason("sblease", "l", "Ready", "QuotaExceeded").await;
    assert_eq!(condition(&told, "Stalled")["status"], "True");
    world.daytona.set(Settings { total_cpu: Some(100), ..Settings::default() }).await.unwrap();
    world.kubectl.run(&["annotate", "sblease", "l", "reconcile.fluxcd.io/requestedAt=now"]).await.unwrap();
    world.until_ready("l").await;
}

/// Names as long as Kubernetes has them.
#[tokio::test(flavor = "multi_thread")]
async fn names_may_be_as_long_as_kubernetes_has_them() {
    let world = World::start("long-names").await;
    let long = |first: &str| format!("{first}{}", "x".repeat(253 - first.len()));
    let (name, secret) = (long("lease-"), long("secret-"));
    let key = format!("--from-literal={}={KEY}", long("key."));
    world.kubectl.run(&["create", "secret", "generic", &secret, &key]).await.unwrap();
    let connection = json!({ "apiKeySecretRef": { "name": secret, "key": long("key.") } });
    let sandbox = json!({ "reuseKey": long("r"), "snapshot": "tools" });
    world.apply(&lease_with(&name, &json!({ "connection": connection, "sandbox": sandbox }))).await.unwrap();
    world.until_ready(&name).await;
    let mut command: Value = serde_json::from_str(&crate::world::command("c", &name, "echo long")).unwrap();
    command["metadata"]["name"] = long("command-").into();
    command["spec"]["logs"] = json!({ "tailBytes": 0 });
    world.apply(&command.to_string()).await.unwrap();
    let done = world.until_finished(&long("command-")).await;
    assert_eq!(
        (&done["status"]["exitCode"], &condition(&done, "OutputStored")["status"]),
        (&json!(0), &json!("True")),
        "{done:#}"
    );
    world.delete("sblease", &name).await;
    world.until_gone("sblease", &name).await;
}

/// Fields: status.sandbox.id, status.sandbox.name, status.sandbox.target, status.sandbox.workDir,
/// status.sandbox.homeDir, status.sandbox.creationTime, status.connection.apiURL, status.connection.organizationID,
/// status.connection.keyFingerprint, status.session.id, status.session.generation, status.session.creationTime,
/// status.workspace.id, status.workspace.generation, status.workspace.creationTime, status.mode,
/// status.lastSessionGeneration, status.lastHandledReconcileAt, status.commands.queued, status.commands.running,
/// status.commands.succeeded, status.commands.failed
#[tokio::test(flavor = "multi_thread")]
async fn the_status_says_what_is_there() {
    let world = World::start("status").await;
    for sessions in [true, false] {
        let manifest = if sessions { lease("l") } else { one_shot("l", 1) };
        world.apply(&manifest).await.unwrap();
        world.until_ready("l").await;
        let name = |what: &str| format!("{what}-{sessions}");
        world.command(&name("good"), "true").await;
        world.command(&name("bad"), "false").await;
        world.command(&name("runs"), "sleep 600").await;
        world.command(&name("waits"), "true").await;
        world
            .kubectl
            .run(&["annotate", "sblease", "l", &format!("reconcile.fluxcd.io/requestedAt={sessions}")])
            .await
            .unwrap();
        let requested = json!(sessions.to_string());
        let counts = json!({ "queued": 1, "running": 1, "succeeded": 1, "failed": 1 });
        let told = world
            .until("sblease", "l", "its counts", |l| {
                l["status"]["commands"] == counts && l["status"]["lastHandledReconcileAt"] == requested
            })
            .await;
        let (status, sandbox) = (&told["status"], world.sandbox().await);
        let seen = world.ask(Method::GET, &format!("/{}", sandbox.id), &Value::Null).await;
        let said = &status["sandbox"];
        assert_eq!((&said["id"], &said["name"], &said["target"]), (&seen["id"], &seen["name"], &seen["target"]));
        assert!(
            said["workDir"].as_str().unwrap().starts_with('/') && said["homeDir"].as_str().unwrap().starts_with('/')
        );
        assert_eq!(minute(&said["creationTime"]), minute(&seen["createdAt"]));
        assert_eq!(status["connection"]["apiURL"], world.daytona.base_url());
        assert_eq!(status["connection"]["organizationID"], seen["organizationId"]);
        assert!(!status["connection"]["keyFingerprint"].as_str().unwrap().contains(KEY));
        assert_eq!(status["mode"], if sessions { "Sessions" } else { "OneShot" });
        let (here, not) = if sessions { ("session", "workspace") } else { ("workspace", "session") };
        assert_eq!(
            (&status[here]["generation"], &status[not], &status["lastSessionGeneration"]),
            (&json!(1), &Value::Null, &json!(1))
        );
        assert!(status[here]["id"].as_str().unwrap().starts_with(told["metadata"]["uid"].as_str().unwrap()));
        assert!(status[here]["creationTime"].is_string());
        world.delete("sblease", "l").await;
        world.until_gone("sblease", "l").await;
    }
}
