//! What goes over the wire. Unknown fields and unknown values of enumerations are tolerated: the service moves on.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// A sandbox as Daytona describes it.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Never empty.
    #[serde(deserialize_with = "id")]
    pub id: String,
    /// Unique in the organisation.
    #[serde(default)]
    pub name: String,
    /// Organisation that owns it.
    #[serde(default)]
    pub organization_id: Option<String>,
    /// State it is in.
    #[serde(default)]
    pub state: State,
    /// Why it is in an error, in Daytona's words.
    #[serde(default)]
    pub error_reason: Option<String>,
    /// Whether Daytona could bring it back from its error.
    #[serde(default)]
    pub recoverable: Option<bool>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, serde_json::Value>,
    /// Where its toolbox is reached; the sandbox's id is appended.
    #[serde(default)]
    pub toolbox_proxy_url: Option<String>,
    /// Region.
    #[serde(default)]
    pub target: Option<String>,
    /// When it was created, RFC 3339.
    #[serde(default)]
    pub created_at: Option<String>,
    /// Minutes of idleness until it is stopped; 0: never.
    #[serde(default)]
    pub auto_stop_interval: Option<f64>,
    /// Minutes stopped until it is archived.
    #[serde(default)]
    pub auto_archive_interval: Option<f64>,
    /// Minutes stopped until it is deleted; negative: never.
    #[serde(default)]
    pub auto_delete_interval: Option<f64>,
}

impl Sandbox {
    /// Value of a label, if it is a text.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).and_then(serde_json::Value::as_str)
    }
}

/// State of a sandbox, by what it means to us; the original word is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Runs.
    Started,
    /// Stopped; its files are there.
    Stopped,
    /// Stopped, its files moved to slower storage.
    Archived,
    /// Frozen with its memory.
    Paused,
    /// Being archived, stopped, started, restored, built …: wait.
    Changing(String),
    /// Failed, and stays so until somebody acts: `error`, `build_failed`.
    Failed(String),
    /// On its way out, or out.
    Destroyed(String),
    /// A word that we do not know.
    Unheard(String),
}

impl State {
    /// Whether it does not run now, and can be started with its files.
    #[must_use]
    pub fn is_down(&self) -> bool {
        matches!(self, Self::Stopped | Self::Archived | Self::Paused)
    }

    /// Daytona's word for it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::Archived => "archived",
            Self::Paused => "paused",
            Self::Changing(word) | Self::Failed(word) | Self::Destroyed(word) | Self::Unheard(word) => word,
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::Unheard(String::new())
    }
}

impl From<String> for State {
    fn from(word: String) -> Self {
        match word.as_str() {
            "started" => Self::Started,
            "stopped" => Self::Stopped,
            "archived" => Self::Archived,
            "paused" => Self::Paused,
            "error" | "build_failed" => Self::Failed(word),
            "destroying" | "destroyed" => Self::Destroyed(word),
            "creating" | "restoring" | "starting" | "stopping" | "pending_build" | "building_snapshot" | "unknown"
            | "pulling_snapshot" | "archiving" | "resizing" | "snapshotting" | "forking" | "pausing" | "resuming" => {
                Self::Changing(word)
            }
            _ => Self::Unheard(word),
        }
    }
}

impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default().into())
    }
}

/// What a new sandbox is to be.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSandbox {
    /// Name, unique in the organisation.
    pub name: String,
    /// Snapshot to start from; absent: Daytona's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// What to build it from instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_info: Option<BuildInfo>,
    /// Cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<i32>,
    /// Memory, in GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<i32>,
    /// Disk, in GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<i32>,
    /// GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<i32>,
    /// User that its processes run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether its ports can be reached by anyone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
    /// Region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Whether it has no network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_block_all: Option<bool>,
    /// The only networks that it reaches, with commas between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_allow_list: Option<String>,
    /// Volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Mount>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Minutes of idleness until it is stopped.
    pub auto_stop_interval: i32,
    /// Minutes stopped until it is archived.
    pub auto_archive_interval: i32,
    /// Minutes stopped until it is deleted.
    pub auto_delete_interval: i32,
}

/// What a sandbox is built from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildInfo {
    /// A Dockerfile.
    pub dockerfile_content: String,
}

/// A volume in a sandbox.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Id of the volume.
    pub volume_id: String,
    /// Where it is mounted.
    pub mount_path: String,
    /// Directory of the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subpath: Option<String>,
}

/// What can be set of a sandbox that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Minutes of idleness until it is stopped.
    AutoStop(i32),
    /// Minutes stopped until it is archived.
    AutoArchive(i32),
    /// Minutes stopped until it is deleted; negative: never, 0: at once.
    AutoDelete(i32),
    /// All its labels: what is not among them goes.
    Labels(BTreeMap<String, serde_json::Value>),
}

/// One page of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page {
    pub(super) items: Vec<Sandbox>,
    /// Where the next page begins; absent or empty on the last.
    #[serde(default)]
    pub(super) next_cursor: Option<String>,
}

/// A directory of the sandbox.
#[derive(Debug, Deserialize)]
pub(super) struct Directory {
    #[serde(deserialize_with = "absolute")]
    pub(super) dir: String,
}

/// Answer to a command that was fed into a session.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Submitted {
    /// Daytona's id of the command.
    #[serde(default)]
    pub cmd_id: Option<String>,
    /// Combined output, of a call that waited for the end.
    #[serde(default)]
    pub output: Option<String>,
}

/// Answer to a one-shot command.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Executed {
    /// Exit code; -1 when it was killed or could not be started.
    pub exit_code: i64,
    /// Combined output.
    pub result: String,
}

fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = not_empty(deserializer)?;
    if text.len() > 128 { Err(serde::de::Error::custom("an id is at most 128 bytes long")) } else { Ok(text) }
}

fn absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = not_empty(deserializer)?;
    if text.starts_with('/') { Ok(text) } else { Err(serde::de::Error::custom("a directory must be absolute")) }
}

fn not_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    // Longer than any id or directory of a sane server; what is longer could not be recorded as it is.
    match text.len() {
        0 => Err(serde::de::Error::custom("it is empty")),
        1..=1024 => Ok(text),
        _ => Err(serde::de::Error::custom("it is longer than 1024 bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_future_is_understood_and_an_empty_one_is_not() {
        let text = r#"{"id":"a","state":"levitating","kvm":true,"labels":{"x":1},"autoStopInterval":15,"new":{}}"#;
        let sandbox: Sandbox = serde_json::from_str(text).unwrap();
        assert_eq!(sandbox.state, State::Unheard("levitating".to_owned()));
        assert_eq!(sandbox.label("x"), None);
        assert!(serde_json::from_str::<Sandbox>("{}").is_err());
        assert!(serde_json::from_str::<Sandbox>(r#"{"id":""}"#).is_err());
    }
}
