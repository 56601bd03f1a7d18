//! Writes what was decided about a lease into its status, and tells it by events.

use kube::{Api, ResourceExt};

use super::{
    context::{Context, reference},
    error::Error,
};
use crate::{
    api::{CommandGauges, LeaseCondition, SandboxLease, SandboxLeaseStatus, condition},
    cluster::status,
    plan::{
        lease::{self as plan, Told},
        queue,
    },
};

pub(super) fn api(lease: &SandboxLease, ctx: &Context) -> Api<SandboxLease> {
    Api::namespaced(ctx.client.clone(), &lease.namespace().unwrap_or_default())
}

/// Writes the status if it changed, and an event if the reason of Ready changed. `None`: the lease is gone.
pub(super) async fn report(lease: SandboxLease, told: &Told, ctx: &Context) -> Result<Option<SandboxLease>, Error> {
    let new = plan::status(&lease, told, gauges(&lease, ctx), ctx.now());
    let old = lease.status.clone();
    let Some(now) = status::apply(&api(&lease, ctx), &lease, old.as_ref(), &new).await? else {
        return Ok(None);
    };
    if lease.finalizers().is_empty() && lease.metadata.deletion_timestamp.is_some() {
        return Ok(Some(now));
    }
    let told_of = |status: &SandboxLeaseStatus, type_: LeaseCondition| {
        condition(&status.conditions, type_.as_str()).map(|c| (c.reason.clone(), c.message.clone(), c.status.clone()))
    };
    for type_ in [LeaseCondition::Ready, LeaseCondition::CleanupBlocked] {
        let before = old.as_ref().and_then(|s| told_of(s, type_)).map(|(reason, ..)| reason);
        if let Some((reason, message, truth)) = told_of(&new, type_)
            && before.as_deref() != Some(&reason)
        {
            let stalled = condition(&new.conditions, LeaseCondition::Stalled.as_str()).is_some();
            let warning = type_ == LeaseCondition::CleanupBlocked || (truth != "True" && stalled);
            // What blocks is not folded into what the lease said before of the same reason.
            let blocked = type_ == LeaseCondition::CleanupBlocked;
            let (event, note) =
                if blocked { (type_.as_str(), format!("{reason}: {message}")) } else { (&*reason, message) };
            ctx.events.publish(reference(&now), warning, warning, (event, "Reconcile", &note));
        }
    }
    Ok(Some(now))
}

fn gauges(lease: &SandboxLease, ctx: &Context) -> CommandGauges {
    let uid = lease.uid();
    let mut gauges = CommandGauges::default();
    for command in ctx.commands_of(&lease.namespace().unwrap_or_default(), &lease.name_any()) {
        let status = command.status.clone().unwrap_or_default();
        if status.lease_uid != uid {
            continue;
        }
        let place = match (queue::unfinished(&command), queue::running(&command), status.exit_code) {
            (_, true, _) => &mut gauges.running,
            (true, false, _) => &mut gauges.queued,
            (false, _, Some(0)) => &mut gauges.succeeded,
            (false, _, _) => &mut gauges.failed,
        };
        *place += 1;
    }
    gauges
}
