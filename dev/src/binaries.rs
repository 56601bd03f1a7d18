//! The programs that others wrote: etcd, the Kubernetes control plane, kubectl and helm, each built once from
//! the pinned Go modules in `dev/go` and kept in a cache outside `target/`.

use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use crate::supervise::{self, Supervised, log_tail};

/// The oldest Go that builds the pinned modules.
const GO: (u32, u32) = (1, 26);
/// How often a build that is not shown on a terminal says that it is alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// A program that others wrote and that we need at a pinned version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The store behind the apiserver.
    Etcd,
    /// The Kubernetes API.
    KubeApiserver,
    /// The built-in controllers, of which a few are used.
    KubeControllerManager,
    /// The command line of Kubernetes. Never the one on `PATH`.
    Kubectl,
    /// Renders the chart.
    Helm,
}

/// Why a tool cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No Go compiler, and no ready binary.
    #[error("{tool} has to be built once, but `go` is not on PATH; {}", how_to_get_go())]
    NoGo {
        /// The tool that was asked for.
        tool: &'static str,
    },
    /// The Go compiler is older than the modules allow.
    #[error("{tool} has to be built once, but `go` is version {found}; {}", how_to_get_go())]
    OldGo {
        /// The tool that was asked for.
        tool: &'static str,
        /// What `go env GOVERSION` says.
        found: String,
    },
    /// The build failed.
    #[error("go build of {tool} failed; its whole output is in {}:\n{tail}", log.display())]
    Build {
        /// The tool that was asked for.
        tool: &'static str,
        /// Everything that `go build` said.
        log: PathBuf,
        /// The end of that.
        tail: String,
    },
    /// No directory to keep binaries in.
    #[error("no place for the cache of binaries; type: export DAYTONA_CONTROLLER_CACHE=/some/directory")]
    NoCache,
    /// The module does not say which version it pins.
    #[error("{} does not require {module}; restore it with: git checkout dev/go", file.display())]
    NotPinned {
        /// The `go.mod` that was read.
        file: PathBuf,
        /// The module that it has to require.
        module: &'static str,
    },
    /// The cache cannot be read or written.
    #[error("cannot use {}: {source}; choose another cache: export DAYTONA_CONTROLLER_CACHE=/some/directory", path.display())]
    Cache {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The build cannot be supervised.
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
}

fn how_to_get_go() -> String {
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let (major, minor) = GO;
    format!(
        "Go {major}.{minor} or newer is needed. Type: \
         curl -fL https://go.dev/dl/go1.26.8.linux-{arch}.tar.gz | sudo tar -C /usr/local -xz && \
         export PATH=/usr/local/go/bin:$PATH   \
         (or point KUBEBUILDER_ASSETS at a directory that holds etcd, kube-apiserver, \
         kube-controller-manager, kubectl and helm)"
    )
}

impl Tool {
    /// All tools, the one that takes longest to build last.
    pub const ALL: [Self; 5] =
        [Self::Etcd, Self::Helm, Self::Kubectl, Self::KubeControllerManager, Self::KubeApiserver];

