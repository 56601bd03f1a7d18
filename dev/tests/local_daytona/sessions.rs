//! Sessions: one shell, strictly serial.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::support::{Server, ask, until};

#[tokio::test]
async fn a_session_keeps_its_state_and_tells_exit_codes() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let first = sandbox.exec("s", "cd /; X=kept; export Y=too; (exit 7)").await;
        assert_eq!((first.status, first.json()["exitCode"].as_i64()), (200, Some(7)));
        let second = sandbox.exec("s", "pwd; echo $X $Y").await.json();
        assert_eq!(second["output"], "/\nkept too\n");
        for (script, code) in [("return 5", 5), ("nosuchcommand", 127), ("sh -c 'kill -9 $$'", 137), ("true", 0)] {
            assert_eq!(sandbox.exec("s", script).await.json()["exitCode"], code, "{script}");
        }
    }
}

#[tokio::test]
async fn a_synchronous_exec_never_takes_less_than_fifty_milliseconds() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let started = Instant::now();
    sandbox.exec("s", "true").await;
    assert!(started.elapsed() >= Duration::from_millis(50));
}

#[tokio::test]
async fn commands_run_one_after_the_other_in_order() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let first = sandbox.submit("s", "mkfifo go; cat go; echo one >>order").await;
        let second = sandbox.submit("s", "echo two >>order").await;
        let third = sandbox.submit("s", "echo three >>order").await;
        assert_eq!(sandbox.exit_code("s", &second).await, None);
        until("the first waits", async || sandbox.execute("test -p go").await.0 == 0).await;
        sandbox.execute("echo x >go").await;
        assert_eq!(sandbox.finished("s", &third).await, 0);
        assert_eq!(sandbox.exit_code("s", &first).await, Some(0));
        assert_eq!(sandbox.execute("cat order").await.1, "one\ntwo\nthree\n");
    }
}

#[tokio::test]
async fn the_exit_code_waits_for_whoever_holds_the_output() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let command = sandbox.submit("s", "mkfifo go; (cat go; echo late) & echo early").await;
        until("it has spoken", async || sandbox.log("s", &command).await == "early\n").await;
        let queued = sandbox.submit("s", "echo queued").await;
        assert_eq!(sandbox.exit_code("s", &command).await, None);
        sandbox.execute("echo x >go").await;
        assert_eq!(sandbox.finished("s", &command).await, 0);
        assert_eq!(sandbox.log("s", &command).await, "early\nx\nlate\n");
        assert_eq!(sandbox.finished("s", &queued).await, 0);
        let freed = sandbox.submit("s", "sleep 1000 >/dev/null 2>&1 &").await;
        assert_eq!(sandbox.finished("s", &freed).await, 0);
    }
}

#[tokio::test]
async fn a_bare_wait_hangs_and_a_wait_for_a_child_does_not() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let fine = sandbox.exec("s", "sleep 0.01 & wait $!; (true & wait); echo through").await.json();
        assert_eq!(fine["output"], "through\n");
        let stuck = sandbox.submit("s", "echo before; wait; echo after").await;
        until("it waits", async || sandbox.log("s", &stuck).await == "before\n").await;
        let queued = sandbox.submit("s", "true").await;
        let other = sandbox.execute("true").await;
        assert_eq!(other.0, 0);
        assert_eq!(sandbox.exit_code("s", &stuck).await, None);
        assert_eq!(sandbox.exit_code("s", &queued).await, None);
    }
}

