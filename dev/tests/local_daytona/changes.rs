//! What the control plane changes when it is asked to, and what becomes of it.

use std::time::Duration;

use dev::local_daytona::{ForcedState, Settings};
use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Answer, Server, state, until, until_state};

async fn post(server: &Server, path: &str, body: Value) -> Answer {
    server.api(Method::POST, path, body).await
}

#[tokio::test]
async fn an_id_is_tried_before_a_name_and_is_the_name_of_what_has_none() {
    let server = Server::bash().await;
    let first = server.create(json!({})).await.id;
    assert_eq!(server.get(&format!("/sandbox/{first}")).await.json()["name"], first.as_str());
    server.api(Method::DELETE, &format!("/sandbox/{first}"), Value::Null).await;
    until_state(&server, &first, "404").await;
    let named = server.create(json!({ "name": first })).await.id;
    assert_eq!(server.get(&format!("/sandbox/{first}")).await.json()["id"], named.as_str());
    let second = server.create(json!({})).await.id;
    server.create(json!({ "name": "n" })).await;
    assert_eq!(server.get(&format!("/sandbox/{second}")).await.json()["id"], second.as_str());
    assert_eq!(post(&server, "/sandbox/n/last-activity", Value::Null).await.status, 404, "activity knows ids only");
}

#[tokio::test]
async fn setters_answer_as_they_do() {
    let server = Server::bash().await;
    server.create(json!({ "name": "n", "autoStopInterval": 0 })).await;
    for (path, status, field, value) in [
        ("public/true", 201, "public", json!(true)),
        ("public/false", 201, "public", json!(false)),
        ("autopause/5", 201, "autoPauseInterval", json!(5)),
        ("autoarchive/0", 201, "autoArchiveInterval", json!(43_200)),
        ("autoarchive/50000", 201, "autoArchiveInterval", json!(43_200)),
        ("autodelete/-1", 201, "autoDeleteInterval", json!(-1)),
        ("backup", 201, "name", json!("n")),
        ("network-settings", 200, "networkBlockAll", json!(false)),
        ("autostop/x", 400, "message", json!("Validation failed (numeric string is expected)")),
        ("autostop/-1", 400, "message", json!("Auto-stop interval must be non-negative")),
        ("autoarchive/-1", 400, "message", json!("Auto-archive interval must be non-negative")),
    ] {
        let answer = post(&server, &format!("/sandbox/n/{path}"), json!({})).await;
        assert_eq!((answer.status, &answer.json()[field]), (status, &value), "{path}");
    }
}

#[tokio::test]
async fn labels_are_anything_and_as_many_as_one_likes() {
    let server = Server::bash().await;
    server.create(json!({ "name": "n" })).await;
    let mut labels: serde_json::Map<String, Value> =
        (0..500).map(|number| (format!("key-{number}"), json!("v".repeat(1000)))).collect();
    labels.insert("number".to_owned(), json!(1));
    let answer = server.api(Method::PUT, "/sandbox/n/labels", json!({ "labels": labels })).await;
    assert_eq!((answer.status, &answer.json()["labels"]), (200, &Value::Object(labels)));
}

#[tokio::test]
async fn an_allow_list_and_blocking_everything_exclude_each_other() {
    let server = Server::bash().await;
    server.create(json!({ "name": "n", "networkAllowList": "10.0.0.0/8" })).await;
    for (body, block, list) in [
        (json!({ "networkBlockAll": true }), true, Value::Null),
        (json!({ "networkAllowList": "192.168.0.0/16" }), false, json!("192.168.0.0/16")),
        (json!({ "domainAllowList": "example.com" }), false, json!("192.168.0.0/16")),
        (json!({ "networkAllowList": " " }), false, Value::Null),
    ] {
        let shown = post(&server, "/sandbox/n/network-settings", body.clone()).await.json();
        assert_eq!((&shown["networkBlockAll"], &shown["networkAllowList"]), (&json!(block), &list), "{body}");
    }
    assert_eq!(server.get("/sandbox/n").await.json()["domainAllowList"], "example.com");
}

