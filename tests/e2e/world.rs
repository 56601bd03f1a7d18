//! What each test stands on.

use std::{
    path::PathBuf,
    process::Command,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use dev::{
    cluster::write_kubeconfig,
    control_plane::ControlPlane,
    install::{self, Release},
    kubectl::{self, Kubectl},
    local_daytona::{Launch, LocalDaytona, SandboxReport},
    programs,
    proxy::{Proxy, Upstream},
    supervise::{self, Supervised},
    wait,
};
use reqwest::Method;
use serde_json::{Value, json};

/// How long anything may take that should happen. Generous: the machine may be busy with other tests.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// The key that the local Daytona accepts.
pub(crate) const KEY: &str = "dtn_0123456789abcdef-the-key-of-the-tests";

/// A control plane with the CRDs installed. It ends with this process, however that ends.
pub(crate) async fn plane() -> ControlPlane {
    let plane = ControlPlane::start_temporary().await.unwrap_or_else(|e| panic!("{e}"));
    let crds = install::crds(plane.cluster(), &install::workspace().join("crds")).await;
    let crds = crds.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(crds.stderr, "", "the apiserver warned about a CRD");
    plane
}

/// The one that nearly all tests share.
pub(crate) static PLANE: LazyLock<ControlPlane> = LazyLock::new(|| {
    // A runtime of its own: that of the first test ends with that test.
    let start = || tokio::runtime::Runtime::new().expect("a runtime").block_on(plane());
    std::thread::spawn(start).join().expect("a control plane")
});

static WORLDS: AtomicU32 = AtomicU32::new(0);

/// How a world differs from the usual one.
#[derive(Default)]
pub(crate) struct Options {
    /// Flags for the controller, in place of the usual ones of the same name.
    pub(crate) flags: Vec<&'static str>,
    /// The controller's own key.
    pub(crate) own_key: Option<&'static str>,
    /// Shell of the sessions.
    pub(crate) shell: Option<&'static str>,
}

/// A namespace, a local Daytona and a controller.
pub(crate) struct World {
    pub(crate) namespace: String,
    /// The controller's own.
    pub(crate) home: String,
    pub(crate) kubectl: Kubectl,
    pub(crate) daytona: LocalDaytona,
    pub(crate) controller: Option<Supervised>,
    pub(crate) log: PathBuf,
    /// The API URL that the controller is given in place of the local Daytona's own.
    pub(crate) api_url: Option<String>,
    kubeconfig: PathBuf,
    options: Options,
    _daytona: Supervised,
    _directory: tempfile::TempDir,
}

impl World {
    /// All of it, and the Secret `daytona` with the right key.
    pub(crate) async fn start(name: &str) -> Self {
        Self::start_with(name, Options::default()).await
    }

    /// All of it, somewhat different.
    pub(crate) async fn start_with(name: &str, options: Options) -> Self {
        let mut world = Self::without_controller(name, options).await;
        world.start_controller();
        world
    }

    /// All but the controller.
    pub(crate) async fn without_controller(name: &str, options: Options) -> Self {
        Self::on(&PLANE, name, options).await
    }

    /// The same on another control plane.
    pub(crate) async fn on(plane: &ControlPlane, name: &str, options: Options) -> Self {
        let namespace = format!("{name}-{}", WORLDS.fetch_add(1, Ordering::Relaxed));
        let kubectl = plane.kubectl(Some(&namespace));
        kubectl.run(&["create", "namespace", &namespace]).await.unwrap();
        let secret = format!("--from-literal=api-key={KEY}");
        kubectl.run(&["create", "secret", "generic", "daytona", &secret]).await.unwrap();
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (process, daytona) = daytona(directory.path(), &options).await;
        // As in life: the controller does not live in a namespace whose end it has to see.
        let home = format!("{namespace}-controller");
        plane.kubectl(None).run(&["create", "namespace", &home]).await.unwrap();
        let release = Release {
            chart: &install::workspace().join("charts/daytona-controller"),
            name: &namespace,
            namespace: &home,
            values: json!({ "watchNamespaces": [namespace] }),
        };
        let kubeconfig = release.install(plane.cluster()).await.unwrap_or_else(|e| panic!("{e}"));
        let log = directory.path().join("controller.log");
        Self {
            namespace,
            home,
            kubectl,
            daytona,
            controller: None,
            log,
            api_url: None,
            kubeconfig,
            options,
            _daytona: process,
            _directory: directory,
        }
    }

    /// Starts the controller (again).
    pub(crate) fn start_controller(&mut self) {
        self.controller = Some(self.spawn_controller());
    }

    /// A controller for the caller to keep.
    pub(crate) fn spawn_controller(&self) -> Supervised {
        let api = self.api_url.as_deref().unwrap_or_else(|| self.daytona.base_url());
        let mut command = Command::new(env!("CARGO_BIN_EXE_daytona-controller"));
        let usual = ["--busy-poll=100ms", "--lease-poll=1s", "--absence-grace=2s", "--gauge-interval=200ms"]
            .into_iter()
            .chain(["--command-poll=2s", "--request-timeout=5s", "--health-addr=127.0.0.1:0"]);
        let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
        let other = |flag: &&str| !self.options.flags.iter().any(|own| name(own) == name(flag));
        command
            .arg("run")
            .args(usual.filter(other))
            .args(["--watch-namespace", &self.namespace, "--daytona-api-url", api])
            .arg(format!("--leader-elect-lease-name={}-daytona-controller", self.namespace))
            .args(&self.options.flags)
            .env("POD_NAMESPACE", &self.home)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("RUST_LOG", "info,daytona_controller=debug")
            .env_remove("DAYTONA_API_KEY");
        if let Some(key) = self.options.own_key {
            command.env("DAYTONA_API_KEY", key);
        }
        Supervised::spawn(&command, &self.log).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Puts a proxy between the Kubernetes API and the controllers that are started from now on.
    pub(crate) async fn before_kubernetes(&mut self) -> Proxy {
        let config: Value = serde_saphyr::from_str(&std::fs::read_to_string(&self.kubeconfig).unwrap()).unwrap();
        let cluster = &config["clusters"][0]["cluster"];
        let authority: k8s_openapi::ByteString =
            serde_json::from_value(cluster["certificate-authority-data"].clone()).unwrap();
        let url = cluster["server"].as_str().unwrap().parse().unwrap();
        let proxy = Proxy::start(Upstream { url, ca_pem: Some(authority.0) }).await.unwrap();
        self.kubeconfig = self.log.with_file_name("through-the-proxy");
        write_kubeconfig(&self.kubeconfig, &json!({ "server": proxy.url() }), &config["users"][0]["user"]).unwrap();
        proxy
    }

    /// Ends the controller as a crash would.
    pub(crate) async fn kill_controller(&mut self) {
        self.controller.take().expect("a controller runs").kill().await.unwrap();
    }

    /// As `kubectl apply -f -`.
    pub(crate) async fn apply(&self, yaml: &str) -> Result<kubectl::Output, kubectl::Error> {
        self.kubectl.run_with_input(&["apply", "-f", "-"], yaml).await
    }

    /// A lease of this name that uses the Secret `daytona`.
    pub(crate) async fn lease(&self, name: &str) {
        self.apply(&lease(name)).await.unwrap();
    }

    /// A command in the lease `l`.
    pub(crate) async fn command(&self, name: &str, script: &str) {
        self.apply(&command(name, "l", script)).await.unwrap();
    }

    /// An object, or null.
    pub(crate) async fn get(&self, kind: &str, name: &str) -> Value {
        let text = self.kubectl.get(&["get", kind, name, "-o", "json", "--ignore-not-found"]).await.unwrap();
        if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() }
    }

    /// Waits until an object is as it should be.
    pub(crate) async fn until(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        mut check: impl FnMut(&Value) -> bool,
    ) -> Value {
        let mut last = Value::Null;
        let found = wait::until(format!("{kind} {name}: {what}"), LIMIT, async || {
            last = self.get(kind, name).await;
            check(&last).then(|| last.clone())
        })
        .await;
        found.unwrap_or_else(|e| panic!("{e}\nlast seen: {last:#}"))
    }

    /// Waits until a condition has this reason.
    pub(crate) async fn until_reason(&self, kind: &str, name: &str, type_: &str, reason: &str) -> Value {
        let what = format!("{type_} with reason {reason}");
        self.until(kind, name, &what, |o| condition(o, type_)["reason"] == reason).await
    }

    /// Waits until a lease is Ready.
    pub(crate) async fn until_ready(&self, name: &str) -> Value {
        self.until("sblease", name, "Ready", |o| condition(o, "Ready")["status"] == "True").await
    }

    /// Waits until a command is Finished.
    pub(crate) async fn until_finished(&self, name: &str) -> Value {
        self.until("sbcmd", name, "Finished", |o| condition(o, "Finished")["status"] == "True").await
    }

    /// Waits until an object is gone.
    pub(crate) async fn until_gone(&self, kind: &str, name: &str) {
        self.until(kind, name, "gone", Value::is_null).await;
    }

    /// Waits until something else is as it should be.
    pub(crate) async fn eventually(&self, what: &str, mut check: impl AsyncFnMut() -> bool) {
        wait::until(what, LIMIT, async || check().await.then_some(())).await.unwrap_or_else(|e| panic!("{e}"));
    }

    /// As `kubectl delete`, without waiting.
    pub(crate) async fn delete(&self, kind: &str, name: &str) {
        self.kubectl.run(&["delete", kind, name, "--wait=false"]).await.unwrap();
    }

    /// The one sandbox that there is.
    pub(crate) async fn sandbox(&self) -> SandboxReport {
        let mut all = self.daytona.state().await.unwrap().sandboxes;
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// Where a file of this name is in the sandbox.
    pub(crate) async fn path(&self, name: &str) -> Option<PathBuf> {
        let all = self.daytona.state().await.unwrap().sandboxes;
        all.iter().find_map(|sandbox| walk(&sandbox.dir, name))
    }

    /// What a file of this name in the sandbox holds.
    pub(crate) async fn file(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.path(name).await?).ok()
    }

    /// Where a file of this name is in the controller's own folder in the sandbox.
    pub(crate) async fn own_path(&self, name: &str) -> Option<PathBuf> {
        walk(&self.path(".daytona-controller").await?, name)
    }

    /// How often Daytona was called this way.
    pub(crate) async fn calls(&self, route: &str) -> usize {
        self.daytona.count(route).await.unwrap()
    }

    /// Asks the local Daytona about its sandboxes as somebody else would.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value) -> Value {
        let url = format!("{}/sandbox{path}", self.daytona.base_url());
        let call = reqwest::Client::new().request(method, url).bearer_auth(KEY).json(body);
        let answer = call.send().await.unwrap().error_for_status().unwrap();
        answer.json().await.unwrap_or_default()
    }

    /// What the controller has logged.
    pub(crate) fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- end of the controller's log in {}:\n{}", self.namespace, supervise::log_tail(&self.log, 60));
        }
    }
}

