//! A part of `cargo enumerate` that stands for all of it: each fault of each scenario once, and more of them, chosen by
//! their names alone, so that it is the same part as long as the controller makes the same calls.

use std::path::{Path, PathBuf};

use dev::{
    enumerate::{Plan, enumerate, journal::Journal, list::sample, scenario::Scenario, world::Ground},
    programs,
};

use crate::world::PLANE;

/// How many runs go at once.
const AT_ONCE: usize = 8;

/// How many pairs there are.
const PAIRS: usize = 120;

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_done_at_a_call_nothing_is_lost_done_twice_or_left_behind() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let plane = &*PLANE;
    let daytona = tokio::task::spawn_blocking(|| programs::built("local-daytona")).await.unwrap().unwrap();
    let binaries = [PathBuf::from(env!("CARGO_BIN_EXE_daytona-controller")), daytona];
    let ground = Ground::new(plane.cluster().clone(), plane.kubeconfig(), binaries, scratch).await.unwrap();
    let plan = Plan {
        scenarios: Scenario::ALL.to_vec(),
        wanted: Box::new(|all| sample(all, PAIRS)),
        listed: false,
        jobs: AT_ONCE,
        until: None,
        accounts: scratch.join("enumerate-failed"),
    };
    let accounts = plan.accounts.display().to_string();
    let report = enumerate(&ground, plan, Journal::none()).await.unwrap_or_else(|trouble| panic!("{trouble}"));
    let totals = report.totals;
    println!("{totals}");
    assert!(totals.is_clean() && totals.unknown == 0, "{totals}; see {accounts}");
    let missed: Vec<_> = report.missed.iter().filter(|pair| !may_be_missed(pair)).collect();
    assert!(missed.is_empty(), "these faults were not there: {missed:#?}");
}

/// How often a status is written depends on how many things have come to pass when it is: a later write may not come. And
/// each is written over the version that was read, so it may be refused.
fn may_be_missed(pair: &str) -> bool {
    pair.contains("/status, ") && !pair.contains(", nth 1:")
}
