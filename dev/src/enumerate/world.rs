//! What a run stands on: a namespace, a local Daytona, and a controller behind two proxies.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Resource};
use reqwest::Method;
use serde_json::{Value, json};
use url::Url;

use super::names::{Names, ToDaytona, ToKubernetes};
use super::others::{self, Others};
use crate::cluster::{Cluster, write_kubeconfig};
use crate::install::{Release, workspace};
use crate::local_daytona::{Launch, LocalDaytona, SandboxReport, Settings};
use crate::proxy::{Proxy, Upstream};
use crate::supervise::Supervised;

/// How long the controller waits for an answer, of either service.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the controller has a call held that waits for a command's end.
pub const COMMAND_HOLD: Duration = Duration::from_secs(2);

/// The key that the local Daytona accepts.
const KEY: &str = "dtn_0123456789abcdef-the-key-of-the-enumeration";

static WORLDS: AtomicU32 = AtomicU32::new(0);

/// Where worlds are made: a cluster with the CRDs in it, and the two programs.
#[derive(Clone)]
pub struct Ground {
    cluster: Cluster,
    /// The cluster's admin.
    pub(super) client: Client,
    controller: PathBuf,
    daytona: PathBuf,
    scratch: PathBuf,
}

/// A thing that did not go as it should, for a person.
pub type Trouble = String;

/// As [`Trouble`].
pub(super) fn trouble(error: impl fmt::Display) -> Trouble {
    error.to_string()
}

impl Ground {
    /// On a cluster with the CRDs installed, as the admin of this kubeconfig. Files go below `scratch`.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn new(
        cluster: Cluster,
        kubeconfig: &Path,
        programs: [PathBuf; 2],
        scratch: &Path,
    ) -> Result<Self, Trouble> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).map_err(trouble)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.map_err(trouble)?).map_err(trouble)?;
        let [controller, daytona] = programs;
        Ok(Self { cluster, client, controller, daytona, scratch: scratch.to_owned() })
    }
}

/// A namespace with its own local Daytona. One run after the other can be made in it, as long as each leaves it clean.
pub struct World {
    pub(super) client: Client,
    /// The namespace that the controller watches.
    pub namespace: String,
    /// The one in which it would live itself.
    pub(super) home: String,
    pub(super) daytona: LocalDaytona,
    /// The sandboxes of others.
    pub(super) others: Others,
    pub(super) directory: tempfile::TempDir,
    kubeconfig: Value,
    server: Url,
    authority: Vec<u8>,
    controller: PathBuf,
    runs: AtomicU32,
    _daytona: Supervised,
}

impl World {
    /// Makes one.
    ///
    /// # Errors
    /// When something of it does not start.
    pub async fn new(ground: &Ground) -> Result<Self, Trouble> {
        let namespace = format!("w{}", WORLDS.fetch_add(1, Ordering::Relaxed));
        let home = format!("{namespace}-controller");
        let directory = tempfile::tempdir_in(&ground.scratch).map_err(trouble)?;
        let mut launch =
            Launch::new(&ground.daytona, &directory.path().join("daytona"), KEY, &directory.path().join("ready"));
        launch.session_grace = Some(Duration::from_millis(500));
        let (service, daytona) = launch.start(&directory.path().join("daytona.log")).await.map_err(trouble)?;
        for name in [&namespace, &home] {
            let object = Namespace { metadata: named(name), ..Namespace::default() };
            Api::all(ground.client.clone()).create(&PostParams::default(), &object).await.map_err(trouble)?;
        }
        let others = others::place(&ground.client, &daytona, &namespace, &home).await?;
        let release = Release {
            chart: &workspace().join("charts/daytona-controller"),
            name: &namespace,
            namespace: &home,
            values: json!({ "watchNamespaces": [namespace] }),
        };
        let kubeconfig = release.install(&ground.cluster).await.map_err(trouble)?;
        let kubeconfig = std::fs::read_to_string(kubeconfig).map_err(trouble)?;
        let kubeconfig: Value = serde_saphyr::from_str(&kubeconfig).map_err(trouble)?;
        let of_cluster = |field: &str| {
            let value = kubeconfig.pointer(&format!("/clusters/0/cluster/{field}"));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (server, authority) =
            (of_cluster("server").parse().map_err(trouble)?, of_cluster("certificate-authority-data"));
        let authority = base64(&authority)?;
        let world = Self {
            client: ground.client.clone(),
            namespace,
            home,
            daytona,
            others,
            directory,
            server,
            authority,
            kubeconfig,
            controller: ground.controller.clone(),
            runs: AtomicU32::new(0),
            _daytona: service,
        };
        world.furnish().await?;
        Ok(world)
    }

    /// The Secret with the key.
    async fn furnish(&self) -> Result<(), Trouble> {
        let secret = Secret {
            metadata: named("daytona"),
            string_data: Some([("api-key".to_owned(), KEY.to_owned())].into()),
            ..Secret::default()
        };
        let secrets = self.api::<Secret>(&self.namespace);
        secrets.create(&PostParams::default(), &secret).await.map(drop).map_err(trouble)
    }

    /// Objects of the cluster, in a namespace.
    pub(super) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(super) fn config_maps(&self) -> Api<ConfigMap> {
        self.api(&self.namespace)
    }

    /// The sandboxes that are not somebody else's.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) async fn sandboxes(&self) -> Result<Vec<SandboxReport>, Trouble> {
        let mut all = self.daytona.state().await.map_err(trouble)?.sandboxes;
        all.retain(|sandbox| !self.others.contains_key(&sandbox.id));
        Ok(all)
    }

