//! Whether all ended as it should, asked of the apiserver, of the local Daytona, and of the kernel.

use std::path::Path;

use serde_json::Value;

use super::Error;
use super::examples::{Examples, Expected};
use super::stage::Stage;
use crate::kubectl::Kubectl;
use crate::local_daytona::Call;

const SESSION: &str = "/toolbox/{sandbox}/process/session";
const SANDBOX: &str = "/api/sandbox/{sandbox}";

/// Compares exit codes and output with what the examples say.
pub(super) async fn outcomes(kubectl: &Kubectl, examples: &Examples) -> Result<(), Error> {
    let mut differences = Vec::new();
    for expected in &examples.expected {
        let json = kubectl.get(&["get", "sbcmd", &expected.name, "-o", "json"]).await?;
        let command = serde_json::from_str(&json).unwrap_or_default();
        differences.extend(compare(expected, &command));
    }
    verdict(differences)
}

fn compare(expected: &Expected, command: &Value) -> Vec<String> {
    let status = |pointer: &str| match command.pointer(&format!("/status{pointer}")) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.trim_end().to_owned(),
        Some(other) => other.to_string(),
    };
    let conditions = command.pointer("/status/conditions").and_then(Value::as_array);
    let succeeded = conditions.into_iter().flatten().find(|condition| condition["type"] == "Succeeded");
    let reason = succeeded.and_then(|condition| condition.get("reason")?.as_str()).unwrap_or_default();
    let pairs = [
        ("exit code", &expected.exit, status("/exitCode")),
        ("standard output", &expected.stdout, status("/stdout/tail")),
        ("standard error", &expected.stderr, status("/stderr/tail")),
        ("reason", &expected.reason, reason.to_owned()),
    ];
    pairs
        .into_iter()
        .filter_map(|(what, wanted, found)| {
            let wanted = wanted.as_ref()?.trim_end();
            let name = &expected.name;
            (wanted != found).then(|| format!("{what} of {name} is {found:?}, expected {wanted:?}"))
        })
        .collect()
}

/// On a sandbox that its lease has left behind.
const RELEASED: &str = "daytona-controller.dev/released-by";

/// Proves after the deletion that neither an object nor a session, a process or a sandbox is left, but for those that
/// are to be kept.
pub(super) async fn nothing_left(stage: &Stage, examples: &Examples) -> Result<(), Error> {
    let objects = stage.kubectl().get(&["get", "sbcmd,sblease", "-o", "name"]).await?;
    let sandboxes = stage.daytona.state().await?.sandboxes;
    let kept =
        sandboxes.iter().filter(|sandbox| sandbox.labels.contains_key(RELEASED) && sandbox.state == "stopped").count();
    let calls = stage.daytona.calls().await?;
    let sessions: usize = sandboxes.iter().map(|sandbox| sandbox.sessions.len()).sum();
    let processes = processes_in(&stage.sandboxes());
    println!("\nProof that nothing is left:");
    let counts = [
        ("objects in Kubernetes", objects.lines().count()),
        ("sandboxes", sandboxes.len() - kept),
        ("sessions", sessions),
        ("processes in sandboxes", processes),
    ];
    let mut differences = Vec::new();
    for (what, count) in counts {
        println!("  {what}: {count}");
        if count > 0 {
            differences.push(format!("{count} {what} left"));
        }
    }
    println!("  sandboxes kept, stopped, as their leases say: {kept}");
    if kept != examples.kept {
        differences.push(format!("{kept} sandboxes are kept, expected {}", examples.kept));
    }
    println!("  The last calls that Daytona saw:");
    for call in calls.iter().filter(|call| call.method == "DELETE") {
        let status = call.status.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
        println!("    {} {} -> {status}", call.at, path(call));
    }
    differences.extend(order_of_deletions(&calls));
    verdict(differences)
}

/// The route with its placeholders filled.
fn path(call: &Call) -> String {
    let fill = |object: &Option<String>| object.clone().unwrap_or_default();
    call.route.replace("{sandbox}", &fill(&call.sandbox)).replace("{session}", &fill(&call.session))
}

/// Each session that was opened has to be deleted, and before its sandbox was.
fn order_of_deletions(calls: &[Call]) -> Vec<String> {
    let is = |call: &&Call, method: &str, route: &str| call.route == format!("{method} {route}");
    let mut opened = calls
        .iter()
        .filter(|call| is(call, "POST", SESSION) && call.status.is_some_and(|status| status < 300))
        .filter_map(|call| Some((call.session.as_ref()?, call.sandbox.as_ref()?)))
        .peekable();
    let mut differences = Vec::new();
    if opened.peek().is_none() {
        differences.push("no session was ever opened".to_owned());
    }
    for (session, owner) in opened {
        let gone = |call: &&Call| is(call, "DELETE", SANDBOX) && call.sandbox.as_ref() == Some(owner);
        let sandbox = calls.iter().find(gone).map(|call| call.seq);
        let deleted = calls
            .iter()
            .find(|call| call.session.as_ref() == Some(session) && call.method == "DELETE")
            .map(|call| call.seq);
        match (deleted, sandbox) {
            (Some(deleted), Some(sandbox)) if deleted < sandbox => {}
            (Some(_), Some(_)) => {
                differences.push(format!("session {session} was deleted after its sandbox"));
            }
            (None, _) => differences.push(format!("session {session} was not deleted")),
            (_, None) => differences.push("no sandbox was deleted".to_owned()),
        }
    }
    differences
}

/// How many processes work below `directory`.
fn processes_in(directory: &Path) -> usize {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return 0;
    };
    let work_dirs = processes.filter_map(|process| std::fs::read_link(process.ok()?.path().join("cwd")).ok());
    work_dirs.filter(|work_dir| work_dir.starts_with(directory)).count()
}

fn verdict(differences: Vec<String>) -> Result<(), Error> {
    if differences.is_empty() { Ok(()) } else { Err(Error::Differs(differences)) }
}
