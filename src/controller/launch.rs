//! The calls into a sandbox that start, await and end an attempt.

use std::{sync::Arc, time::Duration};

use kube::ResourceExt;
use tracing::Instrument;

use super::{
    attempts::{Masked, Prepared, Waiting},
    board::{Handle, Suspicion},
    context::Context,
    error::Error,
    inputs::{self, has_secrets},
    subject::{Next, attempt, handle, hint_lease, lease_of, lease_uid, suspect},
};
use crate::{
    api::SandboxCommand,
    daytona::Class,
    plan::{
        command::{self as plan, Launcher},
        lease::is_ending,
        logs::kept,
    },
    shell::{Answer, Attempt, Fetch, Outputs, Redactor},
};

/// Least time between two waits for the same command, should the sandbox be unable to hold one.
const WAIT_APART: Duration = Duration::from_secs(1);

/// Sends the attempt: into the session, or as a process of its own, by the call that waits for its end.
pub(super) async fn submit(
    command: SandboxCommand,
    epoch: u64,
    prepared: &Arc<Prepared>,
    ctx: &Arc<Context>,
) -> Result<Next, Error> {
    let (Some(handle), Some((uid, attempt))) = (handle(&command, ctx), attempt(&command)) else {
        return Ok(Next::After(Duration::from_secs(1)));
    };
    if handle.epoch != epoch {
        return Ok(Next::now(command));
    }
    let files = handle.workspace.uploads(&attempt, &prepared.job);
    if !files.is_empty() {
        // A text that is under way could start while its files are written again.
        if !ctx.attempts.sent(&uid, &attempt).fresh {
            return fence(command, ctx).await;
        }
        let files = files.into_iter().map(|file| (file.path, file.content)).collect();
        handle.toolbox.upload("upload the command's files", files).await.inspect_err(|error| {
            if error.class == Class::Refused {
                ctx.attempts.refused(&uid, &attempt, error.to_string());
            }
            hint_lease(&command, ctx);
        })?;
    }
    ctx.attempts.sending(&uid, &attempt, epoch, prepared);
    if handle.place.launcher == Launcher::OneShot {
        return Ok(begin_wait(&command, Some(Arc::clone(prepared)), ctx));
    }
    match handle.toolbox.submit(&handle.place.id, &handle.workspace.run(&attempt, &prepared.job)).await {
        Ok(submitted) => {
            ctx.attempts.accepted(&uid, &attempt, submitted.cmd_id);
            tracing::info!(attempt = %attempt.id, session = %handle.place.id, "sent");
            Ok(Next::now(command))
        }
        // It may have arrived all the same: it is asked about, and sent again only when it was not seen.
        Err(error) => {
            match error.class {
                Class::Refused => ctx.attempts.refused(&uid, &attempt, error.to_string()),
                // There is no such session, or its shell is dead.
                Class::Gone => suspect(&command, epoch, Suspicion::Shell, ctx),
                _ => {}
            }
            hint_lease(&command, ctx);
            Err(error.into())
        }
    }
}

/// Has a task wait for the attempt's end, and looks again when the running time is over.
pub(super) fn wait(command: &SandboxCommand, ctx: &Arc<Context>) -> Result<Next, Error> {
    if let Some(error) = ctx.attempts.take_failure(&command.uid().unwrap_or_default()) {
        hint_lease(command, ctx);
        return Err(error);
    }
    Ok(begin_wait(command, None, ctx))
}

fn begin_wait(command: &SandboxCommand, start: Option<Arc<Prepared>>, ctx: &Arc<Context>) -> Next {
    let (Some(handle), Some((uid, attempt))) = (handle(command, ctx), attempt(command)) else {
        return Next::After(Duration::from_secs(1));
    };
    if let Some(waiting) = ctx.attempts.begin_wait(&uid, &attempt) {
        let wait = Wait { command: command.clone(), handle, attempt, ctx: Arc::clone(ctx) };
        let task = wait.until_ended(start, waiting).in_current_span();
        let stop = ctx.stop.clone();
        tokio::spawn(async move { stop.run_until_cancelled(task).await });
    }
    let status = command.status.clone().unwrap_or_default();
    let left = plan::due(command, &status).map(|due| due.duration_since(ctx.now()));
    let left = left.and_then(|l| Duration::try_from(l).ok()).unwrap_or(Duration::ZERO);
    Next::Waiting(left.clamp(Duration::from_millis(100), ctx.config.command_poll))
}

