//! Many files in one request.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::multipart::Field;
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::fs;
use tokio::io::AsyncWriteExt;

use super::clock::Moment;
use super::daemon::{Daemon, Here};
use super::files::{self, real_path};
use super::problem::Problem;
use super::search::reason;
use super::transfer::{file_name, read};

const BOUNDARY: &str = "DAYTONA-FILE-BOUNDARY";

const JSON_UTF_8: &str = "application/json; charset=utf-8";

pub(super) fn router() -> Router {
    Router::new().route("/files/bulk-upload", post(upload)).route("/files/bulk-download", post(download))
}

#[derive(Default)]
struct Stored {
    files: Vec<Value>,
    errors: Vec<String>,
}

/// Pairs of parts: `files[i].path`, then `files[i].file`. What worked stays when another fails.
async fn upload(Extension(daemon): Here, request: Request) -> Response {
    let Ok(form) = Multipart::from_request(request, &()).await else {
        return refused(&json!({ "errors": ["invalid multipart form"] }));
    };
    let mut stored = Stored::default();
    store_all(&daemon, form, &mut stored).await;
    // Nothing at all is null, not an empty list.
    let files = if stored.files.is_empty() { Value::Null } else { stored.files.into() };
    if stored.errors.is_empty() {
        return Json(json!({ "files": files })).into_response();
    }
    refused(&json!({ "errors": stored.errors, "files": files }))
}

fn refused(body: &Value) -> Response {
    (StatusCode::BAD_REQUEST, [(header::CONTENT_TYPE, JSON_UTF_8)], body.to_string()).into_response()
}

async fn store_all(daemon: &Daemon, mut form: Multipart, stored: &mut Stored) {
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let field = match form.next_field().await {
            Ok(Some(field)) => field,
            Ok(None) => return,
            Err(error) => return stored.errors.push(format!("reading part: {error}")),
        };
        let name = field.name().unwrap_or_default().to_owned();
        let index = |end: &str| {
            let index = name.strip_suffix(end)?;
            Some(index.strip_prefix("files[").and_then(|index| index.strip_suffix(']')).unwrap_or(index).to_owned())
        };
        if let Some(index) = index(".path") {
            match field.text().await.map(|path| path.trim().to_owned()) {
                Ok(path) if path.is_empty() => stored.errors.push(format!("path[{index}]: empty path")),
                Ok(path) => drop(paths.insert(index, path)),
                Err(error) => stored.errors.push(format!("path[{index}]: {error}")),
            }
        } else if let Some(index) = index(".file") {
            let Some(path) = paths.get(&index) else {
                stored.errors.push(format!("file[{index}]: missing .path metadata"));
                continue;
            };
            match store(daemon, path, field).await {
                Ok(bytes) => stored.files.push(json!({ "path": path, "bytes": bytes })),
                Err(error) => stored.errors.push(format!("{path}: {error}")),
            }
        }
    }
}

async fn store(daemon: &Daemon, path: &str, mut field: Field<'_>) -> Result<u64, String> {
    let said = |doing: &str, error: &io::Error| format!("{doing}: {}", reason(error));
    let shown = Path::new(path).parent().unwrap_or_else(|| Path::new("")).display();
    let real = real_path(daemon, path).map_err(|problem| match problem {
        Problem::Empty(StatusCode::FORBIDDEN) => format!("create: open {path}: permission denied"),
        _ => format!("mkdir {shown}: mkdir {shown}: not a directory"),
    })?;
    if let Some(parent) = real.parent() {
        fs::create_dir_all(parent).await.map_err(|error| said(&format!("mkdir {shown}: mkdir {shown}"), &error))?;
    }
    let mut file = fs::File::create(&real).await.map_err(|error| said(&format!("create: open {path}"), &error))?;
    let mut count = 0;
    while let Some(chunk) = field.chunk().await.map_err(|error| format!("write: {error}"))? {
        file.write_all(&chunk).await.map_err(|error| said("write", &error))?;
        count += chunk.len() as u64;
    }
    file.flush().await.map_err(|error| said("close", &error))?;
    Ok(count)
}

#[derive(Deserialize)]
struct Paths {
    paths: Vec<String>,
}

/// The answer is 200 whatever becomes of the single files.
async fn download(Extension(daemon): Here, Extension(now): Extension<Moment>, bytes: Bytes) -> Response {
    let paths = serde_json::from_slice::<Paths>(&bytes).map(|body| body.paths);
    // The kind of the answer is set by whoever refuses first.
    let said_in = if paths.is_ok() { JSON_UTF_8 } else { "text/plain; charset=utf-8" };
    let paths = paths.unwrap_or_default();
    if paths.is_empty() {
        let error = json!({ "error": "request body must be {\"paths\": [ ... ]} and non-empty" });
        return (StatusCode::BAD_REQUEST, [(header::CONTENT_TYPE, said_in)], error.to_string()).into_response();
    }
    let mut answer = Vec::new();
    for path in &paths {
        let (name, kind, content) = match content(&daemon, path).await {
            Ok(content) => ("file", kind(path), content),
            Err((status, code, message)) => {
                let error = json!({
                    "statusCode": status, "message": message, "code": code,
                    "timestamp": now.to_string(), "path": path, "method": "POST",
                });
                ("error", JSON_UTF_8, error.to_string().into_bytes())
            }
        };
        let length = if name == "file" { format!("Content-Length: {}\r\n", content.len()) } else { String::new() };
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"; {}\r\n\
             {length}Content-Type: {kind}\r\n\r\n",
            file_name(path)
        );
        answer.extend([head.as_bytes(), &content, b"\r\n"].concat());
    }
    answer.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    ([(header::CONTENT_TYPE, kind)], answer).into_response()
}

async fn content(daemon: &Arc<Daemon>, path: &str) -> Result<Vec<u8>, (u16, &'static str, String)> {
    let invalid = |what: String| (400, "INVALID_FILE_PATH", format!("invalid file path: {what}"));
    if path.is_empty() {
        return Err(invalid("path is empty".to_owned()));
    }
    let real = real_path(daemon, path);
    if real.as_ref().is_ok_and(|real| real.is_dir()) {
        return Err(invalid(format!("path points to a directory: {path}")));
    }
    let result = match real {
        Ok(real) => read(&real).await.map_err(|error| files::refused(&error)),
        Err(problem) => Err(problem),
    };
    result.map_err(|problem| match problem {
        Problem::Empty(StatusCode::NOT_FOUND) => (404, "FILE_NOT_FOUND", format!("file not found: {path}")),
        Problem::Empty(StatusCode::FORBIDDEN) => (403, "FILE_ACCESS_DENIED", format!("permission denied: {path}")),
        _ => (500, "FILE_READ_FAILED", format!("failed to open file: {path}")),
    })
}

/// By the ending of the name.
fn kind(path: &str) -> &'static str {
    match Path::new(path).extension().and_then(|ending| ending.to_str()).unwrap_or_default() {
        "css" => "text/css; charset=utf-8",
        "gif" => "image/gif",
        "htm" | "html" => "text/html; charset=utf-8",
        "jpeg" | "jpg" => "image/jpeg",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        "wasm" => "application/wasm",
        "webp" => "image/webp",
        "xml" => "text/xml; charset=utf-8",
        _ => "application/octet-stream",
    }
}
