//! Makes a sandbox fit for commands: the controller's files in it, and the session.

use std::{sync::Arc, time::Duration};

use super::{
    error::Error,
    observe::{probe, workspace},
};
use crate::{
    api::{SandboxLease, SessionStatus},
    daytona::{self, Class, Client, Sandbox, State, Toolbox},
    plan::lease::{self as plan, Session},
    shell::Workspace,
};

/// Puts the controller's files there; doing it again changes nothing.
pub(super) async fn set_up(toolbox: &Toolbox, workspace: &Workspace) -> Result<(), Error> {
    let done = toolbox.execute_long("set up the workspace", || workspace.set_up()).await?;
    if done.exit_code == 0 && done.result.contains(Workspace::SET_UP) {
        return Ok(());
    }
    let said = crate::api::cut(&done.result, 200);
    Err(Error::Sandbox(format!("its files could not be made (exit {}): {said}", done.exit_code)))
}

pub(super) async fn open_session(
    toolbox: &Toolbox,
    workspace: &Workspace,
    lease: &SandboxLease,
    session: &SessionStatus,
) -> Result<(), Error> {
    if session.generation > 1 {
        toolbox.delete_session(&plan::session_id(lease, session.generation - 1)).await?;
    }
    match toolbox.create_session(&session.id).await {
        Err(error) if error.class != Class::Conflict => return Err(error.into()),
        _ => {}
    }
    match probe(toolbox, &session.id, &workspace.session(&session.id)).await {
        Session::Listed => Ok(()),
        Session::Unknown(error) => Err(error.into()),
        _ => Err(Error::DeadSession(format!("the shell of session {} does not answer", session.id))),
    }
}

/// Takes the controller's files out of a sandbox that outlives its lease, if it runs. They harm nobody where that fails.
pub(super) async fn tidy(lease: &SandboxLease, client: &Arc<Client>, sandbox: &Sandbox) {
    let home = lease.status.as_ref().and_then(|s| s.sandbox.as_ref()?.home_dir.clone());
    // Without a home directory nothing was put there.
    if sandbox.state != State::Started || home.is_none() {
        return;
    }
    let Ok(toolbox) = Toolbox::of(client, sandbox) else { return };
    let text = workspace(lease).remove();
    if let Err(error) = toolbox.execute("remove the controller's files", &text, Duration::ZERO).await {
        tracing::warn!(sandbox = %sandbox.id, %error, "the controller's files were left in the sandbox");
    }
}

/// Leaves the mark of a workspace without a session.
pub(super) async fn mark(toolbox: &Toolbox, text: &str, id: &str) -> Result<(), Error> {
    if is_ready(toolbox, text, id).await? {
        return Ok(());
    }
    Err(Error::Sandbox("the mark of its workspace could not be made".to_owned()))
}

/// Whether the mark of this id is where it was (or was to be) left.
pub(super) async fn is_ready(toolbox: &Toolbox, text: &str, id: &str) -> Result<bool, Error> {
    let done = toolbox.execute("look at the workspace", text, Duration::ZERO).await?;
    Ok(done.result.contains(&Workspace::session_ready(id)))
}

/// Daytona's work directory, else the user's home, else the one that Daytona's own images have.
pub(super) async fn directories(toolbox: &Toolbox) -> Result<(String, String), Error> {
    let missing_is_none = |answer: Result<String, daytona::Error>| match answer {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.class == Class::Gone => Ok(None),
        Err(error) => Err(error),
    };
    let home = missing_is_none(toolbox.home_dir().await)?.unwrap_or_else(|| "/home/daytona".to_owned());
    let work = missing_is_none(toolbox.work_dir().await)?.unwrap_or_else(|| home.clone());
    Ok((work, home))
}
