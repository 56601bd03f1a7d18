//! Asks Daytona about a lease's sandbox and session. Changes nothing, save a probe that the session must answer.

use std::{collections::HashSet, sync::Arc, time::Duration};

use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;

use super::{
    board::{Leaving, Suspicion},
    context::Context,
    credentials::{self, Found},
    escrow, files, owners,
    subject::attempt,
};
use crate::{
    api::{LEASE_FINALIZER, SandboxCommand, SandboxLease, SandboxLeaseStatus, SuspendPolicy},
    cluster::escrow::Deposit,
    daytona::{Class, Client, Error, Sandbox, State, Toolbox},
    plan::{
        command::due,
        escrow::Escrow,
        files::Files,
        lease::{
            Credentials, Observed, Remote, Session, adopts, is_abandoned, is_ending, is_ours, own_name, reuse_key,
            reuse_name, session_ids, waits_for_commands,
        },
        queue,
    },
    shell::{Answer, Workspace},
};

/// What was seen, and the client to act with.
pub(super) struct Seen {
    pub(super) observed: Observed,
    pub(super) client: Option<Arc<Client>>,
    /// The copy of its key that is to be kept.
    pub(super) deposit: Option<Deposit>,
}

impl Seen {
    /// What kept us from knowing.
    pub(super) fn failure(&self) -> Option<&Error> {
        match (&self.observed.remote, &self.observed.session) {
            (Remote::Unknown(error), _) | (_, Session::Unknown(error)) => Some(error),
            _ => None,
        }
    }

    pub(super) fn sandbox(&self) -> Option<&Sandbox> {
        match &self.observed.remote {
            Remote::Present(sandbox) => Some(sandbox),
            _ => None,
        }
    }
}

pub(super) async fn observe(lease: &SandboxLease, ctx: &Context) -> Seen {
    let uid = lease.uid().unwrap_or_default();
    // Nothing is asked about what was let go.
    let over = is_abandoned(lease) || (is_ending(lease) && !lease.finalizers().iter().any(|f| f == LEASE_FINALIZER));
    let mut found =
        if over { Found::nothing(Credentials::Unknown(String::new())) } else { credentials::resolve(lease, ctx).await };
    let name = name(lease, ctx).await.unwrap_or_else(|error| {
        // Under which name to look is not known, so nothing is.
        found = Found::nothing(Credentials::Unknown(error));
        String::new()
    });
    let mut owner = None;
    if !over && !is_ending(lease) {
        let known = owners::owner(lease, ctx).await;
        owner = known.map_err(|error| found = Found::nothing(Credentials::Unknown(error))).ok();
    }
    let Found { credentials, mut client, is_todays } = found;
    let mut deposit = None;
    let Commands { needed, running, overdue } = commands(lease, ctx);
    let mut observed = Observed {
        credentials,
        escrow: Escrow::NotWanted,
        owner,
        remote: Remote::NotAsked,
        session: Session::NotAsked,
        files: if is_ending(lease) { Files::Wanted(None) } else { files::observe(lease, ctx).await },
        name,
        now: ctx.now(),
        needed,
        running,
        overdue,
        since: Duration::ZERO,
        leaving: ctx.board.leaving(&uid, leaving(lease, running)),
        kept_awake: ctx.board.kept_awake(&uid),
        recovered: ctx.board.recovered(&uid),
    };
    if let Some(today) = client.take() {
        let fingerprint = today.fingerprint().to_owned();
        let (used, remote) = ask(lease, &observed.name, today, ctx).await;
        (observed.credentials, observed.remote) = (credentials::usable(&used), remote);
        if is_todays && used.fingerprint() == fingerprint {
            let wanted = escrow::deposit(lease, &used, ctx).await;
            observed.escrow = match &wanted {
                Ok(wanted) => ctx.escrow.of(wanted.as_ref(), ctx.config.intervals.idle),
                Err(why) => Escrow::Unknown(why.clone()),
            };
            deposit = wanted.ok().flatten();
        }
        let client = client.insert(used);
        observed.since = ctx.board.since(&uid, &looks(&observed.remote));
        if let Remote::Present(sandbox) = &observed.remote
            && sandbox.state == State::Started
        {
            ctx.board.set_recovered(&uid, false);
            // Past its time, what runs is not waited for: then it is asked whether the session is there.
            let drains = waits_for_commands(lease, &observed, &ctx.config.intervals);
            observed.session = session(lease, client, sandbox, drains, ctx).await;
        }
        if !matches!(observed.remote, Remote::Unknown(_) | Remote::Unproven) {
            ctx.board.keep_client(&uid, client);
        }
    }
    Seen { observed, client, deposit }
}

