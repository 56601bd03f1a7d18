//! Looking into the files of a sandbox: by name, by content, and changing what is found.

use std::fs;
use std::path::Path;

use axum::extract::Query;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use regex_lite::Regex;
use serde::Deserialize;
use serde_json::{Value, json};

use super::daemon::{Daemon, Here};
use super::files::real_path;
use super::problem::Problem;

/// A file with a NUL among so many of its first bytes is no text.
const SNIFFED: usize = 512;

pub(super) fn router() -> Router {
    Router::new()
        .route("/files/search", get(search))
        .route("/files/find", get(find))
        .route("/files/replace", post(replace))
}

#[derive(Deserialize)]
struct Wanted {
    #[serde(default)]
    path: String,
    #[serde(default)]
    pattern: String,
}

impl Wanted {
    fn check(&self) -> Result<(), Problem> {
        let missing = self.path.is_empty() || self.pattern.is_empty();
        if missing { Err(Problem::Empty(StatusCode::BAD_REQUEST)) } else { Ok(()) }
    }
}

async fn search(Extension(daemon): Here, Query(wanted): Query<Wanted>) -> Result<Json<Value>, Problem> {
    wanted.check()?;
    let mut files = Vec::new();
    // A pattern that is none matches nothing.
    if let Some(pattern) = glob(&wanted.pattern) {
        walk(&daemon, &wanted.path, &mut |path, _| {
            let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
            if pattern.is_match(&name) {
                files.push(path.to_owned());
            }
        });
    }
    Ok(Json(json!({ "files": files })))
}

async fn find(Extension(daemon): Here, Query(wanted): Query<Wanted>) -> Result<Json<Vec<Value>>, Problem> {
    wanted.check()?;
    let mut found = Vec::new();
    walk(&daemon, &wanted.path, &mut |path, real| {
        let is_file = real.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
        let content = if is_file { fs::read(real).unwrap_or_default() } else { Vec::new() };
        if content.iter().take(SNIFFED).any(|byte| *byte == 0) {
            return;
        }
        for (number, line) in String::from_utf8_lossy(&content).lines().enumerate() {
            if line.contains(&wanted.pattern) {
                found.push(json!({ "file": path, "line": number + 1, "content": line }));
            }
        }
    });
    Ok(Json(found))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Replace {
    files: Vec<String>,
    pattern: String,
    new_value: String,
}

async fn replace(Extension(daemon): Here, bytes: axum::body::Bytes) -> Result<Json<Vec<Value>>, Problem> {
    let body: Replace = serde_json::from_slice(&bytes).map_err(|_| Problem::Empty(StatusCode::BAD_REQUEST))?;
    if body.pattern.is_empty() {
        return Err(Problem::Empty(StatusCode::BAD_REQUEST));
    }
    let replaced = body.files.iter().map(|file| {
        let real = real_path(&daemon, file).map_err(|_| format!("open {file}: no such file or directory"))?;
        let doing = if real.is_dir() { "read" } else { "open" };
        let content = fs::read(&real).map_err(|error| format!("{doing} {file}: {}", reason(&error)))?;
        let content = String::from_utf8_lossy(&content).replace(&body.pattern, &body.new_value);
        fs::write(&real, content).map_err(|error| format!("open {file}: {}", reason(&error)))
    });
    let results = replaced.zip(&body.files).map(|(result, file)| match result {
        Ok(()) => json!({ "file": file, "success": true }),
        Err(error) => json!({ "file": file, "success": false, "error": error }),
    });
    Ok(Json(results.collect()))
}

/// What the system says of an error, as the daemon's language spells it.
pub(super) fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Shows everything at and below `path`, in the order of the names, with the path as it was given. Links are seen, and
/// not followed.
fn walk(daemon: &Daemon, path: &str, see: &mut impl FnMut(&str, &Path)) {
    let Ok(real) = real_path(daemon, path) else { return };
    if !real.exists() {
        return;
    }
    let shown = path.trim_end_matches('/');
    descend(if shown.is_empty() { "/" } else { shown }, &real, see);
}

fn descend(shown: &str, real: &Path, see: &mut impl FnMut(&str, &Path)) {
    see(shown, real);
    if !real.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return;
    }
    let Ok(entries) = fs::read_dir(real) else { return };
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        let below = name.to_string_lossy();
        let shown = if shown == "." { below.into_owned() } else { format!("{shown}/{below}") };
        descend(&shown, &real.join(&name), see);
    }
}

/// `*`, `?` and `[..]`, as in file names of a shell.
fn glob(pattern: &str) -> Option<Regex> {
    let (mut regex, mut letters) = ("(?s)^".to_owned(), pattern.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '*' => regex.push_str("[^/]*"),
            '?' => regex.push_str("[^/]"),
            '[' | ']' | '-' | '^' => regex.push(letter),
            '\\' => regex.push_str(&regex_lite::escape(&letters.next()?.to_string())),
            _ => regex.push_str(&regex_lite::escape(&letter.to_string())),
        }
    }
    Regex::new(&(regex + "$")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_as_in_a_shell() {
        let fits = |pattern: &str, name: &str| glob(pattern).is_some_and(|regex| regex.is_match(name));
        assert!(fits("*.rs", "a.rs") && !fits("*.rs", "a.rs.bak") && !fits("*.rs", "axrs"));
        assert!(fits("a?[b-d]", "axc") && !fits("a?[b-d]", "axe"));
        assert!(fits("a\\*", "a*") && !fits("a\\*", "ab") && !fits("[", "["));
    }
}
