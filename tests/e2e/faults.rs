//! What the network and Daytona can do to us.

use std::time::Duration;

use dev::faults::Rule;
use dev::local_daytona::{ForcedState, Settings};
use serde_json::{Value, json};

use crate::world::{Options, World, condition, lease};

const SANDBOX: &str = "/api/sandbox";
const ONE: &str = "/api/sandbox/[^/]+";
const EXEC: &str = ".*/exec";
const EXECUTE: &str = ".*/process/execute";

fn refusal(status: u16, message: &str) -> Value {
    json!({ "statusCode": status, "error": "x", "message": message, "path": "/x", "timestamp": "2026-01-01T00:00:00Z" })
}

/// cases.md 16 and 28: a create call whose answer was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_create_makes_no_second_sandbox() {
    let world = World::without_controller("lost-create", Options::default()).await;
    world.daytona.add_rule(Rule::on("POST", SANDBOX).after().cut().times(1)).await.unwrap();
    let mut world = world;
    world.start_controller();
    world.lease("l").await;
    world.until_ready("l").await;
    assert_eq!(world.calls("POST /api/sandbox").await, 1);
    world.sandbox().await;
}

/// cases.md 17: the name is taken by something that is not ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_taken_is_left_alone() {
    let mut world = World::without_controller("taken", Options::default()).await;
    world.lease("l").await;
    let uid = world.get("sblease", "l").await["metadata"]["uid"].as_str().unwrap().to_owned();
    let body = json!({ "name": format!("sblease-{uid}"), "labels": { "owner": "somebody" } });
    let response = reqwest::Client::new()
        .post(format!("{}/sandbox", world.daytona.base_url()))
        .bearer_auth(crate::world::KEY)
        .json(&body)
        .send()
        .await
        .unwrap();
    assert!(response.status().is_success());
    world.start_controller();
    let lease = world.until_reason("sblease", "l", "Ready", "NameConflict").await;
    assert_eq!(condition(&lease, "Stalled")["status"], "True");
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert_eq!(world.sandbox().await.labels["owner"], "somebody", "what is not ours was deleted");
}

/// cases.md 18 and 21: DELETE answers 409, then 500, then works.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_that_is_refused_for_now_is_no_proof() {
    let world = World::start("delete").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let conflict = Rule::on("DELETE", ONE).answer(409, refusal(409, "Sandbox state change in progress")).times(2);
    world.daytona.add_rule(conflict).await.unwrap();
    let oops = Rule::on("DELETE", ONE).answer(500, refusal(500, "An unexpected error occurred."));
    let oops = world.daytona.add_rule(oops).await.unwrap();
    world.delete("sblease", "l").await;
    let blocked = world.until_reason("sblease", "l", "CleanupBlocked", "APIUnreachable").await;
    let sandbox = world.sandbox().await;
    let message = condition(&blocked, "CleanupBlocked")["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&sandbox.id) && message.contains("500"), "{message}");
    assert!(!blocked["metadata"]["finalizers"].as_array().unwrap().is_empty());
    world.daytona.remove_rule(oops).await.unwrap();
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
}

/// cases.md 19: gone by id, but still listed in error.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_deletion_failed_is_not_reported_as_deleted() {
    let world = World::start("errored").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let id = world.sandbox().await.id;
    let failed = ForcedState {
        state: "error".to_owned(),
        desired_state: Some("destroyed".to_owned()),
        error_reason: Some("the runner is out of order".to_owned()),
        recoverable: None,
    };
    world.daytona.force_state(&id, &failed).await.unwrap();
    world.delete("sblease", "l").await;
    let blocked = world.until_reason("sblease", "l", "CleanupBlocked", "SandboxError").await;
    let message = condition(&blocked, "CleanupBlocked")["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&id) && message.contains("out of order"), "{message}");
    world.daytona.lose(&id).await.unwrap();
    world.until_gone("sblease", "l").await;
}

/// cases.md 23: the provider lost it. Seen for a while first, then said; never replaced in silence.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_sandbox_is_told_and_not_replaced() {
    let world = World::start("lost").await;
    world.lease("l").await;
    world.command("runs", "echo begun; sleep 600").await;
    world.until("sbcmd", "runs", "running", |o| o["status"]["state"] == "Running").await;
    let id = world.sandbox().await.id;
    world.daytona.lose(&id).await.unwrap();
    let lease = world.until_reason("sblease", "l", "Ready", "SandboxLost").await;
    assert_eq!(condition(&lease, "Stalled")["status"], "True");
    let runs = world.until_finished("runs").await;
    assert_eq!(condition(&runs, "Succeeded")["reason"], "SandboxLost");
    assert_eq!(runs["status"]["exitCode"], Value::Null);
    assert_eq!(world.calls("POST /api/sandbox").await, 1);
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
}

