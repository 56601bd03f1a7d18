//! Following a log, over a WebSocket and over plain HTTP.

use std::time::{Duration, Instant};

use futures::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue, Response};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::support::{KEY, Sandbox, Server, ask, until};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

const RAW: &[(&str, &str)] = &[("X-Daytona-Split-Output", "true")];

fn logs(session: &str, command: &str) -> String {
    format!("/process/session/{session}/command/{command}/logs?follow=true")
}

async fn connect(
    sandbox: &Sandbox<'_>,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<(Socket, Response<Option<Vec<u8>>>), Error> {
    let url = format!("{}{path}", sandbox.toolbox.replace("http://", "ws://"));
    let mut request = url.into_client_request().unwrap();
    let bearer = format!("Bearer {KEY}");
    for (name, value) in [("Authorization", bearer.as_str())].iter().chain(headers) {
        let value = HeaderValue::from_str(value).unwrap();
        request.headers_mut().insert(name.parse::<HeaderName>().unwrap(), value);
    }
    tokio_tungstenite::connect_async(request).await
}

/// Listens to the end: the pieces, and the code and the reason of the close frame.
async fn listen(socket: &mut Socket) -> (Vec<Vec<u8>>, Option<(CloseCode, String)>) {
    let mut pieces = Vec::new();
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Binary(piece) => pieces.push(piece.to_vec()),
            Message::Close(frame) => return (pieces, frame.map(|frame| (frame.code, frame.reason.to_string()))),
            other => panic!("{other:?}"),
        }
    }
    (pieces, None)
}

async fn listen_for(socket: &mut Socket, wanted: &[u8]) {
    let mut heard = Vec::new();
    while !heard.windows(wanted.len()).any(|part| part == wanted) {
        heard.extend(socket.next().await.unwrap().unwrap().into_data());
    }
}

const NORMAL: Option<(CloseCode, String)> = Some((CloseCode::Normal, String::new()));

#[tokio::test]
async fn a_followed_log_is_replayed_in_small_pieces_and_closed_after_a_second() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let command = sandbox.submit("s", "seq 1 600; echo oops >&2").await;
        sandbox.finished("s", &command).await;
        let path = logs("s", &command);
        let started = Instant::now();
        let (mut socket, _) = connect(&sandbox, &path, RAW).await.unwrap();
        let (pieces, end) = listen(&mut socket).await;
        assert!(started.elapsed() >= Duration::from_secs(1), "fifty looks of twenty milliseconds");
        assert_eq!(end, NORMAL);
        assert!(pieces.iter().all(|piece| piece.len() <= 1024));
        let whole = sandbox.request(Method::GET, path.trim_end_matches("?follow=true"));
        let whole = ask(whole.header("X-Daytona-Split-Output", "true")).await;
        assert_eq!(pieces.concat(), whole.bytes);
    }
}

#[tokio::test]
async fn what_comes_is_sent_as_it_comes() {
    for server in Server::of_each_shell().await {
        let sandbox = server.sandbox().await;
        sandbox.open("s").await;
        let command = sandbox.submit("s", "mkfifo go; echo one; cat go >&2; cat go").await;
        let (mut socket, _) = connect(&sandbox, &logs("s", &command), RAW).await.unwrap();
        listen_for(&mut socket, b"\x01\x01\x01one\n").await;
        sandbox.execute("echo two >go").await;
        listen_for(&mut socket, b"\x02\x02\x02two\n").await;
        assert_eq!(sandbox.exit_code("s", &command).await, None);
        sandbox.execute("echo three >go").await;
        let (pieces, end) = listen(&mut socket).await;
        assert_eq!((pieces.concat(), end), (b"\x01\x01\x01three\n".to_vec(), NORMAL));
        assert_eq!(sandbox.exit_code("s", &command).await, Some(0));
    }
}

#[tokio::test]
async fn the_version_can_be_said_as_a_protocol_that_is_echoed() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", "echo a").await;
    let said = "X-Daytona-SDK-Version~0.226.1";
    let offered = [("Sec-WebSocket-Protocol", said)];
    let (mut socket, response) = connect(&sandbox, &logs("s", &command), &offered).await.unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], said);
    assert_eq!(listen(&mut socket).await.0.concat(), b"\x01\x01\x01a\n");
    let (mut socket, _) =
        connect(&sandbox, &logs("s", &command), &[("X-Daytona-SDK-Version", "0.226.1")]).await.unwrap();
    assert_eq!(listen(&mut socket).await.0.concat(), b"\x01\x01\x01a\n");
}

