//! A real Kubernetes control plane on the loopback address, without nodes: etcd, kube-apiserver with RBAC, and
//! the few built-in controllers that the API's own promises need.

mod certificates;

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::binaries::{self, Tool};
use crate::cluster::{self, Cluster, write_kubeconfig, write_private};
use crate::kubectl::{self, Kubectl};
use crate::supervise::{self, Program, Supervised, log_tail};
use crate::wait::{self, until};
use certificates::{Authority, Identity};

/// How long the apiserver may take to be ready. It takes three seconds on two idle cores.
const READY: Duration = Duration::from_secs(90);
/// Nothing here is worth more grace: all state is thrown away.
const GRACE: Duration = Duration::from_millis(500);
/// Between choosing a free port and listening on it, another process may take it.
const ATTEMPTS: u32 = 3;
/// `foregroundDeletion`, owner references, a namespace's end, `default` accounts, the roles admin, edit and view.
const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,serviceaccount-controller,\
                           clusterrole-aggregation-controller";
/// What the apiserver calls itself in tokens.
const ISSUER: &str = "https://kubernetes.default.svc";

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
    authority: Authority,
    server: String,
    kubeconfig: PathBuf,
    directory: PathBuf,
    cluster: Cluster,
}

/// The programs and files that a start needs.
struct Ground {
    directory: PathBuf,
    binaries: [PathBuf; 4],
    authority: Authority,
}

