//! Who may run in which lease. What the watches show may be behind: a command that was let start a moment ago can
//! still look like one that waits.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
};

/// A command of a lease.
pub(super) struct Other {
    pub(super) uid: String,
    pub(super) runs: bool,
    /// Whether its shell state carries over.
    pub(super) persists: bool,
}

/// Started commands by lease UID and command UID, with whether their shell state carries over.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<HashMap<String, HashMap<String, bool>>>);

impl Slots {
    /// Takes a place for a command, if there is one beside those that are taken and those that are seen to run. `others`
    /// are the lease's commands, with whether each runs: whatever else has a place was deleted before it could start.
    pub(super) fn take(
        &self,
        lease: &str,
        command: (&str, bool),
        parallel: usize,
        others: impl IntoIterator<Item = Other>,
    ) -> bool {
        let (mut there, mut running) = (HashSet::new(), Vec::new());
        for Other { uid, runs, persists } in others {
            if runs {
                running.push((uid.clone(), persists));
            }
            there.insert(uid);
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = all.entry(lease.to_owned()).or_default();
        slots.retain(|uid, _| there.contains(uid));
        // What is seen is not kept: it may have ended.
        let mut others = slots.clone();
        others.extend(running);
        others.remove(command.0);
        let free = others.len() < parallel && !(command.1 && others.values().any(|persists| *persists));
        if free {
            slots.insert(command.0.to_owned(), command.1);
        }
        free
    }

    /// How many commands of the lease, of those that count, have a place.
    pub(super) fn taken(&self, lease: &str, counts: impl Fn(&str) -> bool) -> usize {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(lease).map_or(0, |slots| slots.keys().filter(|command| counts(command)).count())
    }

    /// The command does not run any more.
    pub(super) fn leave(&self, command: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, slots| {
            slots.remove(command);
            !slots.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(running: &[&str], waiting: &[&str]) -> Vec<Other> {
        let other = |uid: &&str, runs| Other { uid: (*uid).to_owned(), runs, persists: false };
        running.iter().map(|uid| other(uid, true)).chain(waiting.iter().map(|uid| other(uid, false))).collect()
    }

    #[test]
    fn no_more_start_than_may_run() {
        let slots = Slots::default();
        let all = || others(&[], &["a", "b", "c", "d"]);
        assert!(slots.take("l", ("a", false), 2, all()));
        assert!(slots.take("l", ("a", false), 2, all()), "it has its place already");
        assert!(slots.take("l", ("b", true), 2, all()));
        assert!(!slots.take("l", ("c", false), 2, all()));
        assert!(!slots.take("l", ("c", true), 3, all()), "another carries the shell state");
        assert!(slots.take("other", ("c", true), 1, others(&[], &["c"])));
        let taken = |lease| slots.taken(lease, |_| true);
        assert_eq!((taken("l"), taken("nobody"), slots.taken("l", |command| command != "a")), (2, 0, 1));
        slots.leave("b");
        assert!(slots.take("l", ("d", true), 2, all()));
        assert!(!slots.take("seen", ("e", false), 1, others(&["f"], &["e"])), "one is seen to run");
        assert!(slots.take("seen", ("e", false), 1, others(&[], &["e", "f"])), "it is seen to run no more");
    }

    #[test]
    fn what_is_gone_has_no_place() {
        let slots = Slots::default();
        assert!(slots.take("l", ("deleted while it was let start", false), 1, others(&[], &["a"])));
        assert!(slots.take("l", ("a", false), 1, others(&[], &["a"])));
        assert!(!slots.take("l", ("b", false), 1, others(&[], &["a", "b"])));
    }
}
