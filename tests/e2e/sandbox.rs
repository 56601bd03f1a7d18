//! What a lease's sandbox is made of, and what of it is kept as the lease says.

use dev::faults::Rule;
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::{World, condition, lease_with};

/// Fields: sandbox.image, sandbox.resources, sandbox.language, sandbox.user, sandbox.labels, sandbox.public,
/// sandbox.networkBlockAll, sandbox.networkAllowList, sandbox.autoStopMinutes, sandbox.autoArchiveMinutes,
/// sandbox.autoDeleteMinutes, status.sandbox.autoStopMinutes, status.sandbox.autoArchiveMinutes,
/// status.sandbox.autoDeleteMinutes
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_made_as_its_lease_says() {
    let world = World::start("sandbox-made").await;
    let asked = json!({
        "image": "debian:12.9", "resources": { "cpu": "2", "memory": "4Gi", "disk": "10Gi" }, "language": "python",
        "user": "daytona", "labels": { "team": "a" }, "public": true,
        "networkBlockAll": false, "networkAllowList": ["10.0.0.0/8"],
        "autoStopMinutes": 5, "autoArchiveMinutes": 30, "autoDeleteMinutes": -1
    });
    world.apply(&lease_with("l", &json!({ "sandbox": &asked }))).await.unwrap();
    let ready = world.until_ready("l").await;
    let id = ready["status"]["sandbox"]["id"].as_str().unwrap();
    let made = world.ask(Method::GET, &format!("/{id}"), &Value::Null).await;
    for (field, value) in [
        ("cpu", json!(2)),
        ("memory", json!(4)),
        ("disk", json!(10)),
        ("user", json!("daytona")),
        ("public", json!(true)),
        ("networkBlockAll", json!(false)),
        ("networkAllowList", json!("10.0.0.0/8")),
        ("autoStopInterval", json!(5)),
        ("autoArchiveInterval", json!(30)),
        ("autoDeleteInterval", json!(-1)),
    ] {
        assert_eq!(made[field], value, "{field}: {made}");
    }
    assert_eq!(made["buildInfo"]["dockerfileContent"], "FROM debian:12.9\n");
    assert_eq!((&made["labels"]["team"], &made["labels"]["code-toolbox-language"]), (&json!("a"), &json!("python")));
    assert_eq!(made["labels"]["daytona-controller.dev/lease-uid"], ready["metadata"]["uid"]);
    let status = &ready["status"]["sandbox"];
    assert_eq!(
        (&status["autoStopMinutes"], &status["autoArchiveMinutes"], &status["autoDeleteMinutes"]),
        (&json!(5), &json!(30), &json!(-1))
    );
}

/// Fields: sandbox.labels, sandbox.autoStopMinutes
#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_changed_is_changed_and_what_drifts_is_set_again_once() {
    let world = World::start("sandbox-drift").await;
    world.apply(&lease_with("l", &json!({ "sandbox": { "labels": { "team": "a" } } }))).await.unwrap();
    let ready = world.until_ready("l").await;
    let id = ready["status"]["sandbox"]["id"].as_str().unwrap().to_owned();
    let uid = ready["metadata"]["uid"].as_str().unwrap();
    world
        .apply(&lease_with("l", &json!({ "sandbox": { "labels": { "team": "b" }, "autoStopMinutes": 7 } })))
        .await
        .unwrap();
    let told = |minutes: i64| move |l: &Value| l["status"]["sandbox"]["autoStopMinutes"] == minutes;
    world.until("sandboxlease", "l", "what was changed is set", told(7)).await;
    // Somebody else's doing.
    world.ask(Method::POST, &format!("/{id}/autostop/99"), &Value::Null).await;
    let theirs = json!({ "labels": { "theirs": "x", "team": "c", "daytona-controller.dev/lease-uid": uid } });
    world.ask(Method::PUT, &format!("/{id}/labels"), &theirs).await;
    world
        .eventually("what has drifted is set again", async || {
            let seen = world.ask(Method::GET, &format!("/{id}"), &Value::Null).await;
            let labels = &seen["labels"];
            (&seen["autoStopInterval"], &labels["team"], &labels["theirs"]) == (&json!(7), &json!("b"), &json!("x"))
        })
        .await;
    let sets = world.calls("POST /api/sandbox/{sandbox}/autostop/{minutes}").await;
    // Looks go on, each a second after the other; nothing more is set.
    let looks = world.calls("GET /api/sandbox/{sandbox}").await;
    world
        .eventually("it is looked at twice more", async || world.calls("GET /api/sandbox/{sandbox}").await >= looks + 2)
        .await;
    assert_eq!(world.calls("POST /api/sandbox/{sandbox}/autostop/{minutes}").await, sets);
    // What cannot be set is tried again at each look, and the lease is ready all the same.
    let refused = Rule::on("POST", "/api/sandbox/[^/]+/autostop/8").answer(503, "");
    let refused = world.daytona.add_rule(refused).await.unwrap();
    world.ask(Method::POST, &format!("/{id}/autodelete/1"), &Value::Null).await;
    world
        .apply(&lease_with("l", &json!({ "sandbox": { "labels": { "team": "b" }, "autoStopMinutes": 8 } })))
        .await
        .unwrap();
    world.eventually("it is tried again", async || world.daytona.fired(refused).await.unwrap() >= 2).await;
    let lease = world
        .until("sandboxlease", "l", "the others are set", |l| l["status"]["sandbox"]["autoDeleteMinutes"] == 10_080);
    assert_eq!(condition(&lease.await, "Ready")["status"], "True");
    world.daytona.clear_rules().await.unwrap();
    world.until("sandboxlease", "l", "it is set in the end", told(8)).await;
}
