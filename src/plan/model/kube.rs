//! The Kubernetes API: objects, and the rules by which they are written.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::event::{COMMANDS, Scenario, Wants};
use crate::api::{SandboxCommand, SandboxCommandStatus, SandboxLease};

/// The name of the only lease.
pub(super) const LEASE: &str = "l";

/// Another than the one that was decided on is there now.
#[derive(Debug)]
pub(super) struct Conflict;

#[derive(Debug, Default)]
pub(super) struct Kube {
    version: i64,
    uids: u32,
    pub(super) writes: usize,
    pub(super) lease: Option<SandboxLease>,
    pub(super) commands: [Option<SandboxCommand>; COMMANDS],
    /// As the watches show them.
    pub(super) seen_lease: Option<SandboxLease>,
    pub(super) seen_commands: [Option<SandboxCommand>; COMMANDS],
    /// The last status of each command, also when it is gone.
    pub(super) last: [Option<SandboxCommandStatus>; COMMANDS],
}

impl Kube {
    fn stamp<K: Resource>(&mut self, object: &mut K) {
        self.version += 1;
        object.meta_mut().resource_version = Some(self.version.to_string());
    }

    fn created<K: Resource>(&mut self, object: &mut K, uid: String, now: Timestamp) {
        let meta = object.meta_mut();
        (meta.uid, meta.generation, meta.namespace) = (Some(uid), Some(1), Some("n".to_owned()));
        meta.creation_timestamp = Some(Time(now));
        self.stamp(object);
    }

    /// Its UID.
    pub(super) fn create_lease(&mut self, scenario: &Scenario, now: Timestamp) -> String {
        let sandbox = match scenario.wants {
            Wants::Own => json!({}),
            Wants::Adopted => json!({ "adopt": { "id": "adopted" } }),
            Wants::Reused => json!({ "reuseKey": "k" }),
        };
        let spec = json!({
            "useSessions": scenario.sessions, "maxParallelCommands": scenario.parallel, "sandbox": sandbox,
            "leaseDurationSeconds": scenario.lasts,
        });
        let mut lease = SandboxLease::new(LEASE, serde_json::from_value(spec).unwrap());
        lease.spec.reclaim_policy = scenario.reclaim;
        self.uids += 1;
        let uid = format!("lease-{}", self.uids);
        self.created(&mut lease, uid.clone(), now);
        // As the schema has it.
        lease.status = Some(serde_json::from_value(json!({ "observedGeneration": -1 })).unwrap());
        self.lease = Some(lease);
        uid
    }

    pub(super) fn create_command(&mut self, which: usize, scenario: &Scenario, now: Timestamp) {
        let spec = json!({
            "leaseRef": { "name": LEASE }, "script": "true", "timeoutSeconds": 60,
            "startingDeadlineSeconds": scenario.scripts[which].deadline,
        });
        let mut command = SandboxCommand::new(&format!("c{which}"), serde_json::from_value(spec).unwrap());
        self.created(&mut command, format!("command-{which}"), now);
        self.commands[which] = Some(command);
    }

    /// Somebody changes a lease's spec, or touches it.
    pub(super) fn change_lease(&mut self, change: impl FnOnce(&mut SandboxLease)) {
        let Some(mut lease) = self.lease.take() else { return };
        let before = lease.spec.clone();
        change(&mut lease);
        if lease.spec != before {
            lease.metadata.generation = lease.metadata.generation.map(|g| g + 1);
        }
        self.stamp(&mut lease);
        self.lease = Some(lease);
    }

    pub(super) fn change_command(&mut self, which: usize, change: impl FnOnce(&mut SandboxCommand)) {
        let Some(mut command) = self.commands[which].take() else { return };
        let before = command.spec.clone();
        change(&mut command);
        if command.spec != before {
            command.metadata.generation = command.metadata.generation.map(|g| g + 1);
        }
        self.stamp(&mut command);
        self.commands[which] = Some(command);
    }

    pub(super) fn delete_lease(&mut self, now: Timestamp) {
        if let Some(mut lease) = self.lease.take() {
            self.lease = self.deleted(&mut lease, now).then_some(lease);
        }
    }

    pub(super) fn delete_command(&mut self, which: usize, now: Timestamp) {
        if let Some(mut command) = self.commands[which].take() {
            self.commands[which] = self.deleted(&mut command, now).then_some(command);
        }
    }

    /// Asks for the deletion; false: it is gone.
    fn deleted<K: Resource>(&mut self, object: &mut K, now: Timestamp) -> bool {
        if object.finalizers().is_empty() {
            return false;
        }
        if object.meta().deletion_timestamp.is_none() {
            let meta = object.meta_mut();
            meta.deletion_timestamp = Some(Time(now));
            meta.generation = meta.generation.map(|g| g + 1);
            self.stamp(object);
        }
        true
    }

    /// Writes a lease as `change` has it; `None`: it is gone.
    pub(super) fn write_lease(
        &mut self,
        decided: &SandboxLease,
        change: impl FnOnce(&mut SandboxLease),
    ) -> Result<Option<SandboxLease>, Conflict> {
        let Some(mut lease) = self.lease.clone() else { return Ok(None) };
        let now = self.write(&mut lease, decided, change)?;
        self.lease = now.then(|| lease.clone());
        Ok(Some(lease))
    }

    pub(super) fn write_command(
        &mut self,
        which: usize,
        decided: &SandboxCommand,
        change: impl FnOnce(&mut SandboxCommand),
    ) -> Result<Option<SandboxCommand>, Conflict> {
        let Some(mut command) = self.commands[which].clone() else { return Ok(None) };
        let now = self.write(&mut command, decided, change)?;
        self.last[which] = command.status.clone();
        self.commands[which] = now.then(|| command.clone());
        Ok(Some(command))
    }

    /// Whether it is still there afterwards.
    /// Whether a command, if it is there, is still the one that was decided on.
    pub(super) fn writable_command(&self, which: usize, decided: &SandboxCommand) -> Result<(), Conflict> {
        self.commands[which].as_ref().map_or(Ok(()), |live| same(live, decided))
    }

    fn write<K: Resource>(&mut self, live: &mut K, decided: &K, change: impl FnOnce(&mut K)) -> Result<bool, Conflict> {
        same(live, decided)?;
        change(live);
        self.writes += 1;
        self.stamp(live);
        Ok(live.meta().deletion_timestamp.is_none() || !live.finalizers().is_empty())
    }
}

fn same<K: Resource>(live: &K, decided: &K) -> Result<(), Conflict> {
    let identity = |object: &K| (object.meta().uid.clone(), object.meta().resource_version.clone());
    if identity(live) == identity(decided) { Ok(()) } else { Err(Conflict) }
}
