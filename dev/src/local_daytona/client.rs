//! The hand on the local Daytona's levers, for tests and the demo. It speaks to the admin routes only.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::model::{Call, ForcedState, SandboxReport, Settings, State};
use crate::faults::{Rule, RuleReport};
use crate::supervise::{self, Program, Supervised, log_tail};
use crate::wait::{self, until};

/// How long it may take to answer.
const READY: Duration = Duration::from_secs(20);

/// How to start the `local-daytona` binary.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The binary.
    pub binary: PathBuf,
    /// Directory that will hold everything it writes.
    pub dir: PathBuf,
    /// The key it will accept.
    pub api_key: String,
    /// File that it writes its base URL to.
    pub ready_file: PathBuf,
    /// Shell of the sessions; absent is what the service would take.
    pub shell: Option<String>,
    /// Snapshots that exist besides the default one.
    pub snapshots: Vec<String>,
    /// How long the deletion of a session waits for processes that ignore TERM; absent is 5 s.
    pub session_grace: Option<Duration>,
    /// Whether output is taken as fast as it comes, instead of as slowly as the service does.
    pub unthrottled: bool,
}

impl Launch {
    /// All that is needed; the rest is as the service is.
    #[must_use]
    pub fn new(binary: &Path, dir: &Path, api_key: &str, ready_file: &Path) -> Self {
        Self {
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            api_key: api_key.to_owned(),
            ready_file: ready_file.to_owned(),
            shell: None,
            snapshots: Vec::new(),
            session_grace: None,
            unthrottled: false,
        }
    }

    /// The arguments for the binary.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "--dir".to_owned(),
            self.dir.display().to_string(),
            "--api-key".to_owned(),
            self.api_key.clone(),
            "--ready-file".to_owned(),
            self.ready_file.display().to_string(),
        ];
        if let Some(shell) = &self.shell {
            arguments.extend(["--shell".to_owned(), shell.clone()]);
        }
        for snapshot in &self.snapshots {
            arguments.extend(["--snapshot".to_owned(), snapshot.clone()]);
        }
        if let Some(grace) = self.session_grace {
            arguments.extend(["--session-grace-ms".to_owned(), grace.as_millis().to_string()]);
        }
        if self.unthrottled {
            arguments.push("--unthrottled".to_owned());
        }
        arguments
    }

    /// The whole command line, to be run as it is or under a supervisor.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(self.arguments());
        command
    }

    /// Starts it under supervision, with its output in `log`, and waits until it answers. Its directory goes with it.
    ///
    /// # Errors
    /// When it cannot be started, ends, or does not answer in time.
    pub async fn start(&self, log: &Path) -> Result<(Supervised, LocalDaytona), StartError> {
        let mut service = Program::new(&self.command(), log).scratch(&self.dir).spawn()?;
        let announced = || std::fs::read_to_string(&self.ready_file).ok().filter(|url| !url.is_empty());
        let url = until("the local Daytona to answer", READY, async || match service.ended() {
            Ok(None) => announced().map(Ok),
            Ok(Some(_)) => Some(Err(StartError::Ended(log_tail(log, 30)))),
            Err(error) => Some(Err(error.into())),
        });
        let url = url.await??;
        Ok((service, LocalDaytona::connect(&url, &self.api_key)?))
    }
}

