//! Following a log: over a WebSocket, and as the stream that the service's runner makes of one.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::command::Command;
use super::output::{Form, Stripper, version_protocol};
use super::session::Session;
use super::toolbox::Open;

/// The most that is read, and so sent, at once.
const PIECE: usize = 1024;

/// How often the end of the log is looked beyond.
const LOOK: Duration = Duration::from_millis(20);

/// After so many looks in vain it is asked whether the command has ended.
const LOOKS: u32 = 50;

/// How long the other side may take to take its leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// When a following ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// With the command.
    TheEnd,
    /// At the first end of the log that it meets.
    AllIsRead,
    /// At this place of the log, as if it were the end.
    Place(u64),
}

/// One reader of a log that may still grow.
pub(super) struct Follower {
    session: Arc<Session>,
    command: Arc<Command>,
    /// Takes the markers out; absent is the log as it is kept.
    stripper: Option<Stripper>,
    until: Until,
    at: u64,
    in_vain: u32,
    looks: Interval,
}

impl Follower {
    pub(super) fn new(session: Arc<Session>, command: Arc<Command>, form: Form, until: Until) -> Self {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stripper = (form == Form::Stripped).then(Stripper::default);
        Self { session, command, stripper, until, at: 0, in_vain: 0, looks }
    }

    /// The next piece; none when the command ended a while ago or the session is gone. May be dropped and asked again.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let most = match self.until {
                Until::Place(place) => usize::try_from(place - self.at).unwrap_or(PIECE).min(PIECE),
                _ => PIECE,
            };
            let read = self.command.log.read_at(self.at, most)?;
            if !read.is_empty() {
                self.at += read.len() as u64;
                self.in_vain = 0;
                self.looks.reset();
                let piece = match &mut self.stripper {
                    None => read,
                    Some(stripper) => stripper.take(&read),
                };
                if piece.is_empty() {
                    continue;
                }
                return Ok(Some(piece));
            }
            if self.until != Until::TheEnd {
                return Ok(None);
            }
            if self.in_vain >= LOOKS {
                if matches!(self.command.exit_code(), Ok(Some(_))) {
                    return Ok(None);
                }
                self.in_vain = 0;
            }
            tokio::select! {
                _ = self.looks.tick() => self.in_vain += 1,
                () = self.session.gone.cancelled() => return Ok(None),
            }
        }
    }
}

/// What keeps a stream: the sandbox counts as busy while it is open, and it ends with the daemon.
pub(super) struct Bonds {
    pub(super) _open: Option<Arc<Open>>,
    pub(super) lost: CancellationToken,
}

/// The answer to a request that asks for a WebSocket.
pub(super) fn upgrade(
    asked: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    headers: &HeaderMap,
    follower: Follower,
    bonds: Bonds,
) -> Response {
    let Ok(upgrade) = asked else {
        let version = [(header::SEC_WEBSOCKET_VERSION, "13"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
        return (StatusCode::BAD_REQUEST, version, "Bad Request\n").into_response();
    };
    let upgrade = match version_protocol(headers) {
        Some(protocol) => upgrade.protocols([protocol.to_owned()]),
        None => upgrade,
    };
    upgrade.on_upgrade(move |socket| send(socket, follower, bonds))
}

async fn send(mut socket: WebSocket, mut follower: Follower, bonds: Bonds) {
    loop {
        tokio::select! {
            () = bonds.lost.cancelled() => return,
            piece = follower.next() => match piece {
                Ok(Some(piece)) => if socket.send(Message::Binary(piece.into())).await.is_err() {
                    return;
                },
                Ok(None) => break,
                Err(_) => return,
            },
            // Pings are answered by listening; what else is said is not heeded.
            heard = socket.recv() => if !matches!(heard, Some(Ok(_))) {
                return;
            },
        }
    }
    // Where the daemon died nobody takes leave.
    if bonds.lost.is_cancelled() {
        return;
    }
    let farewell = CloseFrame { code: close_code::NORMAL, reason: "".into() };
    if socket.send(Message::Close(Some(farewell))).await.is_ok() {
        let heard = async { while let Some(Ok(_)) = socket.recv().await {} };
        let _ = tokio::time::timeout(FAREWELL, heard).await;
    }
}

/// Over plain HTTP it is the runner that follows, and it passes on none of the caller's headers. It cannot tell the
/// daemon's death from the end of the log.
pub(super) fn stream(follower: Follower, bonds: Bonds) -> Response {
    let pieces = futures::stream::unfold((follower, bonds), |(mut follower, bonds)| async move {
        let piece = tokio::select! {
            () = bonds.lost.cancelled() => None,
            piece = follower.next() => piece.ok().flatten(),
        };
        piece.map(|piece| (Ok::<_, Infallible>(piece), (follower, bonds)))
    });
    ([(header::CONTENT_TYPE, "application/octet-stream")], Body::from_stream(pieces)).into_response()
}
