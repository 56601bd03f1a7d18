//! Makes bytes of unknown origin fit to be read: valid UTF-8, no control sequences, bounded.

/// Longest tail that is shown, in bytes.
pub const TAIL_BYTES: usize = 4096;

/// Longest last line that is shown, in characters.
const LINE_CHARS: usize = 120;

/// Both outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// Standard output.
    pub stdout: Stream,
    /// Standard error.
    pub stderr: Stream,
}

/// One output.
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

/// An output, ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// At most [`TAIL_BYTES`] of it.
    pub tail: String,
    /// Whether something of the whole is not in the tail.
    pub truncated: bool,
    /// Whether bytes that are not UTF-8 were replaced.
    pub lossy: bool,
}

/// Renders the end of an output.
#[must_use]
pub fn render(stream: &Stream) -> Rendered {
    let cut = u64::try_from(stream.tail.len()).unwrap_or(u64::MAX) < stream.bytes;
    let bytes = if cut { skip_partial_character(&stream.tail) } else { &stream.tail };
    let text = String::from_utf8_lossy(bytes);
    let lossy = matches!(text, std::borrow::Cow::Owned(_));
    let plain: String = anstream::adapter::strip_str(&text)
        .to_string()
        .chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect();
    let tail = last_bytes(&plain, TAIL_BYTES);
    let truncated = cut || tail.len() < plain.len();
    Rendered { tail: tail.to_owned(), truncated, lossy }
}

/// The last line that is not blank, at most 120 characters.
#[must_use]
pub fn last_line(tail: &str) -> Option<String> {
    let line = tail.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
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

    fn whole(bytes: &[u8]) -> Stream {
        Stream { bytes: bytes.len() as u64, sha256: None, head: Vec::new(), tail: bytes.to_vec() }
    }

    #[test]
    fn plain_text_is_shown_as_it_is() {
        let shown = render(&whole("grüße\n\tzwei\n".as_bytes()));
        assert_eq!(shown, Rendered { tail: "grüße\n\tzwei\n".to_owned(), truncated: false, lossy: false });
    }

    #[test]
    fn control_sequences_are_taken_out() {
        let shown = render(&whole(b"\x1b[31mred\x1b[0m\r\n\x1b]0;title\x07bell\x07\x00\x08!"));
        assert_eq!(shown.tail, "red\nbell!");
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced_and_told() {
        let shown = render(&whole(b"\xff\xfeabc\xe2\x82"));
        assert!(shown.lossy);
        assert_eq!(shown.tail, "\u{fffd}\u{fffd}abc\u{fffd}");
    }

    #[test]
    fn a_cut_tail_does_not_begin_with_half_a_character() {
        let text = "ä".repeat(6000);
        let stream = Stream { bytes: 12000, sha256: None, head: Vec::new(), tail: text.as_bytes()[12000 - 8191..].to_vec() };
        let shown = render(&stream);
        assert!(shown.truncated && !shown.lossy);
        assert_eq!(shown.tail, "ä".repeat(2048));
    }

    #[test]
    fn the_last_line_is_the_last_that_says_something() {
        assert_eq!(last_line("a\n b \n\n \n").as_deref(), Some("b"));
        assert_eq!(last_line(" \n"), None);
        assert_eq!(last_line(&"x".repeat(500)).unwrap().len(), 120);
    }
}
