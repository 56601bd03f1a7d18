//! What one command can do and what is shown of it.

use serde_json::{Value, json};

use crate::world::{Options, World, alive, command, condition, with_spec};

fn with_timeout(name: &str, script: &str, seconds: u32) -> String {
    let mut manifest: Value = serde_json::from_str(&command(name, "l", script)).unwrap();
    manifest["spec"]["timeoutSeconds"] = seconds.into();
    manifest.to_string()
}

/// Case 71.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_takes_too_long_is_ended_with_all_that_it_started() {
    let world = World::start("timeout").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let script =
        "echo begun; trap '' TERM; (setsid sh -c 'trap \"\" TERM; echo $$ >pid; exec sleep 600' &) ; sleep 600";
    world.apply(&with_timeout("slow", "echo begun; echo $$ >slow; sleep 600", 2)).await.unwrap();
    let slow = world.until_finished("slow").await;
    assert_eq!(condition(&slow, "Succeeded")["reason"], "TimedOut");
    assert_eq!(slow["status"]["exitCode"], 143);
    assert_eq!(slow["status"]["stdout"]["tail"], "begun\n");
    world.apply(&with_timeout("stubborn", script, 1)).await.unwrap();
    let stubborn = world.until_finished("stubborn").await;
    assert_eq!(condition(&stubborn, "Succeeded")["reason"], "TimedOut");
    assert_eq!(stubborn["status"]["exitCode"], 137);
    let pid = world.file("pid").await.unwrap();
    assert!(!alive(&pid), "something that it started lives on");
    world.command("next", "echo next").await;
    let next = world.until_finished("next").await;
    assert_eq!((&next["status"]["exitCode"], &next["status"]["sessionGeneration"]), (&json!(0), &json!(1)));
}

/// Cases 1, 4, 7 and 8.
#[tokio::test(flavor = "multi_thread")]
async fn outputs_of_every_kind_are_shown_truthfully() {
    let world = World::start("output").await;
    world.lease("l").await;
    world.command("binary", r"printf '\377\376abc\342\202'; printf '\033[31mred\033[0m\n' >&2").await;
    world.command("large", "yes 0123456789 | head -c 50000000; echo; echo the end").await;
    world.command("nothing", ":").await;
    world.command("reads", "cat; read line || echo eof").await;
    world.command("quotes", "cat <<'X'\na \"$b\" `c` \\\nX").await;
    world.command("signal", "kill -9 $$").await;

    let binary = world.until_finished("binary").await;
    assert_eq!(binary["status"]["stdout"]["tail"], "\u{fffd}\u{fffd}abc\u{fffd}");
    assert_eq!(binary["status"]["stdout"]["encoding"], "utf-8-lossy");
    assert_eq!(binary["status"]["stdout"]["bytes"], 7);
    assert_eq!(binary["status"]["stderr"]["tail"], "red\n");
    let large = world.until_finished("large").await;
    assert_eq!(large["status"]["stdout"]["bytes"], 50_000_009);
    assert_eq!(large["status"]["stdout"]["truncated"], true);
    assert!(large["status"]["stdout"]["tail"].as_str().unwrap().len() <= 4096);
    assert_eq!(large["status"]["lastLine"], "the end");
    assert_eq!(large["status"]["stdout"]["sha256"].as_str().unwrap().len(), 64);
    let nothing = world.until_finished("nothing").await;
    assert_eq!((&nothing["status"]["stdout"]["bytes"], &nothing["status"]["lastLine"]), (&json!(0), &Value::Null));
    assert_eq!(world.until_finished("reads").await["status"]["stdout"]["tail"], "eof\n");
    assert_eq!(world.until_finished("quotes").await["status"]["stdout"]["tail"], "a \"$b\" `c` \\\n");
    let signal = world.until_finished("signal").await;
    assert_eq!(
        (&signal["status"]["exitCode"], &condition(&signal, "Succeeded")["reason"]),
        (&json!(137), &json!("Signalled"))
    );
}