    /// Puts two proxies before the services, for one run.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn between(&self, names: &Arc<Names>) -> Result<Between, Trouble> {
        let origin = self.daytona.base_url().trim_end_matches("/api").parse().map_err(trouble)?;
        let daytona = Proxy::start_naming(Upstream::new(origin), Arc::new(ToDaytona(Arc::clone(names))));
        let daytona = daytona.await.map_err(trouble)?;
        let toolbox_url = Some(format!("{}/toolbox", daytona.url()));
        self.daytona.set(Settings { toolbox_url, ..Settings::default() }).await.map_err(trouble)?;
        let upstream = Upstream { url: self.server.clone(), ca_pem: Some(self.authority.clone()) };
        let kubernetes = Proxy::start_naming(upstream, Arc::new(ToKubernetes(Arc::clone(names))));
        let kubernetes = kubernetes.await.map_err(trouble)?;
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let file = |kind: &str| self.directory.path().join(format!("{number}.{kind}"));
        let user = self.kubeconfig.pointer("/users/0/user").cloned().unwrap_or_default();
        write_kubeconfig(&file("kubeconfig"), &json!({ "server": kubernetes.url() }), &user).map_err(trouble)?;
        let mut command = Command::new(&self.controller);
        command
            .arg("run")
            .args(["--busy-poll=100ms", "--lease-poll=1s", "--absence-grace=1s", "--gauge-interval=10s"])
            .args(["--command-poll=2s", "--drain-timeout=20s", "--watch-timeout=5s", "--health-addr=127.0.0.1:0"])
            .args(["--leader-elect-lease-duration=3s"])
            .arg(format!("--leader-elect-lease-name={}-daytona-controller", self.namespace))
            .arg(format!("--request-timeout={}s", REQUEST_TIMEOUT.as_secs()))
            .arg(format!("--kubernetes-timeout={}s", REQUEST_TIMEOUT.as_secs()))
            .arg(format!("--command-hold={}s", COMMAND_HOLD.as_secs()))
            .args(["--watch-namespace", &self.namespace])
            .arg(format!("--daytona-api-url={}/api", daytona.url()))
            .env("POD_NAMESPACE", &self.home)
            .env("KUBECONFIG", file("kubeconfig"))
            .env("RUST_LOG", "info,daytona_controller=debug")
            .env_remove("DAYTONA_API_KEY");
        Ok(Between { daytona, kubernetes, command, log: file("log"), scripts: file("scripts") })
    }
}

/// The controller's surroundings in one run: what stands between it and the world.
pub struct Between {
    /// Before Daytona.
    pub daytona: Proxy,
    /// Before the Kubernetes API.
    pub kubernetes: Proxy,
    command: Command,
    log: PathBuf,
    /// Where scripts write down that they ran, outside of any sandbox.
    pub scripts: PathBuf,
}

impl Between {
    /// Where the log of a controller of this run goes, by its number.
    #[must_use]
    pub fn log(&self, number: usize) -> PathBuf {
        self.log.with_extension(format!("{number}.log"))
    }

    /// Starts a controller, perhaps one of several.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn controller(&self, log: &Path, several: bool) -> Result<Supervised, Trouble> {
        let mut command = Command::new(self.command.get_program());
        command.args(self.command.get_args());
        if several {
            command.arg("--leader-elect");
        }
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Supervised::spawn(&command, log).map_err(trouble)
    }
}

fn named(name: &str) -> kube::api::ObjectMeta {
    kube::api::ObjectMeta { name: Some(name.to_owned()), ..kube::api::ObjectMeta::default() }
}

fn base64(text: &str) -> Result<Vec<u8>, Trouble> {
    let bytes: k8s_openapi::ByteString = serde_json::from_value(Value::from(text)).map_err(trouble)?;
    Ok(bytes.0)
}

/// Asks the local Daytona for something, past the proxy; gives the answer's body, or null where there is none.
///
/// # Errors
/// When it does not answer, or refuses.
pub(super) async fn ask(daytona: &LocalDaytona, method: Method, path: &str, body: &Value) -> Result<Value, Trouble> {
    let client = reqwest::Client::builder().no_proxy().build().map_err(trouble)?;
    let call = client.request(method, format!("{}{path}", daytona.base_url())).bearer_auth(KEY);
    let call = if body.is_null() { call } else { call.json(body) };
    let answer = call.send().await.and_then(reqwest::Response::error_for_status).map_err(trouble)?;
    let body = answer.bytes().await.map_err(trouble)?;
    Ok(serde_json::from_slice(&body).unwrap_or_default())
}
