//! What a `SandboxCommand` shows of itself.

#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a private scope")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CommandDefaults, Condition, schema};

/// Where in its life a command is.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the three words say it")]
pub enum CommandState {
    Queued,
    Running,
    Finished,
}

/// What the controller found. Once `state` is Finished, the outcome never changes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(oldSelf.state) || oldSelf.state != 'Finished' || (has(self.state) && self.state == 'Finished')")
        .message("a finished command stays finished"),
    validation = Rule::new("!has(oldSelf.state) || oldSelf.state != 'Running' || (has(self.state) && self.state != 'Queued')")
        .message("a command that was sent is not queued again"),
    validation = Rule::new("!has(oldSelf.attempts) || (has(self.attempts) && self.attempts >= oldSelf.attempts)")
        .message("attempts cannot become fewer"),
    validation = Rule::new("!has(oldSelf.state) || oldSelf.state != 'Finished' || (has(self.exitCode) == has(oldSelf.exitCode) && (!has(self.exitCode) || self.exitCode == oldSelf.exitCode) && has(self.attempts) == has(oldSelf.attempts) && (!has(self.attempts) || self.attempts == oldSelf.attempts))")
        .message("exitCode and attempts of a finished command cannot change"),
    validation = Rule::new("!has(oldSelf.state) || oldSelf.state != 'Finished' || oldSelf.conditions.all(o, o.type != 'Succeeded' || self.conditions.exists(c, c.type == 'Succeeded' && c.status == o.status && c.reason == o.reason))")
        .message("the outcome of a finished command cannot change")
)]
pub struct SandboxCommandStatus {
    /// metadata.generation that this status was computed for; -1: not looked at yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub observed_generation: Option<i64>,

    /// Queued, Running or Finished. `kubectl get sbcmd --field-selector status.state!=Finished` selects by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<CommandState>,

    /// Started, Finished (True on every outcome), Succeeded (True on exit 0), `OutputStored` (whether all that
    /// `spec.logs` asks for can be read), and Ready, Reconciling, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Exit code as the shell reported it: 0-255, 128+n for a signal n. Absent when nobody knows it; never invented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,

    /// UID of the lease that the command is bound to.
    #[serde(rename = "leaseUID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub lease_uid: Option<String>,

    /// Place in the lease's order: the object's resourceVersion when it was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub sequence: Option<i64>,

    /// How often it was sent to a sandbox. It runs at most once per attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub attempts: Option<i32>,

    /// Daytona sandbox it was sent to.
    #[serde(rename = "sandboxID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub sandbox_id: Option<String>,

    /// Workspace it was sent to, in a lease without sessions.
    #[serde(rename = "workspaceID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub workspace_id: Option<String>,

    /// Daytona session it was sent to, in a lease with sessions.
    #[serde(rename = "sessionID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub session_id: Option<String>,

    /// Generation of the lease's shell it was sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_generation: Option<i64>,

    /// Daytona's id of the command in the session, where Daytona told it.
    #[serde(rename = "commandID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub command_id: Option<String>,

    /// Place in the lease's queue, 1 being next; only the first ten are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub queue_position: Option<i32>,

    /// What it was started with of its lease's `commandDefaults`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_defaults: Option<CommandDefaults>,

    /// Whether it is being ended because its lease was suspended; it is, also if the lease is resumed meanwhile.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lease_suspended: bool,

    /// Which versions of its Secrets it was started with, as a digest of their UIDs and resourceVersions. After a
    /// restart of the controller the output is shown only if they are still the same: else what must not be shown of
    /// it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub secrets_version: Option<String>,

    /// When `spec.cancel` was first seen to be true. It stays: setting it back to false changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub cancel_time: Option<Time>,

    /// When the controller first saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub accepted_time: Option<Time>,

    /// When it was sent to the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub start_time: Option<Time>,

    /// When its outcome was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub completion_time: Option<Time>,

    /// How long it ran in the sandbox, for people, for example `1m4s` or `0.12s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub duration: Option<String>,

    /// How long it ran in the sandbox, in milliseconds (resolution 10 ms), measured there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub duration_milliseconds: Option<i64>,

    /// Last line of standard output that is not blank (of standard error when there is none), at most 120 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 120))]
    pub last_line: Option<String>,

    /// Standard output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<Box<OutputStatus>>,

    /// Standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Box<OutputStatus>>,
}

/// What a command wrote to one of its outputs.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OutputStatus {
    /// The end of it, at most `spec.logs.tailBytes`, as valid UTF-8; ANSI sequences and control bytes are taken out,
    /// values of the command's Secrets are replaced by `***`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 16384))]
    pub tail: String,

    /// Size of the whole, in bytes.
    #[schemars(range(min = 0))]
    pub bytes: i64,

    /// Whether `tail` lacks something of the whole.
    pub truncated: bool,

    /// SHA-256 of the whole, in hexadecimal, where the sandbox has a tool that computes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub sha256: Option<String>,

    /// `utf-8`: the tail is the bytes as they were written (control sequences apart). `utf-8-lossy`: bytes that are
    /// not UTF-8 were replaced by U+FFFD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub encoding: Option<String>,

    /// Where the stored log is. Absent when there is none: the tail is all of it, or it was not to be or could not be
    /// stored (see the condition `OutputStored`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_ref: Option<LogRef>,
}

/// Where a stored log is: an immutable object of the command's namespace that goes with the command.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRef {
    /// `ConfigMap` or `Secret`.
    #[schemars(length(max = 63))]
    pub kind: String,

    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,

    /// The key that holds the log (in `binaryData` of a `ConfigMap` when it is not UTF-8).
    #[schemars(length(max = 253))]
    pub key: String,
}
