//! The ends of sessions: what kills their shell, what deletes them, and what is left.

use std::time::{Duration, Instant};

use serde_json::json;

use super::support::{Server, eventually, until};

#[tokio::test]
async fn a_top_level_exit_kills_the_session_for_good() {
    for server in Server::of_each_plain_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let fatal = sandbox.submit("s", "echo said; exit 3").await;
        let next = eventually("the shell is dead", async || {
            let next = sandbox.submission("s", "echo never").await;
            (next.status != 202).then_some(next)
        })
        .await;
        assert_eq!(next.status, 500);
        let message = next.json()["message"].as_str().unwrap().to_owned();
        assert_eq!(message, "failed to execute command: bad request: failed to write command: write |1: broken pipe");
        assert_eq!(next.json()["timestamp"], "0001-01-01T00:00:00Z");
        let record = sandbox.record("s", &fatal).await;
        assert_eq!((record.status, record.json().get("exitCode")), (200, None));
        until("its output stays readable", async || sandbox.log("s", &fatal).await == "said\n").await;
        let session = sandbox.get("/process/session/s").await.json();
        assert!(session["commands"].as_array().unwrap().len() >= 2, "the refused command is listed too");
        assert_eq!(sandbox.post("/process/session", json!({ "sessionId": "s" })).await.status, 409);
        assert_eq!(sandbox.close("s").await.status, 204);
        assert_eq!(sandbox.get("/process/session/s").await.status, 404);
    }
}

#[tokio::test]
async fn deleting_a_session_ends_what_obeys_in_a_tenth_of_a_second() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let command = sandbox.submit("s", "sleep 1000 & echo up; sleep 1000").await;
        until("it runs", async || sandbox.log("s", &command).await == "up\n").await;
        let started = Instant::now();
        assert_eq!(sandbox.close("s").await.status, 204);
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(100) && took < Duration::from_secs(3), "{took:?}");
        assert_eq!(sandbox.processes().await, 0);
        assert_eq!(sandbox.get("/process/session/s").await.status, 404);
    }
}

#[tokio::test]
async fn deleting_a_session_kills_what_does_not_obey_after_the_grace() {
    let grace = Duration::from_millis(600);
    let server = Server::start("bash", |launch| launch.session_grace = Some(grace)).await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let command = sandbox.submit("s", &format!("sh -c \"{stubborn}\"")).await;
    until("it runs", async || sandbox.log("s", &command).await == "up\n").await;
    let started = Instant::now();
    assert_eq!(sandbox.close("s").await.status, 204);
    assert!(started.elapsed() >= grace);
    until("nothing is left", async || sandbox.processes().await == 0).await;
}

#[tokio::test]
async fn a_waiting_exec_is_told_of_the_deletion() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let waiting = sandbox.exec("s", "sleep 1000");
    let closing = async {
        until("it runs", async || sandbox.processes().await >= 2).await;
        sandbox.close("s").await
    };
    let (waiting, closed) = tokio::join!(waiting, closing);
    assert_eq!(closed.status, 204);
    let message = "failed to execute command: bad request: session cancelled";
    assert_eq!((waiting.status, waiting.json()["message"].as_str()), (500, Some(message)));
}

#[tokio::test]
async fn finished_asynchronous_commands_leave_a_sleep_until_the_session_ends() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let mut left = 1;
        for round in 1..=3 {
            let command = sandbox.submit("s", "mkfifo go; cat go; rm go").await;
            until("shell, leftovers, child and the helper's two run", async || sandbox.processes().await == left + 3)
                .await;
            sandbox.execute("echo x >go").await;
            sandbox.finished("s", &command).await;
            left = if server.shell == "zsh" { 2 } else { 1 + round };
            until("shell and leftovers stay", async || sandbox.processes().await == left).await;
        }
        sandbox.close("s").await;
        assert_eq!(sandbox.processes().await, 0, "{}", server.shell);
    }
}

