//! `SandboxLease`: a lease on one Daytona sandbox and, with `useSessions`, on one persistent shell in it.

#![allow(clippy::duplicated_attributes, reason = "each column has a type of its own")]
#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a private scope")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    SandboxLeaseStatus,
    command::Logs,
    files::FileMapping,
    sandbox::Sandbox,
    schema,
    sources::{EnvSource, EnvVar, SourceKind, environment},
};

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
    printcolumn(name = "Expires", type_ = "string", json_path = ".status.expiryTime"),
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
    validation = schema::immutable_in("sandbox", "reuseKey"),
    validation = schema::immutable_in("sandbox", "adopt"),
    validation = schema::immutable_in("connection", "target"),
    validation = schema::immutable_in("connection", "organizationID"),
    validation = Rule::new("!has(self.sandbox) || (!has(self.sandbox.volumes) && !has(self.sandbox.adopt)) || (has(self.connection) && has(self.connection.apiKeySecretRef))")
        .message("sandbox.adopt and sandbox.volumes need connection.apiKeySecretRef: the controller's own key is not for what a lease names"),
    validation = Rule::new("!has(self.sandbox) || !has(self.sandbox.adopt) || self.reclaimPolicy != 'Delete'")
        .message("an adopted sandbox is never deleted: set reclaimPolicy to Stop, Archive or Retain").field_path(".reclaimPolicy"),
    validation = Rule::new("!has(self.sandbox) || !has(self.sandbox.autoDeleteMinutes) || self.sandbox.autoDeleteMinutes != 0 || (self.reclaimPolicy == 'Delete' && !self.suspend)")
        .message("with sandbox.autoDeleteMinutes: 0 stopping deletes the sandbox: it goes with reclaimPolicy Delete and without suspend only"),
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

    /// Environment variables of every command; a command's own win. At most 128. A change counts for commands that start
    /// after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub env: Vec<EnvVar>,

    /// Secrets and `ConfigMaps` whose keys become environment variables of every command; a later one wins over an earlier
    /// one, the lease's `env` over all of them, and a command's own over both. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub env_from: Vec<EnvSource>,

    /// Directory that commands run in unless they name another: absolute, or relative to the sandbox's work directory,
    /// which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[^\x00-\x1f]+$"))]
    #[x_kube(
        validation = Rule::new("!self.split('/').exists(part, part == '..')").message("workingDir cannot contain .."),
        validation = Rule::new("!self.startsWith('~')").message("workingDir: ~ is not expanded; write an absolute path, or one relative to the sandbox's work directory")
    )]
    pub working_dir: Option<String>,

    /// What holds for commands that say nothing of it. A change counts for commands that start after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_defaults: Option<CommandDefaults>,

    /// Files that are brought into the sandbox before the lease is Ready. They may be changed later: `ReadOnly` files of an
    /// entry that is removed go, `ReadWrite` ones stay. At most 32 entries, and 256 files of 4 MiB in all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(
        merge_strategy = ListMerge::Map(vec!["path".to_owned()]),
        validation = Rule::new("self.all(f, self.filter(g, g.path == f.path).size() == 1)")
            .message("two entries of files have the same path")
    )]
    pub files: Vec<FileMapping>,

    /// What becomes of the sandbox when the lease is deleted or expires; the session is deleted always. Delete (the
    /// default): deleted, with proof. Stop: stopped; its files stay. Archive: stopped, and moved to slower storage.
    /// Retain: left as it is. What stays is not deleted by Daytona either (its autoDelete is switched off), and a lease
    /// with the same `sandbox.reuseKey` can take it over. May be changed at any time, also while the lease is being
    /// deleted.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,

    /// true: what runs is brought to its end as `suspendPolicy` says, the session is deleted and the sandbox stopped.
    /// Nothing wakes it; new commands wait. false (the default): it is started again, with a new session. A lease that
    /// is created suspended makes no sandbox.
    #[serde(default)]
    pub suspend: bool,

    /// What becomes of running commands when the lease is suspended. Drain (the default): they finish, under their own
    /// time-outs. Cancel: they are ended (`LeaseSuspended`).
    #[serde(default)]
    pub suspend_policy: SuspendPolicy,

    /// Seconds after which the lease expires, counted from the later of its creation and `renewTime`, for example 28800.
    /// Then what runs is ended (`LeaseEnded`), all is let go as at deletion, and the lease stays behind, `Expired` for
    /// good. Left out: it does not expire, unless the controller limits it (`--max-lease-duration`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315_360_000))]
    pub lease_duration_seconds: Option<i64>,

    /// When the lease was last renewed, for example `2026-01-31T12:00:00Z`. Move it forward to keep the lease; a lease
    /// that has expired stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::chosen_time")]
    pub renew_time: Option<Time>,

    /// What becomes of waiting commands with `shellState: Persist` when one such command is lost while it runs (its shell
    /// or sandbox ended, or nobody knows how it ended; not one that was cancelled or timed out), so that its changes are missing. Fail (the default): they end
    /// without having run (`SessionLost`). Continue: they go on from the state that was saved last. Other commands always
    /// go on; sleep, and a shell that is renewed while nothing runs, lose nothing.
    #[serde(default)]
    pub on_session_lost: OnSessionLost,
}

impl SandboxLeaseSpec {
    /// Names of the objects of this kind that its commands' environment is read from.
    #[must_use]
    pub fn environment_sources(&self, kind: SourceKind) -> Vec<&str> {
        environment(&self.env, &self.env_from, kind).collect()
    }
}

/// What holds for commands that say nothing of it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CommandDefaults {
    /// Seconds that a command may run. 1 to 604800 (a week); 3600 if this says nothing either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub timeout_seconds: Option<i32>,

    /// What is kept of a command's output, field by field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<Logs>,
}

fn default_parallel() -> i32 {
    1
}

/// How to reach Daytona, and as whom.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.apiURL) || has(self.apiKeySecretRef)")
        .message("apiURL needs apiKeySecretRef beside it: the controller's own key is never sent to a URL that a lease names"),
    validation = Rule::new("!has(self.organizationID) || has(self.apiKeySecretRef)")
        .message("organizationID needs apiKeySecretRef beside it: the controller's own key has an organisation of its own")
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

    /// Daytona organisation that the sandbox belongs to. Daytona's API keys carry theirs, so this is a check: a sandbox of
    /// another organisation is told (`CredentialMismatch`) and not used. It is sent along, for gateways that go by it.
    /// Needs `apiKeySecretRef`. Immutable.
    #[serde(rename = "organizationID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[-_.a-zA-Z0-9]+$"))]
    pub organization_id: Option<String>,
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
    /// Stopped.
    Stop,
    /// Stopped, and moved to slower storage.
    Archive,
    /// Left as it is.
    Retain,
}

/// What becomes of running commands when a lease is suspended.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SuspendPolicy {
    /// They finish.
    #[default]
    Drain,
    /// They are ended.
    Cancel,
}

/// What becomes of waiting Persist commands when one is lost while it runs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSessionLost {
    /// They end without having run.
    #[default]
    Fail,
    /// They go on from what was saved last.
    Continue,
}
