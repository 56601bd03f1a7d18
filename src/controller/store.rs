//! Stores the logs of a command, within the budget of its namespace.

use kube::ResourceExt;

use super::{context::Context, error::Error};
use crate::{
    api::{OutputReason, SandboxCommand, SourceKind},
    cluster::logs::{self, Kept},
    plan::logs::{Log, Stored},
};

/// Stores the logs. Doing it again is fine.
pub(super) async fn store(command: &SandboxCommand, logs: Vec<Log>, ctx: &Context) -> Result<Stored, Error> {
    let namespace = command.namespace().unwrap_or_default();
    let names: Vec<&str> = logs.iter().map(|log| log.at.name.as_str()).collect();
    let wanted: u64 = logs.iter().map(size).sum();
    let (used, budget) = (ctx.ledger.used(&namespace, &names), ctx.config.log_budget);
    if used.saturating_add(wanted) > budget {
        let message = format!(
            "the logs stored in this namespace hold {used} bytes of the {budget} that they may \
             (--log-budget-per-namespace); only the tails are kept. Delete commands that are no longer needed"
        );
        return Ok(Stored::nothing(false, OutputReason::LogBudgetExceeded, message));
    }
    let mut refs = Vec::new();
    let mut refused = None;
    for log in logs {
        let bytes = size(&log);
        match logs::store(&ctx.client, command, &log.at, log.content).await? {
            Kept::Stored => {
                let kind = if log.at.kind == "Secret" { SourceKind::Secret } else { SourceKind::ConfigMap };
                ctx.ledger.note(kind, &namespace, &log.at.name, Some(bytes));
                refs.push(log.at);
            }
            Kept::Refused(why) => refused = Some(why),
        }
    }
    Ok(match refused {
        None => Stored {
            refs,
            complete: true,
            reason: OutputReason::Stored,
            message: "what is longer than its tail in status is stored; see logRef".to_owned(),
        },
        Some(why) => Stored {
            refs,
            complete: false,
            reason: OutputReason::StoreRefused,
            message: format!("the API server did not take a log: {why}"),
        },
    })
}

fn size(log: &Log) -> u64 {
    u64::try_from(log.content.len()).unwrap_or(u64::MAX)
}
