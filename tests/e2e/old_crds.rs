//! Case 65: helm has upgraded the controller and not the CRDs.

use std::process::Command;

use dev::{
    control_plane::ControlPlane,
    install::{self, Release},
    supervise::Supervised,
    wait,
};
use serde_json::{Value, json};

use crate::world::LIMIT;

/// What /readyz says, with its status.
async fn ready(address: &str) -> Option<(u16, String)> {
    let answer = reqwest::get(format!("http://{address}/readyz")).await.ok()?;
    Some((answer.status().as_u16(), answer.text().await.ok()?))
}

#[tokio::test(flavor = "multi_thread")]
async fn with_crds_of_another_version_it_is_not_ready_and_says_what_they_lack() {
    let plane = ControlPlane::start_temporary().await.unwrap();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for file in ["sandboxleases.yaml", "sandboxcommands.yaml"] {
        let text = std::fs::read_to_string(install::workspace().join("crds").join(file)).unwrap();
        let mut crd: Value = serde_saphyr::from_str(&text).unwrap();
        let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
        crd.pointer_mut(status).unwrap().as_object_mut().unwrap().remove("workspace");
        std::fs::write(directory.path().join(file), crd.to_string()).unwrap();
    }
    install::crds(plane.cluster(), directory.path()).await.unwrap();
    plane.kubectl(None).run(&["create", "namespace", "home"]).await.unwrap();
    let chart = install::workspace().join("charts/daytona-controller");
    let release = Release { chart: &chart, name: "robot", namespace: "home", values: json!({}) };
    let kubeconfig = release.install(plane.cluster()).await.unwrap();
    // Free a moment ago, and nobody else here asks for ports by number.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_daytona-controller"));
    command.args(["run", "--leader-elect", "--leader-elect-lease-name=robot-daytona-controller"]);
    command.args(["--own-namespace=home", "--health-addr", &address]).env("KUBECONFIG", &kubeconfig);
    let log = directory.path().join("controller.log");
    let _controller = Supervised::spawn(&command, &log).unwrap();

    let refused = wait::until("it says what is missing", LIMIT, async || {
        ready(&address).await.filter(|(status, text)| *status == 503 && text.contains("lacks"))
    });
    let (_, text) = refused.await.unwrap();
    assert!(text.contains("sandboxleases.daytona-controller.dev lacks status.workspace; apply the CRDs"), "{text}");
    let leases = plane.kubectl(Some("home")).get(&["get", "lease", "-o", "name"]).await.unwrap();
    assert_eq!(leases, "", "it does not take the lead from one that can work");
    install::crds(plane.cluster(), &install::workspace().join("crds")).await.unwrap();
    let is_ready = async || ready(&address).await.filter(|(status, _)| *status == 200);
    wait::until("it is ready", LIMIT, is_ready).await.unwrap();
}
