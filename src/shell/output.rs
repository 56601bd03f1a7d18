//! Makes what a command wrote fit to be shown and stored: bounded, without secrets, and, where it is shown, valid
//! UTF-8 without control sequences.

use super::{job::Fetch, redact::Redactor};

/// Longest last line, in characters.
const LINE_CHARS: usize = 600;
/// So much of the end is fetched at least, for the last line.
const LEAST_FETCHED: usize = 4096;

/// Both outputs, as they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// Standard output.
    pub stdout: Stream,
    /// Standard error.
    pub stderr: Stream,
}

/// One output, as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// Size of the whole.
    pub bytes: u64,
    /// SHA-256 of the whole, in hexadecimal, where the sandbox could compute it.
    pub sha256: Option<String>,
    /// The beginning of it, byte for byte; empty when `tail` is all of it.
    pub head: Vec<u8>,
    /// The end of it, byte for byte.
    pub tail: Vec<u8>,
}

/// What may be shown and stored of both outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outputs {
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
}

/// What may be shown and stored of one output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Size of the whole, as it was written.
    pub bytes: u64,
    /// SHA-256 of the whole, as it was written.
    pub sha256: Option<String>,
    /// The end of it, as text.
    pub tail: String,
    /// Whether something of the whole is not in the tail.
    pub truncated: bool,
    /// Whether bytes that are not UTF-8 were replaced in the tail.
    pub lossy: bool,
    /// Whether the tail is all of it, exactly but for the secrets.
    pub exact: bool,
    /// Its last line that is not blank, at most 600 characters.
    pub last_line: Option<String>,
    /// What is to be stored; `None` when the tail is all of it, exactly.
    pub log: Option<Vec<u8>>,
    /// How many bytes of it are not in the log.
    pub left_out: u64,
}

/// How much of an output is kept, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Of its end, as text.
    pub tail: usize,
    /// Of its beginning and its end together, as they are; 0: nothing.
    pub log: usize,
}

impl Kept {
    /// What has to be fetched for it. A tail is fetched twice as long as it is shown: taking out control sequences
    /// makes it shorter.
    #[must_use]
    pub fn fetch(self) -> Fetch {
        let tail = (2 * self.tail).max(LEAST_FETCHED).max(self.log.div_ceil(2));
        Fetch { head: self.log / 2, tail }
    }
}

impl Outputs {
    /// What may be shown and stored.
    #[must_use]
    pub fn of(streams: &Streams, redactor: &Redactor, kept: Kept) -> Self {
        Self {
            stdout: Output::of(&streams.stdout, redactor, kept),
            stderr: Output::of(&streams.stderr, redactor, kept),
        }
    }

    /// Sizes and digests alone, where nobody knows any more what must not be shown.
    #[must_use]
    pub fn withheld(streams: &Streams) -> Self {
        let output = |stream: &Stream| Output {
            bytes: stream.bytes,
            sha256: stream.sha256.clone(),
            truncated: stream.bytes > 0,
            ..Output::default()
        };
        Self { stdout: output(&streams.stdout), stderr: output(&streams.stderr) }
    }

    /// The last line of standard output, or of standard error when there is none.
    #[must_use]
    pub fn last_line(&self) -> Option<&str> {
        self.stdout.last_line.as_deref().or(self.stderr.last_line.as_deref())
    }
}

impl Output {
    fn of(stream: &Stream, redactor: &Redactor, kept: Kept) -> Self {
        let cut = stream.is_cut();
        let end = redactor.redact(&stream.tail, cut, false);
        let text = String::from_utf8_lossy(if cut { skip_partial_character(&end) } else { &end });
        let lossy = matches!(text, std::borrow::Cow::Owned(_));
        let plain: String = anstream::adapter::strip_str(&text)
            .to_string()
            .chars()
            .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
            .collect();
        // Other control bytes, and bytes that are not UTF-8, in the middle of a secret hid it.
        let plain = String::from_utf8_lossy(&redactor.redact(plain.as_bytes(), cut, false)).into_owned();
        let tail = last_bytes(&plain, kept.tail);
        let whole = !cut && tail.as_bytes() == end;
        Self {
            bytes: stream.bytes,
            sha256: stream.sha256.clone(),
            truncated: cut || tail.len() < plain.len(),
            lossy,
            exact: whole,
            last_line: last_line(&plain),
            tail: tail.to_owned(),
            log: (!whole && kept.log > 0).then(|| stream.log(redactor, kept.log)),
            left_out: stream.bytes.saturating_sub(u64::try_from(kept.log).unwrap_or(u64::MAX)),
        }
    }
}

impl Stream {
    /// Whether something between its beginning and its end was not fetched.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        u64::try_from(self.head.len() + self.tail.len()).unwrap_or(u64::MAX) < self.bytes
    }

    /// Its beginning and its end, as they were written but for the secrets; what lies between them is told.
    fn log(&self, redactor: &Redactor, max: usize) -> Vec<u8> {
        let fetched = self.head.len() + self.tail.len();
        if !self.is_cut() && fetched <= max {
            return redactor.redact(&[self.head.as_slice(), &self.tail].concat(), false, false);
        }
        let (first, last) = (max / 2, max - max / 2);
        let from = if self.head.is_empty() { &self.tail } else { &self.head };
        let head = from.get(..first.min(from.len())).unwrap_or_default();
        let tail = self.tail.get(self.tail.len().saturating_sub(last)..).unwrap_or_default();
        let left_out = self.bytes.saturating_sub(u64::try_from(head.len() + tail.len()).unwrap_or(u64::MAX));
        let mut log = redactor.redact(head, false, true);
        log.extend_from_slice(format!("\n[... {left_out} bytes are left out here ...]\n").as_bytes());
        log.extend_from_slice(&redactor.redact(tail, true, false));
        log
    }
}

