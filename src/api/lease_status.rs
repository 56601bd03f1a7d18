//! `status` of a `SandboxLease`.

#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a private scope")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, schema};

/// What the controller found. Written on change only.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SandboxLeaseStatus {
    /// metadata.generation that this status was computed for; -1: not looked at yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub observed_generation: Option<i64>,

    /// `Ready`, `CredentialsValid`, `SandboxReady`, `SessionReady`; while abnormal also `Reconciling`, `Stalled`,
    /// `CleanupBlocked`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// `Sessions`: commands run one at a time in one shell. `OneShot`: each is a process of its own. For the MODE
    /// column; follows spec.useSessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub mode: Option<String>,

    /// Where the sandbox lives and with which key it was last seen; recorded before it is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionStatus>,

    /// The sandbox, as Daytona last described it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxStatus>,

    /// The persistent shell, in a lease with sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionStatus>,

    /// The controller's files in the sandbox, in a lease without sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<SessionStatus>,

    /// Highest generation of session or workspace so far; their ids are never used again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_session_generation: Option<i64>,

    /// When the lease expires: leaseDurationSeconds after the later of its creation and renewTime, and no later than
    /// `--max-lease-duration` of the controller after its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub expiry_time: Option<Time>,

    /// When the lease was seen to have expired. Nothing brings it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub expired_time: Option<Time>,

    /// Directories that hold files with `access: ReadWrite`: where the user's own changes are. Advisory; it bounds
    /// nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 2048)))]
    pub writable_dirs: Vec<String>,

    /// Which files were brought in last: changes when an entry of `files`, the content of a `ConfigMap`, or the version
    /// of a Secret does. `-`: they are being brought in. No content of a Secret can be learned from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub files_digest: Option<String>,

    /// How many commands are bound to this lease now; at most ten seconds old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commands: Option<CommandGauges>,

    /// Value of the annotation `reconcile.fluxcd.io/requestedAt` that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub last_handled_reconcile_at: Option<String>,
}

/// Where the sandbox lives. A "not found" from anywhere else proves nothing.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionStatus {
    /// Base URL of the API.
    #[serde(rename = "apiURL")]
    #[schemars(length(max = 512))]
    pub api_url: String,

    /// Daytona organisation of the sandbox, known once Daytona has described it.
    #[serde(rename = "organizationID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub organization_id: Option<String>,

    /// First 32 hexadecimal digits of the SHA-256 of the API key that last reached the sandbox.
    #[schemars(length(max = 64))]
    pub key_fingerprint: String,
}

/// The sandbox, as Daytona last described it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// Daytona's id; absent until Daytona has answered the create call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub id: Option<String>,

    /// Name in Daytona: derived from the lease's UID or its reuseKey, so that a sandbox is found again when a reply was
    /// lost. Of an adopted sandbox the name that it has.
    #[schemars(length(max = 256))]
    pub name: String,

    /// State in Daytona's words, for example `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub state: Option<String>,

    /// Region the sandbox runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub target: Option<String>,

    /// Directory that commands start in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub work_dir: Option<String>,

    /// Home directory of the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub home_dir: Option<String>,

    /// When Daytona created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub creation_time: Option<Time>,

    /// Minutes of idleness after which Daytona stops it; 0: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_stop_minutes: Option<i32>,

    /// Minutes stopped after which Daytona archives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_archive_minutes: Option<i32>,

    /// Minutes stopped after which Daytona deletes it; -1: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_delete_minutes: Option<i32>,
}

/// Where commands are sent: a session, or, in a lease without sessions, the controller's files in the sandbox.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SessionStatus {
    /// Its id (a session's is Daytona's): the lease's UID and the generation. Never used twice.
    #[schemars(length(max = 128))]
    pub id: String,

    /// Grows whenever it had to be made anew; what lived in an old shell is gone.
    pub generation: i64,

    /// When it was proved to serve for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub creation_time: Option<Time>,
}

impl SandboxLeaseStatus {
    /// Where commands are sent.
    #[must_use]
    pub fn place(&self) -> Option<&SessionStatus> {
        self.session.as_ref().or(self.workspace.as_ref())
    }
}

/// Commands bound to the lease that exist now.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CommandGauges {
    /// Waiting for their turn.
    pub queued: i32,
    /// Sent to the sandbox and not finished.
    pub running: i32,
    /// Finished with exit code 0.
    pub succeeded: i32,
    /// Finished otherwise.
    pub failed: i32,
}
