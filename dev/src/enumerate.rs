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
pub mod journal;
pub mod list;
mod load;
pub mod names;
pub mod oracle;
pub mod others;
pub mod outside;
pub mod replicas;
pub mod report;
pub mod run;
pub mod scenario;
pub mod soak;
pub mod stage;
pub mod world;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fault::Fault;
use journal::Journal;
use list::Reference;
use oracle::{Finding, Wrong};
use report::{Report, Tried, Verdict};
use run::{Outcome, Pair, Target};
use scenario::Scenario;
use world::{Ground, Trouble, World};

/// So many runs may do without the fault before it counts as missed.
const RUNS: u32 = 3;

/// So many of the pairs that took longest are told: what waits for nothing shows there.
const SLOWEST: usize = 10;

/// After so many pairs a line tells how far it is.
const TOLD_EACH: usize = 20;

/// After so many pairs in a row whose surroundings failed no other is begun.
const IN_VAIN: usize = 20;

/// What is to be tried, and how.
pub struct Plan<'a> {
    /// Scenarios to go through.
    pub scenarios: Vec<Scenario>,
    /// Takes those that are wanted out of all pairs.
    pub wanted: Box<dyn Fn(Vec<Pair>) -> Vec<Pair> + 'a>,
    /// Whether the calls that are known from earlier runs make the list, where there are any, and no undisturbed run is
    /// made: a part is of the same list as the other parts.
    pub listed: bool,
    /// How many runs go at once.
    pub jobs: usize,
    /// When no further pair is begun.
    pub until: Option<Instant>,
    /// Where the accounts of runs go in which something was wrong.
    pub accounts: PathBuf,
}

/// Tries all that is wanted; tells how it goes on standard output. What fails, of the surroundings too, counts as a failure
/// and ends nothing else.
///
/// # Errors
/// When there is no place for accounts.
pub async fn enumerate(ground: &Ground, plan: Plan<'_>, journal: Journal) -> Result<Report, Trouble> {
    let Plan { scenarios, wanted, listed, jobs, until, accounts } = plan;
    std::fs::create_dir_all(&accounts).map_err(world::trouble)?;
    let start = Instant::now();
    let mut work =
        Work { ground, references: HashMap::new(), accounts, until, start, state: Mutex::new(State::new(journal)) };
    let mut world = None;
    for scenario in &scenarios {
        if !listed || work.state().journal.reference(*scenario).is_none() {
            // One after the other: the slower a run is, the more often something is asked in it.
            work.undisturbed(*scenario, &mut world).await;
        }
    }
    drop(world);
    // What others have found meanwhile that go through another part is done at last.
    while work.list(&scenarios, &wanted) > 0 && !work.is_over() {
        let workers = (0..jobs.max(1)).map(|_| work.go());
        futures::future::join_all(workers).await;
        work.state().journal.look_again();
    }
    let mut state = work.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (seconds, pair) in &state.slowest {
        println!("slow: {pair}: {seconds:.0} s");
    }
    for pair in &state.queue {
        println!("missed: {pair}: left out");
        state.report.missed.push(pair.to_string());
    }
    state.report.totals.left_out(state.queue.len());
    Ok(state.report)
}

struct Work<'a> {
    ground: &'a Ground,
    references: HashMap<Scenario, Reference>,
    accounts: PathBuf,
    until: Option<Instant>,
    start: Instant,
    state: Mutex<State>,
}

struct State {
    journal: Journal,
    /// All pairs that are in the queue, or have been.
    listed: HashSet<String>,
    queue: VecDeque<Pair>,
    report: Report,
    slowest: Vec<(f32, String)>,
    /// In how many pairs in a row the surroundings failed.
    in_vain: usize,
}

impl State {
    fn new(journal: Journal) -> Self {
        let report = Report::default();
        Self { journal, listed: HashSet::new(), queue: VecDeque::new(), report, slowest: Vec::new(), in_vain: 0 }
    }

    fn add(&mut self, tried: &Tried) {
        self.report.add(tried);
        match tried.verdict {
            Verdict::Passed => {}
            Verdict::Missed => println!("missed: {}: {}", tried.pair, tried.told.join("; ")),
            Verdict::Failed => {
                let first = tried.told.iter().map(|text| text.lines().next().unwrap_or_default());
                println!("failed: {}\n    {}", tried.pair, first.collect::<Vec<_>>().join("\n    "));
            }
        }
    }
}

