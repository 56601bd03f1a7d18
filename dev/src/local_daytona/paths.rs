//! Keeps file calls inside a sandbox's directory.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Why a path is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum PathError {
    #[error("the path leads out of the sandbox")]
    Outside,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Where `path`, relative to `work_dir`, really lies. Symbolic links are followed, and whatever they
/// lead to must lie below `root` too; parts that do not exist yet may not climb.
pub(super) fn resolve(root: &Path, work_dir: &Path, path: &str) -> Result<PathBuf, PathError> {
    let mut existing = work_dir.join(path);
    let mut missing = Vec::new();
    let real = loop {
        match existing.canonicalize() {
            Ok(real) => break real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A link to nowhere would be created at its target, which cannot be checked.
                if existing.is_symlink() {
                    return Err(PathError::Outside);
                }
                match (existing.components().next_back(), existing.parent()) {
                    (Some(Component::Normal(name)), Some(parent)) => {
                        missing.push(name.to_owned());
                        existing = parent.to_owned();
                    }
                    _ => return Err(PathError::Outside),
                }
            }
            Err(error) => return Err(error.into()),
        }
    };
    if !real.starts_with(root) {
        return Err(PathError::Outside);
    }
    Ok(missing.iter().rev().fold(real, |path, name| path.join(name)))
}

/// As [`resolve`], but the last part is taken as it is: what is removed or moved is the link itself.
pub(super) fn resolve_entry(root: &Path, work_dir: &Path, path: &str) -> Result<PathBuf, PathError> {
    let whole = work_dir.join(path);
    let (Some(parent), Some(Component::Normal(name))) = (whole.parent(), whole.components().next_back()) else {
        return Err(PathError::Outside);
    };
    let parent = resolve(root, work_dir, &parent.to_string_lossy())?;
    let entry = parent.join(name);
    // The root of the sandbox itself is no entry of it.
    if entry.starts_with(root) && entry != root { Ok(entry) } else { Err(PathError::Outside) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn sandbox() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().canonicalize().unwrap().join("sandbox");
        let home = root.join("home");
        fs::create_dir_all(&home).unwrap();
        (outer, root, home)
    }

    #[test]
    fn relative_and_absolute_paths_inside_are_served() {
        let (_outer, root, home) = sandbox();
        assert_eq!(resolve(&root, &home, "a/b").unwrap(), home.join("a/b"));
        assert_eq!(resolve(&root, &home, "../x").unwrap(), root.join("x"));
        let absolute = home.join("y");
        assert_eq!(resolve(&root, &home, absolute.to_str().unwrap()).unwrap(), absolute);
    }

    #[test]
    fn ways_out_are_refused() {
        let (_outer, root, home) = sandbox();
        symlink("/etc", home.join("etc")).unwrap();
        symlink("/nowhere/at/all", home.join("dangling")).unwrap();
        for path in ["/etc/passwd", "../../x", "etc/passwd", "etc", "dangling", "none/../../../x", "/"] {
            assert!(matches!(resolve(&root, &home, path), Err(PathError::Outside)), "{path}");
        }
    }

    #[test]
    fn a_link_itself_can_be_removed_but_not_the_root() {
        let (_outer, root, home) = sandbox();
        symlink("/etc", home.join("etc")).unwrap();
        assert_eq!(resolve_entry(&root, &home, "etc").unwrap(), home.join("etc"));
        assert!(resolve_entry(&root, &home, root.to_str().unwrap()).is_err());
        assert!(resolve_entry(&root, &home, "etc/passwd").is_err());
    }
}
