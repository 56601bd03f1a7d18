//! Faults that others have met with Daytona, by their numbers in the list of field cases; those that fit beside other
//! tests are there.

use std::time::Duration;

use dev::{
    faults::{Mode, Rule},
    local_daytona::{ForcedState, Settings},
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::{KEY, Options, World, alive, condition, lease, lease_with, one_shot};

const EXEC: &str = "POST /toolbox/{sandbox}/process/session/{session}/exec";
const LOOK: &str = "GET /api/sandbox/{sandbox}";

async fn looks(world: &World, count: usize) {
    let before = world.calls(LOOK).await;
    world.eventually("it is looked at", async || world.calls(LOOK).await >= before + count).await;
}

/// Cases 9, 14, 80: answers that make no sense for a while, and then the result.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_fails_for_a_while_costs_time_and_nothing_else() {
    let world = World::start("case-9").await;
    world.apply(&lease("l")).await.unwrap();
    let ready = condition(&world.until_ready("l").await, "Ready")["lastTransitionTime"].clone();
    let answers = [("atoi", 500, "strconv.Atoi: parsing \"\"", 2), ("empty", 200, "", 3), ("gateway", 502, "", 4)];
    for (n, (name, status, body, times)) in answers.into_iter().enumerate() {
        let rule = Rule::on("POST", ".*/process/execute").after().answer(status, body).times(times);
        let rule = world.daytona.add_rule(rule).await.unwrap();
        world.command(name, "echo x >>runs; echo out").await;
        let done = world.until_finished(name).await;
        assert_eq!((&done["status"]["exitCode"], &done["status"]["stdout"]["tail"]), (&json!(0), &json!("out\n")));
        assert_eq!(world.daytona.fired(rule).await.unwrap(), times, "{name}");
        assert_eq!(world.calls(EXEC).await, 1 + n + 1, "one is the session's probe");
    }
    assert_eq!(world.file("runs").await.as_deref(), Some("x\nx\nx\n"));
    assert_eq!(world.calls("POST /api/sandbox").await, 1);
    let lease = world.get("sblease", "l").await;
    assert_eq!(condition(&lease, "Ready")["lastTransitionTime"], ready, "it was ready throughout");
    let warnings = ["get", "events", "--field-selector", "type=Warning", "-o", "name"];
    let warnings = world.kubectl.get(&warnings).await.unwrap();
    assert!(!warnings.contains("atoi"), "{warnings}");
}

/// Case 10: what a session's command leaves in the background goes with the lease.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_command_left_in_the_background_outlives_the_lease() {
    let world = World::start("case-10").await;
    world.apply(&lease("l")).await.unwrap();
    let script = "sleep 600 >/dev/null 2>&1 & echo $! >one; setsid sh -c 'echo $$ >two; exec sleep 600' >/dev/null 2>&1 & \
                  until [ -s two ]; do sleep 0.02; done";
    world.command("c", script).await;
    world.until_finished("c").await;
    let pids = [world.file("one").await.unwrap(), world.file("two").await.unwrap()];
    assert!(pids.iter().all(|pid| alive(pid)));
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert!(!pids.iter().any(|pid| alive(pid)));
}

/// Case 12: what somebody set while the sandbox was stopped is set again once, whoever started it.
#[tokio::test(flavor = "multi_thread")]
async fn an_interval_that_was_changed_while_it_was_stopped_is_set_again_once() {
    let world = World::start("case-12").await;
    world.apply(&lease("l")).await.unwrap();
    world.until_ready("l").await;
    let id = world.sandbox().await.id;
    world.ask(Method::POST, &format!("/{id}/stop"), &Value::Null).await;
    world.until_reason("sblease", "l", "Ready", "Asleep").await;
    world.ask(Method::POST, &format!("/{id}/autostop/99"), &Value::Null).await;
    world.command("c", "true").await;
    world.until_finished("c").await;
    world.eventually("it is set", async || world.sandbox().await.auto_stop_interval == 15).await;
    let sets = world.calls("POST /api/sandbox/{sandbox}/autostop/{minutes}").await;
    looks(&world, 2).await;
    assert_eq!(world.calls("POST /api/sandbox/{sandbox}/autostop/{minutes}").await, sets);
}

/// Case 26: with the controller gone for ever, Daytona's own intervals end what it has made.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_controller_a_sandbox_stops_is_archived_and_deleted() {
    let mut world = World::start("case-26").await;
    world.apply(&lease("l")).await.unwrap();
    world.until_ready("l").await;
    world.kill_controller().await;
    for (minutes, state) in [(17, "stopped"), (62, "archived")] {
        world.daytona.advance_clock(Duration::from_mins(minutes)).await.unwrap();
        world.eventually(state, async || world.sandbox().await.state == state).await;
    }
    world.daytona.advance_clock(Duration::from_mins(10_081)).await.unwrap();
    world.eventually("gone", async || world.daytona.state().await.unwrap().sandboxes.is_empty()).await;
}

/// Case 52: an answer that repeats the key, also where it is not what was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_an_answer_repeats_is_told_nowhere() {
    let world = World::start("case-52").await;
    world.apply(&lease("l")).await.unwrap();
    world.until_ready("l").await;
    let echo = format!("Bearer {KEY}");
    let answers = [(500, json!({ "message": echo })), (200, json!(echo)), (200, json!({ "id": "x", "labels": echo }))];
    for (status, body) in answers {
        let rule = Rule::on("GET", "/api/sandbox/[^/]+").answer(status, body).times(1);
        let rule = world.daytona.add_rule(rule).await.unwrap();
        world.eventually("it was answered", async || world.daytona.fired(rule).await.unwrap() == 1).await;
        world.until_reason("sblease", "l", "Ready", "APIUnreachable").await;
        let told = world.kubectl.get(&["get", "sblease,events", "-o", "yaml"]).await.unwrap();
        assert!(!told.contains(KEY), "{told}");
        world.until_ready("l").await;
    }
    assert!(!world.logged().contains(KEY));
}

