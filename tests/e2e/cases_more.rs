//! More faults that others have met, by their numbers in the list of field cases: each against the outcome named there.

use std::time::{Duration, Instant};

use dev::{
    faults::Rule,
    proxy::{Deed, Disturbance, FromEvent, Proxy},
};
use serde_json::{Value, json};

use crate::world::{Options, PLANE, World, command, condition, lease, lease_with, one_shot, with_spec};

/// Most that the controller has ever held in memory, in KiB.
fn memory(world: &World, what: &str) -> u64 {
    let pid = world.controller.as_ref().unwrap().pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Has each watch of a kind disturbed that is opened from now on.
fn disturb(proxy: &Proxy, kind: &'static str, disturbance: Disturbance) {
    let from = FromEvent::nth(1);
    proxy.meddle(Box::new(move |call| {
        let is_one = call.route.ends_with(&format!("/{kind}?watch"));
        is_one.then(|| Deed::Watch(from.clone(), disturbance))
    }));
}

/// A sandbox, and a command that has run in it exactly once.
async fn ran_once(world: &World) {
    assert_eq!(world.until_finished("c").await["status"]["exitCode"], 0);
    assert_eq!(world.file("runs").await.as_deref(), Some("x\n"));
    assert_eq!(world.calls("POST /api/sandbox").await, 1);
    assert_eq!(world.daytona.state().await.unwrap().sandboxes.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_6_an_output_without_bounds_needs_no_memory_of_the_controller() {
    for (name, manifest) in [("case-6", lease("l")), ("case-6-one", one_shot("l", 1))] {
        let world = World::start(name).await;
        world.apply(&manifest).await.unwrap();
        world.command("warm", "seq 1 20000; seq 1 20000 >&2").await;
        world.until_finished("warm").await;
        let before = memory(&world, "VmRSS:");
        world.command("large", "yes | head -c 50000000").await;
        let done = world.until_finished("large").await;
        let grown = memory(&world, "VmHWM:").saturating_sub(before);
        assert!(grown < 20 * 1024, "{name}: {grown} KiB");
        let stdout = &done["status"]["stdout"];
        assert_eq!((&stdout["bytes"], &stdout["truncated"]), (&json!(50_000_000), &json!(true)), "{stdout}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_13_a_time_limit_ends_what_runs_when_it_is_over() {
    for (name, manifest) in [("case-13", lease("l")), ("case-13-one", one_shot("l", 1))] {
        let world = World::start(name).await;
        world.apply(&manifest).await.unwrap();
        world.until_ready("l").await;
        let spec = json!({ "script": "sleep 60", "timeoutSeconds": 2, "terminationGracePeriodSeconds": 1 });
        world.apply(&with_spec("slow", &spec)).await.unwrap();
        let done = world.until_finished("slow").await;
        assert_eq!(condition(&done, "Succeeded")["reason"], "TimedOut");
        let took = done["status"]["durationMilliseconds"].as_u64().unwrap();
        assert!((2_000..10_000).contains(&took), "{took} ms");
    }
}

/// What a lease's Ready condition has said, by its events.
async fn told(world: &World, reason: &str) -> bool {
    let events = ["get", "events", "--field-selector", "involvedObject.kind=SandboxLease", "-o", "json"];
    let events: Value = serde_json::from_str(&world.kubectl.get(&events).await.unwrap()).unwrap();
    events["items"].as_array().unwrap().iter().any(|event| event["reason"] == reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn case_15_and_69_a_sandbox_that_is_stopped_under_a_command_is_told_and_woken() {
    let world = World::start("case-15").await;
    world.lease("l").await;
    world.until_ready("l").await;
    world.ask(reqwest::Method::POST, &format!("/{}/stop", world.sandbox().await.id), &Value::Null).await;
    world.until_reason("sblease", "l", "Ready", "Asleep").await;
    world.command("c", "echo begun; echo x >>runs; sleep 300").await;
    world.eventually("it runs", async || world.file("runs").await.is_some()).await;
    assert_eq!(world.until_ready("l").await["status"]["session"]["generation"], 2);
    world.ask(reqwest::Method::POST, &format!("/{}/stop", world.sandbox().await.id), &Value::Null).await;
    let done = world.until_finished("c").await;
    assert_eq!(condition(&done, "Succeeded")["reason"], "SessionLost", "{done:#}");
    assert_eq!(done["status"]["stdout"]["tail"], "begun\n");
    world.eventually("it is told", async || told(&world, "SandboxStopped").await).await;
    world.command("next", "echo x >>runs").await;
    world.until_finished("next").await;
    assert_eq!(world.file("runs").await.as_deref(), Some("x\nx\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_34_statuses_that_are_refused_after_the_creation_make_no_second_sandbox() {
    let mut world = World::without_controller("case-34", Options::default()).await;
    let proxy = world.before_kubernetes().await;
    let conflict = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": 409, "message": "changed",
    });
    let created = Rule::on("PATCH", ".*/sandboxleases/l/status").skip(2).times(3);
    proxy.add_rule(created.answer(409, conflict.clone())).unwrap();
    let sent = Rule::on("PATCH", ".*/sandboxcommands/c/status").skip(1).times(3);
    proxy.add_rule(sent.after().answer(409, conflict)).unwrap();
    world.start_controller();
    world.lease("l").await;
    world.command("c", "echo x >>runs").await;
    ran_once(&world).await;
    assert!(proxy.rules().iter().all(|report| report.fired > 0), "{:?}", proxy.rules());
}

#[tokio::test(flavor = "multi_thread")]
async fn case_37_a_watch_that_is_behind_makes_nothing_twice() {
    for (name, kind) in [("case-37-lease", "sandboxleases"), ("case-37-command", "sandboxcommands")] {
        let mut world = World::without_controller(name, Options::default()).await;
        let proxy = world.before_kubernetes().await;
        disturb(&proxy, kind, Disturbance::Hold(Duration::from_secs(3)));
        world.start_controller();
        world.lease("l").await;
        world.command("c", "echo x >>runs").await;
        world.until_ready("l").await;
        for note in 0..10 {
            let note = format!("note={note}");
            world.kubectl.run(&["annotate", "--overwrite", "sblease/l", "sbcmd/c", &note]).await.unwrap();
        }
        ran_once(&world).await;
        assert!(proxy.met() > 0, "nothing was told late");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_43_a_watch_that_has_died_silently_is_opened_again() {
    let options = Options { flags: vec!["--watch-timeout=5s"], ..Options::default() };
    let mut world = World::without_controller("case-43", options).await;
    let proxy = world.before_kubernetes().await;
    // The one on which the command would come; no other.
    disturb(&proxy, "sandboxcommands", Disturbance::Freeze);
    world.start_controller();
    world.lease("l").await;
    world.until_ready("l").await;
    world.command("c", "echo x >>runs").await;
    ran_once(&world).await;
    assert!(proxy.met() > 0, "the watch did not die");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_49_a_secret_without_the_key_or_with_another_is_told_and_noticed_when_it_is_mended() {
    let options = Options { flags: vec!["--lease-poll=1h"], ..Options::default() };
    let world = World::start_with("case-49", options).await;
    let set = async |data: Value| {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "daytona" }, "data": data });
        world.kubectl.run_with_input(&["replace", "-f", "-"], &secret.to_string()).await.unwrap();
    };
    set(json!({ "other": "eA==" })).await;
    world.lease("l").await;
    let told = world.until_reason("sblease", "l", "Ready", "SecretInvalid").await;
    let said = condition(&told, "Ready")["message"].as_str().unwrap().to_owned();
    assert!(said.contains("api-key") && said.contains("daytona"), "{said}");
    // Bytes that are no text, and keys with a line break or a blank in the middle.
    for key in ["/////w==", "YQpi", "YSBi"] {
        set(json!({ "api-key": key })).await;
        let changed = world.until_reason("sblease", "l", "Ready", "SecretInvalid").await;
        assert_eq!(changed["status"]["sandbox"], Value::Null);
    }
    assert_eq!(world.daytona.calls().await.unwrap().len(), 0, "Daytona was asked with no key");
    let begun = Instant::now();
    let right = json!({ "api-key": base64::Engine::encode(&base64::prelude::BASE64_STANDARD, crate::world::KEY) });
    set(right).await;
    world.until_ready("l").await;
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_57_a_manifest_that_is_applied_again_after_the_end_runs_nothing() {
    let mut world = World::start("case-57").await;
    world.lease("l").await;
    world.command("c", "echo x >>runs").await;
    let done = world.until_finished("c").await;
    for restarted in [false, true] {
        if restarted {
            world.kill_controller().await;
            world.start_controller();
        }
        world.command("c", "echo x >>runs").await;
        let replaced = command("c", "l", "echo x >>runs");
        world.kubectl.run_with_input(&["replace", "-f", "-"], &replaced).await.unwrap();
        let fence = format!("fence-{restarted}");
        world.command(&fence, "true").await;
        world.until_finished(&fence).await;
    }
    ran_once(&world).await;
    let now = world.get("sbcmd", "c").await;
    assert_eq!((&now["metadata"]["uid"], &now["status"]), (&done["metadata"]["uid"], &done["status"]));
}

/// With each bound a third larger they are accepted too, so that not the last of the budget is used.
#[tokio::test(flavor = "multi_thread")]
async fn case_62_the_rules_of_the_crds_leave_room_in_their_budget() {
    fn enlarge(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                for bound in ["maxItems", "maxLength", "maxProperties"] {
                    if let Some(most) = fields.get(bound).and_then(Value::as_u64) {
                        fields.insert(bound.to_owned(), (most + most / 3).into());
                    }
                }
                fields.values_mut().for_each(enlarge);
            }
            Value::Array(all) => all.iter_mut().for_each(enlarge),
            _ => {}
        }
    }
    for file in ["sandboxleases.yaml", "sandboxcommands.yaml"] {
        let text = std::fs::read_to_string(dev::install::workspace().join("crds").join(file)).unwrap();
        let mut crd: Value = serde_saphyr::from_str(&text).unwrap();
        enlarge(&mut crd);
        let try_it = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"];
        let said = PLANE.kubectl(None).run_with_input(&try_it, &crd.to_string()).await;
        assert_eq!(said.unwrap_or_else(|e| panic!("{file}: {e}")).stderr, "", "{file}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_74_what_finished_commands_were_to_run_is_not_kept_in_memory() {
    const COMMANDS: u64 = 400;
    let mut world = World::without_controller("case-74", Options::default()).await;
    world.start_controller();
    world.lease("l").await;
    world.until_ready("l").await;
    let before = memory(&world, "VmRSS:");
    // They end without having run: what matters is how long they are.
    let padding = "x".repeat(60_000);
    let ended = |n| with_spec(&format!("c{n}"), &json!({ "script": format!("true # {padding}"), "cancel": true }));
    let all: Vec<_> = (0..COMMANDS).map(ended).collect();
    world.kubectl.run_with_input(&["create", "-f", "-"], &all.join("\n---\n")).await.unwrap();
    let finished = ["get", "sbcmd", "-o", "jsonpath={.items[*].status.state}"];
    world
        .eventually("all have ended", async || {
            let states = world.kubectl.get(&finished).await.unwrap();
            states.matches("Finished").count() as u64 == COMMANDS
        })
        .await;
    world.kill_controller().await;
    world.start_controller();
    world.command("c", "true").await;
    world.until_finished("c").await;
    let grown = memory(&world, "VmRSS:").saturating_sub(before);
    assert!(grown < COMMANDS * 60 / 2, "{grown} KiB");
}

fn reuses(name: &str, policy: &str) -> String {
    lease_with(name, &json!({ "reclaimPolicy": policy, "sandbox": { "reuseKey": "cache" } }))
}

/// Case 25 and 34 for a sandbox that is taken over: whatever became of the call, the next one can have it.
#[tokio::test(flavor = "multi_thread")]
async fn case_25_and_34_a_lease_that_goes_while_it_takes_a_sandbox_over_leaves_it_to_the_next() {
    let ways = [(true, false), (false, false), (true, true), (false, true)];
    futures::future::join_all(ways.map(async |(applied, killed)| {
        let mut world = World::start("case-34-reuse").await;
        world.apply(&reuses("first", "Stop")).await.unwrap();
        world.until_ready("first").await;
        let id = world.sandbox().await.id;
        world.delete("sblease", "first").await;
        world.until_gone("sblease", "first").await;
        let claim = Rule::on("PUT", "/api/sandbox/[^/]+/labels").hang();
        let claim = world.daytona.add_rule(if applied { claim.after() } else { claim }).await.unwrap();
        world.apply(&reuses("second", "Stop")).await.unwrap();
        world.eventually("it is at it", async || world.daytona.fired(claim).await.unwrap() > 0).await;
        world.delete("sblease", "second").await;
        if killed {
            world.kill_controller().await;
        }
        world.daytona.clear_rules().await.unwrap();
        if killed {
            world.start_controller();
        }
        world.until_gone("sblease", "second").await;
        let left = world.sandbox().await;
        assert_eq!((&left.id, left.state.as_str()), (&id, "stopped"));
        assert_eq!(left.labels.get("daytona-controller.dev/lease-uid"), None, "{left:?}");
        world.apply(&reuses("third", "Delete")).await.unwrap();
        world.until_ready("third").await;
        assert_eq!(world.sandbox().await.id, id);
        world.delete("sblease", "third").await;
        world.until_gone("sblease", "third").await;
        assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
    }))
    .await;
}

/// Case 35 with two controllers that know nothing of each other, as where somebody has switched the election off.
#[tokio::test(flavor = "multi_thread")]
async fn case_35_two_controllers_without_an_election_run_nothing_twice() {
    let mut world = World::without_controller("case-35", Options::default()).await;
    let _first = world.spawn_controller();
    world.log = world.log.with_file_name("second.log");
    world.start_controller();
    world.apply(&one_shot("l", 3)).await.unwrap();
    let names: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
    for name in &names {
        world.command(name, &format!("echo {name} >>runs; sleep 0.2")).await;
    }
    for name in &names {
        assert_eq!(world.until_finished(name).await["status"]["exitCode"], 0);
    }
    let runs = world.file("runs").await.unwrap();
    let mut runs: Vec<&str> = runs.lines().collect();
    runs.sort_unstable();
    assert_eq!(runs, names);
    assert_eq!(world.daytona.state().await.unwrap().sandboxes.len(), 1);
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
}

/// Each decision on what the watch shows would be refused, as long as it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_others_write_to_gets_ready_although_the_watch_is_behind() {
    let mut world = World::without_controller("behind", Options::default()).await;
    let proxy = world.before_kubernetes().await;
    disturb(&proxy, "sandboxleases", Disturbance::Hold(Duration::from_secs(2)));
    world.start_controller();
    world.lease("l").await;
    let written = std::sync::atomic::AtomicU32::new(0);
    let ready = async || {
        let note = format!("note={}", written.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        world.kubectl.run(&["annotate", "--overwrite", "sblease/l", &note]).await.unwrap();
        condition(&world.get("sblease", "l").await, "Ready")["status"] == "True"
    };
    world.eventually("ready", ready).await;
    assert_eq!(world.calls("POST /api/sandbox").await, 1);
}

/// But for its end: nobody can tell how it ended, yet its result is there, and is told when somebody can.
#[tokio::test(flavor = "multi_thread")]
async fn case_42_a_lost_reply_and_an_outage_beyond_the_deadline_cost_no_result_and_make_no_second_run() {
    let world = World::start("case-42").await;
    world.lease("l").await;
    world.until_ready("l").await;
    world.daytona.add_rule(Rule::on("POST", ".*/exec").after().cut().times(1)).await.unwrap();
    for route in ["/toolbox/.*/process/execute", "/toolbox/.*/process/session/.*"] {
        for method in ["GET", "POST", "DELETE"] {
            world.daytona.add_rule(Rule::on(method, route).answer(502, json!({}))).await.unwrap();
        }
    }
    world.apply(&with_spec("c", &json!({ "script": "echo x >>runs; exit 7", "timeoutSeconds": 2 }))).await.unwrap();
    let told = |command: &Value| command["status"]["conditions"].to_string().contains("ran longer than");
    world.until("sbcmd", "c", "past its deadline", told).await;
    assert_eq!(world.get("sbcmd", "c").await["status"]["state"], "Running");
    world.daytona.clear_rules().await.unwrap();
    let done = world.until_finished("c").await;
    assert_eq!((&done["status"]["exitCode"], &done["status"]["attempts"]), (&json!(7), &json!(1)));
    assert_eq!(world.file("runs").await.as_deref(), Some("x\n"));
}
