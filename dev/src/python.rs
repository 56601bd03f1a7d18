//! The official Python SDK in a virtual environment of its own: a client of Daytona that we did not write.
//! Made once from the pinned and hashed `dev/python/requirements.txt`, and kept in the cache of `binaries`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sha2::{Digest, Sha256};

use crate::binaries::{self, cache, once, watch};
use crate::supervise::{self, log_tail};

/// What to type where Python or its `venv` is missing.
const HOW: &str = "type: sudo apt-get install -y python3-venv   (or your distribution's way)";
/// The oldest Python that the SDK runs on.
const OLDEST: (u32, u32) = (3, 10);
/// Prints what an environment depends on: the version, and where the interpreter is at home.
const DESCRIBE: &str = "import sys; print(*sys.version_info[:2]); print(sys.version, sys.base_prefix)";
/// The packages, each with the hashes of its files.
const REQUIREMENTS: &str = include_str!("../python/requirements.txt");
const WHAT: &str = "a Python environment with Daytona's SDK";

/// Why there is no Python with the SDK.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No Python at all.
    #[error("Python 3.10 or newer with venv is needed, but `{python}` does not run: {source}; {HOW}")]
    NoPython {
        /// The program that was tried.
        python: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The Python is older than the SDK allows, or none.
    #[error("Python 3.10 or newer with venv is needed, but `{python}` is {found:?}; {HOW}")]
    OldPython {
        /// The program that was tried.
        python: String,
        /// What it said of itself.
        found: String,
    },
    /// Debian ships Python without the part that `venv` needs.
    #[error("Python is here, but it cannot make virtual environments; {HOW}")]
    NoVenv,
    /// `venv` or `pip` failed.
    #[error(
        "{WHAT} cannot be made; its packages come from where pip is told to look (pip config list, PIP_*). The whole \
         output is in {}:\n{tail}", log.display()
    )]
    Install {
        /// Everything that was said.
        log: PathBuf,
        /// The end of that.
        tail: String,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] binaries::Error),
    /// The installation cannot be supervised.
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
}

/// The Python interpreter that has the SDK. Blocks, on first use until it is installed; says so on stderr.
/// Processes that need it at the same time wait for each other.
///
/// # Errors
/// When Python or its `venv` is missing, the packages cannot be fetched, or the cache cannot be used.
pub fn sdk() -> Result<PathBuf, Error> {
    let key = describe("python3")?;
    let digest = Sha256::new().chain_update(REQUIREMENTS).chain_update(key).finalize();
    let digest = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let environment = cache()?.join(format!("python-{digest:016x}"));
    once(&environment, WHAT, Path::is_dir, || install("python3", &environment))?;
    Ok(interpreter(&environment))
}

fn interpreter(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

fn ask(python: &str, code: &str) -> Result<Output, Error> {
    let asked = Command::new(python).args(["-I", "-c", code]).output();
    asked.map_err(|source| Error::NoPython { python: python.to_owned(), source })
}

/// What an environment of this Python depends on.
fn describe(python: &str) -> Result<String, Error> {
    let output = ask(python, DESCRIBE)?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let mut numbers = said.split_whitespace().map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= OLDEST => Ok(said),
        _ => Err(Error::OldPython { python: python.to_owned(), found: said }),
    }
}

fn install(python: &str, environment: &Path) -> Result<(), Error> {
    // What `venv` itself needs, and what Debian has in a package of its own.
    if !ask(python, "import ensurepip")?.status.success() {
        return Err(Error::NoVenv);
    }
    let (unfinished, log) = (environment.with_added_extension("unfinished"), environment.with_added_extension("log"));
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| binaries::Error::Cache { path, source }
    };
    let _ = std::fs::remove_file(&log);
    let requirements = environment.with_added_extension("txt");
    std::fs::write(&requirements, REQUIREMENTS).map_err(failed(&requirements))?;
    let mut make = Command::new(python);
    make.args(["-m", "venv", "--clear"]).arg(&unfinished);
    let mut fill = Command::new(interpreter(&unfinished));
    // Nothing is built, and nothing is taken that the file does not name. Where to look is the machine's to say: PIP_*.
    fill.args(["-m", "pip", "install", "--no-input", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r"])
        .arg(&requirements);
    for command in [make, fill] {
        let status = watch(&command, &log, WHAT.to_owned(), "less than a minute if packages arrive fast")?;
        if !status.success() {
            return Err(Error::Install { tail: log_tail(&log, 20), log });
        }
    }
    // It is used by its interpreter alone, which finds its packages wherever the directory is.
    std::fs::rename(&unfinished, environment).map_err(failed(environment))?;
    let _ = std::fs::remove_file(log);
    let _ = std::fs::remove_file(requirements);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_that_is_missing_or_old_is_named_with_the_line_to_type() {
        let missing = describe("/no/such/python").unwrap_err();
        assert!(matches!(missing, Error::NoPython { .. }), "{missing}");
        // `echo` answers with its arguments, which is no version that we know.
        let old = describe("echo").unwrap_err();
        assert!(matches!(&old, Error::OldPython { found, .. } if found.starts_with("-I -c")), "{old}");
        for error in [missing, old, Error::NoVenv] {
            assert!(error.to_string().contains("apt-get install -y python3-venv"), "{error}");
        }
    }

    #[test]
    fn every_package_is_pinned_with_hashes_and_none_names_where_it_comes_from() {
        let mut packages = REQUIREMENTS.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()));
        assert!(packages.all(|line| line.contains("==") && line.ends_with('\\')));
        assert!(REQUIREMENTS.contains("\ndaytona==0.226.1 \\\n    --hash=sha256:"));
        assert!(!REQUIREMENTS.contains("://") && !REQUIREMENTS.contains("--index"));
    }
}
