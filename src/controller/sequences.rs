//! The place of each command in its lease's order: its resourceVersion at first sight. It is recorded with the first
//! status; until then, and across the write of the finalizer, which moves the resourceVersion, it is kept here.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use kube::ResourceExt;

use crate::{
    api::SandboxCommand,
    plan::queue::{sequence, unfinished},
};

/// First seen resourceVersions by command UID, of commands whose status does not tell it yet.
#[derive(Debug, Default)]
pub(super) struct Sequences(Mutex<HashMap<String, i64>>);

impl Sequences {
    /// Fills in the command's sequence, if its status does not tell it.
    pub(super) fn accept(&self, command: &mut SandboxCommand) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = command.uid().unwrap_or_default();
        if !unfinished(command) {
            seen.remove(&uid);
            return;
        }
        // It may have been filled in from here, into the watch's copy: what is kept stays until the command has ended.
        if command.status.as_ref().is_some_and(|s| s.sequence.is_some()) {
            return;
        }
        let Some(version) = sequence(command) else { return };
        let first = *seen.entry(uid).or_insert(version);
        command.status.get_or_insert_default().sequence = Some(first);
    }

    /// Forgets all but these.
    pub(super) fn keep(&self, there: &dyn Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| there(uid));
    }

    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::SandboxCommandSpec;

    #[test]
    fn a_place_is_kept_although_the_version_moves() {
        let spec: SandboxCommandSpec =
            serde_json::from_value(serde_json::json!({ "leaseRef": { "name": "l" }, "script": "true" })).unwrap();
        let mut command = SandboxCommand::new("c", spec);
        command.metadata.uid = Some("c".to_owned());
        let sequences = Sequences::default();
        let mut at = |version: &str| {
            command.metadata.resource_version = Some(version.to_owned());
            command.status = None;
            // The watch's copy is accepted, and then looked at.
            sequences.accept(&mut command);
            sequences.accept(&mut command);
            command.status.clone().unwrap().sequence
        };
        assert_eq!([at("7"), at("12")], [Some(7), Some(7)]);
        sequences.forget("c");
        assert_eq!(at("12"), Some(12));
    }
}
