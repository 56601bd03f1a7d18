//! What a rule says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Whether a rule acts instead of the request or on its answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// Let the call be applied in a way that the real service has been seen to fail in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

/// How the real service fails without saying so. Only the local Daytona can; a proxy has no such rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// On a command's exec: its record never gets an exit code.
    ExitCodeNeverPublished,
    /// On a following of logs: it sends a prefix and closes as if that were all.
    FollowClosesEarly,
    /// On a command's exec: the session's shell is dead, the answer is 202, and the command never runs.
    DeadShell,
    /// On a request to a toolbox: the sandbox's daemon and its sessions end, and another daemon starts.
    DaemonKilled,
    /// On a change of state (create, start, stop, archive, delete): what it begins never ends.
    StateStuck,
    /// On a request about a sandbox: the provider loses it first.
    SandboxLost,
    /// On a deletion: it fails later. The sandbox is then 404 by id, and listed among the errored ones.
    ErroredButListed,
    /// On a list: every other answer leaves out every other item.
    FlappingList,
}

/// A fault: which calls, how many of them, and what happens to them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Method; absent is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Regular expression that the whole path must match; `{name}` stands for any one segment, as in
    /// `/api/sandbox/{sandbox}/start`.
    pub path: String,
    /// Regular expression that one whole segment of the path must match: the id or name of an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
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

    /// Only calls with this object in their path; a regular expression.
    #[must_use]
    pub fn object(mut self, pattern: &str) -> Self {
        self.object = Some(pattern.to_owned());
        self
    }

    /// Only the `nth` matching call, from 1.
    #[must_use]
    pub fn nth(self, nth: u64) -> Self {
        self.skip(nth.saturating_sub(1)).times(1)
    }

    /// Lets the call be applied in a way that the real service fails in.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.action.mode = Some(mode);
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
