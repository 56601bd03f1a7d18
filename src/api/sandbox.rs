//! What the sandbox of a lease is to be.

#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a private scope")]

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The sandbox to make.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.snapshot) || !has(self.image)")
        .message("set snapshot or image, not both: it is ambiguous what the sandbox is made from"),
    validation = Rule::new("!has(self.resources) || has(self.image)")
        .message("resources need image: a snapshot brings its own").field_path(".resources"),
    validation = Rule::new("!has(self.resources) || !has(self.resources.gpu) || (has(self.autoDeleteMinutes) && self.autoDeleteMinutes == 0)")
        .message("a sandbox with a gpu cannot be stopped and kept: set autoDeleteMinutes: 0 (stopping deletes it)")
        .field_path(".resources"),
    validation = Rule::new("!has(self.autoDeleteMinutes) || self.autoDeleteMinutes != 0 || has(self.autoStopMinutes)")
        .message("with autoDeleteMinutes: 0 stopping deletes the sandbox: say after how many idle minutes, with autoStopMinutes")
        .field_path(".autoDeleteMinutes"),
    validation = Rule::new("!has(self.adopt) || !(has(self.snapshot) || has(self.image) || has(self.resources) || has(self.reuseKey) || has(self.language) || has(self.user) || has(self.public) || has(self.volumes) || has(self.networkBlockAll) || has(self.networkAllowList))")
        .message("adopt takes a sandbox as it is: only labels and the auto…Minutes can be set beside it").field_path(".adopt")
)]
pub struct Sandbox {
    /// Lease a sandbox that exists instead of making one. It must not be leased by another lease (`OwnershipConflict`). It
    /// is labelled as this lease's, and never deleted: needs a `reclaimPolicy` other than Delete, and
    /// `connection.apiKeySecretRef`. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopt: Option<Adopt>,

    /// A name by which later leases of this namespace find the sandbox again, for example `build-cache`: a lease takes over
    /// the one that an earlier lease with the same key has left (`reclaimPolicy` Stop, Archive or Retain), or makes it. It
    /// must have been made with the same snapshot or image, resources and other immutable fields (`ReuseConflict`).
    /// Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$"))]
    pub reuse_key: Option<String>,

    /// Snapshot to start from, by name. Left out, and without `image`: Daytona's default snapshot. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[^\s\x00-\x1f]+$"))]
    pub snapshot: Option<String>,

    /// Container image to start from, for example `debian:12.9`. Daytona builds a snapshot of it first, which takes
    /// minutes when it is new. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s\x00-\x1f]+$"))]
    pub image: Option<String>,

    /// What a sandbox made from `image` has; what is left out is Daytona's default. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Language of Daytona's code runner, for example `python` or `typescript`. It changes nothing for commands. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[a-z][a-z0-9+#-]*$"))]
    pub language: Option<String>,

    /// User that commands run as. Left out: Daytona's default, `daytona`. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[a-zA-Z_][-a-zA-Z0-9_.]*$"))]
    pub user: Option<String>,

    /// Labels on the sandbox in Daytona. They are merged with those that are there; one that is taken out of here stays.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub labels: BTreeMap<String, String>,

    /// Whether the sandbox's ports can be reached by anyone who knows their address. Left out: false. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,

    /// Daytona volumes to mount. Immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(
        validation = Rule::new("self.all(v, self.filter(w, w.mountPath == v.mountPath).size() == 1)")
            .message("two volumes have the same mountPath")
    )]
    pub volumes: Vec<Volume>,

    /// true: the sandbox has no network. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_block_all: Option<bool>,

    /// The only networks that the sandbox can reach, for example `[10.0.0.0/8]`; IPv4. Left out: all. Immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "networks")]
    #[x_kube(
        validation = Rule::new("self.all(n, isCIDR(n) && cidr(n).ip().family() == 4)")
            .message("each entry must be an IPv4 network such as 10.0.0.0/8")
    )]
    pub network_allow_list: Vec<String>,

    /// Idle minutes after which Daytona stops the sandbox; the next command wakes it. 0: it is kept awake while the
    /// controller lives, and stopped two hours (`--dead-man-minutes`) after the controller was last heard of. Left out:
    /// 15; an adopted sandbox keeps what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 525_600))]
    pub auto_stop_minutes: Option<i32>,

    /// Minutes stopped after which Daytona moves its files to slower storage; 43200 at most, which 0 stands for too.
    /// Left out: 60; an adopted sandbox keeps what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 43_200))]
    pub auto_archive_minutes: Option<i32>,

    /// Minutes stopped after which Daytona deletes the sandbox; -1: never, 0: as soon as it is stopped (only with
    /// `reclaimPolicy: Delete`, without `suspend`, and with `autoStopMinutes`). Left out: 10080 (a week), which bounds the
    /// bill when the controller is gone for ever; an adopted sandbox keeps what it has. While the lease is suspended, and
    /// when it leaves the sandbox behind, Daytona deletes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1, max = 5_256_000))]
    pub auto_delete_minutes: Option<i32>,
}

/// A sandbox that exists.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopt {
    /// Its id in Daytona (not its name). Of a sandbox that a lease has left behind: the event `SandboxKept` of that lease
    /// tells it, and in Daytona the label `daytona-controller.dev/lease-name` leads to it.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[a-zA-Z0-9][-_.a-zA-Z0-9]*$"))]
    pub id: String,
}

/// What a sandbox made from an image has.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Processor cores, whole: `"2"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 5), regex(pattern = r"^[1-9][0-9]*$"))]
    pub cpu: Option<String>,

    /// Memory, in whole Gi: `4Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 7), regex(pattern = r"^[1-9][0-9]*Gi$"))]
    pub memory: Option<String>,

    /// Disk, in whole Gi: `10Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 7), regex(pattern = r"^[1-9][0-9]*Gi$"))]
    pub disk: Option<String>,

    /// GPUs: 1. Needs `autoDeleteMinutes: 0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 8))]
    pub gpu: Option<i32>,
}

/// A Daytona volume in a sandbox.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Id of the volume.
    #[serde(rename = "volumeID")]
    #[schemars(length(min = 1, max = 128))]
    pub volume_id: String,

    /// Where it is mounted: an absolute path without `..`.
    #[schemars(length(min = 2, max = 1024), regex(pattern = r"^(/[^/\x00-\x1f]+)+/?$"))]
    #[x_kube(
        validation = Rule::new("!self.split('/').exists(part, part == '..' || part == '.')")
            .message("mountPath must be an absolute path without . and ..")
    )]
    pub mount_path: String,

    /// Directory of the volume that is mounted. Left out: the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub subpath: Option<String>,
}

fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": 256 },
        "x-kubernetes-validations": [{
            "rule": "self.all(key, size(key) <= 256 && !key.startsWith('daytona-controller.dev/') && key != 'code-toolbox-language')",
            "message": "labels must not begin with daytona-controller.dev/ (they tell whose the sandbox is) nor be code-toolbox-language (set language)"
        }]
    })
}

fn networks(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 10,
        "items": { "type": "string", "minLength": 9, "maxLength": 18 }
    })
}
