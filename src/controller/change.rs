//! Changes a lease's sandbox in Daytona as was decided.

use std::{sync::Arc, time::Duration};

use kube::ResourceExt;

use super::{
    context::{Context, reference},
    error::Error,
    lease::Next,
    observe::Seen,
    prepare::tidy,
    report::api,
};
use crate::{
    api::SandboxLease,
    daytona::{Class, Client, Setting},
    plan::{
        lease::{Plan, Step, is_ending, is_ours, released},
        sandbox::wanted,
    },
};

/// When to look whether a change can be seen.
const SOON: Duration = Duration::from_millis(50);

/// Makes the step; `None`: it is no change of the sandbox.
pub(super) async fn change(
    lease: &SandboxLease,
    plan: &Plan,
    seen: &Seen,
    client: &Arc<Client>,
    ctx: &Context,
) -> Result<Option<Next>, Error> {
    let uid = lease.uid().unwrap_or_default();
    // A write is seen at once, as a rule; where it is not, it is not repeated without a pause.
    let shown = |what| Next::After(if ctx.board.wrote_again(&uid, what) { plan.again } else { SOON });
    Ok(Some(match &plan.step {
        Step::CreateSandbox => {
            // The object may come from a cache that is behind: a second sandbox is what must not happen.
            let live = api(lease, ctx).get_opt(&lease.name_any()).await?;
            if live.as_ref().and_then(ResourceExt::resource_version) != lease.resource_version() {
                return Ok(Some(Next::After(Duration::from_millis(200))));
            }
            if !ctx.escrow.still_kept(seen.deposit.as_ref()).await {
                return Ok(Some(Next::now(lease.clone())));
            }
            // A look from before the call, or from while it was under way, is no proof of absence after it.
            ctx.board.changed(&uid);
            let new = wanted(lease, &seen.observed.name, seen.observed.owner.as_ref(), &ctx.config.intervals);
            let made = client.create_sandbox(&new).await;
            ctx.board.changed(&uid);
            ctx.board.created(&uid, made.as_ref().is_err_and(|error| error.class == Class::Refused));
            let made = made?;
            tracing::info!(sandbox = %made.id, "created the sandbox");
            Next::now(lease.clone())
        }
        Step::Claim(wanted, labels) => {
            if !ctx.escrow.still_kept(seen.deposit.as_ref()).await {
                return Ok(Some(Next::now(lease.clone())));
            }
            // Of two leases that ask for it one is told of the other.
            let Some(_alone) = ctx.claims.take(&wanted.id) else { return Ok(Some(Next::After(plan.again))) };
            let now = client.sandbox(&wanted.id).await?;
            if now.is_some_and(|now| now.labels == wanted.labels) {
                // A look from before the call, or from while it was under way, says nothing of after it.
                ctx.board.changed(&uid);
                let taken = client.set(&wanted.id, &Setting::Labels(labels.clone())).await;
                ctx.board.changed(&uid);
                taken?;
                tracing::info!(sandbox = %wanted.id, "took the sandbox over");
            }
            shown("claim")
        }
        Step::StartSandbox(id) => {
            client.start_sandbox(id).await?;
            Next::After(plan.again)
        }
        Step::StopSandbox(id) => {
            tidy_at_the_end(lease, seen, client).await;
            client.stop_sandbox(id).await?;
            Next::After(plan.again)
        }
        Step::ArchiveSandbox(id) => {
            client.archive_sandbox(id).await?;
            Next::After(plan.again)
        }
        Step::RecoverSandbox(id) => {
            client.recover_sandbox(id).await?;
            ctx.board.set_recovered(&uid, true);
            Next::After(plan.again)
        }
        Step::KeepAwake(id) => {
            match client.keep_awake(id).await {
                Ok(()) => ctx.board.keep_awake(&uid),
                Err(error) => tracing::warn!(sandbox = %id, %error, "the sandbox could not be kept awake"),
            }
            Next::After(plan.again)
        }
        Step::Spare(id) => {
            client.set(id, &Setting::AutoDelete(-1)).await?;
            shown("spare")
        }
        Step::HandOver(id) => {
            let Some(_alone) = ctx.claims.take(id) else { return Ok(Some(Next::After(plan.again))) };
            // Somebody may have it already, if an earlier answer was lost.
            if let Some(now) = client.sandbox(id).await?.filter(|now| is_ours(lease, now)) {
                tidy_at_the_end(lease, seen, client).await;
                client.set(id, &Setting::Labels(released(lease, &now))).await?;
                let (state, policy) = (now.state.as_str(), lease.spec.reclaim_policy);
                let note = format!("sandbox {id} ({state}) is kept in Daytona, as reclaimPolicy {policy:?} says");
                ctx.events.publish(reference(lease), false, false, ("SandboxKept", "Reconcile", &note));
                tracing::info!(sandbox = %id, "left the sandbox behind");
            }
            shown("hand over")
        }
        Step::Adjust(id, settings) => {
            for setting in settings {
                match client.set(id, setting).await {
                    Ok(()) => tracing::info!(sandbox = %id, ?setting, "set what had drifted"),
                    // The sandbox serves all the same, and is to be looked at as often as ever.
                    Err(error) => tracing::warn!(sandbox = %id, ?setting, %error, "what has drifted could not be set"),
                }
            }
            Next::After(plan.again)
        }
        Step::DeleteSandbox(id) => {
            client.delete_sandbox(id).await?;
            // Often it is gone before the answer is here; then the next look is the last.
            shown("delete")
        }
        _ => return Ok(None),
    }))
}

/// Whatever outlives its lease is left without our files.
async fn tidy_at_the_end(lease: &SandboxLease, seen: &Seen, client: &Arc<Client>) {
    // What still runs there needs them to be ended.
    if let Some(sandbox) = seen.sandbox().filter(|_| is_ending(lease) && seen.observed.running == 0) {
        tidy(lease, client, sandbox).await;
    }
}
