//! `POST /process/code-run`: a piece of code for the interpreter of its language.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::Value;

use super::command::quote;
use super::daemon::Here;
use super::execute::{self, Execute};
use super::problem::{Problem, missing_field};

#[derive(Deserialize)]
struct CodeRun {
    #[serde(default)]
    code: String,
    #[serde(default)]
    language: String,
    /// Taken into the command line as they are.
    #[serde(default)]
    argv: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    #[serde(default)]
    timeout: Option<u32>,
}

pub(super) async fn code_run(Extension(daemon): Here, bytes: Bytes) -> Result<Json<Value>, Problem> {
    let body: CodeRun = serde_json::from_slice(&bytes).map_err(Problem::invalid_body)?;
    let fields = [("Code", &body.code), ("Language", &body.language)];
    let missing = fields.iter().filter(|(_, value)| value.is_empty());
    let missing: Vec<_> = missing.map(|(field, _)| missing_field("CodeRunRequest", field)).collect();
    if !missing.is_empty() {
        return Err(Problem::invalid_body(missing.join("\n")));
    }
    let command = script(&body)?;
    execute::start_and_wait(daemon, Execute { command, cwd: None, envs: body.envs, timeout: body.timeout }).await
}

/// What the shell is given. An interpreter that is missing is the shell's own matter: 127.
fn script(body: &CodeRun) -> Result<String, Problem> {
    let argv = body.argv.join(" ");
    // The code is read from a pipe, whose name would stand before the arguments.
    let unnamed = || quote(&format!("process.argv.splice(1, 1);\n{}", body.code));
    match body.language.as_str() {
        "python" => Ok(format!("printf '%s' {} | python3 -u - {argv}", quote(&body.code))),
        "javascript" => Ok(format!("printf '%s' {} | node - {argv}", unnamed())),
        // Nothing is fetched for it: either it is installed or it is not there.
        "typescript" => Ok(format!(
            "file=$(mktemp --suffix=.ts) && printf '%s' {} >\"$file\"; ts-node -T \"$file\" {argv}; code=$?; \
             rm -f \"$file\"; exit $code",
            unnamed()
        )),
        other => Err(Problem::daemon_bad_request(format!("unsupported language: {other}"))),
    }
}