/// Case 56: Daytona's clock is not the cluster's.
#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_disagree_make_no_negative_times_and_no_early_end() {
    let world = World::start("case-56").await;
    world.daytona.advance_clock(Duration::from_mins(10)).await.unwrap();
    world.apply(&lease_with("l", &json!({ "leaseDurationSeconds": 3600 }))).await.unwrap();
    world.command("c", "sleep 0.1").await;
    let done = world.until_finished("c").await;
    assert!(done["status"]["durationMilliseconds"].as_i64().unwrap() >= 100, "{done:#}");
    let lease = world.until_ready("l").await;
    let seconds = |time: &Value| {
        let time: k8s_openapi::jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
        time.as_second()
    };
    let (made, ends) = (&lease["metadata"]["creationTimestamp"], &lease["status"]["expiryTime"]);
    assert_eq!(seconds(ends) - seconds(made), 3600);
    let shown = world.kubectl.get(&["get", "sblease,sbcmd", "-o", "wide"]).await.unwrap();
    assert!(!shown.contains("<invalid>"), "{shown}");
}

/// Case 78: a restore that takes minutes is begun once, and waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_takes_minutes_to_come_back_is_started_once() {
    let world = World::start("case-78").await;
    world.apply(&lease("l")).await.unwrap();
    world.until_ready("l").await;
    let archived = ForcedState { state: "archived".to_owned(), ..ForcedState::default() };
    world.daytona.force_state(&world.sandbox().await.id, &archived).await.unwrap();
    world.until_reason("sblease", "l", "Ready", "Asleep").await;
    world.daytona.set(Settings { start_delay_seconds: Some(180), ..Settings::default() }).await.unwrap();
    world.command("c", "exit 6").await;
    world.until_reason("sblease", "l", "Ready", "Restoring").await;
    looks(&world, 3).await;
    assert_eq!(world.calls("POST /api/sandbox/{sandbox}/start").await, 1);
    assert_eq!(world.get("sbcmd", "c").await["status"]["state"], "Queued");
    world.daytona.advance_clock(Duration::from_secs(181)).await.unwrap();
    assert_eq!(world.until_finished("c").await["status"]["exitCode"], 6);
}

/// Case 79: the first text in a new session is swallowed. It is ours, and tells that the shell is dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_first_text_is_swallowed_is_replaced_before_a_command_is_sent() {
    let mut world = World::without_controller("case-79", Options::default()).await;
    world.daytona.add_rule(Rule::on("POST", ".*/exec").mode(Mode::DeadShell).times(1)).await.unwrap();
    world.start_controller();
    world.apply(&lease("l")).await.unwrap();
    world.command("c", "echo x >>runs").await;
    assert_eq!(world.until_finished("c").await["status"]["exitCode"], 0);
    assert_eq!(world.file("runs").await.as_deref(), Some("x\n"));
    assert_eq!(world.get("sblease", "l").await["status"]["session"]["generation"], 2);
}

/// Case 81: success without a body.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_success_is_no_sandbox_without_an_id() {
    let mut world = World::without_controller("case-81", Options::default()).await;
    let rule = |method, path: &str| Rule::on(method, path).answer(200, json!({})).times(1);
    world.daytona.add_rule(rule("POST", "/api/sandbox")).await.unwrap();
    world.daytona.add_rule(rule("POST", "/api/sandbox").after()).await.unwrap();
    world.daytona.add_rule(rule("POST", "/api/sandbox/[^/]+/start")).await.unwrap();
    let deletes = world.daytona.add_rule(rule("DELETE", "/api/sandbox/[^/]+")).await.unwrap();
    world.start_controller();
    world.apply(&lease("l")).await.unwrap();
    let id = world.until_ready("l").await["status"]["sandbox"]["id"].clone();
    assert_eq!(id, world.sandbox().await.id);
    world.ask(Method::POST, &format!("/{}/stop", world.sandbox().await.id), &Value::Null).await;
    world.until_reason("sblease", "l", "Ready", "Asleep").await;
    world.command("c", "true").await;
    world.until_finished("c").await;
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert_eq!(world.daytona.fired(deletes).await.unwrap(), 1);
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
}

/// Case 83: stopped behind our back, and nobody answers in it: it is started, never replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_sandbox_whose_toolbox_does_not_answer_is_not_deleted() {
    let world = World::start("case-83").await;
    world.apply(&one_shot("l", 1)).await.unwrap();
    world.command("one", "echo precious >data").await;
    world.until_finished("one").await;
    for method in ["GET", "POST", "DELETE"] {
        world.daytona.add_rule(Rule::on(method, "/toolbox/.*").answer(502, "")).await.unwrap();
    }
    let stopped = ForcedState { state: "stopped".to_owned(), ..ForcedState::default() };
    world.daytona.force_state(&world.sandbox().await.id, &stopped).await.unwrap();
    world.until_reason("sblease", "l", "Ready", "Asleep").await;
    world.command("two", "cat data").await;
    world.until_reason("sblease", "l", "Ready", "APIUnreachable").await;
    assert_eq!(world.calls("POST /api/sandbox/{sandbox}/start").await, 1);
    world.daytona.clear_rules().await.unwrap();
    assert_eq!(world.until_finished("two").await["status"]["stdout"]["tail"], "precious\n");
    assert_eq!(world.calls("DELETE /api/sandbox/{sandbox}").await, 0);
}
