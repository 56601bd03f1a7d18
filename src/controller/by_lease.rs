//! Which commands name which lease. Every look at a command asks for those beside it; ten thousand of other leases must
//! not be gone through for that.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use kube::{
    ResourceExt,
    runtime::{
        reflector::{ObjectRef, Store},
        watcher::Event,
    },
};

use crate::api::SandboxCommand;

/// Names of commands, by namespace and name of their lease. A command never changes its lease.
#[derive(Debug, Default)]
pub(super) struct ByLease(Mutex<HashMap<(String, String), BTreeSet<String>>>);

impl ByLease {
    /// Takes in what the watch has to say, after the store has.
    pub(super) fn take(&self, event: &Event<SandboxCommand>) {
        let (command, gone) = match event {
            Event::Apply(command) | Event::InitApply(command) => (command, false),
            Event::Delete(command) => (command, true),
            Event::Init | Event::InitDone => return,
        };
        let lease = (command.namespace().unwrap_or_default(), command.spec.lease_ref.name.clone());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if gone {
            remove(&mut all, &lease, &command.name_any());
        } else {
            all.entry(lease).or_default().insert(command.name_any());
        }
    }

    /// The commands of a lease that are in `store`.
    pub(super) fn of(&self, namespace: &str, lease: &str, store: &Store<SandboxCommand>) -> Vec<Arc<SandboxCommand>> {
        let lease = (namespace.to_owned(), lease.to_owned());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names = all.get(&lease).into_iter().flatten();
        let found = names.map(|name| (name.clone(), store.get(&ObjectRef::new(name).within(namespace))));
        let (found, gone): (Vec<_>, Vec<_>) = found.partition(|(_, command)| command.is_some());
        // Deleted while the watch was down: nobody was told.
        for (name, _) in gone {
            remove(&mut all, &lease, &name);
        }
        found.into_iter().filter_map(|(_, command)| command).collect()
    }
}

fn remove(all: &mut HashMap<(String, String), BTreeSet<String>>, lease: &(String, String), name: &str) {
    if let Some(names) = all.get_mut(lease) {
        names.remove(name);
        if names.is_empty() {
            all.remove(lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector::store;

    use super::*;

    fn command(name: &str, lease: &str) -> SandboxCommand {
        let spec = serde_json::json!({ "leaseRef": { "name": lease }, "script": "true" });
        let mut command = SandboxCommand::new(name, serde_json::from_value(spec).unwrap());
        command.metadata.namespace = Some("n".to_owned());
        command
    }

    #[test]
    fn a_lease_has_its_own_commands_and_none_that_is_gone() {
        let (reader, mut writer) = store();
        let commands = ByLease::default();
        let mut watch = |event: Event<SandboxCommand>| {
            writer.apply_watcher_event(&event);
            commands.take(&event);
        };
        let names = |lease: &str| -> Vec<_> {
            commands.of("n", lease, &reader).iter().map(|command| command.name_any()).collect()
        };
        watch(Event::Init);
        watch(Event::InitApply(command("a", "l")));
        watch(Event::InitApply(command("b", "other")));
        watch(Event::InitDone);
        watch(Event::Apply(command("c", "l")));
        assert_eq!((names("l"), names("other")), (vec!["a".to_owned(), "c".to_owned()], vec!["b".to_owned()]));
        watch(Event::Delete(command("a", "l")));
        assert_eq!(names("l"), ["c"]);
        // Listed anew, without the one that was deleted meanwhile.
        watch(Event::Init);
        watch(Event::InitApply(command("b", "other")));
        watch(Event::InitDone);
        assert!(names("l").is_empty());
        assert_eq!(commands.0.lock().unwrap().len(), 1, "and nothing is kept of it");
    }
}
