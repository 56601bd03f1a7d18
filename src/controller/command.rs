//! Reconciles a `SandboxCommand`: observe → decide → act → report.

use std::{sync::Arc, time::Duration};

use kube::{
    Api, ResourceExt,
    runtime::{controller::Action, reflector::ObjectRef},
};
use tokio::sync::SemaphorePermit;

use super::{
    board::Suspicion,
    context::{Context, RECONCILE_LIMIT, parallel, reference},
    error::Error,
    files,
    inputs::{self, Found},
    launch::{fence, kill, submit, wait},
    slots::Other,
    store::store,
    subject::{Next, attempt, handle, hint_lease, lease_of, lease_uid, suspect},
};
use crate::{
    api::{
        COMMAND_FINALIZER, CommandCondition, CommandState, LEASE_FINALIZER, LeaseCondition, LeaseReason, OnSessionLost,
        SandboxCommand, SandboxCommandStatus, SandboxLease, condition,
    },
    cluster::{finalizer, status},
    plan::{
        command::{self as plan, Again, Inputs, Lease, Observed, Sandbox, Sent, Step},
        defaults::with_defaults,
        lease::is_expired,
        queue::{self, Turn},
    },
    shell::{Answer, Attempt, How},
};

/// Most steps in one reconcile.
const STEPS: usize = 12;
/// How long until the watch should have caught up.
const BEHIND: Duration = Duration::from_millis(200);
/// How long a command has run when an event says that it was sent.
const TELLS_START_AFTER: Duration = Duration::from_secs(10);
/// Longest wait before a failed step is tried again. Short: every error of a toolbox may be gone in a moment, and the
/// lease's own controller finds out what is behind it.
const LONGEST_WAIT: Duration = Duration::from_secs(15);

pub(super) async fn reconcile(command: Arc<SandboxCommand>, ctx: Arc<Context>) -> Result<Action, Error> {
    let uid = command.uid().unwrap_or_default();
    ctx.listed().await;
    // What waits for its turn is small: ten thousand commands may come at once. After a signal nothing new is begun.
    let Some(turn) = ctx.stop.run_until_cancelled(ctx.command_turns.acquire()).await else {
        return Ok(Action::await_change());
    };
    // It may have changed in the meantime, or be gone.
    let seen = ctx.commands.get(&ObjectRef::from_obj(&*command)).filter(|seen| seen.uid() == command.uid());
    let Some(seen) = seen else {
        ctx.forget_command(&uid);
        return Ok(Action::await_change());
    };
    let steps = Box::pin(steps((*seen).clone(), turn.ok(), &ctx));
    let result = tokio::time::timeout(RECONCILE_LIMIT, steps).await;
    let (action, settled) = result.map_err(|_| Error::TimedOut)??;
    // That a wait was begun says nothing of how it will go.
    if settled {
        ctx.failures.reset(&uid);
    }
    Ok(action)
}

pub(super) fn error_policy(command: &SandboxCommand, error: &Error, ctx: &Context) -> Action {
    let ends = command.metadata.deletion_timestamp.is_some();
    ctx.failures.requeue(command, LONGEST_WAIT, ends, error)
}

/// What to do next, and whether nothing is under way that could still fail.
async fn steps(
    mut command: SandboxCommand,
    mut turn: Option<SemaphorePermit<'_>>,
    ctx: &Arc<Context>,
) -> Result<(Action, bool), Error> {
    command = ctx.latest.of(command);
    if lags(&command) {
        // The watch's copy of a finished command lacks most of its status; what is written must not.
        let namespace = command.namespace().unwrap_or_default();
        let Some(live) = Api::namespaced(ctx.client.clone(), &namespace).get_opt(&command.name_any()).await? else {
            return Ok((Action::await_change(), true));
        };
        command = live;
    }
    for _ in 0..STEPS {
        ctx.sequences.accept(&mut command);
        let of_lease = lease_of(&command, ctx).and_then(|lease| lease.spec.command_defaults.clone());
        command = with_defaults(command, of_lease.as_ref());
        let (observed, found) = observe(&command, ctx).await?;
        let step = plan::decide(&command, &observed, ctx.now());
        tracing::debug!(?step, "decided");
        if matches!(step, Step::Submit { .. } | Step::Kill { .. } | Step::Fence | Step::Store(_)) {
            // A Daytona that hangs, or a list of ConfigMaps that does not come, must not hold up other commands.
            turn.take();
        }
        match act(command, step, found, ctx).await? {
            Next::Now(next) => command = *next,
            Next::Waiting(wait) => return Ok((Action::requeue(wait), false)),
            Next::After(wait) => return Ok((Action::requeue(wait), true)),
            Next::Rest => return Ok((Action::await_change(), true)),
        }
    }
    Ok((Action::requeue(Duration::from_millis(100)), true))
}