struct Wait {
    command: SandboxCommand,
    handle: Arc<Handle>,
    attempt: Attempt,
    ctx: Arc<Context>,
}

impl Wait {
    /// Holds one call after another until the attempt has ended, then asks for a look. The hint carries nothing: what
    /// was answered is kept, and if it is lost, it is asked again.
    async fn until_ended(self, mut start: Option<Arc<Prepared>>, waiting: Waiting) {
        let uid = self.command.uid().unwrap_or_default();
        loop {
            let asked = tokio::time::Instant::now();
            match self.once(start.take().as_deref()).await {
                Ok(Masked { answer: Answer::Running, .. }) => {
                    self.ctx.failures.reset(&uid);
                    tokio::time::sleep_until(asked + WAIT_APART).await;
                }
                Ok(masked) => {
                    self.ctx.attempts.answered(&uid, &self.attempt, masked);
                    break;
                }
                Err(error) => {
                    self.ctx.attempts.failed(&uid, &self.attempt, error);
                    break;
                }
            }
        }
        // Before the hint: whoever follows it may have to wait again.
        drop(waiting);
        self.ctx.hint_command(&self.command);
    }

    /// One call. The first of a command without a session starts it.
    async fn once(&self, start: Option<&Prepared>) -> Result<Masked, Error> {
        let Self { command, handle, attempt, ctx } = self;
        let lease = lease_uid(command).unwrap_or_default();
        let collected = ctx.board.take_collected(lease);
        let (seconds, fetch) = (ctx.config.hold.as_secs(), fetch(command));
        let (operation, text) = match start {
            Some(prepared) => {
                tracing::info!(attempt = %attempt.id, "started as a process of its own");
                ("run the command", handle.workspace.one(attempt, &prepared.job, seconds, fetch, &collected))
            }
            None => ("wait for the command", handle.workspace.wait(attempt, seconds, fetch, &collected)),
        };
        let done = handle.toolbox.execute(operation, &text, ctx.config.hold).await.inspect_err(|error| {
            ctx.board.collected(lease, collected);
            if start.is_some() && error.class == Class::Refused {
                let uid = command.uid().unwrap_or_default();
                ctx.attempts.refused(&uid, attempt, error.to_string());
            }
        })?;
        masked(command, attempt, understood(command, attempt, handle, &done.result, ctx)?, ctx).await
    }
}

/// How much of the outputs has to be brought back.
fn fetch(command: &SandboxCommand) -> Fetch {
    kept(&command.spec).fetch()
}

/// Makes sure that an attempt which nobody has started is not started any more.
pub(super) async fn fence(command: SandboxCommand, ctx: &Context) -> Result<Next, Error> {
    let (Some(handle), Some((uid, attempt))) = (handle(&command, ctx), attempt(&command)) else {
        return Ok(Next::After(Duration::from_secs(1)));
    };
    let text = handle.workspace.fence(&attempt, fetch(&command));
    let done = handle.toolbox.execute("fence the command", &text, Duration::ZERO).await;
    let done = done.inspect_err(|_| hint_lease(&command, ctx))?;
    let answer = certain(understood(&command, &attempt, &handle, &done.result, ctx)?);
    ctx.attempts.answered(&uid, &attempt, masked(&command, &attempt, answer, ctx).await?);
    Ok(Next::now(command))
}

