//! The command that a step is about: its attempt, the way into its sandbox, and what comes next.

use std::{sync::Arc, time::Duration};

use kube::{ResourceExt, runtime::reflector::ObjectRef};

use super::{
    board::{Handle, Suspicion},
    context::Context,
};
use crate::{
    api::{SandboxCommand, SandboxLease},
    shell::Attempt,
};

/// What a step led to.
pub(super) enum Next {
    Now(Box<SandboxCommand>),
    After(Duration),
    /// Somebody waits for its end; look again after this time all the same.
    Waiting(Duration),
    Rest,
}

impl Next {
    pub(super) fn now(command: SandboxCommand) -> Self {
        Self::Now(Box::new(command))
    }
}

/// Has the lease look at its session, if that is news.
pub(super) fn suspect(command: &SandboxCommand, epoch: u64, suspicion: Suspicion, ctx: &Context) {
    if lease_uid(command).is_some_and(|lease| ctx.board.suspect(lease, epoch, suspicion)) {
        hint_lease(command, ctx);
    }
}

/// The command's UID and its present attempt, once one is recorded.
pub(super) fn attempt(command: &SandboxCommand) -> Option<(String, Attempt)> {
    let (uid, status) = (command.uid()?, command.status.as_ref()?);
    let mark = status.session_id.as_deref().or(status.workspace_id.as_deref())?;
    let attempt = Attempt::new(&uid, status.attempts?, mark);
    Some((uid, attempt))
}

pub(super) fn lease_uid(command: &SandboxCommand) -> Option<&str> {
    command.status.as_ref()?.lease_uid.as_deref()
}

/// The way into the sandbox that the attempt was recorded for; no other will do.
pub(super) fn handle(command: &SandboxCommand, ctx: &Context) -> Option<Arc<Handle>> {
    let handle = ctx.board.handle(lease_uid(command)?)?;
    let recorded = command.status.as_ref()?.sandbox_id.as_deref()?;
    (handle.sandbox == recorded).then_some(handle)
}

/// The lease that it names, as the watch shows it.
pub(super) fn lease_of(command: &SandboxCommand, ctx: &Context) -> Option<Arc<SandboxLease>> {
    let namespace = command.namespace().unwrap_or_default();
    ctx.leases.get(&ObjectRef::new(&command.spec.lease_ref.name).within(&namespace))
}

pub(super) fn hint_lease(command: &SandboxCommand, ctx: &Context) {
    ctx.hint_lease(&command.namespace().unwrap_or_default(), &command.spec.lease_ref.name);
}
