//! The files of a sandbox: looking, listing, making, removing. Content is in `transfer`.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Component, Path, PathBuf};

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
        .route("/files/", get(list).delete(remove))
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
    recursive: String,
    #[serde(default)]
    owner: String,
    #[serde(default)]
    group: String,
}

#[derive(Deserialize)]
struct Move {
    #[serde(default)]
    source: String,
    #[serde(default)]
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
        return Err(bad_request());
    }
    let place = &daemon.environment;
    Ok(paths::resolve(&place.root, &place.home, path)?)
}

/// The real path of something that is there. A link to nowhere is as good as nothing.
pub(super) fn existing_path(daemon: &Daemon, path: &str) -> Result<PathBuf, Problem> {
    match daemon.environment.home.join(path).metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_empty() => Err(refused(&error)),
        _ => real_path(daemon, path),
    }
}

fn entry_path(daemon: &Daemon, path: &str) -> Result<PathBuf, Problem> {
    if path.is_empty() {
        return Err(bad_request());
    }
    let place = &daemon.environment;
    Ok(paths::resolve_entry(&place.root, &place.home, path)?)
}

async fn info(Extension(daemon): Here, Query(at): Query<At>) -> Result<Json<Value>, Problem> {
    let metadata = fs::metadata(existing_path(&daemon, &at.path)?).map_err(|error| refused(&error))?;
    Ok(Json(describe(Path::new(&at.path), &metadata)))
}

/// In the order of the names. A link is shown as what it leads to, and not at all when that is nowhere.
async fn list(Extension(daemon): Here, Query(at): Query<At>) -> Result<Json<Vec<Value>>, Problem> {
    let path = existing_path(&daemon, if at.path.is_empty() { "." } else { &at.path })?;
    let mut entries: Vec<_> = fs::read_dir(&path).map_err(|error| refused(&error))?.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    let described = entries.iter().filter_map(|entry| {
        let real = real_path(&daemon, &entry.path().to_string_lossy()).ok()?;
        Some(describe(&entry.path(), &fs::metadata(real).ok()?))
    });
    Ok(Json(described.collect()))
}

async fn folder(Extension(daemon): Here, Query(at): Query<At>) -> Result<StatusCode, Problem> {
    let path = real_path(&daemon, &at.path)?;
    let mode = if at.mode.is_empty() { 0o755 } else { octal(&at.mode)? };
    if path.exists() && !path.is_dir() {
        return Err(bad_request());
    }
    fs::DirBuilder::new().recursive(true).mode(mode).create(&path).map_err(|_| bad_request())?;
    Ok(StatusCode::CREATED)
}

async fn permissions(Extension(daemon): Here, Query(at): Query<At>) -> Result<StatusCode, Problem> {
    let path = existing_path(&daemon, &at.path)?;
    if !at.mode.is_empty() {
        // Set-id bits are ignored.
        let permissions = fs::Permissions::from_mode(octal(&at.mode)? & 0o777);
        fs::set_permissions(&path, permissions).map_err(|_| bad_request())?;
    }
    let owner = number(&at.owner, "/etc/passwd")?;
    let group = number(&at.group, "/etc/group")?;
    if owner.is_some() || group.is_some() {
        chown(&path, owner, group).map_err(|_| bad_request())?;
    }
    Ok(StatusCode::OK)
}

/// The number of a user or a group that is given as one or by its name.
fn number(wanted: &str, register: &str) -> Result<Option<u32>, Problem> {
    if wanted.is_empty() {
        return Ok(None);
    }
    if let Ok(number) = wanted.parse() {
        return Ok(Some(number));
    }
    let entries = fs::read_to_string(register).unwrap_or_default();
    let entry =
        entries.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|entry| entry.first() == Some(&wanted));
    let number = entry.and_then(|entry| entry.get(2)?.parse().ok());
    number.map(Some).ok_or_else(bad_request)
}

async fn rename(Extension(daemon): Here, Query(query): Query<Move>) -> Result<StatusCode, Problem> {
    let source = entry_path(&daemon, &query.source)?;
    source.metadata().map_err(|error| refused(&error))?;
    let destination = entry_path(&daemon, &query.destination)?;
    if destination.symlink_metadata().is_ok() {
        return Err(Problem::Empty(StatusCode::CONFLICT));
    }
    fs::rename(source, destination).map_err(|error| refused(&error))?;
    Ok(StatusCode::OK)
}

async fn remove(Extension(daemon): Here, Query(at): Query<At>) -> Result<StatusCode, Problem> {
    let path = entry_path(&daemon, &at.path)?;
    path.metadata().map_err(|error| refused(&error))?;
    let metadata = fs::symlink_metadata(&path).map_err(|error| refused(&error))?;
    let removed = match (metadata.is_dir(), at.recursive == "true") {
        (true, false) => return Err(bad_request()),
        (true, true) => fs::remove_dir_all(&path),
        (false, _) => fs::remove_file(&path),
    };
    removed.map_err(|error| refused(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Most refusals of file calls are no more than this.
pub(super) fn bad_request() -> Problem {
    Problem::Empty(StatusCode::BAD_REQUEST)
}

fn octal(mode: &str) -> Result<u32, Problem> {
    u32::from_str_radix(mode, 8).map_err(|_| bad_request())
}

/// By the last part of the path as it was given.
fn describe(path: &Path, metadata: &Metadata) -> Value {
    let mode = metadata.mode();
    let nanos = i32::try_from(metadata.mtime_nsec()).unwrap_or_default();
    let modified = jiff::Timestamp::new(metadata.mtime(), nanos).unwrap_or_default();
    let name = match path.components().next_back() {
        Some(Component::Normal(name)) => name.to_string_lossy().into_owned(),
        Some(Component::ParentDir) => "..".to_owned(),
        Some(Component::RootDir) => "/".to_owned(),
        _ => ".".to_owned(),
    };
    json!({
        "name": name,
        "size": metadata.len(),
        "mode": letters(mode),
        // As the daemon's language writes a time, which is no standard.
        "modTime": modified.to_string().replace('T', " ").replace('Z', " +0000 UTC"),
        "modifiedAt": modified.to_string(),
        "isDir": metadata.is_dir(),
        "owner": metadata.uid().to_string(),
        "group": metadata.gid().to_string(),
        "permissions": format!("{:04o}", mode & 0o777),
    })
}

/// Not as `ls` does: kinds and special bits are letters before the nine.
fn letters(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => "d",
        0o060_000 => "D",
        0o020_000 => "Dc",
        0o010_000 => "p",
        0o140_000 => "S",
        _ => "",
    };
    let (device, character) = kind.split_at(kind.len().min(1));
    let special = [(0o4000, "u"), (0o2000, "g")].map(|(bit, letter)| if mode & bit == 0 { "" } else { letter });
    let sticky = if mode & 0o1000 == 0 { "" } else { "t" };
    let before = [device, &special.concat(), character, sticky].concat();
    let bits = (0..9).rev().zip("rwxrwxrwx".chars());
    let nine: String = bits.map(|(bit, c)| if mode >> bit & 1 == 1 { c } else { '-' }).collect();
    if before.is_empty() { format!("-{nine}") } else { before + &nine }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_reads_as_the_daemon_writes_it() {
        assert_eq!(letters(0o100_644), "-rw-r--r--");
        assert_eq!(letters(0o040_755), "drwxr-xr-x");
        assert_eq!(letters(0o041_777), "dtrwxrwxrwx");
        assert_eq!(letters(0o104_755), "urwxr-xr-x");
        assert_eq!(letters(0o020_620), "Dcrw--w----");
    }
}