/// What keeps the pipe open is a child of the session's shell, and its `sleep` a child of that.
#[tokio::test]
async fn a_running_asynchronous_command_can_find_and_end_the_sleep_that_it_would_leave() {
    let reap = "read -r siblings </proc/$PPID/task/$PPID/children
        for sibling in $siblings; do
          children=; read -r children </proc/$sibling/task/$sibling/children
          for child in $children; do
            read -r name </proc/$child/comm
            [ \"$name\" != sleep ] || { kill $sibling; kill -9 $child; echo ended; }
          done
        done 2>/dev/null";
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let text = format!("sh -c '{reap}'");
        for round in 1..=3 {
            // Its sleep is there a moment after its start.
            let held = format!("mkfifo go; cat go >/dev/null; rm go; {text}");
            let command = sandbox.submit("s", &held).await;
            until("what makes the pipe is gone", async || sandbox.execute("test -p go").await.0 == 0).await;
            until("shell, child and the helper's two run", async || sandbox.processes().await == 4).await;
            sandbox.execute("echo x >go").await;
            assert_eq!(sandbox.finished("s", &command).await, 0, "{} {round}", server.shell);
            assert_eq!(sandbox.log("s", &command).await, "ended\n", "{} {round}", server.shell);
            until("the shell alone stays", async || sandbox.processes().await == 1).await;
        }
    }
}

/// As measured in zsh: nobody notices that the shell is dead.
#[tokio::test]
async fn a_dead_zsh_takes_commands_that_never_run() {
    let server = Server::start("zsh", |_| {}).await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let fatal = sandbox.submit("s", "echo $$ >pid; echo said; exit 3").await;
    until("its output is there", async || sandbox.log("s", &fatal).await == "said\n").await;
    until("its shell is gone", async || sandbox.execute("test -e /proc/$(cat pid)").await.0 == 1).await;
    let never = sandbox.submit("s", "echo x >ran").await;
    let record = sandbox.record("s", &never).await;
    assert_eq!((record.status, record.json().get("exitCode")), (200, None));
    assert_eq!(sandbox.execute("cat ran").await.0, 1);
    assert_eq!(sandbox.close("s").await.status, 204);
    assert_eq!(sandbox.processes().await, 0);
}

#[tokio::test]
async fn a_caller_that_leaves_a_deletion_ends_only_its_patience() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", "sh -c 'trap \"\" TERM; echo up; while :; do sleep 0.05; done'").await;
    until("it runs", async || sandbox.log("s", &command).await == "up\n").await;
    let started = Instant::now();
    let begun = async || server.daytona.calls().await.unwrap().iter().any(|call| call.method == "DELETE");
    tokio::select! {
        _ = sandbox.close("s") => panic!("it was to take the whole grace of 5 s"),
        () = until("the deletion begins", begun) => {}
    }
    until("the session is gone", async || sandbox.get("/process/session/s").await.status == 404).await;
    assert!(started.elapsed() < Duration::from_secs(4));
    until("nothing is left", async || sandbox.processes().await == 0).await;
}

#[tokio::test]
async fn a_session_dies_of_what_kills_its_shell() {
    for server in Server::of_each_plain_shell().await {
        let sandbox = server.sandbox().await;
        let mut fatal = vec!["exec true", "kill -9 $$", "set -e; false", "set -e\nfalse"];
        if server.shell != "bash" {
            fatal.push("if");
        }
        for (number, script) in fatal.into_iter().enumerate() {
            let session = format!("s{number}");
            sandbox.open(&session).await;
            let command = sandbox.submit(&session, script).await;
            until(script, async || sandbox.submission(&session, "true").await.status == 500).await;
            assert_eq!(sandbox.exit_code(&session, &command).await, None, "{script}");
        }
    }
}

#[tokio::test]
async fn a_session_survives_what_stays_in_a_child() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        for (script, code) in [("sh -c 'exit 3'", 3), ("(exit 4)", 4), ("sh -c 'if'", 2)] {
            assert_eq!(sandbox.exec("s", script).await.json()["exitCode"], code, "{script}");
        }
    }
}

#[tokio::test]
async fn a_term_to_the_shell_itself_is_harmless() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        for script in ["kill $$; echo survived", "sh -c 'kill $PPID'; echo survived"] {
            assert_eq!(sandbox.exec("s", script).await.json()["output"], "survived\n", "{} {script}", server.shell);
        }
    }
}