/// Asks about the sandbox. Where a lease ends whose key was changed since, and the new one does not help, that one is asked
/// with which the sandbox was reached last.
async fn ask(lease: &SandboxLease, name: &str, today: Arc<Client>, ctx: &Context) -> (Arc<Client>, Remote) {
    let seen = remote(lease, name, &today).await;
    let recorded = lease.status.as_ref().and_then(|s| s.connection.as_ref()).map(|c| c.key_fingerprint.as_str());
    if !is_ending(lease) || !seen.is_hidden() || recorded == Some(today.fingerprint()) {
        return (today, seen);
    }
    // Why there is none is no news: what is wrong with today's is told.
    let Ok(Some(kept)) = escrow::client(lease, ctx).await else { return (today, seen) };
    match remote(lease, name, &kept).await {
        Remote::Unknown(_) | Remote::Unproven => (today, seen),
        other => (kept, other),
    }
}

/// Whether a running command's time is over, and that of ending it too.
fn is_late(command: &SandboxCommand, ctx: &Context) -> bool {
    let Some(due) = command.status.as_ref().and_then(|status| due(command, status)) else { return false };
    let grace = Duration::from_secs(command.spec.termination_grace_period_seconds.unsigned_abs().into());
    SignedDuration::try_from(grace + ctx.config.intervals.drain)
        .is_ok_and(|more| due.checked_add(more).is_ok_and(|late| ctx.now() >= late))
}

/// Whether its attempt is known to start never: it may have to wait for what would wait for its end.
fn is_fenced(command: &SandboxCommand, ctx: &Context) -> bool {
    attempt(command)
        .is_some_and(|(uid, attempt)| matches!(ctx.attempts.sent(&uid, &attempt).answer, Some(Answer::Fenced)))
}

fn leaving(lease: &SandboxLease, running: usize) -> Option<Leaving> {
    if is_ending(lease) {
        Some(Leaving::Ending)
    } else {
        // What drains may take as long as it may.
        let drains = running > 0 && lease.spec.suspend_policy == SuspendPolicy::Drain;
        (lease.spec.suspend && !drains).then_some(Leaving::Suspended)
    }
}

/// The name of the lease's sandbox in Daytona, or the id of one that is adopted. What is recorded stands.
async fn name(lease: &SandboxLease, ctx: &Context) -> Result<String, String> {
    if let Some(recorded) = lease.status.as_ref().and_then(|s| s.sandbox.as_ref()) {
        return Ok(recorded.name.clone());
    }
    if let Some(id) = adopts(lease) {
        return Ok(id.to_owned());
    }
    let Some(key) = reuse_key(lease) else { return Ok(own_name(lease)) };
    let owner = owners::owner(lease, ctx).await?;
    Ok(reuse_name(&owner.cluster, &owner.namespace, key))
}

/// What has to stay the same for a look to confirm the one before.
fn looks(remote: &Remote) -> String {
    match remote {
        Remote::NotAsked => "not asked".to_owned(),
        Remote::Unknown(_) => "unknown".to_owned(),
        Remote::Absent => "absent".to_owned(),
        Remote::Unproven => "unproven".to_owned(),
        Remote::FailedDeletion(_) => "failed deletion".to_owned(),
        Remote::Foreign(sandbox) => format!("foreign {}", sandbox.id),
        Remote::Present(sandbox) => format!("present {}", sandbox.state.as_str()),
    }
}

/// What the lease's commands want.
struct Commands {
    /// Whether any needs the sandbox.
    needed: bool,
    running: usize,
    /// Whether something runs, and all of it should have been ended by now.
    overdue: bool,
}

/// Looks at the lease's commands.
fn commands(lease: &SandboxLease, ctx: &Context) -> Commands {
    let uid = lease.uid();
    let all = ctx.commands_of(&lease.namespace().unwrap_or_default(), &lease.name_any());
    let (mut needed, mut running, mut late) = (false, 0, 0);
    let mut fenced = HashSet::new();
    // What has just ended must not have its sandbox woken, because the watch is behind.
    let newest = all.iter().filter(|c| queue::unfinished(c)).map(|c| ctx.latest.newest(c));
    for command in newest.filter(|c| queue::unfinished(c)) {
        let command = &*command;
        let to = command.status.as_ref().and_then(|s| s.lease_uid.clone());
        if is_fenced(command, ctx) {
            fenced.extend(command.uid());
        } else if queue::running(command) && to == uid {
            running += 1;
            late += usize::from(is_late(command, ctx));
        }
        let ours = to.is_none() || to == uid;
        let wanted = command.metadata.deletion_timestamp.is_none() && !queue::held_up(command);
        needed |= ours && (queue::running(command) || wanted);
    }
    // What was let start a moment ago may not be seen to run yet.
    let counts =
        |uid: &str| !fenced.contains(uid) && all.iter().any(|command| command.metadata.uid.as_deref() == Some(uid));
    let running = running.max(ctx.slots.taken(uid.as_deref().unwrap_or_default(), counts));
    Commands { needed, running, overdue: running > 0 && late == running }
}

