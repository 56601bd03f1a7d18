//! `SandboxLease`: a lease on one Daytona sandbox and, with `useSessions`, on one persistent shell in it.

#![allow(clippy::duplicated_attributes, reason = "each column has a type of its own")]
#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a private scope")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, sandbox::Sandbox, schema};

/// What the lease asks for.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "daytona-controller.dev",
    version = "v1alpha1",
    kind = "SandboxLease",
    namespaced,
    status = "SandboxLeaseStatus",
    shortname = "sblease",
    category = "daytona",
    derive = "PartialEq",
    doc = "A lease on one Daytona sandbox and on one persistent shell (session) in it. While it exists, SandboxCommands of its namespace run there. Deleting it ends what runs, deletes the session, and does with the sandbox what reclaimPolicy says.",
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Mode", type_ = "string", json_path = ".status.mode"),
    printcolumn(name = "Sandbox", type_ = "string", json_path = ".status.sandbox.id"),
    printcolumn(name = "Queued", type_ = "integer", json_path = ".status.commands.queued"),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.commands.running"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.sandbox.state", priority = 1),
    printcolumn(name = "Session", type_ = "string", json_path = ".status.session.id", priority = 1),
    printcolumn(name = "Generation", type_ = "integer", json_path = ".status.session.generation", priority = 1),
    printcolumn(name = "Target", type_ = "string", json_path = ".status.sandbox.target", priority = 1)
)]
#[x_kube(
    validation = Rule::new("(has(self.connection) && has(self.connection.apiURL) ? self.connection.apiURL : '') == (has(oldSelf.connection) && has(oldSelf.connection.apiURL) ? oldSelf.connection.apiURL : '')")
        .message("connection.apiURL is immutable: the sandbox lives there; create another lease"),
    validation = schema::immutable_in("sandbox", "snapshot"),
    validation = schema::immutable_in("sandbox", "image"),
    validation = schema::immutable_in("sandbox", "resources"),
    validation = schema::immutable_in("sandbox", "language"),
    validation = schema::immutable_in("sandbox", "user"),
    validation = schema::immutable_in("sandbox", "public"),
    validation = schema::immutable_in("sandbox", "volumes"),
    validation = schema::immutable_in("sandbox", "networkBlockAll"),
    validation = schema::immutable_in("sandbox", "networkAllowList"),
    validation = schema::immutable_in("connection", "target"),
    validation = Rule::new("!self.useSessions || self.maxParallelCommands == 1")
        .message("a session runs one command at a time: maxParallelCommands needs useSessions: false")
        .field_path(".maxParallelCommands")
)]
pub struct SandboxLeaseSpec {
    /// How to reach Daytona, and as whom. Left out: the controller's own key at the controller's own URL, which only
    /// namespaces that the cluster's administrator labelled `daytona-controller.dev/controller-key: allowed` may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,

    /// The sandbox to make. Left out: one from Daytona's default snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,

    /// true: one persistent Daytona session (shell) for the lease, into which every command is fed, one at a time, in
    /// order. false (the default): every command is a process of its own, there is no session, and several may run at
    /// once (`maxParallelCommands`). The guarantees are the same. Immutable.
    #[serde(default)]
    #[x_kube(
        validation = Rule::new("self == oldSelf").message("useSessions is immutable: create another lease")
    )]
    pub use_sessions: bool,

    /// How many commands may run at once; only for leases without sessions. 1 to 64; default 1.
    #[serde(default = "default_parallel")]
    #[schemars(range(min = 1, max = 64))]
    pub max_parallel_commands: i32,

    /// What becomes of the sandbox when the lease is deleted. Delete (the default): it is deleted, and the lease goes
    /// only when Daytona says that it is gone. The session is deleted always.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
}

fn default_parallel() -> i32 {
    1
}

/// How to reach Daytona, and as whom.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.apiURL) || has(self.apiKeySecretRef)")
        .message("apiURL needs apiKeySecretRef beside it: the controller's own key is never sent to a URL that a lease names")
)]
pub struct Connection {
    /// Secret of this namespace that holds the Daytona API key, for example `{name: daytona}` with the key `api-key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_secret_ref: Option<SecretKeyRef>,

    /// Base URL of the Daytona API, for example `https://app.daytona.io/api`. It must be on the controller's
    /// allow-list (`--allow-api-url`). https; http only for a loopback host. Left out: the controller's own URL.
    /// Immutable.
    #[serde(rename = "apiURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(
        validation = Rule::new("isURL(self) && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || (url(self).getScheme() == 'http' && url(self).getHostname() in ['localhost', '127.0.0.1', '::1', '[::1]']))")
            .message("apiURL must be an https URL, for example https://app.daytona.io/api (http only for a loopback host)"),
        validation = Rule::new("!self.contains('@') && !self.contains('?') && !self.contains('#')")
            .message("apiURL must not carry credentials, a query or a fragment: put the key into a Secret")
    )]
    pub api_url: Option<String>,

    /// Region that the sandbox is made in, for example `eu`. Left out: Daytona's choice. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[^\s\x00-\x1f]+$"))]
    pub target: Option<String>,
}

/// A key of a Secret in the lease's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,

    /// Key in the Secret's data. A newline at the end of the value is ignored.
    #[serde(default = "default_key")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

fn default_key() -> String {
    "api-key".to_owned()
}

/// What becomes of the sandbox when the lease ends.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// Deleted, with proof.
    #[default]
    Delete,
}

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

    /// Name in Daytona: derived from the lease's UID, so that a sandbox is found again when a reply was lost.
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