impl ControlPlane {
    /// Starts a control plane whose files are in `directory`, which is made if need be, and waits until it is
    /// ready. The first call on a machine builds its programs, which takes minutes.
    ///
    /// # Errors
    /// When a program is missing, ends, or is not ready in time; each says what to look at.
    pub async fn start(directory: &Path) -> Result<Self, Error> {
        let binaries = tokio::task::spawn_blocking(|| {
            let [etcd, apiserver, controllers, kubectl] = [
                Tool::Etcd,
                Tool::KubeApiserver,
                Tool::KubeControllerManager,
                Tool::Kubectl,
            ]
            .map(binaries::ensure);
            Ok::<_, binaries::Error>([etcd?, apiserver?, controllers?, kubectl?])
        });
        let binaries = binaries.await??;
        let prepare = |source| Error::Prepare {
            directory: directory.to_owned(),
            source,
        };
        std::fs::create_dir_all(directory.join("etcd")).map_err(prepare)?;
        let directory = directory.canonicalize().map_err(prepare)?;
        let ground = Ground {
            directory,
            binaries,
            authority: Authority::new()?,
        };
        ground.write_keys()?;
        let etcd = ground.start_etcd()?;
        let mut attempt = 1;
        loop {
            match ground.start_apiserver().await {
                Ok((apiserver, server)) => return ground.finish(etcd, apiserver, server).await,
                Err(Error::Ended { tail, .. })
                    if attempt < ATTEMPTS && tail.contains("address already in use") =>
                {
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
        &self.directory
    }

    /// Writes a kubeconfig with a client certificate for any user, perhaps in a group.
    ///
    /// # Errors
    /// When the certificate or the file cannot be made.
    pub fn user_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<PathBuf, Error> {
        user_kubeconfig(&self.authority, &self.directory, &self.server, user, group)
    }

    /// Ends all three programs, the store last, and waits for it. Dropping does not wait.
    ///
    /// # Errors
    /// When a supervisor is lost.
    pub async fn stop(mut self) -> Result<(), Error> {
        for program in [&mut self.controllers, &mut self.apiserver, &mut self.etcd] {
            program.terminate().await?;
        }
        Ok(())
    }
}

impl Ground {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write_keys(&self) -> Result<(), Error> {
        let server = self.authority.server()?;
        write_private(&self.file("ca.crt"), &self.authority.certificate())?;
        write_private(&self.file("server.crt"), &server.certificate)?;
        write_private(&self.file("server.key"), &server.key)?;
        let [private, public] = certificates::service_account_keys()?;
        write_private(&self.file("service-account.key"), &private)?;
        write_private(&self.file("service-account.pub"), &public)?;
        Ok(())
    }

    fn start(&self, tool: Tool, binary: &Path, arguments: &[String]) -> Result<Supervised, Error> {
        let mut command = Command::new(binary);
        command.args(arguments).current_dir(&self.directory);
        let (log, data) = (self.log(tool), self.file("etcd"));
        let program = Program::new(&command, &log).grace(GRACE);
        let program = if tool == Tool::Etcd {
            program.scratch(&data)
        } else {
            program
        };
        Ok(program.spawn()?)
    }

    fn log(&self, tool: Tool) -> PathBuf {
        self.file(&format!("{}.log", tool.name()))
    }

    /// On Unix sockets in the directory: no port to collide with, and Secrets only for who may read it.
    fn start_etcd(&self) -> Result<Supervised, Error> {
        let [etcd, ..] = &self.binaries;
        let arguments = [
            "--data-dir=etcd",
            "--listen-client-urls=unix://etcd:0",
            "--advertise-client-urls=unix://etcd:0",
            "--listen-peer-urls=unix://etcd-peer:0",
            "--initial-advertise-peer-urls=unix://etcd-peer:0",
            "--initial-cluster=default=unix://etcd-peer:0",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ];
        self.start(Tool::Etcd, etcd, &arguments.map(str::to_owned))
    }

    async fn start_apiserver(&self) -> Result<(Supervised, String), Error> {
        let [_, apiserver, ..] = &self.binaries;
        let port = free_port().map_err(|source| Error::Prepare {
            directory: self.directory.clone(),
            source,
        })?;
        let arguments = [
            "--etcd-servers=unix://etcd:0".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            // No Service has to lead to this server, and the loopback address is not allowed as an endpoint.
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--cert-dir=.".to_owned(),
            "--tls-cert-file=server.crt".to_owned(),
            "--tls-private-key-file=server.key".to_owned(),
            "--client-ca-file=ca.crt".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            format!("--service-account-issuer={ISSUER}"),
            "--service-account-key-file=service-account.pub".to_owned(),
            "--service-account-signing-key-file=service-account.key".to_owned(),
        ];
        let mut running = self.start(Tool::KubeApiserver, apiserver, &arguments)?;
        let server = format!("https://127.0.0.1:{port}");
        self.until_ready(&mut running, &server).await?;
        Ok((running, server))
    }

    async fn until_ready(&self, apiserver: &mut Supervised, server: &str) -> Result<(), Error> {
        let authority = reqwest::Certificate::from_pem(self.authority.certificate().as_bytes())?;
        let client = reqwest::Client::builder()
            .tls_certs_only([authority])
            .no_proxy()
            .timeout(Duration::from_secs(5))
            .build()?;
        let url = format!("{server}/readyz");
        let ready = until("kube-apiserver to be ready", READY, async || {
            match apiserver.ended() {
                Ok(None) => {
                    let answer = client.get(&url).send().await.ok()?;
                    answer.status().is_success().then_some(Ok(()))
                }
                Ok(Some(_)) => Some(Err(self.ended(Tool::KubeApiserver))),
                Err(error) => Some(Err(error.into())),
            }
        });
        let log = self.log(Tool::KubeApiserver);
        ready.await.unwrap_or_else(|timed_out| {
            Err(Error::NotReady {
                timed_out,
                tail: log_tail(&log, 20),
                log: log.clone(),
            })
        })
    }

    fn ended(&self, tool: Tool) -> Error {
        let log = self.log(tool);
        Error::Ended {
            name: tool.name(),
            tail: log_tail(&log, 20),
            log,
        }
    }

    async fn finish(
        self,
        etcd: Supervised,
        apiserver: Supervised,
        server: String,
    ) -> Result<ControlPlane, Error> {
        let [_, _, controllers, kubectl] = &self.binaries;
        let identity = |user, group| user_kubeconfig(&self.authority, &self.directory, &server, user, group);
        let kubeconfig = identity("admin", Some("system:masters"))?;
        let arguments = [
            format!(
                "--kubeconfig={}",
                identity("system:kube-controller-manager", None)?.display()
            ),
            format!("--controllers={CONTROLLERS}"),
            // Each controller with the rights of its own account, as in a real cluster.
            "--use-service-account-credentials".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            // Tests end many namespaces at once.
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
        ];
        let controllers = self.start(Tool::KubeControllerManager, controllers, &arguments)?;
        let cluster = Cluster::of_kubeconfig(kubectl.clone(), &kubeconfig, &self.directory);
        // The namespace itself is made by the apiserver a moment after it is ready.
        for object in ["namespace/default", "serviceaccount/default"] {
            let call = ["wait", "--for=create", object, "--timeout=60s"];
            cluster.kubectl(Some("default")).run(&call).await?;
        }
        let Self {
            directory, authority, ..
        } = self;
        Ok(ControlPlane {
            controllers,
            apiserver,
            etcd,
            authority,
            server,
            kubeconfig,
            directory,
            cluster,
        })
    }
}

fn user_kubeconfig(
    authority: &Authority,
    directory: &Path,
    server: &str,
    user: &str,
    group: Option<&str>,
) -> Result<PathBuf, Error> {
    // A user's name may hold anything; the group tells apart two of the same name.
    let name = format!("user.{user}.{}", group.unwrap_or_default()).replace(['/', ':'], "-");
    let file = |kind: &str| directory.join(format!("{name}.{kind}"));
    let Identity { certificate, key } = authority.client(user, group)?;
    write_private(&file("crt"), &certificate)?;
    write_private(&file("key"), &key)?;
    let user: Value = json!({ "client-certificate": file("crt"), "client-key": file("key") });
    let cluster = json!({ "server": server, "certificate-authority": directory.join("ca.crt") });
    let path = file("kubeconfig");
    write_kubeconfig(&path, &cluster, &user)?;
    Ok(path)
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
