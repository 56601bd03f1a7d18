//! `GET /sandbox`: which sandboxes are listed, in which order, and as of when.

use std::time::Duration;

use dev::local_daytona::Settings;
use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Server, state, until_state};

/// The names on the page that this query asks for, in its order.
async fn names(server: &Server, query: &str) -> Vec<String> {
    let answer = server.get(&format!("/sandbox?{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {}", answer.text());
    let page = answer.json();
    page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

async fn built(server: &Server, name: &str, size: u32) -> String {
    let body = json!({
        "name": name, "cpu": size, "memory": size, "disk": size, "public": size > 1,
        "target": format!("region-{size}"), "buildInfo": { "dockerfileContent": "FROM debian:12\n" },
    });
    let id = server.create(body).await.id;
    until_state(server, &id, "started").await;
    id
}

#[tokio::test]
async fn a_list_is_filtered_by_each_field_of_the_table() {
    let server = Server::bash().await;
    server.daytona.add_snapshot("special").await.unwrap();
    let small = built(&server, "Small", 2).await;
    let large = built(&server, "large", 4).await;
    let labels = json!({ "a": "1", "b": "2" });
    server.create(json!({ "name": "plain", "snapshot": "special", "labels": labels, "ttlMinutes": 60 })).await;
    let created = |shown: &Value| shown["createdAt"].as_str().unwrap().to_owned();
    let first = created(&server.get(&format!("/sandbox/{small}")).await.json());
    let second = created(&server.get(&format!("/sandbox/{large}")).await.json());
    for (query, expected) in [
        ("", "Small large plain"),
        (&format!("id={}", small.split('-').next().unwrap().to_uppercase()), "Small"),
        ("name=sM", "Small"),
        ("name=mall", ""),
        ("labels=%7B%22a%22%3A%221%22%2C%22b%22%3A%222%22%7D", "plain"),
        ("labels=%7B%22a%22%3A%222%22%7D", ""),
        ("snapshots=special&snapshots=other", "plain"),
        ("regionIds=region-2&regionIds=region-4", "Small large"),
        ("sandboxClasses=container", "Small large plain"),
        ("sandboxClasses=windows", ""),
        ("minCpu=2&maxCpu=3", "Small"),
        ("minMemoryGiB=4", "large"),
        ("maxMemoryGiB=1", "plain"),
        ("minDiskGiB=3&maxDiskGiB=3", "plain"),
        ("isPublic=true", "Small large"),
        ("isPublic=false", "plain"),
        ("isRecoverable=true", ""),
        ("isRecoverable=false", "Small large plain"),
        (&format!("createdAtAfter={second}"), "large plain"),
        (&format!("createdAtBefore={first}"), "Small"),
        ("createdAtBefore=2020-01-01", ""),
        ("lastEventAfter=2020-01-01T00:00:00Z", "Small large plain"),
        ("lastEventBefore=2020-01-01T00:00:00%2B00:00", ""),
        ("autoDestroyAtAfter=2020-01-01", "plain"),
        ("autoDestroyAtBefore=2999-01-01", "plain"),
        ("autoDestroyAtAfter=2999-01-01", ""),
        ("notKnown=1", "Small large plain"),
    ] {
        let found = names(&server, &format!("sort=createdAt&order=asc&{query}")).await;
        assert_eq!(found.join(" "), expected, "{query}");
    }
}

#[tokio::test]
async fn a_list_is_sorted_by_each_field_and_by_default_by_the_last_activity() {
    let server = Server::bash().await;
    let id = built(&server, "b", 4).await;
    built(&server, "a", 2).await;
    for (query, expected) in [
        ("sort=name&order=asc", "a b"),
        ("sort=name", "b a"),
        ("sort=cpu&order=asc", "a b"),
        ("sort=memoryGib", "b a"),
        ("sort=diskGib&order=asc", "a b"),
        ("sort=createdAt&order=desc", "a b"),
        ("", "a b"),
    ] {
        assert_eq!(names(&server, query).await.join(" "), expected, "{query}");
    }
    server.daytona.advance_clock(Duration::from_secs(1)).await.unwrap();
    server.api(Method::POST, &format!("/sandbox/{id}/last-activity"), Value::Null).await;
    assert_eq!(names(&server, "").await.join(" "), "b a");
}

#[tokio::test]
async fn items_lack_what_only_the_whole_object_has() {
    let server = Server::bash().await;
    built(&server, "n", 2).await;
    let item = server.get("/sandbox").await.json()["items"][0].clone();
    for field in ["env", "volumes", "buildInfo", "kvm"] {
        assert!(item.get(field).is_none(), "{field}: {item}");
    }
    assert_eq!((&item["networkBlockAll"], &item["sandboxClass"]), (&json!(false), &json!("container")));
    let whole = server.get("/sandbox/n").await.json();
    assert!(whole["buildInfo"]["snapshotRef"].is_string() && whole["volumes"].is_array() && whole["env"].is_object());
}

#[tokio::test]
async fn the_filter_by_states_tests_the_stored_state_and_not_the_shown_one() {
    let server = Server::bash().await;
    let slow = Settings { stop_delay_seconds: Some(60), ..Settings::default() };
    server.daytona.set(slow).await.unwrap();
    let id = server.create(json!({ "name": "n" })).await.id;
    server.api(Method::POST, "/sandbox/n/stop", Value::Null).await;
    assert_eq!(state(&server, &id).await, "stopping");
    assert_eq!(server.get("/sandbox?states=started").await.json()["items"][0]["state"], "stopping");
    assert!(names(&server, "states=stopping").await.is_empty());
}

#[tokio::test]
async fn a_destroying_sandbox_is_listed_under_its_new_name_and_a_destroyed_one_not_at_all() {
    let server = Server::bash().await;
    server.daytona.set(Settings { delete_delay_seconds: Some(60), ..Settings::default() }).await.unwrap();
    let id = server.create(json!({ "name": "n" })).await.id;
    server.api(Method::DELETE, "/sandbox/n", Value::Null).await;
    let listed = names(&server, "").await;
    assert!(listed.len() == 1 && listed[0].starts_with("DESTROYED_n_"), "{listed:?}");
    server.daytona.advance_clock(Duration::from_secs(61)).await.unwrap();
    until_state(&server, &id, "404").await;
    assert!(names(&server, "includeErroredDeleted=true").await.is_empty());
}

#[tokio::test]
async fn what_cannot_be_listed_is_told_at_once() {
    let server = Server::bash().await;
    for (query, message) in [
        ("limit=201", "limit must not be greater than 200"),
        ("limit=0&minCpu=0", "limit must not be less than 1, minCpu must not be less than 1"),
        ("order=up", "order must be one of the following values: asc, desc"),
        ("createdAtAfter=soon", "createdAtAfter must be a Date instance"),
        ("labels=x", "Invalid labels JSON format"),
    ] {
        let answer = server.get(&format!("/sandbox?{query}")).await;
        assert_eq!((answer.status, answer.json()["message"].as_str()), (400, Some(message)), "{query}");
    }
    for query in ["states=destroyed", "sandboxClasses=x", "sort=size", "cursor=x"] {
        assert_eq!(server.get(&format!("/sandbox?{query}")).await.status, 400, "{query}");
    }
}

#[tokio::test]
async fn a_lagging_list_shows_creations_states_and_deletions_late_and_a_get_is_exact() {
    let server = Server::bash().await;
    let later = || server.daytona.advance_clock(Duration::from_secs(61));
    server.create(json!({ "name": "old" })).await;
    server.daytona.set(Settings { list_lag_seconds: Some(60), ..Settings::default() }).await.unwrap();
    assert_eq!(names(&server, "").await, ["old"], "what was before is known");
    let id = server.create(json!({ "name": "n" })).await.id;
    assert_eq!((names(&server, "name=n").await.len(), state(&server, &id).await.as_str()), (0, "started"));
    later().await.unwrap();
    assert_eq!(names(&server, "name=n").await, ["n"]);

    server.api(Method::POST, "/sandbox/n/stop", Value::Null).await;
    until_state(&server, &id, "stopped").await;
    assert_eq!(server.get("/sandbox?name=n").await.json()["items"][0]["state"], "started");
    assert!(names(&server, "states=stopped").await.is_empty());
    later().await.unwrap();
    assert_eq!(names(&server, "states=stopped").await, ["n"]);

    server.api(Method::DELETE, "/sandbox/n", Value::Null).await;
    until_state(&server, &id, "404").await;
    assert_eq!(names(&server, "name=n").await, ["n"], "under the name that it had");
    later().await.unwrap();
    assert_eq!(names(&server, "").await, ["old"]);
    server.daytona.set(Settings { list_lag_seconds: Some(0), ..Settings::default() }).await.unwrap();
    server.create(json!({ "name": "new" })).await;
    assert_eq!(names(&server, "name=new").await, ["new"]);
}
