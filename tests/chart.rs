//! The chart, as helm renders it. That an apiserver accepts what is rendered is shown in `tests/e2e`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is tests"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use dev::binaries::{Tool, ensure};
use serde_json::{Value, json};

/// Each verb that the controller may use, and by what it is used. A verb that is not in the code is
/// a right that an intruder has and nobody needs.
const RIGHTS: [(&str, &str, &str, &str); 22] = [
    (
        "daytona-controller.dev",
        "sandboxleases",
        "get",
        "src/controller/lease.rs: a live look before a sandbox is created",
    ),
    ("daytona-controller.dev", "sandboxleases", "list", "src/controller/watches.rs"),
    ("daytona-controller.dev", "sandboxleases", "watch", "src/controller/watches.rs"),
    ("daytona-controller.dev", "sandboxleases", "patch", "src/cluster/finalizer.rs: metadata.finalizers"),
    ("daytona-controller.dev", "sandboxleases/status", "patch", "src/cluster/status.rs: server-side apply"),
    (
        "daytona-controller.dev",
        "sandboxcommands",
        "get",
        "src/controller/command.rs: a live look at a finished one, whose outputs are not kept",
    ),
    ("daytona-controller.dev", "sandboxcommands", "list", "src/controller/watches.rs"),
    ("daytona-controller.dev", "sandboxcommands", "watch", "src/controller/watches.rs"),
    ("daytona-controller.dev", "sandboxcommands", "patch", "src/cluster/finalizer.rs: metadata.finalizers"),
    ("daytona-controller.dev", "sandboxcommands/status", "patch", "src/cluster/status.rs: server-side apply"),
    ("", "configmaps", "create", "src/cluster/logs.rs"),
    ("", "configmaps", "get", "src/cluster/refs.rs: what a command names"),
    ("", "configmaps", "list", "src/controller/watches.rs: metadata, to see a changed one"),
    ("", "configmaps", "watch", "src/controller/watches.rs: metadata, to see a changed one"),
    ("", "secrets", "create", "src/cluster/logs.rs"),
    ("", "secrets", "get", "src/cluster/refs.rs: what a lease or a command names"),
    ("", "secrets", "list", "src/controller/watches.rs: metadata, to see a changed key"),
    ("", "secrets", "watch", "src/controller/watches.rs: metadata, to see a changed key"),
    ("events.k8s.io", "events", "create", "src/cluster/events.rs"),
    ("events.k8s.io", "events", "patch", "src/cluster/events.rs: a repeat counts up"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "get", "src/cluster/crds.rs: whether they fit"),
    ("", "namespaces", "get", "src/cluster/refs.rs: the label that allows the controller's own key"),
];

/// The same in the controller's own namespace; whether of one object by its name.
const OWN_RIGHTS: [(&str, &str, &str, &str, bool); 8] = [
    ("coordination.k8s.io", "leases", "get", "src/leader.rs", true),
    ("coordination.k8s.io", "leases", "list", "src/leader.rs: of one by its name, to watch it", true),
    ("coordination.k8s.io", "leases", "watch", "src/leader.rs: to hear that the leader has left", true),
    ("coordination.k8s.io", "leases", "update", "src/leader.rs: with the resourceVersion that was seen", true),
    ("coordination.k8s.io", "leases", "create", "src/leader.rs", false),
    ("", "secrets", "list", "src/cluster/escrow.rs", false),
    ("", "secrets", "create", "src/cluster/escrow.rs", false),
    ("", "secrets", "delete", "src/cluster/escrow.rs: a copy that no lease needs any more", false),
];

const NAMESPACE: &str = "system";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs helm on the chart, with nothing of the reader's own helm read or written.
fn helm(arguments: &[&str], values: &Value) -> Output {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let mut command = Command::new(helm_binary());
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.path());
    }
    let command = command.current_dir(root()).args(arguments);
    command.arg("--values").arg(file).output().unwrap()
}

