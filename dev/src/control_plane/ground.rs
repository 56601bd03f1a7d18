//! The programs of a control plane and the files they share: what to start, with which arguments, in which order.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::certificates::{self, Authority, Identity};
use super::{ControlPlane, Error};
use crate::binaries::Tool;
use crate::cluster::{Cluster, write_kubeconfig, write_private};
use crate::supervise::{Program, Supervised, log_tail};
use crate::wait::until;

/// How far a program's heap may grow before it is collected, in percent of what it holds.
const GARBAGE_PERCENT: &str = "400";

/// How long the apiserver may take to be ready. It takes three seconds on two idle cores.
const READY: Duration = Duration::from_secs(90);
/// Nothing here is worth more grace: all state is thrown away.
const GRACE: Duration = Duration::from_millis(500);
/// `foregroundDeletion`, owner references, a namespace's end, `default` accounts, the roles admin, edit and view.
const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,serviceaccount-controller,\
                           clusterrole-aggregation-controller";
/// What the apiserver calls itself in tokens.
const ISSUER: &str = "https://kubernetes.default.svc";

/// The programs and files that a start needs.
pub(super) struct Ground {
    pub(super) directory: PathBuf,
    /// Whether the directory goes with the last program.
    pub(super) temporary: bool,
    /// etcd, apiserver, controller-manager, kubectl.
    pub(super) binaries: [PathBuf; 4],
    pub(super) authority: Authority,
}

impl Ground {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(super) fn write_keys(&self) -> Result<(), Error> {
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
        // With as little in them as here, the programs would spend a third of their time collecting garbage.
        command.env("GOGC", GARBAGE_PERCENT);
        Ok(Program::new(&command, &self.log(tool)).grace(GRACE).spawn()?)
    }

    fn log(&self, tool: Tool) -> PathBuf {
        self.file(&format!("{}.log", tool.name()))
    }

    /// Does nothing, and is the last to end: its supervisor removes the files then, however this process ends. The store
    /// itself may be started again.
    pub(super) fn start_keeper(&self) -> Result<Supervised, Error> {
        let mut command = Command::new("sh");
        // A moment after the others.
        command.args(["-c", "trap : TERM; sleep infinity & wait; sleep 1"]).current_dir(&self.directory);
        let (log, data) = (self.file("keeper.log"), self.file("etcd"));
        let files = if self.temporary { &self.directory } else { &data };
        Ok(Program::new(&command, &log).grace(10 * GRACE).scratch(files).spawn()?)
    }

    /// On Unix sockets in the directory: no port to collide with, and Secrets only for who may read it.
    pub(super) fn start_etcd(&self) -> Result<Supervised, Error> {
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

    pub(super) async fn start_apiserver(&self, port: u16) -> Result<(Supervised, String), Error> {
        let [_, apiserver, ..] = &self.binaries;
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

    pub(super) async fn until_ready(&self, apiserver: &mut Supervised, server: &str) -> Result<(), Error> {
        let authority = reqwest::Certificate::from_pem(self.authority.certificate().as_bytes())?;
        let client = reqwest::Client::builder()
            .tls_certs_only([authority])
            .no_proxy()
            .timeout(Duration::from_secs(5))
            .build()?;
        let url = format!("{server}/readyz");
        let ready = until("kube-apiserver to be ready", READY, async || match apiserver.ended() {
            Ok(None) => {
                let answer = client.get(&url).send().await.ok()?;
                answer.status().is_success().then_some(Ok(()))
            }
            Ok(Some(_)) => Some(Err(self.ended(Tool::KubeApiserver))),
            Err(error) => Some(Err(error.into())),
        });
        let log = self.log(Tool::KubeApiserver);
        ready
            .await
            .unwrap_or_else(|timed_out| Err(Error::NotReady { timed_out, tail: log_tail(&log, 20), log: log.clone() }))
    }

    fn ended(&self, tool: Tool) -> Error {
        let log = self.log(tool);
        Error::Ended { name: tool.name(), tail: log_tail(&log, 20), log }
    }

    pub(super) async fn finish(
        self,
        [etcd, keeper]: [Supervised; 2],
        apiserver: Supervised,
        server: String,
    ) -> Result<ControlPlane, Error> {
        let [_, _, controllers, kubectl] = &self.binaries;
        let identity = |user, group| user_kubeconfig(&self.authority, &self.directory, &server, user, group);
        let kubeconfig = identity("admin", Some("system:masters"))?;
        let arguments = [
            format!("--kubeconfig={}", identity("system:kube-controller-manager", None)?.display()),
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
        Ok(ControlPlane { controllers, apiserver, etcd, keeper, ground: self, server, kubeconfig, cluster })
    }
}

pub(super) fn user_kubeconfig(
    authority: &Authority,
    directory: &Path,
    server: &str,
    user: &str,
    group: Option<&str>,
) -> Result<PathBuf, Error> {
    // The group tells apart two users of the same name.
    let name = group.map_or_else(|| user.to_owned(), |group| format!("{user}.{group}"));
    let name = name.replace(['/', ':'], "-");
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

pub(super) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