/// Whether it is finished, and its status does not tell for which generation.
fn lags(command: &SandboxCommand) -> bool {
    let status = command.status.as_ref();
    status.is_some_and(|s| {
        s.state == Some(CommandState::Finished) && s.observed_generation != command.metadata.generation
    })
}

/// What is known already. Only a lease that seems to be gone is asked for: an end of it is final for the command. And
/// what the command is to run with is read when it is about to be started.
async fn observe(command: &SandboxCommand, ctx: &Context) -> Result<(Observed, Option<Found>), Error> {
    let namespace = command.namespace().unwrap_or_default();
    let name = &command.spec.lease_ref.name;
    let finished = !queue::unfinished(command);
    let bound = lease_uid(command).filter(|_| !finished);
    let mut found = lease_of(command, ctx);
    let defaults = found.as_ref().and_then(|lease| lease.spec.command_defaults.clone());
    if bound.is_some() && found.as_ref().and_then(|l| l.uid()).as_deref() != bound {
        found = Api::namespaced(ctx.client.clone(), &namespace).get_opt(name).await?.map(Arc::new);
    }
    let others = if finished { Vec::new() } else { ctx.commands_of(&namespace, name) };
    let lost = found
        .as_ref()
        .filter(|lease| lease.spec.on_session_lost == OnSessionLost::Fail)
        .and_then(|_| queue::lost_before(command, others.iter().map(AsRef::as_ref)).map(ResourceExt::name_any));
    let turn = queue::turn(command, others.iter().map(AsRef::as_ref), found.as_deref().map_or(1, parallel));
    let lease = found.map_or(Lease::Missing, |lease| lease_view(&lease, ctx));
    let attempt = attempt(command);
    let sent = attempt.as_ref().map(|a| ctx.attempts.sent(&a.0, &a.1)).unwrap_or_default();
    let prepared = attempt.and_then(|a| ctx.attempts.prepared(&a.0, &a.1)).map(Found::Ready);
    let found = match prepared {
        _ if !to_be_started(command, turn, &lease, &sent) => None,
        Some(found) => Some(found),
        None => Some(Box::pin(inputs::resolve(command, ctx)).await?),
    };
    let inputs = found.as_ref().map_or(Inputs::NotAsked, Found::seen);
    Ok((Observed { lease, turn, inputs, sent, defaults, lost }, found))
}

/// Whether it depends on what it is to run with whether it is started (again).
fn to_be_started(command: &SandboxCommand, turn: Turn, lease: &Lease, sent: &Sent) -> bool {
    let present = matches!(lease, Lease::Present { suspended: None, .. });
    match command.status.as_ref().and_then(|s| s.state) {
        Some(CommandState::Finished) => false,
        // Also under a lease that is suspended: it drains.
        Some(CommandState::Running) => {
            matches!(lease, Lease::Present { .. })
                && (sent.fresh || matches!(sent.answer, Some(Answer::Unseen | Answer::Fenced)))
        }
        Some(CommandState::Queued) | None => {
            present && turn.now && !command.spec.cancel && command.metadata.deletion_timestamp.is_none()
        }
    }
}

fn lease_view(lease: &SandboxLease, ctx: &Context) -> Lease {
    let uid = lease.uid().unwrap_or_default();
    let mut sandbox = ctx.board.sandbox(&uid);
    let mut files_first = false;
    if let plan::Sandbox::Up { trusted, .. } = &mut sandbox {
        files_first = *trusted && files::hold_commands(lease, ctx);
        *trusted &= !files_first;
    }
    if lease.metadata.deletion_timestamp.is_some() {
        return Lease::Terminating { uid, sandbox };
    }
    if is_expired(lease) {
        // With the finalizer went the sandbox, or out of our hands.
        let let_go = !lease.finalizers().iter().any(|f| f == LEASE_FINALIZER);
        return Lease::Expired { uid, sandbox: if let_go { Sandbox::Lost } else { sandbox } };
    }
    let suspended = lease.spec.suspend.then_some(lease.spec.suspend_policy);
    let ready = lease.status.as_ref().and_then(|s| condition(&s.conditions, LeaseCondition::Ready.as_str()));
    let (mut reason, mut message) = ready
        .map_or_else(|| ("new".to_owned(), "not looked at yet".to_owned()), |c| (c.reason.clone(), c.message.clone()));
    if files_first && reason == LeaseReason::Ready.as_str() {
        LeaseReason::SyncingFiles.as_str().clone_into(&mut reason);
        "its files are brought in first".clone_into(&mut message);
    }
    Lease::Present { uid, sandbox, reason, message, suspended }
}