impl Work<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no further pair is begun.
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until) || self.state().in_vain >= IN_VAIN
    }

    fn next(&self) -> Option<Pair> {
        if self.is_over() { None } else { self.state().queue.pop_front() }
    }

    /// Lists all that is wanted and was not listed yet; says how much of it is to be done.
    fn list(&mut self, scenarios: &[Scenario], wanted: &dyn Fn(Vec<Pair>) -> Vec<Pair>) -> usize {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for scenario in scenarios {
            let Some(reference) = state.journal.reference(*scenario) else { continue };
            let pairs = reference.pairs(*scenario);
            if self.references.insert(*scenario, reference.clone()).is_none() {
                println!("{scenario}: {} calls, {} pairs", reference.calls(), pairs.len());
                for kind in reference.silent() {
                    println!("{scenario}: no event of {kind} comes, so there is nothing to disturb");
                }
            }
            all.extend(pairs);
        }
        for pair in wanted(all) {
            let name = pair.to_string();
            if !state.listed.insert(name.clone()) {
                continue;
            }
            match state.journal.known(&name).cloned() {
                Some(tried) => state.add(&tried),
                None => state.queue.push_back(pair),
            }
        }
        // A part of them, where the time is over before all are done, stands for all.
        state.queue.make_contiguous().sort_by_cached_key(|pair| report::place(&pair.to_string()));
        state.queue.len()
    }

    /// Goes through a scenario without a fault, and notes its calls.
    async fn undisturbed(&self, scenario: Scenario, world: &mut Option<World>) {
        let name = format!("{scenario}, without a fault");
        let learned = match self.run(scenario, None, None, world).await {
            Ok((outcome, _)) if !outcome.findings.is_empty() => {
                self.fail(&Tried::judge(name, None, &outcome.findings), &outcome.account);
                return;
            }
            Ok((outcome, here)) => {
                *world = Some(here).filter(|_| !scenario.ends_namespace());
                self.state().journal.learn(Reference::of(scenario, &outcome.calls, outcome.standing))
            }
            Err(trouble) => Err(trouble),
        };
        if let Err(trouble) = learned {
            self.fail(&surroundings(name, &trouble), &trouble);
        }
    }

    async fn run(
        &self,
        scenario: Scenario,
        fault: Option<(&Target, Fault)>,
        reference: Option<&Reference>,
        world: &mut Option<World>,
    ) -> Result<(Outcome, World), Trouble> {
        let here = match world.take() {
            Some(world) => world,
            None => World::new(self.ground).await?,
        };
        let expected = reference.map(|reference| &reference.standing);
        let outcome = run::run(&here, scenario, fault, expected).await?;
        if scenario.has_replicas() {
            replicas::forget_claim(&here).await?;
        }
        Ok((outcome, here))
    }

    /// Tries one pair after the other, in one world as long as it stays clean.
    async fn go(&self) {
        let mut world = None;
        while let Some(pair) = self.next() {
            let begun = Instant::now();
            match self.attempt(&pair, &mut world).await {
                Ok(tried) => self.note(Tried { seconds: begun.elapsed().as_secs_f32(), ..tried }),
                Err(trouble) => {
                    // Nothing is known of the pair: the next run tries it again.
                    self.fail(&surroundings(pair.to_string(), &trouble), &trouble);
                    self.state().in_vain += 1;
                }
            }
        }
    }

    async fn attempt(&self, pair: &Pair, world: &mut Option<World>) -> Result<Tried, Trouble> {
        let reference = self.references.get(&pair.scenario);
        let mut runs = 1;
        loop {
            let fault = Some((&pair.target, pair.fault));
            let (outcome, here) = self.run(pair.scenario, fault, reference, world).await?;
            let usual = reference.map(|reference| reference.usual(&pair.target)).unwrap_or_default();
            let missed = pair.missed(&outcome.calls, &usual);
            let tried = Tried::judge(pair.to_string(), missed, &outcome.findings);
            // What is left in it would be the next one's.
            if tried.verdict != Verdict::Failed && !pair.scenario.ends_namespace() {
                *world = Some(here);
            }
            if tried.verdict == Verdict::Missed && runs < RUNS {
                runs += 1;
                continue;
            }
            if tried.verdict == Verdict::Failed {
                self.keep(&tried, &outcome.account);
            }
            return Ok(tried);
        }
    }

    /// Notes a failure that is no pair's.
    fn fail(&self, tried: &Tried, account: &str) {
        self.keep(tried, account);
        self.state().add(tried);
    }

    /// Keeps the account of what went wrong.
    fn keep(&self, tried: &Tried, account: &str) {
        let name: String = tried.pair.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let text = format!("{}\n{}\n{account}", tried.pair, tried.told.join("\n"));
        if let Err(error) = std::fs::write(self.accounts.join(format!("{name}.txt")), text) {
            println!("there is no account of {}: {error}", tried.pair);
        }
    }

    fn note(&self, tried: Tried) {
        let mut state = self.state();
        state.in_vain = 0;
        state.add(&tried);
        if let Err(trouble) = state.journal.keep(&tried) {
            state.add(&surroundings(format!("{}: kept for the next run", tried.pair), &trouble));
        }
        state.slowest.push((tried.seconds, tried.pair));
        state.slowest.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        state.slowest.truncate(SLOWEST);
        let State { report, listed, .. } = &*state;
        if report.totals.pairs.is_multiple_of(TOLD_EACH) {
            let seconds = self.start.elapsed().as_secs();
            println!("{:>5} of {} pairs, {seconds} s: {}", report.totals.pairs, listed.len(), report.totals);
        }
    }
}

fn surroundings(name: String, trouble: &Trouble) -> Tried {
    let finding = Finding::new(Wrong::Failure, format!("the surroundings failed: {trouble}"));
    Tried::judge(name, None, &[finding])
}