fn helm_binary() -> PathBuf {
    ensure(Tool::Helm).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn template(values: &Value) -> Output {
    let call = ["template", "robot", "charts/daytona-controller", "--namespace", NAMESPACE];
    helm(&call, values)
}

fn render(values: &Value) -> Vec<Value> {
    let output = template(values);
    assert!(output.status.success(), "{values}: {}", stderr(&output));
    serde_saphyr::from_multiple(std::str::from_utf8(&output.stdout).unwrap()).unwrap()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|o| text(o, "/kind") == kind).collect()
}

fn strings(value: &Value) -> Vec<&str> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).collect()
}

/// All values at once, each other than its default.
fn everything() -> Value {
    json!({
        "replicas": 3,
        "watchNamespaces": ["blue", "123"],
        "daytonaApiUrl": "https://daytona.example/api=https://proxy.daytona.example",
        "allowApiUrls": ["https://other.example/api", "http://127.0.0.1:3000/api=http://127.0.0.1:4000,http://127.0.0.1:4001"],
        "credential": { "existingSecret": { "name": "daytona", "key": "token" } },
        "controllerKeyFor": "All",
        "credentialEscrow": "Disabled",
        "logBudgetPerNamespace": "1Gi",
        "extraArgs": ["--log-json", "--lease-poll=30s"],
        "image": { "repository": "images.example/daytona-controller", "tag": "1.2.3", "pullPolicy": "Always" },
        "imagePullSecrets": ["pull"],
        "serviceAccount": { "name": "someone", "annotations": { "example.com/role": "leases" } },
        "resources": { "limits": { "memory": "1Gi" } },
        "fullnameOverride": "sandboxes",
    })
}

/// Which account may do what, by the namespace of the binding (none: everywhere). Panics if a binding leads nowhere.
fn granted(objects: &[Value]) -> BTreeMap<Option<String>, Rights> {
    let account = of_kind(objects, "ServiceAccount")[0];
    let mut granted = BTreeMap::<_, BTreeSet<_>>::new();
    for (binding, role) in [("RoleBinding", "Role"), ("ClusterRoleBinding", "ClusterRole")] {
        for binding in of_kind(objects, binding) {
            let [subject] = binding["subjects"].as_array().unwrap().as_slice() else { panic!("{binding}") };
            assert_eq!(subject["kind"], "ServiceAccount");
            assert_eq!(subject["name"], account["metadata"]["name"]);
            assert_eq!(subject["namespace"], account["metadata"]["namespace"]);
            assert_eq!(binding["roleRef"]["kind"], role);
            let found = of_kind(objects, role).into_iter().find(|r| {
                r["metadata"]["name"] == binding["roleRef"]["name"]
                    && r["metadata"]["namespace"] == binding["metadata"]["namespace"]
            });
            let rules = found.expect("a binding has its role")["rules"].as_array().unwrap();
            let namespace = binding.pointer("/metadata/namespace").and_then(Value::as_str);
            let rights = granted.entry(namespace.map(str::to_owned)).or_default();
            for rule in rules {
                let keys = rule.as_object().unwrap().keys().map(String::as_str);
                let keys: BTreeSet<_> = keys.filter(|key| *key != "resourceNames").collect();
                assert_eq!(keys, BTreeSet::from(["apiGroups", "resources", "verbs"]));
                let named = rule.get("resourceNames").is_some();
                let own = namespace == Some(NAMESPACE) && named;
                assert!(own || named == (strings(&rule["resources"]) == ["customresourcedefinitions"]), "{rule}");
                for group in strings(&rule["apiGroups"]) {
                    for resource in strings(&rule["resources"]) {
                        for verb in strings(&rule["verbs"]) {
                            let by_name =
                                OWN_RIGHTS.iter().any(|r| (r.0, r.1, r.2, r.4) == (group, resource, verb, true));
                            assert!(!own || by_name, "{rule}");
                            rights.insert((group.to_owned(), resource.to_owned(), verb.to_owned()));
                        }
                    }
                }
            }
        }
    }
    granted
}

