//! Reconciles a `SandboxCommand`: observe → decide → act → report.

use std::{sync::Arc, time::Duration};

use kube::{
    Api, ResourceExt,
    runtime::{controller::Action, reflector::ObjectRef},
};
use tracing::Instrument;

use super::{
    attempts::Waiting,
    board::{Handle, Suspicion},
    context::{Context, RECONCILE_LIMIT, reference},
    error::Error,
};
use crate::{
    api::{
        COMMAND_FINALIZER, CommandCondition, CommandState, LeaseCondition, SandboxCommand, SandboxCommandStatus,
        SandboxLease, condition,
    },
    cluster::{finalizer, status},
    daytona::Class,
    plan::{
        command::{self as plan, Again, GRACE_SECONDS, Lease, Observed, Step},
        queue,
    },
    shell::{Answer, Attempt, How},
};

/// Most steps in one reconcile.
const STEPS: usize = 12;
/// Longest wait before a failed step is tried again. Short: every error of a toolbox may be gone in a moment, and the
/// lease's own controller finds out what is behind it.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// Least time between two waits for the same command, should the sandbox be unable to hold one.
const WAIT_APART: Duration = Duration::from_secs(1);

enum Next {
    Now(Box<SandboxCommand>),
    After(Duration),
    /// Somebody waits for its end; look again after this time all the same.
    Waiting(Duration),
    Rest,
}

impl Next {
    fn now(command: SandboxCommand) -> Self {
        Self::Now(Box::new(command))
    }
}

pub(super) async fn reconcile(command: Arc<SandboxCommand>, ctx: Arc<Context>) -> Result<Action, Error> {
    let uid = command.uid().unwrap_or_default();
    let result = tokio::time::timeout(RECONCILE_LIMIT, steps((*command).clone(), &ctx)).await;
    let (action, settled) = result.map_err(|_| Error::TimedOut)??;
    // That a wait was begun says nothing of how it will go.
    if settled {
        ctx.failures.reset(&uid);
    }
    Ok(action)
}

pub(super) fn error_policy(command: &SandboxCommand, error: &Error, ctx: &Context) -> Action {
    ctx.failures.requeue(&command.uid().unwrap_or_default(), LONGEST_WAIT, error)
}

/// What to do next, and whether nothing is under way that could still fail.
async fn steps(mut command: SandboxCommand, ctx: &Arc<Context>) -> Result<(Action, bool), Error> {
    ctx.listed().await;
    for _ in 0..STEPS {
        ctx.sequences.accept(&mut command);
        let observed = observe(&command, ctx).await?;
        let step = plan::decide(&command, &observed, ctx.now());
        tracing::debug!(?step, "decided");
        match act(command, step, ctx).await? {
            Next::Now(next) => command = *next,
            Next::Waiting(wait) => return Ok((Action::requeue(wait), false)),
            Next::After(wait) => return Ok((Action::requeue(wait), true)),
            Next::Rest => return Ok((Action::await_change(), true)),
        }
    }
    Ok((Action::requeue(Duration::from_millis(100)), true))
}

/// What is known already. Only a lease that seems to be gone is asked for: an end of it is final for the command.
async fn observe(command: &SandboxCommand, ctx: &Context) -> Result<Observed, Error> {
    let namespace = command.namespace().unwrap_or_default();
    let name = &command.spec.lease_ref.name;
    let finished = command.status.as_ref().is_some_and(|s| s.state == Some(CommandState::Finished));
    let bound = lease_uid(command).filter(|_| !finished);
    let mut found = ctx.leases.get(&ObjectRef::new(name).within(&namespace));
    if bound.is_some() && found.as_ref().and_then(|l| l.uid()).as_deref() != bound {
        found = Api::namespaced(ctx.client.clone(), &namespace).get_opt(name).await?.map(Arc::new);
    }
    let others = if finished { Vec::new() } else { ctx.commands_of(&namespace, name) };
    Ok(Observed {
        lease: found.map_or(Lease::Missing, |lease| lease_view(&lease, ctx)),
        ahead: queue::ahead(command, others.iter().map(AsRef::as_ref)),
        sent: attempt(command).map(|a| ctx.attempts.sent(&a.0, &a.1)).unwrap_or_default(),
    })
}

