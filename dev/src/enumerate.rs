//! `cargo enumerate`: every fault at every call that changes something, in scenarios of a lease's and a command's life.
//!
//! The controller stands behind two proxies, one before Daytona and one before the Kubernetes API. An undisturbed run
//! of a scenario tells which calls there are; a pair is one of them and a fault. Each pair is a run of its own, with that
//! fault at that call; how it ends is read from the outside (`oracle`) and compared with the undisturbed run.
//!
//! No fault here destroys the evidence of how a command ended: what it did stands in its sandbox, and the controller can
//! ask again. So none excuses an `OutcomeUnknown`.

pub mod fault;
pub mod follow;
pub mod hands;
pub mod names;
pub mod oracle;
pub mod replicas;
pub mod report;
pub mod run;
pub mod scenario;
pub mod soak;
pub mod stage;
pub mod world;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::future;
use serde_json::Value;

use fault::{Fault, Side, watched};
use oracle::{Finding, Wrong};
use report::{Journal, Totals, Tried, Verdict};
use run::{Outcome, Pair, Target};
use scenario::Scenario;
use world::{Ground, Trouble, World};

/// So many runs may do without the fault before it counts as missed.
const RUNS: u32 = 3;

/// So many of the pairs that took longest are told: what waits for nothing shows there.
const SLOWEST: usize = 10;

/// After so many pairs a line tells how far it is.
const TOLD_EACH: usize = 20;

/// What is to be tried, and how.
pub struct Order<'a> {
    /// Scenarios to go through.
    pub scenarios: Vec<Scenario>,
    /// Which of their pairs; asked in the order in which the pairs come, once for each.
    pub wanted: Box<dyn FnMut(&Pair) -> bool + 'a>,
    /// How many runs go at once.
    pub jobs: usize,
    /// When no further pair is begun.
    pub until: Option<Instant>,
    /// Where the accounts of runs go in which something was wrong.
    pub accounts: PathBuf,
}

/// All pairs of a scenario, by the calls of its undisturbed run.
#[must_use]
pub fn pairs(scenario: Scenario, calls: &[(Side, crate::proxy::Call)]) -> Vec<Pair> {
    let faults = if scenario.is_base() { fault::every() } else { fault::gravest() };
    let counted = calls.iter().filter(|(_, call)| fault::counts(call));
    let mut pairs: Vec<Pair> = counted
        .flat_map(|(side, call)| {
            let target = Target::Call(*side, call.at());
            faults.iter().map(move |fault| Pair { scenario, target: target.clone(), fault: *fault })
        })
        .collect();
    let kinds: BTreeSet<&str> = calls.iter().filter_map(|(_, call)| watched(call)).collect();
    for kind in kinds {
        let target = Target::Watches(kind.to_owned());
        let of_it = fault::of_watches();
        pairs.extend(of_it.into_iter().map(|fault| Pair { scenario, target: target.clone(), fault }));
    }
    pairs
}

/// Tries all that is wanted; tells how it goes on standard output.
///
/// # Errors
/// When the surroundings fail, or a scenario goes wrong without any fault.
pub async fn enumerate(ground: &Ground, order: Order<'_>, journal: Journal) -> Result<Totals, Trouble> {
    let Order { scenarios, mut wanted, jobs, until, accounts } = order;
    std::fs::create_dir_all(&accounts).map_err(world::trouble)?;
    let start = Instant::now();
    let mut work = Work {
        ground,
        expected: HashMap::new(),
        accounts,
        until,
        start,
        state: Mutex::new(State {
            journal,
            queue: VecDeque::new(),
            totals: Totals::default(),
            all: 0,
            slowest: Vec::new(),
        }),
    };
    let mut queue = VecDeque::new();
    let mut world = None;
    for scenario in &scenarios {
        // One after the other: the slower a run is, the more often something is asked in it.
        let outcome = undisturbed(ground, *scenario, &mut world).await?;
        let all: Vec<Pair> = pairs(*scenario, &outcome.calls).into_iter().filter(|pair| wanted(pair)).collect();
        println!("{scenario}: {} calls, {} pairs", outcome.calls.len(), all.len());
        queue.extend(all);
        work.expected.insert(*scenario, outcome.standing);
    }
    {
        let mut state = work.state();
        state.all = queue.len();
        let State { journal, totals, .. } = &mut *state;
        queue.retain(|pair| match journal.known(&pair.to_string()) {
            Some(tried) => {
                totals.add(tried);
                tell(tried);
                false
            }
            None => true,
        });
        // A part of them, where the time is over before all are done, stands for all.
        queue.make_contiguous().sort_by_cached_key(|pair| report::place(&pair.to_string()));
        state.queue = queue;
    }
    let workers = (0..jobs.max(1)).map(|_| work.go());
    future::try_join_all(workers).await?;
    let mut state = work.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (seconds, pair) in &state.slowest {
        println!("slow: {pair}: {seconds:.0} s");
    }
    for pair in &state.queue {
        println!("missed: {pair}: left out");
    }
    state.totals.left_out(state.queue.len());
    Ok(state.totals)
}