#[tokio::test]
async fn a_ttl_counts_from_when_it_is_set_whatever_the_state() {
    let server = Server::bash().await;
    let id = server.create(json!({ "name": "n", "ttlMinutes": 5 })).await.id;
    assert!(server.get("/sandbox/n").await.json()["autoDestroyAt"].is_string());
    server.daytona.advance_clock(Duration::from_mins(4)).await.unwrap();
    assert_eq!(post(&server, "/sandbox/n/ttl/5", Value::Null).await.status, 201);
    post(&server, "/sandbox/n/stop", Value::Null).await;
    until_state(&server, &id, "stopped").await;
    server.daytona.advance_clock(Duration::from_mins(4)).await.unwrap();
    assert_eq!(state(&server, &id).await, "stopped");
    server.daytona.advance_clock(Duration::from_mins(2)).await.unwrap();
    until_state(&server, &id, "404").await;
    let lasting = server.create(json!({ "ttlMinutes": 5, "autoStopInterval": 0 })).await.id;
    post(&server, &format!("/sandbox/{lasting}/ttl/0"), Value::Null).await;
    server.daytona.advance_clock(Duration::from_mins(9)).await.unwrap();
    assert_eq!(state(&server, &lasting).await, "started");
}

#[tokio::test]
async fn an_archive_is_reached_and_left_through_states_of_its_own() {
    let server = Server::bash().await;
    let slow = Settings { archive_delay_seconds: Some(60), start_delay_seconds: Some(60), ..Settings::default() };
    server.daytona.set(slow).await.unwrap();
    let id = server.create(json!({ "name": "n" })).await.id;
    post(&server, "/sandbox/n/stop", Value::Null).await;
    until_state(&server, &id, "stopped").await;
    let archiving = post(&server, "/sandbox/n/archive", Value::Null).await;
    assert_eq!((archiving.status, &archiving.json()["state"]), (200, &json!("archiving")));
    assert_eq!(archiving.json()["desiredState"], "archived");
    assert_eq!(post(&server, "/sandbox/n/start", Value::Null).await.status, 409);
    server.daytona.advance_clock(Duration::from_secs(61)).await.unwrap();
    until_state(&server, &id, "archived").await;
    let restoring = post(&server, "/sandbox/n/start", Value::Null).await;
    assert_eq!((restoring.status, &restoring.json()["state"]), (200, &json!("restoring")));
    server.daytona.advance_clock(Duration::from_secs(61)).await.unwrap();
    until_state(&server, &id, "started").await;
}

#[tokio::test]
async fn an_ephemeral_sandbox_is_destroyed_in_place_of_being_stopped_and_has_no_backup() {
    let server = Server::bash().await;
    let id = server.create(json!({ "name": "n", "autoDeleteInterval": 0 })).await.id;
    let backup = post(&server, "/sandbox/n/backup", Value::Null).await;
    assert_eq!((backup.status, &backup.json()["message"]), (400, &json!("Ephemeral sandboxes cannot be backed up")));
    let answer = post(&server, "/sandbox/n/stop", Value::Null).await.json();
    assert_eq!((&answer["state"], &answer["desiredState"]), (&json!("destroying"), &json!("destroyed")));
    until_state(&server, &id, "404").await;
}

#[tokio::test]
async fn a_pending_build_can_be_deleted_and_another_transition_not() {
    let server = Server::bash().await;
    server.daytona.set(Settings { create_delay_seconds: Some(600), ..Settings::default() }).await.unwrap();
    let built = server.create(json!({ "buildInfo": { "dockerfileContent": "FROM debian:12\n" } })).await.id;
    let plain = server.create(json!({})).await.id;
    for (id, status) in [(built, 200), (plain, 409)] {
        assert_eq!(server.api(Method::DELETE, &format!("/sandbox/{id}"), Value::Null).await.status, status);
    }
}

#[tokio::test]
async fn a_snapshot_of_a_sandbox_can_be_created_from() {
    let server = Server::bash().await;
    server.create(json!({ "name": "n" })).await;
    let answer = post(&server, "/sandbox/n/snapshot", json!({ "name": "mine" })).await;
    assert_eq!((answer.status, &answer.json()["name"]), (200, &json!("n")));
    let body = json!({ "snapshot": "mine" });
    assert_eq!(post(&server, "/sandbox", body).await.json()["snapshot"], "mine");
}

#[tokio::test]
async fn a_recoverable_sandbox_comes_back_from_its_error() {
    let server = Server::bash().await;
    let id = server.create(json!({ "name": "n" })).await.id;
    for (query, after) in [("?skipStart=true", "stopped"), ("", "started")] {
        let state = "error".to_owned();
        let errored = ForcedState {
            state,
            error_reason: Some("disk full".to_owned()),
            recoverable: Some(true),
            ..Default::default()
        };
        server.daytona.force_state(&id, &errored).await.unwrap();
        let shown = server.get("/sandbox/n").await.json();
        assert_eq!((&shown["errorReason"], &shown["recoverable"]), (&json!("disk full"), &json!(true)));
        let answer = post(&server, &format!("/sandbox/n/recover{query}"), Value::Null).await;
        assert_eq!((answer.status, &answer.json()["state"]), (200, &json!(after)));
        assert!(answer.json()["errorReason"].is_null());
    }
    until("it works", async || server.get("/sandbox/n").await.json()["state"] == "started").await;
}

