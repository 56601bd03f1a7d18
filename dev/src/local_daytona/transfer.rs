//! File contents in and out.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::multipart::Field;
use axum::extract::{FromRequest, Multipart, Query, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde_json::{Value, json};
use tokio::fs;
use tokio::io::AsyncWriteExt;

use super::daemon::Daemon;
use super::daemon::Here;
use super::files::{At, bad_request, existing_path, real_path, refused};
use super::problem::Problem;

/// Of directories that an upload makes on its way; a bulk upload makes them 0755.
const PARENT_MODE: u32 = 0o750;

pub(super) fn router() -> Router {
    Router::new()
        .route("/files/upload", post(upload))
        .route("/files/upload-v2", post(upload_v2))
        .route("/files/download", get(download))
}

async fn upload(Extension(daemon): Here, Query(at): Query<At>, request: Request) -> Result<StatusCode, Problem> {
    upload_form(&daemon, &at.path, request).await?;
    Ok(StatusCode::OK)
}

/// The newer form: a multipart field or the bare content.
async fn upload_v2(Extension(daemon): Here, Query(at): Query<At>, request: Request) -> Result<Json<Value>, Problem> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with("multipart/")) {
        upload_form(&daemon, &at.path, request).await?;
    } else {
        let path = real_path(&daemon, &at.path)?;
        let content = Bytes::from_request(request, &()).await.map_err(|_| bad_request())?;
        let mut file = create(&path).await?;
        file.write_all(&content).await.map_err(|_| bad_request())?;
        file.flush().await.map_err(|_| bad_request())?;
    }
    let name = Path::new(&at.path).file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Json(json!({ "name": name, "path": at.path, "type": "file" })))
}

async fn upload_form(daemon: &Arc<Daemon>, path: &str, request: Request) -> Result<(), Problem> {
    let path = real_path(daemon, path)?;
    let mut form = Multipart::from_request(request, &()).await.map_err(|_| bad_request())?;
    while let Some(field) = form.next_field().await.map_err(|_| bad_request())? {
        if field.name() == Some("file") {
            return store(&path, field).await;
        }
    }
    Err(bad_request())
}

async fn store(path: &Path, mut field: Field<'_>) -> Result<(), Problem> {
    let mut file = create(path).await?;
    while let Some(chunk) = field.chunk().await.map_err(|_| bad_request())? {
        file.write_all(&chunk).await.map_err(|_| bad_request())?;
    }
    file.flush().await.map_err(|_| bad_request())
}

async fn create(path: &Path) -> Result<fs::File, Problem> {
    if let Some(parent) = path.parent() {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(PARENT_MODE).create(parent).await.map_err(|_| bad_request())?;
    }
    fs::File::create(path).await.map_err(|_| bad_request())
}

async fn download(Extension(daemon): Here, Query(at): Query<At>, headers: HeaderMap) -> Result<Response, Problem> {
    let path = existing_path(&daemon, &at.path)?;
    let content = read(&path).await.map_err(|error| refused(&error))?;
    let wanted = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let about = [
        ("content-description", "File Transfer"),
        ("content-transfer-encoding", "binary"),
        ("content-disposition", &format!("attachment; {}", file_name(&name))),
        ("expires", "0"),
        ("pragma", "public"),
    ];
    let served = [
        ("content-type", "application/octet-stream"),
        ("accept-ranges", "bytes"),
        ("cache-control", "must-revalidate"),
    ];
    let total = content.len();
    let partial = |range: String, body: Vec<u8>| {
        (StatusCode::PARTIAL_CONTENT, about, served, [(header::CONTENT_RANGE, range)], body).into_response()
    };
    Ok(match wanted.map_or(Part::Whole, |range| part(range, total)) {
        Part::Whole => (about, served, Body::from(content)).into_response(),
        Part::Between(first, last) => {
            let body = content.get(first..=last).unwrap_or_default().to_vec();
            partial(format!("bytes {first}-{last}/{total}"), body)
        }
        Part::TailOfNothing => partial("bytes 0--1/0".to_owned(), Vec::new()),
        Part::Beyond => {
            let range = [(header::CONTENT_RANGE, format!("bytes */{total}"))];
            (about, range, unsatisfiable("invalid range: failed to overlap\n")).into_response()
        }
        Part::Malformed => (about, unsatisfiable("invalid range\n")).into_response(),
    })
}

fn unsatisfiable(why: &'static str) -> Response {
    let sniffing = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (StatusCode::RANGE_NOT_SATISFIABLE, sniffing, why).into_response()
}

/// The name of a file for a header, plain and for who can read all letters.
pub(super) fn file_name(name: &str) -> String {
    let plain: String = name
        .chars()
        .filter(|letter| !matches!(letter, '\r' | '\n' | '\0'))
        .flat_map(|letter| match letter {
            '"' | '\\' => vec!['\\', letter],
            ' '..='~' => vec![letter],
            _ => vec!['_'],
        })
        .collect();
    let encoded = name.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
            text.push(byte.into());
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
        text
    });
    format!("filename=\"{plain}\"; filename*=utf-8''{encoded}")
}

/// A directory or a FIFO is no file to read: opening the latter would never return.
pub(super) async fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if !fs::metadata(path).await?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    fs::read(path).await
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Whole,
    Between(usize, usize),
    Beyond,
    Malformed,
    /// The last bytes of an empty file: as measured it is served, with a range that is none.
    TailOfNothing,
}

/// One range; several are ignored, as the standard allows, and so is one from some byte on of an empty file.
fn part(range: &str, total: usize) -> Part {
    let Some(range) = range.strip_prefix("bytes=") else { return Part::Malformed };
    if total == 0 && range.starts_with('-') {
        return Part::TailOfNothing;
    }
    if range.contains(',') || total == 0 {
        return Part::Whole;
    }
    let Some((first, last)) = range.split_once('-') else { return Part::Malformed };
    let end = total.saturating_sub(1);
    let (first, last) = match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
        (Ok(first), Ok(last)) if first > last => return Part::Malformed,
        (Ok(first), Ok(last)) => (first, last.min(end)),
        (Ok(first), Err(_)) if last.trim().is_empty() => (first, end),
        (Err(_), Ok(0)) if first.is_empty() => return Part::Beyond,
        (Err(_), Ok(suffix)) if first.is_empty() => (total.saturating_sub(suffix), end),
        _ => return Part::Malformed,
    };
    if first >= total { Part::Beyond } else { Part::Between(first, last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_daemon_reads_them() {
        assert_eq!(part("bytes=0-3", 10), Part::Between(0, 3));
        assert_eq!(part("bytes=8-99", 10), Part::Between(8, 9));
        assert_eq!(part("bytes=4-", 10), Part::Between(4, 9));
        assert_eq!(part("bytes=-4", 10), Part::Between(6, 9));
        assert_eq!(part("bytes=-40", 10), Part::Between(0, 9));
        assert_eq!(part("bytes=10-", 10), Part::Beyond);
        assert_eq!(part("bytes=0-", 0), Part::Whole);
        assert_eq!(part("bytes=-9", 0), Part::TailOfNothing);
        assert_eq!(part("bytes=0-1,3-4", 10), Part::Whole);
        for malformed in ["lines=1", "bytes=4", "bytes=4-2", "bytes=x-", "bytes=-"] {
            assert_eq!(part(malformed, 10), Part::Malformed, "{malformed}");
        }
    }
}
