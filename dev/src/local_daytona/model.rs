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
    /// Minutes stopped after which it is archived.
    pub auto_archive_interval: i64,
    /// Minutes stopped after which it is deleted; -1 is never.
    pub auto_delete_interval: i64,
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

/// `POST /admin/settings`: how long transitions take, and what else can be turned. Delays are in the service's time:
/// they end by themselves, or as soon as the clock is advanced far enough. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// From `creating` to `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_delay_seconds: Option<u64>,
    /// How long a create and a start wait for what they began before they answer: 30 with the service. Unset, they
    /// answer at once, as the service does when it has a sandbox in store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_wait_seconds: Option<u64>,
    /// From `destroying` to gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_delay_seconds: Option<u64>,
    /// From `starting` or `restoring` to `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_delay_seconds: Option<u64>,
    /// From `archiving` to `archived`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive_delay_seconds: Option<u64>,
    /// From `stopping` to `stopped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_delay_seconds: Option<u64>,
    /// The key that is accepted from now on in place of the one it was started with; the admin routes keep theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
    /// Where the toolboxes are said to be, in place of `<own origin>/toolbox`: for a proxy that stands before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toolbox_url: Option<String>,
    /// The organisation that the key belongs to from now on. What another one has is not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization: Option<String>,
    /// Why the organisation is suspended; empty is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<String>,
    /// What the key may do, of `write:sandboxes` and `delete:sandboxes`; absent is everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Vec<String>>,
    /// How many CPUs the organisation's sandboxes that are not archived may have together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_cpu: Option<u32>,
    /// The list shows the sandboxes as they were so many seconds ago; before it began to lag, as they were then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_lag_seconds: Option<u64>,
    /// How many calls are answered in a minute. Given anew as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limits: Option<RateLimits>,
}

/// How many calls of each kind are answered in a minute, counted by the service's clock; absent is any number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimits {
    /// All that the others do not count.
    #[serde(default)]
    pub authenticated: Option<u32>,
    /// Creations.
    #[serde(default)]
    pub sandbox_create: Option<u32>,
    /// Changes of state.
    #[serde(default)]
    pub sandbox_lifecycle: Option<u32>,
    /// Calls with a wrong key or none; beyond it the caller is refused with every key.
    #[serde(default)]
    pub failed_auth: Option<u32>,
}

/// `POST /admin/sandboxes/{id}/state`: the state a sandbox is forced into.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForcedState {
    /// Any text. `stopped`, `archived` and `destroyed` end its processes, `started` starts it.
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
