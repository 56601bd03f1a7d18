//! What the API server refuses of a lease, with words that say how to mend it.

use serde_json::{Value, json};

use crate::{
    schema::{Case, namespace, try_all, with},
    world::lease,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_refused_where_it_can_be_seen_to_be_wrong() {
    let kubectl = namespace("schema-leases").await;
    let url = "/spec/connection/apiURL";
    let secret = "/spec/connection/apiKeySecretRef";
    let cases: Vec<Case> = vec![
        ("/spec", Value::Null, Some("spec: Required value")),
        ("/spec", json!({}), None),
        ("/spec", json!({ "useSessions": true }), None),
        ("/spec", json!({ "maxParallelCommands": 64 }), None),
        ("/spec", json!({ "maxParallelCommands": 0 }), Some("should be greater than or equal to 1")),
        ("/spec", json!({ "maxParallelCommands": 65 }), Some("should be less than or equal to 64")),
        ("/spec/maxParallelCommands", json!(2), Some("maxParallelCommands needs useSessions: false")),
        ("/spec/useSessions", json!("yes"), Some("must be of type boolean")),
        ("/spec/surprise", json!(1), Some("unknown field \"spec.surprise\"")),
        (url, json!("https://daytona.example/api"), None),
        (url, json!("http://127.0.0.1:3000/api"), None),
        (url, json!("http://[::1]:3000/api"), None),
        (url, json!("http://daytona.example/api"), Some("apiURL must be an https URL")),
        (url, json!("http://127.0.0.1.example/api"), Some("apiURL must be an https URL")),
        (url, json!("ftp://daytona.example"), Some("apiURL must be an https URL")),
        (url, json!("daytona.example"), Some("apiURL must be an https URL")),
        (url, json!(""), Some("should be at least 1 chars long")),
        (url, json!(format!("https://daytona.example/{}", "x".repeat(500))), Some("may not be more than 512")),
        (url, json!("https://me:secret@daytona.example"), Some("must not carry credentials")),
        (url, json!("https://daytona.example/?key=1"), Some("must not carry credentials, a query")),
        (url, json!("https://daytona.example/#x"), Some("must not carry credentials, a query or a fragment")),
        ("/spec/connection", json!({ "apiURL": "https://daytona.example/api" }), Some("apiURL needs apiKeySecretRef")),
        (secret, json!({}), Some("apiKeySecretRef.name: Required value")),
        (secret, json!({ "name": "" }), Some("should be at least 1 chars long")),
        (secret, json!({ "name": "../x" }), Some("should match")),
        (secret, json!({ "name": "x".repeat(253) }), None),
        (secret, json!({ "name": "x".repeat(254) }), Some("may not be more than 253")),
        (secret, json!({ "name": "d", "key": "a/b" }), Some("should match")),
        (secret, json!({ "name": "d", "key": "other" }), None),
        ("/spec/sandbox", json!({ "snapshot": "daytonaio/sandbox:0.6.0" }), None),
        ("/spec/sandbox", json!({ "snapshot": "" }), Some("should be at least 1 chars long")),
        ("/spec/sandbox", json!({ "snapshot": "two words" }), Some("should match")),
        ("/spec/reclaimPolicy", json!("Delete"), None),
        ("/spec/reclaimPolicy", json!("Keep"), Some("Unsupported value: \"Keep\"")),
    ];
    try_all(&kubectl, &lease("x"), cases).await;
}

/// Case 31.
#[allow(clippy::too_many_lines, reason = "a table")]
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_refused_where_it_can_be_seen_to_be_wrong() {
    let kubectl = namespace("schema-sandboxes").await;
    let of = |resources: Value| json!({ "image": "debian:12.9", "resources": resources });
    let volume = |path: &str| json!({ "volumes": [{ "volumeID": "v", "mountPath": path }] });
    let labels = |name: &str| json!({ "labels": { name: "x" } });
    let cases: Vec<(Value, Option<&str>)> = vec![
        (json!({}), None),
        (json!({ "image": "debian:12.9" }), None),
        (json!({ "image": "debian:12.9\nRUN rm -rf /" }), Some("should match")),
        (json!({ "image": "debian:12.9", "snapshot": "s" }), Some("set snapshot or image, not both")),
        (of(json!({ "cpu": "2", "memory": "4Gi", "disk": "10Gi" })), None),
        (json!({ "resources": { "cpu": "2" } }), Some("resources need image")),
        (json!({ "snapshot": "s", "resources": { "cpu": "2" } }), Some("resources need image")),
        (of(json!({ "cpu": "500m" })), Some("should match")),
        (of(json!({ "cpu": "0" })), Some("should match")),
        (of(json!({ "cpu": 2 })), Some("must be of type string")),
        (of(json!({ "memory": "4096Mi" })), Some("should match")),
        (of(json!({ "memory": "1.5Gi" })), Some("should match")),
        (of(json!({ "gpu": 1 })), Some("set autoDeleteMinutes: 0")),
        (
            json!({
                "image": "i", "resources": { "gpu": 1 }, "autoDeleteMinutes": 0, "autoStopMinutes": 10
            }),
            None,
        ),
        (json!({ "autoDeleteMinutes": 0 }), Some("say after how many idle minutes")),
        (json!({ "autoDeleteMinutes": 0, "autoStopMinutes": 5 }), None),
        (json!({ "autoDeleteMinutes": -1 }), None),
        (json!({ "autoDeleteMinutes": -2 }), Some("should be greater than or equal to -1")),
        (json!({ "autoStopMinutes": -1 }), Some("should be greater than or equal to 0")),
        (json!({ "autoArchiveMinutes": 43_200 }), None),
        (json!({ "autoArchiveMinutes": 43_201 }), Some("should be less than or equal to 43200")),
        (json!({ "language": "python", "user": "root", "public": false, "networkBlockAll": true }), None),
        (json!({ "user": "two words" }), Some("should match")),
        (labels("team"), None),
        (labels("daytona-controller.dev/lease-uid"), Some("they tell whose the sandbox is")),
        (labels("code-toolbox-language"), Some("set language")),
        (json!({ "labels": { "team": "x".repeat(257) } }), Some("may not be more than 256")),
        (volume("/data/a"), None),
        (volume("data"), Some("should match")),
        (volume("/data/../etc"), Some("absolute path without . and ..")),
        (
            json!({ "volumes": [{ "volumeID": "v", "mountPath": "/a" }, { "volumeID": "w", "mountPath": "/a" }] }),
            Some("two volumes have the same mountPath"),
        ),
        (json!({ "networkAllowList": ["10.0.0.0/8", "192.168.1.0/24"] }), None),
        (json!({ "networkAllowList": ["10.0.0.1000/8"] }), Some("must be an IPv4 network")),
        (json!({ "networkAllowList": ["2001:db8::/32"] }), Some("must be an IPv4 network")),
    ];
    let cases = cases.into_iter().map(|(sandbox, refusal)| ("/spec/sandbox", sandbox, refusal)).collect();
    try_all(&kubectl, &lease("x"), cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_or_takes_over_is_refused_where_it_can_be_seen_to_be_wrong() {
    let kubectl = namespace("schema-ending").await;
    let (sandbox, policy) = ("/spec/sandbox", "/spec/reclaimPolicy");
    let cases: Vec<Case> = vec![
        (policy, json!("Archive"), None),
        (policy, json!("Keep"), Some("Unsupported value: \"Keep\"")),
        ("/spec/suspend", json!(true), None),
        ("/spec/suspend", json!("yes"), Some("must be of type boolean")),
        ("/spec/suspendPolicy", json!("Cancel"), None),
        ("/spec/suspendPolicy", json!("Kill"), Some("Unsupported value: \"Kill\"")),
        ("/spec/onSessionLost", json!("Continue"), None),
        ("/spec/onSessionLost", json!("Retry"), Some("Unsupported value: \"Retry\"")),
        ("/spec/leaseDurationSeconds", json!(1), None),
        ("/spec/leaseDurationSeconds", json!(0), Some("should be greater than or equal to 1")),
        ("/spec/leaseDurationSeconds", json!(315_360_001), Some("should be less than or equal to 315360000")),
        ("/spec/renewTime", json!("2026-01-31T12:00:00Z"), None),
        ("/spec/renewTime", json!("2026-01-31T12:00:00.5+01:00"), None),
        ("/spec/renewTime", json!("tomorrow"), Some("must be of type date-time")),
        ("/spec/renewTime", json!("9999-12-31T23:59:59Z"), Some("should match")),
        ("/spec/renewTime", json!("2026-01-31T12:00:00+99:99"), Some("should match")),
        ("/spec/renewTime", json!("2026-02-30T12:00:00Z"), Some("must be of type date-time")),
        ("/spec/env", json!([{ "name": "A", "value": "1" }]), None),
        ("/spec/env", json!([{ "name": "1ST", "value": "1" }]), Some("should match")),
        ("/spec/env", json!([{ "name": "A", "value": "1" }, { "name": "A", "value": "2" }]), Some("Duplicate value")),
        ("/spec/envFrom", json!([{ "prefix": "APP_" }]), Some("set exactly one of secretRef and configMapRef")),
        ("/spec/workingDir", json!("app"), None),
        ("/spec/workingDir", json!("../app"), Some("workingDir cannot contain ..")),
        ("/spec/commandDefaults", json!({ "timeoutSeconds": 60, "logs": { "store": "Secret" } }), None),
        ("/spec/commandDefaults", json!({ "timeoutSeconds": 0 }), Some("should be greater than or equal to 1")),
        (
            "/spec/commandDefaults",
            json!({ "logs": { "tailBytes": 16385 } }),
            Some("should be less than or equal to 16384"),
        ),
        (sandbox, json!({ "adopt": { "id": "box" } }), Some("an adopted sandbox is never deleted")),
        (sandbox, json!({ "reuseKey": "cache" }), None),
        (sandbox, json!({ "reuseKey": "cache", "image": "debian:12" }), None),
        (sandbox, json!({ "reuseKey": "" }), Some("should be at least 1 chars long")),
        (sandbox, json!({ "reuseKey": "a/b" }), Some("should match")),
        (sandbox, json!({ "reuseKey": "x".repeat(254) }), Some("may not be more than 253")),
        (sandbox, json!({ "autoStopMinutes": 0 }), None),
        (sandbox, json!({ "autoStopMinutes": 5, "autoDeleteMinutes": 0 }), None),
        (sandbox, json!({ "autoDeleteMinutes": 0 }), Some("say after how many idle minutes")),
        ("/spec/connection/organizationID", json!("org-1"), None),
        ("/spec/connection/organizationID", json!("a b"), Some("should match")),
        ("/spec/connection", json!({ "organizationID": "org-1" }), Some("organizationID needs apiKeySecretRef")),
    ];
    try_all(&kubectl, &lease("x"), cases).await;

    let kept = with(&lease("x"), "x", policy, json!("Stop")).to_string();
    let adopt = |beside: Value| {
        let mut sandbox = json!({ "adopt": { "id": "box" } });
        sandbox.as_object_mut().unwrap().extend(beside.as_object().unwrap().clone());
        sandbox
    };
    let takes = Some("adopt takes a sandbox as it is");
    let cases: Vec<Case> = vec![
        (sandbox, adopt(json!({ "labels": { "a": "b" }, "autoStopMinutes": 5, "autoDeleteMinutes": -1 })), None),
        (sandbox, adopt(json!({ "snapshot": "s" })), takes),
        (sandbox, adopt(json!({ "image": "i" })), takes),
        (sandbox, adopt(json!({ "reuseKey": "k" })), takes),
        (sandbox, adopt(json!({ "user": "root" })), takes),
        (sandbox, json!({ "adopt": {} }), Some("adopt.id: Required value")),
        (sandbox, json!({ "adopt": { "id": "../x" } }), Some("should match")),
        (sandbox, json!({ "adopt": { "id": ".." } }), Some("should match")),
        (
            sandbox,
            json!({ "autoStopMinutes": 5, "autoDeleteMinutes": 0 }),
            Some("with reclaimPolicy Delete and without suspend"),
        ),
    ];
    try_all(&kubectl, &kept, cases).await;

    let mut ours: Value = serde_json::from_str(&kept).unwrap();
    ours["spec"].as_object_mut().unwrap().remove("connection");
    let cases: Vec<Case> = vec![
        (sandbox, json!({ "adopt": { "id": "box" } }), Some("need connection.apiKeySecretRef")),
        (
            sandbox,
            json!({ "volumes": [{ "volumeID": "v", "mountPath": "/v" }] }),
            Some("need connection.apiKeySecretRef"),
        ),
        (sandbox, json!({ "reuseKey": "cache" }), None),
    ];
    try_all(&kubectl, &ours.to_string(), cases).await;

    let goes = with(&lease("x"), "x", sandbox, json!({ "autoStopMinutes": 5, "autoDeleteMinutes": 0 })).to_string();
    let cases: Vec<Case> = vec![("/spec/suspend", json!(true), Some("without suspend only"))];
    try_all(&kubectl, &goes, cases).await;
}
