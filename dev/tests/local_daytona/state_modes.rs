//! Rules that let the control plane fail as it has been seen to fail without a word.

use std::time::Duration;

use dev::faults::{Mode, Rule};
use dev::local_daytona::{ForcedState, Settings};
use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Server, state, until_state};

#[tokio::test]
async fn a_change_of_state_can_be_stuck_until_a_state_is_forced() {
    let server = Server::bash().await;
    let once = async |method: &str, path: &str| {
        server.daytona.add_rule(Rule::on(method, path).times(1).mode(Mode::StateStuck)).await.unwrap()
    };
    let forced = |state: &str| ForcedState { state: state.to_owned(), ..ForcedState::default() };
    let mut rules = vec![once("POST", "/api/sandbox").await];
    let id = server.create(json!({ "name": "n" })).await.id;
    for (operation, stuck, end) in [
        ("", "creating", "started"),
        ("stop", "stopping", "stopped"),
        ("start", "starting", "stopped"),
        ("archive", "archiving", "archived"),
    ] {
        if !operation.is_empty() {
            rules.push(once("POST", &format!("/api/sandbox/{{sandbox}}/{operation}")).await);
            let answer = server.api(Method::POST, &format!("/sandbox/n/{operation}"), Value::Null).await;
            assert_eq!((answer.status, &answer.json()["state"]), (200, &json!(stuck)));
        }
        server.daytona.advance_clock(Duration::from_hours(24)).await.unwrap();
        assert_eq!(state(&server, &id).await, stuck);
        let disturbed = server.api(Method::POST, "/sandbox/n/start", Value::Null).await;
        assert_eq!(disturbed.status, 409, "{stuck}");
        server.daytona.force_state(&id, &forced(end)).await.unwrap();
        assert_eq!(state(&server, &id).await, end);
    }
    rules.push(once("DELETE", "/api/sandbox/{sandbox}").await);
    assert_eq!(server.api(Method::DELETE, "/sandbox/n", Value::Null).await.status, 200);
    server.daytona.advance_clock(Duration::from_hours(24)).await.unwrap();
    assert_eq!(state(&server, &id).await, "destroying");
    server.daytona.force_state(&id, &forced("destroyed")).await.unwrap();
    until_state(&server, &id, "404").await;
    for rule in rules {
        assert_eq!(server.daytona.fired(rule).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_sandbox_can_be_lost_at_any_call_about_it() {
    let server = Server::bash().await;
    let read = Rule::on("GET", "/api/sandbox/{sandbox}").times(1).mode(Mode::SandboxLost);
    let read = server.daytona.add_rule(read).await.unwrap();
    let first = server.create(json!({ "name": "n" })).await;
    assert_eq!(server.get("/sandbox/n").await.status, 404);
    assert_eq!(server.daytona.sandbox(&first.id).await.unwrap().map(|report| report.id), None);
    let second = server.create(json!({ "name": "n" })).await;
    second.open("s").await;
    second.submit("s", "sleep 1000").await;
    let exec = Rule::on("POST", "/toolbox/{sandbox}/process/execute").object(&second.id).mode(Mode::SandboxLost);
    let exec = server.daytona.add_rule(exec).await.unwrap();
    let answer = second.post("/process/execute", json!({ "command": "true" })).await;
    assert_eq!((answer.status, server.get("/sandbox/n").await.status), (401, 404));
    assert_eq!((server.daytona.fired(read).await.unwrap(), server.daytona.fired(exec).await.unwrap()), (1, 1));
}

#[tokio::test]
async fn a_deletion_that_fails_leaves_what_is_404_by_id_and_listed_among_the_errored() {
    let server = Server::bash().await;
    server.daytona.set(Settings { delete_delay_seconds: Some(60), ..Settings::default() }).await.unwrap();
    let rule = Rule::on("DELETE", "/api/sandbox/{sandbox}").times(1).mode(Mode::ErroredButListed);
    let rule = server.daytona.add_rule(rule).await.unwrap();
    let id = server.create(json!({ "name": "n" })).await.id;
    let deleted = server.api(Method::DELETE, "/sandbox/n", Value::Null).await;
    assert_eq!((deleted.status, &deleted.json()["state"]), (200, &json!("destroying")));
    assert_eq!(state(&server, &id).await, "destroying");
    server.daytona.advance_clock(Duration::from_secs(61)).await.unwrap();
    until_state(&server, &id, "404").await;
    assert_eq!(server.api(Method::DELETE, &format!("/sandbox/{id}"), Value::Null).await.status, 404);
    assert_eq!(server.get("/sandbox").await.json()["items"], json!([]));
    let listed = server.get("/sandbox?includeErroredDeleted=true").await.json()["items"].clone();
    assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&json!(id), &json!("error")));
    assert_eq!(listed[0]["desiredState"], "destroyed");
    assert!(listed[0]["name"].as_str().unwrap().starts_with("DESTROYED_n_"));
    assert_eq!(server.daytona.fired(rule).await.unwrap(), 1);
}

#[tokio::test]
async fn a_list_can_flap() {
    let server = Server::bash().await;
    for name in ["a", "b", "c"] {
        server.create(json!({ "name": name })).await;
    }
    let rule = server.daytona.add_rule(Rule::on("GET", "/api/sandbox").mode(Mode::FlappingList)).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let page = server.get("/sandbox?sort=name&order=asc").await.json();
        let names = page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned());
        seen.push(names.collect::<String>());
    }
    assert_eq!(seen, ["b", "abc", "b", "abc"]);
    assert_eq!(server.daytona.fired(rule).await.unwrap(), 4);
    server.daytona.clear_rules().await.unwrap();
    assert_eq!(server.get("/sandbox").await.json()["items"].as_array().unwrap().len(), 3);
}