async fn act(command: SandboxCommand, step: Step, found: Option<Found>, ctx: &Arc<Context>) -> Result<Next, Error> {
    let api = Api::<SandboxCommand>::namespaced(ctx.client.clone(), &command.namespace().unwrap_or_default());
    let uid = command.uid().unwrap_or_default();
    match step {
        Step::Rest => {
            // A look at an old copy may have brought it back after it was forgotten.
            ctx.forget_command(&uid);
            Ok(Next::Rest)
        }
        Step::Look(wait) => {
            if !queue::running(&command) {
                ctx.slots.leave(&uid);
            }
            Ok(Next::After(wait))
        }
        Step::AddFinalizer => {
            let Some(now) = finalizer::add(&api, &command, COMMAND_FINALIZER).await? else { return Ok(Next::Rest) };
            ctx.latest.note(&now, &ctx.commands);
            Ok(Next::now(now))
        }
        Step::RemoveFinalizer => {
            let now = finalizer::remove(&api, &command, COMMAND_FINALIZER).await?;
            // One that is being deleted is gone with its last finalizer.
            if let Some(now) = now.filter(|now| now.metadata.deletion_timestamp.is_none()) {
                ctx.latest.note(&now, &ctx.commands);
            }
            ctx.forget_command(&uid);
            Ok(Next::Rest)
        }
        Step::Record(new, again) => record(&api, command, &new, again, found, ctx).await,
        Step::Submit { epoch } => match found {
            Some(Found::Ready(prepared)) => submit(command, epoch, &prepared, ctx).await,
            _ => Ok(Next::After(Duration::from_secs(1))),
        },
        Step::Wait => wait(&command, ctx),
        Step::Kill { grace, after } => kill(command, grace, after, ctx).await,
        Step::Fence => fence(command, ctx).await,
        Step::Store(logs) => {
            if let Some((uid, attempt)) = attempt(&command) {
                let stored = store(&command, logs, ctx).await?;
                ctx.attempts.stored(&uid, &attempt, stored);
            }
            Ok(Next::now(command))
        }
        Step::Suspect { epoch } => {
            suspect(&command, epoch, Suspicion::Shell, ctx);
            Ok(Next::After(Duration::from_secs(10)))
        }
    }
}

/// Writes the status, and what has to follow from its having been written.
async fn record(
    api: &Api<SandboxCommand>,
    command: SandboxCommand,
    new: &SandboxCommandStatus,
    again: Again,
    found: Option<Found>,
    ctx: &Arc<Context>,
) -> Result<Next, Error> {
    let old = command.status.clone().unwrap_or_default();
    if new.state == Some(CommandState::Finished) {
        doubt(&command, ctx);
    }
    if new.state == Some(CommandState::Running) && old.state != new.state && !may_start(&command, ctx) {
        return Ok(Next::After(BEHIND));
    }
    if let Again::After(wait) = again
        && has_moved_up(&old, new)
        && !ctx.pace.allows(ctx.now())
    {
        // It may have been let start before another came in front of it.
        ctx.slots.leave(&command.uid().unwrap_or_default());
        return Ok(Next::After(wait));
    }
    let Some(now) = status::apply(api, &command, command.status.as_ref(), new).await? else {
        ctx.slots.leave(&command.uid().unwrap_or_default());
        return Ok(Next::Rest);
    };
    ctx.latest.note(&now, &ctx.commands);
    match new.state {
        Some(CommandState::Queued) => ctx.slots.leave(&now.uid().unwrap_or_default()),
        Some(CommandState::Running) if new.attempts != old.attempts => {
            if let Some((uid, attempt)) = attempt(&now) {
                let prepared = if let Some(Found::Ready(prepared)) = found { Some(prepared) } else { None };
                ctx.attempts.intended(&uid, &attempt, prepared);
            }
        }
        Some(CommandState::Finished) if old.state != new.state => {
            ctx.slots.leave(&now.uid().unwrap_or_default());
            if queue::persists(&command) && queue::is_loss(new) {
                // Those behind it are to know before it may be deleted.
                ctx.hint_commands_of(&command.namespace().unwrap_or_default(), &command.spec.lease_ref.name, true);
            }
            if let (Some(lease), Some((uid, attempt))) = (new.lease_uid.as_deref(), attempt(&command)) {
                // A fenced one may have left what was uploaded for it too late.
                let all = 1..=new.attempts.unwrap_or(1);
                ctx.board.collected(lease, all.map(|n| Attempt::new(&uid, n, &attempt.mark).id));
            }
        }
        _ => {}
    }
    announce(&now, &old, new, ctx);
    match again {
        Again::AtOnce => Ok(Next::now(now)),
        Again::After(wait) => {
            // A lease that sleeps wakes for a command that comes to wait for it. Only then: a message that changes
            // with each try of the lease must not make it try again.
            let asleep = new.lease_uid.as_deref().is_some_and(|lease| ctx.board.handle(lease).is_none());
            if asleep
                && (old.lease_uid != new.lease_uid
                    || (old.queue_position != Some(1) && new.queue_position == Some(1))
                    || (queue::held_up(&command) && !queue::held_up(&now)))
            {
                hint_lease(&command, ctx);
            }
            Ok(Next::After(wait))
        }
    }
}

