//! `cargo soak`: random faults at random calls, under load, for as long as one likes; then all is deleted, and the same
//! has to hold as after an enumerated pair.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::mpsc;

use super::fault::{self, Fault, Side, watched};
use super::hands::{Ends, Hands};
use super::names::Names;
use super::oracle::{self, Before, Finding, Told, Wrong};
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
/// Commands that may be under way; with more, no other is made.
const UNDER_WAY: usize = 12;
/// Time between two commands.
const PACE: Duration = Duration::from_millis(300);
/// Leases, and whether they have a session.
const LEASES: [(&str, bool); 4] = [("a", true), ("b", false), ("c", true), ("d", false)];

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

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
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
}

impl Chaos {
    fn new(seed: u64) -> Self {
        // A watch that is frozen heals, but keeps everything waiting for its time.
        let disturbances =
            fault::of_watches().into_iter().filter(|f| *f != Fault::Watch(Disturbance::Freeze)).collect();
        Self { random: Random::new(seed), faults: fault::every(), disturbances, killed: Instant::now() }
    }

    fn at(&mut self, call: &Call) -> Option<Fault> {
        if watched(call).is_some() {
            let all = std::mem::take(&mut self.disturbances);
            let chosen = (self.random.below(WATCH_ONE_IN) == 0).then(|| self.random.one_of(&all)).flatten();
            self.disturbances = all;
            return chosen;
        }
        if !fault::counts(call) || self.random.below(ONE_IN) != 0 {
            return None;
        }
        let all = std::mem::take(&mut self.faults);
        let chosen = self.random.one_of(&all);
        self.faults = all;
        match chosen {
            Some(Fault::Kill(_)) if self.killed.elapsed() < BETWEEN_KILLS => None,
            Some(Fault::Kill(_)) => {
                self.killed = Instant::now();
                chosen
            }
            chosen => chosen,
        }
    }
}

fn meddler(side: Side, chaos: &Arc<Mutex<Chaos>>, order: &Order) -> Meddler {
    let (chaos, order) = (Arc::clone(chaos), order.clone());
    Box::new(move |call| {
        let fault = chaos.lock().unwrap_or_else(PoisonError::into_inner).at(call)?;
        Some(fault.deed(side, &FromEvent::nth(1), || killer(&order)))
    })
}

/// Goes on for so long; tells the totals, in which a pair is a fault that was there.
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
    let mut replicas = Replicas::start(&between, false)?;
    let go = async {
        load(&hands, lasts, &mut Random::new(seed ^ 1)).await?;
        // From here on the world is at peace: whatever was begun has to come to its end.
        for proxy in [&between.daytona, &between.kubernetes] {
            proxy.leave_alone();
        }
        for name in hands.expected() {
            hands.until_finished(&name).await?;
        }
        hands.delete_all().await
    };
    let ended = tokio::select! { trouble = replicas.keep(&mut orders) => Err(trouble), ended = go => ended };
    let told = Told::of(&hands.follow.state(), hands.expected());
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
    let met = calls.iter().filter(|(_, call)| call.met).count();
    let kills = calls.iter().filter(|(_, call)| call.killed.is_some()).count();
    println!("{} commands, {} calls, {met} faults, {kills} of them kills", told.commands.len(), calls.len());
    if !findings.is_empty() {
        println!("{}", account(&calls, &replicas, &written));
    }
    let mut totals = Totals::default();
    totals.add(&tried);
    totals.pairs = met;
    Ok(totals)
}

/// Commands, one after the other, in several leases; some are timed out.
async fn load(hands: &Hands<'_>, lasts: Duration, random: &mut Random) -> Result<(), Trouble> {
    let start = Instant::now();
    for (name, sessions) in LEASES {
        let parallel = if sessions { 1 } else { 3 };
        hands.lease(name, json!({ "useSessions": sessions, "maxParallelCommands": parallel })).await?;
    }
    let mut number = 0_u32;
    while start.elapsed() < lasts {
        tokio::time::sleep(PACE).await;
        let Some((lease, _)) = random.one_of(&LEASES) else { continue };
        if hands.under_way() < UNDER_WAY {
            number += 1;
            one(hands, number, lease, random).await?;
        }
    }
    Ok(())
}

async fn one(hands: &Hands<'_>, number: u32, lease: &str, random: &mut Random) -> Result<(), Trouble> {
    let name = format!("c{number}");
    match random.below(8) {
        0 => {
            hands.command(&name, lease, "echo out", Ends::Never, json!({ "timeoutSeconds": 3 })).await?;
        }
        1 => {
            let fields = json!({ "stdin": { "value": "input\n" }, "logs": { "tailBytes": 64 } });
            hands.command(&name, lease, "cat; seq 1 100", Ends::With(0), fields).await?;
        }
        2 => hands.command(&name, lease, "sleep 1", Ends::With(7), json!({})).await?,
        code => {
            let code = i32::try_from(code % 3).unwrap_or_default();
            hands.command(&name, lease, "echo out; echo err >&2", Ends::With(code), json!({})).await?;
        }
    }
    Ok(())
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
}
