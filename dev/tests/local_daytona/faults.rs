//! Rules, forced states and losses: what makes the service fail as the real one does.

use std::time::{Duration, Instant};

use dev::faults::Rule;
use dev::local_daytona::ForcedState;
use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Server, ask, until};

#[tokio::test]
async fn a_create_whose_reply_is_lost_leaves_one_sandbox() {
    let server = Server::bash().await;
    let rule = server.daytona.add_rule(Rule::on("POST", "/api/sandbox").times(1).after().cut()).await.unwrap();
    let url = format!("{}/sandbox", server.daytona.base_url());
    let lost = server.request(Method::POST, &url).json(&json!({ "name": "n" })).send().await;
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(server.daytona.fired(rule).await.unwrap(), 1);
    let again = server.api(Method::POST, "/sandbox", json!({ "name": "n" })).await;
    assert_eq!(again.status, 409);
    assert_eq!(server.daytona.state().await.unwrap().sandboxes.len(), 1);
    let calls = server.daytona.calls().await.unwrap();
    assert_eq!((calls[0].status, calls[0].rule, calls[1].status), (None, Some(rule), Some(409)));
}

#[tokio::test]
async fn a_rule_answers_instead_and_is_spent() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let flaky = Rule::on("GET", "/toolbox/[^/]+/process/session/s").skip(1).times(2);
    let rule = flaky.answer(502, json!({ "sorry": true })).header("Retry-After-sandbox-create", "30");
    let rule = server.daytona.add_rule(rule).await.unwrap();
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let answer = sandbox.get("/process/session/s").await;
        if answer.status == 502 {
            assert_eq!(answer.json(), json!({ "sorry": true }));
            assert_eq!(answer.headers["retry-after-sandbox-create"], "30");
        }
        statuses.push(answer.status);
    }
    assert_eq!(statuses, [200, 502, 502, 200]);
    let reports = server.daytona.rules().await.unwrap();
    assert_eq!((reports[0].id, reports[0].matched, reports[0].fired), (rule, 4, 2));
    server.daytona.clear_rules().await.unwrap();
    assert!(server.daytona.rules().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_refused_request_is_not_applied() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let rule = Rule::on("POST", ".*/exec").times(1).cut();
    server.daytona.add_rule(rule).await.unwrap();
    let exec = sandbox.request(Method::POST, "/process/session/s/exec");
    assert!(exec.json(&json!({ "command": "echo x >>n" })).send().await.is_err());
    assert_eq!(sandbox.execute("test -e n").await.0, 1);
    sandbox.exec("s", "echo x >>n").await;
    assert_eq!(sandbox.execute("cat n").await.1, "x\n");
}

#[tokio::test]
async fn an_applied_exec_runs_although_its_reply_was_replaced() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let rule = Rule::on("POST", ".*/exec").body_contains("nonce").times(1).after().answer(502, "");
    server.daytona.add_rule(rule).await.unwrap();
    assert_eq!(sandbox.exec("s", "true").await.status, 200);
    assert_eq!(sandbox.submission("s", "echo x >>n # nonce").await.status, 502);
    until("it ran", async || sandbox.execute("cat n").await.1 == "x\n").await;
}

#[tokio::test]
async fn a_call_can_be_delayed_and_can_hang() {
    let server = Server::bash().await;
    server.daytona.add_rule(Rule::on("GET", "/api/sandbox").times(1).delay(Duration::from_millis(150))).await.unwrap();
    let started = Instant::now();
    assert_eq!(server.get("/sandbox").await.status, 200);
    assert!(started.elapsed() >= Duration::from_millis(150));
    server.daytona.add_rule(Rule::on("GET", "/api/sandbox").hang()).await.unwrap();
    let arrived = async || server.daytona.calls().await.unwrap().len() == 2;
    tokio::select! {
        answer = server.get("/sandbox") => panic!("it was to hang: {answer:?}"),
        () = until("it arrives", arrived) => {}
    }
    assert_eq!(server.daytona.calls().await.unwrap().last().unwrap().status, None);
}

#[tokio::test]
async fn every_call_is_logged_with_what_it_is_about() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", "true").await;
    sandbox.finished("s", &command).await;
    let calls = server.daytona.calls().await.unwrap();
    let seen: Vec<_> = calls
        .iter()
        .take(3)
        .map(|call| (call.route.as_str(), call.object.as_deref().unwrap(), call.status.unwrap()))
        .collect();
    assert_eq!(seen[0], ("POST /api/sandbox", sandbox.id.as_str(), 200));
    assert_eq!(seen[1], ("POST /toolbox/{sandbox}/process/session", "s", 201));
    assert_eq!(seen[2], ("POST /toolbox/{sandbox}/process/session/{session}/exec", "s", 202));
    let later = server.daytona.calls_since(calls[2].seq).await.unwrap();
    assert_eq!(later[0].command.as_deref(), Some(command.as_str()));
    assert_eq!(server.daytona.count("POST /api/sandbox").await.unwrap(), 1);
}

