//! What stands before a sandbox's daemon: who may come in, and what of it counts as activity.

use std::time::Duration;

use dev::local_daytona::ForcedState;
use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Sandbox, Server, ask};

async fn activity(sandbox: &Sandbox<'_>) -> String {
    sandbox.report().await.unwrap().last_activity_at
}

#[tokio::test]
async fn who_has_no_key_is_told_so_and_a_wrong_key_is_not_told_from_an_unknown_sandbox() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let url = format!("{}/version", sandbox.toolbox);
    let none = ask(server.http.get(&url)).await;
    let message = none.json()["message"].as_str().unwrap().to_owned();
    assert_eq!((none.status, none.json()["code"].as_str()), (401, Some("UNAUTHORIZED")));
    assert!(message.starts_with("unauthorized: missing authentication: "), "{message}");
    let unknown = url.replace(&sandbox.id, "0d5a2a54-3c1c-4b0e-9d0c-1f6c7f1f2b10");
    let wrong = ask(server.http.get(&url).bearer_auth("wrong")).await;
    for answer in [wrong, ask(server.request(Method::GET, &unknown)).await] {
        let message = "unauthorized: authentication failed: Bearer token is invalid";
        assert_eq!((answer.status, answer.json()["message"].as_str()), (401, Some(message)));
    }
}

#[tokio::test]
async fn what_is_in_the_archive_has_no_runner() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let archived = ForcedState { state: "archived".to_owned(), ..ForcedState::default() };
    server.daytona.force_state(&sandbox.id, &archived).await.unwrap();
    let answer = sandbox.get("/version").await;
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    assert!(answer.status == 400 && message.starts_with("bad request: failed to get runner info: "), "{message}");
}

#[tokio::test]
async fn activity_is_recorded_once_in_45_seconds_and_not_where_the_caller_says_so() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let created = activity(&sandbox).await;
    server.daytona.advance_clock(Duration::from_secs(30)).await.unwrap();
    sandbox.get("/version").await;
    assert_eq!(activity(&sandbox).await, created, "too soon");
    server.daytona.advance_clock(Duration::from_secs(16)).await.unwrap();
    let quiet = sandbox.request(Method::GET, "/version").header("X-Daytona-Skip-Last-Activity-Update", "true");
    assert_eq!((ask(quiet).await.status, activity(&sandbox).await), (200, created.clone()));
    server.get(&format!("/sandbox/{}", sandbox.id)).await;
    server.get("/sandbox").await;
    assert_eq!(activity(&sandbox).await, created, "reading is none");
    sandbox.get("/version").await;
    let recorded = activity(&sandbox).await;
    assert_ne!(recorded, created);
    server.daytona.advance_clock(Duration::from_secs(1)).await.unwrap();
    let path = format!("/sandbox/{}/last-activity", sandbox.id);
    assert_eq!(server.api(Method::POST, &path, json!({ "activityType": "x" })).await.status, 201);
    assert_ne!(activity(&sandbox).await, recorded, "what is reported counts at once");
    assert_eq!(server.api(Method::POST, &path, Value::Null).await.bytes.len(), 0);
}
