//! What an ended command is recorded as.

use crate::{
    api::{CommandReason, LogRef, OutputStatus},
    shell::{How, Output, Outputs},
};

/// The terminal result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Reason of `Succeeded`.
    pub reason: CommandReason,
    /// For a person.
    pub message: String,
    /// The real one, or absent.
    pub exit_code: Option<i32>,
    /// How long it ran in the sandbox, in milliseconds.
    pub milliseconds: Option<i64>,
    /// What it wrote, as far as it is known.
    pub outputs: Option<Outputs>,
}

impl Outcome {
    /// An outcome without exit code and output.
    #[must_use]
    pub fn without_result(reason: CommandReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), exit_code: None, milliseconds: None, outputs: None }
    }

    /// The outcome of a command that ended by itself.
    #[must_use]
    pub fn ended(code: i32, milliseconds: i64, how: How, outputs: Outputs) -> Self {
        let (reason, message) = match (how, code) {
            (How::NotStarted, _) => {
                let why = outputs.stderr.last_line.as_deref().unwrap_or("its files could not be made");
                (CommandReason::StartFailed, format!("nothing ran: {why}"))
            }
            (_, 0) => (CommandReason::Succeeded, "exit code 0".to_owned()),
            (_, 129..=159) => (
                CommandReason::Signalled,
                format!("exit code {code}: ended by signal {}, or by `exit {code}`, which looks the same", code - 128),
            ),
            (_, 126) => (CommandReason::NonZeroExit, "exit code 126: found, but not executable".to_owned()),
            (_, 127) => (CommandReason::NonZeroExit, "exit code 127: a command was not found".to_owned()),
            _ => (CommandReason::NonZeroExit, format!("exit code {code}")),
        };
        let message = match how {
            How::Background => {
                format!("{message}; a background process still holds an output, what it writes later is not shown")
            }
            How::OutputLost => format!(
                "{message}; something of its output is lost: its files were removed or changed, or the disk was full"
            ),
            How::Full | How::NotStarted => message,
        };
        let exit_code = (how != How::NotStarted).then_some(code);
        Self { reason, message, exit_code, milliseconds: Some(milliseconds), outputs: Some(outputs) }
    }

    /// The same result under the reason for which it was ended.
    #[must_use]
    pub fn because(mut self, reason: CommandReason, message: impl Into<String>) -> Self {
        self.reason = reason;
        self.message = message.into();
        self
    }
}

/// What `status` shows of an output.
#[must_use]
pub fn shown(output: &Output, log_ref: Option<LogRef>) -> OutputStatus {
    OutputStatus {
        encoding: (!output.tail.is_empty()).then(|| if output.lossy { "utf-8-lossy" } else { "utf-8" }.to_owned()),
        tail: output.tail.clone(),
        bytes: i64::try_from(output.bytes).unwrap_or(i64::MAX),
        truncated: output.truncated,
        sha256: output.sha256.clone(),
        log_ref,
    }
}

/// A duration for people: `0.12s`, `4.5s`, `1m4s`, `2h0m3s`.
#[must_use]
pub fn duration_text(milliseconds: i64) -> String {
    let seconds = milliseconds / 1000;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0..=9) => format!("{}.{:02}s", seconds, milliseconds % 1000 / 10),
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(code: i32, how: How) -> (CommandReason, Option<i32>) {
        let outcome = Outcome::ended(code, 10, how, Outputs::default());
        (outcome.reason, outcome.exit_code)
    }

    #[test]
    fn an_exit_code_decides_the_reason_and_is_kept_as_it_is() {
        assert_eq!(reason(0, How::Full), (CommandReason::Succeeded, Some(0)));
        assert_eq!(reason(3, How::Background), (CommandReason::NonZeroExit, Some(3)));
        assert_eq!(reason(128, How::Full), (CommandReason::NonZeroExit, Some(128)));
        assert_eq!(reason(137, How::Full), (CommandReason::Signalled, Some(137)));
        assert_eq!(reason(159, How::Full), (CommandReason::Signalled, Some(159)));
        assert_eq!(reason(160, How::Full), (CommandReason::NonZeroExit, Some(160)));
        assert_eq!(reason(126, How::NotStarted), (CommandReason::StartFailed, None));
    }

    #[test]
    fn durations_are_short() {
        let texts = [0, 120, 9_990, 10_000, 64_000, 7_203_000].map(duration_text);
        assert_eq!(texts, ["0.00s", "0.12s", "9.99s", "10s", "1m4s", "2h0m3s"]);
    }
}