#[tokio::test]
async fn states_can_be_forced_with_their_effect() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let force = async |state: ForcedState| server.daytona.force_state(&sandbox.id, &state).await.unwrap();
    let shown = async || server.get(&format!("/sandbox/{}", sandbox.id)).await;
    force(ForcedState { state: "stopped".to_owned(), ..ForcedState::default() }).await;
    assert_eq!(sandbox.processes().await, 0);
    assert_eq!(shown().await.json()["desiredState"], "stopped");
    force(ForcedState {
        state: "error".to_owned(),
        error_reason: Some("out of disk".to_owned()),
        recoverable: Some(true),
        ..ForcedState::default()
    })
    .await;
    let json = shown().await.json();
    assert_eq!((&json["errorReason"], &json["recoverable"]), (&json!("out of disk"), &json!(true)));
    let start = format!("/sandbox/{}/start", sandbox.id);
    assert_eq!(server.api(Method::POST, &start, Value::Null).await.status, 400);
    let recover = format!("/sandbox/{}/recover", sandbox.id);
    assert_eq!(server.api(Method::POST, &recover, Value::Null).await.json()["state"], "started");
    force(ForcedState { state: "weird_new_state".to_owned(), ..ForcedState::default() }).await;
    assert_eq!(shown().await.json()["state"], "weird_new_state");
    // A deletion that failed: gone by id, listed on request.
    force(ForcedState {
        state: "error".to_owned(),
        desired_state: Some("destroyed".to_owned()),
        ..ForcedState::default()
    })
    .await;
    assert_eq!(shown().await.status, 404);
    let items = async |query: &str| server.get(&format!("/sandbox{query}")).await.json()["items"].clone();
    assert_eq!(items("").await, json!([]));
    assert_eq!(items("?includeErroredDeleted=true").await[0]["state"], "error");
}

#[tokio::test]
async fn a_sandbox_can_be_lost_and_its_daemon_restarted() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    sandbox.exec("s", "echo kept >file; sleep 1000 >/dev/null 2>&1 &").await;
    let waiting = sandbox.exec("s", "sleep 1000");
    let restart = async {
        until("it runs", async || sandbox.processes().await >= 3).await;
        server.daytona.restart_daemon(&sandbox.id).await.unwrap();
    };
    let (waiting, ()) = tokio::join!(waiting, restart);
    assert_eq!(waiting.status, 502);
    assert_eq!(sandbox.processes().await, 0);
    assert_eq!(sandbox.get("/process/session").await.json(), json!([]));
    assert_eq!(sandbox.execute("cat file").await.1, "kept\n");
    // A session of the same name takes over what was left on disk.
    sandbox.open("s").await;
    assert_eq!(sandbox.exec("s", "echo again").await.json()["output"], "again\n");
    server.daytona.lose(&sandbox.id).await.unwrap();
    assert_eq!(server.get(&format!("/sandbox/{}", sandbox.id)).await.status, 404);
    assert_eq!(sandbox.get("/version").await.status, 401);
    assert!(server.daytona.state().await.unwrap().sandboxes.is_empty());
}

#[tokio::test]
async fn admin_routes_need_the_key_too() {
    let server = Server::bash().await;
    let url = server.daytona.base_url().replace("/api", "/admin/state");
    assert_eq!(ask(server.http.get(url)).await.status, 401);
}

#[tokio::test]
async fn nothing_outlives_the_server() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    sandbox.submit("s", "echo $$ >pid; (setsid sleep 1000 &) ; sleep 1000").await;
    until("it runs", async || sandbox.processes().await >= 3).await;
    let file = sandbox.report().await.unwrap().dir.join("home/daytona/pid");
    let pid = std::fs::read_to_string(file).unwrap();
    drop(server);
    assert!(!std::path::Path::new(&format!("/proc/{}", pid.trim())).exists());
}

#[tokio::test]
async fn only_loopback_is_listened_on() {
    let dir = tempfile::tempdir().unwrap();
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_local-daytona"))
        .args(["--listen", "0.0.0.0:0", "--api-key", "k", "--dir"])
        .arg(dir.path())
        .output()
        .await
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("only loopback"));
}
