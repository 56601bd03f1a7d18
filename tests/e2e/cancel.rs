//! Commands that are not to run any more, or not to run at all.

use dev::faults::Rule;
use serde_json::{Value, json};

use crate::world::{Options, World, alive, condition, one_shot, with_spec};

async fn cancel(world: &World, name: &str, value: bool) {
    let patch = json!({ "spec": { "cancel": value } }).to_string();
    world.kubectl.run(&["patch", "sbcmd", name, "--type=merge", "-p", &patch]).await.unwrap();
}

fn reason(command: &Value) -> Value {
    condition(command, "Succeeded")["reason"].clone()
}

/// Case 70.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_takes_a_waiting_command_off_and_ends_a_running_one() {
    let world = World::start("cancel").await;
    world.lease("l").await;
    world.apply(&one_shot("o", 1)).await.unwrap();
    for lease in ["l", "o"] {
        let script = "echo begun; (setsid sh -c 'trap \"\" TERM; echo $$ >pid; exec sleep 600' &); while [ ! -s pid ]; do sleep 0.02; done; echo x >>runs; sleep 600";
        let in_lease = |name: &str, spec: Value| {
            let mut manifest: Value = serde_json::from_str(&with_spec(&format!("{name}-{lease}"), &spec)).unwrap();
            manifest["spec"]["leaseRef"]["name"] = lease.into();
            manifest.to_string()
        };
        let (runs, waits) = (format!("runs-{lease}"), format!("waits-{lease}"));
        world.apply(&in_lease("runs", json!({ "script": script, "terminationGracePeriodSeconds": 0 }))).await.unwrap();
        world.apply(&in_lease("waits", json!({ "script": "echo no >>no" }))).await.unwrap();
        world.eventually("it runs", async || world.file("runs").await.is_some()).await;
        cancel(&world, &waits, true).await;
        let done = world.until_finished(&waits).await;
        assert_eq!((reason(&done), &done["status"]["attempts"]), (json!("Cancelled"), &Value::Null));
        let pid = world.file("pid").await.unwrap();
        cancel(&world, &runs, true).await;
        let done = world.until_finished(&runs).await;
        assert_eq!(reason(&done), "Cancelled", "{done:#}");
        assert_eq!(done["status"]["stdout"]["tail"], "begun\n", "what it wrote is kept");
        assert!(
            condition(&done, "Succeeded")["message"]
                .as_str()
                .unwrap()
                .contains("all that it started was seen to have ended")
        );
        assert!(!alive(&pid), "something that it started lives on");
        // It is over: neither setting it back nor setting it again changes anything but the generation.
        cancel(&world, &runs, false).await;
        let later = world.until("sbcmd", &runs, "seen", |o| o["status"]["observedGeneration"] == 3).await;
        assert_eq!((reason(&later), &later["status"]["stdout"]), (reason(&done), &done["status"]["stdout"]));
        world.apply(&in_lease("next", json!({ "script": "echo next" }))).await.unwrap();
        let next = world.until_finished(&format!("next-{lease}")).await;
        assert_eq!(next["status"]["stdout"]["tail"], "next\n");
        assert_eq!(next["status"]["attempts"], 1);
        assert_eq!(world.file("no").await, None);
        std::fs::remove_file(world.path("runs").await.unwrap()).unwrap();
        std::fs::remove_file(world.path("pid").await.unwrap()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_is_a_latch() {
    // No call is held as long as the grace period lasts.
    let options = Options { flags: vec!["--command-hold=1s"], ..Options::default() };
    let world = World::start_with("latch", options).await;
    world.lease("l").await;
    let stubborn = json!({ "script": "trap '' TERM; echo x >runs; sleep 600", "terminationGracePeriodSeconds": 3 });
    world.apply(&with_spec("c", &stubborn)).await.unwrap();
    world.eventually("it runs", async || world.file("runs").await.is_some()).await;
    cancel(&world, "c", true).await;
    world.until("sbcmd", "c", "seen", |o| o["status"]["cancelTime"].is_string()).await;
    cancel(&world, "c", false).await;
    let done = world.until_finished("c").await;
    assert_eq!((reason(&done), &done["status"]["exitCode"]), (json!("Cancelled"), &json!(137)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_grace_is_kept_and_a_command_that_obeys_is_not_waited_for() {
    let world = World::start("grace").await;
    world.lease("l").await;
    let obeys = json!({ "script": "trap 'echo bye; exit 9' TERM; echo x >runs; while :; do sleep 0.05; done", "terminationGracePeriodSeconds": 600 });
    world.apply(&with_spec("c", &obeys)).await.unwrap();
    world.eventually("it runs", async || world.file("runs").await.is_some()).await;
    cancel(&world, "c", true).await;
    let done = world.until_finished("c").await;
    assert_eq!((reason(&done), &done["status"]["exitCode"]), (json!("Cancelled"), &json!(9)));
    assert_eq!(done["status"]["stdout"]["tail"], "bye\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_to_start_in_time() {
    let world = World::start("deadline").await;
    world.apply(&with_spec("late", &json!({ "startingDeadlineSeconds": 1 }))).await.unwrap();
    let late = world.until_finished("late").await;
    assert_eq!(reason(&late), "StartDeadlineExceeded");
    world.lease("l").await;
    world.apply(&with_spec("in-time", &json!({ "startingDeadlineSeconds": 600, "script": "echo x" }))).await.unwrap();
    assert_eq!(world.until_finished("in-time").await["status"]["exitCode"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_order_is_started_first() {
    let world = World::start("order").await;
    for (name, order) in [("c", 5), ("b", 0), ("d", 5), ("a", -7)] {
        let spec = json!({ "order": order, "script": format!("echo {name} >>order") });
        world.apply(&with_spec(name, &spec)).await.unwrap();
    }
    world.until("sbcmd", "a", "seen", |o| o["status"]["state"] == "Queued").await;
    world.lease("l").await;
    for name in ["a", "b", "c", "d"] {
        world.until_finished(name).await;
    }
    assert_eq!(world.file("order").await.as_deref(), Some("a\nb\nc\nd\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_can_be_selected() {
    let world = World::start("select").await;
    world.lease("l").await;
    world.command("done", "true").await;
    world.until_finished("done").await;
    world.apply(&crate::world::command("waits", "other", "true")).await.unwrap();
    world.until_reason("sbcmd", "waits", "Succeeded", "LeaseNotFound").await;
    let select = async |selector: &str| {
        world.kubectl.get(&["get", "sbcmd", "--field-selector", selector, "-o", "name"]).await.unwrap()
    };
    let name = |name: &str| format!("sandboxcommand.daytona-controller.dev/{name}");
    assert_eq!(select("status.state!=Finished").await, name("waits"));
    assert_eq!(select("status.state=Finished").await, name("done"));
    assert_eq!(select("spec.leaseRef.name=l").await, name("done"));
}

/// It was sent, and nobody knows whether it arrived: what is reported as never run is first kept from starting.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_cancelled_before_it_arrives_never_runs() {
    let options = Options { flags: vec!["--request-timeout=1s"], ..Options::default() };
    let world = World::start_with("under-way", options).await;
    world.lease("l").await;
    world.until_ready("l").await;
    let exec = Rule::on("POST", ".*/exec").body_contains("late").hang();
    let rule = world.daytona.add_rule(exec).await.unwrap();
    world.command("c", "echo late >>runs").await;
    world.eventually("it is under way", async || world.daytona.fired(rule).await.unwrap() > 0).await;
    cancel(&world, "c", true).await;
    let done = world.until_finished("c").await;
    assert_eq!((reason(&done), &done["status"]["exitCode"]), (json!("Cancelled"), &Value::Null));
    assert!(condition(&done, "Succeeded")["message"].as_str().unwrap().contains("never will"), "{done:#}");
    let guard = format!("{}-1", done["metadata"]["uid"].as_str().unwrap());
    let guard = std::fs::read_to_string(world.own_path(&guard).await.unwrap()).unwrap();
    assert_eq!(guard, "fenced\n", "a copy that comes late could start");
    world.command("next", "echo next >>runs; cat runs").await;
    assert_eq!(world.until_finished("next").await["status"]["stdout"]["tail"], "next\n");
}
