//! Where the values of a command come from: texts in the manifest, Secrets and `ConfigMaps` of its namespace.

#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a private scope")]

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// A key of a Secret or `ConfigMap` of the same namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// Name of the object.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,

    /// Key in its data.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,

    /// Whether to go on without it when the object or the key is missing. Without it, a missing object is waited for;
    /// a missing key ends a command (`StartFailed`; nothing ran), and is waited for by a lease.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A whole Secret or `ConfigMap` of the same namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Name of the object.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,

    /// Whether to go on without it when the object is missing. Without it, a missing object is waited for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// An environment variable.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.value) != has(self.valueFrom)").message("set exactly one of value and valueFrom")
)]
pub struct EnvVar {
    /// Name: a letter or underscore, then letters, digits and underscores. Names that a shell keeps for itself are
    /// refused.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    #[x_kube(
        validation = Rule::new("!(self in ['UID', 'EUID', 'PPID', 'BASHOPTS', 'SHELLOPTS', 'BASH_VERSINFO']) && !self.matches('^(DTC|dtc)_')")
            .message("this name cannot be set: shells and the controller keep it for themselves")
    )]
    pub name: String,

    /// Value, taken as it is; no `$(NAME)` is expanded. At most 32768 characters, no NUL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    #[x_kube(validation = Rule::new(r"!self.contains('\u0000')").message("a value cannot contain NUL"))]
    pub value: Option<String>,

    /// Where the value is read from when the command starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueSource>,
}

/// Where a value is read from.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.secretKeyRef) != has(self.configMapKeyRef)")
        .message("set exactly one of secretKeyRef and configMapKeyRef")
)]
pub struct ValueSource {
    /// A key of a Secret. Its value travels as a file that is removed before the script begins, and is replaced by
    /// `***` in what is shown and stored of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,

    /// A key of a `ConfigMap`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
}

/// All keys of a Secret or `ConfigMap` as environment variables.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.secretRef) != has(self.configMapRef)")
        .message("set exactly one of secretRef and configMapRef")
)]
pub struct EnvSource {
    /// Put in front of each name, for example `APP_`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub prefix: Option<String>,

    /// A Secret. Keys that are no names of variables are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ObjectRef>,

    /// A `ConfigMap`. Keys that are no names of variables are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ObjectRef>,
}

/// Names of the objects of this kind that an environment is read from.
pub(super) fn environment<'a>(
    env: &'a [EnvVar],
    env_from: &'a [EnvSource],
    kind: SourceKind,
) -> impl Iterator<Item = &'a str> {
    let secret = kind == SourceKind::Secret;
    let keys = env.iter().filter_map(move |variable| {
        let from = variable.value_from.as_ref()?;
        let key = if secret { &from.secret_key_ref } else { &from.config_map_key_ref };
        Some(key.as_ref()?.name.as_str())
    });
    let objects = env_from.iter().filter_map(move |source| {
        let object = if secret { &source.secret_ref } else { &source.config_map_ref };
        Some(object.as_ref()?.name.as_str())
    });
    keys.chain(objects)
}

/// Where a script is read from.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ScriptSource {
    /// A key of a `ConfigMap`, in `data` or `binaryData`; read when the command starts. It may be as long as a
    /// `ConfigMap` can be.
    pub config_map_key_ref: ConfigMapKey,
}

/// A key of a `ConfigMap` of the same namespace that has to be there.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigMapKey {
    /// Name of the `ConfigMap`.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,

    /// Key in its data.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// What a command reads from its standard input.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.value), has(self.configMapKeyRef), has(self.secretKeyRef)].filter(x, x).size() == 1")
        .message("set exactly one of value, configMapKeyRef and secretKeyRef")
)]
pub struct Stdin {
    /// Text, taken as it is; at most 65536 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub value: Option<String>,

    /// A key of a `ConfigMap`, in `data` or `binaryData`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,

    /// A key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
}

/// Kind of object that values are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SourceKind {
    /// A Secret.
    Secret,
    /// A `ConfigMap`.
    ConfigMap,
}

impl SourceKind {
    /// The kind as Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }
}

/// Names that shells keep for themselves; the rule on [`EnvVar::name`] lists the same.
const KEPT_NAMES: [&str; 6] = ["UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO"];
/// What the names of the controller's own variables begin with.
const KEPT_PREFIXES: [&str; 2] = ["DTC_", "dtc_"];

/// Whether a key of a Secret or `ConfigMap` can be an environment variable.
#[must_use]
pub fn is_variable_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !KEPT_NAMES.contains(&name)
        && !KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_and_the_controller_refuse_the_same_names() {
        let rule = format!("!(self in {})", format!("{KEPT_NAMES:?}").replace('"', "'"));
        assert!(include_str!("../../crds/sandboxcommands.yaml").contains(&rule), "{rule}");
        assert!(is_variable_name("_A1") && is_variable_name("dir"));
        assert!(["1A", "A-B", "", "UID", "ä", "DTC_ATTEMPT", "dtc_dir"].iter().all(|name| !is_variable_name(name)));
    }
}