/// Both forms of it, and to the byte: without a header that asks for markers a piece that ends with one comes twice.
#[tokio::test]
async fn a_combined_follow_repeats_data() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", "seq 1 100000").await;
    sandbox.finished("s", &command).await;
    assert_eq!(sandbox.log("s", &command).await.len(), 588_895);
    let answer = sandbox.get(&logs("s", &command)).await;
    assert_eq!((answer.status, answer.bytes.len()), (200, 2_282_249));
    assert_eq!(answer.headers["content-type"], "application/octet-stream");
    assert_eq!(answer.headers["transfer-encoding"], "chunked");
    let (mut socket, _) = connect(&sandbox, &logs("s", &command), &[]).await.unwrap();
    let (pieces, end) = listen(&mut socket).await;
    assert_eq!((pieces.concat().len(), end), (2_282_249, NORMAL));
}

#[tokio::test]
async fn plain_http_follows_without_the_callers_headers() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", "mkfifo go; echo one; cat go").await;
    let request = sandbox.request(Method::GET, &logs("s", &command)).header("X-Daytona-SDK-Version", "0.226.1");
    let mut response = request.send().await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "one\n");
    sandbox.execute("echo two >go").await;
    assert_eq!(response.chunk().await.unwrap().unwrap(), "two\n");
    assert_eq!(response.chunk().await.unwrap(), None);
    for path in [logs("s", "none"), logs("none", &command)] {
        let refused = sandbox.get(&path).await;
        let message = "bad request: failed to create outgoing request: websocket: bad handshake";
        assert_eq!((refused.status, refused.json()["message"].as_str()), (400, Some(message)));
    }
}

#[tokio::test]
async fn what_is_unknown_is_refused_in_the_handshake() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    for (path, message) in
        [(logs("s", "none"), "not found: command not found"), (logs("none", "x"), "not found: session not found")]
    {
        let Err(Error::Http(response)) = connect(&sandbox, &path, RAW).await else { panic!("{path} was opened") };
        let body: Value = serde_json::from_slice(response.body().as_deref().unwrap_or_default()).unwrap();
        assert_eq!((response.status().as_u16(), &body["message"]), (404, &json!(message)));
    }
    let command = sandbox.submit("s", "true").await;
    let request = sandbox.request(Method::GET, &logs("s", &command)).header("Upgrade", "websocket");
    assert_eq!(ask(request).await.status, 400, "no handshake");
}

#[tokio::test]
async fn the_log_of_a_dead_shell_is_never_closed() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let fatal = sandbox.submit("s", "echo said; exit 3").await;
    until("the shell is dead", async || sandbox.submission("s", "true").await.status == 500).await;
    let (mut socket, _) = connect(&sandbox, &logs("s", &fatal), RAW).await.unwrap();
    listen_for(&mut socket, b"said\n").await;
    let end = tokio::time::timeout(Duration::from_millis(2500), socket.next()).await;
    assert!(end.is_err(), "{end:?}");
    socket.send(Message::Ping("still there".into())).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::Pong("still there".into()));
}

#[tokio::test]
async fn a_deleted_session_closes_what_follows_it() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", "echo up; sleep 1000").await;
    let (mut socket, _) = connect(&sandbox, &logs("s", &command), RAW).await.unwrap();
    listen_for(&mut socket, b"up\n").await;
    let started = Instant::now();
    let ((_, end), closed) = tokio::join!(listen(&mut socket), sandbox.close("s"));
    assert!(started.elapsed() >= Duration::from_millis(100));
    assert_eq!((end, closed.status), (NORMAL, 204));
}

#[tokio::test]
async fn the_daemons_death_takes_no_leave() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", "echo up; sleep 1000").await;
    let (mut socket, _) = connect(&sandbox, &logs("s", &command), RAW).await.unwrap();
    listen_for(&mut socket, b"up\n").await;
    let mut plain = sandbox.request(Method::GET, &logs("s", &command)).send().await.unwrap();
    assert_eq!(plain.chunk().await.unwrap().unwrap(), "up\n");
    server.daytona.restart_daemon(&sandbox.id).await.unwrap();
    assert_eq!(listen(&mut socket).await, (Vec::new(), None));
    assert_eq!(plain.chunk().await.unwrap(), None, "the runner ends its stream as if all had come");
}

#[tokio::test]
async fn an_open_follow_keeps_the_sandbox_awake() {
    let server = Server::bash().await;
    let sandbox = server.create(json!({ "autoStopInterval": 15 })).await;
    sandbox.open("s").await;
    let command = sandbox.submit("s", "echo up; sleep 1000").await;
    let (mut socket, _) = connect(&sandbox, &logs("s", &command), RAW).await.unwrap();
    listen_for(&mut socket, b"up\n").await;
    for _ in 0..4 {
        server.daytona.advance_clock(Duration::from_mins(10)).await.unwrap();
    }
    assert_eq!(sandbox.report().await.unwrap().state, "started");
    drop(socket);
    until("it falls asleep", async || {
        server.daytona.advance_clock(Duration::from_mins(10)).await.unwrap();
        sandbox.report().await.unwrap().state == "stopped"
    })
    .await;
}
