//! What came of the pairs: totals, the last line, and the file by which a run goes on where another one stopped.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::oracle::{Finding, Wrong};
use super::world::{Trouble, trouble};

/// What came of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// All was as in the undisturbed run.
    Passed,
    /// It was not.
    Failed,
    /// The fault never was: the call did not come.
    Missed,
}

/// A pair that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tried {
    /// Its name.
    pub pair: String,
    /// What came of it.
    pub verdict: Verdict,
    /// How many double runs, leaks and outcomes that were told to be unknown were found, and how often something else.
    pub found: [usize; 4],
    /// What was wrong, for a person.
    pub told: Vec<String>,
    /// How long it took.
    #[serde(default)]
    pub seconds: f32,
}

impl Tried {
    /// Judges a run.
    #[must_use]
    pub fn judge(pair: String, fired: bool, findings: &[Finding]) -> Self {
        let count = |wrong| findings.iter().filter(|finding| finding.wrong == wrong).count();
        let found = [Wrong::DoubleRun, Wrong::Leak, Wrong::Unknown, Wrong::Failure].map(count);
        // What is wrong is wrong, whether it is the fault's doing or not.
        let verdict = match (findings, fired) {
            ([], true) => Verdict::Passed,
            ([], false) => Verdict::Missed,
            _ => Verdict::Failed,
        };
        Self { pair, verdict, found, told: findings.iter().map(ToString::to_string).collect(), seconds: 0.0 }
    }
}

/// The sums. As text it is the last line of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// All pairs that there are, those left out among them.
    pub pairs: usize,
    /// Pairs in which something was wrong other than what stands below.
    pub failures: usize,
    /// Scripts that ran more than once.
    pub double_runs: usize,
    /// Things that were left.
    pub leaks: usize,
    /// Outcomes told to be unknown. No fault here destroys the evidence, so each of these is a failure as well.
    pub unknown: usize,
    /// Pairs whose fault never was, or that were left out.
    pub missed: usize,
}

impl Totals {
    /// Adds a pair that was tried.
    pub fn add(&mut self, tried: &Tried) {
        let [double_runs, leaks, unknown, other] = tried.found;
        self.pairs += 1;
        self.failures += usize::from(other + unknown > 0);
        self.double_runs += double_runs;
        self.leaks += leaks;
        self.unknown += unknown;
        self.missed += usize::from(tried.verdict == Verdict::Missed);
    }

    /// Adds pairs that were left out.
    pub fn left_out(&mut self, pairs: usize) {
        self.pairs += pairs;
        self.missed += pairs;
    }

    /// Whether nothing was wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.failures + self.double_runs + self.leaks == 0
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pairs, failures, double_runs, leaks, unknown, missed } = self;
        write!(
            f,
            "pairs={pairs} failures={failures} double_runs={double_runs} leaks={leaks} unknown={unknown} missed={missed}"
        )
    }
}

/// A part of all pairs: each is in exactly one part, by its name alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Which part, from 1.
    pub index: u64,
    /// Of how many.
    pub of: u64,
}

impl Shard {
    /// All of it.
    pub const WHOLE: Self = Self { index: 1, of: 1 };

    /// Whether a pair is in it.
    #[must_use]
    pub fn has(self, pair: &str) -> bool {
        place(pair) % self.of == self.index - 1
    }
}

/// Where a pair stands among all others: by its name, in no order that means anything.
#[must_use]
pub fn place(pair: &str) -> u64 {
    let digest = Sha256::digest(pair.as_bytes());
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no part such as 1/4");
        let (index, of) = text.split_once('/').ok_or_else(wrong)?;
        let (index, of) = (index.parse().map_err(|_| wrong())?, of.parse().map_err(|_| wrong())?);
        if (1..=of).contains(&index) { Ok(Self { index, of }) } else { Err(wrong()) }
    }
}

/// The first line of a state file.
#[derive(Serialize, Deserialize)]
struct Head {
    programs: String,
}

/// The file of what was tried already, with the same programs.
#[derive(Debug)]
pub struct Journal {
    file: Option<File>,
    known: BTreeMap<String, Tried>,
}

