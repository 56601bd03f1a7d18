//! File contents in and out.

use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::multipart::Field;
use axum::extract::{FromRequest, Multipart, Query, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::fs;
use tokio::io::AsyncWriteExt;

use super::daemon::Daemon;
use super::daemon::Here;
use super::files::{At, real_path, refused};
use super::problem::Problem;

const BOUNDARY: &str = "DAYTONA-FILE-BOUNDARY";

pub(super) fn router() -> Router {
    Router::new()
        .route("/files/upload", post(upload))
        .route("/files/upload-v2", post(upload_v2))
        .route("/files/bulk-upload", post(bulk_upload))
        .route("/files/download", get(download))
        .route("/files/bulk-download", post(bulk_download))
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
        let mut file = create(&path).await.map_err(|error| refused(&error))?;
        file.write_all(&content).await.map_err(|error| refused(&error))?;
        file.flush().await.map_err(|error| refused(&error))?;
    }
    let name = Path::new(&at.path).file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Json(json!({ "name": name, "path": at.path, "type": "file" })))
}

async fn upload_form(daemon: &Arc<Daemon>, path: &str, request: Request) -> Result<(), Problem> {
    let path = real_path(daemon, path)?;
    let mut form = Multipart::from_request(request, &()).await.map_err(|_| bad_request())?;
    while let Some(field) = form.next_field().await.map_err(|_| bad_request())? {
        if field.name() == Some("file") {
            store(&path, field).await.map_err(|_| bad_request())?;
            return Ok(());
        }
    }
    Err(bad_request())
}

/// Pairs of parts: `files[i].path`, then `files[i].file`. What worked stays when another fails.
async fn bulk_upload(Extension(daemon): Here, request: Request) -> Response {
    let (mut stored, mut errors) = (Vec::new(), Vec::new());
    if let Err(error) = store_all(&daemon, request, &mut stored, &mut errors).await {
        errors.push(error);
    }
    if errors.is_empty() {
        return Json(json!({ "files": stored })).into_response();
    }
    (StatusCode::BAD_REQUEST, Json(json!({ "errors": errors, "files": stored }))).into_response()
}

async fn store_all(
    daemon: &Arc<Daemon>,
    request: Request,
    stored: &mut Vec<Value>,
    errors: &mut Vec<String>,
) -> Result<(), String> {
    let mut form =
        Multipart::from_request(request, &()).await.map_err(|error| format!("invalid multipart: {error}"))?;
    let mut destination: Option<(String, String)> = None;
    while let Some(field) = form.next_field().await.map_err(|error| error.to_string())? {
        let name = field.name().unwrap_or_default().to_owned();
        if let Some(index) = name.strip_suffix(".path") {
            let path = field.text().await.map_err(|error| error.to_string())?;
            destination = Some((index.to_owned(), path));
        } else if let Some(index) = name.strip_suffix(".file") {
            let Some((_, path)) = destination.take().filter(|(of, _)| of == index) else {
                errors.push(format!("{name}: no path before it"));
                continue;
            };
            let result = match real_path(daemon, &path) {
                Ok(real) => store(&real, field).await.map_err(|error| error.clone()),
                Err(problem) => Err(problem.to_string()),
            };
            match result {
                Ok(bytes) => stored.push(json!({ "path": path, "bytes": bytes })),
                Err(error) => errors.push(format!("{path}: {error}")),
            }
        }
    }
    Ok(())
}

async fn store(path: &Path, mut field: Field<'_>) -> Result<u64, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut file = create(path).await.map_err(text)?;
    let mut count = 0;
    while let Some(chunk) = field.chunk().await.map_err(|error| error.to_string())? {
        file.write_all(&chunk).await.map_err(text)?;
        count += chunk.len() as u64;
    }
    file.flush().await.map_err(text)?;
    Ok(count)
}

async fn create(path: &Path) -> std::io::Result<fs::File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).await?;
    }
    fs::File::create(path).await
}

