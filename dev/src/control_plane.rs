//! A real Kubernetes control plane on the loopback address, without nodes: etcd, kube-apiserver with RBAC, and
//! the few built-in controllers that the API's own promises need.

mod certificates;
mod ground;

use std::path::{Path, PathBuf};

use crate::binaries::{self, Tool};
use crate::cluster::{self, Cluster};
use crate::kubectl::{self, Kubectl};
use crate::supervise::{self, Supervised};
use crate::wait;
use certificates::Authority;
use ground::{Ground, user_kubeconfig};

/// Between choosing a free port and listening on it, another process may take it.
const ATTEMPTS: u32 = 3;

/// Why there is no control plane.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A binary is missing.
    #[error(transparent)]
    Binaries(#[from] binaries::Error),
    /// A program cannot be started.
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
    /// A file cannot be written, or the cluster does not answer as it should.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// kubectl was refused.
    #[error(transparent)]
    Kubectl(#[from] kubectl::Error),
    /// The directory or a port cannot be had.
    #[error("cannot prepare the control plane in {}: {source}; check its owner and free space", directory.display())]
    Prepare {
        /// The control plane's directory.
        directory: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A certificate cannot be made.
    #[error("cannot make certificates: {0}; please report this as a bug")]
    Certificates(#[from] rcgen::Error),
    /// The HTTPS client for the readiness check cannot be made.
    #[error("cannot make an HTTPS client: {0}; please report this as a bug")]
    Client(#[from] reqwest::Error),
    /// A program of the control plane ended.
    #[error("{name} ended; the end of its log {}:\n{tail}", log.display())]
    Ended {
        /// The program.
        name: &'static str,
        /// Its whole log.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
    /// The apiserver did not become ready.
    #[error("{timed_out}; the end of its log {}:\n{tail}", log.display())]
    NotReady {
        /// What was awaited.
        timed_out: wait::TimedOut,
        /// The apiserver's log.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
    /// Making the binaries panicked.
    #[error("a background task failed: {0}; please report this as a bug")]
    Task(#[from] tokio::task::JoinError),
}

/// A running control plane. It ends when this is dropped or this process ends, however it ends.
pub struct ControlPlane {
    // In the order in which they end on drop.
    controllers: Supervised,
    apiserver: Supervised,
    etcd: Supervised,
    /// Removes the files when all else has ended.
    keeper: Supervised,
    ground: Ground,
    server: String,
    kubeconfig: PathBuf,
    cluster: Cluster,
}

fn prepare_in(directory: &Path, source: std::io::Error) -> Error {
    Error::Prepare { directory: directory.to_owned(), source }
}

impl ControlPlane {
    /// Starts a control plane whose files are in `directory`, which is made if need be, and waits until it is
    /// ready. The first call on a machine builds its programs, which takes minutes.
    ///
    /// # Errors
    /// When a program is missing, ends, or is not ready in time; each says what to look at.
    pub async fn start(directory: &Path) -> Result<Self, Error> {
        Self::start_in(directory, false).await
    }

    /// As [`Self::start`], in a directory of its own that is removed with it, even when this process is killed.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_temporary() -> Result<Self, Error> {
        let folder = tempfile::Builder::new().prefix("control-plane-").tempdir();
        let folder = folder.map_err(|source| Error::Prepare { directory: std::env::temp_dir(), source })?;
        let plane = Self::start_in(folder.path(), true).await?;
        // From here on it is the store's supervisor who removes it.
        let _ = folder.keep();
        Ok(plane)
    }

    async fn start_in(directory: &Path, temporary: bool) -> Result<Self, Error> {
        let binaries = tokio::task::spawn_blocking(|| {
            let [etcd, apiserver, controllers, kubectl] =
                [Tool::Etcd, Tool::KubeApiserver, Tool::KubeControllerManager, Tool::Kubectl].map(binaries::ensure);
            Ok::<_, binaries::Error>([etcd?, apiserver?, controllers?, kubectl?])
        });
        let binaries = binaries.await??;
        let prepare = |source| prepare_in(directory, source);
        std::fs::create_dir_all(directory.join("etcd")).map_err(prepare)?;
        let directory = directory.canonicalize().map_err(prepare)?;
        let ground = Ground { directory, temporary, binaries, authority: Authority::new()? };
        ground.write_keys()?;
        let keeper = ground.start_keeper()?;
        let etcd = ground.start_etcd()?;
        let mut attempt = 1;
        loop {
            let port = ground::free_port().map_err(|source| prepare_in(&ground.directory, source))?;
            match ground.start_apiserver(port).await {
                Ok((apiserver, server)) => return ground.finish([etcd, keeper], apiserver, server).await,
                Err(Error::Ended { tail, .. }) if attempt < ATTEMPTS && tail.contains("address already in use") => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The cluster as its admin sees it.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// kubectl as the cluster's admin, in `namespace` if one is given.
    #[must_use]
    pub fn kubectl(&self, namespace: Option<&str>) -> Kubectl {
        self.cluster.kubectl(namespace)
    }

    /// The kubeconfig of the cluster's admin, who has a client certificate of the group `system:masters`.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The apiserver's URL.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Where certificates, kubeconfigs and logs are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.ground.directory
    }

    /// Writes a kubeconfig with a client certificate for any user, perhaps in a group.
    ///
    /// # Errors
    /// When the certificate or the file cannot be made.
    pub fn user_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<PathBuf, Error> {
        user_kubeconfig(&self.ground.authority, &self.ground.directory, &self.server, user, group)
    }

    /// Kills the apiserver, has `meanwhile` done without it, and starts it again where it was.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn without_apiserver(&mut self, meanwhile: impl Future<Output = ()>) -> Result<(), Error> {
        self.apiserver.kill().await?;
        meanwhile.await;
        let port = self.server.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default();
        self.apiserver = self.ground.start_apiserver(port).await?.0;
        Ok(())
    }

    /// Kills the store, has `meanwhile` done without it, and starts it again with what it has kept.
    ///
    /// # Errors
    /// When the apiserver does not find it again.
    pub async fn without_etcd(&mut self, meanwhile: impl Future<Output = ()>) -> Result<(), Error> {
        self.etcd.kill().await?;
        meanwhile.await;
        self.etcd = self.ground.start_etcd()?;
        self.ground.until_ready(&mut self.apiserver, &self.server).await
    }

    /// Ends all three programs, the store last, and waits for it. Dropping does not wait.
    ///
    /// # Errors
    /// When a supervisor is lost.
    pub async fn stop(mut self) -> Result<(), Error> {
        for program in [&mut self.controllers, &mut self.apiserver, &mut self.etcd, &mut self.keeper] {
            program.terminate().await?;
        }
        Ok(())
    }
}
