//! The control plane's routes, under `/api`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Bytes;
use axum::extract::{OriginalUri, Path, Query, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::middleware;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::calls::Subject;
use super::create::Create;
use super::guards::As;
use super::operations::Interval;
use super::problem::Problem;
use super::record::LONGEST_ARCHIVE_INTERVAL;
use super::service::Service;
use super::{DEFAULT_SNAPSHOT, events, guards, listing};
use crate::faults::Mode;

type App = State<Arc<Service>>;
type Answer = Result<Json<Value>, Problem>;

pub(super) fn router(service: &Arc<Service>) -> Router {
    let guard = || Arc::clone(service);
    let guarded = Router::new()
        .route("/sandbox", post(create).get(list))
        .route("/sandbox/{key}", get(read).delete(delete))
        .route("/sandbox/{key}/start", post(start))
        .route("/sandbox/{key}/stop", post(stop))
        .route("/sandbox/{key}/archive", post(archive))
        .route("/sandbox/{key}/pause", post(pause))
        .route("/sandbox/{key}/fork", post(fork))
        .route("/sandbox/{key}/backup", post(backup))
        .route("/sandbox/{key}/snapshot", post(snapshot))
        .route("/sandbox/{key}/recover", post(recover))
        .route("/sandbox/{key}/labels", put(labels))
        .route("/sandbox/{key}/network-settings", post(network_settings))
        .route("/sandbox/{key}/last-activity", post(last_activity))
        .route("/sandbox/{key}/toolbox-proxy-url", get(toolbox_proxy_url))
        .route("/sandbox/{key}/public/{public}", post(public))
        .route("/sandbox/{key}/{setter}/{minutes}", post(interval))
        .fallback(no_route)
        .layer(middleware::from_fn_with_state(guard(), guards::permit))
        .layer(middleware::from_fn_with_state(guard(), guards::limit))
        .layer(middleware::from_fn_with_state(guard(), guards::authenticate));
    Router::new()
        .nest("/api", Router::new().route("/config", get(config)).merge(guarded))
        // Its key comes in the first packet.
        .route("/api/socket.io/", get(events::connect))
        .fallback(dashboard)
        .with_state(Arc::clone(service))
}

async fn no_route(method: Method, OriginalUri(uri): OriginalUri) -> Problem {
    let message = format!("Cannot {method} {}", uri.path());
    Problem::Control(StatusCode::NOT_FOUND, message)
}

/// What is not of the API is the dashboard's.
async fn dashboard() -> (StatusCode, Html<&'static str>) {
    (StatusCode::NOT_FOUND, Html("<!DOCTYPE html><title>Daytona</title>"))
}

async fn config(State(service): App) -> Json<Value> {
    let limits = service.settings().rate_limits.unwrap_or_default();
    let entry = |limit: Option<u32>| limit.map(|limit| json!({ "ttl": 60, "limit": limit }));
    Json(json!({
        "version": "local",
        "oidc": { "issuer": service.origin, "clientId": "local", "audience": "local", "provider": "local" },
        "linkedAccountsEnabled": false,
        "announcements": {},
        "proxyTemplateUrl": format!("{}/preview", service.origin),
        "proxyToolboxUrl": service.toolbox_url(),
        "defaultSnapshot": DEFAULT_SNAPSHOT,
        "dashboardUrl": format!("{}/dashboard", service.origin),
        "maxAutoArchiveInterval": LONGEST_ARCHIVE_INTERVAL,
        // As the service spells it.
        "maintananceMode": false,
        "environment": "local",
        "rateLimit": {
            "failedAuth": entry(limits.failed_auth),
            "authenticated": entry(limits.authenticated),
            "sandboxCreate": entry(limits.sandbox_create),
            "sandboxLifecycle": entry(limits.sandbox_lifecycle),
        },
    }))
}

fn body<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, Problem> {
    // No body at all is an empty one.
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| Problem::bad_request(error.to_string()))
}

async fn create(State(service): App, mode: As, bytes: Bytes) -> Result<Response, Problem> {
    let (id, shown) = service.create(Create::parse(body(&bytes)?)?, mode.map(|mode| mode.0))?;
    // However that ends, what is answered is how it looked when it was made.
    service.wait_for_start(&shown).await?;
    let mut response = Json(shown).into_response();
    response.extensions_mut().insert(Subject::Sandbox(id));
    Ok(response)
}

