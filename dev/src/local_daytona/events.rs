//! What happens to sandboxes, told over Socket.IO to whoever of their organisation listens: at most once, and nothing
//! of what was before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use uuid::Uuid;

use super::lock;
use super::record::Record;
use super::service::Service;

/// How often the other side is asked whether it lives, and how long it may think.
const PING_INTERVAL: Duration = Duration::from_secs(25);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// So many events may wait for a slow listener; what is beyond is lost to it.
const WAITING: usize = 256;

/// Packets of Engine.IO (the first digit) and, within a message, of Socket.IO (the second).
const OPEN: &str = "0";
const CLOSE: &str = "1";
const PING: &str = "2";
const CONNECT: &str = "40";
const DISCONNECT: &str = "41";
const EVENT: &str = "42";
const REFUSED: &str = "44";

/// One thing that happened.
#[derive(Debug, Clone)]
struct Event {
    organization: String,
    packet: String,
}

/// Who listens, and what they were told last: the state of each sandbox that is known.
#[derive(Debug)]
pub(super) struct Events {
    sender: broadcast::Sender<Event>,
    told: Mutex<Option<BTreeMap<String, String>>>,
}

impl Default for Events {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(WAITING), told: Mutex::default() }
    }
}

impl Events {
    /// Tells what has changed since the last look. The first look after nobody listened tells nothing.
    pub(super) fn tell<'a>(&self, records: impl Iterator<Item = &'a Record>, toolbox: &str) {
        let mut told = lock(&self.told);
        if self.sender.receiver_count() == 0 {
            *told = None;
            return;
        }
        let records: Vec<_> = records.collect();
        let now = records.iter().map(|record| (record.id.clone(), record.shown_state().to_owned())).collect();
        let Some(before) = told.replace(now) else {
            return;
        };
        for record in records {
            let (old, new) = (before.get(&record.id), record.shown_state());
            let sandbox = || record.show(toolbox);
            let (name, what) = match old {
                None => ("sandbox.created", sandbox()),
                Some(old) if old != new => {
                    ("sandbox.state.updated", json!({ "sandbox": sandbox(), "oldState": old, "newState": new }))
                }
                Some(_) => continue,
            };
            let packet = format!("{EVENT}{}", json!([name, what]));
            // Nobody hears it any more: then it is not told.
            let _ = self.sender.send(Event { organization: record.organization.clone(), packet });
        }
    }
}

/// What an Engine.IO client says of itself.
#[derive(Deserialize)]
pub(super) struct Asked {
    #[serde(rename = "EIO")]
    protocol: Option<String>,
    transport: Option<String>,
}

pub(super) async fn connect(
    State(service): State<Arc<Service>>,
    Query(asked): Query<Asked>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let refuse = |code: u8, message: &str| {
        (StatusCode::BAD_REQUEST, Json(json!({ "code": code, "message": message }))).into_response()
    };
    match upgrade {
        _ if asked.transport.as_deref() != Some("websocket") => refuse(0, "Transport unknown"),
        _ if asked.protocol.as_deref() != Some("4") => refuse(5, "Unsupported protocol version"),
        Err(_) => refuse(3, "Bad request"),
        Ok(upgrade) => upgrade.on_upgrade(async move |mut socket| {
            let _ = serve(&service, &mut socket).await;
        }),
    }
}

/// Until either side ends it.
async fn serve(service: &Service, socket: &mut WebSocket) -> Result<(), axum::Error> {
    let open = json!({
        "sid": Uuid::new_v4().to_string(), "upgrades": [], "maxPayload": 1_000_000,
        "pingInterval": PING_INTERVAL.as_millis(), "pingTimeout": PING_TIMEOUT.as_millis(),
    });
    say(socket, format!("{OPEN}{open}")).await?;
    let mut events = None;
    let mut pings = tokio::time::interval_at(tokio::time::Instant::now() + PING_INTERVAL, PING_INTERVAL);
    let mut heard_at = tokio::time::Instant::now();
    loop {
        tokio::select! {
            heard = socket.recv() => {
                heard_at = tokio::time::Instant::now();
                match heard.transpose()? {
                    Some(Message::Text(text)) if text.starts_with(CONNECT) => {
                        events = admit(service, socket, text.get(CONNECT.len()..).unwrap_or_default()).await?;
                    }
                    Some(Message::Text(text)) if [CLOSE, DISCONNECT].contains(&text.as_str()) => return Ok(()),
                    Some(Message::Close(_)) | None => return Ok(()),
                    Some(_) => {}
                }
            }
            event = next(&mut events) => if event.organization == service.organization() {
                say(socket, event.packet).await?;
            },
            _ = pings.tick() => {
                if heard_at.elapsed() > PING_INTERVAL + PING_TIMEOUT {
                    return Ok(());
                }
                say(socket, PING.to_owned()).await?;
            }
        }
    }
}

/// Who has the key hears what happens from now on.
async fn admit(
    service: &Service,
    socket: &mut WebSocket,
    auth: &str,
) -> Result<Option<broadcast::Receiver<Event>>, axum::Error> {
    let auth: Value = serde_json::from_str(auth).unwrap_or_default();
    if auth.get("token").and_then(Value::as_str) != Some(service.key().as_str()) {
        say(socket, format!("{REFUSED}{}", json!({ "message": "Unauthorized" }))).await?;
        return Ok(None);
    }
    let events = service.events.sender.subscribe();
    // From what is now, before the caller can know that it listens.
    service.events.tell(service.records().values(), &service.toolbox_url());
    say(socket, format!("{CONNECT}{}", json!({ "sid": Uuid::new_v4().to_string() }))).await?;
    Ok(Some(events))
}

/// The next event; never one for who was not admitted. What came too fast is left out.
async fn next(events: &mut Option<broadcast::Receiver<Event>>) -> Event {
    if let Some(events) = events {
        loop {
            match events.recv().await {
                Ok(event) => return event,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => break,
            }
        }
    }
    std::future::pending().await
}

async fn say(socket: &mut WebSocket, packet: String) -> Result<(), axum::Error> {
    socket.send(Message::Text(packet.into())).await
}
