//! How a session's shell runs what it is given.

use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Sandbox, Server, ask, until};

async fn code(sandbox: &Sandbox<'_>, script: &str) -> Value {
    sandbox.exec("s", script).await.json()["exitCode"].clone()
}

#[tokio::test]
async fn exit_codes_are_the_shells() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        for (script, wanted) in [
            ("(exit 300)", 44),
            ("sh -c 'kill -15 $$'", 143),
            ("(exit 3); true", 0),
            ("false || (exit 9)", 9),
            ("sh -c ':", if server.shell == "zsh" { 126 } else { 2 }),
        ] {
            // An unterminated quote is a syntax error: it kills dash, and busybox ash.
            if script.ends_with("':") && ["dash", "ash"].contains(&server.shell.as_str()) {
                continue;
            }
            assert_eq!(code(&sandbox, script).await, wanted, "{} {script}", server.shell);
        }
    }
    let server = Server::start("zsh", |_| {}).await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    assert_ne!(code(&sandbox, "echo *.nomatch").await, 0, "a glob without a match is an error");
    assert_eq!(sandbox.exec("s", "x='a b'; printf '%s.' $x").await.json()["output"], "a b.\n", "words stay together");
}

#[tokio::test]
async fn what_a_command_sets_is_there_for_the_next_but_for_redirections() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        sandbox.exec("s", "cd /; umask 027; x=1; export y=2; f() { echo called; }; set -o noglob").await;
        let kept = sandbox.exec("s", "pwd; umask; echo $x $y; f; echo *; echo $?").await.json();
        assert_eq!(
            kept["output"].as_str().unwrap().replace("0027", "027"),
            "/\n027\n1 2\ncalled\n*\n0\n",
            "{}",
            server.shell
        );
        sandbox.exec("s", "alias gone='echo alias'").await;
        let expanded = if server.shell == "bash" { 127 } else { 0 };
        assert_eq!(code(&sandbox, "gone").await, expanded, "{}: bash alone knows none", server.shell);
        // Of what the text itself redirects nothing is left either.
        sandbox.exec("s", "exec >/dev/null").await;
        assert_eq!(sandbox.exec("s", "echo heard").await.json()["output"], "heard\n", "{}", server.shell);
    }
}

#[tokio::test]
async fn only_two_names_ask_for_an_asynchronous_run() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let opened = sandbox.request(Method::POST, "/process/session").body(r#"{"sessionId":"s","more":1}"#);
    assert_eq!(ask(opened.header("Content-Type", "text/plain")).await.status, 201);
    for (name, status) in [("runAsync", 202), ("async", 202), ("run_async", 200), ("var_async", 200)] {
        let answer = sandbox.post("/process/session/s/exec", json!({ "command": "true", name: true })).await;
        assert_eq!(answer.status, status, "{name}");
        assert_eq!(answer.json()["exitCode"], if status == 202 { Value::Null } else { json!(0) });
    }
}

#[tokio::test]
async fn a_caller_that_leaves_an_exec_does_not_stop_it_and_finds_it_by_its_text() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let there = async || sandbox.execute("test -p go").await.0 == 0;
    tokio::select! {
        _ = sandbox.exec("s", "mkfifo go; cat go; echo done >proof # nonce") => panic!("nobody let it go on"),
        () = until("it waits", there) => {}
    }
    let session = sandbox.get("/process/session/s").await.json();
    let lost = session["commands"][0].clone();
    assert!(lost["command"].as_str().unwrap().contains("# nonce") && lost.get("exitCode").is_none());
    sandbox.execute("echo x >go").await;
    assert_eq!(sandbox.finished("s", lost["id"].as_str().unwrap()).await, 0);
    assert_eq!(sandbox.execute("cat proof").await.1, "done\n");
}

#[tokio::test]
async fn wrapped_in_a_shell_of_its_own_a_session_survives_any_text() {
    let texts =
        ["exit 3", "exec true", "set -e; false", "if", "echo \"", "kill -9 $$", "readonly x; x=1", "set -u; echo $no"];
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        for text in texts {
            sandbox.exec("s", &format!("sh -c '{text}'")).await;
            assert_eq!(code(&sandbox, "true").await, 0, "{} {text}", server.shell);
        }
        for text in texts.iter().filter(|text| !text.contains("kill")) {
            sandbox.exec("s", &format!("( eval '{text}' )")).await;
            assert_eq!(code(&sandbox, "true").await, 0, "{} eval {text}", server.shell);
        }
        let long = format!("sh -c ': {}'", "x".repeat(131_072));
        let refused = if server.shell == "zsh" { 127 } else { 126 };
        if server.shell != "ash" {
            assert_eq!(code(&sandbox, &long).await, refused, "{}: an argument has its limit", server.shell);
        }
    }
}
