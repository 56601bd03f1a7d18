//! A part of `cargo enumerate` that stands for all of it: the controller is killed at every call to Daytona by which a
//! lease and its commands live, and of all other pairs of a call and a fault each so-manieth is tried.

use std::path::{Path, PathBuf};

use dev::{
    enumerate::{
        Order, enumerate,
        fault::{Fault, Side},
        report::Journal,
        run::{Pair, Target},
        scenario::Scenario,
        world::Ground,
    },
    programs,
};

use crate::world::PLANE;

/// How many runs go at once.
const AT_ONCE: usize = 6;

/// Of the pairs that are not all tried, each so-manieth is.
const EACH: usize = 80;

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_done_at_a_call_nothing_is_lost_done_twice_or_left_behind() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let plane = &*PLANE;
    let daytona = tokio::task::spawn_blocking(|| programs::built("local-daytona")).await.unwrap().unwrap();
    let binaries = [PathBuf::from(env!("CARGO_BIN_EXE_daytona-controller")), daytona];
    let ground = Ground::new(plane.cluster().clone(), plane.kubeconfig(), binaries, scratch).await.unwrap();
    let mut others = 0;
    let order = Order {
        scenarios: Scenario::ALL.to_vec(),
        wanted: Box::new(|pair| {
            others += usize::from(!kills_at_daytona(pair));
            kills_at_daytona(pair) || others.is_multiple_of(EACH)
        }),
        jobs: AT_ONCE,
        until: None,
        accounts: scratch.join("enumerate-failed"),
    };
    let accounts = order.accounts.display().to_string();
    let totals = enumerate(&ground, order, Journal::none()).await.unwrap_or_else(|trouble| panic!("{trouble}"));
    println!("{totals}");
    assert!(totals.is_clean() && totals.unknown == 0, "{totals}; see {accounts}");
    assert!(totals.missed * 10 < totals.pairs, "too few faults were there: {totals}");
}

fn kills_at_daytona(pair: &Pair) -> bool {
    pair.scenario.is_base() && matches!((&pair.target, pair.fault), (Target::Call(Side::Daytona, _), Fault::Kill(_)))
}