async fn remote(lease: &SandboxLease, name: &str, client: &Client) -> Remote {
    let status = lease.status.clone().unwrap_or_default();
    let id = status.sandbox.as_ref().and_then(|s| s.id.clone());
    let judge = |sandbox| if is_ours(lease, &sandbox) { Remote::Present(sandbox) } else { Remote::Foreign(sandbox) };
    match client.sandbox(id.as_deref().unwrap_or(name)).await {
        // What is adopted is named by its id; a name may be another's tomorrow.
        Ok(Some(sandbox)) if id.is_none() && adopts(lease).is_some_and(|adopted| adopted != sandbox.id) => {
            Remote::Absent
        }
        Ok(Some(sandbox)) => judge(sandbox),
        Ok(None) => absence(&status, id.as_deref(), client, judge).await.unwrap_or_else(Remote::Unknown),
        Err(error) => Remote::Unknown(error),
    }
}

/// What a "not found" is worth.
async fn absence(
    status: &SandboxLeaseStatus,
    id: Option<&str>,
    client: &Client,
    judge: impl FnOnce(Sandbox) -> Remote,
) -> Result<Remote, Error> {
    if let Some(connection) = &status.connection
        && connection.key_fingerprint != client.fingerprint()
    {
        let organization = client.organization().await?;
        if organization.is_none() || organization != connection.organization_id {
            return Ok(Remote::Unproven);
        }
    }
    let Some(id) = id else { return Ok(Remote::Absent) };
    // One answer may lie. A sandbox whose deletion failed answers 404 by id, and goes on to exist.
    Ok(match client.listed_sandbox(id).await? {
        None => Remote::Absent,
        Some(sandbox) => match sandbox.state {
            State::Destroyed(word) if word == "destroyed" => Remote::Absent,
            State::Failed(_) => match judge(sandbox) {
                Remote::Present(sandbox) => Remote::FailedDeletion(sandbox),
                other => other,
            },
            _ => judge(sandbox),
        },
    })
}

async fn session(
    lease: &SandboxLease,
    client: &Arc<Client>,
    sandbox: &Sandbox,
    drains: bool,
    ctx: &Context,
) -> Session {
    let uid = lease.uid().unwrap_or_default();
    let status = lease.status.clone().unwrap_or_default();
    let Some(recorded) = status.place() else {
        return Session::NotAsked;
    };
    let leaving = is_ending(lease) || lease.spec.suspend;
    let suspicion = ctx.board.suspicion(&uid);
    // A handle with another key than today's is none: the old key may have been revoked.
    let handle = ctx.board.handle(&uid);
    let served = handle.is_some_and(|h| h.place.id == recorded.id && h.toolbox.is(client, sandbox));
    // While it serves, it is not asked: that would keep an idle sandbox awake, and cost a call each time.
    if served && suspicion.is_none() && (!leaving || drains) {
        return Session::Serving;
    }
    if !lease.spec.use_sessions {
        return Session::Listed;
    }
    let Ok(toolbox) = Toolbox::of(client, sandbox) else {
        return Session::NotAsked;
    };
    match toolbox.session_exists(&recorded.id).await {
        Ok(true) if suspicion == Some(Suspicion::Shell) && !leaving => {
            let check = workspace(lease).check(&recorded.id);
            probe(&toolbox, &recorded.id, &check).await
        }
        Ok(true) => Session::Listed,
        // None is left behind with the sandbox.
        Ok(false) if leaving => {
            for other in session_ids(lease, recorded).iter().filter(|id| **id != recorded.id) {
                match toolbox.session_exists(other).await {
                    Ok(true) => return Session::Listed,
                    Ok(false) => {}
                    Err(error) => return Session::Unknown(error),
                }
            }
            Session::Absent
        }
        Ok(false) => Session::Absent,
        Err(error) => Session::Unknown(error),
    }
}

/// Has the session's shell do something. A shell can be dead although its session is listed and takes commands.
pub(super) async fn probe(toolbox: &Toolbox, session: &str, text: &str) -> Session {
    match toolbox.run_in_session(session, text).await {
        Ok(done) if done.output.as_deref().is_some_and(|o| o.contains(&Workspace::session_ready(session))) => {
            Session::Listed
        }
        Ok(_) => Session::Dead,
        Err(error) if error.class == Class::Gone => Session::Dead,
        // A dead shell never answers. What was sent to it was fenced before it is suspected, or refused for want of it.
        Err(error) if error.class == Class::Unclear && error.status.is_none() => Session::Dead,
        Err(error) => Session::Unknown(error),
    }
}

/// The lease's workspace, from the directories that its status names.
pub(super) fn workspace(lease: &SandboxLease) -> Workspace {
    let sandbox = lease.status.as_ref().and_then(|s| s.sandbox.clone()).unwrap_or_default();
    let home = sandbox.home_dir.unwrap_or_else(|| "/home/daytona".to_owned());
    let work = sandbox.work_dir.unwrap_or_else(|| home.clone());
    Workspace::new(&home, &work, &lease.uid().unwrap_or_default())
}
