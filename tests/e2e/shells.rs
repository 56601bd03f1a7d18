//! Commands in sandboxes whose sessions have different shells, and what happens when those shells are killed.

use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{KEY, Options, World, command, condition, one_shot};

const SHELLS: [&str; 4] = ["zsh", "bash", "dash", "ash"];

fn outcome(command: &Value) -> (String, Value, Value) {
    let reason = condition(command, "Succeeded")["reason"].as_str().unwrap_or_default().to_owned();
    (reason, command["status"]["exitCode"].clone(), command["status"]["stdout"]["tail"].clone())
}

/// Cases 85 and 86.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_the_same_whatever_the_shell_and_the_launcher() {
    let runs = SHELLS.map(|shell| async move {
        let world =
            World::start_with(&format!("in-{shell}"), Options { shell: Some(shell), ..Options::default() }).await;
        world.lease("l").await;
        world.apply(&one_shot("o", 1)).await.unwrap();
        for lease in ["l", "o"] {
            let run = async |name: &str, script: &str| {
                let name = format!("{name}-{lease}");
                world.apply(&command(&name, lease, script)).await.unwrap();
                outcome(&world.until_finished(&name).await)
            };
            let said = |reason: &str, code: i32, out: &str| (reason.to_owned(), json!(code), json!(out));
            let context = format!("{shell}, {lease}");
            assert_eq!(run("exit", "echo hi; exit 3").await, said("NonZeroExit", 3, "hi\n"), "{context}");
            assert_eq!(run("set", "set -eu; echo a; echo $nothing_set").await.0, "NonZeroExit", "{context}");
            assert_eq!(run("syntax", "echo a; if").await.0, "NonZeroExit", "{context}");
            assert_eq!(run("kill", "echo a; kill -9 $$").await, said("Signalled", 137, "a\n"), "{context}");
            let profile = "echo 'PATH=$PATH:$HOME/tools' >\"$HOME/.profile\"; rm -f \"$HOME/.bash_profile\"; \
                           mkdir -p \"$HOME/tools\"; printf '#!/bin/sh\\necho tool\\n' >\"$HOME/tools/a-tool\"; \
                           chmod +x \"$HOME/tools/a-tool\"";
            run("profile", profile).await;
            assert_eq!(run("tool", "a-tool").await, said("Succeeded", 0, "tool\n"), "{context}");
            assert_eq!(run("inner", "bash -ic 'echo x' 2>/dev/null").await, said("Succeeded", 0, "x\n"), "{context}");
            assert_eq!(run("alive", "echo alive").await, said("Succeeded", 0, "alive\n"), "{context}");
        }
        assert_eq!(world.get("sblease", "l").await["status"]["session"]["generation"], 1, "{shell}");
    });
    futures::future::join_all(runs).await;
}