async fn daytona(directory: &std::path::Path, options: &Options) -> (Supervised, LocalDaytona) {
    let ready = directory.join("ready");
    let binary = tokio::task::spawn_blocking(|| programs::built("local-daytona")).await.unwrap().unwrap();
    let mut launch = Launch::new(&binary, &directory.join("daytona"), KEY, &ready);
    launch.shell = options.shell.map(str::to_owned);
    launch.session_grace = Some(Duration::from_secs(1));
    launch.snapshots = vec!["tools".to_owned()];
    launch.start(&directory.join("daytona.log")).await.unwrap_or_else(|e| panic!("{e}"))
}

/// Where a file of this name is; what is in the controller's own folder has names of its own, which scripts use too.
pub(crate) fn walk(directory: &std::path::Path, name: &str) -> Option<PathBuf> {
    for entry in std::fs::read_dir(directory).ok()?.flatten() {
        let path = entry.path();
        if entry.file_name() == name {
            return Some(path);
        }
        let ours = entry.file_name() == ".daytona-controller";
        if let Some(found) = (path.is_dir() && !ours).then(|| walk(&path, name)).flatten() {
            return Some(found);
        }
    }
    None
}

/// Whether a process runs; one that has ended and was not collected yet does not.
pub(crate) fn alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(std::path::Path::new("/proc").join(pid.trim()).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}

