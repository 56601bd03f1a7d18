//! Names for calls and objects that are the same in every run.
//!
//! What differs from run to run are UIDs, the ids of sandboxes, and the namespace. A UID stands for the object that was
//! created under it (`fails`), a sandbox for its place in the order in which sandboxes came (`sandbox 1`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::Method;
use regex_lite::{Captures, Regex};
use serde_json::Value;

use crate::local_daytona::routes;
use crate::proxy::{Name, Naming};

/// Operations of the runner that wait.
const HELD: [&str; 2] = ["wait ", "start "];

/// What is known in one run.
#[derive(Debug)]
pub struct Names {
    uid: Regex,
    attempt: Regex,
    upload: Regex,
    namespace: String,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    objects: HashMap<String, String>,
    sandboxes: Vec<String>,
}

impl Names {
    /// Nothing is known yet but the namespace, after which objects of the cluster may be called.
    ///
    /// # Errors
    /// Never: its patterns are fixed.
    pub fn new(namespace: &str) -> Result<Arc<Self>, regex_lite::Error> {
        Ok(Arc::new(Self {
            // A digest in a name is of such a thing.
            uid: Regex::new("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")?,
            // What the runner is asked to do, and of which attempt; a start carries a wait behind it.
            attempt: Regex::new(r"runner-[0-9a-f]+\.sh'? ([a-z]+)(?: '?([0-9a-f-]{36}-\d+)'?)?")?,
            upload: Regex::new(r"/(input/[0-9a-f-]{36}-\d+|files/stage)/")?,
            namespace: namespace.to_owned(),
            known: Mutex::default(),
        }))
    }

    /// An object was created under this UID.
    pub fn created(&self, uid: &str, name: &str) {
        self.known().objects.insert(uid.to_owned(), name.to_owned());
    }

