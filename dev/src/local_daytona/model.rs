//! What the admin routes say and take. Shared with [`super::LocalDaytona`], never with the
//! controller's own client.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `GET /admin/state`: everything there is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// Every sandbox that is not gone, oldest first.
    pub sandboxes: Vec<SandboxReport>,
}

/// One sandbox as it really is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxReport {
    /// Its id.
    pub id: String,
    /// Its name; `DESTROYED_<name>_<ms>` while it is being deleted.
    pub name: String,
    /// The state the API shows.
    pub state: String,
    /// The state that is wanted.
    pub desired_state: String,
    /// Its labels.
    pub labels: BTreeMap<String, Value>,
    /// Ids of its sessions, sorted.
    pub sessions: Vec<String>,
    /// How many live processes belong to it.
    pub processes: usize,
    /// Its directory on this machine.
    pub dir: PathBuf,
    /// Minutes without activity after which it stops; 0 is never.
    pub auto_stop_interval: i64,
    /// When its recorded activity was, in the service's time.
    pub last_activity_at: String,
}

/// One call to `/api` or `/toolbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Counts up from 1.
    pub seq: u64,
    /// When it arrived, in the service's time.
    pub at: String,
    /// Its method.
    pub method: String,
    /// Method and path with placeholders, such as `POST /api/sandbox/{sandbox}/start`.
    pub route: String,
    /// The session it is about, else the sandbox (as the caller named it; the new id for a create).
    pub object: Option<String>,
    /// The sandbox as the caller named it; the new id for a create.
    pub sandbox: Option<String>,
    /// The session in the path, or the one that was created.
    pub session: Option<String>,
    /// The command in the path.
    pub command: Option<String>,
    /// What was answered; absent while unanswered, when the caller left, and when it was cut.
    pub status: Option<u16>,
    /// The rule that meddled with it.
    pub rule: Option<u64>,
}

/// Whether a rule acts instead of the request or on its answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// The request is not applied (unless the action only delays).
    #[default]
    Before,
    /// The request is applied, then its answer is replaced, cut or held.
    After,
}

/// What a rule does. `delay_ms` goes with any of the others, or stands alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Action {
    /// Answer with this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Headers of that answer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Body of that answer: a string as it is, anything else as JSON. Absent is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// Close the connection without an answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Never answer, and keep the connection.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hang: bool,
    /// Wait so long first (real time).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
}

/// A fault: which calls, how many of them, and what happens to them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Method; absent is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Regular expression that the whole path must match, such as `/api/sandbox/[^/]+/start`.
    pub path: String,
    /// Text that the request's body must contain; absent is any body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_contains: Option<String>,
    /// How many matching calls pass first.
    #[serde(default)]
    pub skip: u64,
    /// How many calls it acts on; absent is all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// Instead of the request, or on its answer.
    #[serde(default)]
    pub when: When,
    /// What it does.
    pub action: Action,
}

impl Rule {
    /// A rule for every call of `method` to a path that matches `path`, still without an action.
    #[must_use]
    pub fn on(method: &str, path: &str) -> Self {
        Self { method: Some(method.to_owned()), path: path.to_owned(), ..Self::default() }
    }

    /// Lets `count` matching calls pass first.
    #[must_use]
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Acts on `count` calls and is spent then.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.times = Some(count);
        self
    }

    /// Lets the request be applied, and acts on its answer.
    #[must_use]
    pub fn after(mut self) -> Self {
        self.when = When::After;
        self
    }

    /// Only calls whose body contains `text`.
    #[must_use]
    pub fn body_contains(mut self, text: &str) -> Self {
        self.body_contains = Some(text.to_owned());
        self
    }

    /// Answers with `status` and `body` (a string as it is, anything else as JSON).
    #[must_use]
    pub fn answer(mut self, status: u16, body: impl Into<Value>) -> Self {
        self.action.status = Some(status);
        self.action.body = Some(body.into());
        self
    }

    /// Adds a header to the answer.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.action.headers.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Closes the connection without an answer.
    #[must_use]
    pub fn cut(mut self) -> Self {
        self.action.cut = true;
        self
    }

    /// Never answers.
    #[must_use]
    pub fn hang(mut self) -> Self {
        self.action.hang = true;
        self
    }

    /// Waits for `delay` first.
    #[must_use]
    pub fn delay(mut self, delay: std::time::Duration) -> Self {
        self.action.delay_ms = Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        self
    }
}

/// A rule and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleReport {
    /// Its number.
    pub id: u64,
    /// The rule.
    pub rule: Rule,
    /// How many calls matched it, skipped ones included.
    pub matched: u64,
    /// How many calls it acted on.
    pub fired: u64,
}

/// `POST /admin/settings`: how long transitions take, and what else can be turned. Delays are in the service's time:
/// they end by themselves, or as soon as the clock is advanced far enough. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// From `creating` to `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_delay_seconds: Option<u64>,
    /// From `destroying` to gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_delay_seconds: Option<u64>,
    /// From `starting` or `restoring` to `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_delay_seconds: Option<u64>,
    /// From `stopping` to `stopped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_delay_seconds: Option<u64>,
    /// The key that is accepted from now on in place of the one it was started with; the admin routes keep theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
    /// Where the toolboxes are said to be, in place of `<own origin>/toolbox`: for a proxy that stands before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toolbox_url: Option<String>,
}

/// `POST /admin/sandboxes/{id}/state`: the state a sandbox is forced into.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForcedState {
    /// Any text. `stopped` and `archived` end its processes, `started` starts it.
    pub state: String,
    /// What is wanted; absent is the state itself where that makes sense, else as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_state: Option<String>,
    /// Why it is in error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_reason: Option<String>,
    /// Whether `recover` would help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recoverable: Option<bool>,
}
