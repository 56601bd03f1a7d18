//! The files of a sandbox: looking, listing, making, removing. Content is in `transfer`.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use axum::extract::Query;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::daemon::Daemon;
use super::daemon::Here;
use super::paths::{self, PathError};
use super::problem::Problem;

pub(super) fn router() -> Router {
    Router::new()
        .route("/files", get(list).delete(remove))
        .route("/files/info", get(info))
        .route("/files/folder", post(folder))
        .route("/files/permissions", post(permissions))
        .route("/files/move", post(rename))
}

/// The query of most file calls.
#[derive(Deserialize)]
pub(super) struct At {
    #[serde(default)]
    pub(super) path: String,
    #[serde(default)]
    mode: String,
    #[serde(default)]
    recursive: bool,
}

#[derive(Deserialize)]
struct Move {
    source: String,
    destination: String,
}

impl From<PathError> for Problem {
    fn from(error: PathError) -> Self {
        match error {
            PathError::Outside => Self::Empty(StatusCode::FORBIDDEN),
            PathError::Io(error) => refused(&error),
        }
    }
}

/// What the daemon answers when the file system refuses: no body.
pub(super) fn refused(error: &io::Error) -> Problem {
    Problem::Empty(match error.kind() {
        io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
        io::ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_REQUEST,
    })
}

/// The real path of a file call.
pub(super) fn real_path(daemon: &Daemon, path: &str) -> Result<PathBuf, Problem> {
    if path.is_empty() {
        return Err(Problem::Empty(StatusCode::BAD_REQUEST));
    }
    let place = &daemon.environment;
    Ok(paths::resolve(&place.root, &place.home, path)?)
}

fn entry_path(daemon: &Daemon, path: &str) -> Result<PathBuf, Problem> {
    let place = &daemon.environment;
    Ok(paths::resolve_entry(&place.root, &place.home, path)?)
}

async fn info(Extension(daemon): Here, Query(at): Query<At>) -> Result<Json<Value>, Problem> {
    let path = real_path(&daemon, &at.path)?;
    let metadata = fs::metadata(&path).map_err(|error| refused(&error))?;
    Ok(Json(describe(&path, &metadata)))
}

async fn list(Extension(daemon): Here, Query(at): Query<At>) -> Result<Json<Vec<Value>>, Problem> {
    let path = real_path(&daemon, if at.path.is_empty() { "." } else { &at.path })?;
    let entries = fs::read_dir(&path).map_err(|error| refused(&error))?;
    let described = entries.flatten().filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        Some(describe(&entry.path(), &metadata))
    });
    Ok(Json(described.collect()))
}

async fn folder(Extension(daemon): Here, Query(at): Query<At>) -> Result<StatusCode, Problem> {
    let path = real_path(&daemon, &at.path)?;
    let mode = if at.mode.is_empty() { 0o755 } else { octal(&at.mode)? };
    if path.exists() && !path.is_dir() {
        return Err(Problem::Empty(StatusCode::BAD_REQUEST));
    }
    fs::DirBuilder::new().recursive(true).mode(mode).create(&path).map_err(|error| refused(&error))?;
    Ok(StatusCode::CREATED)
}

async fn permissions(Extension(daemon): Here, Query(at): Query<At>) -> Result<StatusCode, Problem> {
    let path = real_path(&daemon, &at.path)?;
    if !at.mode.is_empty() {
        // Set-id bits are ignored.
        let permissions = fs::Permissions::from_mode(octal(&at.mode)? & 0o777);
        fs::set_permissions(&path, permissions).map_err(|error| refused(&error))?;
    }
    Ok(StatusCode::OK)
}

async fn rename(Extension(daemon): Here, Query(query): Query<Move>) -> Result<StatusCode, Problem> {
    let source = entry_path(&daemon, &query.source)?;
    let destination = entry_path(&daemon, &query.destination)?;
    if destination.symlink_metadata().is_ok() {
        return Err(Problem::Empty(StatusCode::CONFLICT));
    }
    fs::rename(source, destination).map_err(|error| refused(&error))?;
    Ok(StatusCode::OK)
}

async fn remove(Extension(daemon): Here, Query(at): Query<At>) -> Result<StatusCode, Problem> {
    let path = entry_path(&daemon, &at.path)?;
    let metadata = fs::symlink_metadata(&path).map_err(|error| refused(&error))?;
    let removed = match (metadata.is_dir(), at.recursive) {
        (true, false) => return Err(Problem::Empty(StatusCode::BAD_REQUEST)),
        (true, true) => fs::remove_dir_all(&path),
        (false, _) => fs::remove_file(&path),
    };
    removed.map_err(|error| refused(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

fn octal(mode: &str) -> Result<u32, Problem> {
    u32::from_str_radix(mode, 8).map_err(|_| Problem::Empty(StatusCode::BAD_REQUEST))
}

fn describe(path: &Path, metadata: &Metadata) -> Value {
    let mode = metadata.mode();
    let modified = jiff::Timestamp::from_second(metadata.mtime()).unwrap_or_default().to_string();
    json!({
        "name": path.file_name().unwrap_or_default().to_string_lossy(),
        "size": metadata.len(),
        "mode": letters(metadata.is_dir(), mode),
        "modTime": modified,
        "modifiedAt": modified,
        "isDir": metadata.is_dir(),
        "owner": metadata.uid().to_string(),
        "group": metadata.gid().to_string(),
        "permissions": format!("{:04o}", mode & 0o777),
    })
}

fn letters(is_dir: bool, mode: u32) -> String {
    let kind = if is_dir { 'd' } else { '-' };
    let bits = (0..9).rev().zip("rwxrwxrwx".chars());
    std::iter::once(kind).chain(bits.map(|(bit, c)| if mode >> bit & 1 == 1 { c } else { '-' })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_reads_as_ls_writes_it() {
        assert_eq!(letters(false, 0o100_644), "-rw-r--r--");
        assert_eq!(letters(true, 0o755), "drwxr-xr-x");
    }
}