    /// The text with the names of what its UIDs stand for, and without the namespace that it may begin with.
    #[must_use]
    pub fn told(&self, text: &str) -> String {
        let known = self.known();
        let name = |found: &Captures<'_>| {
            let uid = found.get(0).map_or("", |all| all.as_str());
            known.objects.get(uid).cloned().unwrap_or_else(|| "{uid}".to_owned())
        };
        let told = self.uid.replace_all(text, name);
        match told.strip_prefix(&self.namespace) {
            Some(rest) if rest.is_empty() || rest.starts_with('-') => format!("{{namespace}}{rest}"),
            _ => told.into_owned(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sandbox(&self, id: &str) -> String {
        let sandboxes = &mut self.known().sandboxes;
        let place = sandboxes.iter().position(|known| known == id).unwrap_or_else(|| {
            sandboxes.push(id.to_owned());
            sandboxes.len() - 1
        });
        format!("sandbox {}", place + 1)
    }

    /// What a text is to do in a sandbox: the runner's operation and its attempt.
    fn operation(&self, text: &str) -> String {
        let Some(found) = self.attempt.captures(text) else {
            return if text.contains("dtc1 workspace ready") { "set up" } else { "other" }.to_owned();
        };
        let part = |place| found.get(place).map_or("", |part: regex_lite::Match<'_>| part.as_str());
        format!("{} {}", part(1), self.told(part(2))).trim_end().to_owned()
    }
}

/// Whether a call to Daytona about this may be held for a command's end.
#[must_use]
pub fn may_be_held(object: &str) -> bool {
    object.split(", ").any(|part| HELD.iter().any(|operation| part.starts_with(operation)))
}

/// Names the calls to Daytona.
#[derive(Debug, Clone)]
pub struct ToDaytona(pub Arc<Names>);

impl Naming for ToDaytona {
    fn reads_body(&self, method: &Method, path: &str) -> bool {
        method == Method::POST && path.starts_with("/toolbox/")
    }

    fn name(&self, method: &Method, path: &str, body: &[u8]) -> Name {
        let Self(names) = self;
        let route = routes::name(path);
        let mut told: Vec<String> = Vec::new();
        // A sandbox is read by its name before its id is known.
        if let Some(id) = route.sandbox.as_deref().filter(|_| method != Method::GET) {
            told.push(names.sandbox(id));
        }
        told.extend(route.session.as_deref().map(|id| format!("session {}", names.told(id))));
        if route.pattern.ends_with("/files/bulk-upload") {
            let body = String::from_utf8_lossy(body);
            told.extend(names.upload.captures(&body).and_then(|found| Some(names.told(found.get(1)?.as_str()))));
        } else if let Ok(Value::Object(body)) = serde_json::from_slice::<Value>(body) {
            let text = |field: &str| body.get(field).and_then(Value::as_str);
            told.extend(text("sessionId").map(|id| format!("session {}", names.told(id))));
            told.extend(text("command").map(|text| names.operation(text)));
        }
        Name { route: route.pattern, object: told.join(", ") }
    }

    /// The runner waits for a command's end, after its start too. All else is answered when it is done.
    fn may_be_held(&self, name: &Name) -> bool {
        may_be_held(&name.object)
    }
}

/// Names the calls to the Kubernetes API.
#[derive(Debug, Clone)]
pub struct ToKubernetes(pub Arc<Names>);

impl Naming for ToKubernetes {
    fn reads_body(&self, method: &Method, _: &str) -> bool {
        method == Method::POST
    }

    fn name(&self, method: &Method, path: &str, body: &[u8]) -> Name {
        let Self(names) = self;
        let mut segments = path.split('/').skip(1);
        let mut route = String::new();
        let groups = if path.starts_with("/apis/") { 3 } else { 2 };
        for segment in segments.by_ref().take(groups) {
            route = route + "/" + segment;
        }
        let mut rest: Vec<&str> = segments.collect();
        // The namespace itself is an object like any other.
        if let ["namespaces", _, resource, ..] = *rest {
            route += "/namespaces/{namespace}/";
            route += resource;
            rest.drain(..3);
        } else if !rest.is_empty() {
            route = route + "/" + rest.remove(0);
        }
        let mut object = String::new();
        if let [name, below @ ..] = &*rest {
            object = names.told(name);
            route += "/{name}";
            for segment in below {
                route = route + "/" + segment;
            }
        } else if method == Method::POST {
            let body: Value = serde_json::from_slice(body).unwrap_or_default();
            object = names.told(body.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default());
        }
        Name { route, object }
    }

    fn may_be_held(&self, _: &Name) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6b9f486b-ba6f-4e48-82f2-54933e367ceb";

    fn names() -> Arc<Names> {
        let names = Names::new("ns-7").unwrap();
        names.created(UID, "one");
        names
    }

    #[test]
    fn a_call_to_daytona_is_named_by_what_it_is_about() {
        let naming = ToDaytona(names());
        let name = |path: &str, body: &str| {
            let Name { route, object } = naming.name(&Method::POST, path, body.as_bytes());
            format!("{route}: {object}")
        };
        let execute =
            |text: &str| name("/toolbox/x/process/execute", &serde_json::json!({ "command": text }).to_string());
        let route = "/toolbox/{sandbox}/process/execute: sandbox 1";
        let runner = format!("exec sh '/home/u/.daytona-controller/{UID}/runner-0a1b.sh'");
        assert_eq!(execute(&format!("{runner} wait '{UID}-1' 'm' 1 2 20")), format!("{route}, wait one-1"));
        assert_eq!(execute(&format!("{runner} mark '{UID}-w1'")), format!("{route}, mark"));
        assert_eq!(execute("echo 'dtc1 workspace ready'"), format!("{route}, set up"));
        assert_eq!(
            name(&format!("/toolbox/y/process/session/{UID}-s1/exec"), "{}"),
            "/toolbox/{sandbox}/process/session/{session}/exec: sandbox 2, session one-s1"
        );
        assert_eq!(
            name("/toolbox/x/files/bulk-upload", &format!("--b\r\n\r\n/h/{UID}/input/{UID}-2/stdin\r\n")),
            "/toolbox/{sandbox}/files/bulk-upload: sandbox 1, input/one-2"
        );
        assert_eq!(name("/api/sandbox", "{}"), "/api/sandbox: ");
    }

    #[test]
    fn only_what_waits_for_a_command_may_be_held() {
        let naming = ToDaytona(names());
        let held = |operation: &str| {
            let command =
                format!("exec sh '/home/u/.daytona-controller/{UID}/runner-0a1b.sh' {operation} '{UID}-1' 'm'");
            let body = serde_json::json!({ "command": command }).to_string();
            naming.may_be_held(&naming.name(&Method::POST, "/toolbox/x/process/execute", body.as_bytes()))
        };
        assert_eq!(["wait", "start", "kill", "fence", "mark"].map(held), [true, true, false, false, false]);
    }

    #[test]
    fn a_call_to_kubernetes_is_named_without_its_namespace() {
        let naming = ToKubernetes(names());
        let name = |method, path: &str, body: &str| {
            let Name { route, object } = naming.name(&method, path, body.as_bytes());
            format!("{route}: {object}")
        };
        assert_eq!(
            name(Method::PATCH, "/apis/g.dev/v1/namespaces/ns-7/things/one/status", ""),
            "/apis/g.dev/v1/namespaces/{namespace}/things/{name}/status: one"
        );
        let made = format!(r#"{{"metadata":{{"name":"{UID}-stdout"}}}}"#);
        assert_eq!(
            name(Method::POST, "/api/v1/namespaces/ns-7/configmaps", &made),
            "/api/v1/namespaces/{namespace}/configmaps: one-stdout"
        );
        let copy = format!("/api/v1/namespaces/ns-7/secrets/copy-{}", UID.replace('-', ""));
        assert_eq!(name(Method::DELETE, &copy, ""), "/api/v1/namespaces/{namespace}/secrets/{name}: copy-{uid}");
        assert_eq!(name(Method::GET, "/api/v1/namespaces/ns-7", ""), "/api/v1/namespaces/{name}: {namespace}");
        let claim = "/apis/coordination.k8s.io/v1/namespaces/ns-7-home/leases/ns-7-controller";
        let told = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}: {namespace}-controller";
        assert_eq!(name(Method::PUT, claim, ""), told);
    }
}
