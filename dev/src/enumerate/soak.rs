//! `cargo soak`: random faults at random calls, under load, for as long as one likes; then all is deleted, and the same
//! has to hold as after an enumerated pair.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::fault::{self, Fault, Side, watched};
use super::hands::Hands;
use super::load::Load;
use super::names::Names;
use super::oracle::{self, Finding, Wrong};
use super::others::Before;
use super::replicas::{Order, Replicas, killer};
use super::report::{Totals, Tried};
use super::run::{account, calls};
use super::world::{Ground, Trouble, World, trouble};
use crate::proxy::{Call, Disturbance, FromEvent, Meddler};

/// Of so many calls that change something one is disturbed.
const ONE_IN: u64 = 12;
/// Of so many watches one is.
const WATCH_ONE_IN: u64 = 6;
/// Time between two kills, at least: a controller has to come to something.
const BETWEEN_KILLS: Duration = Duration::from_secs(6);
/// Time between two watches that are frozen, at least: each keeps everything waiting until it is given up.
const BETWEEN_FREEZES: Duration = Duration::from_secs(20);

/// Numbers that look random and are the same for the same seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`: splitmix64.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let place = self.below(all.len() as u64);
        all.get(usize::try_from(place).unwrap_or_default()).copied()
    }
}

/// What is done to calls, at random.
struct Chaos {
    random: Random,
    faults: Vec<Fault>,
    disturbances: Vec<Fault>,
    killed: Instant,
    frozen: Instant,
    /// By side and number, what was to be done to a call.
    drawn: Vec<(Side, u64, Fault)>,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        let (faults, disturbances) = (fault::every(), fault::of_watches());
        Self { random: Random::new(seed), faults, disturbances, killed: now, frozen: now, drawn: Vec::new() }
    }

    fn at(&mut self, side: Side, call: &Call) -> Option<Fault> {
        let fault = self.draw(call)?;
        self.drawn.push((side, call.number, fault));
        Some(fault)
    }

    fn draw(&mut self, call: &Call) -> Option<Fault> {
        let (all, one_in) = match watched(call) {
            Some(_) => (&self.disturbances, WATCH_ONE_IN),
            None if fault::counts(call) => (&self.faults, ONE_IN),
            None => return None,
        };
        if self.random.below(one_in) != 0 {
            return None;
        }
        let fault = self.random.one_of(all)?;
        let (last, between) = match fault {
            Fault::Kill(_) => (&mut self.killed, BETWEEN_KILLS),
            Fault::Watch(Disturbance::Freeze) => (&mut self.frozen, BETWEEN_FREEZES),
            _ => return Some(fault),
        };
        if last.elapsed() < between {
            return None;
        }
        *last = Instant::now();
        Some(fault)
    }

    /// How many faults were drawn that never were.
    fn missed(&self, calls: &[(Side, Call)]) -> usize {
        let was: BTreeMap<(Side, u64), &Call> = calls.iter().map(|(side, call)| ((*side, call.number), call)).collect();
        let missed = self.drawn.iter().filter(|(side, number, fault)| {
            !was.get(&(*side, *number)).is_some_and(|call| fault.was(call, &BTreeSet::new()))
        });
        missed.count()
    }
}

fn meddler(side: Side, chaos: &Arc<Mutex<Chaos>>, order: &Order) -> Meddler {
    let (chaos, order) = (Arc::clone(chaos), order.clone());
    Box::new(move |call| {
        let fault = chaos.lock().unwrap_or_else(PoisonError::into_inner).at(side, call)?;
        Some(fault.deed(side, &call.object, &FromEvent::nth(1), || killer(&order)))
    })
}

/// Goes on for so long; tells the totals, in which a pair is a fault that was drawn, and those that never were are missed.
///
/// # Errors
/// When the surroundings fail.
pub async fn soak(ground: &Ground, lasts: Duration, seed: u64) -> Result<Totals, Trouble> {
    let world = World::new(ground).await?;
    let names = Names::new(&world.namespace).map_err(trouble)?;
    let before = Before::see(&world).await?;
    let between = world.between(&names).await?;
    let (order, mut orders) = mpsc::channel(1);
    let chaos = Arc::new(Mutex::new(Chaos::new(seed)));
    between.daytona.meddle(meddler(Side::Daytona, &chaos, &order));
    between.kubernetes.meddle(meddler(Side::Kubernetes, &chaos, &order));
    let hands = Hands::new(&world, &between, names);
    let mut replicas = Replicas::start_changing(&between)?;
    let mut load = Load::new(&hands, seed ^ 1);
    let go = async {
        load.go(lasts).await?;
        // From here on the world is at peace: whatever was begun has to come to its end.
        let proxies = [&between.daytona, &between.kubernetes];
        for proxy in proxies {
            proxy.leave_alone();
        }
        hands.until("late calls to be over", async || proxies.iter().all(|proxy| proxy.carried_on() == 0)).await?;
        load.settle().await?;
        hands.delete_all().await
    };
    let ended = tokio::select! { trouble = replicas.keep(&mut orders) => Err(trouble), ended = go => ended };
    let told = hands.told();
    let written = hands.written();
    let mut findings = Vec::new();
    if let Err(trouble) = ended {
        findings.push(Finding::new(Wrong::Failure, trouble));
    }
    findings.extend(oracle::all(&world, &before, false, &written, &told).await?);
    replicas.end().await?;
    let calls = calls(&between);
    let tried = Tried::judge(format!("seed {seed}"), None, &findings);
    for text in &tried.told {
        println!("failed: {text}");
    }
    let chaos = chaos.lock().unwrap_or_else(PoisonError::into_inner);
    let (drawn, missed) = (chaos.drawn.len(), chaos.missed(&calls));
    let kills = calls.iter().filter(|(_, call)| call.killed.is_some()).count();
    println!("{}; {} calls, {} faults, {kills} of them kills", load.done, calls.len(), drawn.saturating_sub(missed));
    if !findings.is_empty() {
        println!("{}", account(&calls, &replicas, &written));
    }
    let mut totals = Totals::default();
    totals.add(&tried);
    (totals.pairs, totals.missed) = (drawn, missed);
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_does_the_same() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..20).map(|_| random.below(100)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert!(numbers(7).iter().all(|number| *number < 100));
    }

    #[test]
    fn what_was_drawn_and_never_was_is_missed() {
        let mut chaos = Chaos::new(7);
        let route = "POST /api/sandbox".to_owned();
        let mut calls: Vec<_> = (1..=400)
            .map(|number| {
                let (method, route, status) = (axum::http::Method::POST, route.clone(), Some(200));
                (Side::Daytona, Call { number, method, route, nth: number, status, ..Call::default() })
            })
            .collect();
        let mut drawn = Vec::new();
        for (side, call) in &mut calls {
            call.met = chaos.at(*side, call).is_some();
            drawn.extend(call.met.then_some(call.number));
        }
        assert!(drawn.len() > 5 && chaos.missed(&calls) == 0, "{drawn:?}");
        for (_, call) in calls.iter_mut().filter(|(_, call)| drawn[..2].contains(&call.number)) {
            call.met = false;
        }
        assert_eq!(chaos.missed(&calls), 2);
        assert_eq!(chaos.missed(&[]), drawn.len());
    }
}
