//! What a lease's sandbox is to be in Daytona, and what of that has drifted.

use std::collections::BTreeMap;

use super::{
    claim::{Owner, adopts, marks, ownership},
    expiry::whole_minutes,
    lease_seen::{Intervals, Step},
};
use crate::{
    api::{ReclaimPolicy, Sandbox as Spec, SandboxLease},
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

/// The sandbox that a lease asks for, under this name.
#[must_use]
pub fn wanted(lease: &SandboxLease, name: &str, owner: Option<&Owner>, intervals: &Intervals) -> NewSandbox {
    let spec = lease.spec.sandbox.clone().unwrap_or_default();
    let [stop, archive, delete] = minutes(lease, &spec, intervals);
    let resources = spec.resources.clone().unwrap_or_default();
    let mut labels = labels(&spec);
    labels.extend(ownership(lease, owner));
    let volumes = spec.volumes.into_iter();
    NewSandbox {
        name: name.to_owned(),
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
        auto_stop_interval: stop.unwrap_or(AUTO_STOP_MINUTES),
        auto_archive_interval: archive.unwrap_or(AUTO_ARCHIVE_MINUTES),
        auto_delete_interval: delete.unwrap_or(AUTO_DELETE_MINUTES),
    }
}

/// What has to be set so that the sandbox is as its lease says, of what may be changed while it exists. What Daytona
/// does not tell has not drifted, nor has that of which the lease says nothing.
#[must_use]
pub fn drift(lease: &SandboxLease, sandbox: &Sandbox, owner: Option<&Owner>, intervals: &Intervals) -> Vec<Setting> {
    let spec = lease.spec.sandbox.clone().unwrap_or_default();
    let [stop, archive, delete] = minutes(lease, &spec, intervals);
    let drifted = |wanted: Option<i32>, seen: Option<f64>| {
        wanted.zip(seen).filter(|(wanted, seen)| (seen - f64::from(*wanted)).abs() >= 1.0).map(|(wanted, _)| wanted)
    };
    let mut drift = Vec::new();
    drift.extend(drifted(stop, sandbox.auto_stop_interval).map(Setting::AutoStop));
    let longest = archive.map(|minutes| if minutes == 0 { LONGEST_UNTIL_ARCHIVED } else { minutes });
    if drifted(longest, sandbox.auto_archive_interval).is_some() {
        drift.extend(drifted(archive, sandbox.auto_archive_interval).map(Setting::AutoArchive));
    }
    // Every negative number is "never".
    let seen = sandbox.auto_delete_interval.map(|seen| seen.max(-1.0));
    drift.extend(drifted(delete, seen).map(Setting::AutoDelete));
    let all = labels(&spec).into_iter().chain(marks(lease, owner));
    let missing: Vec<_> = all.filter(|(name, value)| sandbox.label(name) != Some(value.as_str())).collect();
    if !missing.is_empty() {
        let mut all = sandbox.labels.clone();
        all.extend(missing.into_iter().map(|(name, value)| (name, value.into())));
        drift.push(Setting::Labels(all));
    }
    drift
}

/// What has to be done before a sandbox that is to be kept is stopped, or let go: Daytona may delete it then.
pub(super) fn spared(sandbox: &Sandbox) -> Option<Step> {
    let goes = sandbox.auto_delete_interval.is_some_and(|minutes| minutes >= 0.0);
    goes.then(|| Step::Spare(sandbox.id.clone()))
}

/// Labels that are not about whose it is.
fn labels(spec: &Spec) -> BTreeMap<String, String> {
    let language = spec.language.clone().map(|language| (LANGUAGE_LABEL.to_owned(), language));
    spec.labels.clone().into_iter().chain(language).collect()
}

/// Whether the sandbox is not to be stopped for idleness while the controller lives.
#[must_use]
pub fn is_kept_awake(lease: &SandboxLease) -> bool {
    lease.spec.sandbox.as_ref().is_some_and(|spec| spec.auto_stop_minutes == Some(0))
}

/// Minutes until it is stopped, archived, deleted; `None`: left as they are. An adopted sandbox keeps what the lease does
/// not speak of. None of what stops or deletes a sandbox that goes with its lease is longer than the lease.
fn minutes(lease: &SandboxLease, spec: &Spec, intervals: &Intervals) -> [Option<i32>; 3] {
    let or = |said: Option<i32>, usual: i32| if adopts(lease).is_some() { said } else { said.or(Some(usual)) };
    let most = whole_minutes(lease, intervals.longest_lease).unwrap_or(i32::MAX);
    let dead_man = i32::try_from(intervals.dead_man.as_secs() / 60).unwrap_or(i32::MAX).max(1);
    let stop = or(spec.auto_stop_minutes, AUTO_STOP_MINUTES).map(|m| if m == 0 { dead_man } else { m }.min(most));
    let delete =
        match (lease.spec.suspend, lease.spec.reclaim_policy, or(spec.auto_delete_minutes, AUTO_DELETE_MINUTES)) {
            (true, ..) => Some(-1),
            (false, ReclaimPolicy::Delete, Some(minutes)) if most < i32::MAX && (minutes < 0 || minutes > most) => {
                Some(most)
            }
            (false, _, minutes) => minutes,
        };
    [stop, or(spec.auto_archive_minutes, AUTO_ARCHIVE_MINUTES), delete]
}

/// Whole cores, or whole Gi, which the schema has looked at.
fn whole(quantity: &str) -> Option<i32> {
    quantity.trim_end_matches("Gi").parse().ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;
    use crate::plan::lease_seen::INTERVALS;

    fn lease(sandbox: &Value) -> SandboxLease {
        let spec = json!({ "sandbox": sandbox, "connection": { "target": "eu" } });
        let mut lease = SandboxLease::new("l", serde_json::from_value(spec).unwrap());
        (lease.metadata.uid, lease.metadata.namespace) = (Some("u".to_owned()), Some("n".to_owned()));
        lease
    }

    fn seen(fields: Value) -> Sandbox {
        serde_json::from_value(fields).unwrap()
    }

    /// Fields: sandbox.volumes, connection.target
    #[test]
    fn what_is_asked_for_is_what_daytona_is_told() {
        let all = lease(&json!({
            "image": "debian:12.9", "resources": { "cpu": "2", "memory": "4Gi", "disk": "10Gi", "gpu": 1 },
            "language": "python", "user": "root", "labels": { "team": "a" }, "public": true,
            "volumes": [{ "volumeID": "v", "mountPath": "/data", "subpath": "s" }],
            "networkBlockAll": false, "networkAllowList": ["10.0.0.0/8", "192.168.1.0/24"],
            "autoStopMinutes": 5, "autoArchiveMinutes": 0, "autoDeleteMinutes": 0
        }));
        let told = serde_json::to_value(wanted(&all, "sblease-u", None, &INTERVALS)).unwrap();
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
        let nothing = serde_json::to_value(wanted(&lease(&json!({})), "x", None, &INTERVALS)).unwrap();
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
        assert_eq!(drift(&lease, &seen(right), None, &INTERVALS), []);
        let wrong = json!({
            "id": "s", "labels": { "team": "b", "other": 1 },
            "autoStopInterval": 0, "autoArchiveInterval": 10080, "autoDeleteInterval": -1
        });
        let labels = [("other".to_owned(), json!(1)), ("team".to_owned(), json!("a"))].into_iter().collect();
        let all =
            [Setting::AutoStop(5), Setting::AutoArchive(60), Setting::AutoDelete(10_080), Setting::Labels(labels)];
        assert_eq!(drift(&lease, &seen(wrong), None, &INTERVALS), all);
        assert_eq!(
            drift(&lease, &seen(json!({ "id": "s", "labels": { "team": "a" } })), None, &INTERVALS),
            [],
            "Daytona does not tell"
        );
    }

    #[test]
    fn a_sandbox_tells_whose_it_is_when_its_lease_is_gone() {
        let owner = Owner { cluster: "c".to_owned(), namespace: "u-of-n".to_owned() };
        let mut lease = lease(&json!({}));
        let labels = wanted(&lease, "x", Some(&owner), &INTERVALS).labels;
        let of = |name: &str| labels[&format!("daytona-controller.dev/{name}")].clone();
        assert_eq!([of("cluster-id"), of("namespace-uid"), of("reclaim-policy")], ["c", "u-of-n", "Delete"]);
        let sandbox = seen(json!({ "id": "s", "labels": labels }));
        assert_eq!(drift(&lease, &sandbox, Some(&owner), &INTERVALS), []);
        lease.spec.reclaim_policy = ReclaimPolicy::Stop;
        let drift = drift(&lease, &sandbox, Some(&owner), &INTERVALS);
        let [Setting::Labels(labels)] = &drift[..] else { panic!("{drift:?}") };
        assert_eq!(labels["daytona-controller.dev/reclaim-policy"], "Stop");
    }

    #[test]
    fn what_daytona_writes_otherwise_has_not_drifted() {
        let lease = lease(&json!({ "autoArchiveMinutes": 0, "autoDeleteMinutes": -1 }));
        let other =
            json!({ "id": "s", "autoStopInterval": 15, "autoArchiveInterval": 43200, "autoDeleteInterval": -7 });
        assert_eq!(drift(&lease, &seen(other), None, &INTERVALS), []);
    }

    /// The intervals that a lease with this spec gives its sandbox.
    fn asked(spec: Value) -> [Option<i32>; 3] {
        let mut lease = SandboxLease::new("l", serde_json::from_value(spec).unwrap());
        lease.metadata.creation_timestamp = Some(Time("2026-01-31T12:00:00Z".parse().unwrap()));
        minutes(&lease, &lease.spec.sandbox.clone().unwrap_or_default(), &INTERVALS)
    }

    #[test]
    fn a_sandbox_that_is_kept_awake_falls_asleep_when_the_controller_is_gone() {
        assert_eq!(asked(json!({ "sandbox": { "autoStopMinutes": 0 } }))[0], Some(120));
    }

    #[test]
    fn daytona_deletes_nothing_of_a_suspended_lease() {
        assert_eq!(asked(json!({ "suspend": true, "sandbox": { "autoDeleteMinutes": 5 } }))[2], Some(-1));
        assert_eq!(asked(json!({ "sandbox": { "autoDeleteMinutes": 5 } }))[2], Some(5));
    }

    #[test]
    fn an_adopted_sandbox_keeps_what_its_lease_does_not_speak_of() {
        let adopted = json!({ "reclaimPolicy": "Stop", "sandbox": { "adopt": { "id": "s" }, "autoStopMinutes": 7 } });
        assert_eq!(asked(adopted), [Some(7), None, None]);
    }

    #[test]
    fn no_limit_of_daytonas_own_is_longer_than_the_lease() {
        let hour = json!({ "leaseDurationSeconds": 600 });
        assert_eq!(asked(hour), [Some(10), Some(60), Some(10)]);
        let never =
            json!({ "leaseDurationSeconds": 600, "sandbox": { "autoStopMinutes": 0, "autoDeleteMinutes": -1 } });
        assert_eq!(asked(never), [Some(10), Some(60), Some(10)]);
        let kept = json!({ "leaseDurationSeconds": 600, "reclaimPolicy": "Stop" });
        assert_eq!(asked(kept), [Some(10), Some(60), Some(10_080)], "what is kept is not deleted for its lease's end");
        let at_once =
            json!({ "leaseDurationSeconds": 600, "sandbox": { "autoStopMinutes": 5, "autoDeleteMinutes": 0 } });
        assert_eq!(asked(at_once), [Some(5), Some(60), Some(0)]);
    }
}