/// The last line that is not blank, at most 600 characters.
fn last_line(text: &str) -> Option<String> {
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(LINE_CHARS).collect())
}

/// A tail that was cut may begin in the middle of a character; that is our cut, not the writer's mistake.
fn skip_partial_character(bytes: &[u8]) -> &[u8] {
    let partial = bytes.iter().take(3).take_while(|b| **b & 0b1100_0000 == 0b1000_0000).count();
    bytes.get(partial..).unwrap_or_default()
}

fn last_bytes(text: &str, max: usize) -> &str {
    let mut from = text.len().saturating_sub(max);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.get(from..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Kept = Kept { tail: 4096, log: 65536 };

    /// As a sandbox would answer.
    fn stream(bytes: &[u8], fetch: Fetch) -> Stream {
        let (head, tail) = if bytes.len() <= fetch.head + fetch.tail {
            (&bytes[..0], bytes)
        } else {
            (&bytes[..fetch.head], &bytes[bytes.len() - fetch.tail..])
        };
        Stream { bytes: bytes.len() as u64, sha256: None, head: head.to_vec(), tail: tail.to_vec() }
    }

    fn output(bytes: &[u8], kept: Kept, secrets: &[&str]) -> Output {
        let redactor = Redactor::new(secrets.iter().map(|s| s.as_bytes().to_vec()));
        Output::of(&stream(bytes, kept.fetch()), &redactor, kept)
    }

    #[test]
    fn plain_text_is_shown_as_it_is_and_need_not_be_stored() {
        let shown = output("grüße\n\tzwei\n".as_bytes(), USUAL, &[]);
        let expected = Output {
            bytes: 14,
            tail: "grüße\n\tzwei\n".to_owned(),
            last_line: Some("zwei".to_owned()),
            exact: true,
            ..Output::default()
        };
        assert_eq!(shown, expected);
    }

    #[test]
    fn control_sequences_are_taken_out_of_what_is_shown_and_kept_in_the_log() {
        let bytes = b"\x1b[31mred\x1b[0m\r\n\x1b]0;title\x07bell\x07\x00\x08!";
        let shown = output(bytes, USUAL, &[]);
        assert_eq!((shown.tail.as_str(), shown.truncated), ("red\nbell!", false));
        assert_eq!(shown.log.as_deref(), Some(bytes.as_slice()));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced_and_told_and_stored() {
        let shown = output(b"\xff\xfeabc\xe2\x82", USUAL, &[]);
        assert!(shown.lossy);
        assert_eq!(shown.tail, "\u{fffd}\u{fffd}abc\u{fffd}");
        assert_eq!(shown.log.as_deref(), Some(b"\xff\xfeabc\xe2\x82".as_slice()));
    }

    #[test]
    fn a_cut_tail_does_not_begin_with_half_a_character() {
        let shown = output("ä".repeat(60_000).as_bytes(), Kept { tail: 4096, log: 0 }, &[]);
        assert!(shown.truncated && !shown.lossy);
        assert_eq!((shown.tail, shown.log), ("ä".repeat(2048), None));
    }

    #[test]
    fn a_long_output_is_stored_with_its_beginning_and_its_end() {
        let bytes: Vec<u8> = (0..30_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
        let log = output(&bytes, USUAL, &[]).log.unwrap();
        let told = format!("\n[... {} bytes are left out here ...]\n", bytes.len() - 65536);
        assert_eq!(log, [&bytes[..32768], told.as_bytes(), &bytes[bytes.len() - 32768..]].concat());
        let all = output(&bytes[..65536], USUAL, &[]).log.unwrap();
        assert_eq!(all, bytes[..65536]);
        let small = output(&bytes[..9000], Kept { tail: 4096, log: 100 }, &[]).log.unwrap();
        let told = "\n[... 8900 bytes are left out here ...]\n";
        assert_eq!(small, [&bytes[..50], told.as_bytes(), &bytes[8950..9000]].concat());
        assert!(output(&bytes, Kept { tail: 0, log: 0 }, &[]).tail.is_empty());
        assert_eq!(output(&bytes, Kept { tail: 0, log: 0 }, &[]).last_line.as_deref(), Some("29999"));
    }

    #[test]
    fn no_secret_is_shown_or_stored() {
        let text = format!("{}hunter2hunter2\nsee hunt\x1b[1mer2hunter2 end\n", "x".repeat(70_000));
        let shown = output(text.as_bytes(), USUAL, &["hunter2hunter2"]);
        assert!(shown.tail.ends_with("x***\nsee *** end\n"), "{}", shown.tail);
        assert_eq!(shown.last_line.as_deref(), Some("see *** end"));
        let log = String::from_utf8(shown.log.unwrap()).unwrap();
        assert!(!log.contains("hunter2hunter2") && log.contains("x***\n"));
        // The cut between what is fetched and what is not goes through it.
        let text = format!("{}hunter2hunter2{}", "x".repeat(32_760), "y".repeat(70_000));
        let log = output(text.as_bytes(), USUAL, &["hunter2hunter2"]).log.unwrap();
        assert!(String::from_utf8(log).unwrap().contains("xx***\n["), "a piece of it stands at the cut");
        let exact = output(b"key hunter2hunter2\n", USUAL, &["hunter2hunter2"]);
        assert_eq!((exact.tail.as_str(), exact.log), ("key ***\n", None));
    }

    #[test]
    fn the_last_line_is_the_last_that_says_something() {
        assert_eq!(last_line("a\n b \n\n \n").as_deref(), Some("b"));
        assert_eq!(last_line(" \n"), None);
        assert_eq!(last_line(&"x".repeat(900)).unwrap().len(), 600);
    }
}
