//! Stores the logs of a command, within the budget of its namespace.

use kube::ResourceExt;

use super::{context::Context, error::Error};
use crate::{
    api::{OutputReason, SandboxCommand, SourceKind},
    cluster::logs::{self, Kept},
    plan::logs::{Log, Stored, told},
};

/// Stores the logs. Doing it again is fine.
pub(super) async fn store(command: &SandboxCommand, logs: Vec<Log>, ctx: &Context) -> Result<Stored, Error> {
    // What is merely not listed yet must not look as if it were not there.
    ctx.sources_listed.cancelled().await;
    let namespace = command.namespace().unwrap_or_default();
    let wanted: Vec<_> = logs.iter().map(|log| (kind(log), log.at.name.as_str(), size(log))).collect();
    let budget = ctx.config.log_budget;
    if let Err(used) = ctx.ledger.take(&namespace, &wanted, budget) {
        let message = format!(
            "the logs stored in this namespace hold {used} bytes of the {budget} that they may \
             (--log-budget-per-namespace); only the tails are kept. Delete commands that are no longer needed"
        );
        return Ok(Stored::nothing(false, OutputReason::LogBudgetExceeded, message));
    }
    let told = told(&logs);
    let mut refs = Vec::new();
    let mut refused = None;
    for log in logs {
        match logs::store(&ctx.client, command, &log.at, log.content.clone()).await? {
            Kept::Stored => refs.push(log.at),
            Kept::Refused(why) => {
                ctx.ledger.note(kind(&log), &namespace, &log.at.name, None);
                refused = Some(why);
            }
        }
    }
    Ok(match refused {
        None => Stored { refs, complete: true, reason: OutputReason::Stored, message: told },
        Some(why) => Stored {
            refs,
            complete: false,
            reason: OutputReason::StoreRefused,
            message: format!("the API server did not take a log: {why}"),
        },
    })
}

fn kind(log: &Log) -> SourceKind {
    if log.at.kind == SourceKind::Secret.as_str() { SourceKind::Secret } else { SourceKind::ConfigMap }
}

fn size(log: &Log) -> u64 {
    u64::try_from(log.content.len()).unwrap_or(u64::MAX)
}