#[tokio::test]
async fn a_refusal_names_the_path_with_its_query() {
    let server = Server::bash().await;
    let refused = server.get("/sandbox/none?verbose=true").await.json();
    assert_eq!(refused["path"], "/api/sandbox/none?verbose=true");
    assert!(refused["timestamp"].as_str().unwrap().ends_with('Z'));
}

#[tokio::test]
async fn a_start_that_takes_too_long_ends_in_an_error() {
    let server = Server::bash().await;
    let slow = |settings: Settings| server.daytona.set(settings);
    slow(Settings { create_delay_seconds: Some(3600), ..Settings::default() }).await.unwrap();
    let never = server.create(json!({})).await.id;
    server.daytona.advance_clock(Duration::from_mins(14)).await.unwrap();
    assert_eq!(state(&server, &never).await, "creating");
    slow(Settings { create_delay_seconds: Some(0), start_delay_seconds: Some(3600), ..Settings::default() })
        .await
        .unwrap();
    let late = server.create(json!({})).await.id;
    let stopped = ForcedState { state: "stopped".to_owned(), ..ForcedState::default() };
    server.daytona.force_state(&late, &stopped).await.unwrap();
    post(&server, &format!("/sandbox/{late}/start"), Value::Null).await;
    assert_eq!(state(&server, &late).await, "starting");
    server.daytona.advance_clock(Duration::from_mins(5)).await.unwrap();
    for (id, reason) in [(never, "Timeout while creating sandbox"), (late, "Timeout while starting sandbox")] {
        until_state(&server, &id, "error").await;
        assert_eq!(server.get(&format!("/sandbox/{id}")).await.json()["errorReason"], reason);
    }
}

#[tokio::test]
async fn a_create_answers_after_half_a_minute_at_the_latest_with_how_it_looked_at_first() {
    let server = Server::bash().await;
    let settings = Settings {
        create_delay_seconds: Some(10),
        start_delay_seconds: Some(100),
        answer_wait_seconds: Some(30),
        ..Settings::default()
    };
    server.daytona.set(settings).await.unwrap();
    let known = async |name: &str| server.get(&format!("/sandbox/{name}")).await.status == 200;
    let create = server.api(Method::POST, "/sandbox", json!({ "name": "n" }));
    let (answer, ()) = tokio::join!(create, async {
        until("it is being created", async || known("n").await).await;
        server.daytona.advance_clock(Duration::from_secs(10)).await.unwrap();
    });
    assert_eq!((answer.status, &answer.json()["state"]), (200, &json!("creating")), "even if it has started");
    assert_eq!(server.get("/sandbox/n").await.json()["state"], "started");

    let id = answer.json()["id"].as_str().unwrap().to_owned();
    let stopped = ForcedState { state: "stopped".to_owned(), ..ForcedState::default() };
    server.daytona.force_state(&id, &stopped).await.unwrap();
    let (answer, ()) = tokio::join!(post(&server, "/sandbox/n/start", Value::Null), async {
        until("it is starting", async || state(&server, &id).await == "starting").await;
        server.daytona.advance_clock(Duration::from_secs(30)).await.unwrap();
    });
    assert_eq!((answer.status, &answer.json()["state"]), (200, &json!("starting")));

    let create = server.api(Method::POST, "/sandbox", json!({ "name": "failing" }));
    let (answer, ()) = tokio::join!(create, async {
        until("it is being created", async || known("failing").await).await;
        let reason = Some("no space".to_owned());
        let errored = ForcedState { state: "error".to_owned(), error_reason: reason, ..ForcedState::default() };
        server.daytona.force_state("failing", &errored).await.unwrap();
    });
    assert_eq!((answer.status, &answer.json()["message"]), (400, &json!("Sandbox failed to start: no space")));
    assert_eq!(server.get("/sandbox/failing").await.json()["state"], "error");
    assert_eq!(post(&server, "/sandbox", json!({ "name": "failing" })).await.status, 409, "it keeps the name");
}