fn lease_view(lease: &SandboxLease, ctx: &Context) -> Lease {
    let uid = lease.uid().unwrap_or_default();
    let sandbox = ctx.board.sandbox(&uid);
    if lease.metadata.deletion_timestamp.is_some() {
        return Lease::Terminating { uid, sandbox };
    }
    let ready = lease.status.as_ref().and_then(|s| condition(&s.conditions, LeaseCondition::Ready.as_str()));
    let (reason, message) = ready
        .map_or_else(|| ("new".to_owned(), "not looked at yet".to_owned()), |c| (c.reason.clone(), c.message.clone()));
    Lease::Present { uid, sandbox, reason, message }
}

async fn act(command: SandboxCommand, step: Step, ctx: &Arc<Context>) -> Result<Next, Error> {
    let api = Api::<SandboxCommand>::namespaced(ctx.client.clone(), &command.namespace().unwrap_or_default());
    let uid = command.uid().unwrap_or_default();
    match step {
        Step::Rest => {
            // A look at an old copy may have brought it back after it was forgotten.
            ctx.attempts.forget(&uid);
            Ok(Next::Rest)
        }
        Step::Look(wait) => Ok(Next::After(wait)),
        Step::AddFinalizer => {
            Ok(finalizer::add(&api, &command, COMMAND_FINALIZER).await?.map_or(Next::Rest, Next::now))
        }
        Step::RemoveFinalizer => {
            finalizer::remove(&api, &command, COMMAND_FINALIZER).await?;
            ctx.attempts.forget(&uid);
            Ok(Next::Rest)
        }
        Step::Record(new, again) => record(&api, command, &new, again, ctx).await,
        Step::Submit { epoch } => submit(command, epoch, ctx).await,
        Step::Wait => wait(&command, ctx),
        Step::Kill { after } => kill(command, after, ctx).await,
        Step::Fence => fence(command, ctx).await,
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
    ctx: &Context,
) -> Result<Next, Error> {
    let old = command.status.clone().unwrap_or_default();
    if new.state == Some(CommandState::Finished) {
        doubt(&command, ctx);
    }
    let Some(now) = status::apply(api, &command, command.status.as_ref(), new).await? else {
        return Ok(Next::Rest);
    };
    match new.state {
        Some(CommandState::Running) if new.attempts != old.attempts => {
            if let Some((uid, attempt)) = attempt(&now) {
                ctx.attempts.intended(&uid, &attempt);
            }
        }
        Some(CommandState::Finished) if old.state != new.state => {
            if let (Some(lease), Some((_, attempt))) = (new.lease_uid.as_deref(), attempt(&command)) {
                ctx.board.collected(lease, [attempt.id]);
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
                && (old.lease_uid != new.lease_uid || (old.queue_position != Some(1) && new.queue_position == Some(1)))
            {
                hint_lease(&command, ctx);
            }
            Ok(Next::After(wait))
        }
    }
}

/// A command that found our files gone, or took them away, may not be the last to do so: the next one is not fed in
/// before the lease has looked.
fn doubt(command: &SandboxCommand, ctx: &Context) {
    let Some((uid, attempt)) = attempt(command) else { return };
    let answer = ctx.attempts.sent(&uid, &attempt).answer;
    let gone = matches!(answer, Some(Answer::Lost | Answer::Done { how: How::OutputLost, .. }));
    if let Some(handle) = handle(command, ctx).filter(|_| gone) {
        suspect(command, handle.epoch, Suspicion::Workspace, ctx);
    }
}

/// An event when the command is sent and when it has ended.
fn announce(command: &SandboxCommand, old: &SandboxCommandStatus, new: &SandboxCommandStatus, ctx: &Context) {
    if old.state == new.state || new.state == Some(CommandState::Queued) {
        return;
    }
    if let Some(told) = condition(&new.conditions, CommandCondition::Succeeded.as_str()) {
        ctx.events.publish(reference(command), told.status == "False", &told.reason, "Run", &told.message);
    }
}

async fn submit(command: SandboxCommand, epoch: u64, ctx: &Arc<Context>) -> Result<Next, Error> {
    let (Some(handle), Some((uid, attempt))) = (handle(&command, ctx), attempt(&command)) else {
        return Ok(Next::After(Duration::from_secs(1)));
    };
    if handle.epoch != epoch {
        return Ok(Next::now(command));
    }
    let text = handle.workspace.run(&attempt, &command.spec.script);
    ctx.attempts.sending(&uid, &attempt, epoch);
    match handle.toolbox.submit(&handle.session, &text).await {
        Ok(submitted) => {
            ctx.attempts.accepted(&uid, &attempt, submitted.cmd_id);
            tracing::info!(attempt = %attempt.id, session = %handle.session, "sent");
            Ok(Next::now(command))
        }
        // It may have arrived all the same: it is asked about, and sent again only when it was not seen.
        Err(error) => {
            match error.class {
                Class::Refused => ctx.attempts.refused(&uid, &attempt, error.to_string()),
                // There is no such session, or its shell is dead.
                Class::Gone => {
                    suspect(&command, epoch, Suspicion::Shell, ctx);
                }
                _ => {}
            }
            hint_lease(&command, ctx);
            Err(error.into())
        }
    }
}

/// Has a task wait for the attempt's end, and looks again when the running time is over.
fn wait(command: &SandboxCommand, ctx: &Arc<Context>) -> Result<Next, Error> {
    let uid = command.uid().unwrap_or_default();
    if let Some(error) = ctx.attempts.take_failure(&uid) {
        hint_lease(command, ctx);
        return Err(error);
    }
    let (Some(handle), Some((uid, attempt))) = (handle(command, ctx), attempt(command)) else {
        return Ok(Next::After(Duration::from_secs(1)));
    };
    if let Some(waiting) = ctx.attempts.begin_wait(&uid, &attempt) {
        let task = await_end(command.clone(), handle, attempt, waiting, Arc::clone(ctx)).in_current_span();
        let stop = ctx.stop.clone();
        tokio::spawn(async move { stop.run_until_cancelled(task).await });
    }
    let status = command.status.clone().unwrap_or_default();
    let left = plan::due(command, &status).map(|due| due.duration_since(ctx.now()));
    let left = left.and_then(|l| Duration::try_from(l).ok()).unwrap_or(Duration::ZERO);
    Ok(Next::Waiting(left.clamp(Duration::from_millis(100), ctx.config.command_poll)))
}

/// Holds one call after another until the attempt has ended, then asks for a look. The hint carries nothing: what was
/// answered is kept, and if it is lost, it is asked again.
async fn await_end(
    command: SandboxCommand,
    handle: Arc<Handle>,
    attempt: Attempt,
    waiting: Waiting,
    ctx: Arc<Context>,
) {
    let uid = command.uid().unwrap_or_default();
    let lease = lease_uid(&command).unwrap_or_default();
    loop {
        let asked = tokio::time::Instant::now();
        let collected = ctx.board.take_collected(lease);
        let text = handle.workspace.wait(&attempt, ctx.config.hold.as_secs(), &collected);
        match handle.toolbox.execute("wait for the command", &text, ctx.config.hold).await {
            Ok(done) => match Answer::parse(&attempt, &done.result) {
                Ok(Answer::Running) => {
                    ctx.failures.reset(&uid);
                    tokio::time::sleep_until(asked + WAIT_APART).await;
                }
                Ok(answer) => {
                    ctx.attempts.answered(&uid, &attempt, answer);
                    break;
                }
                Err(garbled) => {
                    tracing::debug!(exit = done.exit_code, "the answer is not the runner's");
                    suspect(&command, handle.epoch, Suspicion::Workspace, &ctx);
                    ctx.attempts.failed(&uid, &attempt, Error::Sandbox(garbled.to_string()));
                    break;
                }
            },
            Err(error) => {
                ctx.board.collected(lease, collected);
                ctx.attempts.failed(&uid, &attempt, error.into());
                break;
            }
        }
    }
    // Before the hint: whoever follows it may have to wait again.
    drop(waiting);
    ctx.hint_command(&command);
}

/// Makes sure that an attempt which nobody has started is not started any more.
async fn fence(command: SandboxCommand, ctx: &Context) -> Result<Next, Error> {
    let (Some(handle), Some((uid, attempt))) = (handle(&command, ctx), attempt(&command)) else {
        return Ok(Next::After(Duration::from_secs(1)));
    };
    let text = handle.workspace.fence(&attempt);
    let done = handle.toolbox.execute("fence the command", &text, Duration::ZERO).await;
    let done = done.inspect_err(|_| hint_lease(&command, ctx))?;
    let answer = understood(&command, &attempt, &handle, &done.result, ctx)?;
    ctx.attempts.answered(&uid, &attempt, certain(answer));
    Ok(Next::now(command))
}

/// Ends whatever an attempt started, or makes sure that it is not started any more.
async fn kill(command: SandboxCommand, after: u64, ctx: &Context) -> Result<Next, Error> {
    let (Some(handle), Some((uid, attempt))) = (handle(&command, ctx), attempt(&command)) else {
        return Ok(Next::After(Duration::from_secs(1)));
    };
    let text = handle.workspace.kill(&attempt, GRACE_SECONDS, after);
    let held = Duration::from_secs(GRACE_SECONDS + 10);
    let done = handle.toolbox.execute("end the command", &text, held).await;
    let done = done.inspect_err(|_| hint_lease(&command, ctx))?;
    match understood(&command, &attempt, &handle, &done.result, ctx)? {
        // It began later than its record says.
        Answer::Early(left) => Ok(Next::After(Duration::from_secs(left.clamp(1, 60)))),
        Answer::Survivors | Answer::Running => {
            Err(Error::Sandbox("something that the command started could not be ended; it is tried again".to_owned()))
        }
        answer => {
            ctx.attempts.ended(&uid, &attempt, certain(answer));
            Ok(Next::now(command))
        }
    }
}

/// The answer, or the suspicion that the runner is not there any more.
fn understood(
    command: &SandboxCommand,
    attempt: &Attempt,
    handle: &Handle,
    text: &str,
    ctx: &Context,
) -> Result<Answer, Error> {
    Answer::parse(attempt, text).map_err(|garbled| {
        suspect(command, handle.epoch, Suspicion::Workspace, ctx);
        Error::Sandbox(garbled.to_string())
    })
}

/// Has the lease look at its session, if that is news.
fn suspect(command: &SandboxCommand, epoch: u64, suspicion: Suspicion, ctx: &Context) {
    if lease_uid(command).is_some_and(|lease| ctx.board.suspect(lease, epoch, suspicion)) {
        hint_lease(command, ctx);
    }
}

/// After a fence or a kill the guard is there. If it could not be made although nobody has it, our files were
/// tampered with.
fn certain(answer: Answer) -> Answer {
    match answer {
        Answer::Unseen => Answer::Lost,
        answer => answer,
    }
}

/// The command's UID and its present attempt, once one is recorded.
fn attempt(command: &SandboxCommand) -> Option<(String, Attempt)> {
    let (uid, status) = (command.uid()?, command.status.as_ref()?);
    let attempt = Attempt::new(&uid, status.attempts?, status.session_id.as_deref()?);
    Some((uid, attempt))
}

fn lease_uid(command: &SandboxCommand) -> Option<&str> {
    command.status.as_ref()?.lease_uid.as_deref()
}

/// The way into the sandbox that the attempt was recorded for; no other will do.
fn handle(command: &SandboxCommand, ctx: &Context) -> Option<Arc<Handle>> {
    let handle = ctx.board.handle(lease_uid(command)?)?;
    let recorded = command.status.as_ref()?.sandbox_id.as_deref()?;
    (handle.sandbox == recorded).then_some(handle)
}

fn hint_lease(command: &SandboxCommand, ctx: &Context) {
    ctx.hint_lease(&command.namespace().unwrap_or_default(), &command.spec.lease_ref.name);
}