async fn undisturbed(ground: &Ground, scenario: Scenario, world: &mut Option<World>) -> Result<Outcome, Trouble> {
    let here = match world.take() {
        Some(world) => world,
        None => World::new(ground).await?,
    };
    let outcome = run::run(&here, scenario, None, None).await?;
    if outcome.findings.is_empty() {
        *world = Some(here).filter(|_| !scenario.ends_namespace());
        return Ok(outcome);
    }
    let found: Vec<String> = outcome.findings.iter().map(ToString::to_string).collect();
    Err(format!("{scenario}, without a fault: {}\n{}", found.join("\n"), outcome.account))
}

struct Work<'a> {
    ground: &'a Ground,
    expected: HashMap<Scenario, Value>,
    accounts: PathBuf,
    until: Option<Instant>,
    start: Instant,
    state: Mutex<State>,
}

struct State {
    journal: Journal,
    queue: VecDeque<Pair>,
    totals: Totals,
    all: usize,
    slowest: Vec<(f32, String)>,
}

impl Work<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Pair> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        self.state().queue.pop_front()
    }

    /// Tries one pair after the other, in one world as long as it stays clean.
    async fn go(&self) -> Result<(), Trouble> {
        let mut world = None;
        while let Some(pair) = self.next() {
            let begun = Instant::now();
            let tried = self.attempt(&pair, &mut world).await?;
            self.note(Tried { seconds: begun.elapsed().as_secs_f32(), ..tried })?;
        }
        Ok(())
    }

    async fn attempt(&self, pair: &Pair, world: &mut Option<World>) -> Result<Tried, Trouble> {
        let mut runs = 1;
        loop {
            let here = match world.take() {
                Some(world) => world,
                None => World::new(self.ground).await?,
            };
            let fault: Option<(&Target, Fault)> = Some((&pair.target, pair.fault));
            let outcome = run::run(&here, pair.scenario, fault, self.expected.get(&pair.scenario)).await;
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(trouble) => {
                    let finding = Finding::new(Wrong::Failure, format!("the surroundings failed: {trouble}"));
                    return Ok(Tried::judge(pair.to_string(), true, &[finding]));
                }
            };
            let tried = Tried::judge(pair.to_string(), outcome.fired, &outcome.findings);
            // What is left in it would be the next one's.
            if tried.verdict != Verdict::Failed && !pair.scenario.ends_namespace() {
                *world = Some(here);
            }
            if tried.verdict == Verdict::Missed && runs < RUNS {
                runs += 1;
                continue;
            }
            if tried.verdict == Verdict::Failed {
                self.keep(&tried, &outcome.account)?;
            }
            return Ok(tried);
        }
    }

    /// Keeps the account of what went wrong.
    fn keep(&self, tried: &Tried, account: &str) -> Result<(), Trouble> {
        let name: String = tried.pair.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let text = format!("{}\n{}\n{account}", tried.pair, tried.told.join("\n"));
        std::fs::write(self.accounts.join(format!("{name}.txt")), text).map_err(world::trouble)
    }

    fn note(&self, tried: Tried) -> Result<(), Trouble> {
        let mut state = self.state();
        state.journal.keep(&tried)?;
        state.totals.add(&tried);
        tell(&tried);
        state.slowest.push((tried.seconds, tried.pair));
        state.slowest.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        state.slowest.truncate(SLOWEST);
        if state.totals.pairs.is_multiple_of(TOLD_EACH) {
            let seconds = self.start.elapsed().as_secs();
            println!("{:>5} of {} pairs, {seconds} s: {}", state.totals.pairs, state.all, state.totals);
        }
        Ok(())
    }
}

fn tell(tried: &Tried) {
    match tried.verdict {
        Verdict::Passed => {}
        Verdict::Missed => println!("missed: {}: the call did not come", tried.pair),
        Verdict::Failed => {
            let first = tried.told.iter().map(|text| text.lines().next().unwrap_or_default());
            println!("failed: {}\n    {}", tried.pair, first.collect::<Vec<_>>().join("\n    "));
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;
    use crate::proxy::Call;

    fn call(method: Method, route: &str) -> (Side, Call) {
        let route = format!("{method} {route}");
        let object = String::new();
        let call =
            Call { number: 1, method, route, object, nth: 1, status: None, killed: None, rule: None, met: false };
        (Side::Kubernetes, call)
    }

    #[test]
    fn a_pair_is_a_fault_and_a_call_that_changes_something_or_a_watch() {
        let calls = [
            call(Method::GET, "/api/v1/namespaces/{namespace}/secrets/{name}"),
            call(Method::POST, "/apis/events.k8s.io/v1/namespaces/{namespace}/events"),
            call(Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
            call(Method::PATCH, "/apis/g/v1/namespaces/{namespace}/things/{name}"),
            call(Method::GET, "/apis/g/v1/namespaces/{namespace}/things?watch"),
        ];
        let count = |scenario| {
            let all = pairs(scenario, &calls);
            let watches = all.iter().filter(|pair| matches!(&pair.target, Target::Watches(kind) if kind == "things"));
            (all.len() - watches.clone().count(), watches.count())
        };
        assert_eq!(count(Scenario::Sessions), (17, 4), "three kills, ten answers, two cuts, two late ones");
        assert_eq!(count(Scenario::Files), (5, 4), "three kills, a cut, a late answer");
        let names: BTreeSet<String> = pairs(Scenario::OneShot, &calls).iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), 21, "no two have the same name");
    }
}