async fn list(State(service): App, mode: As, RawQuery(query): RawQuery) -> Result<Json<Value>, Problem> {
    let mut page = service.list(&listing::Query::parse(query.as_deref().unwrap_or_default())?);
    let flaps = mode.is_some_and(|mode| mode.0 == Mode::FlappingList);
    if flaps && service.flaps.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
        page.leave_out_every_other();
    }
    Ok(Json(json!({ "items": page.items, "nextCursor": page.next })))
}

async fn read(State(service): App, Path(key): Path<String>) -> Answer {
    let mut records = service.records();
    let record = service.find(&mut records, &key)?;
    Ok(Json(service.show(record)))
}

async fn delete(State(service): App, mode: As, Path(key): Path<String>) -> Answer {
    service.delete(&key, mode.map(|mode| mode.0)).map(Json)
}

async fn start(State(service): App, mode: As, Path(key): Path<String>) -> Answer {
    let shown = service.start(&key, mode.map(|mode| mode.0))?;
    Ok(Json(service.wait_for_start(&shown).await?.unwrap_or(shown)))
}

async fn stop(State(service): App, mode: As, Path(key): Path<String>) -> Answer {
    service.stop(&key, mode.map(|mode| mode.0)).map(Json)
}

async fn archive(State(service): App, mode: As, Path(key): Path<String>) -> Answer {
    service.archive(&key, mode.map(|mode| mode.0)).map(Json)
}

async fn pause(State(service): App, Path(key): Path<String>) -> Answer {
    service.pause(&key).map(Json)
}

async fn fork(State(service): App, Path(key): Path<String>) -> Answer {
    service.fork(&key).map(Json)
}

async fn backup(State(service): App, Path(key): Path<String>) -> Result<(StatusCode, Json<Value>), Problem> {
    service.backup(&key).map(|shown| (StatusCode::CREATED, Json(shown)))
}

#[derive(Deserialize)]
struct Snapshot {
    name: String,
}

async fn snapshot(State(service): App, Path(key): Path<String>, bytes: Bytes) -> Answer {
    service.snapshot(&key, body::<Snapshot>(&bytes)?.name).map(Json)
}

async fn network_settings(State(service): App, Path(key): Path<String>, bytes: Bytes) -> Answer {
    service.set_network(&key, body(&bytes)?).map(Json)
}

async fn public(
    State(service): App,
    Path((key, public)): Path<(String, String)>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    service.set_public(&key, public == "true").map(|shown| (StatusCode::CREATED, Json(shown)))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecoverQuery {
    #[serde(default)]
    skip_start: bool,
}

async fn recover(State(service): App, Path(key): Path<String>, Query(query): Query<RecoverQuery>) -> Answer {
    service.recover(&key, query.skip_start).map(Json)
}

#[derive(Deserialize)]
struct Labels {
    labels: BTreeMap<String, Value>,
}

async fn labels(State(service): App, Path(key): Path<String>, bytes: Bytes) -> Answer {
    service.set_labels(&key, body::<Labels>(&bytes)?.labels).map(Json)
}

async fn last_activity(State(service): App, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    service.touch(&id).map(|()| StatusCode::CREATED)
}

async fn toolbox_proxy_url(State(service): App, Path(id): Path<String>) -> Answer {
    let mut records = service.records();
    service.find(&mut records, &id)?;
    Ok(Json(json!({ "url": service.toolbox_url() })))
}

async fn interval(
    State(service): App,
    uri: OriginalUri,
    Path((key, setter, minutes)): Path<(String, String, String)>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let which = match setter.as_str() {
        "autostop" => Interval::Stop,
        "autoarchive" => Interval::Archive,
        "autodelete" => Interval::Delete,
        "autopause" => Interval::Pause,
        "ttl" => Interval::Ttl,
        _ => return Err(no_route(Method::POST, uri).await),
    };
    let minutes =
        minutes.parse().map_err(|_| Problem::bad_request("Validation failed (numeric string is expected)"))?;
    let shown = service.set_interval(&key, which, minutes)?;
    Ok((StatusCode::CREATED, Json(shown)))
}
