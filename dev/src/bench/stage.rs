//! What the benchmark runs on: a control plane, a local Daytona and the controller, each as a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use serde_json::{Value, json};

use super::kubernetes::{Namespace, is_true};
use super::{Error, LIMIT, look};
use crate::control_plane::ControlPlane;
use crate::install::{self, Release, workspace};
use crate::local_daytona::{Call, Launch, LocalDaytona};
use crate::programs;
use crate::supervise::{Supervised, log_tail};

/// The namespace that the controller watches.
const NAMESPACE: &str = "bench";
/// The one in which the plain program works; the controller does not look at it.
pub(super) const PLAIN: &str = "bench-plain";
const CONTROLLER_NAMESPACE: &str = "daytona-controller";

pub(super) struct Stage {
    plane: ControlPlane,
    service: Supervised,
    controller: Supervised,
    command: Command,
    log: PathBuf,
    /// The local Daytona.
    pub(super) daytona: LocalDaytona,
    /// The namespace that the controller watches.
    pub(super) namespace: Namespace,
}

impl Stage {
    pub(super) async fn up(directory: &Path) -> Result<Self, Error> {
        let build = |name| tokio::task::spawn_blocking(move || programs::built(name));
        let (controller, service) = (build("daytona-controller").await??, build("local-daytona").await??);
        let plane = ControlPlane::start(&directory.join("control-plane")).await?;
        let (cluster, admin) = (plane.cluster(), plane.kubectl(None));
        install::crds(cluster, &workspace().join("crds")).await?;
        for namespace in [NAMESPACE, PLAIN, CONTROLLER_NAMESPACE] {
            admin.run(&["create", "namespace", namespace]).await?;
        }
        let key = format!("dtn_{}", uuid::Uuid::new_v4().simple());
        let secret = format!("--from-literal=api-key={key}");
        plane.kubectl(Some(NAMESPACE)).run(&["create", "secret", "generic", "daytona", &secret]).await?;
        let launch = Launch::new(&service, &directory.join("daytona"), &key, &directory.join("daytona.url"));
        let (service, daytona) = launch.start(&directory.join("daytona.log")).await?;
        let release = Release {
            chart: &workspace().join("charts/daytona-controller"),
            name: "daytona-controller",
            namespace: CONTROLLER_NAMESPACE,
            values: json!({ "watchNamespaces": [NAMESPACE] }),
        };
        let kubeconfig = release.install(cluster).await?;
        let url = daytona.base_url();
        // As it is shipped: every interval and limit at its default.
        let mut command = Command::new(controller);
        command
            .arg("run")
            .args(["--watch-namespace", NAMESPACE, "--own-namespace", CONTROLLER_NAMESPACE])
            .args(["--daytona-api-url", url, "--health-addr=127.0.0.1:0"])
            .args(["--allow-api-url", &format!("{url}={}", url.trim_end_matches("/api"))])
            .env("KUBECONFIG", kubeconfig);
        let log = directory.join("controller.log");
        let controller = Supervised::spawn(&command, &log)?;
        let namespace = Namespace::connect(&plane, NAMESPACE).await?;
        Ok(Self { plane, service, controller, command, log, daytona, namespace })
    }

    /// Ends the controller and starts another.
    pub(super) async fn restart_controller(&mut self) -> Result<(), Error> {
        self.controller.terminate().await?;
        self.controller = Supervised::spawn(&self.command, &self.log)?;
        Ok(())
    }

    /// The most memory that the controller has held, in MiB.
    pub(super) fn peak_mib(&self) -> Result<f64, Error> {
        let path = PathBuf::from(format!("/proc/{}/status", self.controller.pid()));
        let status = std::fs::read_to_string(&path).map_err(|source| Error::File { path, source })?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
        let kib: f64 = peak.and_then(|peak| peak.parse().ok()).unwrap_or_default();
        Ok(kib / 1024.0)
    }

    /// Waits until so many leases are ready.
    pub(super) async fn until_ready(&self, count: usize) -> Result<(), Error> {
        let ready = |leases: &[DynamicObject]| leases.iter().filter(|lease| is_true(lease, "Ready")).count();
        self.until(&format!("{count} leases to be ready"), |leases| ready(leases) >= count).await
    }

    /// Waits until all leases together say so many commands in this state.
    pub(super) async fn until_counted(&self, state: &str, count: usize) -> Result<(), Error> {
        let pointer = format!("/status/commands/{state}");
        let number = |lease: &DynamicObject| lease.data.pointer(&pointer).and_then(Value::as_u64).unwrap_or_default();
        let what = format!("{count} commands to be {state}");
        self.until(&what, |leases| leases.iter().map(number).sum::<u64>() >= count as u64).await
    }

    async fn until(&self, what: &str, check: impl Fn(&[DynamicObject]) -> bool) -> Result<(), Error> {
        let (leases, start) = (self.namespace.leases(), Instant::now());
        loop {
            // A list from the apiserver's own memory, now and then: it is not what is measured.
            let list = leases.list(&ListParams::default().match_any()).await;
            if list.is_ok_and(|list| check(&list.items)) {
                return Ok(());
            }
            if start.elapsed() > LIMIT {
                eprintln!("The end of the controller's log:\n{}", log_tail(&self.log, 20));
                return Err(Error::Wrong(format!("waited {} s in vain for {what}", LIMIT.as_secs())));
            }
            look().await;
        }
    }

    /// The sandbox of a lease.
    pub(super) async fn sandbox_of(&self, lease: &str) -> Result<String, Error> {
        let lease = self.namespace.leases().get(lease).await?;
        let id = lease.data.pointer("/status/sandbox/id").and_then(Value::as_str);
        id.map(str::to_owned).ok_or_else(|| Error::Wrong(format!("lease {} has no sandbox", lease.name_any())))
    }

    /// The home directory in the sandbox of a lease.
    pub(super) async fn home_of(&self, lease: &str) -> Result<PathBuf, Error> {
        let id = self.sandbox_of(lease).await?;
        let sandbox = self.daytona.sandbox(&id).await?;
        let sandbox = sandbox.ok_or_else(|| Error::Wrong(format!("sandbox {id} is not there")))?;
        Ok(sandbox.dir.join("home/daytona"))
    }

    /// The number of the last call that Daytona has seen.
    pub(super) async fn last_call(&self) -> Result<u64, Error> {
        Ok(self.daytona.calls().await?.last().map_or(0, |call| call.seq))
    }

    pub(super) async fn calls_since(&self, last: u64) -> Result<Vec<Call>, Error> {
        Ok(self.daytona.calls_since(last).await?)
    }

    /// Stops everything, the controller first.
    pub(super) async fn down(mut self) -> Result<(), Error> {
        self.controller.terminate().await?;
        self.service.terminate().await?;
        Ok(self.plane.stop().await?)
    }
}
