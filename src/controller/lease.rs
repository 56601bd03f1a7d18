//! Reconciles a `SandboxLease`: observe → decide → report → act, one external change at a time.

use std::{sync::Arc, time::Duration};

use kube::{
    ResourceExt,
    runtime::{controller::Action, reflector::ObjectRef},
};

use super::{
    board::{Handle, Standing, Suspicion},
    change::change,
    context::{Context, RECONCILE_LIMIT, reference},
    error::Error,
    escrow, files,
    observe::{Seen, observe, workspace},
    prepare::{directories, is_ready, mark, open_session, set_up},
    report::{api, report},
    subject::attempt,
};
use crate::{
    api::{LEASE_FINALIZER, SandboxLease},
    cluster::finalizer,
    daytona::{self, Class, State, Toolbox},
    plan::{
        backoff::spread,
        command::{Launcher, Place},
        lease::{self as plan, Plan, Remote, Session, Step, Told},
        queue,
    },
    shell::Workspace,
};

/// Longest wait before a failed step is tried again, and the same for a lease that is being deleted.
const LONGEST_WAIT: Duration = Duration::from_mins(10);
const LONGEST_WAIT_LEAVING: Duration = Duration::from_secs(30);

/// Waits before another try are no shorter than this for the sake of an expiry.
const LEAST_CAP: Duration = Duration::from_secs(1);

/// Most steps in one reconcile; a lease needs about six from its creation to Ready.
const STEPS: usize = 12;

/// What a step led to.
pub(super) enum Next {
    /// Decide again at once, with the object as it is now.
    Now(Box<SandboxLease>),
    /// Look again after this time.
    After(Duration),
    /// The object is gone.
    Gone,
}

impl Next {
    pub(super) fn now(lease: SandboxLease) -> Self {
        Self::Now(Box::new(lease))
    }
}

pub(super) async fn reconcile(lease: Arc<SandboxLease>, ctx: Arc<Context>) -> Result<Action, Error> {
    let uid = lease.uid().unwrap_or_default();
    ctx.listed().await;
    // After a signal nothing new is begun.
    let turn = async {
        // Nobody is asked about what is abandoned, so a Daytona that hangs must not hold it up.
        if plan::is_abandoned(&lease) { None } else { ctx.lease_turns.take(&lease).await }
    };
    let turn = tokio::time::timeout(RECONCILE_LIMIT, turn);
    let _turn = match ctx.stop.run_until_cancelled(turn).await {
        Some(Ok(turn)) => turn,
        // Those of a Daytona that hangs must not take all places among the reconciles, nor wait long when it is back.
        Some(Err(_)) => return Ok(Action::requeue(spread(LONGEST_WAIT_LEAVING, seed(&uid)))),
        None => return Ok(Action::await_change()),
    };
    // It may have changed in the meantime, or be gone.
    let seen = ctx.leases.get(&ObjectRef::from_obj(&*lease)).filter(|seen| seen.uid() == lease.uid());
    let Some(seen) = seen else { return Ok(Action::await_change()) };
    let result = tokio::time::timeout(RECONCILE_LIMIT, Box::pin(as_it_is((*seen).clone(), &ctx))).await;
    let action = result.map_err(|_| Error::TimedOut)??;
    ctx.failures.reset(&uid);
    Ok(action)
}

pub(super) fn error_policy(lease: &SandboxLease, error: &Error, ctx: &Context) -> Action {
    // What is being deleted may hold up a whole namespace, and what is to expire must not live on.
    let expiry = plan::expiry(lease, ctx.config.intervals.longest_lease);
    let left =
        expiry.map_or(LONGEST_WAIT, |expiry| Duration::try_from(expiry.duration_since(ctx.now())).unwrap_or_default());
    let cap = if plan::is_ending(lease) { LONGEST_WAIT_LEAVING } else { LONGEST_WAIT.min(left.max(LEAST_CAP)) };
    ctx.failures.requeue(lease, cap, plan::is_ending(lease), error)
}

