//! `POST /process/execute`.

use std::time::{Duration, Instant};

use serde_json::json;

use super::support::{Server, until};

#[tokio::test]
async fn output_is_one_stream_in_true_order() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        let (code, result) = sandbox.execute("echo 1; echo 2 >&2; echo 3; printf 4; exit 9").await;
        assert_eq!((code, result.as_str()), (9, "1\n2\n3\n4"));
    }
}

#[tokio::test]
async fn a_signal_is_minus_one_and_so_is_a_missing_directory() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    assert_eq!(sandbox.execute("kill -9 $$").await.0, -1);
    let body = json!({ "command": "pwd", "cwd": "nowhere" });
    let answer = sandbox.post("/process/execute", body).await;
    assert_eq!((answer.status, &answer.json()["exitCode"]), (200, &json!(-1)));
    let result = answer.json()["result"].as_str().unwrap().to_owned();
    assert!(result.starts_with("fork/exec ") && result.ends_with("bash: no such file or directory"), "{result}");
}

#[tokio::test]
async fn the_script_is_the_standard_input() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    assert_eq!(sandbox.execute("cat\necho hi\n").await.1, "echo hi\n");
}

#[tokio::test]
async fn directory_and_environment_are_taken() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.execute("mkdir sub").await;
    let body = json!({ "command": "basename $PWD; echo $A", "cwd": "sub", "envs": { "A": "b c" } });
    let answer = sandbox.post("/process/execute", body).await.json();
    assert_eq!(answer["result"], "sub\nb c\n");
    for body in [
        json!({ "command": "" }),
        json!({ "command": "true", "timeout": -1 }),
        json!({ "command": "true", "envs": { "A=B": "x" } }),
    ] {
        let refused = sandbox.post("/process/execute", body).await;
        assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("BAD_REQUEST")));
    }
}

#[tokio::test]
async fn a_timeout_is_a_408_and_kills() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let started = Instant::now();
    let body = json!({ "command": "echo lost; sleep 1000", "timeout": 1 });
    let answer = sandbox.post("/process/execute", body).await;
    assert_eq!((answer.status, &answer.json()["code"]), (408, &json!("REQUEST_TIMEOUT")));
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert_eq!(sandbox.processes().await, 0);
}

#[tokio::test]
async fn a_caller_that_leaves_does_not_stop_it() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let there = async || sandbox.execute("test -p go").await.0 == 0;
    tokio::select! {
        _ = sandbox.execute("mkfifo go; cat go; echo done >proof") => panic!("nobody let it go on"),
        () = until("it waits", there) => {}
    }
    sandbox.execute("echo x >go").await;
    until("it went on", async || sandbox.execute("cat proof").await.1 == "done\n").await;
}

#[tokio::test]
async fn many_run_at_once_and_bytes_pass() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    // None ends before all have begun.
    let meet = "touch $$.up; until test $(ls *.up | wc -l) = 5; do sleep 0.02; done";
    futures::future::join_all((0..5).map(|_| sandbox.execute(meet))).await;
    let (_, result) = sandbox.execute("printf 'a\\000b\\377'").await;
    assert_eq!(result, "a\0b\u{fffd}");
    assert_eq!(sandbox.execute("head -c 3000000 /dev/zero | tr '\\0' x").await.1.len(), 3_000_000);
}

#[tokio::test]
async fn a_child_in_a_session_of_its_own_delays_the_timeout() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let started = Instant::now();
    let body = json!({ "command": "setsid sleep 3 & sleep 1000", "timeout": 1 });
    assert_eq!(sandbox.post("/process/execute", body).await.status, 408);
    assert!(started.elapsed() >= Duration::from_secs(3), "it holds the output");
}
