//! All that runs during the demo, and how it is taken down again.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::examples::Examples;
use super::show::Screen;
use super::{DELETION, Error};
use crate::cluster::Cluster;
use crate::control_plane::ControlPlane;
use crate::install::{self, Release, workspace};
use crate::kubectl::Kubectl;
use crate::local_daytona::{Launch, LocalDaytona};
use crate::programs;
use crate::supervise::{Supervised, log_tail};

/// Where the examples are applied.
const NAMESPACE: &str = "demo";
/// Where the controller's account lives.
const CONTROLLER_NAMESPACE: &str = "daytona-controller";

/// What is running.
pub(super) struct Stage {
    plane: Option<ControlPlane>,
    cluster: Cluster,
    context: Option<String>,
    service: Supervised,
    /// The local Daytona.
    pub(super) daytona: LocalDaytona,
    /// Set once it runs and nobody else waits for it.
    pub(super) controller: Option<Supervised>,
    /// Whether the cluster holds anything of ours.
    touched: bool,
    directory: PathBuf,
}

impl Stage {
    /// Starts the control plane, unless a context of the reader's is used, and the local Daytona.
    pub(super) async fn up(context: Option<&str>, directory: &Path) -> Result<Self, Error> {
        let (plane, cluster) = if let Some(context) = context {
            println!("Using the cluster of context {context}.");
            let (context, files) = (context.to_owned(), directory.to_owned());
            let cluster = tokio::task::spawn_blocking(move || Cluster::of_context(&context, &files)).await??;
            cluster.check_context().await?;
            (None, cluster)
        } else {
            println!("Starting a control plane: etcd, kube-apiserver, kube-controller-manager.");
            let plane = ControlPlane::start(&directory.join("control-plane")).await?;
            println!("Ready: {}", plane.server());
            let cluster = plane.cluster().clone();
            (Some(plane), cluster)
        };
        let (service, daytona) = start_daytona(directory).await?;
        println!("Local Daytona: {}", daytona.base_url());
        Ok(Self {
            plane,
            cluster,
            context: context.map(str::to_owned),
            service,
            daytona,
            controller: None,
            touched: false,
            directory: directory.to_owned(),
        })
    }

    /// Installs CRDs and rights, makes the namespaces and the Secret, and starts the controller.
    pub(super) async fn prepare(&mut self, examples: &Examples) -> Result<Supervised, Error> {
        let binary = tokio::task::spawn_blocking(|| programs::built("daytona-controller")).await??;
        install::crds(&self.cluster, &workspace().join("crds")).await?;
        let admin = self.cluster.kubectl(None);
        // Not `apply`: a namespace that is there already is not ours to delete afterwards.
        admin.run(&["create", "namespace", NAMESPACE]).await?;
        self.touched = true;
        admin.run(&["create", "namespace", CONTROLLER_NAMESPACE]).await?;
        let kubeconfig = release(&workspace().join("charts/daytona-controller")).install(&self.cluster).await?;
        let (name, key) = &examples.secret;
        let key = format!("--from-literal={key}={}", self.daytona.api_key());
        self.kubectl().run(&["create", "secret", "generic", name, &key]).await?;

        let mut command = Command::new(binary);
        let url = self.daytona.base_url();
        let toolbox = url.trim_end_matches("/api");
        command
            .arg("run")
            .args(["--watch-namespace", NAMESPACE, "--own-namespace", CONTROLLER_NAMESPACE, "--daytona-api-url", url])
            .args(["--allow-api-url", &format!("{url}={toolbox}")])
            // So that the table shown at the end is the last word.
            .args(["--health-addr=127.0.0.1:0", "--gauge-interval=200ms"])
            .env("KUBECONFIG", kubeconfig);
        let controller = Supervised::spawn(&command, &self.log("controller"))?;
        println!("Controller: process {}, watching namespace {NAMESPACE}", controller.pid());
        Ok(controller)
    }

    /// kubectl as the admin in the demo's namespace.
    pub(super) fn kubectl(&self) -> Kubectl {
        self.cluster.kubectl(Some(NAMESPACE))
    }