/// Whether its place is all that is new, and others are before it still.
fn has_moved_up(old: &SandboxCommandStatus, new: &SandboxCommandStatus) -> bool {
    let moved = SandboxCommandStatus { queue_position: new.queue_position, ..old.clone() };
    old.queue_position != new.queue_position && new.queue_position != Some(1) && moved == *new
}

/// Whether there is a place for it beside those that run. What the watch shows may be behind.
fn may_start(command: &SandboxCommand, ctx: &Context) -> bool {
    let (namespace, name) = (command.namespace().unwrap_or_default(), &command.spec.lease_ref.name);
    let Some(lease) = lease_of(command, ctx) else { return false };
    let others = ctx.commands_of(&namespace, name);
    let others = others.iter().map(|other| Other {
        uid: other.uid().unwrap_or_default(),
        runs: queue::running(other),
        persists: queue::persists(other),
    });
    let uid = command.uid().unwrap_or_default();
    let lease_uid = lease.uid().unwrap_or_default();
    ctx.slots.take(&lease_uid, (&uid, queue::persists(command)), parallel(&lease), others)
}

/// A command that found our files gone or its shell dead may not be the last to do so: the next one is not fed in before
/// the lease has looked.
fn doubt(command: &SandboxCommand, ctx: &Context) {
    let Some((uid, attempt)) = attempt(command) else { return };
    let doubt = match ctx.attempts.sent(&uid, &attempt).answer {
        Some(Answer::Lost | Answer::Done { how: How::OutputLost, .. }) => Suspicion::Workspace,
        Some(Answer::Died { session_lives: false, .. }) => Suspicion::Shell,
        _ => return,
    };
    if let Some(handle) = handle(command, ctx) {
        suspect(command, handle.epoch, doubt, ctx);
    }
}

/// An event when the command has ended, and one that it was sent if it is still at it a moment later: of most commands
/// the end says it all.
fn announce(command: &SandboxCommand, old: &SandboxCommandStatus, new: &SandboxCommandStatus, ctx: &Arc<Context>) {
    if old.state == new.state || new.state == Some(CommandState::Queued) {
        return;
    }
    let Some(told) = condition(&new.conditions, CommandCondition::Succeeded.as_str()).cloned() else { return };
    let (about, ctx) = (reference(command), Arc::clone(ctx));
    let publish = move |ctx: &Context| {
        ctx.events.publish(about, told.status == "False", false, (&told.reason, "Run", &told.message));
    };
    if new.state == Some(CommandState::Finished) {
        return publish(&ctx);
    }
    let (name, uid) = (ObjectRef::from_obj(command), command.uid());
    tokio::spawn(async move {
        let waited = ctx.stop.run_until_cancelled(tokio::time::sleep(TELLS_START_AFTER)).await;
        if waited.is_some() && ctx.commands.get(&name).is_some_and(|now| now.uid() == uid && queue::running(&now)) {
            publish(&ctx);
        }
    });
}
