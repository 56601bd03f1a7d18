//! Puts into a cluster what the controller needs to run beside it: the CRDs, and of the chart the account and
//! its rights. The Deployment is left out, since the controller runs here as a process.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::binaries::{self, Tool};
use crate::cluster::{self, Cluster};
use crate::{kubectl, supervise};

/// What is applied of the rendered chart, and whether the kind lives in a namespace.
const KINDS: [(&str, bool); 5] = [
    ("ServiceAccount", true),
    ("Role", true),
    ("RoleBinding", true),
    ("ClusterRole", false),
    ("ClusterRoleBinding", false),
];

/// Why the controller was not installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// helm is missing.
    #[error(transparent)]
    Binaries(#[from] binaries::Error),
    /// The cluster refused.
    #[error(transparent)]
    Kubectl(#[from] kubectl::Error),
    /// The account has no token.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// helm cannot be tied to this process.
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
    /// helm did not run.
    #[error("cannot run helm: {0}; remove it from the cache to have it built again")]
    NotRun(std::io::Error),
    /// The chart does not render.
    #[error("helm cannot render {}: {stderr}", chart.display())]
    Render {
        /// The chart's directory.
        chart: PathBuf,
        /// What helm said.
        stderr: String,
    },
    /// What helm printed is no YAML.
    #[error("helm's output is no YAML: {reason}; see: helm template {}", chart.display())]
    Yaml {
        /// The chart's directory.
        chart: PathBuf,
        /// Where the parser gave up.
        reason: String,
    },
    /// The rendered chart has not exactly one account.
    #[error("the chart renders {0} ServiceAccounts, but the controller runs as exactly one")]
    Accounts(usize),
}

/// The workspace's directory, with `crds/`, `charts/` and `examples/`.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."))
}

/// Applies all CRDs in `directory` and waits until the apiserver serves them. Gives what kubectl printed;
/// a warning in it means a CRD that the apiserver is not happy with.
///
/// # Errors
/// When the apiserver refuses one.
pub async fn crds(cluster: &Cluster, directory: &Path) -> Result<kubectl::Output, Error> {
    let (kubectl, directory) = (cluster.kubectl(None), directory.display().to_string());
    let output = kubectl.run(&["apply", "--server-side", "--force-conflicts", "-f", &directory]).await?;
    kubectl.run(&["wait", "--for=condition=Established", "--timeout=60s", "-f", &directory]).await?;
    Ok(output)
}

/// Which controller to install, and where.
#[derive(Debug)]
pub struct Release<'a> {
    /// The chart's directory.
    pub chart: &'a Path,
    /// The release's name; one per controller in a cluster, for the names of cluster-wide objects.
    pub name: &'a str,
    /// The controller's own namespace, which has to exist.
    pub namespace: &'a str,
    /// The chart's values.
    pub values: Value,
}

impl Release<'_> {
    /// All objects of the chart.
    /// Blocks while helm is built for the first time.
    ///
    /// # Errors
    /// When helm is missing or the chart does not render.
    pub async fn render(&self, cluster: &Cluster) -> Result<Vec<Value>, Error> {
        let helm = tokio::task::spawn_blocking(|| binaries::ensure(Tool::Helm));
        let helm = helm.await.map_err(|error| Error::NotRun(error.into()))??;
        let mut command = supervise::tied(&helm)?;
        command.args(["template", self.name]).arg(self.chart);
        command.args(["--namespace", self.namespace, "--kube-version", "1.36", "--values", "-"]);
        // Nothing of the reader's own helm is read or written.
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, cluster.directory().join("helm"));
        }
        let output = supervise::output(command, &self.values.to_string()).await.map_err(Error::NotRun)?;
        let chart = || self.chart.to_owned();
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Error::Render { chart: chart(), stderr });
        }
        serde_saphyr::from_multiple(&String::from_utf8_lossy(&output.stdout))
            .map_err(|error| Error::Yaml { chart: chart(), reason: error.to_string() })
    }

    /// Applies the account and its rights, and gives a kubeconfig with which the controller is that account.
    ///
    /// # Errors
    /// When the chart does not render, or the apiserver refuses an object.
    pub async fn install(&self, cluster: &Cluster) -> Result<PathBuf, Error> {
        let objects = self.rights(self.render(cluster).await?);
        let accounts: Vec<_> = objects.iter().filter(|object| kind(object) == "ServiceAccount").collect();
        let [account] = accounts.as_slice() else {
            return Err(Error::Accounts(accounts.len()));
        };
        let text = |pointer| account.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        cluster.kubectl(None).apply(&list.to_string()).await?;
        Ok(cluster.service_account_kubeconfig(&namespace, &name).await?)
    }

    /// Deletes what [`Self::install`] applied.
    ///
    /// # Errors
    /// When the chart does not render, or the apiserver refuses.
    pub async fn uninstall(&self, cluster: &Cluster) -> Result<(), Error> {
        let objects = self.rights(self.render(cluster).await?);
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let call = ["delete", "--ignore-not-found", "-f", "-"];
        cluster.kubectl(None).run_with_input(&call, &list.to_string()).await?;
        Ok(())
    }

    /// Of all objects those that give rights, each with its namespace.
    fn rights(&self, mut objects: Vec<Value>) -> Vec<Value> {
        objects.retain(|object| KINDS.iter().any(|(name, _)| kind(object) == *name));
        for object in &mut objects {
            let namespaced = KINDS.iter().any(|(name, namespaced)| *namespaced && kind(object) == *name);
            let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
            if let (true, Some(metadata)) = (namespaced, metadata) {
                metadata.entry("namespace").or_insert_with(|| self.namespace.into());
            }
        }
        objects
    }
}

fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}
