//! What the apiserver itself refuses and accepts: every rule of the schema, tried by `kubectl apply`.

use std::sync::atomic::{AtomicU32, Ordering};

use dev::kubectl::Kubectl;
use serde_json::{Value, json};

use crate::world::{PLANE, command, lease};

pub(crate) async fn namespace(name: &str) -> Kubectl {
    let kubectl = PLANE.kubectl(Some(name));
    kubectl.run(&["create", "namespace", name]).await.unwrap();
    kubectl
}

pub(crate) async fn apply(kubectl: &Kubectl, manifest: &Value) -> Result<String, String> {
    let applied = kubectl.run_with_input(&["apply", "-f", "-"], &manifest.to_string()).await;
    applied.map(|o| o.stderr).map_err(|e| e.to_string())
}

pub(crate) fn with(manifest: &str, name: &str, pointer: &str, value: Value) -> Value {
    let mut manifest: Value = serde_json::from_str(manifest).unwrap();
    manifest["metadata"]["name"] = name.into();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = manifest.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}"));
    if value.is_null() {
        parent.as_object_mut().unwrap().remove(key);
    } else {
        parent[key] = value;
    }
    manifest
}

static CASES: AtomicU32 = AtomicU32::new(0);

/// What is set where, and a part of the refusal (nothing: it is accepted).
pub(crate) type Case = (&'static str, Value, Option<&'static str>);

pub(crate) async fn try_all(kubectl: &Kubectl, manifest: &str, cases: Vec<Case>) {
    for (pointer, value, refusal) in cases {
        let number = CASES.fetch_add(1, Ordering::Relaxed);
        let manifest = with(manifest, &format!("case-{number}"), pointer, value.clone());
        let shown: String = value.to_string().chars().take(80).collect();
        match (apply(kubectl, &manifest).await, refusal) {
            (Ok(warnings), None) => assert_eq!(warnings, "", "{pointer}: {shown}"),
            (Err(error), Some(part)) => assert!(error.contains(part), "{pointer}: {shown}: {error}"),
            (Ok(_), Some(_)) => panic!("{pointer}: {shown}: accepted"),
            (Err(error), None) => panic!("{pointer}: {shown}: {error}"),
        }
    }
}

/// Case 54.
#[allow(clippy::too_many_lines, reason = "a table")]
#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_refused_where_it_can_be_seen_to_be_wrong() {
    let kubectl = namespace("schema-commands").await;
    let (script, timeout, name) = ("/spec/script", "/spec/timeoutSeconds", "/spec/leaseRef/name");
    let longest = "\"\\\n'".repeat(16_384);
    let cases: Vec<Case> = vec![
        ("/spec", Value::Null, Some("spec: Required value")),
        (script, Value::Null, Some("set exactly one of script, scriptFrom and command")),
        (script, json!(""), Some("should be at least 1 chars long")),
        (script, json!("a\u{0}b"), Some("a script cannot contain NUL")),
        (script, json!("x".repeat(65_536)), None),
        // kubectl repeats the manifest in an annotation, escaped; even so it has to fit.
        (script, json!(longest), None),
        (script, json!("x".repeat(65_537)), Some("may not be more than 65536")),
        (script, json!("😀".repeat(24_576)), None),
        (script, json!("😀".repeat(24_577)), Some("at most 98304 bytes")),
        (script, json!("ü".repeat(49_153)), Some("at most 98304 bytes")),
        (timeout, json!(1), None),
        (timeout, json!(604_800), None),
        (timeout, json!(0), Some("should be greater than or equal to 1")),
        (timeout, json!(604_801), Some("should be less than or equal to 604800")),
        (timeout, json!(1.5), Some("must be of type integer")),
        (name, Value::Null, Some("leaseRef.name: Required value")),
        (name, json!("UPPER"), Some("should match")),
        (name, json!("../x"), Some("should match")),
        (name, json!("x".repeat(254)), Some("may not be more than 253")),
        ("/spec/leaseRef", Value::Null, Some("spec.leaseRef: Required value")),
        ("/spec/surprise", json!(1), Some("unknown field \"spec.surprise\"")),
    ];
    try_all(&kubectl, &command("x", "l", "true"), cases).await;
}

