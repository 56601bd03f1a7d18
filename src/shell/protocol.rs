//! The texts that are sent, and the parser of what the runner answers.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::output::{Stream, Streams, TAIL_BYTES};

/// The runner, as it is put into each sandbox.
const RUNNER: &str = include_str!("runner.sh");

/// A tail is fetched twice as long as it is shown: taking out control sequences makes it shorter.
const FETCHED_TAIL: usize = 2 * TAIL_BYTES;

/// Where a lease keeps its files in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    base: String,
    work_dir: String,
}

/// One attempt of a command in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Command UID and attempt number: unique for ever, of `[A-Za-z0-9-]`.
    pub id: String,
    /// The session that it was sent to first: when that session's mark is gone from the sandbox, somebody removed
    /// our files, and a missing guard no longer means that nothing ran.
    pub session: String,
}

impl Attempt {
    /// Names attempt `number` of the command with this UID.
    #[must_use]
    pub fn new(command_uid: &str, number: i32, session: &str) -> Self {
        Self { id: format!("{command_uid}-{number}"), session: session.to_owned() }
    }
}

impl Workspace {
    /// The lease's workspace below the sandbox user's home directory (absolute).
    #[must_use]
    pub fn new(home_dir: &str, work_dir: &str, lease_uid: &str) -> Self {
        let home = home_dir.trim_end_matches('/');
        Self { base: format!("{home}/.daytona-controller/{lease_uid}"), work_dir: work_dir.to_owned() }
    }

    /// One-shot text that makes the workspace and puts the runner there; safe to repeat. Prints [`Self::SET_UP`].
    #[must_use]
    pub fn set_up(&self) -> String {
        let (base, runner) = (quote(&self.base), quote(&self.runner()));
        let tools = "cat mkdir mkfifo mv od rm sleep tail tr wc";
        format!(
            "for tool in {tools}; do command -v $tool >/dev/null 2>&1 || {{ echo \"dtc1 lacks $tool\"; exit 1; }}; done\n\
             umask 077 && mkdir -p {base}/session {base}/guard {base}/attempt && cat >{base}/runner.new <<'DTC-RUNNER'\n\
             {RUNNER}DTC-RUNNER\n\
             mv -f {base}/runner.new {runner} && echo '{}'\n",
            Self::SET_UP
        )
    }

    /// What [`Self::set_up`] prints when it worked.
    pub const SET_UP: &str = "dtc1 workspace ready";

    /// Session text that proves that the session's shell reads its input. Prints [`Self::session_ready`].
    #[must_use]
    pub fn session(&self, session: &str) -> String {
        format!("sh {} session {}", quote(&self.runner()), quote(session))
    }

    /// Text that proves the same for a session that has its mark already, in the session or beside it. The mark is
    /// not made again: where it is gone, guards may be gone too.
    #[must_use]
    pub fn check(&self, session: &str) -> String {
        format!("sh {} check {}", quote(&self.runner()), quote(session))
    }

    /// What [`Self::session`] and [`Self::check`] print when it worked.
    #[must_use]
    pub fn session_ready(session: &str) -> String {
        format!("dtc1 {session} ready")
    }

    /// Session text that runs a script. It may arrive any number of times: the first one runs, the others do nothing.
    #[must_use]
    pub fn run(&self, attempt: &Attempt, script: &str) -> String {
        let mut delimiter = format!("DTC-{}", attempt.id);
        while script.lines().any(|line| line == delimiter) {
            delimiter.push('-');
        }
        format!(
            "sh {} run {} {} {} <<'{delimiter}'\n{script}\n{delimiter}\n",
            quote(&self.runner()),
            quote(&attempt.id),
            quote(&attempt.session),
            quote(&self.work_dir),
        )
    }

    /// One-shot text that is held until the attempt has ended, `seconds` at most, and then reports. `collected`:
    /// attempts whose outcome is recorded; their files are removed in passing.
    #[must_use]
    pub fn wait(&self, attempt: &Attempt, seconds: u64, collected: &[String]) -> String {
        let mut text = self.ask("wait", attempt, seconds);
        for id in collected {
            let _ = write!(text, " {}", quote(id));
        }
        text
    }

    /// One-shot text after which the attempt does not start any more, unless it has started before.
    #[must_use]
    pub fn fence(&self, attempt: &Attempt) -> String {
        self.ask("fence", attempt, 0)
    }

    /// One-shot text after which the attempt does not run: it never started and never will, or all that it started
    /// was sent TERM and, `grace` seconds later, KILL. One that has run for less than `after` seconds, by the
    /// sandbox's own clock, is left alone.
    #[must_use]
    pub fn kill(&self, attempt: &Attempt, grace: u64, after: u64) -> String {
        format!("{} {after}", self.ask("kill", attempt, grace))
    }

    fn ask(&self, operation: &str, attempt: &Attempt, seconds: u64) -> String {
        format!(
            "exec sh {} {operation} {} {} {seconds} {FETCHED_TAIL}",
            quote(&self.runner()),
            quote(&attempt.id),
            quote(&attempt.session),
        )
    }

    /// Named by its content: an upgrade of the controller must not change a file that a shell is reading.
    fn runner(&self) -> String {
        let digest = Sha256::digest(RUNNER);
        let name: String = digest.iter().take(6).fold(String::new(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        });
        format!("{}/runner-{name}.sh", self.base)
    }
}

