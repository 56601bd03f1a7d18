//! What the control plane refuses, in which words, and what it does not know.

use dev::local_daytona::{ForcedState, Settings};
use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Server, ask, state, until_state};

async fn post(server: &Server, path: &str) -> (u16, String) {
    let answer = server.api(Method::POST, path, json!({})).await;
    (answer.status, answer.json()["message"].as_str().unwrap_or_default().to_owned())
}

fn refusal(status: u16, message: &str) -> (u16, String) {
    (status, message.to_owned())
}

#[tokio::test]
async fn a_create_that_cannot_be_is_told_what_is_wrong() {
    let server = Server::bash().await;
    let build = json!({ "dockerfileContent": "FROM debian:12\n" });
    let resources = "Cannot specify Sandbox resources when using a snapshot";
    let lasting = "GPU sandboxes must be ephemeral - set autoDeleteInterval to 0";
    let unsafe_name = "name must not contain HTML tags, URLs, or control characters";
    for (body, message) in [
        (json!({ "buildInfo": build, "snapshot": "x" }), "Cannot specify a snapshot when using a build info entry"),
        (
            json!({ "buildInfo": build, "linkedSandbox": "x" }),
            "linkedSandbox is not supported with declarative builds. Create a sandbox from a snapshot",
        ),
        (json!({ "cpu": 2 }), resources),
        (json!({ "gpuType": ["H100"], "autoDeleteInterval": 0 }), resources),
        (json!({ "buildInfo": build, "gpu": 1 }), lasting),
        (json!({ "buildInfo": build, "gpu": 2 }), "gpu must not be greater than 1"),
        (json!({ "autoStopInterval": -1 }), "Auto-stop interval must be non-negative"),
        (json!({ "autoArchiveInterval": -1 }), "Auto-archive interval must be non-negative"),
        (json!({ "name": "<b>" }), unsafe_name),
        (json!({ "name": "http://x" }), unsafe_name),
        (json!({ "name": "a\u{7}" }), unsafe_name),
        (
            json!({ "name": 1, "env": [], "cpu": "two", "public": "yes" }),
            "name must be a string, env must be an object, public must be a boolean value, cpu must be a number \
             conforming to the specified constraints",
        ),
        (json!({ "snapshot": "x" }), "Snapshot x not found. Did you add it through the Daytona Dashboard?"),
    ] {
        let answer = server.api(Method::POST, "/sandbox", body.clone()).await;
        assert_eq!((answer.status, answer.json()["message"].as_str()), (400, Some(message)), "{body}");
    }
    let ephemeral = json!({ "buildInfo": build, "gpu": 1, "autoDeleteInterval": 0, "name": null, "unknown": 1 });
    let id = server.create(ephemeral).await.id;
    let lasting = post(&server, &format!("/sandbox/{id}/autodelete/5")).await;
    assert_eq!(lasting, refusal(400, "GPU sandboxes must remain ephemeral"));
}

#[tokio::test]
async fn a_build_is_pending_when_it_is_answered_and_has_its_own_defaults() {
    let server = Server::bash().await;
    let body = json!({ "buildInfo": { "dockerfileContent": "FROM debian:12\n" } });
    let built = server.api(Method::POST, "/sandbox", body).await.json();
    assert_eq!(built["state"], "pending_build");
    let sizes = ["cpu", "gpu", "memory", "disk"].map(|field| built[field].as_u64().unwrap());
    assert_eq!(sizes, [1, 0, 1, 3]);
    until_state(&server, built["id"].as_str().unwrap(), "started").await;
}

#[tokio::test]
async fn a_quota_is_a_400_and_a_suspension_a_403() {
    let server = Server::bash().await;
    server.daytona.set(Settings { total_cpu: Some(1), ..Settings::default() }).await.unwrap();
    server.create(json!({ "name": "n" })).await;
    let exceeded = refusal(400, "Total CPU limit exceeded. Maximum allowed: 1.");
    assert_eq!(post(&server, "/sandbox").await, exceeded);
    let suspended = Settings { suspended: Some("unpaid".to_owned()), ..Settings::default() };
    server.daytona.set(suspended).await.unwrap();
    for path in ["/sandbox", "/sandbox/n/start"] {
        assert_eq!(post(&server, path).await, refusal(403, "Organization is suspended: unpaid"), "{path}");
    }
    assert_eq!(server.get("/sandbox/n").await.status, 200);
}

#[tokio::test]
async fn an_archived_sandbox_that_starts_counts_for_the_quota_again() {
    let server = Server::bash().await;
    server.daytona.set(Settings { total_cpu: Some(1), ..Settings::default() }).await.unwrap();
    let id = server.create(json!({ "name": "n" })).await.id;
    server
        .daytona
        .force_state(&id, &ForcedState { state: "archived".to_owned(), ..ForcedState::default() })
        .await
        .unwrap();
    server.create(json!({})).await;
    assert_eq!(post(&server, "/sandbox/n/start").await.0, 400);
}