#[tokio::test]
async fn the_form_of_output_follows_the_headers() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", "printf out; printf err >&2").await;
    sandbox.finished("s", &command).await;
    let path = format!("/process/session/s/command/{command}/logs");
    let get = async |name: &str, value: &str| ask(sandbox.request(Method::GET, &path).header(name, value)).await;
    let plain = sandbox.get(&path).await;
    assert!(plain.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    assert!(["out\nerr\n", "err\nout\n"].contains(&plain.text().as_str()), "a final newline is added");
    let raw = get("X-Daytona-Split-Output", "true").await;
    assert!(raw.text().contains("\x01\x01\x01out\n") && raw.text().contains("\x02\x02\x02err\n"));
    assert_eq!(get("X-Daytona-SDK-Version", "0.100.0").await.bytes, raw.bytes);
    assert_eq!(get("X-Daytona-SDK-Version", "0.26.0").await.bytes, plain.bytes);
    let json = get("X-Daytona-SDK-Version", "0.226.1").await.json();
    assert_eq!((&json["stdout"], &json["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!(json["output"], raw.text());
    let exec = sandbox.request(Method::POST, "/process/session/s/exec");
    let exec = ask(exec.header("X-Daytona-SDK-Version", "0.226.1").json(&json!({ "command": "echo a" }))).await;
    assert_eq!((&exec.json()["stdout"], &exec.json()["output"]), (&json!("a\n"), &json!("\x01\x01\x01a\n")));
    let silent = sandbox.submit("s", "true").await;
    sandbox.finished("s", &silent).await;
    let empty = sandbox.get(&format!("/process/session/s/command/{silent}/logs")).await;
    assert!(empty.status == 200 && empty.bytes.is_empty() && !empty.headers.contains_key("content-type"));
}

#[tokio::test]
async fn what_is_unknown_is_refused_as_measured() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let get = async |path: &str| {
        let answer = sandbox.get(path).await;
        (answer.status, answer.json()["message"].as_str().unwrap_or_default().to_owned())
    };
    let no_session = (404, "not found: session not found".to_owned());
    assert_eq!(get("/process/session/none").await, no_session);
    assert_eq!(get("/process/session/none/command/x").await, no_session);
    assert_eq!(sandbox.close("none").await.status, 404);
    let exec = sandbox.exec("none", "true").await;
    let message = "failed to execute command: not found: session not found";
    assert_eq!((exec.status, exec.json()["message"].as_str()), (500, Some(message)));
    sandbox.open("s").await;
    assert_eq!(get("/process/session/s/command/x").await, (404, "not found: command not found".to_owned()));
    for body in [json!({}), json!({ "command": " " }), json!({ "command": 1 })] {
        let refused = sandbox.post("/process/session/s/exec", body).await;
        assert_eq!((refused.status, refused.bytes.len()), (400, 0));
    }
    for body in [json!({}), json!({ "sessionId": "" }), json!({ "sessionId": "entrypoint" })] {
        assert_eq!(sandbox.post("/process/session", body).await.status, 400);
    }
    let conflict = sandbox.post("/process/session", json!({ "sessionId": "s" })).await.json();
    assert_eq!((&conflict["code"], &conflict["path"]), (&json!("CONFLICT"), &json!("/process/session")));
    let long = json!({ "sessionId": "x".repeat(256) });
    assert_eq!(sandbox.post("/process/session", long.clone()).await.status, 500);
    assert_eq!(sandbox.post("/process/session", long).await.status, 409);
    let path = format!("/process/session/{}", "x".repeat(256));
    assert_eq!(sandbox.get(&path).await.json()["commands"], json!([]), "registered all the same");
    assert_eq!(sandbox.call(Method::DELETE, &path, json!({})).await.status, 400);
    assert_eq!(sandbox.get(&path).await.status, 200);
    assert_eq!(sandbox.get("/nothing").await.text(), "404 page not found");
}

#[tokio::test]
async fn input_reaches_an_asynchronous_command_only() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        assert_eq!(sandbox.exec("s", "cat; echo eof").await.json()["output"], "eof\n");
        let command = sandbox.submit("s", "read line; echo got $line").await;
        let path = format!("/process/session/s/command/{command}/input");
        until("the input is taken", async || sandbox.post(&path, json!({ "data": "hello" })).await.status == 204).await;
        sandbox.finished("s", &command).await;
        assert_eq!(sandbox.post(&path, json!({ "data": "more" })).await.status, 410);
        assert!(sandbox.log("s", &command).await.contains("got hello\n"));
    }
}

#[tokio::test]
async fn the_list_shows_every_session_with_its_texts() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("a").await;
    sandbox.open("b").await;
    sandbox.exec("b", "echo 'the whole text'").await;
    let list = sandbox.get("/process/session").await.json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    let b = list.as_array().unwrap().iter().find(|session| session["sessionId"] == "b").unwrap();
    assert_eq!(b["commands"][0]["command"], "echo 'the whole text'");
    assert_eq!(b["commands"][0]["exitCode"], 0);
}

#[tokio::test]
async fn nothing_of_the_hosts_environment_is_seen_and_home_lies_inside() {
    let server = Server::bash().await;
    let sandbox = server.create(json!({ "env": { "GIVEN": "yes" } })).await;
    sandbox.open("s").await;
    let output = sandbox.exec("s", "env; echo; echo $HOME; echo $TMPDIR; pwd").await.json();
    let output = output["output"].as_str().unwrap();
    assert!(output.contains("GIVEN=yes\n") && !output.contains("CARGO"), "{output}");
    let dir = sandbox.report().await.unwrap().dir;
    let places: Vec<_> = output.lines().rev().take(3).collect();
    assert!(places.iter().all(|place| std::path::Path::new(place).starts_with(&dir)), "{places:?}");
    assert_eq!(sandbox.get("/work-dir").await.json()["dir"], places[0]);
}

