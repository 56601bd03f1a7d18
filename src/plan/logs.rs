//! What is kept of a command's output: in status, and in objects of their own.

use std::fmt;

use kube::ResourceExt;

use crate::{
    api::{LogRef, LogStore, OutputReason, SandboxCommand, SandboxCommandSpec},
    shell::{Kept, Output, Outputs},
};

/// Longest name of a Kubernetes object.
const LONGEST_NAME: usize = 253;

/// A log that is to be stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Log {
    /// Where.
    pub at: LogRef,
    /// As it was written, but for the secrets and what is left out.
    pub content: Vec<u8>,
    /// How many bytes are left out.
    pub left_out: u64,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Log({} {}, {} bytes)", self.at.kind, self.at.name, self.content.len())
    }
}

/// What became of the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Those that are there.
    pub refs: Vec<LogRef>,
    /// Whether that is all that was asked for.
    pub complete: bool,
    /// In one word.
    pub reason: OutputReason,
    /// For a person.
    pub message: String,
}

impl Stored {
    /// Nothing is stored, for this reason.
    #[must_use]
    pub fn nothing(complete: bool, reason: OutputReason, message: impl Into<String>) -> Self {
        Self { refs: Vec::new(), complete, reason, message: message.into() }
    }
}

/// How much is kept.
#[must_use]
pub fn kept(spec: &SandboxCommandSpec) -> Kept {
    let log = if spec.log_store() == LogStore::None { 0 } else { spec.max_bytes() };
    Kept { tail: spec.tail_bytes(), log }
}

/// The logs that are to be stored.
#[must_use]
pub fn logs(command: &SandboxCommand, outputs: &Outputs) -> Vec<Log> {
    let streams = [("stdout", &outputs.stdout), ("stderr", &outputs.stderr)];
    let log = |(stream, output): (&str, &Output)| {
        let content = output.log.clone()?;
        Some(Log { at: place(command, stream), content, left_out: output.left_out })
    };
    streams.into_iter().filter_map(log).collect()
}

/// What is said of logs that are stored.
#[must_use]
pub fn told(logs: &[Log]) -> String {
    let cut = logs.iter().filter(|log| log.left_out > 0);
    let cut: Vec<String> = cut.map(|log| format!("{} bytes of {}", log.left_out, log.at.key)).collect();
    if cut.is_empty() {
        return "what is longer than its tail in status, or no plain text, is stored; see logRef".to_owned();
    }
    let cut = cut.join(" and ");
    format!("as spec.logs.maxBytes says, the beginning and the end are stored (see logRef); {cut} are left out")
}

/// Where the log of this stream is stored. The UID stands in the name: two commands whose long names begin alike, or
/// that had the same name one after the other, must not share a log.
#[must_use]
pub fn place(command: &SandboxCommand, stream: &str) -> LogRef {
    let end = format!("-{}-{stream}", command.uid().unwrap_or_default());
    let name: String = command.name_any().chars().take(LONGEST_NAME.saturating_sub(end.len())).collect();
    let kind = if command.spec.log_store() == LogStore::Secret { "Secret" } else { "ConfigMap" };
    // What is cut off must not leave a dot in front of the dash.
    LogRef {
        kind: kind.to_owned(),
        name: format!("{}{end}", name.trim_end_matches(['.', '-'])),
        key: stream.to_owned(),
    }
}

/// What became of the logs when there was nothing to store.
#[must_use]
pub fn without_log(outputs: &Outputs) -> Stored {
    if outputs.stdout.exact && outputs.stderr.exact {
        Stored::nothing(true, OutputReason::InStatus, "status shows all of the output")
    } else {
        Stored::nothing(true, OutputReason::NotAsked, "as spec.logs says, only the end of the output is kept, as text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(name: &str, uid: &str, store: &str) -> SandboxCommand {
        let spec = serde_json::json!({ "leaseRef": { "name": "l" }, "script": "true", "logs": { "store": store } });
        let mut command = SandboxCommand::new(name, serde_json::from_value(spec).unwrap());
        command.metadata.uid = Some(uid.to_owned());
        command
    }

    /// Case 87.
    #[test]
    fn a_log_has_a_name_of_its_own() {
        let at = place(&command("build", "uid-1", "ConfigMap"), "stdout");
        assert_eq!(
            (at.kind.as_str(), at.name.as_str(), at.key.as_str()),
            ("ConfigMap", "build-uid-1-stdout", "stdout")
        );
        let long = "x".repeat(253);
        let [one, other] = ["uid-1", "uid-2"].map(|uid| place(&command(&long, uid, "Secret"), "stderr"));
        assert_ne!(one, other);
        assert_eq!((one.name.len(), one.kind.as_str()), (253, "Secret"));
        let dotted = format!("{}.{}", "x".repeat(239), "y".repeat(13));
        assert!(place(&command(&dotted, "uid-1", "Secret"), "stderr").name.ends_with("xx-uid-1-stderr"));
    }

    #[test]
    fn nothing_is_fetched_for_a_log_that_is_not_wanted() {
        assert_eq!(kept(&command("c", "u", "None").spec), Kept { tail: 4096, log: 0 });
        assert_eq!(kept(&command("c", "u", "Secret").spec), Kept { tail: 4096, log: 65536 });
    }
}
