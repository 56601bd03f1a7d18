//! What has to hold at the end of a run, read from the outside: what the scripts themselves wrote down, what the local
//! Daytona and this machine's process table show, what a watch from outside has seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::follow::State;
use super::others::{self, Before};
use super::outside::processes;
use super::world::{Trouble, World, trouble};
use crate::local_daytona::SandboxReport;
use crate::wait;

/// What the cluster may take to clear away what has lost its owner. A new cluster learns within half a minute that there
/// is a kind which can own something.
const CLEARING: Duration = Duration::from_mins(1);
/// What the controller may take for what nobody waits for: the copy of a key goes some seconds after the last lease,
/// later where the controller is killed at it. Of sandboxes and their processes nothing is left when a lease is gone.
const TIDYING: Duration = Duration::from_secs(20);

/// What was found wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    /// Something else than the undisturbed run, or no end at all.
    Failure,
    /// A script ran more than once.
    DoubleRun,
    /// Something is left.
    Leak,
    /// An outcome is told to be unknown although it was known.
    Unknown,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its kind.
    pub wrong: Wrong,
    /// What it is.
    pub text: String,
}

impl Finding {
    /// A finding.
    #[must_use]
    pub fn new(wrong: Wrong, text: impl Into<String>) -> Self {
        Self { wrong, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrong = match self.wrong {
            Wrong::Failure => "failure",
            Wrong::DoubleRun => "double run",
            Wrong::Leak => "leak",
            Wrong::Unknown => "unknown",
        };
        write!(f, "{wrong}: {}", self.text)
    }
}

/// What the scripts wrote: `begin NAME` when they began, `end NAME CODE` right before they exited by themselves.
#[must_use]
pub fn scripts(written: &str, commands: &BTreeSet<String>) -> Vec<Finding> {
    let mut begun: BTreeMap<&str, usize> = BTreeMap::new();
    for name in written.lines().filter_map(|line| line.strip_prefix("begin ")) {
        *begun.entry(name).or_default() += 1;
    }
    let mut found: Vec<Finding> = begun
        .iter()
        .filter(|(_, count)| **count > 1)
        .map(|(name, count)| Finding::new(Wrong::DoubleRun, format!("{name} ran {count} times")))
        .collect();
    let never = commands.iter().filter(|name| !begun.contains_key(name.as_str()));
    found.extend(never.map(|name| Finding::new(Wrong::Failure, format!("{name} never ran"))));
    found
}

/// What the statuses tell is what the shells saw. `ended`: the commands that may have been ended by somebody else than
/// themselves.
#[must_use]
pub fn outcomes(written: &str, statuses: &BTreeMap<String, Value>, ended: &BTreeSet<String>) -> Vec<Finding> {
    let mut found = Vec::new();
    let ends: BTreeMap<&str, &str> =
        written.lines().filter_map(|line| line.strip_prefix("end ")?.split_once(' ')).collect();
    for (name, status) in statuses {
        let finished = status.get("state").is_some_and(|state| state == "Finished");
        let object = json!({ "status": status });
        let reason = super::follow::condition(&object, "Succeeded").get("reason").cloned().unwrap_or_default();
        let code = status.get("exitCode").and_then(Value::as_i64);
        if UNKNOWN.iter().any(|unknown| reason == *unknown) {
            found.push(Finding::new(Wrong::Unknown, format!("{name}: {reason}")));
            continue;
        }
        let seen = ends.get(name.as_str()).and_then(|code| code.parse::<i64>().ok());
        let may_be_ended = ended.contains(name);
        // Nobody exits with such a code unless a signal ends it.
        let by_signal = |code: i64| may_be_ended && code >= 128;
        let wrong = match (seen, code) {
            // It may have been about to exit by itself.
            (Some(seen), Some(code)) => seen != code && !by_signal(code),
            (None, Some(code)) => !by_signal(code),
            (Some(_), None) => finished,
            (None, None) => finished && !may_be_ended,
        };
        if wrong {
            let text = format!("{name}: its shell saw {seen:?}, its status tells {code:?} ({reason})");
            found.push(Finding::new(Wrong::Failure, text));
        }
    }
    found
}

/// Reasons by which the outcome is unknown. No sandbox and no session is lost here but by the controller.
const UNKNOWN: [&str; 4] = ["OutcomeUnknown", "AlreadyExecuted", "SessionLost", "SandboxLost"];

/// How each command ended: the last that was seen of it, its own deletion included. `at_once`: those that ran when they
/// and their lease were deleted together; which of the two deletions the controller hears of first is a matter of time
/// alone, so either's reason is right.
#[must_use]
pub fn ends(statuses: &BTreeMap<String, Value>, at_once: &[&str]) -> Value {
    let end = |name: &str, status: &Value| {
        let object = json!({ "status": status });
        let reason = super::follow::condition(&object, "Succeeded").get("reason").cloned().unwrap_or_default();
        let either = at_once.contains(&name) && EITHER.iter().any(|one| reason == *one);
        let reason = if either { EITHER.join(" or ").into() } else { reason };
        json!([status.get("state"), reason, status.get("exitCode")])
    };
    statuses.iter().map(|(name, status)| (name.clone(), end(name, status))).collect::<Map<_, _>>().into()
}

/// Why a command was ended whose lease was deleted with it.
const EITHER: [&str; 2] = ["Cancelled", "LeaseEnded"];

/// In what it differs from the undisturbed run, part by part.
#[must_use]
pub fn differences(undisturbed: &Value, now: &Value) -> Vec<Finding> {
    let (Value::Object(was), Value::Object(is)) = (undisturbed, now) else {
        let text = format!("there is {now}, and undisturbed {undisturbed}");
        return if undisturbed == now { Vec::new() } else { vec![Finding::new(Wrong::Failure, text)] };
    };
    let parts: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let pairs = parts.into_iter().map(|part| {
        let of = |all: &Map<String, Value>| all.get(part).cloned().unwrap_or_default();
        (part, of(was), of(is))
    });
    let other = pairs.filter(|(_, was, is)| was != is);
    let told = |(part, was, is)| format!("{part}: there is {is}, and undisturbed {was}");
    other.map(|other| Finding::new(Wrong::Failure, told(other))).collect()
}

/// Everything at the end of a run after which nothing is to be left. `gone`: the namespace itself is.
///
/// # Errors
/// When something cannot be read.
pub async fn all(
    world: &World,
    before: &Before,
    gone: bool,
    written: &str,
    seen: &Told,
) -> Result<Vec<Finding>, Trouble> {
    let mut found = scripts(written, &seen.commands);
    found.extend(outcomes(written, &seen.statuses, &seen.ended));
    found.extend(seen.changed.iter().map(|text| Finding::new(Wrong::Failure, text)));
    found.extend(left(world, before, gone).await?);
    found.extend(before.touched(world).await?);
    Ok(found)
}

/// What a watch from outside has seen of a run.
#[derive(Debug, Default)]
pub struct Told {
    /// The commands that should have run.
    pub commands: BTreeSet<String>,
    /// Those that may have been ended by somebody else than themselves.
    pub ended: BTreeSet<String>,
    /// The last status of each.
    pub statuses: BTreeMap<String, Value>,
    /// Finished results that changed.
    pub changed: Vec<String>,
}

impl Told {
    /// What was seen, of commands that should have run.
    #[must_use]
    pub fn of(state: &State, commands: BTreeSet<String>) -> Self {
        let (statuses, changed) = (state.statuses.clone(), state.changed.clone());
        Self { commands, ended: BTreeSet::new(), statuses, changed }
    }

