//! The admin routes: what a test looks at and turns. They are no part of the service.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::calls::Calls;
use super::guards::carries;
use super::model::{self, Call, ForcedState, Settings};
use super::problem::Problem;
use super::service::Service;
use crate::faults::{Rule, RuleReport, Rules};

#[derive(Clone)]
struct Admin {
    service: Arc<Service>,
    calls: Arc<Calls>,
    rules: Arc<Rules>,
}

pub(super) fn router(service: &Arc<Service>, calls: &Arc<Calls>, rules: &Arc<Rules>) -> Router {
    let admin = Admin { service: Arc::clone(service), calls: Arc::clone(calls), rules: Arc::clone(rules) };
    let routes = Router::new()
        .route("/state", get(state))
        .route("/calls", get(calls_since))
        .route("/clock", post(clock))
        .route("/settings", post(settings))
        .route("/snapshots", post(add_snapshot))
        .route("/rules", get(rule_reports).post(add_rule).delete(clear_rules))
        .route("/rules/{id}", delete(remove_rule))
        .route("/sandboxes/{id}/state", post(force))
        .route("/sandboxes/{id}/lose", post(lose))
        .route("/sandboxes/{id}/restart-daemon", post(restart_daemon))
        .layer(middleware::from_fn_with_state(admin.clone(), authenticate))
        .layer(DefaultBodyLimit::disable())
        .with_state(admin);
    Router::new().nest("/admin", routes)
}

async fn authenticate(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    if carries(request.headers(), &admin.service.admin_key) == Some(true) {
        return next.run(request).await;
    }
    StatusCode::UNAUTHORIZED.into_response()
}

async fn state(State(admin): State<Admin>) -> Json<model::State> {
    Json(model::State { sandboxes: admin.service.report() })
}

#[derive(Deserialize)]
struct Since {
    #[serde(default)]
    since: u64,
}

async fn calls_since(State(admin): State<Admin>, Query(query): Query<Since>) -> Json<Vec<Call>> {
    Json(admin.calls.since(query.since))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Advance {
    advance_seconds: u64,
}

async fn clock(State(admin): State<Admin>, Json(body): Json<Advance>) -> Json<Value> {
    admin.service.clock.advance(Duration::from_secs(body.advance_seconds));
    admin.service.evaluate();
    Json(json!({ "now": admin.service.clock.now().to_string() }))
}

async fn settings(State(admin): State<Admin>, Json(body): Json<Settings>) -> Json<Settings> {
    Json(admin.service.set(&body))
}

#[derive(Deserialize)]
struct Snapshot {
    name: String,
}

async fn add_snapshot(State(admin): State<Admin>, Json(body): Json<Snapshot>) -> StatusCode {
    admin.service.add_snapshot(body.name);
    StatusCode::CREATED
}

async fn rule_reports(State(admin): State<Admin>) -> Json<Vec<RuleReport>> {
    Json(admin.rules.reports())
}

async fn add_rule(State(admin): State<Admin>, Json(rule): Json<Rule>) -> Response {
    match admin.rules.add(rule) {
        Ok(id) => (StatusCode::CREATED, Json(json!({ "id": id }))).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

async fn clear_rules(State(admin): State<Admin>) -> StatusCode {
    admin.rules.clear();
    StatusCode::NO_CONTENT
}

async fn remove_rule(State(admin): State<Admin>, Path(id): Path<u64>) -> StatusCode {
    if admin.rules.remove(id) { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND }
}

async fn force(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    Json(body): Json<ForcedState>,
) -> Result<Json<Value>, Problem> {
    admin.service.force(&id, body).await.map(Json)
}

async fn lose(State(admin): State<Admin>, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    admin.service.lose(&id).await.map(|()| StatusCode::NO_CONTENT)
}

async fn restart_daemon(State(admin): State<Admin>, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    admin.service.restart_daemon(&id).await.map(|()| StatusCode::NO_CONTENT)
}
