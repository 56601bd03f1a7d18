//! Asks Daytona about a lease's sandbox and session. Changes nothing, save a probe that the session must answer.

use std::sync::Arc;

use kube::ResourceExt;

use super::{context::Context, credentials};
use crate::{
    api::{SandboxLease, SandboxLeaseStatus},
    daytona::{Class, Client, Error, Sandbox, State, Toolbox},
    plan::{
        lease::{Observed, Remote, Session, is_ours, refused, sandbox_name},
        queue,
    },
    shell::Workspace,
};

/// What was seen, and the client to act with.
pub(super) struct Seen {
    pub(super) observed: Observed,
    pub(super) client: Option<Arc<Client>>,
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
    let (credentials, client) = credentials::resolve(lease, ctx).await;
    let (needed, running) = commands(lease, ctx);
    let mut observed = Observed { credentials, remote: Remote::NotAsked, session: Session::NotAsked, needed, running };
    if let Some(client) = &client {
        observed.remote = remote(lease, client, ctx).await;
        if let Remote::Present(sandbox) = &observed.remote
            && sandbox.state == State::Started
            && is_ours(lease, sandbox)
        {
            observed.session = session(lease, client, sandbox, running, ctx).await;
        }
        if !matches!(observed.remote, Remote::Unknown(_) | Remote::Unproven) {
            ctx.board.keep_client(&lease.uid().unwrap_or_default(), client);
        }
    }
    Seen { observed, client }
}

/// Whether commands need the sandbox, and how many run.
fn commands(lease: &SandboxLease, ctx: &Context) -> (bool, usize) {
    let uid = lease.uid();
    let all = ctx.commands_of(&lease.namespace().unwrap_or_default(), &lease.name_any());
    let (mut needed, mut running) = (false, 0);
    for command in all.iter().filter(|c| queue::unfinished(c)) {
        let to = command.status.as_ref().and_then(|s| s.lease_uid.clone());
        if queue::running(command) && to == uid {
            running += 1;
        }
        let ours = to.is_none() || to == uid;
        needed |= ours && (queue::running(command) || command.metadata.deletion_timestamp.is_none());
    }
    (needed, running)
}

async fn remote(lease: &SandboxLease, client: &Client, ctx: &Context) -> Remote {
    let uid = lease.uid().unwrap_or_default();
    let status = lease.status.clone().unwrap_or_default();
    let id = status.sandbox.as_ref().and_then(|s| s.id.clone());
    let found = match client.sandbox(id.as_deref().unwrap_or(&sandbox_name(lease))).await {
        Ok(found) => found,
        Err(error) => return Remote::Unknown(error),
    };
    if let Some(sandbox) = found {
        ctx.board.not_absent(&uid);
        return Remote::Present(sandbox);
    }
    match absence(lease, &status, id.as_deref(), client).await {
        Ok(Absence::Proved) => Remote::Absent { since: ctx.board.absent(&uid) },
        Ok(Absence::Unproven) => Remote::Unproven,
        Ok(Absence::Failed(sandbox)) => Remote::FailedDeletion(*sandbox),
        Err(error) => Remote::Unknown(error),
    }
}

enum Absence {
    Proved,
    Unproven,
    Failed(Box<Sandbox>),
}

/// What a "not found" is worth.
async fn absence(
    lease: &SandboxLease,
    status: &SandboxLeaseStatus,
    id: Option<&str>,
    client: &Client,
) -> Result<Absence, Error> {
    if let Some(connection) = &status.connection
        && connection.key_fingerprint != client.fingerprint()
        // A create call that was refused for certain left nothing behind, whatever key it was made with.
        && !(id.is_none() && refused(lease))
    {
        let organization = client.organization().await?;
        if organization.is_none() || organization != connection.organization_id {
            return Ok(Absence::Unproven);
        }
    }
    // A sandbox whose deletion failed answers 404 by id, and goes on to exist.
    if let Some(id) = id
        && let Some(sandbox) = client.listed_sandbox(id).await?
        && matches!(sandbox.state, State::Failed(_))
    {
        return Ok(Absence::Failed(Box::new(sandbox)));
    }
    Ok(Absence::Proved)
}

async fn session(
    lease: &SandboxLease,
    client: &Arc<Client>,
    sandbox: &Sandbox,
    running: usize,
    ctx: &Context,
) -> Session {
    let uid = lease.uid().unwrap_or_default();
    let status = lease.status.clone().unwrap_or_default();
    let Some(recorded) = status.session else {
        return Session::NotAsked;
    };
    let leaving = lease.metadata.deletion_timestamp.is_some();
    let suspect = ctx.board.is_suspect(&uid);
    let served = ctx.board.handle(&uid).is_some_and(|h| h.session == recorded.id);
    // While it serves, it is not asked: that would keep an idle sandbox awake, and cost a call each time.
    if served && !suspect && (!leaving || running > 0) {
        return Session::Serving;
    }
    let Ok(toolbox) = Toolbox::of(client, sandbox) else {
        return Session::NotAsked;
    };
    match toolbox.session_exists(&recorded.id).await {
        Ok(false) => Session::Absent,
        Ok(true) if suspect && !leaving => probe(&toolbox, &workspace(lease), &recorded.id).await,
        Ok(true) => Session::Listed,
        Err(error) => Session::Unknown(error),
    }
}

/// Has the session's shell do something. A shell can be dead although its session is listed and takes commands.
pub(super) async fn probe(toolbox: &Toolbox, workspace: &Workspace, session: &str) -> Session {
    match toolbox.run_in_session(session, &workspace.session(session)).await {
        Ok(done) if done.output.as_deref().is_some_and(|o| o.contains(&Workspace::session_ready(session))) => {
            Session::Listed
        }
        Ok(_) => Session::Dead,
        Err(error) if error.class == Class::Gone => Session::Dead,
        // A dead shell never answers; nothing of ours runs in it that could hold the answer back.
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