/// Makes steps from what the watch shows; where that is behind, from what there is: it may be so for long, and each
/// decision on it would be refused.
async fn as_it_is(seen: SandboxLease, ctx: &Context) -> Result<Action, Error> {
    let (api, name, uid) = (api(&seen, ctx), seen.name_any(), seen.uid());
    match Box::pin(steps(seen, ctx)).await {
        Err(error) if error.is_conflict() => match api.get_opt(&name).await?.filter(|live| live.uid() == uid) {
            Some(live) => Box::pin(steps(live, ctx)).await,
            None => Ok(Action::await_change()),
        },
        result => result,
    }
}

async fn steps(mut lease: SandboxLease, ctx: &Context) -> Result<Action, Error> {
    let seed = seed(&lease.uid().unwrap_or_default());
    for _ in 0..STEPS {
        match step(lease, ctx).await? {
            Next::Now(next) => lease = *next,
            // Spread, so that a thousand leases do not ask at once.
            Next::After(wait) => return Ok(Action::requeue(wait.saturating_sub(spread(wait / 8, seed)))),
            Next::Gone => return Ok(Action::await_change()),
        }
    }
    Ok(Action::requeue(Duration::from_millis(100)))
}

/// A number of its own for each lease.
fn seed(uid: &str) -> u64 {
    uid.bytes().fold(0, |seed: u64, b| seed.rotate_left(7) ^ u64::from(b))
}

