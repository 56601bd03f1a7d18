//! Leases without sessions: each command is a process of its own.

use serde_json::{Value, json};

use crate::world::{World, alive, condition, one_shot, with_spec};

/// Fields: useSessions
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_without_sessions_runs_commands_and_leaves_nothing() {
    let world = World::start("one-shot").await;
    world.apply(&one_shot("l", 1)).await.unwrap();
    let ready = world.until_ready("l").await;
    assert_eq!(condition(&ready, "SessionReady"), Value::Null);
    assert_eq!((&ready["status"]["mode"], &ready["status"]["session"]), (&json!("OneShot"), &Value::Null));
    let workspace = ready["status"]["workspace"]["id"].clone();
    world.command("ok", "echo out; echo err >&2; exit 3").await;
    let done = world.until_finished("ok").await;
    assert_eq!((&done["status"]["exitCode"], &done["status"]["stdout"]["tail"]), (&json!(3), &json!("out\n")));
    assert_eq!(done["status"]["stderr"]["tail"], "err\n");
    assert_eq!((&done["status"]["workspaceID"], &done["status"]["sessionID"]), (&workspace, &Value::Null));
    let table = world.kubectl.get(&["get", "sblease", "l"]).await.unwrap();
    assert!(table.contains("OneShot"), "{table}");
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
    assert_eq!(world.calls("POST /toolbox/{sandbox}/process/session").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_command_costs_one_call_and_secrets_one_more() {
    let world = World::start("one-call").await;
    world.kubectl.run(&["create", "secret", "generic", "app", "--from-literal=T=secret-value"]).await.unwrap();
    world.apply(&one_shot("l", 1)).await.unwrap();
    world.command("first", ":").await;
    world.until_finished("first").await;
    let toolbox = async |from: usize| {
        let calls = world.daytona.calls().await.unwrap();
        let routes = calls[from..].iter().map(|c| c.route.clone()).filter(|r| r.contains("/toolbox"));
        (calls.len(), routes.collect::<Vec<_>>())
    };
    let (before, _) = toolbox(0).await;
    let plain = json!({ "script": "echo hi $A", "env": [{ "name": "A", "value": "plain" }] });
    world.apply(&with_spec("plain", &plain)).await.unwrap();
    assert_eq!(world.until_finished("plain").await["status"]["stdout"]["tail"], "hi plain\n");
    let (before, calls) = toolbox(before).await;
    assert_eq!(calls.len(), 1, "{calls:?}");
    let secret = json!({ "envFrom": [{ "secretRef": { "name": "app" } }], "script": "echo $T" });
    world.apply(&with_spec("secret", &secret)).await.unwrap();
    world.until_finished("secret").await;
    let (before, calls) = toolbox(before).await;
    assert_eq!(calls.len(), 2, "{calls:?}");
    world.command("long", &format!(": {}\necho end", "x".repeat(20_000))).await;
    assert_eq!(world.until_finished("long").await["status"]["stdout"]["tail"], "end\n");
    let (_, calls) = toolbox(before).await;
    assert_eq!(calls.len(), 2, "{calls:?}");
}

/// Fields: maxParallelCommands
#[tokio::test(flavor = "multi_thread")]
async fn so_many_run_at_once_as_may_and_no_more() {
    let world = World::start("parallel").await;
    world.apply(&one_shot("l", 3)).await.unwrap();
    for n in 0..7 {
        let script = format!("touch in-{n}; while [ ! -e go ]; do sleep 0.05; done; rm in-{n}; echo {n}");
        world.command(&format!("c{n}"), &script).await;
    }
    for n in 0..3 {
        world.eventually("three run", async || world.path(&format!("in-{n}")).await.is_some()).await;
    }
    world.until("sbcmd", "c6", "its place", |o| o["status"]["queuePosition"] == 7).await;
    for n in 3..7 {
        assert!(world.path(&format!("in-{n}")).await.is_none(), "{n} runs too");
    }
    world.until("sblease", "l", "gauges", |o| o["status"]["commands"]["running"] == 3).await;
    std::fs::write(world.path("in-0").await.unwrap().with_file_name("go"), "").unwrap();
    for n in 0..7 {
        assert_eq!(world.until_finished(&format!("c{n}")).await["status"]["stdout"]["tail"], format!("{n}\n"));
    }
}

/// Neither one that takes long nor one that waits for a Secret keeps the places of the others empty.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_becomes_free_is_taken_at_once() {
    let world = World::start("places").await;
    world.apply(&one_shot("l", 4)).await.unwrap();
    let held = json!({ "envFrom": [{ "secretRef": { "name": "never" } }], "order": -1 });
    world.apply(&with_spec("held", &held)).await.unwrap();
    world.command("long", "touch begun; while [ ! -e go ]; do sleep 0.05; done").await;
    world.eventually("it runs", async || world.path("begun").await.is_some()).await;
    let items: Vec<Value> =
        (0..24).map(|n| crate::world::command(&format!("c{n}"), "l", "sleep 0.1").parse().unwrap()).collect();
    world.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()).await.unwrap();
    // Ten seconds for each that would have to look by itself.
    let names: Vec<String> = (0..24).map(|n| format!("sbcmd/c{n}")).collect();
    let mut wait = vec!["wait", "--for=condition=Finished", "--timeout=60s"];
    wait.extend(names.iter().map(String::as_str));
    world.kubectl.run(&wait).await.unwrap();
    std::fs::write(world.path("begun").await.unwrap().with_file_name("go"), "").unwrap();
    world.until_finished("long").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_leaves_in_the_background_lives_on() {
    let world = World::start("background").await;
    world.apply(&one_shot("l", 1)).await.unwrap();
    world.command("c", "sleep 600 & echo $!").await;
    let done = world.until_finished("c").await;
    let pid = done["status"]["stdout"]["tail"].as_str().unwrap().to_owned();
    assert!(alive(&pid));
    world.command("next", "echo next").await;
    assert_eq!(world.until_finished("next").await["status"]["exitCode"], 0);
    assert!(alive(&pid));
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert!(!alive(&pid), "it outlived its sandbox");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_ends_what_runs() {
    let world = World::start("ends").await;
    world.apply(&one_shot("l", 2)).await.unwrap();
    for n in ["a", "b", "waits"] {
        world.command(n, &format!("echo begun; echo $$ >pid-{n}; sleep 600")).await;
    }
    for n in ["a", "b"] {
        world
            .eventually("it runs", async || world.file(&format!("pid-{n}")).await.is_some_and(|p| p.ends_with('\n')))
            .await;
    }
    let pid = world.file("pid-a").await.unwrap();
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    for n in ["a", "b"] {
        let done = world.until_finished(n).await;
        assert_eq!(condition(&done, "Succeeded")["reason"], "LeaseEnded");
        assert_eq!((&done["status"]["exitCode"], &done["status"]["stdout"]["tail"]), (&json!(143), &json!("begun\n")));
    }
    let waits = world.until_finished("waits").await;
    assert_eq!(
        (&condition(&waits, "Succeeded")["reason"], &waits["status"]["attempts"]),
        (&json!("LeaseEnded"), &Value::Null)
    );
    assert!(!alive(&pid) && world.daytona.state().await.unwrap().sandboxes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_the_middle_loses_nothing() {
    let mut world = World::start("middle").await;
    world.apply(&one_shot("l", 2)).await.unwrap();
    for n in ["a", "b"] {
        let script = format!("echo {n} >>runs-{n}; while [ ! -e go ]; do sleep 0.05; done; echo went; exit 5");
        world.command(n, &script).await;
        world.eventually("it runs", async || world.file(&format!("runs-{n}")).await.is_some()).await;
    }
    world.kill_controller().await;
    world.start_controller();
    std::fs::write(world.path("runs-a").await.unwrap().with_file_name("go"), "").unwrap();
    for n in ["a", "b"] {
        let done = world.until_finished(n).await;
        assert_eq!((&done["status"]["exitCode"], &done["status"]["stdout"]["tail"]), (&json!(5), &json!("went\n")));
        assert_eq!(world.file(&format!("runs-{n}")).await, Some(format!("{n}\n")), "it ran again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_files_are_made_anew_when_a_script_removed_them() {
    let world = World::start("removed").await;
    world.apply(&one_shot("l", 1)).await.unwrap();
    world.command("removes", "rm -rf \"$HOME/.daytona-controller\"; echo gone").await;
    world.until_finished("removes").await;
    world.command("next", "echo next").await;
    assert_eq!(world.until_finished("next").await["status"]["stdout"]["tail"], "next\n");
    let lease = world.get("sblease", "l").await;
    assert_eq!(lease["status"]["workspace"]["generation"], 2, "{lease:#}");
}
