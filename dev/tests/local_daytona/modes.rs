//! Rules that let the service fail as it has been seen to fail without a word.

use dev::faults::{Mode, Rule};
use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Server, ask, until};

const EXEC: &str = "/toolbox/{sandbox}/process/session/{session}/exec";
const LOGS: &str = "/toolbox/{sandbox}/process/session/{session}/command/{command}/logs";

#[tokio::test]
async fn an_exit_code_can_be_never_published() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let rule = Rule::on("POST", EXEC).nth(2).mode(Mode::ExitCodeNeverPublished);
    let rule = server.daytona.add_rule(rule).await.unwrap();
    let first = sandbox.submit("s", "echo one").await;
    let silent = sandbox.submit("s", "echo two; (exit 3)").await;
    let third = sandbox.submit("s", "echo three").await;
    assert_eq!((sandbox.finished("s", &first).await, sandbox.finished("s", &third).await), (0, 0));
    assert_eq!(sandbox.log("s", &silent).await, "two\n", "it ran, and what follows ran too");
    assert_eq!(sandbox.exit_code("s", &silent).await, None);
    assert_eq!(server.daytona.fired(rule).await.unwrap(), 1);
}

#[tokio::test]
async fn a_follow_can_close_early_each_time_elsewhere() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let server = Server::bash().await;
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let command = sandbox.submit("s", "seq 1 3000").await;
        sandbox.finished("s", &command).await;
        let rule = Rule::on("GET", LOGS).times(4).mode(Mode::FollowClosesEarly);
        let rule = server.daytona.add_rule(rule).await.unwrap();
        let path = format!("/process/session/s/command/{command}/logs?follow=true");
        let mut lengths = Vec::new();
        for _ in 0..4 {
            let answer = ask(sandbox.request(Method::GET, &path)).await;
            assert_eq!(answer.status, 200);
            lengths.push(answer.bytes.len());
        }
        assert!(lengths.windows(2).all(|pair| pair[0] != pair[1]), "{lengths:?}");
        assert_eq!(server.daytona.fired(rule).await.unwrap(), 4);
        let whole: String = (1..=3000).map(|line: u32| line.to_string() + "\n").collect();
        assert_eq!(sandbox.log("s", &command).await, whole, "the log itself is complete");
        runs.push(lengths);
    }
    assert_eq!(runs[0], runs[1], "the same in every run");
}

#[tokio::test]
async fn a_shell_can_be_dead_without_a_word() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    sandbox.exec("s", "true").await;
    let rule = server.daytona.add_rule(Rule::on("POST", EXEC).times(1).mode(Mode::DeadShell)).await.unwrap();
    let never = sandbox.submit("s", "echo x >ran").await;
    assert_eq!(server.daytona.fired(rule).await.unwrap(), 1);
    until("the shell is gone", async || sandbox.processes().await == 0).await;
    let record = sandbox.record("s", &never).await;
    assert_eq!((record.status, record.json().get("exitCode")), (200, None));
    assert_eq!(sandbox.execute("cat ran").await.0, 1);
    assert_eq!(sandbox.submission("s", "true").await.status, 500, "without the rule it is noticed");
    assert_eq!(sandbox.close("s").await.status, 204);
}

#[tokio::test]
async fn a_daemon_can_be_killed_by_any_call() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    sandbox.exec("s", "echo kept >file").await;
    let rule = Rule::on("GET", "/toolbox/{sandbox}/process/session").times(1).mode(Mode::DaemonKilled);
    let rule = server.daytona.add_rule(rule).await.unwrap();
    let waiting = sandbox.exec("s", "touch up; sleep 1000");
    let killing = async {
        until("it runs", async || sandbox.execute("test -e up").await.0 == 0).await;
        sandbox.get("/process/session").await
    };
    let (waiting, killed) = tokio::join!(waiting, killing);
    assert_eq!((waiting.status, killed.status, killed.bytes.len()), (502, 502, 0));
    assert_eq!(server.daytona.fired(rule).await.unwrap(), 1);
    assert_eq!(sandbox.get("/process/session").await.json(), json!([]));
    assert_eq!((sandbox.processes().await, sandbox.execute("cat file").await.1.as_str()), (0, "kept\n"));
    assert_eq!(sandbox.report().await.unwrap().state, "started");
}

/// 0.7 % of commands meet it by themselves; whoever wants to see it asks for it.
#[tokio::test]
async fn the_moment_in_which_an_exit_code_is_written_can_be_asked_for() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", "true").await;
    sandbox.finished("s", &command).await;
    let body: Value = json!({
        "statusCode": 500, "message": "failed to convert exit code to int: strconv.Atoi: parsing \"\": invalid syntax",
        "timestamp": "0001-01-01T00:00:00Z", "path": "",
    });
    let rule = Rule::on("GET", "/toolbox/{sandbox}/process/session/{session}/command/{command}");
    server.daytona.add_rule(rule.times(1).answer(500, body)).await.unwrap();
    assert_eq!(sandbox.record("s", &command).await.status, 500);
    assert_eq!(sandbox.record("s", &command).await.json()["exitCode"], 0);
}