    /// The same, where these may have been ended.
    #[must_use]
    pub fn of_which_ended(self, ended: BTreeSet<String>) -> Self {
        Self { ended, ..self }
    }
}

/// What is left once everybody had the time to clear away.
async fn left(world: &World, before: &Before, gone: bool) -> Result<Vec<Finding>, Trouble> {
    let mut found = until_nothing(TIDYING, async || ours(world, before).await).await?;
    if !gone {
        let beside = async || Ok(before.compared(&others::objects(world).await?, &world.namespace));
        found.extend(until_nothing(CLEARING, beside).await?);
    }
    Ok(found)
}

async fn until_nothing(
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<Vec<Finding>, Trouble>,
) -> Result<Vec<Finding>, Trouble> {
    let mut last = Ok(Vec::new());
    let _ = wait::until("everything to be cleared away", limit, async || {
        last = look().await;
        matches!(&last, Ok(left) if left.is_empty()).then_some(())
    })
    .await;
    last
}

/// What the controller has to clear away itself.
async fn ours(world: &World, before: &Before) -> Result<Vec<Finding>, Trouble> {
    let sandboxes = world.sandboxes().await?;
    let told = |sandbox: &SandboxReport| format!("sandbox {} is left, {}", sandbox.name, sandbox.state);
    let mut found: Vec<_> = sandboxes.iter().map(|sandbox| Finding::new(Wrong::Leak, told(sandbox))).collect();
    let processes = processes(world.directory.path()).map_err(trouble)?;
    found.extend(processes.iter().map(|left| Finding::new(Wrong::Leak, format!("a process is left: {}", left.told))));
    found.extend(before.compared(&others::objects(world).await?, &world.home));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrongs(found: &[Finding]) -> Vec<Wrong> {
        found.iter().map(|finding| finding.wrong).collect()
    }

    fn told(state: &str, code: Option<i64>, reason: &str) -> BTreeMap<String, Value> {
        let conditions = json!([{ "type": "Succeeded", "reason": reason }]);
        [("a".to_owned(), json!({ "state": state, "exitCode": code, "conditions": conditions }))].into()
    }

    #[test]
    fn a_script_that_ran_twice_or_never_is_found() {
        let commands = ["a", "b"].map(str::to_owned).into();
        assert_eq!(scripts("begin a\nend a 0\nbegin b\n", &commands), []);
        assert_eq!(wrongs(&scripts("begin a\nbegin b\nbegin a\n", &commands)), [Wrong::DoubleRun]);
        assert_eq!(wrongs(&scripts("begin a\n", &commands)), [Wrong::Failure]);
        // Not even one that nobody waits for may run twice.
        assert_eq!(wrongs(&scripts("begin a\nbegin b\nbegin c\nbegin c\n", &commands)), [Wrong::DoubleRun]);
    }

    #[test]
    fn an_outcome_that_its_shell_did_not_see_is_found() {
        let (ended, cut_short) = ("begin a\nend a 3\n", "begin a\n");
        let (nobody, it) = (BTreeSet::new(), BTreeSet::from(["a".to_owned()]));
        for (written, status, by) in [
            (ended, told("Finished", Some(3), "NonZeroExit"), &nobody),
            (ended, told("Running", None, "Running"), &nobody),
            (cut_short, told("Finished", Some(143), "Cancelled"), &it),
            (cut_short, told("Finished", None, "LeaseEnded"), &it),
            (cut_short, told("Running", None, "Running"), &nobody),
            // It was ended after its last word.
            (ended, told("Finished", Some(143), "Cancelled"), &it),
        ] {
            assert_eq!(outcomes(written, &status, by), [], "{written} {status:?}");
        }
        for (written, status, by) in [
            (ended, told("Finished", Some(0), "Succeeded"), &it),
            (ended, told("Finished", Some(143), "NonZeroExit"), &nobody),
            (ended, told("Finished", None, "LeaseEnded"), &it),
            (cut_short, told("Finished", Some(0), "Succeeded"), &it),
            (cut_short, told("Finished", Some(137), "NonZeroExit"), &nobody),
            (cut_short, told("Finished", None, "LeaseEnded"), &nobody),
        ] {
            assert_eq!(wrongs(&outcomes(written, &status, by)), [Wrong::Failure], "{written} {status:?}");
        }
        for unknown in UNKNOWN {
            let found = outcomes(cut_short, &told("Finished", None, unknown), &it);
            assert_eq!(wrongs(&found), [Wrong::Unknown], "{unknown}");
        }
    }

    #[test]
    fn what_differs_is_told_part_by_part() {
        let was = json!({ "a": [1], "b": 2, "c": null });
        assert_eq!(differences(&was, &was), []);
        let found = differences(&was, &json!({ "a": [1, 1], "c": null, "d": 4 }));
        let found: Vec<&str> = found.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(
            found,
            [
                "a: there is [1,1], and undisturbed [1]",
                "b: there is null, and undisturbed 2",
                "d: there is 4, and undisturbed null",
            ]
        );
        assert_eq!(differences(&Value::Null, &was).len(), 1);
    }

    #[test]
    fn a_command_that_is_deleted_with_its_lease_ends_by_either_but_by_nothing_else() {
        let end = |reason: &str, at_once: &[&str]| ends(&told("Finished", Some(143), reason), at_once);
        assert_eq!(end("Cancelled", &[]), json!({ "a": ["Finished", "Cancelled", 143] }));
        assert_eq!(end("Cancelled", &["a"]), end("LeaseEnded", &["a"]));
        assert_ne!(end("Cancelled", &["b"]), end("LeaseEnded", &["b"]));
        assert_ne!(end("Cancelled", &["a"]), end("TimedOut", &["a"]));
        assert_ne!(end("Cancelled", &["a"]), ends(&told("Finished", Some(0), "Cancelled"), &["a"]));
    }
}