/// Case 55.
#[tokio::test(flavor = "multi_thread")]
async fn the_longest_scripts_run() {
    let world = World::start("long").await;
    world.lease("l").await;
    world.command("ascii", &format!(": '{}'\necho end", "x".repeat(65_536 - 13))).await;
    world.command("emoji", &format!(": '{}'\necho end", "😀".repeat(24_570))).await;
    for name in ["ascii", "emoji"] {
        assert_eq!(world.until_finished(name).await["status"]["stdout"]["tail"], "end\n");
    }
}

/// Case 44.
#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_a_file_run_in_the_files_order_whatever_the_shell() {
    let shells = ["bash", "dash"];
    for shell in shells {
        let world = World::start_with("order", Options { shell: Some(shell), ..Options::default() }).await;
        let items: Vec<Value> = ["e", "b", "d", "a", "c"]
            .iter()
            .map(|n| serde_json::from_str(&command(n, "l", &format!("echo {n} >>order; set -e; false"))).unwrap())
            .collect();
        world.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()).await.unwrap();
        world.lease("l").await;
        // And in a lease that is ready for the first one at once, which is another thing.
        world.until_ready("l").await;
        let mut order = "e\nb\nd\na\nc\n".to_owned();
        for name in ["a", "b", "c", "d", "e"] {
            assert_eq!(world.until_finished(name).await["status"]["exitCode"], 1);
        }
        for batch in 0..4 {
            let names = ["z", "y", "x", "w", "v", "u"].map(|n| format!("{n}{batch}"));
            let items = names.iter().map(|n| command(n, "l", &format!("echo {n} >>order")).parse::<Value>().unwrap());
            let items: Vec<Value> = items.collect();
            world.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()).await.unwrap();
            for name in &names {
                world.until_finished(name).await;
                order.extend([name.as_str(), "\n"]);
            }
        }
        assert_eq!(world.file("order").await, Some(order), "{shell}");
    }
}

/// Case 36.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_command_costs_two_calls_into_its_sandbox() {
    let world = World::start("cost").await;
    world.lease("l").await;
    world.command("first", ":").await;
    world.until_finished("first").await;
    let before = world.daytona.calls().await.unwrap().len();
    world.command("c", "echo hi").await;
    let done = world.until_finished("c").await;
    let calls: Vec<String> = world.daytona.calls().await.unwrap()[before..].iter().map(|c| c.route.clone()).collect();
    let toolbox: Vec<&String> = calls.iter().filter(|c| c.contains("/toolbox")).collect();
    assert_eq!(toolbox.len(), 2, "{calls:?}");
    assert!(done["status"]["durationMilliseconds"].is_i64(), "{done:#}");
    // What it reads travels as a file.
    let before = world.daytona.calls().await.unwrap().len();
    world.apply(&with_spec("reads", &json!({ "stdin": { "value": "x" }, "script": "cat" }))).await.unwrap();
    assert_eq!(world.until_finished("reads").await["status"]["stdout"]["tail"], "x");
    let calls = world.daytona.calls().await.unwrap();
    assert_eq!(calls[before..].iter().filter(|c| c.route.contains("/toolbox")).count(), 3);
}

/// Case 38.
#[tokio::test(flavor = "multi_thread")]
async fn a_finished_command_follows_its_generation_and_nothing_else() {
    let world = World::start("generation").await;
    world.lease("l").await;
    world.command("c", "exit 4").await;
    let done = world.until_finished("c").await;
    world.kubectl.run(&["annotate", "sbcmd", "c", "note=x"]).await.unwrap();
    world.kubectl.run(&["label", "sbcmd", "c", "note=x"]).await.unwrap();
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    world.lease("l").await;
    world.until_ready("l").await;
    let later = world.get("sbcmd", "c").await;
    assert_eq!(later["status"], done["status"]);
}
