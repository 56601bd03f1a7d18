//! Whether the cluster has the CRDs that this version was made for. Helm does not upgrade them, and the apiserver drops
//! in silence what a CRD does not know: an intent that is not kept would be recorded for ever.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use serde_json::Value;

use crate::api::shipped_crds;

/// Fields that are named when some are missing.
const NAMED: usize = 3;

/// Why it cannot be said whether they are there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Kubernetes API.
    #[error("the CRDs cannot be looked at: {0}")]
    Kube(#[from] kube::Error),
    /// A schema that is no JSON.
    #[error("a CRD cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

impl Error {
    /// Whether the account may not look at CRDs.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if status.is_forbidden())
    }
}

/// What of the CRDs is missing, and what to do; `None`: nothing.
///
/// # Errors
/// When that cannot be said.
pub async fn lacking(client: &Client) -> Result<Option<String>, Error> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let mut lacks = Vec::new();
    for wanted in shipped_crds()? {
        let name = wanted.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let Some(served) = api.get_opt(name).await? else {
            lacks.push(format!("{name} is not installed"));
            continue;
        };
        let missing = missing(&wanted, &serde_json::to_value(&served)?);
        if let Some(named) = missing.get(..NAMED.min(missing.len())).filter(|named| !named.is_empty()) {
            let more = missing.len() - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            lacks.push(format!("{name} lacks {}{more}", named.join(", ")));
        }
    }
    let todo = "apply the CRDs of this version: daytona-controller crds | kubectl apply --server-side -f -";
    Ok((!lacks.is_empty()).then(|| format!("{}; {todo}", lacks.join("; "))))
}

/// The fields of a CRD that another one of the same kind does not have.
fn missing(wanted: &Value, served: &Value) -> Vec<String> {
    let versions = |crd: &Value| crd.pointer("/spec/versions").and_then(Value::as_array).cloned().unwrap_or_default();
    let served = versions(served);
    let mut missing = Vec::new();
    for version in versions(wanted) {
        match served.iter().find(|other| other.get("name") == version.get("name")) {
            Some(other) => {
                let schema = |version: &Value| version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_default();
                fields(&schema(&version), &schema(other), "", &mut missing);
            }
            None => {
                missing.push(format!("version {}", version.get("name").and_then(Value::as_str).unwrap_or_default()));
            }
        }
    }
    missing
}

fn fields(wanted: &Value, served: &Value, path: &str, missing: &mut Vec<String>) {
    let keeps_all = served.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    for (name, field) in wanted.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match served.get("properties").and_then(|properties| properties.get(name)) {
            Some(other) => fields(field, other, &path, missing),
            None if keeps_all => {}
            None => missing.push(path),
        }
    }
    for (inner, mark) in [("items", "[]"), ("additionalProperties", ".*")] {
        if let (Some(wanted), Some(served)) = (wanted.get(inner), served.get(inner)) {
            fields(wanted, served, &format!("{path}{mark}"), missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_version_of_a_crd_does_not_know_is_named() {
        for crd in shipped_crds().unwrap() {
            assert_eq!(missing(&crd, &crd), Vec::<String>::new());
            let mut old = crd.clone();
            let schema = old.pointer_mut("/spec/versions/0/schema/openAPIV3Schema").unwrap();
            schema.pointer_mut("/properties/status/properties").unwrap().as_object_mut().unwrap().remove("state");
            let condition = "/properties/status/properties/conditions/items/properties";
            schema.pointer_mut(condition).unwrap().as_object_mut().unwrap().remove("observedGeneration");
            let expected = missing(&crd, &old);
            assert!(expected.contains(&"status.conditions[].observedGeneration".to_owned()), "{expected:?}");
            old["spec"]["versions"][0]["name"] = "v1alpha0".into();
            assert_eq!(missing(&crd, &old), ["version v1alpha1"]);
        }
    }
}
