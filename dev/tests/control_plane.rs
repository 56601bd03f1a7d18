//! The control plane is a real one: versions, RBAC, and the built-in controllers that we rely on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dev::control_plane::ControlPlane;
use dev::faults::Rule;
use dev::install::{self, Release};
use dev::kubectl::{Error, Kubectl};
use dev::proxy::{At, Phase, Proxy, Upstream};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

async fn refused(kubectl: &Kubectl, call: &[&str]) -> String {
    match kubectl.run(call).await {
        Err(Error::Failed { stderr, .. }) => stderr,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// One test, since starting a control plane is what takes the time.
#[tokio::test]
async fn it_is_a_real_one() {
    let start = Instant::now();
    let plane = ControlPlane::start_temporary().await.unwrap();
    eprintln!("ready after {:?}", start.elapsed());
    let admin = plane.kubectl(None);

    let version: Value = serde_json::from_str(&admin.get(&["version", "-o", "json"]).await.unwrap()).unwrap();
    assert_eq!(version["serverVersion"]["gitVersion"], "v1.36.4");
    assert_eq!(version["clientVersion"]["gitVersion"], "v1.36.4");

    tokio::join!(
        rights_are_enforced(&plane),
        namespaces_end(&admin),
        owned_objects_are_collected(&plane),
        a_chart_gives_rights(&plane),
        a_proxy_stands_before_it(&plane)
    );

    let folder = plane.directory().to_owned();
    plane.stop().await.unwrap();
    assert!(!folder.exists(), "its files are removed");
    let left = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).find(|process| {
        let directory = std::fs::read_link(process.path().join("cwd"));
        directory.is_ok_and(|directory| directory.to_string_lossy().starts_with(&*folder.to_string_lossy()))
    });
    assert!(left.is_none(), "still running: {left:?}");
}

async fn rights_are_enforced(plane: &ControlPlane) {
    let admin = plane.kubectl(Some("rights"));
    admin.run(&["create", "namespace", "rights"]).await.unwrap();
    let user = admin.with_kubeconfig(&plane.user_kubeconfig("jane", None).unwrap());
    assert!(refused(&user, &["get", "secrets"]).await.contains("Forbidden"));
    admin.run(&["create", "rolebinding", "jane", "--clusterrole=view", "--user=jane"]).await.unwrap();
    until_allowed(&user, &["get", "configmaps"]).await;
    assert!(refused(&user, &["get", "secrets"]).await.contains("Forbidden"));

    admin.run(&["create", "serviceaccount", "robot"]).await.unwrap();
    let kubeconfig = plane.cluster().service_account_kubeconfig("rights", "robot").await.unwrap();
    let robot = admin.with_kubeconfig(&kubeconfig);
    let who = robot.get(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]).await.unwrap();
    assert_eq!(who, "system:serviceaccount:rights:robot");
    assert!(refused(&robot, &["get", "configmaps"]).await.contains("Forbidden"));
    assert!(!readable_by_others(&kubeconfig));
}

fn readable_by_others(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().unwrap().permissions().mode().trailing_zeros() < 6
}

/// The authorizer learns of a new binding, and `view` is filled by aggregation, a moment later.
async fn until_allowed(user: &Kubectl, call: &[&str]) {
    dev::wait::until(format!("{call:?} to be allowed"), Duration::from_secs(30), async || user.run(call).await.ok())
        .await
        .unwrap();
}

async fn namespaces_end(admin: &Kubectl) {
    admin.run(&["create", "namespace", "brief"]).await.unwrap();
    let inside = admin.in_namespace("brief");
    inside.run(&["create", "configmap", "inside", "--from-literal=a=b"]).await.unwrap();
    admin.run(&["delete", "namespace", "brief", "--timeout=60s"]).await.unwrap();
    assert!(refused(admin, &["get", "namespace", "brief"]).await.contains("NotFound"));
}

async fn owned_objects_are_collected(plane: &ControlPlane) {
    let admin = plane.kubectl(Some("owners"));
    admin.run(&["create", "namespace", "owners"]).await.unwrap();
    admin.run(&["create", "configmap", "owner"]).await.unwrap();
    let uid = admin.get(&["get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}"]).await.unwrap();
    let owned = format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: owned, ownerReferences: [\
         {{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}]}}}}"
    );
    assert!(admin.apply(&owned).await.unwrap().stderr.is_empty());
    admin.run(&["delete", "configmap", "owner"]).await.unwrap();
    admin.run(&["wait", "--for=delete", "configmap/owned", "--timeout=60s"]).await.unwrap();
}

const CHART: &str = r"
apiVersion: v1
kind: ServiceAccount
metadata: {name: {{ .Values.account }}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [''], resources: [configmaps], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: {{ .Values.account }}, namespace: {{ .Release.Namespace }}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: not-applied}
";

const CRD: &str = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, \
    metadata: {name: things.example.com}, spec: {group: example.com, scope: Namespaced, \
    names: {plural: things, singular: thing, kind: Thing}, versions: [{name: v1, served: true, storage: true, \
    schema: {openAPIV3Schema: {type: object}}}]}}";

