//! `SandboxCommand`: one command, run once, in the sandbox of a lease.

#![allow(clippy::duplicated_attributes, reason = "each column has a type of its own")]
#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a private scope")]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    command_status::SandboxCommandStatus,
    schema,
    sources::{EnvSource, EnvVar, ScriptSource, SourceKind, Stdin, environment},
};

/// What to run, and where. Immutable, save for `cancel`: a command runs once.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "daytona-controller.dev",
    version = "v1alpha1",
    kind = "SandboxCommand",
    namespaced,
    status = "SandboxCommandStatus",
    shortname = "sbcmd",
    category = "daytona",
    derive = "PartialEq",
    doc = "One command, run once in the sandbox of a SandboxLease of the same namespace. Its exit code and the tail of its output land in status; `kubectl wait --for=condition=Finished` waits for any outcome. Deleting it cancels it.",
    selectable = ".spec.leaseRef.name",
    selectable = ".status.state",
    printcolumn(name = "Lease", type_ = "string", json_path = ".spec.leaseRef.name"),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Succeeded")].reason"#),
    printcolumn(name = "Exit", type_ = "integer", json_path = ".status.exitCode"),
    printcolumn(name = "Duration", type_ = "string", json_path = ".status.duration"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Session", type_ = "string", json_path = ".status.sessionID", priority = 1),
    printcolumn(name = "Attempts", type_ = "integer", json_path = ".status.attempts", priority = 1),
    printcolumn(name = "Last Line", type_ = "string", json_path = ".status.lastLine", priority = 1)
)]
#[x_kube(
    validation = Rule::new("[has(self.script), has(self.scriptFrom), has(self.command)].filter(x, x).size() == 1")
        .message("set exactly one of script, scriptFrom and command"),
    validation = Rule::new("!has(self.shell) || !has(self.command)")
        .message("shell is what reads a script: it cannot be set beside command").field_path(".shell"),
    validation = Rule::new("self.shellState == 'Isolated' || (!has(self.command) && !has(self.shell))")
        .message("shellState: Persist needs a script and the login shell (no command, no shell)")
        .field_path(".shellState"),
    validation = schema::immutable("leaseRef"),
    validation = schema::immutable("script"),
    validation = schema::immutable("scriptFrom"),
    validation = schema::immutable("command"),
    validation = schema::immutable("shell"),
    validation = schema::immutable("shellState"),
    validation = schema::immutable("workingDir"),
    validation = schema::immutable("env"),
    validation = schema::immutable("envFrom"),
    validation = schema::immutable("stdin"),
    validation = schema::immutable("timeoutSeconds"),
    validation = schema::immutable("startingDeadlineSeconds"),
    validation = schema::immutable("terminationGracePeriodSeconds"),
    validation = schema::immutable("order"),
    validation = schema::immutable("logs")
)]
pub struct SandboxCommandSpec {
    /// The lease to run in. One that does not exist yet is waited for.
    pub lease_ref: LeaseRef,

    /// Shell script, run as a plain login-shell script (`bash -l` if there is one, else `sh -l`) in a process of its
    /// own: `exit`, `set -e` or `cd` in it end with it. At most 65536 characters and 98304 bytes, no NUL; a longer one
    /// goes into a `ConfigMap` (`scriptFrom`). For example `make test`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    #[x_kube(
        validation = Rule::new(r"!self.contains('\u0000')").message("a script cannot contain NUL"),
        validation = Rule::new("size(bytes(self)) <= 98304").message("a script is at most 98304 bytes long: put a longer one into a ConfigMap and name it in scriptFrom")
    )]
    pub script: Option<String>,

    /// Where the script is read from when the command starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_from: Option<ScriptSource>,

    /// Program and arguments, run as they are: nothing is split, expanded or quoted again. The program is looked for
    /// in the login shell's PATH. For example `["make", "-j2", "test"]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(max = 32768)))]
    #[x_kube(
        merge_strategy = ListMerge::Atomic,
        validation = Rule::new("self[0] != ''").message("the program cannot be empty"),
        validation = Rule::new(r"self.all(word, !word.contains('\u0000'))").message("an argument cannot contain NUL")
    )]
    pub command: Option<Vec<String>>,

    /// Program and arguments that read the script, in place of the login shell. For example `["python3", "-u"]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), inner(length(max = 1024)))]
    #[x_kube(
        merge_strategy = ListMerge::Atomic,
        validation = Rule::new("self[0] != ''").message("the program cannot be empty"),
        validation = Rule::new(r"self.all(word, !word.contains('\u0000'))").message("an argument cannot contain NUL")
    )]
    pub shell: Option<Vec<String>>,

    /// Isolated (the default): nothing of the command's shell outlives it. Persist: its working directory and its
    /// exported variables carry over to the next Persist command of the lease.
    #[serde(default)]
    pub shell_state: ShellState,

    /// Directory to run in: absolute, or relative to the sandbox's work directory, which is the default. It must be
    /// there, else the command ends `StartFailed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[^\x00-\x1f]+$"))]
    #[x_kube(
        validation = Rule::new("!self.split('/').exists(part, part == '..')").message("workingDir cannot contain .."),
        validation = Rule::new("!self.startsWith('~')").message("workingDir: ~ is not expanded; write an absolute path, or one relative to the sandbox's work directory")
    )]
    pub working_dir: Option<String>,

    /// Environment variables, set before the login shell reads its profile; they win over the lease's. At most 128.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub env: Vec<EnvVar>,

    /// Secrets and `ConfigMaps` whose keys become environment variables; a later one wins over an earlier one, and `env`
    /// over all. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub env_from: Vec<EnvSource>,

    /// Standard input. Left out: the command reads end of file at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Stdin>,

    /// Seconds that it may run, counted from its start (not from its creation). Then all that it started is sent TERM
    /// and, `terminationGracePeriodSeconds` later, KILL, and it ends `TimedOut`. 1 to 604800 (a week); default: what the
    /// lease's `commandDefaults` say, else 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub timeout_seconds: Option<i32>,

    /// Seconds from its creation within which it must have been started; else it ends `StartDeadlineExceeded` and
    /// never runs. 1 to 2592000 (30 days). Left out: it waits for as long as it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub starting_deadline_seconds: Option<i32>,

    /// Seconds between TERM and KILL when it has to be ended. 0 to 600; default 10.
    #[serde(default = "default_grace")]
    #[schemars(range(min = 0, max = 600))]
    pub termination_grace_period_seconds: i32,

    /// true: it is not started any more, or ended with all that it started, and ends `Cancelled`. It stays cancelled
    /// if this is set back to false; a finished command is not changed. May be changed.
    #[serde(default)]
    pub cancel: bool,

    /// Its place among the waiting commands of the lease: smaller ones first; among equals the order in which they
    /// were accepted. -1000 to 1000; default 0.
    #[serde(default)]
    #[schemars(range(min = -1000, max = 1000))]
    pub order: i32,

    /// What is kept of its output. Of what is left out the lease's `commandDefaults` decide, else it is: the last 4096
    /// bytes in status, and up to 65536 bytes of each output in a `ConfigMap` where the tail is not all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<Logs>,
}

