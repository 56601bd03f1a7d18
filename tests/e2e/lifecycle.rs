//! A lease from its creation to its end.

use dev::faults::Rule;
use serde_json::{Value, json};

use crate::world::{World, alive, condition, lease};

/// Fields: useSessions
/// Cases 2 and 76.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_gets_a_sandbox_and_a_session_and_runs_commands_in_order() {
    let world = World::start("walk").await;
    world.lease("l").await;
    let commands = [
        ("one", "echo 1 >>order; echo out; echo err >&2"),
        ("two", "echo 2 >>order; exit 3"),
        ("three", "echo 3 >>order; cat order"),
    ];
    for (name, script) in commands {
        world.command(name, script).await;
    }

    let lease = world.until_ready("l").await;
    assert_eq!(condition(&lease, "Ready")["reason"], "Ready");
    for type_ in ["CredentialsValid", "SandboxReady", "SessionReady"] {
        assert_eq!(condition(&lease, type_)["status"], "True", "{type_}: {lease:#}");
    }
    for type_ in ["Reconciling", "Stalled", "CleanupBlocked"] {
        assert_eq!(condition(&lease, type_), Value::Null);
    }
    let sandbox = world.sandbox().await;
    assert_eq!(lease["status"]["sandbox"]["id"], sandbox.id.as_str());
    assert_eq!(lease["status"]["session"]["id"], sandbox.sessions[0].as_str());
    assert_eq!(lease["status"]["session"]["generation"], 1);
    assert_eq!(lease["status"]["sandbox"]["autoStopMinutes"], 15);
    assert_eq!(lease["status"]["observedGeneration"], lease["metadata"]["generation"]);
    assert_eq!(sandbox.labels["daytona-controller.dev/lease-uid"], lease["metadata"]["uid"]);

    let one = world.until_finished("one").await;
    assert_eq!(one["status"]["exitCode"], 0);
    assert_eq!(one["status"]["stdout"]["tail"], "out\n");
    assert_eq!(one["status"]["stderr"]["tail"], "err\n");
    assert_eq!(one["status"]["stdout"]["bytes"], 4);
    assert_eq!(one["status"]["lastLine"], "out");
    assert_eq!(one["status"]["attempts"], 1);
    assert_eq!(one["status"]["leaseUID"], lease["metadata"]["uid"]);
    assert_eq!(one["status"]["sessionID"], lease["status"]["session"]["id"]);
    assert!(one["status"]["commandID"].is_string(), "{one:#}");
    for type_ in ["Succeeded", "Finished", "Started", "Ready"] {
        assert_eq!(condition(&one, type_)["status"], "True", "{type_}");
    }
    let two = world.until_finished("two").await;
    assert_eq!(two["status"]["exitCode"], 3);
    assert_eq!(condition(&two, "Succeeded")["reason"], "NonZeroExit");
    assert_eq!(condition(&two, "Succeeded")["status"], "False");
    assert_eq!(condition(&two, "Stalled")["status"], "True");
    let three = world.until_finished("three").await;
    assert_eq!(three["status"]["stdout"]["tail"], "1\n2\n3\n");
    assert_eq!(three["status"]["sessionID"], one["status"]["sessionID"], "exit 3 ended the session");
    for name in ["one", "two", "three"] {
        world.until("sbcmd", name, "without a finalizer", |o| o["metadata"]["finalizers"].is_null()).await;
    }
    let lease = world.until("sblease", "l", "counts", |o| o["status"]["commands"]["succeeded"] == 2).await;
    assert_eq!(lease["status"]["commands"]["failed"], 1);

    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty(), "the sandbox is left");
    assert_eq!(world.calls("POST /api/sandbox").await, 1);
    let kept = world.get("sbcmd", "three").await;
    assert_eq!(kept["status"]["exitCode"], 0, "the result outlives the lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_deleted_with_proof_before_their_sandbox() {
    let world = World::start("proof").await;
    world.lease("l").await;
    world.until_ready("l").await;
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    let calls = world.daytona.calls().await.unwrap();
    let at = |route: &str, status: u16| {
        let found = calls.iter().rposition(|c| c.route == route && c.status == Some(status));
        found.unwrap_or_else(|| panic!("no {route} answered {status}: {calls:#?}"))
    };
    let session = "/toolbox/{sandbox}/process/session/{session}";
    let deleted = at(&format!("DELETE {session}"), 204);
    let proved = at(&format!("GET {session}"), 404);
    let sandbox = at("DELETE /api/sandbox/{sandbox}", 200);
    let gone = at("GET /api/sandbox/{sandbox}", 404);
    assert!(deleted < proved && proved < sandbox && sandbox < gone, "{deleted} {proved} {sandbox} {gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_ends_what_runs_and_what_waits() {
    let world = World::start("ending").await;
    world.lease("l").await;
    world.command("runs", "echo begun; (setsid sleep 600 &) ; sleep 600").await;
    world.command("waits", "echo never").await;
    world.until("sbcmd", "runs", "running", |o| o["status"]["state"] == "Running").await;
    world.until_reason("sbcmd", "waits", "Succeeded", "Queued").await;
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    let runs = world.until_finished("runs").await;
    assert_eq!(condition(&runs, "Succeeded")["reason"], "LeaseEnded");
    let waits = world.until_finished("waits").await;
    assert_eq!(condition(&waits, "Succeeded")["reason"], "LeaseEnded");
    assert_eq!(waits["status"]["attempts"], Value::Null, "it was sent");
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_running_command_ends_it_and_the_next_one_runs() {
    let world = World::start("cancel").await;
    world.lease("l").await;
    world.command("runs", "echo $$ >pid; sleep 600").await;
    world.command("next", "echo next").await;
    world.eventually("the command runs", async || world.file("pid").await.is_some_and(|p| p.ends_with('\n'))).await;
    let pid = world.file("pid").await.unwrap();
    world.delete("sbcmd", "runs").await;
    world.until_gone("sbcmd", "runs").await;
    assert!(!alive(&pid), "it runs on");
    let next = world.until_finished("next").await;
    assert_eq!(next["status"]["stdout"]["tail"], "next\n");
    assert_eq!(next["status"]["sessionGeneration"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeping_sandbox_is_woken_by_the_next_command() {
    let world = World::start("sleep").await;
    world.lease("l").await;
    world.command("before", "echo kept >file").await;
    world.until_finished("before").await;
    world.daytona.advance_clock(std::time::Duration::from_mins(16)).await.unwrap();
    let asleep = world.until_reason("sblease", "l", "Ready", "Asleep").await;
    assert_eq!(condition(&asleep, "Ready")["status"], "True");
    assert_eq!(world.sandbox().await.state, "stopped");
    world.command("after", "cat file").await;
    let after = world.until_finished("after").await;
    assert_eq!(after["status"]["stdout"]["tail"], "kept\n");
    assert_eq!(after["status"]["sessionGeneration"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_namespace_can_be_deleted() {
    let world = World::start("namespace").await;
    world.lease("l").await;
    world.command("runs", "sleep 600").await;
    world.until("sbcmd", "runs", "running", |o| o["status"]["state"] == "Running").await;
    world.kubectl.run(&["delete", "namespace", &world.namespace, "--wait=false"]).await.unwrap();
    world.eventually("the sandbox is gone", async || world.daytona.state().await.unwrap().sandboxes.is_empty()).await;
    let gone = async || {
        world.kubectl.get(&["get", "namespace", &world.namespace, "--ignore-not-found"]).await.unwrap().is_empty()
    };
    world.eventually("the namespace is gone", gone).await;
}

/// Case 66.
#[tokio::test(flavor = "multi_thread")]
async fn the_story_is_told_by_get_describe_and_wait() {
    let world = World::start("story").await;
    world.command("early", "echo early").await;
    world.until_reason("sbcmd", "early", "Succeeded", "LeaseNotFound").await;
    world.lease("l").await;
    world.kubectl.run(&["wait", "--for=condition=Ready", "sblease/l", "--timeout=60s"]).await.unwrap();
    world.kubectl.run(&["wait", "--for=condition=Finished", "sbcmd/early", "--timeout=60s"]).await.unwrap();
    let lease = world.kubectl.get(&["get", "sblease"]).await.unwrap();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        words(&lease)[..9],
        ["NAME", "READY", "REASON", "MODE", "SANDBOX", "QUEUED", "RUNNING", "EXPIRES", "AGE"]
    );
    assert_eq!(words(&lease)[9..13], ["l", "True", "Ready", "Sessions"]);
    let command = world.kubectl.get(&["get", "sbcmd"]).await.unwrap();
    assert_eq!(words(&command)[..6], ["NAME", "LEASE", "STATUS", "EXIT", "DURATION", "AGE"]);
    assert_eq!(words(&command)[6..10], ["early", "l", "Succeeded", "0"]);
    let both = world.kubectl.get(&["get", "daytona", "-o", "name"]).await.unwrap();
    assert_eq!(both.lines().count(), 2, "{both}");
    let described = async |kind, name| world.kubectl.get(&["describe", kind, name]).await.unwrap();
    world.eventually("events", async || described("sbcmd", "early").await.contains("exit code 0")).await;
    let lease = described("sblease", "l").await;
    assert!(lease.contains("Provisioning") && lease.contains("Ready"), "{lease}");
}

/// A command waits for a lease that is missing, failed or being deleted, and for none that it was not bound to.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_waits_for_a_lease_that_can_take_it() {
    let world = World::start("waits").await;
    world.command("early", "echo early >>runs").await;
    world.until_reason("sbcmd", "early", "Succeeded", "LeaseNotFound").await;
    let mut failed: Value = serde_json::from_str(&lease("l")).unwrap();
    failed["spec"]["sandbox"] = json!({ "snapshot": "no-such-snapshot" });
    world.apply(&failed.to_string()).await.unwrap();
    let waits = world.until_reason("sbcmd", "early", "Succeeded", "WaitingForLease").await;
    let bound = waits["status"]["leaseUID"].clone();
    world
        .until("sbcmd", "early", "told why", |o| {
            condition(o, "Succeeded")["message"].as_str().unwrap_or_default().contains("SnapshotNotFound")
        })
        .await;
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    // Bound to the lease that has ended, so no other lease takes it.
    let early = world.until_finished("early").await;
    assert_eq!(
        (&condition(&early, "Succeeded")["reason"], &early["status"]["leaseUID"]),
        (&json!("LeaseEnded"), &bound)
    );

    world.lease("l").await;
    world.until_ready("l").await;
    let held = world.daytona.add_rule(Rule::on("DELETE", "/api/sandbox/.*").answer(409, json!({}))).await.unwrap();
    world.delete("sblease", "l").await;
    world.until("sblease", "l", "going", |o| o["metadata"]["deletionTimestamp"].is_string()).await;
    world.command("next", "echo next >>runs").await;
    let next = world.until_reason("sbcmd", "next", "Succeeded", "LeaseTerminating").await;
    assert_eq!(next["status"]["leaseUID"], Value::Null, "it is bound to a lease that ends");
    world.daytona.remove_rule(held).await.unwrap();
    world.until_gone("sblease", "l").await;
    world.lease("l").await;
    assert_eq!(world.until_finished("next").await["status"]["exitCode"], 0);
    assert_eq!(world.file("runs").await.as_deref(), Some("next\n"));
}
