//! How often Daytona is asked when a controller with many leases starts anew: when all is well, when Daytona wants fewer
//! calls, and when it does not answer.

use std::fmt;
use std::time::Duration;

use serde_json::json;

use super::Error;
use super::load::create_leases;
use super::stage::Stage;
use crate::faults::Rule;

/// Leases, each with a sandbox and a session.
const LEASES: usize = 200;
/// What is counted together.
const STEP: Duration = Duration::from_secs(10);
/// For how long Daytona has a trouble, and how long it is looked on in all, in steps.
const STEPS: (usize, usize) = (6, 9);

/// What Daytona does.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    None,
    /// Each limiter allows a call again after five seconds, and then refuses the next.
    FewerCalls,
    Down,
}

impl Trouble {
    fn rules(self) -> Vec<Rule> {
        let all = || ["GET", "POST", "PUT", "DELETE"].map(|method| Rule::on(method, ".*")).into_iter();
        match self {
            Self::None => Vec::new(),
            Self::FewerCalls => {
                let said = json!({ "message": "ThrottlerException: Too Many Requests" });
                all().map(|rule| rule.answer(429, said.clone()).header("Retry-After-authenticated", "5")).collect()
            }
            Self::Down => all().map(|rule| rule.answer(503, json!({ "message": "down" }))).collect(),
        }
    }
}

/// Calls in each step after a start.
#[derive(Debug)]
pub(super) struct Curves(Vec<(Trouble, Vec<u64>)>);

impl fmt::Display for Curves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (of, all) = STEPS;
        let step = STEP.as_secs();
        writeln!(
            f,
            "calls to Daytona per {step} s after a start with {LEASES} leases; trouble for {} s",
            of as u64 * step
        )?;
        let head: Vec<String> = (1..=all).map(|n| format!("{:>6}", n as u64 * step)).collect();
        writeln!(f, "{:12}{}", "seconds", head.concat())?;
        for (trouble, calls) in &self.0 {
            let calls: Vec<String> = calls.iter().map(|calls| format!("{calls:>6}")).collect();
            writeln!(f, "{:12}{}", format!("{trouble:?}"), calls.concat())?;
        }
        Ok(())
    }
}

pub(super) async fn measure(stage: &mut Stage) -> Result<Curves, Error> {
    create_leases(stage, 0..LEASES).await?;
    stage.until_ready(LEASES).await?;
    let mut curves = Vec::new();
    for trouble in [Trouble::None, Trouble::FewerCalls, Trouble::Down] {
        for rule in trouble.rules() {
            stage.daytona.add_rule(rule).await?;
        }
        stage.restart_controller().await?;
        let (mut last, mut calls) = (stage.last_call().await?, Vec::new());
        for step in 0..STEPS.1 {
            if step == STEPS.0 {
                stage.daytona.clear_rules().await?;
            }
            tokio::time::sleep(STEP).await;
            let now = stage.last_call().await?;
            calls.push(now - last);
            last = now;
        }
        stage.until_ready(LEASES).await?;
        curves.push((trouble, calls));
    }
    Ok(Curves(curves))
}
