//! One run of a scenario: undisturbed, or with one fault.

use std::fmt::{self, Write as _};

use serde_json::Value;
use tokio::sync::mpsc;

use super::fault::{Fault, Side, Spot, watched};
use super::hands::{Hands, LIMIT};
use super::names::Names;
use super::oracle::{self, Finding, Wrong};
use super::others::Before;
use super::replicas::{Order, Replicas, killer};
use super::scenario::Scenario;
use super::world::{Between, Trouble, World, trouble};
use crate::proxy::{At, Call, FromEvent, Proxy};
use crate::wait;

/// Of the controllers' log so many lines are kept of a run that went wrong, each no longer than this.
const LINES: usize = 200;
const WIDTH: usize = 400;

/// Beside the moments of a run: how its commands ended.
const ENDS: &str = "ends";

/// Where a fault is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// A call.
    Call(Side, At),
    /// All watches of a kind of object, such as `sandboxleases`, from an event on.
    Watches {
        /// The kind.
        kind: String,
        /// Where among its events.
        spot: Spot,
        /// Which event that is, from 1.
        event: u64,
    },
}

/// A pair of a fault and where it is, in a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pair {
    /// What is gone through.
    pub scenario: Scenario,
    /// Where something is done.
    pub target: Target,
    /// What is done.
    pub fault: Fault,
}

impl fmt::Display for Pair {
    /// Its name in reports and state files: the same in every run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Call(side, at) => write!(f, "{}: {side}: {at}: {}", self.scenario, self.fault),
            Target::Watches { kind, spot, .. } => {
                write!(f, "{}: watch of {kind}, {spot}: {}", self.scenario, self.fault)
            }
        }
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What was seen at moments of the run, and how its commands ended.
    pub standing: Value,
    /// What was wrong.
    pub findings: Vec<Finding>,
    /// The calls to either service.
    pub calls: Vec<(Side, Call)>,
    /// The calls and the end of the controllers' log, for a person.
    pub account: String,
}

/// Goes through a scenario, with a fault if there is one. `expected`: how things stand in the undisturbed run.
///
/// # Errors
/// When the surroundings fail: then nothing is known of the controller.
pub async fn run(
    world: &World,
    scenario: Scenario,
    fault: Option<(&Target, Fault)>,
    expected: Option<&Value>,
) -> Result<Outcome, Trouble> {
    let names = Names::new(&world.namespace).map_err(trouble)?;
    let before = Before::see(world).await?;
    let between = world.between(&names).await?;
    let (reach, mut reached) = mpsc::channel(1);
    if let Some((target, fault)) = fault {
        aim(&between, target, fault, &reach);
    }
    let hands = Hands::new(world, &between, names).comparing(before.clone(), expected.cloned());
    let mut replicas = Replicas::start(&between, scenario.has_replicas())?;
    // The controller is there, and another after it, until all is cleared away: what it still does is part of the run.
    let go = async {
        scenario.go(&hands).await?;
        let proxies = [&between.daytona, &between.kubernetes];
        let settled = || {
            // The caller of the very last call may be about to be killed.
            let killed = |proxy: &Proxy| !proxy.reached() || proxy.killed().is_some();
            // What comes late has to come in this run, and not in the next.
            proxies.iter().all(|proxy| killed(proxy) && proxy.carried_on() == 0)
        };
        loop {
            let what = "the controller's end, and that of late calls";
            wait::until(what, LIMIT, async || settled().then_some(())).await.map_err(trouble)?;
            let told = hands.told();
            let found = oracle::all(world, &before, scenario.ends_namespace(), &hands.written(), &told).await?;
            // It may also have come while the controller cleared away.
            if settled() {
                return Ok(found);
            }
        }
    };
    let ended = tokio::select! { trouble = replicas.keep(&mut reached) => Err(trouble), ended = go => ended };
    let (mut standing, mut findings) = hands.looked();
    let told = hands.told();
    match ended {
        Ok(found) => {
            let ends = oracle::ends(&told.statuses, scenario.deleted_at_once());
            if let Some(undisturbed) = expected {
                findings.extend(oracle::differences(undisturbed.get(ENDS).unwrap_or(&Value::Null), &ends));
            }
            standing.insert(ENDS.to_owned(), ends);
            findings.extend(found);
        }
        Err(text) => {
            findings.push(Finding::new(Wrong::Failure, text));
            let twice = oracle::scripts(&hands.written(), &told.commands);
            findings.extend(twice.into_iter().filter(|finding| finding.wrong == Wrong::DoubleRun));
            findings.extend(oracle::outcomes(&hands.written(), &told.statuses, &told.ended));
        }
    }
    replicas.end().await?;
    let calls = calls(&between);
    let account = account(&calls, &replicas, &hands.written());
    Ok(Outcome { standing: standing.into(), findings, calls, account })
}

fn aim(between: &Between, target: &Target, fault: Fault, reach: &Order) {
    match target {
        Target::Call(side, at) => {
            let proxy = match side {
                Side::Daytona => &between.daytona,
                Side::Kubernetes => &between.kubernetes,
            };
            let object = if let At::Nth { object, .. } = at { object } else { "" };
            proxy.aim(at.clone(), fault.deed(*side, object, &FromEvent::nth(1), || killer(reach)));
        }
        Target::Watches { kind, event, .. } => {
            let (kind, from, reach) = (kind.clone(), FromEvent::nth(*event), reach.clone());
            between.kubernetes.meddle(Box::new(move |call| {
                let is_one = watched(call) == Some(&kind);
                is_one.then(|| fault.deed(Side::Kubernetes, &call.object, &from, || killer(&reach)))
            }));
        }
    }
}

/// All calls of a run, to either service.
pub(super) fn calls(between: &Between) -> Vec<(Side, Call)> {
    let of = |side, proxy: &Proxy| proxy.calls().into_iter().map(move |call| (side, call));
    of(Side::Daytona, &between.daytona).chain(of(Side::Kubernetes, &between.kubernetes)).collect()
}

pub(super) fn account(calls: &[(Side, Call)], replicas: &Replicas<'_>, written: &str) -> String {
    let mut text = String::from("calls:\n");
    for (side, call) in calls {
        let _ = writeln!(text, "  {side} {call}");
    }
    let _ = writeln!(text, "scripts:\n{written}");
    for log in replicas.told(LINES) {
        text.push_str("end of a controller's log:\n");
        for line in log.lines() {
            text.extend(line.chars().take(WIDTH));
            text.push('\n');
        }
    }
    text
}
