//! Faults that others have met with Kubernetes, by their numbers in the list of field cases; those that fit beside other
//! tests are there.

use serde_json::{Value, json};

use crate::world::{Options, World, command, condition, lease, one_shot, with_spec};

fn many(manifests: &[String]) -> String {
    manifests.join("\n---\n")
}

/// Cases 40 and 41: what comes and goes quickly has each finalizer once, and makes no noise.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_and_goes_quickly_is_no_error_and_has_each_finalizer_once() {
    let mut world = World::without_controller("case-40", Options::default()).await;
    let mut all = vec![one_shot("l", 16)];
    all.extend((0..10).map(|n| command(&format!("c{n}"), "l", "sleep 300")));
    world.apply(&many(&all)).await.unwrap();
    world.start_controller();
    for n in 0..20 {
        let note = format!("note={n}");
        world.kubectl.run(&["annotate", "--overwrite", "sblease/l", "sbcmd/c0", &note]).await.unwrap();
    }
    for (kind, name, finalizer) in
        [("sblease", "l", "daytona-controller.dev/session"), ("sbcmd", "c0", "daytona-controller.dev/command")]
    {
        let object = world.until(kind, name, "held", |o| !o["metadata"]["finalizers"].is_null()).await;
        assert_eq!(object["metadata"]["finalizers"], json!([finalizer]));
    }
    world.kubectl.run(&["delete", "sblease,sbcmd", "--all", "--wait=false"]).await.unwrap();
    world.until_gone("sblease", "l").await;
    for n in 0..10 {
        world.until_gone("sbcmd", &format!("c{n}")).await;
    }
    // Made and deleted before it was looked at.
    world.apply(&many(&all)).await.unwrap();
    world.kubectl.run(&["delete", "sblease,sbcmd", "--all", "--wait=false"]).await.unwrap();
    world.until_gone("sblease", "l").await;
    let log = world.logged();
    let noise: Vec<_> = log.lines().filter(|l| l.contains(" ERROR ") || l.contains("local store")).collect();
    assert!(noise.is_empty(), "{noise:#?}");
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
}

/// Case 47: what is being deleted when it is first seen gets no finalizer, and nothing is made for it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_begun_for_what_is_being_deleted_already() {
    let mut world = World::without_controller("case-47", Options::default()).await;
    let held = |manifest: String| {
        let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
        manifest["metadata"]["finalizers"] = json!(["example.com/hold"]);
        manifest.to_string()
    };
    world.apply(&many(&[held(lease("gone")), held(command("c", "gone", "true"))])).await.unwrap();
    world.delete("sblease", "gone").await;
    world.delete("sbcmd", "c").await;
    world.start_controller();
    world.apply(&lease("l")).await.unwrap();
    world.until_ready("l").await;
    for (kind, name) in [("sblease", "gone"), ("sbcmd", "c")] {
        let finalizers = world.get(kind, name).await["metadata"]["finalizers"].clone();
        assert_eq!(finalizers, json!(["example.com/hold"]), "{kind}");
        let release = r#"{"metadata":{"finalizers":null}}"#;
        world.kubectl.run(&["patch", kind, name, "--type=merge", "--patch", release]).await.unwrap();
        world.until_gone(kind, name).await;
    }
    assert_eq!(world.calls("POST /api/sandbox").await, 1);
    assert!(!world.logged().contains("WARN"), "{}", world.logged());
}

/// Case 53: how large what the controller writes can become.
#[tokio::test(flavor = "multi_thread")]
async fn no_status_and_no_log_is_too_large_for_the_store() {
    let world = World::start("case-53").await;
    world.apply(&one_shot("l", 8)).await.unwrap();
    // The worst bytes: each becomes several in JSON, or in text.
    let script = "noise() { head -c 1000000 /dev/zero; i=0; while [ $i -lt 20000 ]; do printf '\\377\\001'; i=$((i+1)); done; };                   noise; noise >&2";
    let logs = json!({ "script": script, "logs": { "tailBytes": 16_384, "maxBytes": 524_288 } });
    world.apply(&with_spec("worst", &logs)).await.unwrap();
    let worst = world.until_finished("worst").await;
    assert!(worst["status"].to_string().len() < 256 * 1024, "{}", worst["status"].to_string().len());
    let label = format!("daytona-controller.dev/command-uid={}", worst["metadata"]["uid"].as_str().unwrap());
    let stored = world.kubectl.get(&["get", "configmap", "--selector", &label, "-o", "json"]).await.unwrap();
    let stored: Value = serde_json::from_str(&stored).unwrap();
    let stored = stored["items"].as_array().unwrap();
    assert!(!stored.is_empty());
    assert!(stored.iter().all(|log| log.to_string().len() < 1024 * 1024));
    let size = |lease: &Value| lease["status"].to_string().len();
    let counted = |count: u64| move |lease: &Value| lease["status"]["commands"]["succeeded"] == count;
    let few = size(&world.until("sblease", "l", "counted", counted(1)).await);
    let more: Vec<_> = (0..40).map(|n| command(&format!("c{n}"), "l", "true")).collect();
    world.apply(&many(&more)).await.unwrap();
    let lease = world.until("sblease", "l", "counted", counted(41)).await;
    assert!(size(&lease).abs_diff(few) < 10, "a lease's status does not grow with its commands");
    // Case 73: what has ended costs no call.
    let before = world.daytona.calls().await.unwrap().last().unwrap().seq;
    let looks = async || world.daytona.calls_since(before).await.unwrap();
    world.eventually("the lease is looked at", async || looks().await.len() >= 3).await;
    let routes: Vec<_> = looks().await.into_iter().map(|call| call.route).collect();
    assert!(routes.iter().all(|route| route == "GET /api/sandbox/{sandbox}"), "{routes:?}");
}

