//! Keys and URLs: missing, late, wrong, rotated, not allowed.

use dev::local_daytona::Settings;
use serde_json::json;

use crate::world::{KEY, Options, World, condition, lease, lease_with};

async fn secret(world: &World, key: &str) {
    let manifest = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "daytona" }, "stringData": { "api-key": key } });
    world.apply(&manifest.to_string()).await.unwrap();
}

fn stalled(lease: &serde_json::Value) {
    assert_eq!(condition(lease, "Ready")["status"], "False");
    assert_eq!(condition(lease, "Stalled")["status"], "True", "{lease:#}");
    assert_eq!(condition(lease, "Reconciling"), serde_json::Value::Null);
}

/// Fields: connection.apiKeySecretRef
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_late_wrong_or_mended_is_noticed() {
    let flags = vec!["--lease-poll=1h"];
    let world = World::start_with("secret", Options { flags, ..Options::default() }).await;
    world.delete("secret", "daytona").await;
    world.lease("l").await;
    stalled(&world.until_reason("sblease", "l", "Ready", "SecretNotFound").await);
    for bad in ["", "\n", "two words"] {
        secret(&world, bad).await;
        stalled(&world.until_reason("sblease", "l", "Ready", "SecretInvalid").await);
    }
    secret(&world, "dtn_wrong").await;
    let lease = world.until_reason("sblease", "l", "Ready", "Unauthorized").await;
    stalled(&lease);
    assert_eq!(condition(&lease, "CredentialsValid")["status"], "False");
    secret(&world, &format!("{KEY}\n")).await;
    let lease = world.until_ready("l").await;
    assert_eq!(condition(&lease, "CredentialsValid")["status"], "True");
    let shown =
        format!("{lease:#}{}{}", world.logged(), world.kubectl.get(&["get", "events", "-o", "yaml"]).await.unwrap());
    for secret in [KEY, "dtn_wrong"] {
        assert!(!shown.contains(secret), "the key is shown");
    }
}

/// Fields: connection.apiKeySecretRef
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_deletes_nothing_and_the_right_one_lets_go() {
    // With it, the key that was there before would let go.
    let flags = vec!["--credential-escrow=Disabled"];
    let world = World::start_with("rotated", Options { flags, ..Options::default() }).await;
    world.lease("l").await;
    world.until_ready("l").await;
    secret(&world, "dtn_revoked").await;
    world.until_reason("sblease", "l", "Ready", "Unauthorized").await;
    world.delete("sblease", "l").await;
    let blocked = world.until_reason("sblease", "l", "CleanupBlocked", "Unauthorized").await;
    assert!(
        condition(&blocked, "CleanupBlocked")["message"].as_str().unwrap().contains("put a valid key"),
        "{blocked:#}"
    );
    assert_eq!(world.daytona.state().await.unwrap().sandboxes.len(), 1);
    secret(&world, KEY).await;
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
}

/// Fields: connection.apiURL
#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_is_not_allowed_gets_no_call() {
    let world = World::start("url").await;
    let mut manifest: serde_json::Value = serde_json::from_str(&lease("l")).unwrap();
    manifest["spec"]["connection"]["apiURL"] = "https://daytona.example/api".into();
    world.apply(&manifest.to_string()).await.unwrap();
    let lease = world.until_reason("sblease", "l", "Ready", "URLNotAllowed").await;
    stalled(&lease);
    assert_eq!(lease["status"]["connection"], serde_json::Value::Null);
    assert_eq!(world.daytona.calls().await.unwrap().len(), 0);
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
}

/// Fields: connection.apiURL
#[tokio::test(flavor = "multi_thread")]
async fn a_url_of_the_allow_list_is_used() {
    let world = World::start("named").await;
    let mut manifest: serde_json::Value = serde_json::from_str(&lease("l")).unwrap();
    manifest["spec"]["connection"]["apiURL"] = world.daytona.base_url().into();
    world.apply(&manifest.to_string()).await.unwrap();
    let lease = world.until_ready("l").await;
    assert_eq!(lease["status"]["connection"]["apiURL"], world.daytona.base_url());
    assert!(lease["status"]["connection"]["organizationID"].is_string(), "{lease:#}");
    assert_eq!(lease["status"]["connection"]["keyFingerprint"].as_str().unwrap().len(), 32);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controllers_own_key_is_for_namespaces_that_an_admin_labelled() {
    let world = World::start_with("own", Options { own_key: Some(KEY), ..Options::default() }).await;
    let mut manifest: serde_json::Value = serde_json::from_str(&lease("l")).unwrap();
    manifest["spec"].as_object_mut().unwrap().remove("connection");
    world.apply(&manifest.to_string()).await.unwrap();
    let lease = world.until_reason("sblease", "l", "Ready", "ControllerKeyNotAllowed").await;
    stalled(&lease);
    assert_eq!(world.daytona.calls().await.unwrap().len(), 0);
    let label = "daytona-controller.dev/controller-key=allowed";
    world.kubectl.run(&["label", "namespace", &world.namespace, label]).await.unwrap();
    world.until_ready("l").await;
    world.command("c", "env").await;
    let done = world.until_finished("c").await;
    assert!(!done["status"]["stdout"]["tail"].as_str().unwrap().contains(KEY), "the key is in the sandbox");
}

/// cases.md 48: the key is rotated while a command runs, and Daytona refuses the old one.
///
/// Fields: connection.apiKeySecretRef, status.connection.keyFingerprint
#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_is_used_for_what_runs_already() {
    let world = World::start("rotate").await;
    world.lease("l").await;
    world.command("c", "echo begun >begun; while [ ! -e go ]; do sleep 0.05; done; echo went").await;
    world.eventually("it runs", async || world.path("begun").await.is_some()).await;
    let rotated = Settings { api_key: Some("dtn_the-new-key".to_owned()), ..Settings::default() };
    world.daytona.set(rotated).await.unwrap();
    secret(&world, "dtn_the-new-key").await;
    std::fs::write(world.path("begun").await.unwrap().with_file_name("go"), "").unwrap();
    let done = world.until_finished("c").await;
    assert_eq!(done["status"]["stdout"]["tail"], "went\n", "{done:#}");
    world.command("next", "echo next").await;
    assert_eq!(world.until_finished("next").await["status"]["exitCode"], 0);
    assert_eq!(world.get("sblease", "l").await["status"]["session"]["generation"], 1);
}

/// Fields: connection.organizationID, status.connection.organizationID
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_of_another_organisation_is_told_and_not_used() {
    let world = World::start("organisation").await;
    world.daytona.set(Settings { organization: Some("ours".to_owned()), ..Settings::default() }).await.unwrap();
    let asks = |organization: &str| {
        let connection = json!({ "apiKeySecretRef": { "name": "daytona" }, "organizationID": organization });
        lease_with("l", &json!({ "connection": connection }))
    };
    world.apply(&asks("theirs")).await.unwrap();
    let told = world.until_reason("sblease", "l", "Ready", "CredentialMismatch").await;
    stalled(&told);
    assert_eq!(told["status"]["connection"]["organizationID"], "ours");
    assert_eq!(world.calls("POST /toolbox/{sandbox}/process/session").await, 0, "it was used");
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert_eq!(world.daytona.state().await.unwrap().sandboxes.len(), 0);
    world.apply(&asks("ours")).await.unwrap();
    world.until_ready("l").await;
}
