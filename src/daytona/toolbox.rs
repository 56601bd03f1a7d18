//! Calls into a sandbox, through its toolbox.

use std::{sync::Arc, time::Duration};

use reqwest::Method;
use serde::Serialize;
use tokio::sync::SemaphorePermit;
use url::Url;

use super::{
    Client, Error, Executed, Sandbox, Submitted,
    budget::Limiter,
    call::{Call, below},
    error::Class,
    model::Directory,
};

/// The toolbox of one sandbox.
#[derive(Clone, Debug)]
pub struct Toolbox {
    client: Arc<Client>,
    url: Url,
    unnoticed: bool,
}

/// How long a session's shell may take for a trifle.
const PROBE_LIMIT: Duration = Duration::from_secs(15);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Exec<'a> {
    command: &'a str,
    run_async: bool,
}

#[derive(Serialize)]
struct Execute<'a> {
    command: &'a str,
    timeout: u64,
}

impl Toolbox {
    /// The toolbox of a sandbox. The URL comes from the server, so its origin must be one that the key may go to.
    ///
    /// # Errors
    /// With the origin in question (or what is wrong with the URL), when it is not on the list.
    pub fn of(client: &Arc<Client>, sandbox: &Sandbox) -> Result<Self, String> {
        let text = sandbox.toolbox_proxy_url.as_deref().unwrap_or_default();
        let url = Url::parse(text).map_err(|_| format!("an unusable toolbox URL ({text:?})"))?;
        let origin = url.origin().ascii_serialization();
        if !client.endpoint().toolbox_origins.contains(&origin) {
            return Err(origin);
        }
        Ok(Self { client: Arc::clone(client), url: below(&url, &[&sandbox.id]), unnoticed: false })
    }

    /// Whether this is how that client reaches that sandbox, now that either may have changed.
    #[must_use]
    pub fn is(&self, client: &Arc<Client>, sandbox: &Sandbox) -> bool {
        Arc::ptr_eq(&self.client, client) && Self::of(client, sandbox).is_ok_and(|now| now.url == self.url)
    }

    /// The same for uploads and texts that are no use of the sandbox: they do not keep it awake.
    #[must_use]
    pub fn unnoticed(&self) -> Self {
        Self { unnoticed: true, ..self.clone() }
    }

    /// Directory that commands start in, as Daytona has it.
    pub async fn work_dir(&self) -> Result<String, Error> {
        let answer: Directory = self.client.fetch(self.get("ask for the work directory", &["work-dir"])).await?;
        Ok(answer.dir)
    }

    /// Home directory of the sandbox's user.
    pub async fn home_dir(&self) -> Result<String, Error> {
        let answer: Directory = self.client.fetch(self.get("ask for the home directory", &["user-home-dir"])).await?;
        Ok(answer.dir)
    }

    /// Opens a session.
    ///
    /// # Errors
    /// [`Class::Conflict`] when it is open already.
    pub async fn create_session(&self, id: &str) -> Result<(), Error> {
        let url = below(&self.url, &["process", "session"]);
        let call = Call::new("open the session", Limiter::Toolbox, Method::POST, url);
        self.client.send(call.json(&serde_json::json!({ "sessionId": id }))?).await.map(drop)
    }

    /// Whether a session exists, in Daytona's own words. (Its body is the text of every command it ever got.)
    pub async fn session_exists(&self, id: &str) -> Result<bool, Error> {
        match self.client.send(self.get("look at the session", &["process", "session", id]).without_body()).await {
            Ok(_) => Ok(true),
            Err(e) if e.class == Class::Gone && e.status == Some(404) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Deletes a session with all that runs in it; takes up to five seconds there. Gone already is fine.
    pub async fn delete_session(&self, id: &str) -> Result<(), Error> {
        let url = below(&self.url, &["process", "session", id]);
        let call = Call::new("delete the session", Limiter::Toolbox, Method::DELETE, url).held(Duration::from_secs(6));
        match self.client.send(call).await {
            Ok(_) => Ok(()),
            Err(e) if e.class == Class::Gone => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Feeds a text into a session without waiting for its end.
    pub async fn submit(&self, session: &str, text: &str) -> Result<Submitted, Error> {
        self.client.fetch(self.exec("feed the session", session, text, true)?).await
    }

    /// Feeds a text into a session and waits for its end, for a while: a dead shell never answers.
    pub async fn run_in_session(&self, session: &str, text: &str) -> Result<Submitted, Error> {
        self.client.fetch(self.exec("probe the session", session, text, false)?.within(PROBE_LIMIT)).await
    }

    fn exec(&self, operation: &'static str, session: &str, text: &str, run_async: bool) -> Result<Call, Error> {
        let url = below(&self.url, &["process", "session", session, "exec"]);
        Call::new(operation, Limiter::Toolbox, Method::POST, url).json(&Exec { command: text, run_async })
    }

    /// Runs a text as a process of its own; the answer comes when it has ended, within `held` and a few seconds.
    pub async fn execute(&self, operation: &'static str, text: &str, held: Duration) -> Result<Executed, Error> {
        let url = below(&self.url, &["process", "execute"]);
        let limiter = if held.is_zero() { Limiter::Toolbox } else { Limiter::Held };
        let mut call = Call::new(operation, limiter, Method::POST, url).held(held);
        call.unnoticed = self.unnoticed;
        let timeout = held.as_secs() + 60;
        self.client.fetch(call.json(&Execute { command: text, timeout })?).await
    }

    /// Runs a long text as [`Self::execute`] does. It is made when its turn comes: a thousand sandboxes that are set up
    /// at once must not have a thousand of them in memory.
    pub async fn execute_long(
        &self,
        operation: &'static str,
        text: impl FnOnce() -> String,
    ) -> Result<Executed, Error> {
        let _place = self.long_place().await;
        self.execute(operation, &text(), Duration::ZERO).await
    }

    /// A place among the few that may have something long ready to be sent; to be had before that is made.
    pub async fn long_place(&self) -> Option<SemaphorePermit<'_>> {
        self.client.budget.admit_long().await
    }

    /// Puts files into the sandbox, making the directories that are missing; files that are there are replaced.
    ///
    /// # Errors
    /// When any of them could not be written; others may have been.
    pub async fn upload(&self, operation: &'static str, files: Vec<(String, Vec<u8>)>) -> Result<(), Error> {
        let url = below(&self.url, &["files", "bulk-upload"]);
        // Some MiB may take longer than a call usually may: no line is slower than 128 KiB a second.
        let bytes: usize = files.iter().map(|(_, content)| content.len()).sum();
        let mut call = Call::new(operation, Limiter::Toolbox, Method::POST, url);
        (call.unnoticed, call.held) = (self.unnoticed, Duration::from_secs(bytes as u64 >> 17));
        self.client.send(call.files(files).without_body()).await.map(drop)
    }

    fn get(&self, operation: &'static str, segments: &[&str]) -> Call {
        Call::new(operation, Limiter::Toolbox, Method::GET, below(&self.url, segments))
    }
}
