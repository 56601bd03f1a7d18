//! Turns the derived schemas into the CRDs that are shipped: Kubernetes-friendly and without server warnings.

use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    CustomResourceExt,
    core::{Message, Rule},
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::{SandboxCommand, SandboxLease};

/// Why the CRDs could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A derived schema is not what a CRD can hold; the tests keep this from being shipped.
    #[error("a schema cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Likewise.
    #[error("a CRD cannot be written as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
    /// The directory.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
}

/// The CRDs of both kinds as YAML, by file name.
///
/// # Errors
/// See [`WriteError`].
pub fn crds() -> Result<[(&'static str, String); 2], WriteError> {
    let [commands, leases] = shipped_crds()?;
    Ok([
        ("sandboxcommands.yaml", serde_saphyr::to_string(&commands)?),
        ("sandboxleases.yaml", serde_saphyr::to_string(&leases)?),
    ])
}

/// The CRDs of both kinds, of commands and of leases.
///
/// # Errors
/// See [`WriteError::Json`].
pub fn shipped_crds() -> Result<[Value; 2], serde_json::Error> {
    Ok([shipped(&SandboxCommand::crd())?, shipped(&SandboxLease::crd())?])
}

/// Writes the CRDs into a directory, or prints them.
///
/// # Errors
/// See [`WriteError`].
pub fn write_crds(directory: Option<&Path>) -> Result<(), WriteError> {
    let crds = crds()?;
    let Some(directory) = directory else {
        let documents: Vec<&str> = crds.iter().map(|(_, yaml)| yaml.as_str()).collect();
        print!("{}", documents.join("---\n"));
        return Ok(());
    };
    for (name, yaml) in crds {
        let path = directory.join(name);
        std::fs::write(&path, yaml).map_err(|e| WriteError::File(path, e))?;
    }
    Ok(())
}

fn shipped(crd: &CustomResourceDefinition) -> Result<Value, serde_json::Error> {
    let mut crd = serde_json::to_value(crd)?;
    tidy(&mut crd);
    // kstatus calls an object without observedGeneration Current; -1 from the very first read makes it InProgress.
    if let Some(status) = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/status") {
        status["default"] = serde_json::json!({ "observedGeneration": -1 });
    }
    Ok(crd)
}

/// `Option<T>` derives as nullable, but we never write null, and a user's null means "not said".
fn tidy(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("nullable");
            if let Some(Value::Array(values)) = map.get_mut("enum") {
                values.retain(|v| !v.is_null());
            }
            // Doc comments are wrapped for the source; kubectl explain wraps by itself.
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// The rule that a field stays as it was created; presence counts, since absent fields cannot be compared.
pub(super) fn immutable(field: &str) -> Rule {
    let rule =
        format!("has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})");
    let message = format!("{field} is immutable: a command runs once; create another with a new name");
    Rule::new(rule).message(Message::Message(message)).field_path(format!(".{field}"))
}

/// The rule that a field of an optional struct stays as it was created, whether or not the struct is there.
pub(super) fn immutable_in(parent: &str, field: &str) -> Rule {
    let (now, before) = (format!("self.{parent}"), format!("oldSelf.{parent}"));
    let there = |of: &str| format!("(has({of}) && has({of}.{field}))");
    let (there_now, there_before) = (there(&now), there(&before));
    let rule = format!("{there_now} == {there_before} && (!{there_now} || {now}.{field} == {before}.{field})");
    let message = format!("{parent}.{field} is immutable: create another lease");
    Rule::new(rule).message(Message::Message(message))
}

/// `metav1.Condition` with its bounds, as a list map by type.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "description": "Current state in the standard form; `kubectl wait --for=condition=TYPE` reads it.",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One aspect of the current state.",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": { "type": "string", "description": "Aspect, in CamelCase.", "minLength": 1, "maxLength": 316 },
                "status": { "type": "string", "description": "True, False or Unknown.", "enum": ["True", "False", "Unknown"] },
                "reason": {
                    "type": "string", "description": "Why, as one CamelCase word for programs.",
                    "minLength": 1, "maxLength": 256, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
                },
                "message": { "type": "string", "description": "Why, for a person, and what to do next.", "maxLength": 4096 },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time", "description": "When `status` last changed."
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "metadata.generation that the condition was computed for."
                }
            }
        }
    })
}

/// A point in time, RFC 3339.
pub(super) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// A point in time that a user chooses: one that every clock can show.
pub(super) fn chosen_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "format": "date-time",
        "maxLength": 40,
        "pattern": "^[1-8][0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-][01][0-9]:[0-5][0-9])$"
    })
}
