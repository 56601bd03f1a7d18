//! How much the stored logs of each namespace hold, by the sizes that they carry.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use crate::api::SourceKind;

/// Sizes by kind, namespace and name.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<HashMap<(SourceKind, String, String), u64>>);

impl Ledger {
    fn with<T>(&self, change: impl FnOnce(&mut HashMap<(SourceKind, String, String), u64>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A log is there; `None`: no longer.
    pub(super) fn note(&self, kind: SourceKind, namespace: &str, name: &str, bytes: Option<u64>) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        self.with(|all| match bytes {
            Some(bytes) => all.insert(key, bytes),
            None => all.remove(&key),
        });
    }

    /// All of this kind are about to be told anew.
    pub(super) fn forget_all(&self, kind: SourceKind) {
        self.with(|all| all.retain(|(of, ..), _| *of != kind));
    }

    /// Bytes of logs in a namespace, these ones apart: they may have been stored before.
    pub(super) fn used(&self, namespace: &str, apart: &[&str]) -> u64 {
        self.with(|all| {
            let counted = all.iter().filter(|((_, of, name), _)| of == namespace && !apart.contains(&name.as_str()));
            counted.map(|(_, bytes)| bytes).sum()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_holds_what_is_there() {
        let ledger = Ledger::default();
        ledger.note(SourceKind::ConfigMap, "a", "one", Some(5));
        ledger.note(SourceKind::ConfigMap, "a", "one", Some(6));
        ledger.note(SourceKind::Secret, "a", "one", Some(7));
        ledger.note(SourceKind::Secret, "b", "one", Some(100));
        assert_eq!(ledger.used("a", &[]), 13);
        assert_eq!(ledger.used("a", &["one"]), 0);
        ledger.note(SourceKind::ConfigMap, "a", "one", None);
        assert_eq!(ledger.used("a", &[]), 7);
        ledger.forget_all(SourceKind::Secret);
        assert_eq!(ledger.used("a", &[]), 0);
    }
}