/// Ends whatever an attempt started, or makes sure that it is not started any more.
pub(super) async fn kill(command: SandboxCommand, grace: u64, after: u64, ctx: &Context) -> Result<Next, Error> {
    let (Some(handle), Some((uid, attempt))) = (handle(&command, ctx), attempt(&command)) else {
        return Ok(Next::After(Duration::from_secs(1)));
    };
    let hold = ctx.config.hold;
    let text = handle.workspace.kill(&attempt, grace, after, hold.as_secs(), fetch(&command));
    let done = handle.toolbox.execute("end the command", &text, hold).await;
    let done = done.inspect_err(|_| hint_lease(&command, ctx))?;
    match understood(&command, &attempt, &handle, &done.result, ctx)? {
        // It began later than its record says.
        Answer::Early(left) => Ok(Next::After(Duration::from_secs(left.clamp(1, 60)))),
        Answer::Ending(_) => Ok(Next::After(Duration::from_millis(100))),
        Answer::Survivors(pids) => {
            ctx.attempts.survived(&uid, &attempt, pids);
            Err(Error::Sandbox("something that the command started could not be ended; it is tried again".to_owned()))
        }
        Answer::Running => {
            Err(Error::Sandbox("something that the command started could not be ended; it is tried again".to_owned()))
        }
        answer => {
            let masked = masked(&command, &attempt, certain(answer), ctx).await?;
            ctx.attempts.ended(&uid, &attempt, masked);
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
        ctx.attempts.garbled(&command.uid().unwrap_or_default(), attempt);
        suspect(command, handle.epoch, Suspicion::Workspace, ctx);
        Error::Sandbox(garbled.to_string())
    })
}

/// The answer without anything secret in it: from here on it may be shown, stored and logged.
async fn masked(command: &SandboxCommand, attempt: &Attempt, answer: Answer, ctx: &Context) -> Result<Masked, Error> {
    let redactor = if matches!(answer, Answer::Done { .. } | Answer::Died { .. }) {
        redactor(command, attempt, ctx).await?
    } else {
        Some(Redactor::default())
    };
    let withheld = redactor.is_none();
    let (searched, kept) = (redactor.as_ref().is_some_and(|r| !r.is_empty()), kept(&command.spec));
    let look = move || Masked {
        answer: answer.map(|streams| {
            Arc::new(
                redactor.map_or_else(|| Outputs::withheld(&streams), |redactor| Outputs::of(&streams, &redactor, kept)),
            )
        }),
        withheld,
    };
    // A long output is searched for a thousand values in seconds; nobody else has to wait for that.
    Ok(if searched { tokio::task::spawn_blocking(look).await? } else { look() })
}

async fn redactor(command: &SandboxCommand, attempt: &Attempt, ctx: &Context) -> Result<Option<Redactor>, Error> {
    // Its lease may have brought secrets of which its own spec knows nothing.
    let version = command.status.as_ref().and_then(|s| s.secrets_version.as_deref());
    if version.is_none() && !has_secrets(&command.spec) {
        return Ok(Some(Redactor::default()));
    }
    if let Some(prepared) = ctx.attempts.prepared(&command.uid().unwrap_or_default(), attempt) {
        return Ok(Some(prepared.redactor.clone()));
    }
    match Box::pin(inputs::redactor(command, version, ctx)).await {
        // In a namespace that is being deleted the right to read them goes before the lease.
        Err(kube::Error::Api(status)) if status.is_forbidden() && has_to_go(command, ctx) => Ok(None),
        read => Ok(read?),
    }
}

/// Whether it, or the lease, is being deleted.
fn has_to_go(command: &SandboxCommand, ctx: &Context) -> bool {
    command.metadata.deletion_timestamp.is_some() || lease_of(command, ctx).is_none_or(|lease| is_ending(&lease))
}

/// After a fence or a kill the guard is there. If it could not be made although nobody has it, our files were
/// tampered with.
fn certain(answer: Answer) -> Answer {
    match answer {
        Answer::Unseen => Answer::Lost,
        answer => answer,
    }
}