async fn a_chart_gives_rights(plane: &ControlPlane) {
    plane.kubectl(None).run(&["create", "namespace", "chart"]).await.unwrap();
    let chart = plane.directory().join("chart");
    std::fs::create_dir_all(chart.join("templates")).unwrap();
    std::fs::create_dir_all(chart.join("crds")).unwrap();
    std::fs::write(chart.join("Chart.yaml"), "{apiVersion: v2, name: test, version: 0.0.0}").unwrap();
    std::fs::write(chart.join("templates/all.yaml"), CHART).unwrap();
    std::fs::write(chart.join("crds/things.yaml"), CRD).unwrap();
    install::crds(plane.cluster(), &chart.join("crds")).await.unwrap();
    plane.kubectl(Some("chart")).run(&["get", "things"]).await.unwrap();

    let values = serde_json::json!({ "account": "robot" });
    let release = Release { chart: &chart, name: "test", namespace: "chart", values };
    let kubeconfig = release.install(plane.cluster()).await.unwrap();
    let robot = plane.kubectl(Some("chart")).with_kubeconfig(&kubeconfig);
    until_allowed(&robot, &["get", "configmaps"]).await;
    assert!(refused(&robot, &["get", "secrets"]).await.contains("Forbidden"));
}

/// TLS with the cluster's own CA behind it, the caller's token passed on, watches that stream.
async fn a_proxy_stands_before_it(plane: &ControlPlane) {
    let admin = plane.kubectl(Some("proxied"));
    admin.run(&["create", "namespace", "proxied"]).await.unwrap();
    admin.run(&["create", "serviceaccount", "robot"]).await.unwrap();
    let binding = ["create", "rolebinding", "robot", "--clusterrole=edit", "--serviceaccount=proxied:robot"];
    admin.run(&binding).await.unwrap();
    let direct = plane.cluster().service_account_kubeconfig("proxied", "robot").await.unwrap();
    let direct: Value = serde_json::from_str(&std::fs::read_to_string(direct).unwrap()).unwrap();
    let server = direct.pointer("/clusters/0/cluster/server").unwrap().as_str().unwrap();
    let ca_pem = Some(std::fs::read(plane.directory().join("ca.crt")).unwrap());
    let proxy = Proxy::start(Upstream { url: server.parse().unwrap(), ca_pem }).await.unwrap();
    // kubectl sends no token to a server without TLS.
    let token = direct.pointer("/users/0/user/token").unwrap().as_str().unwrap();
    let path = "/api/v1/namespaces/proxied/configmaps";
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let ask = |method, query: &str| http.request(method, format!("{}{path}{query}", proxy.url())).bearer_auth(token);
    dev::wait::until("the binding", Duration::from_secs(30), async || {
        ask(Method::GET, "").send().await.is_ok_and(|answer| answer.status() == 200).then_some(())
    })
    .await
    .unwrap();

    let mut watch = ask(Method::GET, "?watch=true").send().await.unwrap();
    let kinds = [(1, Phase::Before, "never"), (2, Phase::During, "applied"), (3, Phase::After, "told")];
    for (nth, phase, name) in kinds {
        let killed = Arc::new(Notify::new());
        let kill = Arc::clone(&killed);
        let at = At::nth(&format!("POST {path}"), nth);
        proxy.kill_at(at, phase, move || async move { kill.notify_one() });
        let created = ask(Method::POST, "").json(&json!({ "metadata": { "name": name } })).send().await;
        let created = created.map(|answer| answer.status().as_u16()).ok();
        assert_eq!(created, (phase == Phase::After).then_some(201), "{name}");
        killed.notified().await;
        let exists = admin.run(&["get", "configmap", name]).await.is_ok();
        assert_eq!(exists, phase != Phase::Before, "{name}");
    }
    // A conflict that the apiserver never spoke of, and an object whose creation nobody was told of.
    proxy.add_rule(Rule::on("POST", path).times(1).answer(409, json!({ "kind": "Status", "code": 409 }))).unwrap();
    proxy.add_rule(Rule::on("POST", path).nth(2).after().answer(504, "")).unwrap();
    for (name, answer, exists) in [("refused", 409, false), ("untold", 504, true)] {
        let created = ask(Method::POST, "").json(&json!({ "metadata": { "name": name } })).send().await.unwrap();
        assert_eq!(created.status().as_u16(), answer);
        assert_eq!(admin.run(&["get", "configmap", name]).await.is_ok(), exists, "{name}");
    }
    assert!(proxy.rules().iter().all(|report| report.fired == 1));
    let mut seen = String::new();
    while !seen.contains("\"name\":\"told\"") {
        let piece = tokio::time::timeout(Duration::from_secs(30), watch.chunk()).await;
        seen.push_str(std::str::from_utf8(&piece.unwrap().unwrap().unwrap()).unwrap());
    }
    assert!(seen.contains("\"name\":\"applied\"") && !seen.contains("\"name\":\"never\""), "{seen}");
    assert!(proxy.calls().iter().any(|call| call.route == format!("GET {path}?watch")));
}
