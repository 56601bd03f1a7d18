//! What becomes of a session command's output on its way into the log.

use std::time::{Duration, Instant};

use reqwest::Method;

use super::support::{Sandbox, Server, ask};

async fn split(sandbox: &Sandbox<'_>, session: &str, command: &str) -> (String, String) {
    let request = sandbox.request(Method::GET, &format!("/process/session/{session}/command/{command}/logs"));
    let json = ask(request.header("X-Daytona-SDK-Version", "0.226.1")).await.json();
    let text = |name: &str| json[name].as_str().unwrap().to_owned();
    (text("stdout"), text("stderr"))
}

/// A script that writes 60 lines of this length to each stream at once.
fn both_streams(length: usize) -> String {
    let lines = |letter: char| {
        let line = letter.to_string().repeat(length);
        format!("i=0; while [ $i -lt 60 ]; do echo {line}; i=$((i+1)); done")
    };
    format!("( {} ) & ( {} ) >&2; wait $!", lines('o'), lines('e'))
}

#[tokio::test]
async fn output_is_taken_no_faster_than_the_service_labels_it() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let started = Instant::now();
    assert_eq!(sandbox.exec("s", "seq 1 200000").await.json()["output"].as_str().unwrap().len(), 1_288_895);
    assert!(started.elapsed() >= Duration::from_millis(1600), "{:?}", started.elapsed());
    // The writer is held up, not only the log: what it does next comes late, but for what pipe and loop hold.
    let started = Instant::now();
    sandbox.exec("s", "seq 1 200000; echo x >written").await;
    assert_eq!(sandbox.execute("cat written").await.1, "x\n");
    assert!(started.elapsed() >= Duration::from_millis(1600));
    let started = Instant::now();
    sandbox.exec("s", "head -c 1000000 /dev/zero | tr '\\0' x").await;
    assert!(started.elapsed() >= Duration::from_millis(440));
}

#[tokio::test]
async fn output_can_be_taken_as_fast_as_it_comes() {
    let server = Server::start("bash", |launch| launch.unthrottled = true).await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let output = sandbox.exec("s", "head -c 20000000 /dev/zero | tr '\\0' x; echo end").await.json();
    assert!(output["output"].as_str().unwrap().ends_with("xend\n"));
}

#[tokio::test]
async fn short_lines_of_both_streams_stay_whole_and_long_ones_are_torn() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let short = sandbox.submit("s", &both_streams(900)).await;
        let long = sandbox.submit("s", &both_streams(9000)).await;
        sandbox.finished("s", &long).await;
        let line = |letter: &str| format!("{}\n", letter.repeat(900)).repeat(60);
        assert_eq!(split(&sandbox, "s", &short).await, (line("o"), line("e")));
        let (stdout, stderr) = split(&sandbox, "s", &long).await;
        assert!(stdout.contains('e') || stderr.contains('o'), "{} {}", stdout.len(), stderr.len());
        assert_eq!(stdout.len() + stderr.len(), 2 * 60 * 9001, "all is there, but not where it belongs");
    }
}

#[tokio::test]
async fn only_zsh_keeps_a_nul() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let command = sandbox.submit("s", "printf 'a\\000b\\n'").await;
        sandbox.finished("s", &command).await;
        let kept = if server.shell == "zsh" { "a\0b\n" } else { "ab\n" };
        assert_eq!(sandbox.log("s", &command).await, kept, "{}", server.shell);
    }
}

#[tokio::test]
async fn bytes_pass_in_plain_text_and_a_users_own_markers_are_taken_for_the_services() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let text = "\\r\\t \\033[1mx\\033[0m \\\\n  y\\377\\376\\n";
    let command = sandbox.submit("s", &format!("printf '  {text}'")).await;
    sandbox.finished("s", &command).await;
    let logs = format!("/process/session/s/command/{command}/logs");
    assert_eq!(sandbox.get(&logs).await.bytes, b"  \r\t \x1b[1mx\x1b[0m \\n  y\xff\xfe\n");
    assert!(split(&sandbox, "s", &command).await.0.ends_with("y\u{fffd}\u{fffd}\n"));
    let command = sandbox.submit("s", "printf 'a\\002\\002\\002b\\001\\001\\001c'").await;
    sandbox.finished("s", &command).await;
    assert_eq!(sandbox.log("s", &command).await, "abc\n");
    assert_eq!(split(&sandbox, "s", &command).await, ("ac\n".to_owned(), "b".to_owned()));
}

#[tokio::test]
async fn what_is_given_as_input_is_in_the_log_unless_asked_otherwise() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        for (quiet, wanted) in [(false, vec!["got 1 2", "1", "2"]), (true, vec!["got 1 2"])] {
            let body = serde_json::json!({
                "command": "read a; read b; echo got $a $b", "runAsync": true, "suppressInputEcho": quiet,
            });
            let command = sandbox.post("/process/session/s/exec", body).await.json();
            let command = command["cmdId"].as_str().unwrap().to_owned();
            let input = format!("/process/session/s/command/{command}/input");
            super::support::until("the input is taken", async || {
                sandbox.post(&input, serde_json::json!({ "data": "1\n2" })).await.status == 204
            })
            .await;
            sandbox.finished("s", &command).await;
            // The echo can come after what the program says.
            super::support::until("all is there", async || {
                let log = sandbox.log("s", &command).await;
                let mut lines: Vec<_> = log.lines().collect();
                lines.sort_by_key(|line| std::cmp::Reverse(line.len()));
                lines == wanted
            })
            .await;
        }
    }
}
