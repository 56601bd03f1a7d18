//! What came of the pairs: totals and the last line.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::oracle::{Finding, Wrong};

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
    /// What was found wrong.
    pub found: Found,
    /// What was wrong, or why the fault never was, for a person.
    pub told: Vec<String>,
    /// How long it took.
    #[serde(default)]
    pub seconds: f32,
}

/// How often something was found wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// Scripts that ran more than once.
    pub double_runs: usize,
    /// Things that were left.
    pub leaks: usize,
    /// Outcomes told to be unknown.
    pub unknown: usize,
    /// Anything else.
    pub others: usize,
}

impl Tried {
    /// Judges a run. `missed`: why the fault never was, if it was not.
    #[must_use]
    pub fn judge(pair: String, missed: Option<String>, findings: &[Finding]) -> Self {
        let mut found = Found::default();
        for finding in findings {
            *match finding.wrong {
                Wrong::DoubleRun => &mut found.double_runs,
                Wrong::Leak => &mut found.leaks,
                Wrong::Unknown => &mut found.unknown,
                Wrong::Failure => &mut found.others,
            } += 1;
        }
        // What is wrong is wrong, whether it is the fault's doing or not.
        let verdict = match (findings, &missed) {
            ([], None) => Verdict::Passed,
            ([], Some(_)) => Verdict::Missed,
            _ => Verdict::Failed,
        };
        let told = if findings.is_empty() {
            missed.into_iter().collect()
        } else {
            findings.iter().map(ToString::to_string).collect()
        };
        Self { pair, verdict, found, told, seconds: 0.0 }
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
        let Found { double_runs, leaks, unknown, others } = tried.found;
        self.pairs += 1;
        self.failures += usize::from(others + unknown > 0);
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

    /// Whether nothing was wrong, and something was tried: where no fault was, nothing is shown.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.failures + self.double_runs + self.leaks == 0 && self.pairs > self.missed
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

/// What came of all pairs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The sums.
    pub totals: Totals,
    /// The names of the pairs that were missed or left out.
    pub missed: Vec<String>,
}

impl Report {
    /// Adds a pair that was tried.
    pub fn add(&mut self, tried: &Tried) {
        self.totals.add(tried);
        if tried.verdict == Verdict::Missed {
            self.missed.push(tried.pair.clone());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(pair: &str, fired: bool, wrong: &[Wrong]) -> Tried {
        let findings: Vec<_> = wrong.iter().map(|wrong| Finding::new(*wrong, "x")).collect();
        Tried::judge(pair.to_owned(), (!fired).then(|| "it did not come".to_owned()), &findings)
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
        assert!(Totals { missed: 2, pairs: 3, ..Totals::default() }.is_clean());
        assert!(!Totals { missed: 3, pairs: 3, ..Totals::default() }.is_clean(), "nothing has passed");
        assert!(!Totals::default().is_clean(), "nothing was tried");
    }

    #[test]
    fn a_fault_that_never_was_is_missed_and_never_passed() {
        let missed = tried("a", false, &[]);
        assert_eq!((missed.verdict, missed.told), (Verdict::Missed, vec!["it did not come".to_owned()]));
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
}
