//! What a lease's sandbox is to be in Daytona, and what of that has drifted.

use std::collections::BTreeMap;

use kube::ResourceExt;

use super::lease_seen::sandbox_name;
use crate::{
    api::{Sandbox as Spec, SandboxLease, sandbox_label},
    daytona::{BuildInfo, Mount, NewSandbox, Sandbox, Setting},
};

/// Minutes of idleness until Daytona stops a sandbox, minutes stopped until it archives it, and until it deletes it:
/// what bounds the bill when this controller is gone for ever.
const AUTO_STOP_MINUTES: i32 = 15;
const AUTO_ARCHIVE_MINUTES: i32 = 60;
const AUTO_DELETE_MINUTES: i32 = 10_080;

/// What Daytona takes 0 minutes until archival for.
const LONGEST_UNTIL_ARCHIVED: i32 = 43_200;

/// Label that Daytona's code runner looks at.
const LANGUAGE_LABEL: &str = "code-toolbox-language";

/// The sandbox that a lease asks for.
#[must_use]
pub fn wanted(lease: &SandboxLease) -> NewSandbox {
    let spec = lease.spec.sandbox.clone().unwrap_or_default();
    let [auto_stop_interval, auto_archive_interval, auto_delete_interval] = intervals(&spec);
    let resources = spec.resources.clone().unwrap_or_default();
    let mut labels = labels(&spec);
    labels.extend([
        (sandbox_label::LEASE_UID.to_owned(), lease.uid().unwrap_or_default()),
        (sandbox_label::LEASE_NAMESPACE.to_owned(), lease.namespace().unwrap_or_default()),
        (sandbox_label::LEASE_NAME.to_owned(), lease.name_any()),
    ]);
    let volumes = spec.volumes.into_iter();
    NewSandbox {
        name: sandbox_name(lease),
        snapshot: spec.snapshot,
        build_info: spec.image.map(|image| BuildInfo { dockerfile_content: format!("FROM {image}\n") }),
        cpu: resources.cpu.as_deref().and_then(whole),
        memory: resources.memory.as_deref().and_then(whole),
        disk: resources.disk.as_deref().and_then(whole),
        gpu: resources.gpu,
        user: spec.user,
        public: spec.public,
        target: lease.spec.connection.as_ref().and_then(|c| c.target.clone()),
        network_block_all: spec.network_block_all,
        network_allow_list: (!spec.network_allow_list.is_empty()).then(|| spec.network_allow_list.join(",")),
        volumes: volumes
            .map(|v| Mount { volume_id: v.volume_id, mount_path: v.mount_path, subpath: v.subpath })
            .collect(),
        labels,
        auto_stop_interval,
        auto_archive_interval,
        auto_delete_interval,
    }
}

/// What has to be set so that the sandbox is as its lease says, of what may be changed while it exists. What Daytona
/// does not tell has not drifted.
#[must_use]
pub fn drift(lease: &SandboxLease, sandbox: &Sandbox) -> Vec<Setting> {
    let spec = lease.spec.sandbox.clone().unwrap_or_default();
    let [stop, archive, delete] = intervals(&spec);
    let differs = |wanted: i32, seen: Option<f64>| seen.is_some_and(|seen| (seen - f64::from(wanted)).abs() >= 1.0);
    let longest = archive == 0 && !differs(LONGEST_UNTIL_ARCHIVED, sandbox.auto_archive_interval);
    let mut drift = Vec::new();
    if differs(stop, sandbox.auto_stop_interval) {
        drift.push(Setting::AutoStop(stop));
    }
    if differs(archive, sandbox.auto_archive_interval) && !longest {
        drift.push(Setting::AutoArchive(archive));
    }
    // Every negative number is "never".
    let never = delete < 0 && sandbox.auto_delete_interval.is_some_and(|seen| seen < 0.0);
    if differs(delete, sandbox.auto_delete_interval) && !never {
        drift.push(Setting::AutoDelete(delete));
    }
    let missing: Vec<_> =
        labels(&spec).into_iter().filter(|(name, value)| sandbox.label(name) != Some(value.as_str())).collect();
    if !missing.is_empty() {
        let mut all = sandbox.labels.clone();
        all.extend(missing.into_iter().map(|(name, value)| (name, value.into())));
        drift.push(Setting::Labels(all));
    }
    drift
}

/// Labels that are not about whose it is.
fn labels(spec: &Spec) -> BTreeMap<String, String> {
    let language = spec.language.clone().map(|language| (LANGUAGE_LABEL.to_owned(), language));
    spec.labels.clone().into_iter().chain(language).collect()
}