/// cases.md 67.
///
/// Fields: sandbox.snapshot
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_does_not_exist_is_told() {
    let world = World::start("snapshot").await;
    let mut manifest: Value = serde_json::from_str(&lease("l")).unwrap();
    manifest["spec"]["sandbox"] = json!({ "snapshot": "no-such-snapshot" });
    world.apply(&manifest.to_string()).await.unwrap();
    let stalled = world.until_reason("sblease", "l", "Ready", "SnapshotNotFound").await;
    assert_eq!(condition(&stalled, "Stalled")["status"], "True");
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    manifest["metadata"]["name"] = "good".into();
    manifest["spec"]["sandbox"]["snapshot"] = "tools".into();
    world.apply(&manifest.to_string()).await.unwrap();
    world.until_ready("good").await;
}

/// cases.md 32: create answers `creating`.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_opened_only_in_a_started_sandbox() {
    let world = World::without_controller("creating", Options::default()).await;
    world.daytona.set(Settings { create_delay_seconds: Some(600), ..Settings::default() }).await.unwrap();
    let mut world = world;
    world.start_controller();
    world.lease("l").await;
    let waiting = world.until("sblease", "l", "creating", |o| o["status"]["sandbox"]["state"] == "creating").await;
    assert_eq!(condition(&waiting, "Ready")["reason"], "Provisioning");
    assert_eq!(condition(&waiting, "Reconciling")["status"], "True");
    assert_eq!(world.calls("POST /toolbox/{sandbox}/process/session").await, 0);
    world.daytona.advance_clock(Duration::from_secs(601)).await.unwrap();
    world.until_ready("l").await;
}

/// cases.md 72: a 429 is honoured for that key, in Daytona's own form.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_calls_is_honoured() {
    let mut world = World::without_controller("limit", Options::default()).await;
    let full = Rule::on("POST", SANDBOX).answer(429, refusal(429, "ThrottlerException: Too Many Requests"));
    world.daytona.add_rule(full.header("Retry-After-sandbox-create", "3600").times(1)).await.unwrap();
    world.start_controller();
    world.lease("a").await;
    world.until_reason("sblease", "a", "Ready", "APIThrottled").await;
    world.lease("b").await;
    world.until_reason("sblease", "b", "Ready", "APIThrottled").await;
    assert_eq!(world.calls("POST /api/sandbox").await, 1, "another call although a pause was asked for");
}

/// cases.md 8 to 14: answers that are lost, refused or garbled on the way of a command.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_once_whatever_happens_to_its_calls() {
    let world = World::start("once").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let faults = [
        ("exec-cut-before", Rule::on("POST", EXEC).cut()),
        ("exec-cut-after", Rule::on("POST", EXEC).after().cut()),
        ("exec-502-before", Rule::on("POST", EXEC).answer(502, "")),
        ("exec-502-after", Rule::on("POST", EXEC).after().answer(502, "")),
        ("exec-empty", Rule::on("POST", EXEC).after().answer(200, "")),
        ("wait-cut", Rule::on("POST", EXECUTE).cut()),
        ("wait-502-after", Rule::on("POST", EXECUTE).after().answer(502, "")),
        ("wait-empty", Rule::on("POST", EXECUTE).after().answer(200, json!({}))),
        ("wait-garbled", Rule::on("POST", EXECUTE).after().answer(200, json!({ "exitCode": 0, "result": "hello" }))),
    ];
    for (name, rule) in faults {
        let rule = world.daytona.add_rule(rule.times(2)).await.unwrap();
        world.command(name, &format!("echo {name} >>runs; echo done")).await;
        let done = world.until_finished(name).await;
        assert_eq!(done["status"]["exitCode"], 0, "{name}: {done:#}");
        // An attempt that was certainly not started is given up for another; none runs twice.
        assert!(done["status"]["attempts"].as_i64().unwrap() <= 2, "{name}");
        assert!(world.daytona.fired(rule).await.unwrap() > 0, "{name}: the fault was never met");
        world.daytona.remove_rule(rule).await.unwrap();
    }
    let runs = world.file("runs").await.unwrap();
    let expected: String = faults_in_order();
    assert_eq!(runs, expected, "each ran exactly once");
    assert_eq!(world.get("sblease", "l").await["status"]["sandbox"]["id"], world.sandbox().await.id.as_str());
}

fn faults_in_order() -> String {
    "exec-cut-before\nexec-cut-after\nexec-502-before\nexec-502-after\nexec-empty\nwait-cut\nwait-502-after\nwait-empty\nwait-garbled\n".to_owned()
}