async fn download(Extension(daemon): Here, Query(at): Query<At>, headers: HeaderMap) -> Result<Response, Problem> {
    let path = real_path(&daemon, &at.path)?;
    let content = read(&path).await.map_err(|error| refused(&error))?;
    let wanted = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let kind = [(header::CONTENT_TYPE, "application/octet-stream"), (header::ACCEPT_RANGES, "bytes")];
    let total = content.len();
    match wanted.map(|range| part(range, total)) {
        None | Some(Part::Whole) => Ok((kind, Body::from(content)).into_response()),
        Some(Part::Between(first, last)) => {
            let range = format!("bytes {first}-{last}/{total}");
            let body = content.get(first..=last).unwrap_or_default().to_vec();
            Ok((StatusCode::PARTIAL_CONTENT, kind, [(header::CONTENT_RANGE, range)], body).into_response())
        }
        Some(Part::Beyond) => {
            let range = format!("bytes */{total}");
            Ok((StatusCode::RANGE_NOT_SATISFIABLE, [(header::CONTENT_RANGE, range)]).into_response())
        }
    }
}

/// A directory or a FIFO is no file to read: opening the latter would never return.
async fn read(path: &Path) -> std::io::Result<Vec<u8>> {
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
}

/// One range; several or malformed ones are ignored, as the standard allows.
fn part(range: &str, total: usize) -> Part {
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Part::Whole;
    };
    let end = total.saturating_sub(1);
    let (first, last) = match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
        (Ok(first), Ok(last)) if first > last => return Part::Whole,
        (Ok(first), Ok(last)) => (first, last.min(end)),
        (Ok(first), Err(_)) if last.trim().is_empty() => (first, end),
        (Err(_), Ok(0)) if first.is_empty() => return Part::Beyond,
        (Err(_), Ok(suffix)) if first.is_empty() => (total.saturating_sub(suffix), end),
        _ => return Part::Whole,
    };
    if first >= total { Part::Beyond } else { Part::Between(first, last) }
}

#[derive(Deserialize)]
struct Paths {
    paths: Vec<String>,
}

/// The answer is 200 whatever becomes of the single files.
async fn bulk_download(Extension(daemon): Here, bytes: Bytes) -> Result<Response, Problem> {
    let body: Paths = serde_json::from_slice(&bytes).map_err(Problem::invalid_body)?;
    if body.paths.is_empty() {
        return Err(Problem::daemon_bad_request("request body must be {paths: [...]} and non-empty"));
    }
    let mut answer = Vec::new();
    for path in &body.paths {
        let (name, kind, content) = match content(&daemon, path).await {
            Ok(content) => ("file", "application/octet-stream", content),
            Err(error) => ("error", "application/json", error.to_string().into_bytes()),
        };
        let file = path.replace(['"', '\\', '\r', '\n'], "_");
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{file}\"\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            content.len()
        );
        answer.extend_from_slice(head.as_bytes());
        answer.extend_from_slice(&content);
        answer.extend_from_slice(b"\r\n");
    }
    answer.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    Ok(([(header::CONTENT_TYPE, kind)], answer).into_response())
}

async fn content(daemon: &Arc<Daemon>, path: &str) -> Result<Vec<u8>, Value> {
    let missing = |status: StatusCode| match status {
        StatusCode::NOT_FOUND => (404, "FILE_NOT_FOUND", "file not found"),
        StatusCode::FORBIDDEN => (403, "FILE_ACCESS_DENIED", "access denied"),
        _ => (400, "INVALID_FILE_PATH", "invalid file path"),
    };
    let result = match real_path(daemon, path) {
        Ok(real) => read(&real).await.map_err(|error| refused(&error)),
        Err(problem) => Err(problem),
    };
    result.map_err(|problem| {
        let status = if let Problem::Empty(status) = problem { status } else { StatusCode::BAD_REQUEST };
        let (status, code, message) = missing(status);
        json!({ "statusCode": status, "message": format!("{message}: {path}"), "code": code })
    })
}

fn bad_request() -> Problem {
    Problem::Empty(StatusCode::BAD_REQUEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        assert_eq!(part("bytes=0-3", 10), Part::Between(0, 3));
        assert_eq!(part("bytes=8-99", 10), Part::Between(8, 9));
        assert_eq!(part("bytes=4-", 10), Part::Between(4, 9));
        assert_eq!(part("bytes=-4", 10), Part::Between(6, 9));
        assert_eq!(part("bytes=-40", 10), Part::Between(0, 9));
        assert_eq!(part("bytes=10-", 10), Part::Beyond);
        assert_eq!(part("bytes=0-", 0), Part::Beyond);
        assert_eq!(part("bytes=0-1,3-4", 10), Part::Whole);
        assert_eq!(part("lines=1", 10), Part::Whole);
    }
}
