//! What happens to sandboxes is told over Socket.IO.

use futures::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::support::{KEY, Server};

struct Listener(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Listener {
    async fn connect(server: &Server) -> Self {
        let url = server.daytona.base_url().replace("http://", "ws://");
        let url = format!("{url}/socket.io/?EIO=4&transport=websocket&source=test");
        let mut listener = Self(tokio_tungstenite::connect_async(url).await.unwrap().0);
        let open = listener.hear().await;
        assert!(open.starts_with("0{") && open.contains("\"pingInterval\":25000"), "{open}");
        listener
    }

    async fn present(&mut self, token: &str) -> String {
        self.0.send(Message::text(format!("40{}", json!({ "token": token })))).await.unwrap();
        self.hear().await
    }

    async fn hear(&mut self) -> String {
        self.0.next().await.unwrap().unwrap().into_text().unwrap().to_string()
    }

    /// The next event: its name and what it says.
    async fn event(&mut self) -> (String, Value) {
        let packet = self.hear().await;
        let event: Value = serde_json::from_str(packet.strip_prefix("42").unwrap()).unwrap();
        (event[0].as_str().unwrap().to_owned(), event[1].clone())
    }
}

#[tokio::test]
async fn creations_and_changes_of_state_are_told_and_nothing_of_what_was_before() {
    let server = Server::bash().await;
    server.create(json!({ "name": "before" })).await;
    let mut listener = Listener::connect(&server).await;
    assert!(listener.present(KEY).await.starts_with("40{\"sid\":"));
    let id = server.create(json!({ "name": "n" })).await.id;
    let (name, created) = listener.event().await;
    assert_eq!((name.as_str(), &created["id"]), ("sandbox.created", &json!(id)));
    assert_eq!(created["kvm"], false, "the whole object");
    server.api(Method::POST, "/sandbox/n/stop", Value::Null).await;
    let mut states = vec!["started".to_owned()];
    while states.last().unwrap() != "stopped" {
        let (name, change) = listener.event().await;
        assert_eq!((name.as_str(), &change["sandbox"]["id"]), ("sandbox.state.updated", &json!(id)));
        assert_eq!(change["oldState"], states.last().unwrap().as_str());
        states.push(change["newState"].as_str().unwrap().to_owned());
    }
    server.api(Method::DELETE, "/sandbox/n", Value::Null).await;
    while states.last().unwrap() != "destroyed" {
        states.push(listener.event().await.1["newState"].as_str().unwrap().to_owned());
    }
}

#[tokio::test]
async fn who_has_no_key_hears_nothing() {
    let server = Server::bash().await;
    let mut stranger = Listener::connect(&server).await;
    assert_eq!(stranger.present("wrong").await, "44{\"message\":\"Unauthorized\"}");
    server.create(json!({})).await;
    // The right key on the same connection is heard from, and the creation was not told.
    assert!(stranger.present(KEY).await.starts_with("40{"));
}

#[tokio::test]
async fn only_a_websocket_of_the_fourth_protocol_is_served() {
    let server = Server::bash().await;
    for (query, code) in
        [("EIO=4&transport=polling", 0), ("EIO=3&transport=websocket", 5), ("EIO=4&transport=websocket", 3)]
    {
        let answer = server.get(&format!("/socket.io/?{query}")).await;
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!(code)), "{query}");
    }
}
