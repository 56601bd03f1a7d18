//! The two resources as users write them, and nothing else: types, schema, CEL rules and the names we own.
//!
//! The golden files in `crds/` are printed from here by `daytona-controller crds`.

mod command;
mod command_status;
mod condition;
mod files;
mod lease;
mod lease_status;
mod sandbox;
mod schema;
mod sources;

pub use command::{LogStore, Logs, SandboxCommand, SandboxCommandSpec, ShellState};
pub use command_status::{CommandState, LogRef, OutputStatus, SandboxCommandStatus};
pub use condition::{
    CommandCondition, CommandReason, Condition, LeaseCondition, LeaseReason, OutputReason, Stamp, Truth, condition,
    cut, remove_condition, set_condition,
};
pub use files::{Access, FileMapping, FileSource};
pub use lease::{CommandDefaults, OnSessionLost, ReclaimPolicy, SandboxLease, SandboxLeaseSpec, SuspendPolicy};
pub use lease_status::{CommandGauges, ConnectionStatus, SandboxLeaseStatus, SandboxStatus, SessionStatus};
pub use sandbox::{Resources, Sandbox, Volume};
pub use schema::{WriteError, crds, shipped_crds, write_crds};
pub use sources::{EnvSource, EnvVar, KeyRef, ObjectRef, SourceKind, is_variable_name};

/// API group of both resources.
pub const GROUP: &str = "daytona-controller.dev";
/// API version of both resources.
pub const VERSION: &str = "v1alpha1";
/// On a lease until Daytona itself has said that its session and its sandbox are gone.
pub const LEASE_FINALIZER: &str = "daytona-controller.dev/session";
/// On a command until it is finished, or seen ended after its deletion.
pub const COMMAND_FINALIZER: &str = "daytona-controller.dev/command";
/// On a namespace, with the value `allowed`: leases in it may use the controller's own Daytona key.
pub const CONTROLLER_KEY_LABEL: &str = "daytona-controller.dev/controller-key";
/// Label on a stored log: UID of the command that wrote it.
pub const COMMAND_UID_LABEL: &str = "daytona-controller.dev/command-uid";
/// Annotation on a stored log: its size in bytes, which counts against the namespace's budget.
pub const LOG_BYTES: &str = "daytona-controller.dev/log-bytes";
/// Annotation on a lease that ends: the id of its sandbox, or its name while no id is known. Lets it go without proof.
pub const ABANDON: &str = "daytona-controller.dev/abandon";
/// Flux's "reconcile now" annotation; its value is echoed in `status.lastHandledReconcileAt`.
pub const REQUESTED_AT: &str = "reconcile.fluxcd.io/requestedAt";

/// The copy of a Daytona key in the controller's own namespace, which outlives the Secret that it was read from.
pub mod escrow {
    /// Type of the Secret. One of another type is none of ours.
    pub const TYPE: &str = "daytona-controller.dev/escrow";
    /// Label: name of the namespace whose leases it is kept for.
    pub const NAMESPACE: &str = "daytona-controller.dev/escrow-namespace";
    /// Label: UID of that namespace.
    pub const NAMESPACE_UID: &str = "daytona-controller.dev/escrow-namespace-uid";
    /// Label: fingerprint of the key, as in `status.connection.keyFingerprint`.
    pub const FINGERPRINT: &str = "daytona-controller.dev/escrow-key-fingerprint";
}

/// Labels on the sandbox in Daytona. The first one decides what is ours.
pub mod sandbox_label {
    /// UID of the lease that owns the sandbox. Only a sandbox that carries it is stopped, changed or deleted.
    pub const LEASE_UID: &str = "daytona-controller.dev/lease-uid";
    /// The cluster of the lease: UID of its namespace `kube-system`, or what `--cluster-id` says.
    pub const CLUSTER_ID: &str = "daytona-controller.dev/cluster-id";
    /// UID of the lease's namespace.
    pub const NAMESPACE_UID: &str = "daytona-controller.dev/namespace-uid";
    /// Namespace of the lease, for people who look at Daytona's dashboard.
    pub const LEASE_NAMESPACE: &str = "daytona-controller.dev/lease-namespace";
    /// Name of the lease, for people who look at Daytona's dashboard.
    pub const LEASE_NAME: &str = "daytona-controller.dev/lease-name";
    /// What is to become of the sandbox when its lease ends: `reclaimPolicy`.
    pub const RECLAIM_POLICY: &str = "daytona-controller.dev/reclaim-policy";
    /// UID of the lease that left the sandbox behind; in place of [`LEASE_UID`].
    pub const RELEASED_BY: &str = "daytona-controller.dev/released-by";
    /// Digest of what the sandbox was made from, on one with a `reuseKey`.
    pub const DIGEST: &str = "daytona-controller.dev/sandbox-digest";
}