/// With zsh, a session whose shell is dead goes on to accept commands with 202.
#[tokio::test(flavor = "multi_thread")]
async fn a_shell_that_is_dead_is_found_out_and_made_anew() {
    let runs = ["zsh", "bash"].map(|shell| async move {
        let world =
            World::start_with(&format!("dead-{shell}"), Options { shell: Some(shell), ..Options::default() }).await;
        world.lease("l").await;
        // The script's parent is the runner, and its parent the session's shell.
        let script = "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); echo survived; exit 6";
        world.command("kills", script).await;
        let kills = world.until_finished("kills").await;
        assert_eq!(outcome(&kills), ("NonZeroExit".to_owned(), json!(6), json!("survived\n")), "{shell}");
        world.command("next", "echo next >>runs; echo next").await;
        let next = world.until_finished("next").await;
        assert_eq!(outcome(&next), ("Succeeded".to_owned(), json!(0), json!("next\n")), "{shell}");
        assert_eq!(world.file("runs").await.as_deref(), Some("next\n"), "{shell}");
        let lease = world.until_ready("l").await;
        assert_eq!(lease["status"]["session"]["generation"], 2, "{shell}");
        assert_eq!(next["status"]["sessionGeneration"], 2, "{shell}");
    });
    futures::future::join_all(runs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_process_was_killed_is_told_with_its_output() {
    let world = World::start("killed").await;
    world.lease("l").await;
    world.apply(&one_shot("o", 1)).await.unwrap();
    for lease in ["l", "o"] {
        let name = format!("killed-{lease}");
        world.apply(&command(&name, lease, "echo begun; kill -9 $PPID; sleep 600")).await.unwrap();
        let killed = world.until_finished(&name).await;
        assert_eq!(outcome(&killed), ("ShellExited".to_owned(), Value::Null, json!("begun\n")), "{lease}");
        let next = format!("next-{lease}");
        world.apply(&command(&next, lease, "echo next")).await.unwrap();
        assert_eq!(outcome(&world.until_finished(&next).await).2, "next\n", "{lease}");
    }
    assert_eq!(world.get("sblease", "l").await["status"]["session"]["generation"], 1);
}

/// Case 11.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_command_keeps_its_sandbox_awake_and_an_idle_one_sleeps() {
    let options = Options { flags: vec!["--command-hold=1s"], ..Options::default() };
    let world = World::start_with("awake", options).await;
    for (lease, manifest) in [("l", crate::world::lease("l")), ("o", one_shot("o", 1))] {
        world.apply(&manifest).await.unwrap();
        let name = format!("long-{lease}");
        let script = format!("touch begun-{lease}; while [ ! -e go ]; do sleep 0.05; done; rm go; echo done");
        world.apply(&command(&name, lease, &script)).await.unwrap();
        world.eventually("it runs", async || world.path(&format!("begun-{lease}")).await.is_some()).await;
        // Half an hour, and not a word from the command.
        for _ in 0..15 {
            let before = world.calls("POST /toolbox/{sandbox}/process/execute").await;
            world.daytona.advance_clock(Duration::from_mins(2)).await.unwrap();
            world
                .eventually("a call that is activity", async || {
                    world.calls("POST /toolbox/{sandbox}/process/execute").await > before + 1
                })
                .await;
        }
        let begun = world.path(&format!("begun-{lease}")).await.unwrap();
        std::fs::write(begun.with_file_name("go"), "").unwrap();
        let done = world.until_finished(&name).await;
        assert_eq!(outcome(&done), ("Succeeded".to_owned(), json!(0), json!("done\n")), "{lease}");
        assert_eq!(world.calls("POST /sandbox/{sandbox}/start").await, 0);
        world.daytona.advance_clock(Duration::from_mins(16)).await.unwrap();
        world.until_reason("sblease", lease, "Ready", "Asleep").await;
        world.delete("sblease", lease).await;
        world.until_gone("sblease", lease).await;
    }
}

/// Somebody deletes the session while a command runs: its outcome is in the sandbox all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_outlives_its_session() {
    let world = World::start("outlives").await;
    world.lease("l").await;
    world.command("c", "trap 'echo bye; exit 7' TERM; touch begun; while :; do sleep 0.05; done").await;
    world.eventually("it runs", async || world.path("begun").await.is_some()).await;
    let lease = world.get("sblease", "l").await;
    let [sandbox, session] = ["sandbox", "session"].map(|of| lease["status"][of]["id"].as_str().unwrap().to_owned());
    let host = world.daytona.base_url().trim_end_matches("/api").to_owned();
    let url = format!("{host}/toolbox/{sandbox}/process/session/{session}");
    let deleted = reqwest::Client::new().delete(url).bearer_auth(KEY).send().await.unwrap();
    assert!(deleted.status().is_success(), "{deleted:?}");
    let done = world.until_finished("c").await;
    assert_eq!(outcome(&done), ("NonZeroExit".to_owned(), json!(7), json!("bye\n")));
    world.command("next", "echo next").await;
    let next = world.until_finished("next").await;
    assert_eq!((outcome(&next).2, &next["status"]["sessionGeneration"]), (json!("next\n"), &json!(2)));
}