#[tokio::test]
async fn a_full_queue_holds_the_next_submission() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let first = sandbox.submit("s", "mkfifo go; cat go").await;
    for _ in 0..31 {
        sandbox.submit("s", "true").await;
    }
    let mut held = Box::pin(sandbox.submit("s", "echo last"));
    let early = tokio::time::timeout(Duration::from_millis(200), &mut held).await;
    assert!(early.is_err(), "the 32nd behind a running one has to wait");
    sandbox.execute("echo x >go").await;
    let last = held.await;
    assert_eq!(sandbox.finished("s", &last).await, 0);
    assert_eq!(sandbox.exit_code("s", &first).await, Some(0));
}

#[tokio::test]
async fn a_long_text_is_taken() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let text = format!(": '{}'; echo through", "x".repeat(5_000_000));
    assert_eq!(sandbox.exec("s", &text).await.json()["output"], "through\n");
}

#[tokio::test]
async fn any_id_is_taken_but_one_with_a_slash_is_never_found_again() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let outside = sandbox.report().await.unwrap().dir.join("../..");
    let before = std::fs::read_dir(&outside).unwrap().count();
    for id in ["a/b", "../../../../../../escaped", "..", "/etc", "with blank"] {
        let opened = sandbox.post("/process/session", json!({ "sessionId": id })).await;
        assert_eq!(opened.status, 201, "{id}");
        let listed = sandbox.get("/process/session").await.json();
        assert!(listed.as_array().unwrap().iter().any(|session| session["sessionId"] == id));
    }
    for path in ["a%2Fb", "a%2fb", "..%2F..%2F..%2F..%2F..%2F..%2Fescaped", "a/b"] {
        let answer = sandbox.get(&format!("/process/session/{path}")).await;
        assert_eq!((answer.status, answer.text().as_str()), (404, "404 page not found"), "{path}");
    }
    assert_eq!(sandbox.exec("with%20blank", "echo hi").await.json()["output"], "hi\n");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), before, "nothing is written out of the sandbox");
    assert!(!outside.join("escaped").exists());
}

#[tokio::test]
async fn input_is_refused_where_none_can_be_taken() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let give = async |command: &str, data: &str| {
        let path = format!("/process/session/s/command/{command}/input");
        sandbox.post(&path, json!({ "data": data })).await
    };
    let over = sandbox.submit("s", "true").await;
    let running = sandbox.submit("s", "mkfifo go; cat go").await;
    let queued = sandbox.submit("s", "true").await;
    until("the second runs", async || sandbox.execute("test -p go").await.0 == 0).await;
    for command in [&over, &queued] {
        let refused = give(command, "x").await;
        assert_eq!((refused.status, &refused.json()["code"]), (500, &json!("INTERNAL_SERVER_ERROR")));
        let message = refused.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("failed to open input pipe") && message.ends_with("no such file or directory"));
    }
    assert_eq!(sandbox.exit_code("s", &over).await, Some(0));
    let refused = give(&over, "x").await;
    let message = "gone: command has already completed with exit code 0";
    assert_eq!((refused.status, refused.json()["message"].as_str()), (410, Some(message)));
    assert_eq!(give(&running, "").await.json()["code"], "INVALID_REQUEST_BODY");
    assert_eq!((give("none", "x").await.status, give(&running, "x").await.status), (404, 204));
    let other = sandbox.post("/process/session/none/command/x/input", json!({ "data": "x" })).await;
    assert_eq!(other.status, 404);
}

#[tokio::test]
async fn there_is_no_entrypoint_session_and_none_can_be_made() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    for path in ["/process/session/entrypoint", "/process/session/entrypoint/logs"] {
        let answer = sandbox.get(path).await;
        assert_eq!((answer.status, &answer.json()["message"]), (404, &json!("not found: session not found")));
    }
    let exec = "/process/session/entrypoint/exec";
    let input = "/process/session/entrypoint/command/x/input";
    for (path, body) in [(exec, json!({ "command": "true" })), (input, json!({ "data": "x" }))] {
        let refused = sandbox.post(path, body).await;
        assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("BAD_REQUEST")));
    }
    assert_eq!(sandbox.close("entrypoint").await.status, 400);
}
