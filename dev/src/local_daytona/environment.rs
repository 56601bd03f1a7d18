//! What a sandbox is on this machine: its directories, its shell, its environment.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use tokio::process::Command;

use super::paths::{self, PathError};
use super::processes::{MARKER, Process, Processes};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The shell of sessions and one-shot commands; what is particular about each is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShellKind {
    Zsh,
    Bash,
    /// dash, and what is close to it: busybox ash.
    Dash,
}

#[derive(Debug, Clone)]
pub(super) struct Shell {
    pub(super) path: PathBuf,
    pub(super) kind: ShellKind,
    pub(super) labelling: Labelling,
}

/// How the shell's loops treat what a command writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Labelling {
    /// Only zsh can hold a NUL.
    pub(super) keeps_nul: bool,
    /// As slow as the loops are.
    pub(super) throttled: bool,
}

impl Shell {
    /// The shell that was asked for, else the one that the service would take. `dir` is for the link by
    /// which busybox learns that it is to be a shell.
    pub(super) fn choose(wanted: Option<&str>, dir: &Path, throttled: bool) -> io::Result<Self> {
        let path = match wanted {
            Some(path) if path.contains('/') => PathBuf::from(path),
            Some("ash") => busybox(dir)?,
            Some(name) => find(name).ok_or_else(|| not_found(name))?,
            None => listed().or_else(|| find("sh")).ok_or_else(|| not_found("sh"))?,
        };
        let real = path.canonicalize()?;
        let kind = match real.file_name().and_then(OsStr::to_str).unwrap_or_default() {
            name if name.starts_with("zsh") => ShellKind::Zsh,
            name if name.contains("bash") => ShellKind::Bash,
            _ => ShellKind::Dash,
        };
        Ok(Self { path, kind, labelling: Labelling { keeps_nul: kind == ShellKind::Zsh, throttled } })
    }
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{name} is not installed: apt-get install -y {name}"))
}

fn busybox(dir: &Path) -> io::Result<PathBuf> {
    let busybox = find("busybox").ok_or_else(|| not_found("busybox"))?;
    fs::create_dir_all(dir)?;
    let ash = dir.join("ash");
    match std::os::unix::fs::symlink(busybox, &ash) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(ash),
    }
}

fn find(name: &str) -> Option<PathBuf> {
    PATH.split(':').map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

fn listed() -> Option<PathBuf> {
    let shells = fs::read_to_string("/etc/shells").unwrap_or_default();
    ["/usr/bin/zsh", "/bin/zsh", "/usr/bin/bash", "/bin/bash"]
        .iter()
        .find(|path| shells.lines().any(|line| line == **path) && Path::new(path).is_file())
        .map(PathBuf::from)
}

/// One sandbox's place on this machine.
#[derive(Debug, Clone)]
pub(super) struct Environment {
    sandbox: String,
    user: String,
    /// Everything of the sandbox lies below it.
    pub(super) root: PathBuf,
    /// Home and work dir, as in the default snapshots.
    pub(super) home: PathBuf,
    pub(super) shell: Shell,
    pub(super) processes: Arc<Processes>,
    env: BTreeMap<String, String>,
}

impl Environment {
    pub(super) fn create(
        root: PathBuf,
        sandbox: &str,
        user: &str,
        env: BTreeMap<String, String>,
        shell: Shell,
        processes: Arc<Processes>,
    ) -> io::Result<Self> {
        // The user's name becomes part of a path.
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let user = if !user.is_empty() && user.chars().all(plain) { user } else { "daytona" };
        let home = root.join("home").join(user);
        fs::create_dir_all(&home)?;
        fs::create_dir_all(root.join("tmp"))?;
        processes.add_home(sandbox, &root);
        Ok(Self { sandbox: sandbox.to_owned(), user: user.to_owned(), root, home, shell, processes, env })
    }

    /// Where the service may write: a link that the sandbox put in the way is not followed out of it.
    pub(super) fn inside(&self, path: &Path) -> io::Result<PathBuf> {
        paths::resolve(&self.root, &self.home, &path.to_string_lossy()).map_err(|error| match error {
            PathError::Io(error) => error,
            PathError::Outside => io::Error::other(error.to_string()),
        })
    }

    /// Its live processes.
    pub(super) fn own_processes(&self) -> Vec<Process> {
        self.processes.by_sandbox().remove(&self.sandbox).unwrap_or_default()
    }

    /// A command in the sandbox: nothing of this process's environment reaches it.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", PATH)
            .env("LANG", "C.UTF-8")
            .env("USER", &self.user)
            .env("LOGNAME", &self.user)
            .env("SHELL", &self.shell.path)
            .env("DAYTONA_SANDBOX_ID", &self.sandbox)
            .env("HOME", &self.home)
            .env("TMPDIR", self.root.join("tmp"))
            .envs(&self.env)
            .env(MARKER, self.processes.marker(&self.sandbox))
            .current_dir(&self.home)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        command
    }
}
