//! How much the stored logs of each namespace hold, by the sizes that they carry.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use crate::api::SourceKind;

/// Kind, namespace and name.
type Place = (SourceKind, String, String);

#[derive(Debug, Default)]
struct Inside {
    sizes: HashMap<Place, u64>,
    /// What a list that is under way has told so far.
    listing: HashMap<SourceKind, HashMap<Place, u64>>,
}

/// Sizes of the logs that are there, or about to be.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Inside>);

impl Ledger {
    fn with<T>(&self, change: impl FnOnce(&mut Inside) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A log is there; `None`: no longer.
    pub(super) fn note(&self, kind: SourceKind, namespace: &str, name: &str, bytes: Option<u64>) {
        let place = (kind, namespace.to_owned(), name.to_owned());
        self.with(|all| match bytes {
            Some(bytes) => all.sizes.insert(place, bytes),
            None => all.sizes.remove(&place),
        });
    }

    /// All of this kind are about to be told anew.
    pub(super) fn begin_list(&self, kind: SourceKind) {
        self.with(|all| all.listing.insert(kind, HashMap::new()));
    }

    /// A log is in the list.
    pub(super) fn list(&self, kind: SourceKind, namespace: &str, name: &str, bytes: u64) {
        let place = (kind, namespace.to_owned(), name.to_owned());
        self.with(|all| all.listing.entry(kind).or_default().insert(place, bytes));
    }

    /// The list is complete: what is not in it is not there.
    pub(super) fn end_list(&self, kind: SourceKind) {
        self.with(|all| {
            let listed = all.listing.remove(&kind).unwrap_or_default();
            all.sizes.retain(|(of, ..), _| *of != kind);
            all.sizes.extend(listed);
        });
    }

    /// Takes room for logs in a namespace, or tells how much is used. Those that are there already take none.
    pub(super) fn take(&self, namespace: &str, logs: &[(SourceKind, &str, u64)], budget: u64) -> Result<(), u64> {
        self.with(|all| {
            let place = |(kind, name): (SourceKind, &str)| (kind, namespace.to_owned(), name.to_owned());
            let apart: Vec<Place> = logs.iter().map(|(kind, name, _)| place((*kind, *name))).collect();
            let counted = all.sizes.iter().filter(|(at, _)| at.1 == namespace && !apart.contains(at));
            let used: u64 = counted.map(|(_, bytes)| bytes).sum();
            let wanted: u64 = logs.iter().map(|(.., bytes)| bytes).sum();
            if used.saturating_add(wanted) > budget {
                return Err(used);
            }
            all.sizes.extend(apart.into_iter().zip(logs.iter().map(|(.., bytes)| *bytes)));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: SourceKind = SourceKind::ConfigMap;

    #[test]
    fn a_namespace_holds_no_more_than_it_may() {
        let ledger = Ledger::default();
        assert_eq!(ledger.take("a", &[(MAP, "one", 6), (SourceKind::Secret, "one", 2)], 10), Ok(()));
        assert_eq!(ledger.take("a", &[(MAP, "one", 7)], 10), Ok(()), "it is there already");
        assert_eq!(ledger.take("a", &[(MAP, "two", 2)], 10), Err(9));
        assert_eq!(ledger.take("b", &[(MAP, "two", 2)], 10), Ok(()));
        ledger.note(MAP, "a", "one", None);
        assert_eq!(ledger.take("a", &[(MAP, "two", 8)], 10), Ok(()));
    }

    #[test]
    fn a_list_takes_the_place_of_what_was_known_when_it_is_complete() {
        let ledger = Ledger::default();
        ledger.note(MAP, "a", "gone", Some(6));
        ledger.note(SourceKind::Secret, "a", "kept", Some(1));
        ledger.begin_list(MAP);
        ledger.list(MAP, "a", "listed", 3);
        assert_eq!(ledger.take("a", &[(MAP, "x", 4)], 10), Err(7), "it counts as before until the list is complete");
        ledger.end_list(MAP);
        assert_eq!(ledger.take("a", &[(MAP, "x", 7)], 10), Err(4));
    }
}