    pub(super) fn screen(&self) -> Screen {
        let context = self.context.as_ref().map(|context| format!(" --context {context}"));
        let prompt = format!("kubectl{} -n {NAMESPACE}", context.unwrap_or_default());
        Screen { kubectl: self.kubectl(), prompt }
    }

    /// The directory of the sandboxes.
    pub(super) fn sandboxes(&self) -> PathBuf {
        self.directory.join("daytona")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }

    /// Shows where things stand and the end of both logs, because something failed.
    pub(super) async fn explain(&self, lines: usize) {
        let screen = self.screen();
        // What cannot be shown is no second failure.
        let _ = screen.run(&["get", "sblease,sbcmd", "-o", "wide"]).await;
        let _ = screen.run(&["get", "events", "--sort-by=.lastTimestamp"]).await;
        for name in ["controller", "local-daytona"] {
            let tail = log_tail(&self.log(name), lines);
            if !tail.is_empty() {
                eprintln!("\n--- the end of the log of {name}:\n{tail}");
            }
        }
    }

    /// Tells how to go on by hand.
    pub(super) fn invite(&self, examples: &Examples) {
        let kubectl = self.kubectl();
        println!("\nIt all runs until Ctrl-C. In another terminal:\n");
        if let Some(plane) = &self.plane {
            println!("  export KUBECONFIG={}", plane.kubeconfig().display());
        }
        match kubectl.binary.parent().filter(|_| kubectl.binary.ends_with("kubectl")) {
            Some(directory) if directory.is_absolute() => println!("  export PATH={}:$PATH", directory.display()),
            _ => println!("  alias kubectl={}", kubectl.binary.display()),
        }
        if self.plane.is_some() {
            println!("  kubectl config set-context --current --namespace={NAMESPACE}");
        }
        let prompt = self.screen().prompt;
        let last = examples.expected.last().map_or("", |expected| &expected.name);
        println!("\nThree commands to try:\n");
        println!("  {prompt} get sblease,sbcmd");
        println!("  {prompt} describe sbcmd {last}");
        println!("  kubectl explain sandboxcommand.spec");
        println!("\nThe controller's log: {}", self.log("controller").display());
    }

    /// Stops everything, the controller first; takes what is ours out of a cluster that goes on living.
    pub(super) async fn down(mut self) -> Result<(), Error> {
        let cleaned = if self.plane.is_none() && self.touched { self.clean().await } else { Ok(()) };
        if let Some(controller) = &mut self.controller {
            controller.terminate().await?;
        }
        self.service.terminate().await?;
        if let Some(plane) = self.plane {
            plane.stop().await?;
        }
        cleaned
    }

    /// While the controller still runs: only it lets go of the leases' finalizers.
    async fn clean(&self) -> Result<(), Error> {
        let (ours, admin) = (self.kubectl(), self.cluster.kubectl(None));
        ours.run(&["delete", "sbcmd,sblease", "--all", DELETION]).await?;
        release(&workspace().join("charts/daytona-controller")).uninstall(&self.cluster).await?;
        admin.run(&["delete", "namespace", NAMESPACE, CONTROLLER_NAMESPACE, DELETION]).await?;
        println!("The CRDs stay. To remove them too: kubectl delete -f crds");
        Ok(())
    }
}

fn release(chart: &Path) -> Release<'_> {
    Release {
        chart,
        name: "daytona-controller",
        namespace: CONTROLLER_NAMESPACE,
        values: json!({ "watchNamespaces": [NAMESPACE] }),
    }
}

async fn start_daytona(directory: &Path) -> Result<(Supervised, LocalDaytona), Error> {
    let binary = tokio::task::spawn_blocking(|| programs::built("local-daytona")).await??;
    let (files, ready) = (directory.join("daytona"), directory.join("local-daytona.url"));
    let key = format!("dtn_{}", uuid::Uuid::new_v4().simple());
    let launch = Launch::new(&binary, &files, &key, &ready);
    Ok(launch.start(&directory.join("local-daytona.log")).await?)
}
