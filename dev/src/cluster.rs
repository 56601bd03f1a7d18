//! A cluster to work with, be it our own control plane or the reader's.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::binaries::{self, Tool};
use crate::kubectl::{self, Kubectl};

/// How long a controller's token lives. No test and no demo takes longer.
const TOKEN_LIFE: &str = "24h";

/// Why a cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// kubectl is missing.
    #[error(transparent)]
    Binaries(#[from] binaries::Error),
    /// kubectl was refused.
    #[error(transparent)]
    Kubectl(#[from] kubectl::Error),
    /// The kubeconfig has no cluster for the context.
    #[error("there is no context {context:?} with a cluster in your kubeconfig; see: kubectl config get-contexts")]
    NoCluster {
        /// The context.
        context: String,
    },
    /// A kubeconfig cannot be written.
    #[error("cannot write {}: {source}; check the directory's owner and free space", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A cluster, as its admin sees it.
#[derive(Debug, Clone)]
pub struct Cluster {
    kubectl: Kubectl,
    directory: PathBuf,
}

impl Cluster {
    /// The cluster of a context in the reader's own kubeconfig. Files go to `directory`.
    /// Blocks while kubectl is built for the first time.
    ///
    /// # Errors
    /// When our kubectl cannot be had.
    pub fn of_context(context: &str, directory: &Path) -> Result<Self, Error> {
        let kubectl = Kubectl {
            binary: binaries::ensure(Tool::Kubectl)?,
            kubeconfig: None,
            context: Some(context.to_owned()),
            namespace: None,
            cache: directory.join("kubectl-cache"),
        };
        Ok(Self { kubectl, directory: directory.to_owned() })
    }

    /// Whether the reader's kubeconfig has the context.
    ///
    /// # Errors
    /// When it has not.
    pub async fn check_context(&self) -> Result<(), Error> {
        let Some(context) = &self.kubectl.context else { return Ok(()) };
        // Not through `--context`, which kubectl checks only when it needs it.
        let all = Kubectl { context: None, ..self.kubectl.clone() };
        let known = all.get(&["config", "get-contexts", "-o", "name"]).await?;
        if known.lines().any(|name| name == context) {
            return Ok(());
        }
        Err(Error::NoCluster { context: context.clone() })
    }

    /// The cluster and user of a kubeconfig of ours.
    #[must_use]
    pub fn of_kubeconfig(binary: PathBuf, kubeconfig: &Path, directory: &Path) -> Self {
        let kubectl = Kubectl {
            binary,
            kubeconfig: Some(kubeconfig.to_owned()),
            context: None,
            namespace: None,
            cache: directory.join("kubectl-cache"),
        };
        Self { kubectl, directory: directory.to_owned() }
    }

    /// kubectl as the cluster's admin, in `namespace` if one is given.
    #[must_use]
    pub fn kubectl(&self, namespace: Option<&str>) -> Kubectl {
        Kubectl { namespace: namespace.map(str::to_owned), ..self.kubectl.clone() }
    }

    /// Where files about this cluster go: kubeconfigs, kubectl's cache.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes a kubeconfig for a `ServiceAccount` that exists, with a token of a day. Asks for a new token each
    /// time.
    ///
    /// # Errors
    /// When there is no such account, or the file cannot be written.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf, Error> {
        let token = self.kubectl(Some(namespace)).get(&["create", "token", name, "--duration", TOKEN_LIFE]).await?;
        let config = self.kubectl.get(&["config", "view", "--minify", "--flatten", "--raw", "-o", "json"]).await?;
        let cluster = serde_json::from_str(&config).ok().and_then(|config: Value| {
            let cluster = config.pointer("/clusters/0/cluster")?;
            cluster.is_object().then(|| cluster.clone())
        });
        let no_cluster = || Error::NoCluster { context: self.kubectl.context.clone().unwrap_or_default() };
        let path = self.directory.join(format!("system-serviceaccount-{namespace}-{name}.kubeconfig"));
        write_kubeconfig(&path, &cluster.ok_or_else(no_cluster)?, &json!({ "token": token }))?;
        Ok(path)
    }
}

/// Writes a kubeconfig (as JSON, which is YAML) of one cluster and one user, readable by its owner only.
///
/// # Errors
/// When the file cannot be written.
pub fn write_kubeconfig(path: &Path, cluster: &Value, user: &Value) -> Result<(), Error> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "clusters": [{ "name": "main", "cluster": cluster }],
        "users": [{ "name": "main", "user": user }],
        "contexts": [{ "name": "main", "context": { "cluster": "main", "user": "main" } }],
    });
    write_private(path, &format!("{config:#}\n"))
}

/// Writes a file that only its owner may read.
///
/// # Errors
/// When the file cannot be written.
pub fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed)
}