/// Until it is stopped, archived, deleted.
fn intervals(spec: &Spec) -> [i32; 3] {
    [
        spec.auto_stop_minutes.unwrap_or(AUTO_STOP_MINUTES),
        spec.auto_archive_minutes.unwrap_or(AUTO_ARCHIVE_MINUTES),
        spec.auto_delete_minutes.unwrap_or(AUTO_DELETE_MINUTES),
    ]
}

/// Whole cores, or whole Gi, which the schema has looked at.
fn whole(quantity: &str) -> Option<i32> {
    quantity.trim_end_matches("Gi").parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lease(sandbox: &Value) -> SandboxLease {
        let spec = json!({ "sandbox": sandbox, "connection": { "target": "eu" } });
        let mut lease = SandboxLease::new("l", serde_json::from_value(spec).unwrap());
        (lease.metadata.uid, lease.metadata.namespace) = (Some("u".to_owned()), Some("n".to_owned()));
        lease
    }

    fn seen(fields: Value) -> Sandbox {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn what_is_asked_for_is_what_daytona_is_told() {
        let all = lease(&json!({
            "image": "debian:12.9", "resources": { "cpu": "2", "memory": "4Gi", "disk": "10Gi", "gpu": 1 },
            "language": "python", "user": "root", "labels": { "team": "a" }, "public": true,
            "volumes": [{ "volumeID": "v", "mountPath": "/data", "subpath": "s" }],
            "networkBlockAll": false, "networkAllowList": ["10.0.0.0/8", "192.168.1.0/24"],
            "autoStopMinutes": 5, "autoArchiveMinutes": 0, "autoDeleteMinutes": 0
        }));
        let told = serde_json::to_value(wanted(&all)).unwrap();
        assert_eq!(
            told,
            json!({
                "name": "sblease-u", "buildInfo": { "dockerfileContent": "FROM debian:12.9\n" },
                "cpu": 2, "memory": 4, "disk": 10, "gpu": 1, "user": "root", "public": true, "target": "eu",
                "networkBlockAll": false, "networkAllowList": "10.0.0.0/8,192.168.1.0/24",
                "volumes": [{ "volumeId": "v", "mountPath": "/data", "subpath": "s" }],
                "labels": {
                    "team": "a", "code-toolbox-language": "python", "daytona-controller.dev/lease-uid": "u",
                    "daytona-controller.dev/lease-namespace": "n", "daytona-controller.dev/lease-name": "l"
                },
                "autoStopInterval": 5, "autoArchiveInterval": 0, "autoDeleteInterval": 0
            })
        );
        let nothing = serde_json::to_value(wanted(&lease(&json!({})))).unwrap();
        let names: Vec<&str> = nothing.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["autoArchiveInterval", "autoDeleteInterval", "autoStopInterval", "labels", "name", "target"],
            "what is not asked for is left to Daytona"
        );
    }

    #[test]
    fn what_has_drifted_is_set_and_nothing_else() {
        let lease = lease(&json!({ "labels": { "team": "a" }, "autoStopMinutes": 5 }));
        let right = json!({
            "id": "s", "labels": { "team": "a", "other": 1 },
            "autoStopInterval": 5, "autoArchiveInterval": 60, "autoDeleteInterval": 10080
        });
        assert_eq!(drift(&lease, &seen(right)), []);
        let wrong = json!({
            "id": "s", "labels": { "team": "b", "other": 1 },
            "autoStopInterval": 0, "autoArchiveInterval": 10080, "autoDeleteInterval": -1
        });
        let labels = [("other".to_owned(), json!(1)), ("team".to_owned(), json!("a"))].into_iter().collect();
        let all =
            [Setting::AutoStop(5), Setting::AutoArchive(60), Setting::AutoDelete(10_080), Setting::Labels(labels)];
        assert_eq!(drift(&lease, &seen(wrong)), all);
        assert_eq!(drift(&lease, &seen(json!({ "id": "s", "labels": { "team": "a" } }))), [], "Daytona does not tell");
    }

    #[test]
    fn what_daytona_writes_otherwise_has_not_drifted() {
        let lease = lease(&json!({ "autoArchiveMinutes": 0, "autoDeleteMinutes": -1 }));
        let other =
            json!({ "id": "s", "autoStopInterval": 15, "autoArchiveInterval": 43200, "autoDeleteInterval": -7 });
        assert_eq!(drift(&lease, &seen(other)), []);
    }
}