/// Isolated (the default): nothing of the command's shell outlives it. Persist: its working directory and its exported
/// variables carry over to the next Persist command of the lease.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShellState {
    /// They end with it.
    #[default]
    Isolated,
    /// They carry over to the next Persist command of the lease.
    Persist,
}

/// What is kept of a command's output.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Logs {
    /// `ConfigMap` (the default), Secret or None: where an output is stored that is longer than its tail in status.
    /// Whoever has the role `view` in the namespace can read `ConfigMaps`, but not Secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<LogStore>,

    /// Bytes of the end of each output that are shown in status. 0 to 16384; default 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16384))]
    pub tail_bytes: Option<i32>,

    /// Bytes of each output that are stored; of a longer one the beginning and the end. 0 to 524288; default 65536.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 524_288))]
    pub max_bytes: Option<i32>,
}

/// `ConfigMap` (the default), Secret or None: where an output is stored that is longer than its tail in status, or no plain
/// text. None: only the tail is kept. Whoever has the role `view` in the namespace can read `ConfigMaps`, but not Secrets.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogStore {
    /// A `ConfigMap`.
    #[default]
    ConfigMap,
    /// A Secret.
    Secret,
    /// None: the tail in status is all that is kept.
    None,
}

impl SandboxCommandSpec {
    /// Names of the objects of this kind that it reads from.
    #[must_use]
    pub fn sources(&self, kind: SourceKind) -> Vec<&str> {
        let stdin = self.stdin.iter().filter_map(|stdin| {
            let key = if kind == SourceKind::Secret { &stdin.secret_key_ref } else { &stdin.config_map_key_ref };
            Some(key.as_ref()?.name.as_str())
        });
        let script = self.script_from.iter().filter(|_| kind == SourceKind::ConfigMap);
        let script = script.map(|from| from.config_map_key_ref.name.as_str());
        environment(&self.env, &self.env_from, kind).chain(stdin).chain(script).collect()
    }

    /// Seconds that it may run.
    #[must_use]
    pub fn timeout(&self) -> i32 {
        self.timeout_seconds.unwrap_or(3600)
    }

    /// Where its log is stored.
    #[must_use]
    pub fn log_store(&self) -> LogStore {
        self.logs.as_ref().and_then(|logs| logs.store).unwrap_or_default()
    }

    /// Bytes of each output that status shows.
    #[must_use]
    pub fn tail_bytes(&self) -> usize {
        bounded(self.logs.as_ref().and_then(|logs| logs.tail_bytes), 4096)
    }

    /// Bytes of each output that are stored.
    #[must_use]
    pub fn max_bytes(&self) -> usize {
        bounded(self.logs.as_ref().and_then(|logs| logs.max_bytes), 65536)
    }
}

fn bounded(value: Option<i32>, default: usize) -> usize {
    value.map_or(default, |bytes| usize::try_from(bytes).unwrap_or(0))
}

fn default_grace() -> i32 {
    10
}

/// A lease of the same namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct LeaseRef {
    /// Name of the `SandboxLease`.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
}
