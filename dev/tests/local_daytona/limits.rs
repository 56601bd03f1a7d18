//! Rate limits: off unless switched on, counted by the minute of the service's clock.

use std::time::Duration;

use dev::local_daytona::{RateLimits, Settings};
use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Answer, Server, ask};

async fn limit(server: &Server, limits: RateLimits) {
    server.daytona.set(Settings { rate_limits: Some(limits), ..Settings::default() }).await.unwrap();
}

/// The header's number, if the answer has it.
fn number(answer: &Answer, header: &str) -> Option<u64> {
    answer.headers.get(header)?.to_str().ok()?.parse().ok()
}

fn has_limits(answer: &Answer) -> bool {
    answer.headers.keys().any(|name| name.as_str().starts_with("x-ratelimit") || name.as_str().starts_with("retry"))
}

#[tokio::test]
async fn nothing_is_limited_unless_it_is_said() {
    let server = Server::bash().await;
    let created = server.api(Method::POST, "/sandbox", json!({})).await;
    assert!(created.status == 200 && !has_limits(&created), "{:?}", created.headers);
    limit(&server, RateLimits { sandbox_create: Some(1), ..RateLimits::default() }).await;
    assert!(!has_limits(&server.get("/sandbox").await), "another limiter's call");
}

#[tokio::test]
async fn a_limit_is_told_on_successes_and_beyond_it_when_to_come_back() {
    let server = Server::bash().await;
    limit(&server, RateLimits { sandbox_create: Some(2), ..RateLimits::default() }).await;
    let create = async || server.api(Method::POST, "/sandbox", json!({})).await;
    for remaining in [1, 0] {
        let answer = create().await;
        assert_eq!((answer.status, number(&answer, "x-ratelimit-limit-sandbox-create")), (200, Some(2)));
        assert_eq!(number(&answer, "x-ratelimit-remaining-sandbox-create"), Some(remaining));
        assert!(number(&answer, "x-ratelimit-reset-sandbox-create").is_some_and(|seconds| seconds <= 60));
        assert!(number(&answer, "retry-after-sandbox-create").is_none());
    }
    let refused = create().await;
    assert_eq!((refused.status, &refused.json()["statusCode"]), (429, &json!(429)));
    assert_eq!(refused.json()["message"], "ThrottlerException: Too Many Requests");
    assert!(number(&refused, "retry-after-sandbox-create").is_some_and(|seconds| (1..=60).contains(&seconds)));
    assert!(number(&refused, "retry-after").is_none(), "the plain one is for failed authentication");
    assert_eq!(server.daytona.state().await.unwrap().sandboxes.len(), 2);
    server.daytona.advance_clock(Duration::from_secs(61)).await.unwrap();
    assert_eq!(create().await.status, 200);
}

#[tokio::test]
async fn changes_of_state_and_everything_else_are_counted_apart() {
    let server = Server::bash().await;
    let sandbox = server.create(json!({ "name": "n" })).await;
    let limits = RateLimits { authenticated: Some(2), sandbox_lifecycle: Some(1), ..RateLimits::default() };
    limit(&server, limits).await;
    let stop = async || server.api(Method::POST, "/sandbox/n/stop", Value::Null).await;
    let stopped = stop().await;
    assert_eq!((stopped.status, number(&stopped, "x-ratelimit-remaining-sandbox-lifecycle")), (200, Some(0)));
    assert!(number(&stopped, "x-ratelimit-limit-authenticated").is_none());
    assert_eq!(stop().await.status, 429);
    let unknown = server.get("/sandbox/none").await;
    assert_eq!((unknown.status, number(&unknown, "x-ratelimit-remaining-authenticated")), (404, Some(1)));
    assert_eq!(server.get("/sandbox/n").await.status, 200);
    let refused = server.get("/sandbox/n").await;
    assert!(refused.status == 429 && number(&refused, "retry-after-authenticated").is_some());
    assert_ne!(sandbox.get("/version").await.status, 429, "toolboxes are not limited");
}

#[tokio::test]
async fn who_fails_to_authenticate_too_often_is_refused_with_every_key_and_a_plain_retry_after() {
    let server = Server::bash().await;
    limit(&server, RateLimits { failed_auth: Some(2), ..RateLimits::default() }).await;
    let url = format!("{}/sandbox", server.daytona.base_url());
    let wrong = async || ask(server.http.get(&url).bearer_auth("wrong")).await;
    let first = wrong().await;
    assert_eq!((first.status, number(&first, "x-ratelimit-remaining-failed-auth")), (401, Some(1)));
    for refused in [wrong().await, server.get("/sandbox").await] {
        assert_eq!(refused.status, 429);
        assert!(number(&refused, "retry-after").is_some_and(|seconds| (1..=60).contains(&seconds)));
    }
    server.daytona.advance_clock(Duration::from_secs(61)).await.unwrap();
    assert_eq!(server.get("/sandbox").await.status, 200);
}