/// What it may do in its own namespace.
fn own_rights() -> (Option<String>, Rights) {
    let rights = OWN_RIGHTS.iter().map(|r| (r.0.to_owned(), r.1.to_owned(), r.2.to_owned()));
    (Some(NAMESPACE.to_owned()), rights.collect())
}

/// The table's rights: those in watched namespaces alone, or those that are needed everywhere. On its own kinds the
/// controller needs rights that outlive a namespace's Roles: a deleted namespace waits for its finalizers.
fn rights(in_namespaces: bool) -> Rights {
    let in_them = |resource: &str| ["secrets", "configmaps", "events"].contains(&resource);
    of_rows(RIGHTS.iter().filter(|(_, resource, ..)| in_them(resource) == in_namespaces))
}

/// Group, resource and verb.
type Rights = BTreeSet<(String, String, String)>;

fn of_rows<'a>(rows: impl Iterator<Item = &'a (&'a str, &'a str, &'a str, &'a str)>) -> Rights {
    rows.map(|(group, resource, verb, _)| ((*group).to_owned(), (*resource).to_owned(), (*verb).to_owned())).collect()
}

#[test]
fn helm_finds_nothing_to_complain_about() {
    for values in [json!({}), everything()] {
        let output = helm(&["lint", "--strict", "charts/daytona-controller"], &values);
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{report}{}", stderr(&output));
        assert!(!report.contains("WARNING"), "{report}");
    }
}

#[test]
fn the_table_of_rights_names_code_that_exists() {
    for used_by in RIGHTS.iter().map(|r| r.3).chain(OWN_RIGHTS.iter().map(|r| r.3)) {
        let file = used_by.split(':').next().unwrap();
        assert!(root().join(file).is_file(), "{file}");
    }
}

#[test]
fn watching_everything_needs_exactly_the_table_of_rights_everywhere() {
    let all: BTreeSet<_> = rights(true).union(&rights(false)).cloned().collect();
    assert_eq!(granted(&render(&json!({}))), BTreeMap::from([(None, all.clone()), own_rights()]));
    let (own, mut rights) = own_rights();
    rights.retain(|(_, resource, _)| resource != "secrets");
    let without = granted(&render(&json!({ "credentialEscrow": "Disabled" })));
    assert_eq!(without, BTreeMap::from([(None, all), (own, rights)]));
}

#[test]
fn watching_some_namespaces_gives_no_secret_of_another() {
    let granted = granted(&render(&json!({ "watchNamespaces": ["blue", "green"] })));
    let in_each = ["blue", "green"].map(|namespace| (Some(namespace.to_owned()), rights(true)));
    let expected: BTreeMap<_, _> = [(None, rights(false)), own_rights()].into_iter().chain(in_each).collect();
    assert_eq!(granted, expected);
}

#[test]
fn people_get_their_rights_by_the_roles_they_have() {
    let objects = render(&json!({}));
    let label = |role: &Value, to: &str| {
        role["metadata"]["labels"][format!("rbac.authorization.k8s.io/aggregate-to-{to}")] == "true"
    };
    let verbs = |to: &str| {
        let aggregated: Vec<_> = of_kind(&objects, "ClusterRole").into_iter().filter(|r| label(r, to)).collect();
        let [role] = aggregated.as_slice() else { panic!("{to}: {aggregated:?}") };
        let [only] = role["rules"].as_array().unwrap().as_slice() else { panic!("{role}") };
        assert_eq!(strings(&only["apiGroups"]), ["daytona-controller.dev"]);
        // Never status: it is the controller's word, and an editor must not be able to forge an outcome.
        assert_eq!(strings(&only["resources"]), ["sandboxleases", "sandboxcommands"]);
        strings(&only["verbs"]).join(" ")
    };
    assert_eq!(verbs("view"), "get list watch");
    assert_eq!(verbs("edit"), "get list watch create update patch delete deletecollection");
    assert_eq!(verbs("admin"), verbs("edit"));
}

