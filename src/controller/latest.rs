//! What was last written of a command, as the apiserver answered. The watch's copy lags behind it, most of all where
//! much is going on; a decision on the older one would be refused with a conflict, and made again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use kube::{
    ResourceExt,
    runtime::{
        reflector::{ObjectRef, Store},
        watcher::Event,
    },
};

use super::watches::prune_command;
use crate::{api::SandboxCommand, plan::queue::sequence};

/// By command UID, until the watch has caught up.
#[derive(Debug, Default)]
pub(super) struct Latest(Mutex<HashMap<String, Arc<SandboxCommand>>>);

impl Latest {
    /// Keeps what a write was answered with, unless `store`, the watch's, has caught up already or has seen it go.
    pub(super) fn note(&self, command: &SandboxCommand, store: &Store<SandboxCommand>) {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = store.get(&ObjectRef::from_obj(command));
        if !seen.is_some_and(|seen| seen.uid() == command.uid() && is_older(&seen, command)) {
            return;
        }
        let mut command = command.clone();
        // As the watch's copy is.
        prune_command(&mut command);
        command.managed_fields_mut().clear();
        written.insert(command.uid().unwrap_or_default(), Arc::new(command));
    }

    /// The newer one of the watch's copy and what was written last.
    pub(super) fn of(&self, seen: SandboxCommand) -> SandboxCommand {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = seen.uid().unwrap_or_default();
        match written.get(&uid) {
            Some(latest) if is_older(&seen, latest) => (**latest).clone(),
            _ => {
                written.remove(&uid);
                seen
            }
        }
    }

    /// As [`Self::of`], for a look at many.
    pub(super) fn newest(&self, seen: &Arc<SandboxCommand>) -> Arc<SandboxCommand> {
        let written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = seen.metadata.uid.as_ref().and_then(|uid| written.get(uid));
        Arc::clone(latest.filter(|latest| is_older(seen, latest)).unwrap_or(seen))
    }

    /// Takes in what the watch has to say, after the store has. A new list knows all that was written before it; what it
    /// does not know yet costs a conflict.
    pub(super) fn take(&self, event: &Event<SandboxCommand>) {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Delete(command) => drop(written.remove(&command.uid().unwrap_or_default())),
            Event::InitDone => written.clear(),
            Event::Apply(command) => {
                let uid = command.uid().unwrap_or_default();
                if written.get(&uid).is_some_and(|latest| !is_older(command, latest)) {
                    written.remove(&uid);
                }
            }
            Event::Init | Event::InitApply(_) => {}
        }
    }
}

/// Whether it is certain that `seen` is the older one.
fn is_older(seen: &SandboxCommand, latest: &SandboxCommand) -> bool {
    sequence(seen).zip(sequence(latest)).is_some_and(|(seen, latest)| seen < latest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_copy_is_looked_at() {
        let command = |version: &str| {
            let spec = serde_json::json!({ "leaseRef": { "name": "l" }, "script": "true" });
            let mut command = SandboxCommand::new("c", serde_json::from_value(spec).unwrap());
            command.metadata.uid = Some("uid".to_owned());
            command.metadata.resource_version = Some(version.to_owned());
            command
        };
        let (reader, mut writer) = kube::runtime::reflector::store();
        writer.apply_watcher_event(&Event::Apply(command("9")));
        let latest = Latest::default();
        let version = |seen: &str| latest.of(command(seen)).metadata.resource_version.unwrap();
        let is_empty = || latest.0.lock().unwrap().is_empty();
        assert_eq!(version("9"), "9");
        latest.note(&command("10"), &reader);
        assert_eq!(version("9"), "10", "numbers, not texts");
        let newest = |seen: &str| latest.newest(&Arc::new(command(seen))).metadata.resource_version.clone().unwrap();
        assert_eq!((newest("9"), newest("11")), ("10".to_owned(), "11".to_owned()));
        assert_eq!(version("11"), "11");
        assert_eq!(version("9"), "9", "the watch had caught up, so it was forgotten");
        latest.note(&command("no number"), &reader);
        assert!(is_empty());
        latest.note(&command("10"), &reader);
        latest.take(&Event::Apply(command("9")));
        assert_eq!(version("9"), "10");
        latest.take(&Event::Apply(command("10")));
        assert!(is_empty(), "the watch has caught up");
        latest.note(&command("10"), &reader);
        latest.take(&Event::Delete(command("10")));
        assert!(is_empty());
        writer.apply_watcher_event(&Event::Apply(command("10")));
        latest.note(&command("10"), &reader);
        assert!(is_empty(), "the watch was faster than the answer");
    }
}