#[tokio::test]
async fn the_variables_of_the_wrapper_are_the_users() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let shown = sandbox.exec("s", "(exit 7)").await.json();
        let leak = "echo $_ec; echo $log; for x in $dir $sp $ep $ip $r1 $r2 $ip_pid; do echo x; done | wc -l";
        let lines = sandbox.exec("s", leak).await.json()["output"].as_str().unwrap().to_owned();
        let lines: Vec<_> = lines.lines().map(str::trim).collect();
        assert_eq!((shown["exitCode"].as_i64(), lines[0], lines[2]), (Some(7), "7", "7"), "{}", server.shell);
        assert!(lines[1].ends_with("/output.log"));
    }
    for shell in ["zsh", "bash"] {
        let server = Server::start(shell, |_| {}).await;
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let hung = sandbox.submit("s", "readonly _ec=1; echo said").await;
        let queued = sandbox.submit("s", "echo x >ran").await;
        until("it has spoken", async || sandbox.log("s", &hung).await == "said\n").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(sandbox.exit_code("s", &hung).await, None, "{shell}");
        assert_eq!(sandbox.exit_code("s", &queued).await, None, "{shell}");
    }
}

const STUBBORN: &str = "trap \"\" TERM; echo up; while :; do sleep 0.05; done";

#[tokio::test]
async fn a_session_stays_as_it_is_until_its_deletion_is_done() {
    let grace = Duration::from_secs(3);
    let server = Server::start("bash", |launch| launch.session_grace = Some(grace)).await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", &format!("sh -c '{STUBBORN}'")).await;
    until("it runs", async || sandbox.log("s", &command).await == "up\n").await;
    let during = async {
        until("the deletion begins", async || {
            server.daytona.calls().await.unwrap().iter().any(|call| call.method == "DELETE")
        })
        .await;
        assert_eq!(sandbox.get("/process/session/s").await.status, 200);
        assert_eq!(sandbox.post("/process/session", json!({ "sessionId": "s" })).await.status, 409);
        assert_eq!(sandbox.submission("s", "true").await.status, 202);
        sandbox.exec("s", "true").await
    };
    let (closed, waiting) = tokio::join!(sandbox.close("s"), during);
    let message = "failed to execute command: bad request: session cancelled";
    assert_eq!((closed.status, waiting.status, waiting.json()["message"].as_str()), (204, 500, Some(message)));
}

#[tokio::test]
async fn a_stubborn_child_in_a_session_of_its_own_survives_the_deletion() {
    let grace = Duration::from_millis(300);
    let server = Server::start("bash", |launch| launch.session_grace = Some(grace)).await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", &format!("setsid sh -c '{STUBBORN}'")).await;
    until("it runs", async || sandbox.log("s", &command).await == "up\n").await;
    let started = Instant::now();
    assert_eq!(sandbox.close("s").await.status, 204);
    assert!(started.elapsed() >= grace);
    assert_eq!(sandbox.get("/process/session").await.json(), json!([]));
    assert!(sandbox.processes().await > 0);
}

/// A deletion that comes to its end late removes whatever has the name by then; the shell of that stays.
#[tokio::test]
async fn overlapping_deletions_take_a_newcomer_of_the_same_name_with_them() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    eventually("a newcomer is taken", async || {
        sandbox.open("s").await;
        let command = sandbox.submit("s", &format!("sh -c '{STUBBORN}'")).await;
        until("it runs", async || sandbox.log("s", &command).await == "up\n").await;
        let newcomer = async {
            until("both deletions run", async || {
                let calls = server.daytona.calls().await.unwrap();
                calls.iter().filter(|call| call.method == "DELETE" && call.status.is_none()).count() == 2
            })
            .await;
            // One caller leaves: its deletion is done at once, and the other notices at its next look.
            "left"
        };
        let late = async {
            tokio::select! {
                _ = sandbox.close("s") => panic!("it was to take the whole grace"),
                _ = newcomer => {}
            }
            until("the name is free", async || {
                sandbox.post("/process/session", json!({ "sessionId": "s" })).await.status == 201
            })
            .await;
        };
        let (closed, ()) = tokio::join!(sandbox.close("s"), late);
        assert_eq!(closed.status, 204);
        let gone = sandbox.get("/process/session/s").await.status == 404;
        if !gone {
            sandbox.close("s").await;
        }
        (gone && sandbox.processes().await > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_new_daemon_knows_no_command_of_the_old_one() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let old = sandbox.submit("s", "echo kept").await;
    sandbox.finished("s", &old).await;
    server.daytona.restart_daemon(&sandbox.id).await.unwrap();
    assert_eq!(sandbox.record("s", &old).await.json()["message"], "not found: session not found");
    sandbox.open("s").await;
    assert_eq!(sandbox.record("s", &old).await.json()["message"], "not found: command not found");
    assert_eq!(sandbox.execute("cat .daytona/sessions/s/*/output.log").await.1, "\u{1}\u{1}\u{1}kept\n");
}
