//! A client that we did not write: Daytona's own Python SDK lives a sandbox's whole life.

use std::path::Path;
use std::process::Command;

use dev::faults::Rule;
use dev::python;
use serde_json::json;

use super::support::Server;

/// Runs the script in one form of the SDK. What it printed is shown when it fails.
async fn live(form: &str) {
    let python = tokio::task::spawn_blocking(python::sdk).await.unwrap().unwrap_or_else(|error| panic!("{error}"));
    let server = Server::start("bash", |launch| launch.snapshots = vec!["with-tools".to_owned()]).await;
    let limited = Rule::on("GET", "/api/sandbox/limited")
        .answer(429, json!({ "statusCode": 429, "message": "ThrottlerException: Too Many Requests" }))
        .header("Retry-After-authenticated", "7");
    let limited = server.daytona.add_rule(limited).await.unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/whole_life.py");
    let here = tempfile::tempdir().unwrap();
    let mut life = Command::new(python);
    // Nothing of this machine's reaches it: no proxy, no key, no `.env`.
    life.arg("-X").arg("utf8").arg(script).arg(form).env_clear().current_dir(here.path());
    life.envs([("DAYTONA_API_URL", server.daytona.base_url()), ("DAYTONA_API_KEY", server.daytona.api_key())]);
    let output = tokio::task::spawn_blocking(move || life.output()).await.unwrap().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}{complained}", output.status);
    assert!(said.ends_with("\ndone\n"), "{said}{complained}");
    let heard = server.daytona.calls().await.unwrap();
    assert!(
        heard.iter().any(|call| call.route == "GET /api/socket.io/" && call.status == Some(101)),
        "no events heard"
    );
    assert_eq!(server.daytona.fired(limited).await.unwrap(), 1);
    assert_eq!(server.daytona.state().await.unwrap().sandboxes.len(), 0);
}

#[tokio::test]
async fn the_python_sdk_lives_a_whole_life() {
    live("sync").await;
}

#[tokio::test]
async fn the_python_sdk_lives_a_whole_life_asynchronously() {
    live("async").await;
}