/// cases.md 5 and 15: the daemon restarts; what ran is lost, what follows runs in a new shell.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_session_is_made_anew() {
    let world = World::start("session").await;
    world.lease("l").await;
    world.command("before", "echo 1 >>runs").await;
    world.until_finished("before").await;
    let id = world.sandbox().await.id;
    world.daytona.restart_daemon(&id).await.unwrap();
    world.command("after", "echo 2 >>runs; echo after").await;
    let after = world.until_finished("after").await;
    assert_eq!(after["status"]["stdout"]["tail"], "after\n", "{after:#}");
    assert_eq!(after["status"]["sessionGeneration"], 2);
    world.command("runs", "echo 3 >>runs; echo begun; sleep 600").await;
    world.eventually("it runs", async || world.file("runs").await.as_deref() == Some("1\n2\n3\n")).await;
    world.daytona.restart_daemon(&id).await.unwrap();
    let lost = world.until_finished("runs").await;
    assert_eq!(condition(&lost, "Succeeded")["reason"], "SessionLost", "{lost:#}");
    assert_eq!(lost["status"]["exitCode"], Value::Null);
    assert_eq!(lost["status"]["stdout"]["tail"], "begun\n");
    world.command("last", "cat runs").await;
    assert_eq!(world.until_finished("last").await["status"]["stdout"]["tail"], "1\n2\n3\n");
}

/// cases.md 69: stopped behind our back while a command ran.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_stopped_under_a_command_is_started_and_the_loss_is_told() {
    let world = World::start("stopped").await;
    world.lease("l").await;
    world.command("runs", "echo begun; touch runs; sleep 600").await;
    world.eventually("it runs", async || world.path("runs").await.is_some()).await;
    let id = world.sandbox().await.id;
    let stopped =
        ForcedState { state: "stopped".to_owned(), desired_state: None, error_reason: None, recoverable: None };
    world.daytona.force_state(&id, &stopped).await.unwrap();
    let runs = world.until_finished("runs").await;
    assert_eq!(condition(&runs, "Succeeded")["reason"], "SessionLost", "{runs:#}");
    assert_eq!(runs["status"]["stdout"]["tail"], "begun\n");
    world.until_ready("l").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_nobody_has_heard_of_is_told() {
    let world = World::start("unheard").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let id = world.sandbox().await.id;
    let weird =
        ForcedState { state: "levitating".to_owned(), desired_state: None, error_reason: None, recoverable: None };
    world.daytona.force_state(&id, &weird).await.unwrap();
    world.until_reason("sblease", "l", "Ready", "SandboxStateUnknown").await;
    let started =
        ForcedState { state: "started".to_owned(), desired_state: None, error_reason: None, recoverable: None };
    world.daytona.force_state(&id, &started).await.unwrap();
    world.until_ready("l").await;
}

/// An outage: nothing is decided, and all goes on when it is over.
/// Case 29.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_decides_nothing() {
    let world = World::start("outage").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let down = world.daytona.add_rule(Rule::on("GET", "/api/.*").answer(503, "")).await.unwrap();
    let lease = world.until_reason("sblease", "l", "Ready", "APIUnreachable").await;
    assert_eq!(condition(&lease, "Reconciling")["status"], "True");
    world.delete("sblease", "l").await;
    world.until_reason("sblease", "l", "CleanupBlocked", "APIUnreachable").await;
    world.daytona.remove_rule(down).await.unwrap();
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
}

/// A lease that fails, with a command waiting for it: neither makes the other try again at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_lease_and_its_command_do_not_drive_each_other() {
    let mut world = World::without_controller("drive", Options::default()).await;
    let down = world.daytona.add_rule(Rule::on("POST", SANDBOX).answer(500, refusal(500, "oops"))).await.unwrap();
    world.lease("l").await;
    world.command("c", "echo went").await;
    world.start_controller();
    world.until_reason("sblease", "l", "Ready", "APIUnreachable").await;
    let counted = world.until("sblease", "l", "its command counted", |o| o["status"]["commands"]["queued"] == 1).await;
    let before = counted["metadata"]["resourceVersion"].clone();
    world.eventually("a third try", async || world.calls("POST /api/sandbox").await >= 3).await;
    // Tries at 0, 1 and 3 seconds, less up to a quarter.
    assert!(world.calls("POST /api/sandbox").await <= 4, "too many tries");
    let after = world.get("sblease", "l").await["metadata"]["resourceVersion"].clone();
    assert_eq!(before, after, "the status is written with each try");
    world.daytona.remove_rule(down).await.unwrap();
    assert_eq!(world.until_finished("c").await["status"]["stdout"]["tail"], "went\n");
}

