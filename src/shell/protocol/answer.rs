//! What the runner answers, and the parser of it: strict, for a cut or foreign answer must say nothing.

use super::Attempt;
use crate::shell::output::{Stream, Streams};

/// What the runner says about an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<S = Streams> {
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
        streams: S,
    },
    /// It runs.
    Running,
    /// It started, its runner is gone, and no outcome was written: nobody knows its exit code.
    Died {
        /// What it wrote so far.
        streams: S,
        /// Whether the shell that left the attempt's mark is alive; never for a mark that is no shell's.
        session_lives: bool,
    },
    /// It did not start. It may still, when its text is under way.
    Unseen,
    /// It did not start and never will.
    Fenced,
    /// Its outcome was recorded and its files were removed.
    Cleared,
    /// Our files were removed from the sandbox: whether it started is not to be found out.
    Lost,
    /// Killed, but these processes that it started are still there.
    Survivors(Vec<u32>),
    /// Not killed, for it has so many seconds left to run.
    Early(u64),
    /// Being ended: what it started was sent TERM, and has so many seconds left until it is sent KILL.
    Ending(u64),
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// With both outputs closed.
    Full,
    /// With a background process that holds an output open.
    Background,
    /// Before it began: no working directory, no interpreter, a variable that cannot be set, or no space for its files.
    NotStarted,
    /// With an output of which nobody knows how much is missing: the files were removed, or the disk was full.
    OutputLost,
}

/// An answer that is not the runner's: nothing is known from it; ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox's answer is not in the form of the script protocol; it is asked again")]
pub struct Garbled;

impl<S> Answer<S> {
    /// The same answer with something else for the outputs.
    #[must_use]
    pub fn map<T>(self, change: impl FnOnce(S) -> T) -> Answer<T> {
        match self {
            Self::Done { killed, code, milliseconds, how, streams } => {
                Answer::Done { killed, code, milliseconds, how, streams: change(streams) }
            }
            Self::Died { streams, session_lives } => Answer::Died { streams: change(streams), session_lives },
            Self::Running => Answer::Running,
            Self::Unseen => Answer::Unseen,
            Self::Fenced => Answer::Fenced,
            Self::Cleared => Answer::Cleared,
            Self::Lost => Answer::Lost,
            Self::Survivors(pids) => Answer::Survivors(pids),
            Self::Early(left) => Answer::Early(left),
            Self::Ending(left) => Answer::Ending(left),
        }
    }
}

impl Answer {
    /// Reads what `one`, `wait`, `fence` or `kill` printed about this attempt.
    ///
    /// # Errors
    /// [`Garbled`] when any part of it is not exactly what the runner prints.
    pub fn parse(attempt: &Attempt, text: &str) -> Result<Self, Garbled> {
        let mut lines = text.strip_suffix('\n').unwrap_or(text).split('\n');
        let ours = |line| rest_of(attempt, line);
        // A shell may complain before it does anything, for example of a locale that is not installed.
        let state = lines.by_ref().find_map(ours).ok_or(Garbled)?;
        let words: Vec<&str> = state.split(' ').collect();
        let answer = match *words.as_slice() {
            [word @ ("done" | "ended"), code, began, ended, how] => Self::Done {
                killed: word == "ended",
                code: number(code)?,
                milliseconds: milliseconds(began, ended)?,
                how: match how {
                    "full" => How::Full,
                    "background" => How::Background,
                    "nostart" => How::NotStarted,
                    "lost" => How::OutputLost,
                    _ => return Err(Garbled),
                },
                streams: streams(&mut lines)?,
            },
            ["died", shell @ ("alive" | "gone")] => {
                Self::Died { streams: streams(&mut lines)?, session_lives: shell == "alive" }
            }
            ["running"] => Self::Running,
            ["unseen"] => Self::Unseen,
            ["fenced"] => Self::Fenced,
            ["cleared"] => Self::Cleared,
            ["lost"] => Self::Lost,
            ["survivors", ref pids @ ..] => {
                Self::Survivors(pids.iter().map(|pid| number(pid)).collect::<Result<_, Garbled>>()?)
            }
            ["early", left] => Self::Early(number(left)?),
            ["ending", left] => Self::Ending(number(left)?),
            _ => return Err(Garbled),
        };
        let complete = lines.next().and_then(ours) == Some("end") && lines.next().is_none();
        if complete { Ok(answer) } else { Err(Garbled) }
    }
}

/// What a line says about this attempt.
fn rest_of<'a>(attempt: &Attempt, line: &'a str) -> Option<&'a str> {
    line.strip_prefix("dtc1 ")?.strip_prefix(attempt.id.as_str())?.strip_prefix(' ')
}

/// Digits and nothing else: `parse` takes a sign too.
fn number<T: std::str::FromStr>(text: &str) -> Result<T, Garbled> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().map_err(|_| Garbled) } else { Err(Garbled) }
}

fn milliseconds(began: &str, ended: &str) -> Result<i64, Garbled> {
    let (began, ended) = (hundredths(began)?, hundredths(ended)?);
    ended.checked_sub(began).and_then(|h| h.checked_mul(10)).map(|ms| ms.max(0)).ok_or(Garbled)
}

/// `/proc/uptime` has two decimals.
fn hundredths(text: &str) -> Result<i64, Garbled> {
    let (whole, part) = text.split_once('.').ok_or(Garbled)?;
    let (whole, part): (i64, i64) = (number(whole)?, number(part)?);
    whole.checked_mul(100).and_then(|w| w.checked_add(part)).ok_or(Garbled)
}

fn streams<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Result<Streams, Garbled> {
    let mut next = |name| stream(name, lines.next().ok_or(Garbled)?);
    Ok(Streams { stdout: next("stdout")?, stderr: next("stderr")? })
}

fn stream(name: &str, line: &str) -> Result<Stream, Garbled> {
    let words: Vec<&str> = line.split(' ').collect();
    let [found, bytes, digest, head, tail] = *words.as_slice() else { return Err(Garbled) };
    if found != name {
        return Err(Garbled);
    }
    let bytes: u64 = number(bytes)?;
    let sha256 = match digest {
        "-" => None,
        digest if digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()) => Some(digest.to_owned()),
        _ => return Err(Garbled),
    };
    let (head, tail) = (unhex(head)?, unhex(tail)?);
    let carried = u64::try_from(head.len().saturating_add(tail.len())).unwrap_or(u64::MAX);
    // All of it is the tail; of what is cut something lies between the two.
    if carried < bytes || (head.is_empty() && carried == bytes) {
        Ok(Stream { bytes, sha256, head, tail })
    } else {
        Err(Garbled)
    }
}

/// `-` for nothing.
fn unhex(text: &str) -> Result<Vec<u8>, Garbled> {
    let digits = if text == "-" { &[] } else { text.as_bytes() };
    if text.is_empty() {
        return Err(Garbled);
    }
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Garbled);
    }
    let value = |d: u8| char::from(d).to_digit(16).and_then(|v| u8::try_from(v).ok()).ok_or(Garbled);
    pairs.iter().map(|[high, low]| Ok(value(*high)? << 4 | value(*low)?)).collect()
}