/// What kstatus says of an object, by its published rules.
fn kstatus(object: &Value) -> &'static str {
    let is = |type_| condition(object, type_)["status"] == "True";
    if object["metadata"]["generation"] != object["status"]["observedGeneration"] || is("Reconciling") {
        "InProgress"
    } else if is("Stalled") {
        "Failed"
    } else if condition(object, "Ready")["status"] == "False" {
        "InProgress"
    } else {
        "Current"
    }
}

/// Cases 58, 59, 60, 64: what `GitOps` tools, `kubectl wait`, `kubectl diff` and kstatus make of both kinds.
#[tokio::test(flavor = "multi_thread")]
async fn tools_see_what_they_expect() {
    let mut world = World::without_controller("case-58", Options::default()).await;
    let all = many(&[lease("l"), command("c", "l", "true"), command("f", "l", "exit 1"), command("w", "none", "true")]);
    let said = world.apply(&all).await.unwrap();
    assert_eq!(said.stderr, "");
    for (kind, name) in [("sblease", "l"), ("sbcmd", "c")] {
        assert_eq!(kstatus(&world.get(kind, name).await), "InProgress", "a fresh {kind}");
    }
    world.start_controller();
    let wait = async |what: &str, condition: &str| {
        let condition = format!("--for=condition={condition}");
        world.kubectl.get(&["wait", what, &condition, "--timeout=60s"]).await.unwrap()
    };
    wait("sbcmd/c", "Succeeded").await;
    wait("sbcmd/f", "Succeeded=false").await;
    wait("sblease/l", "Ready").await;
    assert_eq!(kstatus(&world.until_finished("c").await), "Current");
    assert_eq!(kstatus(&world.until_finished("f").await), "Failed");
    assert_eq!(kstatus(&world.until_ready("l").await), "Current");
    let waits = world.until("sbcmd", "w", "told", |o| !condition(o, "Succeeded").is_null()).await;
    assert_eq!(kstatus(&waits), "InProgress");
    let same = world.kubectl.run_with_input(&["diff", "-f", "-"], &all).await.unwrap();
    assert_eq!(same.stdout, "");
    for (kind, name) in [("sblease", "l"), ("sbcmd", "c")] {
        assert_eq!(world.get(kind, name).await["metadata"]["generation"], 1, "no field of {kind} is written");
    }
    // Each change is seen, and told in all conditions (case 68); then an old condition satisfies nobody.
    let change = r#"{"spec":{"env":[{"name":"A","value":"1"}]}}"#;
    let said = world.kubectl.run(&["patch", "sblease", "l", "--type=merge", "--patch", change]).await.unwrap();
    assert_eq!(said.stderr, "", "a finalizer is named as it should be");
    wait("sblease/l", "Ready").await;
    let lease = world.get("sblease", "l").await;
    let observed = |condition: &Value| condition["observedGeneration"] == 2;
    assert!(lease["status"]["conditions"].as_array().unwrap().iter().all(observed), "{lease:#}");
}

/// Case 61: a name that comes twice is refused by name, also by server-side apply.
#[tokio::test(flavor = "multi_thread")]
async fn a_variable_that_comes_twice_is_refused_by_name() {
    let world = World::without_controller("case-61", Options::default()).await;
    let twice = with_spec("c", &json!({ "env": [{ "name": "AB", "value": "1" }, { "name": "AB", "value": "2" }] }));
    let refused = world.kubectl.run_with_input(&["apply", "--server-side", "-f", "-"], &twice).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("env") && text.contains("AB"), "{text}");
}

/// Case 67: a lease that never becomes ready does not keep a command beyond its deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_for_a_lease_that_fails_ends_at_its_starting_deadline() {
    let world = World::start("case-67").await;
    let mut manifest: Value = serde_json::from_str(&lease("l")).unwrap();
    manifest["spec"]["sandbox"] = json!({ "snapshot": "no-such" });
    world.apply(&manifest.to_string()).await.unwrap();
    world.apply(&with_spec("c", &json!({ "startingDeadlineSeconds": 2 }))).await.unwrap();
    let lease = world.until_reason("sblease", "l", "Ready", "SnapshotNotFound").await;
    assert_eq!(condition(&lease, "Stalled")["status"], "True");
    let done = world.until_finished("c").await;
    assert_eq!(condition(&done, "Succeeded")["reason"], "StartDeadlineExceeded", "{done:#}");
}