#[test]
fn the_pod_may_do_little_and_another_stands_by() {
    for (values, replicas) in [(json!({}), 2), (everything(), 3)] {
        let objects = render(&values);
        let deployment = of_kind(&objects, "Deployment")[0];
        let spec = &deployment["spec"];
        assert_eq!(spec["replicas"], replicas);
        let pod = &spec["template"]["spec"];
        assert_eq!(pod["terminationGracePeriodSeconds"], 30);
        let expected = json!({
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": { "type": "RuntimeDefault" },
        });
        assert_eq!(pod["securityContext"], expected);
        let container = &pod["containers"][0];
        let expected = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
        });
        assert_eq!(container["securityContext"], expected);
        assert_eq!(container["ports"][0]["containerPort"], 8080);
        for (probe, path) in [("readinessProbe", "/readyz"), ("livenessProbe", "/livez")] {
            assert_eq!(container[probe]["httpGet"], json!({ "path": path, "port": "health" }));
        }
        let labels = &spec["template"]["metadata"]["labels"];
        for (key, value) in spec["selector"]["matchLabels"].as_object().unwrap() {
            assert_eq!(&labels[key], value);
        }
        let account = of_kind(&objects, "ServiceAccount")[0];
        assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
    }
}

/// The binary itself reads the arguments: a flag that it does not know must not reach a cluster.
#[test]
fn the_binary_understands_the_arguments() {
    for values in [json!({}), everything()] {
        let objects = render(&values);
        let container = &of_kind(&objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
        let output = Command::new(env!("CARGO_BIN_EXE_daytona-controller"))
            .args(strings(&container["args"]))
            .env("KUBECONFIG", "/dev/null/none")
            .env_remove("DAYTONA_API_URL")
            .output()
            .unwrap();
        // Arguments are read before the cluster is looked for.
        let said = stderr(&output);
        assert!(said.contains("no Kubernetes API is configured"), "{values}: {said}");
    }
}

#[test]
fn values_become_flags_and_environment() {
    let container = |values: &Value| {
        let objects = render(values);
        of_kind(&objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0].clone()
    };
    let bare = container(&json!({}));
    let expected = [
        "run",
        "--health-addr=0.0.0.0:8080",
        "--leader-elect",
        "--leader-elect-lease-name=robot-daytona-controller",
        "--controller-key-for=Labelled",
        "--credential-escrow=Enabled",
        "--log-budget-per-namespace=64Mi",
    ];
    assert_eq!(strings(&bare["args"]), expected);
    assert_eq!(bare["image"], format!("daytona-controller:{}", env!("CARGO_PKG_VERSION")));
    let own = json!({ "name": "POD_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } });
    assert_eq!(bare["env"], json!([own]));

    let full = container(&everything());
    let expected = [
        "run",
        "--health-addr=0.0.0.0:8080",
        "--leader-elect",
        "--leader-elect-lease-name=sandboxes",
        "--controller-key-for=All",
        "--credential-escrow=Disabled",
        "--daytona-api-url=https://daytona.example/api=https://proxy.daytona.example",
        "--allow-api-url=https://other.example/api",
        "--allow-api-url=http://127.0.0.1:3000/api=http://127.0.0.1:4000,http://127.0.0.1:4001",
        "--watch-namespace=blue",
        "--watch-namespace=123",
        "--log-budget-per-namespace=1Gi",
        "--log-json",
        "--lease-poll=30s",
    ];
    assert_eq!(strings(&full["args"]), expected);
    assert_eq!(full["image"], "images.example/daytona-controller:1.2.3");
    let key = json!({
        "name": "DAYTONA_API_KEY", "valueFrom": { "secretKeyRef": { "name": "daytona", "key": "token" } },
    });
    assert_eq!(full["env"], json!([own, key]));
}

#[test]
fn a_wrong_value_is_refused_by_name() {
    let wrong = [
        (json!({ "watchNamespace": "blue" }), "watchNamespace"),
        (json!({ "watchNamespaces": "blue" }), "watchNamespaces"),
        (json!({ "watchNamespaces": ["Blue"] }), "watchNamespaces"),
        (json!({ "watchNamespaces": ["blue", "blue"] }), "watchNamespaces"),
        (json!({ "daytonaApiUrl": "app.daytona.io" }), "daytonaApiUrl"),
        (json!({ "allowApiUrls": ["ftp://daytona.example"] }), "allowApiUrls"),
        (json!({ "controllerKeyFor": "Everybody" }), "controllerKeyFor"),
        (json!({ "credentialEscrow": true }), "credentialEscrow"),
        (json!({ "logBudgetPerNamespace": "64MB" }), "logBudgetPerNamespace"),
        // A key itself does not belong into values, which end up in release Secrets and repositories.
        (json!({ "credential": { "apiKey": "dtn_123" } }), "credential"),
        (json!({ "credential": { "existingSecret": { "key": "" } } }), "credential"),
        (json!({ "extraArgs": [""] }), "extraArgs"),
        (json!({ "replicas": 0 }), "replicas"),
        (json!({ "image": { "pullPolicy": "Sometimes" } }), "image"),
    ];
    for (values, named) in wrong {
        let output = template(&values);
        assert!(!output.status.success(), "{values} is accepted");
        assert!(stderr(&output).contains(named), "{values}: {}", stderr(&output));
    }
}

#[test]
fn two_releases_of_one_name_share_nothing_outside_their_namespaces() {
    let names = |namespace: &str| {
        let call = ["template", "robot", "charts/daytona-controller", "--namespace", namespace];
        let output = helm(&call, &json!({}));
        let objects: Vec<Value> = serde_saphyr::from_multiple(std::str::from_utf8(&output.stdout).unwrap()).unwrap();
        let outside = objects.iter().filter(|o| text(o, "/metadata/namespace").is_empty());
        outside.map(|o| (text(o, "/kind").to_owned(), text(o, "/metadata/name").to_owned())).collect::<BTreeSet<_>>()
    };
    let (one, other) = (names("one"), names("other"));
    assert_eq!(one.len(), 4);
    assert!(one.is_disjoint(&other), "{one:?} {other:?}");
}

#[test]
fn versions_are_told_once() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let chart: Value = serde_saphyr::from_str(&read("charts/daytona-controller/Chart.yaml")).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let toolchain = read("rust-toolchain.toml");
    let rust = toolchain.lines().find_map(|l| l.strip_prefix("channel = ")).unwrap().trim_matches('"');
    let dockerfile = read("Dockerfile");
    assert!(dockerfile.contains(&format!("FROM rust:{rust}-")));
    assert!(dockerfile.contains(&format!("RUSTUP_TOOLCHAIN={rust}\n")));
}

/// Case 50: helm leaves what is in `crds/` when it uninstalls, and with them all leases, so that a controller that is
/// installed again can let go of their sandboxes.
#[test]
fn an_uninstall_leaves_the_crds_and_says_what_to_do_before() {
    assert!(of_kind(&render(&json!({})), "CustomResourceDefinition").is_empty());
    let shipped = std::fs::read_dir(root().join("charts/daytona-controller/crds")).unwrap().count();
    assert_eq!(shipped, 2);
    for told in ["README.md", "charts/daytona-controller/templates/NOTES.txt"] {
        let text = std::fs::read_to_string(root().join(told)).unwrap();
        assert!(text.contains("kubectl delete sandboxcommands,sandboxleases --all"), "{told}");
    }
}
