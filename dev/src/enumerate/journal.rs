//! The file by which a run goes on where another one stopped.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::list::Reference;
use super::report::Tried;
use super::scenario::Scenario;
use super::world::{Trouble, trouble};

/// The first line of a state file.
#[derive(Serialize, Deserialize)]
struct Head {
    programs: String,
}

/// Any other line.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Reference(Reference),
    Tried(Tried),
}

/// The file of what undisturbed runs have shown and of what was tried already, with the same programs. Several processes may
/// write to it: each line is written at once, behind all others.
#[derive(Debug)]
pub struct Journal {
    file: Option<(File, PathBuf)>,
    known: BTreeMap<String, Tried>,
    references: BTreeMap<String, Reference>,
}

impl Journal {
    /// Nothing is kept.
    #[must_use]
    pub fn none() -> Self {
        Self { file: None, known: BTreeMap::new(), references: BTreeMap::new() }
    }

    /// Takes up the file at `path`, unless it is `fresh` or tells of other programs than those with this digest.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn open(path: &Path, programs: &str, fresh: bool) -> Result<Self, Trouble> {
        let text = if fresh { String::new() } else { std::fs::read_to_string(path).unwrap_or_default() };
        let head = text.lines().next().and_then(|line| serde_json::from_str::<Head>(line).ok());
        let same = head.is_some_and(|head| head.programs == programs);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(trouble)?;
        }
        let in_vain = |error| format!("cannot write {}: {error}", path.display());
        if !same {
            std::fs::write(path, []).map_err(in_vain)?;
        }
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(in_vain)?;
        let mut journal = Self { file: Some((file, path.to_owned())), ..Self::none() };
        if !same {
            journal.write(&Head { programs: programs.to_owned() })?;
        } else if !text.ends_with('\n') {
            // The end of a run that was killed: what comes now is no part of that line.
            journal.append("\n")?;
        }
        journal.look_again();
        Ok(journal)
    }

    /// Takes in what others have written meanwhile. A line that was cut short by the end of its run counts for nothing.
    pub fn look_again(&mut self) {
        let Some((_, path)) = &self.file else { return };
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for line in text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
            match line {
                Line::Reference(reference) => self.take_in(reference),
                Line::Tried(tried) => drop(self.known.insert(tried.pair.clone(), tried)),
            }
        }
    }

    fn take_in(&mut self, reference: Reference) {
        match self.references.get_mut(&reference.scenario) {
            Some(known) => known.add(&reference),
            None => drop(self.references.insert(reference.scenario.clone(), reference)),
        }
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), Trouble> {
        let line = serde_json::to_string(line).map_err(trouble)?;
        self.append(&format!("{line}\n"))
    }

    fn append(&mut self, text: &str) -> Result<(), Trouble> {
        let Some((file, path)) = &mut self.file else { return Ok(()) };
        file.write_all(text.as_bytes()).map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// What the undisturbed runs of a scenario have shown, of this time and of all before.
    #[must_use]
    pub fn reference(&self, scenario: Scenario) -> Option<&Reference> {
        self.references.get(scenario.name())
    }

    /// Keeps what an undisturbed run has shown.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn learn(&mut self, reference: Reference) -> Result<(), Trouble> {
        self.write(&reference)?;
        self.take_in(reference);
        Ok(())
    }

    /// What came of a pair before.
    #[must_use]
    pub fn known(&self, pair: &str) -> Option<&Tried> {
        self.known.get(pair)
    }

    /// Keeps what came of a pair.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&mut self, tried: &Tried) -> Result<(), Trouble> {
        self.write(tried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enumerate::fault::Side;
    use crate::enumerate::oracle::{Finding, Wrong};
    use crate::enumerate::report::Verdict;
    use crate::proxy::Call;

    fn tried(pair: &str, wrong: &[Wrong]) -> Tried {
        let findings: Vec<_> = wrong.iter().map(|wrong| Finding::new(*wrong, "x")).collect();
        Tried::judge(pair.to_owned(), None, &findings)
    }

    #[test]
    fn a_run_goes_on_where_the_last_one_stopped_unless_the_programs_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/state");
        Journal::open(&path, "one", false).unwrap().keep(&tried("a", &[])).unwrap();
        // The end of a run that was killed.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"pair\":\"b").unwrap();
        let mut again = Journal::open(&path, "one", false).unwrap();
        assert!(again.known("a").is_some() && again.known("b").is_none());
        again.keep(&tried("c", &[Wrong::Leak])).unwrap();
        let again = Journal::open(&path, "one", false).unwrap();
        assert_eq!(
            again.known("c").map(|tried| tried.verdict),
            Some(Verdict::Failed),
            "after a line that was cut short"
        );
        assert!(Journal::open(&path, "one", true).unwrap().known("a").is_none());
        Journal::open(&path, "one", false).unwrap().keep(&tried("a", &[])).unwrap();
        assert!(Journal::open(&path, "two", false).unwrap().known("a").is_none());
    }

    #[test]
    fn the_calls_of_all_runs_are_kept_and_two_that_write_at_once_have_one_list() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let reference = |nth| {
            let route = "POST /api/sandbox".to_owned();
            let call = Call { method: axum::http::Method::POST, route, nth, status: Some(200), ..Call::default() };
            Reference::of(Scenario::Sessions, &[(Side::Daytona, call)], serde_json::Value::from(nth))
        };
        let mut one = Journal::open(&path, "one", false).unwrap();
        let mut other = Journal::open(&path, "one", false).unwrap();
        one.learn(reference(1)).unwrap();
        other.learn(reference(2)).unwrap();
        other.keep(&tried("a", &[])).unwrap();
        one.look_again();
        assert!(one.known("a").is_some());
        for journal in [one, Journal::open(&path, "one", false).unwrap()] {
            assert_eq!(journal.reference(Scenario::Sessions).unwrap().calls(), 2);
            assert!(journal.reference(Scenario::OneShot).is_none());
        }
        assert!(Journal::open(&path, "two", false).unwrap().reference(Scenario::Sessions).is_none());
    }
}
