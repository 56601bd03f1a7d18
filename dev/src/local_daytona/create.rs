//! The body of a create: what may be asked for, and in which words the rest is refused.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::problem::Problem;

/// Unknown fields are ignored, as the service does.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Create {
    pub(super) name: Option<String>,
    pub(super) snapshot: Option<String>,
    pub(super) user: Option<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) labels: BTreeMap<String, Value>,
    pub(super) public: bool,
    pub(super) network_block_all: bool,
    pub(super) network_allow_list: Option<String>,
    pub(super) domain_allow_list: Option<String>,
    pub(super) target: Option<String>,
    pub(super) cpu: Option<u32>,
    pub(super) gpu: Option<u32>,
    pub(super) gpu_type: Vec<Value>,
    pub(super) memory: Option<u32>,
    pub(super) disk: Option<u32>,
    pub(super) auto_stop_interval: Option<i64>,
    pub(super) auto_archive_interval: Option<i64>,
    pub(super) auto_delete_interval: Option<i64>,
    pub(super) auto_pause_interval: Option<i64>,
    pub(super) ttl_minutes: Option<i64>,
    pub(super) volumes: Vec<Value>,
    pub(super) build_info: Option<BuildInfo>,
    pub(super) linked_sandbox: Option<String>,
}

/// What an image is to be built from.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct BuildInfo {
    pub(super) dockerfile_content: Option<String>,
    pub(super) context_hashes: Option<Vec<String>>,
}

/// What a field has to be, and how its absence of that is told.
type Kind = (fn(&Value) -> bool, &'static str);

const TEXT: Kind = (Value::is_string, "must be a string");
const OBJECT: Kind = (Value::is_object, "must be an object");
const TRUTH: Kind = (Value::is_boolean, "must be a boolean value");
const NUMBER: Kind = (Value::is_number, "must be a number conforming to the specified constraints");
const ARRAY: Kind = (Value::is_array, "must be an array");

const FIELDS: [(Kind, &[&str]); 5] = [
    (TEXT, &["name", "snapshot", "user", "networkAllowList", "domainAllowList", "target", "linkedSandbox"]),
    (OBJECT, &["env", "labels", "buildInfo"]),
    (TRUTH, &["public", "networkBlockAll"]),
    (
        NUMBER,
        &[
            "cpu",
            "gpu",
            "memory",
            "disk",
            "autoStopInterval",
            "autoArchiveInterval",
            "autoDeleteInterval",
            "autoPauseInterval",
            "ttlMinutes",
        ],
    ),
    (ARRAY, &["gpuType", "volumes"]),
];

impl Create {
    /// Reads a body; all that is wrong with its fields is said at once.
    pub(super) fn parse(mut body: Map<String, Value>) -> Result<Self, Problem> {
        body.retain(|_, value| !value.is_null());
        let mut wrong = Vec::new();
        for ((fits, words), names) in FIELDS {
            for name in names {
                if body.get(*name).is_some_and(|value| !fits(value)) {
                    wrong.push(format!("{name} {words}"));
                }
            }
        }
        for name in ["cpu", "gpu", "memory", "disk"] {
            if body.get(name).and_then(Value::as_f64).is_some_and(|number| number < 0.0) {
                wrong.push(format!("{name} must not be less than 0"));
            }
        }
        if body.get("gpu").and_then(Value::as_f64).is_some_and(|number| number > 1.0) {
            wrong.push("gpu must not be greater than 1".to_owned());
        }
        if body.get("name").and_then(Value::as_str).is_some_and(|name| !is_safe(name)) {
            wrong.push("name must not contain HTML tags, URLs, or control characters".to_owned());
        }
        if !wrong.is_empty() {
            return Err(Problem::bad_request(wrong.join(", ")));
        }
        let given: Self =
            serde_json::from_value(body.into()).map_err(|error| Problem::bad_request(error.to_string()))?;
        given.check().map_or(Ok(given), |message| Err(Problem::bad_request(message)))
    }

    /// What cannot be asked for together, or at all.
    fn check(&self) -> Option<&'static str> {
        let negative = |minutes: Option<i64>| minutes.is_some_and(|minutes| minutes < 0);
        let set = |number: Option<u32>| number.is_some_and(|number| number > 0);
        let resources = [self.cpu, self.gpu, self.memory, self.disk].into_iter().any(set) || !self.gpu_type.is_empty();
        let built = self.build_info.is_some();
        let rules = [
            (built && self.snapshot.is_some(), "Cannot specify a snapshot when using a build info entry"),
            (
                built && self.linked_sandbox.is_some(),
                "linkedSandbox is not supported with declarative builds. Create a sandbox from a snapshot",
            ),
            (!built && resources, "Cannot specify Sandbox resources when using a snapshot"),
            (
                set(self.gpu) && self.auto_delete_interval != Some(0),
                "GPU sandboxes must be ephemeral - set autoDeleteInterval to 0",
            ),
            (negative(self.auto_stop_interval), "Auto-stop interval must be non-negative"),
            (negative(self.auto_archive_interval), "Auto-archive interval must be non-negative"),
            (negative(self.auto_pause_interval), "Auto-pause interval must be non-negative"),
            (negative(self.ttl_minutes), "TTL must be non-negative"),
            (
                self.auto_stop_interval.unwrap_or(0) > 0 && self.auto_pause_interval.unwrap_or(0) > 0,
                "Auto-stop and auto-pause are mutually exclusive",
            ),
        ];
        rules.iter().find(|(broken, _)| *broken).map(|(_, message)| *message)
    }
}

/// No HTML, no URL, no control characters.
fn is_safe(name: &str) -> bool {
    !(name.contains(['<', '>']) || name.contains("://") || name.chars().any(char::is_control))
}
