//! A local Daytona per test, and plain HTTP to it.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use dev::local_daytona::{Launch, LocalDaytona, SandboxReport};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

pub(crate) const KEY: &str = "test-key";
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    child: Child,
    pub(crate) daytona: LocalDaytona,
    pub(crate) http: reqwest::Client,
    /// The shell of its sessions.
    pub(crate) shell: String,
    _dir: tempfile::TempDir,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl Server {
    pub(crate) async fn bash() -> Self {
        Self::start("bash", |_| {}).await
    }

    /// One server for each shell.
    pub(crate) async fn of_each_shell() -> Vec<Self> {
        Self::of(&["zsh", "bash", "dash", "ash"]).await
    }

    /// One server for each shell whose death is noticed: all but zsh.
    pub(crate) async fn of_each_plain_shell() -> Vec<Self> {
        Self::of(&["bash", "dash", "ash"]).await
    }

    async fn of(shells: &[&str]) -> Vec<Self> {
        let mut all = Vec::new();
        for shell in shells {
            all.push(Self::start(shell, |_| {}).await);
        }
        all
    }

    pub(crate) async fn start(shell: &str, adjust: impl FnOnce(&mut Launch)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ready = dir.path().join("ready");
        let binary = Path::new(env!("CARGO_BIN_EXE_local-daytona"));
        let mut launch = Launch::new(binary, &dir.path().join("data"), KEY, &ready);
        launch.shell = Some(shell.to_owned());
        adjust(&mut launch);
        let mut command = launch.command();
        // Its stdin is a pipe that only we hold: it ends with us, however we end.
        command.arg("--exit-on-stdin-eof").stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let started = Instant::now();
        while !ready.exists() {
            if child.try_wait().unwrap().is_some() || started.elapsed() > PATIENCE {
                let mut said = String::new();
                let _ = child.kill();
                child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("the local Daytona did not start: {said}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let base_url = std::fs::read_to_string(&ready).unwrap();
        let daytona = LocalDaytona::connect(&base_url, KEY).unwrap();
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self { child, daytona, http, shell: shell.to_owned(), _dir: dir }
    }

    pub(crate) fn request(&self, method: Method, url: &str) -> RequestBuilder {
        self.http.request(method, url).bearer_auth(KEY)
    }

    pub(crate) async fn api(&self, method: Method, path: &str, body: Value) -> Answer {
        let url = format!("{}{path}", self.daytona.base_url());
        ask(self.request(method, &url).json(&body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.api(Method::GET, path, Value::Null).await
    }

    pub(crate) async fn create(&self, body: Value) -> Sandbox<'_> {
        let answer = self.api(Method::POST, "/sandbox", body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let sandbox = answer.json();
        let (id, toolbox) = (&sandbox["id"], &sandbox["toolboxProxyUrl"]);
        Sandbox {
            server: self,
            id: id.as_str().unwrap().to_owned(),
            toolbox: format!("{}/{}", toolbox.as_str().unwrap(), id.as_str().unwrap()),
        }
    }

    pub(crate) async fn sandbox(&self) -> Sandbox<'_> {
        self.create(json!({})).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if asked.elapsed() > PATIENCE {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

pub(crate) struct Sandbox<'a> {
    server: &'a Server,
    pub(crate) id: String,
    pub(crate) toolbox: String,
}

impl Sandbox<'_> {
    pub(crate) async fn call(&self, method: Method, path: &str, body: Value) -> Answer {
        ask(self.request(method, path).json(&body)).await
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.server.request(method, &format!("{}{path}", self.toolbox))
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        ask(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path, body).await
    }

    pub(crate) async fn open(&self, session: &str) {
        let answer = self.post("/process/session", json!({ "sessionId": session })).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
    }

    pub(crate) async fn close(&self, session: &str) -> Answer {
        self.call(Method::DELETE, &format!("/process/session/{session}"), Value::Null).await
    }

    pub(crate) async fn exec(&self, session: &str, command: &str) -> Answer {
        self.post(&format!("/process/session/{session}/exec"), json!({ "command": command })).await
    }

    /// Submits a command and says its id.
    pub(crate) async fn submit(&self, session: &str, command: &str) -> String {
        let answer = self.submission(session, command).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
        answer.json()["cmdId"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn submission(&self, session: &str, command: &str) -> Answer {
        let body = json!({ "command": command, "runAsync": true });
        self.post(&format!("/process/session/{session}/exec"), body).await
    }

    pub(crate) async fn record(&self, session: &str, command: &str) -> Answer {
        self.get(&format!("/process/session/{session}/command/{command}")).await
    }

    pub(crate) async fn exit_code(&self, session: &str, command: &str) -> Option<i64> {
        self.record(session, command).await.json().get("exitCode").and_then(Value::as_i64)
    }

    pub(crate) async fn finished(&self, session: &str, command: &str) -> i64 {
        eventually("the command has an exit code", async || self.exit_code(session, command).await).await
    }

    pub(crate) async fn log(&self, session: &str, command: &str) -> String {
        self.get(&format!("/process/session/{session}/command/{command}/logs")).await.text()
    }

    pub(crate) async fn execute(&self, command: &str) -> (i64, String) {
        let answer = self.post("/process/execute", json!({ "command": command })).await;
        let json = answer.json();
        let result = json["result"].as_str().unwrap_or_else(|| panic!("{}", answer.text()));
        (json["exitCode"].as_i64().unwrap(), result.to_owned())
    }

    pub(crate) async fn report(&self) -> Option<SandboxReport> {
        self.server.daytona.sandbox(&self.id).await.unwrap()
    }

    pub(crate) async fn processes(&self) -> usize {
        self.report().await.map_or(0, |report| report.processes)
    }
}

pub(crate) async fn ask(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    Answer {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        bytes: response.bytes().await.unwrap().to_vec(),
    }
}

/// Looks again and again until there is an answer.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    eventually(what, async || look().await.then_some(())).await;
}

/// The state that the API shows, or the status of its refusal.
pub(crate) async fn state(server: &Server, id: &str) -> String {
    let answer = server.get(&format!("/sandbox/{id}")).await;
    let state = answer.json()["state"].as_str().map(str::to_owned);
    state.unwrap_or_else(|| answer.status.to_string())
}

pub(crate) async fn until_state(server: &Server, id: &str, wanted: &str) {
    until(wanted, async || state(server, id).await == wanted).await;
}