/// One shell word, whatever is in it.
pub(super) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// What the runner says about an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It ended; outputs are complete, save for what a background process writes later.
    Done {
        /// Whether `kill` had come before its end.
        killed: bool,
        /// Exit code as the shell reported it.
        code: i32,
        /// How long it ran, in milliseconds.
        milliseconds: i64,
        /// How it ended.
        how: How,
        /// What it wrote.
        streams: Streams,
    },
    /// It runs.
    Running,
    /// It started, its runner is gone, and no outcome was written: nobody knows its exit code.
    Died(Streams),
    /// It did not start. It may still, when its text is under way.
    Unseen,
    /// It did not start and never will.
    Fenced,
    /// Its outcome was recorded and its files were removed.
    Cleared,
    /// Our files were removed from the sandbox: whether it started is not to be found out.
    Lost,
    /// Killed, but something that it started is still there.
    Survivors,
    /// Not killed, for it has so many seconds left to run.
    Early(u64),
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// With both outputs closed.
    Full,
    /// With a background process that holds an output open.
    Background,
    /// Before it began: no working directory, or no space for its files.
    NotStarted,
    /// After it removed the files that its output went to.
    OutputLost,
}

/// An answer that is not the runner's: nothing is known from it; ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox's answer is not in the form of the script protocol; it is asked again")]
pub struct Garbled;

impl Answer {
    /// Reads what `wait` or `kill` printed about this attempt.
    ///
    /// # Errors
    /// [`Garbled`] when any part of it is not exactly what the runner prints.
    pub fn parse(attempt: &Attempt, text: &str) -> Result<Self, Garbled> {
        let mut lines = text.lines();
        let ours = |line: &'_ str| {
            let rest = line.strip_prefix("dtc1 ").and_then(|h| h.strip_prefix(attempt.id.as_str()));
            rest.is_some_and(|rest| rest.starts_with(' '))
        };
        // A shell may complain before it does anything, for example of a locale that is not installed.
        let head = lines.by_ref().find(|line| ours(line)).ok_or(Garbled)?;
        let rest = head.strip_prefix("dtc1 ").and_then(|h| h.strip_prefix(attempt.id.as_str())).ok_or(Garbled)?;
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        match *words.as_slice() {
            [word @ ("done" | "ended"), code, began, ended, how] => Ok(Self::Done {
                killed: word == "ended",
                code: code.parse().map_err(|_| Garbled)?,
                milliseconds: milliseconds(began, ended)?,
                how: match how {
                    "full" => How::Full,
                    "background" => How::Background,
                    "nostart" => How::NotStarted,
                    "lost" => How::OutputLost,
                    _ => return Err(Garbled),
                },
                streams: streams(lines)?,
            }),
            ["running"] => Ok(Self::Running),
            ["died"] => Ok(Self::Died(streams(lines)?)),
            ["unseen"] => Ok(Self::Unseen),
            ["fenced"] => Ok(Self::Fenced),
            ["cleared"] => Ok(Self::Cleared),
            ["lost"] => Ok(Self::Lost),
            ["survivors", ..] => Ok(Self::Survivors),
            ["early", left] => left.parse().map(Self::Early).map_err(|_| Garbled),
            _ => Err(Garbled),
        }
    }
}

fn milliseconds(began: &str, ended: &str) -> Result<i64, Garbled> {
    let (began, ended) = (hundredths(began)?, hundredths(ended)?);
    ended.checked_sub(began).and_then(|h| h.checked_mul(10)).map(|ms| ms.max(0)).ok_or(Garbled)
}

/// `/proc/uptime` has two decimals.
fn hundredths(text: &str) -> Result<i64, Garbled> {
    let (whole, part) = text.split_once('.').ok_or(Garbled)?;
    let (whole, part): (i64, i64) = (whole.parse().map_err(|_| Garbled)?, part.parse().map_err(|_| Garbled)?);
    whole.checked_mul(100).and_then(|w| w.checked_add(part)).ok_or(Garbled)
}

fn streams<'a>(mut lines: impl Iterator<Item = &'a str>) -> Result<Streams, Garbled> {
    let mut next = |name| stream(name, lines.next().ok_or(Garbled)?);
    Ok(Streams { stdout: next("stdout")?, stderr: next("stderr")? })
}

fn stream(name: &str, line: &str) -> Result<Stream, Garbled> {
    let mut words = line.split(' ');
    let mut word = || words.next().ok_or(Garbled);
    if word()? != name {
        return Err(Garbled);
    }
    let bytes: u64 = word()?.parse().map_err(|_| Garbled)?;
    let sha256 = match word()? {
        "-" => None,
        digest if digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()) => Some(digest.to_owned()),
        _ => return Err(Garbled),
    };
    let tail = unhex(word()?)?;
    let expected = usize::try_from(bytes).unwrap_or(usize::MAX).min(FETCHED_TAIL);
    // A background process may have written between the count and the tail; less than was counted is a cut answer.
    if tail.len() < expected {
        return Err(Garbled);
    }
    Ok(Stream { bytes, sha256, tail })
}

fn unhex(text: &str) -> Result<Vec<u8>, Garbled> {
    let digits = text.as_bytes();
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Garbled);
    }
    let value = |d: u8| char::from(d).to_digit(16).and_then(|v| u8::try_from(v).ok()).ok_or(Garbled);
    pairs.iter().map(|[high, low]| Ok(value(*high)? << 4 | value(*low)?)).collect()
}

#[cfg(test)]
mod tests;
