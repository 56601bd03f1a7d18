//! Which commands name which lease. Every look at a command asks for those beside it, and must not go through
//! ten thousand of other leases for that.

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
type Names = HashMap<(String, String), BTreeSet<String>>;

/// The index: what is known, and the list that is just being read.
#[derive(Debug, Default)]
pub(super) struct ByLease(Mutex<(Names, Names)>);

impl ByLease {
    /// Takes in what the watch has to say, after the store has. Like the store, it keeps to what it knows until a list
    /// is complete.
    pub(super) fn take(&self, event: &Event<SandboxCommand>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, listed) = &mut *all;
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(command) => insert(listed, command),
            Event::InitDone => *known = std::mem::take(listed),
            Event::Apply(command) => insert(known, command),
            Event::Delete(command) => {
                let lease = lease_of(command);
                if let Some(names) = known.get_mut(&lease) {
                    names.remove(&command.name_any());
                    if names.is_empty() {
                        known.remove(&lease);
                    }
                }
            }
        }
    }

    /// The commands of a lease that are in `store`.
    pub(super) fn of(&self, namespace: &str, lease: &str, store: &Store<SandboxCommand>) -> Vec<Arc<SandboxCommand>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names = all.0.get(&(namespace.to_owned(), lease.to_owned())).into_iter().flatten();
        names.filter_map(|name| store.get(&ObjectRef::new(name).within(namespace))).collect()
    }

    /// Every lease that some command names, as namespace and name.
    pub(super) fn leases(&self) -> Vec<(String, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.keys().cloned().collect()
    }
}

fn insert(names: &mut Names, command: &SandboxCommand) {
    names.entry(lease_of(command)).or_default().insert(command.name_any());
}

fn lease_of(command: &SandboxCommand) -> (String, String) {
    (command.namespace().unwrap_or_default(), command.spec.lease_ref.name.clone())
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
        // Listed anew, without one that was deleted meanwhile; until the list is complete all is as before.
        watch(Event::Init);
        watch(Event::InitApply(command("b", "other")));
        watch(Event::InitApply(command("d", "l")));
        assert_eq!((names("l"), names("other")), (vec!["c".to_owned()], vec!["b".to_owned()]));
        watch(Event::InitDone);
        assert_eq!(names("l"), ["d"], "although it was asked for before the list was complete");
        assert_eq!(commands.leases().len(), 2);
    }
}
