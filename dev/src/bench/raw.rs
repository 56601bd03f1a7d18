//! The service's own calls, made as directly as they can be: what anything else is compared with.

use std::time::{Duration, Instant};

use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use super::Error;
use crate::local_daytona::LocalDaytona;

/// How often a running command is looked at.
const POLL: Duration = Duration::from_millis(10);

/// A sandbox that is no lease's.
#[derive(Debug, Clone)]
pub(super) struct Sandbox {
    http: Client,
    key: String,
    toolbox: String,
}

impl Sandbox {
    /// Creates one.
    pub(super) async fn create(daytona: &LocalDaytona) -> Result<Self, Error> {
        let http = Client::builder().no_proxy().timeout(Duration::from_mins(2)).build()?;
        let key = daytona.api_key().to_owned();
        let create = http.post(format!("{}/sandbox", daytona.base_url())).bearer_auth(&key).json(&json!({}));
        let sandbox: Value = answer(create).await?.json().await?;
        let text = |name: &str| sandbox.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let toolbox = format!("{}/{}", text("toolboxProxyUrl"), text("id"));
        Ok(Self { http, key, toolbox })
    }

    /// Opens a session.
    pub(super) async fn open(&self, session: &str) -> Result<(), Error> {
        answer(self.post("/process/session").json(&json!({ "sessionId": session }))).await?;
        Ok(())
    }

    /// Runs a command in a session: submits it, looks until it has an exit code, reads its log. How long that took.
    pub(super) async fn exec(&self, session: &str, command: &str) -> Result<Duration, Error> {
        let start = Instant::now();
        let path = format!("/process/session/{session}");
        let submit = json!({ "command": command, "runAsync": true });
        let submitted: Value = answer(self.post(&format!("{path}/exec")).json(&submit)).await?.json().await?;
        let id = submitted.get("cmdId").and_then(Value::as_str).unwrap_or_default();
        let path = format!("{path}/command/{id}");
        loop {
            let record = self.get(&path).send().await?;
            if record.status() == StatusCode::INTERNAL_SERVER_ERROR {
                // The code is just being written.
                continue;
            }
            let record: Value = record.error_for_status()?.json().await?;
            match record.get("exitCode").and_then(Value::as_i64) {
                None => tokio::time::sleep(POLL).await,
                Some(0) => break,
                Some(_) => return Err(Error::Wrong(format!("the raw command ended so: {record}"))),
            }
        }
        answer(self.get(&format!("{path}/logs"))).await?.bytes().await?;
        Ok(start.elapsed())
    }

    /// Runs a command without a session. How long that took.
    pub(super) async fn execute(&self, command: &str) -> Result<Duration, Error> {
        let start = Instant::now();
        let execute = self.post("/process/execute").json(&json!({ "command": command }));
        let result: Value = answer(execute).await?.json().await?;
        if result.get("exitCode") != Some(&0.into()) {
            return Err(Error::Wrong("the raw one-shot command did not exit with 0".to_owned()));
        }
        Ok(start.elapsed())
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.http.get(format!("{}{path}", self.toolbox)).bearer_auth(&self.key)
    }

    fn post(&self, path: &str) -> RequestBuilder {
        self.http.post(format!("{}{path}", self.toolbox)).bearer_auth(&self.key)
    }
}

async fn answer(request: RequestBuilder) -> Result<reqwest::Response, Error> {
    Ok(request.send().await?.error_for_status()?)
}