impl Journal {
    /// Nothing is kept.
    #[must_use]
    pub fn none() -> Self {
        Self { file: None, known: BTreeMap::new() }
    }

    /// Takes up the file at `path`, unless it is `fresh` or tells of other programs than those with this digest.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn open(path: &Path, programs: &str, fresh: bool) -> Result<Self, Trouble> {
        let text = if fresh { String::new() } else { std::fs::read_to_string(path).unwrap_or_default() };
        let mut lines = text.lines();
        let head = lines.next().and_then(|line| serde_json::from_str::<Head>(line).ok());
        let same = head.is_some_and(|head| head.programs == programs);
        // A line that was cut short by the end of its run is tried again.
        let known = lines.filter(|_| same).filter_map(|line| serde_json::from_str::<Tried>(line).ok());
        let known: BTreeMap<String, Tried> = known.map(|tried| (tried.pair.clone(), tried)).collect();
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(trouble)?;
        }
        let opened = OpenOptions::new().create(true).append(same).write(true).truncate(!same).open(path);
        let mut file = opened.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        if !same {
            let head = serde_json::to_string(&Head { programs: programs.to_owned() }).map_err(trouble)?;
            writeln!(file, "{head}").map_err(trouble)?;
        }
        Ok(Self { file: Some(file), known })
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
        let Some(file) = &mut self.file else { return Ok(()) };
        let line = serde_json::to_string(tried).map_err(trouble)?;
        writeln!(file, "{line}").map_err(trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(pair: &str, fired: bool, wrong: &[Wrong]) -> Tried {
        let findings: Vec<_> = wrong.iter().map(|wrong| Finding::new(*wrong, "x")).collect();
        Tried::judge(pair.to_owned(), fired, &findings)
    }

    #[test]
    fn the_last_line_has_all_sums() {
        let mut totals = Totals::default();
        for tried in [
            tried("a", true, &[]),
            tried("b", false, &[]),
            tried("c", true, &[Wrong::Failure, Wrong::Failure, Wrong::DoubleRun]),
            tried("d", true, &[Wrong::Leak, Wrong::Leak]),
            tried("e", true, &[Wrong::Unknown]),
        ] {
            totals.add(&tried);
        }
        totals.left_out(2);
        assert_eq!(totals.to_string(), "pairs=7 failures=2 double_runs=1 leaks=2 unknown=1 missed=3");
        assert!(!totals.is_clean());
        assert!(Totals { missed: 3, pairs: 3, ..Totals::default() }.is_clean());
    }

    #[test]
    fn a_fault_that_never_was_is_missed_and_never_passed() {
        assert_eq!(tried("a", false, &[]).verdict, Verdict::Missed);
        assert_eq!(tried("a", false, &[Wrong::Leak]).verdict, Verdict::Failed);
        assert_eq!(tried("a", true, &[]).verdict, Verdict::Passed);
    }

    #[test]
    fn each_pair_is_in_one_part() {
        let parts: Vec<Shard> = (1..=3).map(|index| Shard { index, of: 3 }).collect();
        for pair in (0..50).map(|number| format!("pair {number}")) {
            assert_eq!(parts.iter().filter(|part| part.has(&pair)).count(), 1, "{pair}");
        }
        assert!(parts.iter().all(|part| (0..50).any(|number| part.has(&format!("pair {number}")))));
        assert_eq!("2/3".parse(), Ok(Shard { index: 2, of: 3 }));
        assert!(["0/3", "4/3", "1", "a/b", "1/0"].iter().all(|text| text.parse::<Shard>().is_err()));
    }

    #[test]
    fn a_run_goes_on_where_the_last_one_stopped_unless_the_programs_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/state");
        Journal::open(&path, "one", false).unwrap().keep(&tried("a", true, &[])).unwrap();
        // The end of a run that was killed.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"pair\":\"b").unwrap();
        let again = Journal::open(&path, "one", false).unwrap();
        assert!(again.known("a").is_some() && again.known("b").is_none());
        assert!(Journal::open(&path, "one", true).unwrap().known("a").is_none());
        Journal::open(&path, "one", false).unwrap().keep(&tried("a", true, &[])).unwrap();
        assert!(Journal::open(&path, "two", false).unwrap().known("a").is_none());
    }
}
