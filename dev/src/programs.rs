//! The programs of this workspace, for whoever needs them beside its own executable.
//!
//! Cargo builds the binaries of a package for that package's own integration tests only, so a test of another
//! package or a binary started by `cargo run` may find none, or an old one. Asking cargo again costs a
//! moment when all is fresh; its lock is free while it runs a test or a program.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde::Deserialize;

/// Why a program of this workspace cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Cargo itself did not start.
    #[error("cannot start cargo to build `{program}`: {source}; install Rust as https://rustup.rs says")]
    NoCargo {
        /// The program that was asked for.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Cargo ran and failed, or built no such program.
    #[error("cargo did not build `{program}`; see why with: cargo build --bin {program}")]
    NotBuilt {
        /// The program that was asked for.
        program: String,
    },
}

/// The line of cargo's JSON output that names an executable.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);

/// The path of the workspace's binary `program`, built if it is missing or old, once per process.
/// Blocks while cargo works.
///
/// # Errors
/// When cargo cannot be started or the build fails.
pub fn built(program: &str) -> Result<PathBuf, Error> {
    // A poisoned map is still a map of paths.
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let built = built.get_or_insert_default();
    if let Some(path) = built.get(program) {
        return Ok(path.clone());
    }
    let path = build(program)?;
    built.insert(program.to_owned(), path.clone());
    Ok(path)
}

fn build(program: &str) -> Result<PathBuf, Error> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // All default members, as `cargo test` and `cargo demo` select them: another selection would mean other
    // features for shared dependencies, hence a second build of them.
    command.args(["build", "--message-format=json-render-diagnostics", "--bin", program]);
    command.args(place(&std::env::current_exe().unwrap_or_default()));
    if !std::io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    let output = command
        .current_dir(workspace)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| Error::NoCargo { program: program.to_owned(), source })?;
    let found = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(|artifact| artifact.target.as_ref().is_some_and(|target| target.name == program))
        .find_map(|artifact| artifact.executable);
    found.filter(|_| output.status.success()).ok_or_else(|| Error::NotBuilt { program: program.to_owned() })
}

/// Arguments that send cargo's output to where `executable` was built, which is
/// `TARGET_DIR[/TRIPLE]/PROFILE[/deps|/examples]/NAME`. None when it does not look like that.
fn place(executable: &Path) -> Vec<PathBuf> {
    let target_dir = executable.ancestors().skip(1).find(|folder| folder.join("CACHEDIR.TAG").is_file());
    let Some(target_dir) = target_dir else {
        return Vec::new();
    };
    let below = executable.strip_prefix(target_dir).unwrap_or(executable);
    let mut folders: Vec<_> = below.iter().map(PathBuf::from).collect();
    folders.pop();
    folders.retain(|folder| folder != Path::new("deps") && folder != Path::new("examples"));
    let mut arguments = vec!["--target-dir".into(), target_dir.to_owned()];
    let Some(profile) = folders.pop() else {
        return arguments;
    };
    if profile != Path::new("debug") {
        arguments.extend(["--profile".into(), profile]);
    }
    if let Some(triple) = folders.pop() {
        arguments.extend(["--target".into(), triple]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_goes_where_the_caller_was_built() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("target");
        std::fs::create_dir(&target).unwrap();
        std::fs::write(target.join("CACHEDIR.TAG"), "").unwrap();
        let words = |executable: &str| -> Vec<String> {
            let arguments = place(&target.join(executable));
            arguments.iter().skip(2).map(|word| word.display().to_string()).collect()
        };
        assert!(words("debug/deps/e2e-0123").is_empty());
        assert!(words("debug/demo").is_empty());
        assert_eq!(words("release/demo"), ["--profile", "release"]);
        assert_eq!(words("x86_64-unknown-linux-musl/debug/demo"), ["--target", "x86_64-unknown-linux-musl"]);
        assert!(place(Path::new("/somewhere/else")).is_empty());
    }
}
