//! Makes a sandbox fit for commands: the controller's files in it, and the session.

use std::time::Duration;

use super::{error::Error, observe::probe};
use crate::{
    api::{SandboxLease, SessionStatus},
    daytona::{self, Class, Toolbox},
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