/// Every command that a session ever got is in what Daytona says of the session; that may be long.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_a_long_past_is_taken_up_again() {
    let mut world = World::start("past").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let status = world.get("sblease", "l").await["status"].clone();
    let (sandbox, session) = (status["sandbox"]["id"].as_str().unwrap(), status["session"]["id"].as_str().unwrap());
    let base = world.daytona.base_url().trim_end_matches("/api").to_owned();
    let long = json!({ "command": format!(": '{}'", "x".repeat(5_000_000)), "runAsync": true });
    let url = format!("{base}/toolbox/{sandbox}/process/session/{session}/exec");
    let sent = reqwest::Client::new().post(url).bearer_auth(crate::world::KEY).json(&long).send().await.unwrap();
    assert!(sent.status().is_success(), "{}", sent.status());
    world.kill_controller().await;
    world.start_controller();
    world.command("c", "echo went").await;
    let done = world.until_finished("c").await;
    assert_eq!((&done["status"]["exitCode"], &done["status"]["sessionGeneration"]), (&json!(0), &json!(1)));
}

/// daytona#4520: exec is accepted and nothing runs. Nothing is lost, and it runs once.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_swallowed_runs_all_the_same() {
    let world = World::start("swallowed").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let accepted = json!({ "cmdId": "00000000-0000-0000-0000-000000000000" });
    let swallow = Rule::on("POST", EXEC).body_contains(" run ").answer(202, accepted).times(2);
    world.daytona.add_rule(swallow).await.unwrap();
    world.command("c", "echo x >>runs; cat runs").await;
    let done = world.until_finished("c").await;
    assert_eq!(done["status"]["stdout"]["tail"], "x\n", "{done:#}");
}

/// A script that removes the controller's files: its own outcome may be lost, that of the next one is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_removes_our_files_does_not_take_the_lease_along() {
    let world = World::start_with("wiped", Options { flags: vec!["--command-hold=1s"], ..Options::default() }).await;
    world.lease("l").await;
    world.command("quick", "rm -rf \"$HOME/.daytona-controller\"; exit 3").await;
    world.command("after", "echo 1 >>runs; cat runs").await;
    world.command("slow", "rm -rf \"$HOME/.daytona-controller\"; echo $$ >pid; sleep 600").await;
    world.command("marks", "rm -rf \"$HOME/.daytona-controller/\"*/session; echo ok").await;
    world.command("last", "echo 2 >>runs; cat runs").await;
    let quick = world.until_finished("quick").await;
    assert_eq!(quick["status"]["exitCode"], 3, "{quick:#}");
    assert_eq!(world.until_finished("after").await["status"]["stdout"]["tail"], "1\n");
    let slow = world.until_finished("slow").await;
    assert_eq!(condition(&slow, "Succeeded")["reason"], "OutcomeUnknown");
    assert_eq!(slow["status"]["exitCode"], Value::Null);
    assert!(!crate::world::alive(&world.file("pid").await.unwrap()), "it runs on");
    world.until_finished("marks").await;
    world.until_finished("last").await;
    world.command("next", "echo 3 >>runs; cat runs").await;
    let next = world.until_finished("next").await;
    assert_eq!(next["status"]["exitCode"], 0, "{next:#}");
    let runs = world.file("runs").await.unwrap();
    assert!(runs == "1\n2\n3\n" || runs == "1\n3\n", "each ran at most once: {runs}");
}

/// Ours means: it carries our label. What lost it gets no commands, and is not deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_lost_our_label_is_left_alone() {
    let world = World::start("label").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let sandbox = world.sandbox().await;
    let put = async |labels: Value| {
        let url = format!("{}/sandbox/{}/labels", world.daytona.base_url(), sandbox.id);
        let request = reqwest::Client::new().put(url).bearer_auth(crate::world::KEY);
        let answer = request.json(&json!({ "labels": labels })).send().await.unwrap();
        assert!(answer.status().is_success());
    };
    put(json!({ "x": "y" })).await;
    world.until_reason("sblease", "l", "Ready", "OwnershipConflict").await;
    world.command("c", "echo went").await;
    world.until_reason("sbcmd", "c", "Succeeded", "WaitingForLease").await;
    world.delete("sbcmd", "c").await;
    world.until_gone("sbcmd", "c").await;
    world.delete("sblease", "l").await;
    world.until_reason("sblease", "l", "CleanupBlocked", "OwnershipConflict").await;
    assert_eq!(world.calls("DELETE /api/sandbox/{sandbox}").await, 0);
    put(json!(sandbox.labels)).await;
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
}
