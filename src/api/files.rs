//! Files that a lease brings into its sandbox.

#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a private scope")]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sources::{KeyRef, ObjectRef, SourceKind};

/// A file, or, of a whole Secret or `ConfigMap`, a directory with one file per key.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.content), has(self.configMapKeyRef), has(self.secretKeyRef), has(self.configMapRef), has(self.secretRef)].filter(x, x).size() == 1")
        .message("set exactly one of content, configMapKeyRef, secretKeyRef, configMapRef and secretRef")
)]
pub struct FileMapping {
    /// Where it is in the sandbox: absolute, or relative to the sandbox's work directory; for example
    /// `.config/tool.yaml`. With `configMapRef` and `secretRef` a directory, in which each key is a file. Directories
    /// that are missing are made. What else is at the place of a file is replaced; a directory there is not.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/?[^/\x00-\x1f\x7f]+(/[^/\x00-\x1f\x7f]+)*$"))]
    #[x_kube(
        validation = Rule::new("!self.split('/').exists(part, part == '..' || part == '.')")
            .message("path cannot contain the parts . and .."),
        validation = Rule::new("!self.startsWith('~')")
            .message("path: ~ is not expanded; write an absolute path, or one relative to the sandbox's work directory")
    )]
    pub path: String,

    /// `ReadOnly` (the default): it is the lease's; it follows its source, is replaced as a whole, and goes when its key
    /// or this entry goes. `ReadWrite`: it is written once in a sandbox's life and is the user's from then on.
    #[serde(default)]
    pub access: Access,

    /// Permissions of the file or files, octal, for example `"0600"`; the default is `"0644"`. Directories that are made
    /// get `0755`.
    #[serde(default = "default_mode")]
    #[schemars(length(max = 4), regex(pattern = r"^0?[0-7]{3}$"))]
    pub mode: String,

    /// Text, taken as it is; at most 65536 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub content: Option<String>,

    /// A key of a `ConfigMap`, in `data` or `binaryData`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,

    /// A key of a Secret. Its value is a file in the sandbox and nothing else: it stands in no command, log or status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,

    /// All keys of a `ConfigMap`, each as a file in the directory `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ObjectRef>,

    /// All keys of a Secret, each as a file in the directory `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ObjectRef>,
}

fn default_mode() -> String {
    "0644".to_owned()
}

/// Whose a file is.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// The lease's: kept in step with its source.
    #[default]
    ReadOnly,
    /// The user's: written once in a sandbox's life.
    ReadWrite,
}

/// Where the content of a [`FileMapping`] is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSource<'a> {
    /// From the manifest itself.
    Inline(&'a str),
    /// From a key of an object.
    Key(SourceKind, &'a KeyRef),
    /// From all keys of an object.
    Whole(SourceKind, &'a ObjectRef),
}

impl FileMapping {
    /// Where its content is from; nothing at all, which the schema refuses, is an empty text.
    #[must_use]
    pub fn source(&self) -> FileSource<'_> {
        match (&self.secret_key_ref, &self.config_map_key_ref, &self.secret_ref, &self.config_map_ref) {
            (Some(key), ..) => FileSource::Key(SourceKind::Secret, key),
            (_, Some(key), ..) => FileSource::Key(SourceKind::ConfigMap, key),
            (_, _, Some(object), _) => FileSource::Whole(SourceKind::Secret, object),
            (.., Some(object)) => FileSource::Whole(SourceKind::ConfigMap, object),
            (None, None, None, None) => FileSource::Inline(self.content.as_deref().unwrap_or_default()),
        }
    }

    /// Whether it reads this object.
    #[must_use]
    pub fn reads(&self, kind: SourceKind, name: &str) -> bool {
        match self.source() {
            FileSource::Inline(_) => false,
            FileSource::Key(of, key) => of == kind && key.name == name,
            FileSource::Whole(of, object) => of == kind && object.name == name,
        }
    }
}