    /// The name of its binary.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::Kubectl => "kubectl",
            Self::Helm => "helm",
        }
    }

    /// The folder in `dev/go`, the module whose version counts, the main package.
    fn source(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Etcd => ("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
            Self::KubeApiserver => ("kubernetes", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
            Self::KubeControllerManager => {
                ("kubernetes", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager")
            }
            Self::Kubectl => ("kubernetes", "k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
            Self::Helm => ("helm", "helm.sh/helm/v4", "helm.sh/helm/v4/cmd/helm"),
        }
    }

    /// The linker flag that makes the binary tell its version; a build from a module does not know it.
    fn version_flag(self, version: &str) -> String {
        match self {
            Self::Etcd => String::new(),
            Self::Helm => format!(" -X helm.sh/helm/v4/internal/version.version={version}"),
            _ => format!(" -X k8s.io/component-base/version.gitVersion={version}"),
        }
    }

    fn module(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("go").join(self.source().0)
    }

    /// The version that `dev/go` pins, such as `v1.36.4`.
    ///
    /// # Errors
    /// When `go.mod` is missing or requires no such module.
    pub fn version(self) -> Result<String, Error> {
        let (file, module) = (self.module().join("go.mod"), self.source().1);
        let text = std::fs::read_to_string(&file).map_err(|source| Error::Cache { path: file.clone(), source })?;
        let pinned = text.lines().find_map(|line| {
            let mut words = line.trim().trim_start_matches("require ").split_whitespace();
            (words.next() == Some(module)).then(|| words.next()).flatten()
        });
        pinned.map(str::to_owned).ok_or(Error::NotPinned { file, module })
    }
}

/// Where `tool` is or will be, and whether it is there.
fn place(tool: Tool) -> Result<(PathBuf, bool), Error> {
    if let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") {
        let asset = Path::new(&assets).join(tool.name());
        if asset.is_file() {
            return Ok((asset, true));
        }
    }
    let path = cache()?.join(format!("{}-{}", tool.name(), tool.version()?));
    let there = path.is_file();
    Ok((path, there))
}

/// Whether [`ensure`] answers at once.
///
/// # Errors
/// When there is no place for a cache, or `dev/go` pins no version.
pub fn is_ready(tool: Tool) -> Result<bool, Error> {
    place(tool).map(|(_, there)| there)
}

/// The path of `tool`'s binary: from `KUBEBUILDER_ASSETS` if it is there, else from the cache, else built.
/// Blocks, on a first build for minutes; says so on stderr. Processes that need the same wait for each other.
///
/// # Errors
/// When Go is missing or old, the build fails, or the cache cannot be used.
pub fn ensure(tool: Tool) -> Result<PathBuf, Error> {
    let (path, there) = place(tool)?;
    if there {
        return Ok(path);
    }
    once(&path, tool.name(), Path::is_file, || build(tool, &path))?;
    Ok(path)
}

/// Makes `path`, in the cache, unless it is there. Processes that need the same wait for each other.
pub(crate) fn once<E: From<Error>>(
    path: &Path,
    what: &str,
    there: impl Fn(&Path) -> bool,
    make: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| Error::Cache { path, source }
    };
    let cache = path.parent().unwrap_or(path);
    std::fs::create_dir_all(cache).map_err(failed(cache))?;
    let lock_path = path.with_added_extension("lock");
    let lock = File::create(&lock_path).map_err(failed(&lock_path))?;
    if lock.try_lock().is_err() {
        eprintln!("waiting for another process that builds {what}");
        lock.lock().map_err(failed(&lock_path))?;
    }
    // Whoever held the lock before us may have built it.
    if there(path) { Ok(()) } else { make() }
}

/// The directory that keeps what was built once.
pub(crate) fn cache() -> Result<PathBuf, Error> {
    let directory = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    directory("DAYTONA_CONTROLLER_CACHE")
        .or_else(|| Some(directory("XDG_CACHE_HOME")?.join("daytona-controller")))
        .or_else(|| Some(directory("HOME")?.join(".cache/daytona-controller")))
        .ok_or(Error::NoCache)
}

/// Whether a Go compiler that can build `tool` is there.
///
/// # Errors
/// [`Error::NoGo`] or [`Error::OldGo`], both with the line to type.
pub fn check_go(tool: Tool) -> Result<(), Error> {
    check_compiler("go", tool.name())
}

fn check_compiler(go: &str, tool: &'static str) -> Result<(), Error> {
    let output = Command::new(go)
        .args(["env", "GOVERSION"])
        // The compiler that is there, not one that it would fetch.
        .env("GOTOOLCHAIN", "local")
        .current_dir("/")
        .output()
        .map_err(|_| Error::NoGo { tool })?;
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if go_version(&found).is_some_and(|version| version >= GO) { Ok(()) } else { Err(Error::OldGo { tool, found }) }
}

