//! Who may run in which lease. What the watches show may be behind: a command that was let start a moment ago can
//! still look like one that waits.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Started commands by lease UID and command UID, with whether their shell state carries over.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<HashMap<String, HashMap<String, bool>>>);

impl Slots {
    /// Takes a place for a command, if there is one beside those that are taken and those that are seen to run.
    pub(super) fn take(
        &self,
        lease: &str,
        command: (&str, bool),
        parallel: usize,
        running: impl IntoIterator<Item = (String, bool)>,
    ) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = all.entry(lease.to_owned()).or_default();
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

    #[test]
    fn no_more_start_than_may_run() {
        let slots = Slots::default();
        let none: [(String, bool); 0] = [];
        assert!(slots.take("l", ("a", false), 2, none.clone()));
        assert!(slots.take("l", ("a", false), 2, none.clone()), "it has its place already");
        assert!(slots.take("l", ("b", true), 2, none.clone()));
        assert!(!slots.take("l", ("c", false), 2, none.clone()));
        assert!(!slots.take("l", ("c", true), 3, none.clone()), "another carries the shell state");
        assert!(slots.take("other", ("c", true), 1, none.clone()));
        let taken = |lease| slots.taken(lease, |_| true);
        assert_eq!((taken("l"), taken("nobody"), slots.taken("l", |command| command != "a")), (2, 0, 1));
        slots.leave("b");
        assert!(slots.take("l", ("d", true), 2, none));
        assert!(!slots.take("seen", ("e", false), 1, [("f".to_owned(), false)]), "one is seen to run");
        assert!(slots.take("seen", ("e", false), 1, []), "it is seen to run no more");
    }
}