/// Why the local Daytona does not answer.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot be started.
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
    /// It did not announce itself.
    #[error(transparent)]
    TimedOut(#[from] wait::TimedOut),
    /// It ended.
    #[error("the local Daytona ended; the end of its log:\n{0}")]
    Ended(String),
    /// It announced something that cannot be asked.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Why the local Daytona did not do as it was told.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The base URL is not one that it announces.
    #[error("{0} is not the base URL of a local Daytona: it ends in /api")]
    BaseUrl(String),
    /// It did not answer.
    #[error(transparent)]
    Unreachable(#[from] reqwest::Error),
    /// It refused.
    #[error("{method} {path}: {status} {body}")]
    Refused {
        /// What was asked.
        method: Method,
        /// Of which route.
        path: String,
        /// The status of the answer.
        status: u16,
        /// Its body.
        body: String,
    },
}

/// A running local Daytona.
#[derive(Debug, Clone)]
pub struct LocalDaytona {
    http: reqwest::Client,
    base_url: String,
    admin: String,
    api_key: String,
}

impl LocalDaytona {
    /// Takes the base URL that was announced (`http://127.0.0.1:PORT/api`) and its key.
    pub fn connect(base_url: &str, api_key: &str) -> Result<Self, RequestError> {
        let base_url = base_url.trim().trim_end_matches('/').to_owned();
        let Some(origin) = base_url.strip_suffix("/api") else {
            return Err(RequestError::BaseUrl(base_url));
        };
        let http = reqwest::Client::builder().timeout(Duration::from_secs(30)).no_proxy().build()?;
        Ok(Self { http, admin: format!("{origin}/admin"), api_key: api_key.to_owned(), base_url })
    }

    /// The base URL that a client of the service is given.
    #[must_use]
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// The key that it accepts.
    #[must_use]
    pub fn api_key(&self) -> &str {
        &self.api_key
    }

    /// Every sandbox with its sessions and the number of its processes.
    pub async fn state(&self) -> Result<State, RequestError> {
        self.ask(Method::GET, "/state", None::<&()>).await
    }

    /// The sandbox with this id or name.
    pub async fn sandbox(&self, id_or_name: &str) -> Result<Option<SandboxReport>, RequestError> {
        let state = self.state().await?;
        Ok(state.sandboxes.into_iter().find(|sandbox| sandbox.id == id_or_name || sandbox.name == id_or_name))
    }

    /// Every call so far.
    pub async fn calls(&self) -> Result<Vec<Call>, RequestError> {
        self.calls_since(0).await
    }

    /// The calls after the one with number `seq`.
    pub async fn calls_since(&self, seq: u64) -> Result<Vec<Call>, RequestError> {
        self.ask(Method::GET, &format!("/calls?since={seq}"), None::<&()>).await
    }

    /// How many calls went to `route`, such as `POST /api/sandbox`.
    pub async fn count(&self, route: &str) -> Result<usize, RequestError> {
        Ok(self.calls().await?.iter().filter(|call| call.route == route).count())
    }

    /// Moves the service's clock.
    pub async fn advance_clock(&self, by: Duration) -> Result<(), RequestError> {
        let body = json!({ "advanceSeconds": by.as_secs() });
        self.tell(Method::POST, "/clock", Some(&body)).await
    }

    /// Sets how long transitions take; absent fields stay as they are.
    pub async fn set(&self, settings: Settings) -> Result<(), RequestError> {
        self.tell(Method::POST, "/settings", Some(&settings)).await
    }

    /// Makes a snapshot exist.
    pub async fn add_snapshot(&self, name: &str) -> Result<(), RequestError> {
        self.tell(Method::POST, "/snapshots", Some(&json!({ "name": name }))).await
    }

    /// Adds a fault, and says its number.
    pub async fn add_rule(&self, rule: Rule) -> Result<u64, RequestError> {
        let added: Value = self.ask(Method::POST, "/rules", Some(&rule)).await?;
        Ok(added.get("id").and_then(Value::as_u64).unwrap_or_default())
    }

    /// Every rule and how often it acted.
    pub async fn rules(&self) -> Result<Vec<RuleReport>, RequestError> {
        self.ask(Method::GET, "/rules", None::<&()>).await
    }

    /// How often a rule acted.
    pub async fn fired(&self, rule: u64) -> Result<u64, RequestError> {
        let rules = self.rules().await?;
        Ok(rules.iter().find(|report| report.id == rule).map_or(0, |report| report.fired))
    }

    /// Takes one rule away.
    pub async fn remove_rule(&self, rule: u64) -> Result<(), RequestError> {
        self.tell(Method::DELETE, &format!("/rules/{rule}"), None::<&()>).await
    }

    /// Takes all rules away.
    pub async fn clear_rules(&self) -> Result<(), RequestError> {
        self.tell(Method::DELETE, "/rules", None::<&()>).await
    }

    /// Forces a state, with its real effect on processes.
    pub async fn force_state(&self, id_or_name: &str, state: &ForcedState) -> Result<(), RequestError> {
        self.tell(Method::POST, &format!("/sandboxes/{id_or_name}/state"), Some(state)).await
    }

    /// Lets the provider lose a sandbox: it is gone without a trace.
    pub async fn lose(&self, id_or_name: &str) -> Result<(), RequestError> {
        self.tell(Method::POST, &format!("/sandboxes/{id_or_name}/lose"), None::<&()>).await
    }

    /// Restarts what answers in a sandbox: sessions and processes are gone, files stay.
    pub async fn restart_daemon(&self, id_or_name: &str) -> Result<(), RequestError> {
        self.tell(Method::POST, &format!("/sandboxes/{id_or_name}/restart-daemon"), None::<&()>).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, RequestError> {
        Ok(self.send(method, path, body).await?.json().await?)
    }

    async fn tell(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> Result<(), RequestError> {
        self.send(method, path, body).await.map(|_| ())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<reqwest::Response, RequestError> {
        let mut request = self.http.request(method.clone(), format!("{}{path}", self.admin)).bearer_auth(&self.api_key);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        Err(RequestError::Refused { method, path: path.to_owned(), status, body: response.text().await? })
    }
}