#[allow(clippy::too_many_lines, reason = "a table")]
#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_runs_with_is_refused_where_it_can_be_seen_to_be_wrong() {
    let kubectl = namespace("schema-inputs").await;
    let key = || json!({ "name": "s", "key": "k" });
    let env = |name: &str| json!([{ "name": name, "value": "v" }]);
    let cases: Vec<Case> = vec![
        ("/spec/command", json!(["true"]), Some("set exactly one of script, scriptFrom and command")),
        ("/spec/scriptFrom", json!({ "configMapKeyRef": key() }), Some("set exactly one of script")),
        ("/spec/shell", json!(["python3", "-u"]), None),
        ("/spec/shell", json!([]), Some("should have at least 1 items")),
        ("/spec/shell", json!([""]), Some("the program cannot be empty")),
        ("/spec/shellState", json!("Persist"), None),
        ("/spec/shellState", json!("Shared"), Some("Unsupported value: \"Shared\"")),
        ("/spec/workingDir", json!("/srv/app"), None),
        ("/spec/workingDir", json!("app/..x"), None),
        ("/spec/workingDir", json!("app/../../etc"), Some("workingDir cannot contain ..")),
        ("/spec/workingDir", json!("~/app"), Some("~ is not expanded")),
        ("/spec/workingDir", json!(".."), Some("workingDir cannot contain ..")),
        ("/spec/workingDir", json!("a\nb"), Some("should match")),
        ("/spec/env", env("PATH"), None),
        ("/spec/env", env("1ST"), Some("should match")),
        ("/spec/env", env("A-B"), Some("should match")),
        ("/spec/env", env("UID"), Some("this name cannot be set")),
        ("/spec/env", env("DTC_ATTEMPT"), Some("this name cannot be set")),
        ("/spec/env", json!([{ "name": "A" }]), Some("set exactly one of value and valueFrom")),
        ("/spec/env", json!([{ "name": "A", "value": "a\u{0}" }]), Some("a value cannot contain NUL")),
        ("/spec/env", json!([{ "name": "A", "value": "x".repeat(32_768) }]), None),
        ("/spec/env", json!([{ "name": "A", "value": "x".repeat(32_769) }]), Some("may not be more than 32768")),
        ("/spec/env", json!([{ "name": "A", "value": "1" }, { "name": "A", "value": "2" }]), Some("Duplicate value")),
        ("/spec/env", json!([{ "name": "A", "valueFrom": {} }]), Some("set exactly one of secretKeyRef and")),
        ("/spec/env", json!([{ "name": "A", "valueFrom": { "secretKeyRef": key() } }]), None),
        (
            "/spec/env",
            json!([{ "name": "A", "valueFrom": { "secretKeyRef": key(), "configMapKeyRef": key() } }]),
            Some("set exactly one of secretKeyRef and"),
        ),
        ("/spec/envFrom", json!([{ "secretRef": { "name": "s" }, "prefix": "APP_" }]), None),
        ("/spec/envFrom", json!([{ "prefix": "APP_" }]), Some("set exactly one of secretRef and configMapRef")),
        ("/spec/envFrom", json!([{ "secretRef": { "name": "s" }, "prefix": "1" }]), Some("should match")),
        ("/spec/stdin", json!({ "value": "a\u{0}b" }), None),
        ("/spec/stdin", json!({}), Some("set exactly one of value, configMapKeyRef and secretKeyRef")),
        ("/spec/stdin", json!({ "value": "", "secretKeyRef": key() }), Some("set exactly one of value")),
        ("/spec/startingDeadlineSeconds", json!(0), Some("should be greater than or equal to 1")),
        ("/spec/terminationGracePeriodSeconds", json!(601), Some("should be less than or equal to 600")),
        ("/spec/order", json!(-1000), None),
        ("/spec/order", json!(1001), Some("should be less than or equal to 1000")),
        ("/spec/cancel", json!("yes"), Some("must be of type boolean")),
        ("/spec/logs", json!({ "store": "Secret", "tailBytes": 16384, "maxBytes": 524_288 }), None),
        ("/spec/logs", json!({ "store": "Disk" }), Some("Unsupported value: \"Disk\"")),
        ("/spec/logs", json!({ "tailBytes": 16385 }), Some("should be less than or equal to 16384")),
        ("/spec/logs", json!({ "maxBytes": -1 }), Some("should be greater than or equal to 0")),
    ];
    try_all(&kubectl, &command("x", "l", "true"), cases).await;
    let mut argv: Value = serde_json::from_str(&command("x", "l", "true")).unwrap();
    argv["spec"].as_object_mut().unwrap().remove("script");
    let cases: Vec<Case> = vec![
        ("/spec/command", json!(["printf", "%s", "a b"]), None),
        ("/spec/command", json!([]), Some("should have at least 1 items")),
        ("/spec/command", json!([""]), Some("the program cannot be empty")),
        ("/spec/command", json!(["a", "b\u{0}"]), Some("an argument cannot contain NUL")),
        ("/spec/command", json!(vec!["a"; 257]), Some("must have at most 256 items")),
        ("/spec/scriptFrom", json!({ "configMapKeyRef": key() }), None),
        ("/spec/scriptFrom", json!({}), Some("configMapKeyRef: Required value")),
    ];
    try_all(&kubectl, &argv.to_string(), cases).await;
    argv["spec"]["command"] = json!(["true"]);
    let cases: Vec<Case> = vec![
        ("/spec/shell", json!(["bash"]), Some("it cannot be set beside command")),
        ("/spec/shellState", json!("Persist"), Some("Persist needs a script and the login shell")),
    ];
    try_all(&kubectl, &argv.to_string(), cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_immutable_stays() {
    let kubectl = namespace("schema-immutable").await;
    let base = with(&lease("l"), "l", "/spec/sandbox", json!({ "snapshot": "one" }));
    apply(&kubectl, &base).await.unwrap();
    let text = base.to_string();
    for (pointer, value, refusal) in [
        ("/spec/useSessions", json!(false), "useSessions is immutable"),
        ("/spec/sandbox/snapshot", json!("two"), "sandbox.snapshot is immutable"),
        ("/spec/sandbox", Value::Null, "sandbox.snapshot is immutable"),
        ("/spec/sandbox/user", json!("root"), "sandbox.user is immutable"),
        ("/spec/sandbox/volumes", json!([{ "volumeID": "v", "mountPath": "/v" }]), "sandbox.volumes is immutable"),
        ("/spec/sandbox/networkBlockAll", json!(true), "sandbox.networkBlockAll is immutable"),
        ("/spec/sandbox/reuseKey", json!("cache"), "sandbox.reuseKey is immutable"),
        ("/spec/sandbox/adopt", json!({ "id": "box" }), "sandbox.adopt is immutable"),
        ("/spec/connection/target", json!("eu"), "connection.target is immutable"),
        ("/spec/connection/organizationID", json!("org"), "connection.organizationID is immutable"),
        ("/spec/connection/apiURL", json!("https://daytona.example/api"), "connection.apiURL is immutable"),
    ] {
        let error = apply(&kubectl, &with(&text, "l", pointer, value)).await.unwrap_err();
        assert!(error.contains(refusal), "{pointer}: {error}");
    }
    let other_key = json!({ "name": "another" });
    apply(&kubectl, &with(&text, "l", "/spec/connection/apiKeySecretRef", other_key)).await.unwrap();

    for (pointer, value) in [
        ("/spec/reclaimPolicy", json!("Retain")),
        ("/spec/suspend", json!(true)),
        ("/spec/leaseDurationSeconds", json!(60)),
        ("/spec/renewTime", json!("2026-01-31T12:00:00Z")),
        ("/spec/onSessionLost", json!("Continue")),
    ] {
        apply(&kubectl, &with(&text, "l", pointer, value)).await.unwrap();
    }

    let text = command("c", "l", "true");
    apply(&kubectl, &serde_json::from_str(&text).unwrap()).await.unwrap();
    for (pointer, value) in
        [("/spec/script", json!("false")), ("/spec/timeoutSeconds", json!(5)), ("/spec/leaseRef/name", json!("other"))]
    {
        let error = apply(&kubectl, &with(&text, "c", pointer, value)).await.unwrap_err();
        assert!(error.contains("a command runs once"), "{pointer}: {error}");
    }
    for (pointer, value) in [
        ("/spec/env", json!([{ "name": "A", "value": "1" }])),
        ("/spec/stdin", json!({ "value": "x" })),
        ("/spec/order", json!(1)),
        ("/spec/logs", json!({ "store": "None" })),
        ("/spec/shellState", json!("Persist")),
        ("/spec/startingDeadlineSeconds", json!(9)),
    ] {
        let error = apply(&kubectl, &with(&text, "c", pointer, value)).await.unwrap_err();
        assert!(error.contains("is immutable: a command runs once"), "{pointer}: {error}");
    }
    apply(&kubectl, &with(&text, "c", "/spec/cancel", json!(true))).await.unwrap();
    apply(&kubectl, &with(&text, "c", "/spec/cancel", json!(false))).await.unwrap();
    // What a GitOps tool does all day: the same manifest again.
    apply(&kubectl, &serde_json::from_str(&text).unwrap()).await.unwrap();
    let diff = kubectl.run_with_input(&["diff", "-f", "-"], &text).await.unwrap();
    assert_eq!(diff.stdout, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_command_never_changes_its_outcome() {
    let kubectl = namespace("schema-latch").await;
    apply(&kubectl, &serde_json::from_str(&command("c", "l", "true")).unwrap()).await.unwrap();
    let fresh = kubectl.get(&["get", "sbcmd", "c", "-o", "jsonpath={.status.observedGeneration}"]).await.unwrap();
    assert_eq!(fresh, "-1", "kstatus would call a fresh object Current");
    let patch = async |status: Value| {
        let patch = json!({ "status": status }).to_string();
        let arguments = ["patch", "sbcmd", "c", "--subresource=status", "--type=merge", "-p", &patch];
        kubectl.run(&arguments).await.map(drop).map_err(|e| e.to_string())
    };
    let succeeded = |status: &str, reason: &str| json!([{ "type": "Succeeded", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    patch(json!({ "state": "Running", "attempts": 1, "conditions": succeeded("Unknown", "Running") })).await.unwrap();
    for (change, refusal) in [
        (json!({ "state": "Queued" }), "not queued again"),
        (json!({ "state": null }), "not queued again"),
        (json!({ "attempts": 0 }), "attempts cannot become fewer"),
    ] {
        let error = patch(change.clone()).await.expect_err(&format!("{change} was accepted"));
        assert!(error.contains(refusal), "{change}: {error}");
    }
    let end = json!({ "state": "Finished", "exitCode": 3, "conditions": succeeded("False", "NonZeroExit") });
    patch(end.clone()).await.unwrap();
    for (change, refusal) in [
        (json!({ "state": "Running" }), "stays finished"),
        (json!({ "state": null }), "stays finished"),
        (json!({ "exitCode": 0 }), "exitCode and attempts"),
        (json!({ "exitCode": null }), "exitCode and attempts"),
        (json!({ "attempts": 2 }), "exitCode and attempts"),
        (json!({ "conditions": succeeded("True", "Succeeded") }), "outcome of a finished command"),
        (json!({ "conditions": [] }), "outcome of a finished command"),
        (json!({ "conditions": null }), "outcome of a finished command"),
    ] {
        let error = patch(change.clone()).await.expect_err(&format!("{change} was accepted"));
        assert!(error.contains(refusal), "{change}: {error}");
    }
    patch(json!({ "observedGeneration": 1 })).await.unwrap();
    patch(end).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_reads_like_a_manual() {
    let kubectl = PLANE.kubectl(None);
    for kind in ["sblease", "sbcmd"] {
        let all = kubectl.get(&["explain", kind, "--recursive"]).await.unwrap();
        for line in all.lines().filter(|l| l.contains('\t')) {
            assert!(!line.contains("<Object>\t-required-\n\n"), "{line}");
        }
        let json = kubectl
            .get(&[
                "get",
                "crd",
                &format!(
                    "{}.daytona-controller.dev",
                    if kind == "sblease" { "sandboxleases" } else { "sandboxcommands" }
                ),
                "-o",
                "json",
            ])
            .await
            .unwrap();
        let crd: Value = serde_json::from_str(&json).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        undescribed(schema, kind);
    }
    let text = kubectl.get(&["explain", "sbcmd.spec.timeoutSeconds"]).await.unwrap();
    assert!(text.contains("TERM") && text.contains("else 3600"), "{text}");
}

/// Every field has a description, and every text a bound.
fn undescribed(schema: &Value, at: &str) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        if ["apiVersion", "kind", "metadata"].contains(&name.as_str()) && at.matches('.').count() == 1 {
            continue;
        }
        let text = property["description"].as_str().unwrap_or_default();
        assert!(text.len() > 4, "{at} has no description");
        let bounded = ["maxLength", "enum", "format"].iter().any(|b| !property[b].is_null());
        assert!(property["type"] != "string" || bounded, "{at} has no bound");
        assert!(property["type"] != "array" || !property["maxItems"].is_null(), "{at} has no bound");
        undescribed(property, &at);
        undescribed(&property["items"], &at);
    }
}