async fn step(lease: SandboxLease, ctx: &Context) -> Result<Next, Error> {
    // On the heap, each only while it is under way: what waits for Daytona is small, for there may be a thousand of it.
    let seen = Box::pin(observe(&lease, ctx)).await;
    let plan = plan::decide(&lease, &seen.observed, &ctx.config.intervals);
    tracing::debug!(step = ?plan.step, "decided");
    note_standing(&lease, &seen, ctx);
    // What is intended is written before it is done.
    let intended = |lease: &SandboxLease| lease.status.as_ref().is_some_and(|status| status.sandbox.is_some());
    let before = intended(&lease);
    let Some(lease) = Box::pin(report(lease, &plan.told, ctx)).await? else { return Ok(Next::Gone) };
    if !before && intended(&lease) {
        ctx.board.intended(&lease.uid().unwrap_or_default());
    }
    if plan.step == Step::Rest
        && let Some(error) = seen.failure()
    {
        // Nothing is known, so nothing is done; asked again after a wait that grows.
        return Err(error.clone().into());
    }
    match Box::pin(act(&lease, &plan, &seen, ctx)).await {
        Ok(next) => Ok(next),
        Err(Error::Daytona(error)) => {
            let told = after_failure(&lease, plan, &error, ctx);
            Box::pin(report(lease, &told, ctx)).await?;
            Err(error.into())
        }
        Err(error @ (Error::Sandbox(_) | Error::DeadSession(_) | Error::Unfiled(..))) => {
            let mut told = plan.told;
            match &error {
                Error::Unfiled(message, _) => told.unfiled(message),
                _ => told.sandbox_disobeys(&error.to_string()),
            }
            if matches!(error, Error::DeadSession(_)) {
                told.renew_session(&lease);
            }
            Box::pin(report(lease, &told, ctx)).await?;
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// What is told when a step failed.
fn after_failure(lease: &SandboxLease, plan: Plan, error: &daytona::Error, ctx: &Context) -> Told {
    let mut told = plan.told;
    let leaving = plan::is_ending(lease);
    match (&plan.step, error.class) {
        // Gone already, or Daytona is at it: the next look proves it, or shows that it failed.
        (Step::DeleteSandbox(_), Class::Gone)
        | (Step::StopSandbox(_) | Step::ArchiveSandbox(_) | Step::RecoverSandbox(_), Class::Conflict) => {}
        (Step::DeleteSandbox(object), _) => told.blocked_by(error, &format!("sandbox {object}")),
        (Step::StopSandbox(id) | Step::ArchiveSandbox(id) | Step::Spare(id) | Step::HandOver(id), _) if leaving => {
            told.blocked_by(error, &format!("sandbox {id}"));
        }
        _ if leaving => told.blocked_by(error, "the lease's session"),
        // An earlier call may take effect still.
        (Step::CreateSandbox, Class::Refused) if !ctx.board.never_created(&lease.uid().unwrap_or_default()) => {
            told.error(error);
            told.intended_still(lease);
        }
        // The name is taken: perhaps by our own call whose answer was lost. The next look tells.
        (Step::CreateSandbox | Step::StartSandbox(_), Class::Conflict) => {}
        _ => told.error(error),
    }
    told
}

async fn act(lease: &SandboxLease, plan: &Plan, seen: &Seen, ctx: &Context) -> Result<Next, Error> {
    let api = api(lease, ctx);
    let again = || Next::now(lease.clone());
    match &plan.step {
        Step::Rest => return Ok(Next::After(plan.again)),
        Step::Record => return Ok(again()),
        Step::AddFinalizer => {
            return Ok(finalizer::add(&api, lease, LEASE_FINALIZER).await?.map_or(Next::Gone, Next::now));
        }
        Step::KeepKey => {
            if let Some(deposit) = &seen.deposit {
                escrow::keep(lease, deposit, ctx).await?;
            }
            return Ok(again());
        }
        Step::RemoveFinalizer | Step::Abandon => {
            if plan.step == Step::Abandon {
                tell_orphan(lease, ctx);
            }
            let left = finalizer::remove(&api, lease, LEASE_FINALIZER).await?;
            ctx.board.forget(&lease.uid().unwrap_or_default());
            ctx.hint_commands_of(&lease.namespace().unwrap_or_default(), &lease.name_any(), true);
            ctx.hint_leases_after(lease);
            // An expired one stays behind.
            let left = left.filter(|lease| lease.metadata.deletion_timestamp.is_none());
            return Ok(left.map_or(Next::Gone, Next::now));
        }
        _ => {}
    }
    let Some(client) = &seen.client else {
        return Ok(Next::After(plan.again));
    };
    if let Some(next) = change(lease, plan, seen, client, ctx).await? {
        return Ok(next);
    }
    match (seen.sandbox(), &plan.step) {
        (Some(sandbox), step) => match Toolbox::of(client, sandbox) {
            Ok(toolbox) => in_session(lease, step, &plan.told, &toolbox, sandbox, seen, ctx).await,
            Err(origin) => {
                let mut told = plan.told.clone();
                told.toolbox_not_allowed(&origin, plan::is_ending(lease));
                report(lease.clone(), &told, ctx).await?;
                Ok(Next::After(ctx.config.intervals.while_blocked()))
            }
        },
        (None, _) => Ok(Next::After(plan.again)),
    }
}

/// Tells what a lease that was abandoned may leave behind, before nobody knows it any more.
fn tell_orphan(lease: &SandboxLease, ctx: &Context) {
    let orphan = plan::orphan(lease).unwrap_or_default();
    let connection = lease.status.as_ref().and_then(|status| status.connection.as_ref());
    let api_url = connection.map_or("", |connection| connection.api_url.as_str());
    tracing::warn!(sandbox = %orphan, api_url, "abandoned: the lease is let go without proof that its sandbox is gone");
    let note = format!(
        "the lease was let go without proof, as its annotation asked: sandbox {orphan} at {api_url} may be left, and cost \
         money until somebody deletes it"
    );
    ctx.events.publish(reference(lease), true, true, ("Abandoned", "Reconcile", &note));
}

/// The steps that go through the sandbox's toolbox.
async fn in_session(
    lease: &SandboxLease,
    step: &Step,
    told: &Told,
    toolbox: &Toolbox,
    sandbox: &daytona::Sandbox,
    seen: &Seen,
    ctx: &Context,
) -> Result<Next, Error> {
    let Some(session) = lease.status.as_ref().and_then(|s| s.place().cloned()) else {
        return Ok(Next::now(lease.clone()));
    };
    let mut told = told.clone();
    let mut suspect = None;
    let workspace = match step {
        Step::OpenSession => {
            let (work, home) = directories(toolbox).await?;
            told.directories(&work, &home);
            let workspace = Workspace::new(&home, &work, &lease.uid().unwrap_or_default());
            set_up(toolbox, &workspace).await?;
            if lease.spec.use_sessions {
                open_session(toolbox, &workspace, lease, &session).await?;
            } else {
                mark(toolbox, &workspace.mark(&session.id), &session.id).await?;
            }
            told.session_lives(ctx.now());
            tracing::info!(id = %session.id, "it serves");
            workspace
        }
        Step::ResumeSession => {
            let workspace = workspace(lease);
            set_up(toolbox, &workspace).await?;
            let uid = lease.uid().unwrap_or_default();
            // What an earlier controller left is nobody's any more: whatever it recorded as running is kept.
            let check = if ctx.board.has_served(&uid) {
                workspace.check(&session.id)
            } else {
                workspace.sweep(&session.id, &running_attempts(lease, ctx))
            };
            let ends = plan::is_ending(lease) || lease.spec.suspend;
            if !ends && !is_ready(toolbox, &check, &session.id).await? {
                if seen.observed.running == 0 {
                    return Err(Error::DeadSession("the controller's files in the sandbox were removed".to_owned()));
                }
                // Its command has to be ended first, and told so; until then nothing more is fed in.
                suspect = Some(Suspicion::Workspace);
            }
            workspace
        }
        Step::SyncFiles => {
            if !files::sync(lease, toolbox, &mut told, ctx).await? {
                return Ok(Next::After(Duration::from_millis(200)));
            }
            return Ok(report(lease.clone(), &told, ctx).await?.map_or(Next::Gone, Next::now));
        }
        Step::DeleteSession => {
            for id in plan::session_ids(lease, &session) {
                toolbox.delete_session(&id).await?;
            }
            let again = ctx.board.wrote_again(&lease.uid().unwrap_or_default(), "delete session");
            return Ok(if again { Next::After(ctx.config.intervals.busy) } else { Next::now(lease.clone()) });
        }
        _ => return Ok(Next::now(lease.clone())),
    };
    // That it has lived is written before it is used: its id must never be used again.
    let Some(lease) = report(lease.clone(), &told, ctx).await? else { return Ok(Next::Gone) };
    ctx.board.serve(&lease.uid().unwrap_or_default(), suspect, |epoch| Handle {
        toolbox: toolbox.clone(),
        workspace,
        sandbox: sandbox.id.clone(),
        place: Place {
            launcher: if lease.spec.use_sessions { Launcher::Session } else { Launcher::OneShot },
            id: session.id,
            generation: session.generation,
        },
        epoch,
    });
    ctx.hint_commands_of(&lease.namespace().unwrap_or_default(), &lease.name_any(), false);
    Ok(if suspect.is_some() { Next::After(ctx.config.intervals.busy) } else { Next::now(lease) })
}

/// Lets the commands know how the sandbox stands.
fn note_standing(lease: &SandboxLease, seen: &Seen, ctx: &Context) {
    let uid = lease.uid().unwrap_or_default();
    let sure = seen.observed.since >= ctx.config.intervals.absence;
    let standing = match &seen.observed.remote {
        Remote::Present(sandbox) => match &sandbox.state {
            State::Started if matches!(seen.observed.session, Session::Serving | Session::Unknown(_)) => {
                return;
            }
            // What is paused is frozen: nothing of it has ended.
            State::Started | State::Changing(_) | State::Paused | State::Unheard(_) => Standing::Unknown,
            State::Stopped | State::Archived => Standing::Down,
            State::Destroyed(_) => Standing::Lost,
            State::Failed(_) if sure => Standing::Lost,
            State::Failed(_) => return,
        },
        Remote::Absent | Remote::FailedDeletion(_) if sure => Standing::Lost,
        // Not known: what was known last stands, and a call will tell.
        // What is not ours gets no commands.
        Remote::Foreign(_) => Standing::Unknown,
        Remote::Absent | Remote::FailedDeletion(_) | Remote::Unknown(_) | Remote::Unproven | Remote::NotAsked => return,
    };
    let down = !matches!(standing, Standing::Unknown);
    if ctx.board.put(&uid, standing) && down {
        ctx.hint_commands_of(&lease.namespace().unwrap_or_default(), &lease.name_any(), false);
    }
}

/// The attempts of the lease's commands that run, or may.
fn running_attempts(lease: &SandboxLease, ctx: &Context) -> Vec<String> {
    let all = ctx.commands_of(&lease.namespace().unwrap_or_default(), &lease.name_any());
    all.iter().filter(|c| queue::running(c)).filter_map(|c| Some(attempt(c)?.1.id)).collect()
}
