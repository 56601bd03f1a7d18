//! The control plane's routes, under `/api`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, Query, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::DEFAULT_SNAPSHOT;
use super::calls::Subject;
use super::listing;
use super::problem::Problem;
use super::record::Create;
use super::service::{Interval, Service, find};

type App = State<Arc<Service>>;

pub(super) fn router(service: &Arc<Service>) -> Router {
    let guarded = Router::new()
        .route("/sandbox", post(create).get(list))
        .route("/sandbox/{key}", get(read).delete(delete))
        .route("/sandbox/{key}/start", post(start))
        .route("/sandbox/{key}/stop", post(stop))
        .route("/sandbox/{key}/archive", post(archive))
        .route("/sandbox/{key}/recover", post(recover))
        .route("/sandbox/{key}/labels", put(labels))
        .route("/sandbox/{key}/last-activity", post(last_activity))
        .route("/sandbox/{key}/toolbox-proxy-url", get(toolbox_proxy_url))
        .route("/sandbox/{key}/{setter}/{minutes}", post(interval))
        .fallback(no_route)
        .layer(middleware::from_fn_with_state(Arc::clone(service), authenticate));
    Router::new()
        .nest("/api", Router::new().route("/config", get(config)).merge(guarded))
        .fallback(dashboard)
        .with_state(Arc::clone(service))
}

/// Whether the request carries the key that is accepted now.
pub(super) fn has_key(headers: &HeaderMap, service: &Service) -> Option<bool> {
    let rotated = service.settings().api_key;
    carries(headers, rotated.as_deref().unwrap_or(&service.api_key))
}

/// Whether the request carries this key.
pub(super) fn carries(headers: &HeaderMap, key: &str) -> Option<bool> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    Some(value.strip_prefix("Bearer ") == Some(key))
}

async fn authenticate(State(service): App, request: Request, next: Next) -> Response {
    if has_key(request.headers(), &service) == Some(true) {
        return next.run(request).await;
    }
    Problem::Control(StatusCode::UNAUTHORIZED, "Invalid credentials".to_owned()).into_response()
}

async fn no_route(request: Request) -> Problem {
    let message = format!("Cannot {} {}", request.method(), request.uri().path());
    Problem::Control(StatusCode::NOT_FOUND, message)
}

/// What is not of the API is the dashboard's.
async fn dashboard() -> (StatusCode, Html<&'static str>) {
    (StatusCode::NOT_FOUND, Html("<!DOCTYPE html><title>Daytona</title>"))
}

async fn config(State(service): App) -> Json<Value> {
    Json(json!({
        "version": "local",
        "proxyToolboxUrl": service.toolbox_url(),
        "defaultSnapshot": DEFAULT_SNAPSHOT,
        "environment": "local",
    }))
}

fn body<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, Problem> {
    // No body at all is an empty one.
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| Problem::bad_request(error.to_string()))
}

async fn create(State(service): App, bytes: Bytes) -> Result<Response, Problem> {
    let (id, shown) = service.create(body::<Create>(&bytes)?)?;
    let mut response = Json(shown).into_response();
    response.extensions_mut().insert(Subject::Sandbox(id));
    Ok(response)
}

async fn list(State(service): App, RawQuery(query): RawQuery) -> Result<Json<Value>, Problem> {
    let query = listing::Query::parse(query.as_deref().unwrap_or_default())?;
    let records = service.records();
    let page = listing::page(records.values(), &query);
    let items: Vec<_> =
        page.records.iter().map(|record| record.show_in_list(&service.organization, &service.toolbox_url())).collect();
    Ok(Json(json!({ "items": items, "nextCursor": page.next })))
}

async fn read(State(service): App, Path(key): Path<String>) -> Result<Json<Value>, Problem> {
    let mut records = service.records();
    let record = find(&mut records, &key)?;
    Ok(Json(service.show(record)))
}

async fn delete(State(service): App, Path(key): Path<String>) -> Result<Json<Value>, Problem> {
    service.delete(&key).map(Json)
}

async fn start(State(service): App, Path(key): Path<String>) -> Result<Json<Value>, Problem> {
    service.start(&key).map(Json)
}

async fn stop(State(service): App, Path(key): Path<String>) -> Result<Json<Value>, Problem> {
    service.stop(&key).map(Json)
}

async fn archive(State(service): App, Path(key): Path<String>) -> Result<Json<Value>, Problem> {
    service.archive(&key).map(Json)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecoverQuery {
    #[serde(default)]
    skip_start: bool,
}

async fn recover(
    State(service): App,
    Path(key): Path<String>,
    Query(query): Query<RecoverQuery>,
) -> Result<Json<Value>, Problem> {
    service.recover(&key, query.skip_start).map(Json)
}

#[derive(Deserialize)]
struct Labels {
    labels: BTreeMap<String, Value>,
}

async fn labels(State(service): App, Path(key): Path<String>, bytes: Bytes) -> Result<Json<Value>, Problem> {
    service.set_labels(&key, body::<Labels>(&bytes)?.labels).map(Json)
}

async fn last_activity(State(service): App, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    service.touch(&id).map(|()| StatusCode::CREATED)
}

async fn toolbox_proxy_url(State(service): App, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let mut records = service.records();
    find(&mut records, &id)?;
    Ok(Json(json!({ "url": service.toolbox_url() })))
}

async fn interval(
    State(service): App,
    Path((key, setter, minutes)): Path<(String, String, String)>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let which = match setter.as_str() {
        "autostop" => Interval::Stop,
        "autoarchive" => Interval::Archive,
        "autodelete" => Interval::Delete,
        "ttl" => Interval::Ttl,
        _ => {
            return Err(Problem::Control(StatusCode::NOT_FOUND, format!("Cannot POST {setter}")));
        }
    };
    let minutes =
        minutes.parse().map_err(|_| Problem::bad_request("Validation failed (numeric string is expected)"))?;
    let shown = service.set_interval(&key, which, minutes)?;
    Ok((StatusCode::CREATED, Json(shown)))
}