#[tokio::test]
async fn what_another_organisation_has_is_not_found() {
    let server = Server::bash().await;
    let own = server.create(json!({ "name": "n" })).await;
    let another = Settings { organization: Some("another".to_owned()), ..Settings::default() };
    server.daytona.set(another).await.unwrap();
    for path in ["", "/start", "/last-activity", "/toolbox-proxy-url"] {
        let method = if path.is_empty() || path.ends_with("url") { Method::GET } else { Method::POST };
        let path = format!("/sandbox/{}{path}", own.id);
        assert_eq!(server.api(method, &path, Value::Null).await.status, 404, "{path}");
    }
    assert_eq!(server.get("/sandbox").await.json()["items"], json!([]));
    assert_eq!(own.get("/version").await.status, 401, "not told from a wrong key");
    let theirs = server.create(json!({ "name": "n" })).await;
    assert_eq!(server.get("/sandbox/n").await.json()["id"], theirs.id.as_str(), "a name is unique in its organisation");
}

#[tokio::test]
async fn a_key_may_be_allowed_to_read_only() {
    let server = Server::bash().await;
    let id = server.create(json!({})).await.id;
    let permit = async |permissions: &[&str]| {
        let permissions = Some(permissions.iter().map(|&permission| permission.to_owned()).collect());
        server.daytona.set(Settings { permissions, ..Settings::default() }).await.unwrap();
    };
    let sandbox = format!("/sandbox/{id}");
    permit(&[]).await;
    let denied = refusal(403, "Access denied");
    assert_eq!(post(&server, "/sandbox").await, denied);
    assert_eq!(post(&server, &format!("{sandbox}/stop")).await, denied);
    assert_eq!(server.api(Method::DELETE, &sandbox, Value::Null).await.status, 403);
    assert_eq!(post(&server, &format!("{sandbox}/last-activity")).await.0, 201);
    assert_eq!((server.get(&sandbox).await.status, server.get("/sandbox").await.status), (200, 200));
    permit(&["write:sandboxes"]).await;
    assert_eq!(post(&server, "/sandbox").await.0, 200);
    assert_eq!(server.api(Method::DELETE, &sandbox, Value::Null).await.status, 403);
    permit(&["delete:sandboxes"]).await;
    assert_eq!(server.api(Method::DELETE, &sandbox, Value::Null).await.status, 200);
}

#[tokio::test]
async fn a_state_decides_what_may_be_done() {
    let server = Server::bash().await;
    let id = server.create(json!({ "name": "n" })).await.id;
    let force = async |state: &str| {
        let forced = ForcedState { state: state.to_owned(), ..ForcedState::default() };
        server.daytona.force_state(&id, &forced).await.unwrap();
    };
    let errored = refusal(400, "Sandbox is in an errored state");
    assert_eq!(post(&server, "/sandbox/n/start").await.0, 200, "started already");
    assert_eq!(post(&server, "/sandbox/n/archive").await, refusal(400, "Sandbox is not stopped"));
    assert_eq!(post(&server, "/sandbox/n/recover").await, refusal(400, "Sandbox is not in a recoverable state"));
    force("stopped").await;
    assert_eq!(post(&server, "/sandbox/n/stop").await, refusal(400, "Sandbox is not in a stoppable state"));
    for state in ["error", "build_failed"] {
        force(state).await;
        for operation in ["start", "stop", "archive"] {
            assert_eq!(post(&server, &format!("/sandbox/n/{operation}")).await, errored, "{state} {operation}");
        }
    }
    let dying =
        ForcedState { desired_state: Some("stopped".to_owned()), state: "started".to_owned(), ..Default::default() };
    server.daytona.force_state(&id, &dying).await.unwrap();
    assert_eq!(state(&server, &id).await, "stopping");
    for operation in ["start", "stop", "archive"] {
        let answer = post(&server, &format!("/sandbox/n/{operation}")).await;
        assert_eq!(answer, refusal(409, "Sandbox state change in progress"), "{operation}");
    }
}

#[tokio::test]
async fn a_container_is_neither_paused_nor_forked_nor_resized() {
    let server = Server::bash().await;
    server.create(json!({ "name": "n" })).await;
    assert_eq!(post(&server, "/sandbox/n/pause").await, refusal(422, "Pausing is not supported for this sandbox"));
    assert_eq!(post(&server, "/sandbox/n/fork").await, refusal(422, "Forking is not supported for this sandbox"));
    // Behind a feature flag that is off: there is no such route.
    assert_eq!(post(&server, "/sandbox/n/resize").await, refusal(404, "Cannot POST /api/sandbox/n/resize"));
}

#[tokio::test]
async fn an_unknown_route_is_a_404_and_outside_the_api_the_dashboard() {
    let server = Server::bash().await;
    let answer = server.get("/sandbox/paginated/x").await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (404, Some("Not Found")));
    assert_eq!(answer.headers["x-daytona-api-version"], "0.226.1");
    assert_eq!(post(&server, "/sandbox/n/unheard/3").await, refusal(404, "Cannot POST /api/sandbox/n/unheard/3"));
    let elsewhere = server.daytona.base_url().replace("/api", "/elsewhere");
    let dashboard = ask(server.http.get(&elsewhere)).await;
    assert_eq!(dashboard.status, 404);
    assert!(dashboard.text().starts_with("<!DOCTYPE html>"));
}

#[tokio::test]
async fn the_configuration_is_told_without_a_key() {
    let server = Server::bash().await;
    let config = ask(server.http.get(format!("{}/config", server.daytona.base_url()))).await;
    let config = config.json();
    assert!(config["proxyToolboxUrl"].as_str().unwrap().ends_with("/toolbox"));
    assert_eq!(config["maxAutoArchiveInterval"], 43_200);
    assert!(config["defaultSnapshot"].is_string() && config["rateLimit"]["sandboxCreate"].is_null());
}