fn go_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("go")?.split('.');
    let major = numbers.next()?.parse().ok()?;
    // A pre-release reads `go1.27rc1`.
    let minor = numbers.next()?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some((major, minor))
}

fn build(tool: Tool, path: &Path) -> Result<(), Error> {
    check_go(tool)?;
    let version = tool.version()?;
    let (unfinished, log) = (path.with_added_extension("unfinished"), path.with_added_extension("log"));
    let _ = std::fs::remove_file(&log);
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-buildvcs=false", "-ldflags"])
        .arg(format!("-s -w{}", tool.version_flag(&version)))
        .arg("-o")
        .arg(&unfinished)
        .arg(tool.source().2)
        .current_dir(tool.module())
        .envs([("CGO_ENABLED", "0"), ("GOFLAGS", "-mod=readonly"), ("GOTOOLCHAIN", "local")]);
    let status = watch(&go, &log, format!("{} {version}", tool.name()), "minutes without a warm Go build cache")?;
    if !status.success() {
        return Err(Error::Build { tool: tool.name(), tail: log_tail(&log, 20), log });
    }
    std::fs::rename(&unfinished, path).map_err(|source| Error::Cache { path: path.to_owned(), source })?;
    let _ = std::fs::remove_file(log);
    Ok(())
}

/// Runs a command that builds `what` to its end, its output in `log`; says on stderr that it goes on.
pub(crate) fn watch(command: &Command, log: &Path, what: String, takes: &str) -> Result<ExitStatus, supervise::Error> {
    let mut running = Supervised::spawn(command, log)?;
    let progress = Progress::start(what, takes);
    let status = loop {
        if let Some(status) = running.ended()? {
            break status;
        }
        progress.tick();
    };
    progress.finish();
    Ok(status)
}

/// Shows on stderr that a build goes on: a spinner on a terminal, else a line now and then.
struct Progress {
    what: String,
    start: Instant,
    shown: std::cell::Cell<Instant>,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn start(what: String, takes: &str) -> Self {
        let start = Instant::now();
        let bar = std::io::stderr().is_terminal().then(ProgressBar::new_spinner);
        match &bar {
            Some(bar) => bar.set_message(format!("building {what}, once")),
            None => eprintln!("building {what}, once; this takes {takes}"),
        }
        Self { what, start, shown: start.into(), bar }
    }

    fn tick(&self) {
        std::thread::sleep(Duration::from_millis(100));
        let elapsed = self.start.elapsed().as_secs();
        if let Some(bar) = &self.bar {
            bar.set_message(format!("building {}, once: {elapsed} s", self.what));
            bar.tick();
        } else if self.shown.get().elapsed() >= SIGN_OF_LIFE {
            self.shown.set(Instant::now());
            eprintln!("building {}: {elapsed} s", self.what);
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("built {} in {} s", self.what, self.start.elapsed().as_secs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_pinned_modules() {
        assert_eq!(Tool::KubeApiserver.version().unwrap(), "v1.36.4");
        assert_eq!(Tool::Etcd.version().unwrap(), "v3.6.16");
        assert_eq!(Tool::Helm.version().unwrap(), "v4.3.1");
    }

    #[test]
    fn go_versions_are_compared_as_numbers() {
        assert_eq!(go_version("go1.26.8"), Some((1, 26)));
        assert_eq!(go_version("go1.27rc1"), Some((1, 27)));
        assert!(go_version("go1.9").unwrap() < GO);
        assert_eq!(go_version(""), None);
    }

    #[test]
    fn a_compiler_that_is_missing_or_old_is_named_with_the_line_to_type() {
        let missing = check_compiler("/no/such/go", "etcd").unwrap_err();
        assert!(matches!(missing, Error::NoGo { tool: "etcd" }));
        assert!(missing.to_string().contains("Type: curl"), "{missing}");

        // `echo` answers with its arguments, which is no version that we know.
        let old = check_compiler("echo", "etcd").unwrap_err();
        assert!(matches!(&old, Error::OldGo { found, .. } if found == "env GOVERSION"), "{old}");
    }
}