/// Manifest of a lease that uses the Secret `daytona`.
pub(crate) fn lease(name: &str) -> String {
    json!({
        "apiVersion": "daytona-controller.dev/v1alpha1",
        "kind": "SandboxLease",
        "metadata": { "name": name },
        "spec": { "connection": { "apiKeySecretRef": { "name": "daytona" } }, "useSessions": true },
    })
    .to_string()
}

/// Manifest of a lease with these fields in its spec besides.
pub(crate) fn lease_with(name: &str, fields: &Value) -> String {
    let mut manifest: Value = serde_json::from_str(&lease(name)).unwrap();
    for (field, value) in fields.as_object().unwrap() {
        manifest["spec"][field] = value.clone();
    }
    manifest.to_string()
}

/// Manifest of a lease without sessions, in which so many commands may run at once.
pub(crate) fn one_shot(name: &str, parallel: u32) -> String {
    let mut manifest: Value = serde_json::from_str(&lease(name)).unwrap();
    manifest["spec"]["useSessions"] = false.into();
    manifest["spec"]["maxParallelCommands"] = parallel.into();
    manifest.to_string()
}

/// Manifest of a command with this spec, in the lease `l`.
pub(crate) fn with_spec(name: &str, spec: &Value) -> String {
    let mut manifest: Value = serde_json::from_str(&command(name, "l", "true")).unwrap();
    for (key, value) in spec.as_object().unwrap() {
        manifest["spec"][key] = value.clone();
    }
    if spec.get("command").is_some() || spec.get("scriptFrom").is_some() {
        manifest["spec"].as_object_mut().unwrap().remove("script");
    }
    manifest.to_string()
}

/// Manifest of a command.
pub(crate) fn command(name: &str, lease: &str, script: &str) -> String {
    json!({
        "apiVersion": "daytona-controller.dev/v1alpha1",
        "kind": "SandboxCommand",
        "metadata": { "name": name },
        "spec": { "leaseRef": { "name": lease }, "script": script },
    })
    .to_string()
}

/// A condition, or null.
pub(crate) fn condition(object: &Value, type_: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|c| c["type"] == type_).unwrap_or_default()
}
