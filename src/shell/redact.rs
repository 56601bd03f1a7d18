//! Takes secret values out of what a command wrote.

use memchr::memmem;

/// A shorter value is not replaced: it would be found everywhere.
const SHORTEST_SECRET: usize = 6;
/// A piece of a secret at a cut is replaced from this length on.
const SHORTEST_PIECE: usize = 4;
/// What stands in place of a secret.
const MASK: &[u8] = b"***";

/// Replaces secret values by `***`.
#[derive(Clone, Default)]
pub struct Redactor(Vec<Vec<u8>>);

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} values)", self.0.len())
    }
}

impl Redactor {
    /// Whether there is nothing to take out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces these values, also without the blanks around them, and each line of one that has several: what a file or
    /// an editor put there need not be printed with it.
    pub fn new(values: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut all: Vec<Vec<u8>> = Vec::new();
        for value in values {
            all.extend(value.split(|byte| *byte == b'\n').map(|line| line.trim_ascii().to_vec()));
            let trimmed = value.trim_ascii();
            all.push(if trimmed.len() < SHORTEST_SECRET { value } else { trimmed.to_vec() });
        }
        all.retain(|value| value.len() >= SHORTEST_SECRET && !value.trim_ascii().is_empty());
        all.sort_unstable();
        all.dedup();
        Self(all)
    }

    /// The text without the values, also where control sequences stand inside them. At an end where the text was cut, a
    /// piece of a value is taken out too.
    #[must_use]
    pub fn redact(&self, text: &[u8], cut_before: bool, cut_after: bool) -> Vec<u8> {
        if self.0.is_empty() {
            return text.to_vec();
        }
        let mut places = self.find(text, cut_before, cut_after);
        // A control sequence hides a value from who searches, not from who reads.
        let (mut plain, mut origins) = (Vec::with_capacity(text.len()), Vec::with_capacity(text.len()));
        for piece in anstream::adapter::strip_bytes(text) {
            let from = piece.as_ptr() as usize - text.as_ptr() as usize;
            plain.extend_from_slice(piece);
            origins.extend(from..from + piece.len());
        }
        if plain.len() < text.len() {
            let hidden = self.find(&plain, cut_before, cut_after).into_iter();
            places.extend(
                hidden.filter_map(|(from, to)| Some((*origins.get(from)?, origins.get(to.checked_sub(1)?)? + 1))),
            );
        }
        mask(text, places)
    }

    /// Where the values, and at a cut pieces of them, stand.
    fn find(&self, text: &[u8], cut_before: bool, cut_after: bool) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for secret in &self.0 {
            // All there is of the text may be a piece from the middle of a value.
            if cut_before && cut_after && text.len() >= SHORTEST_PIECE && memmem::find(secret, text).is_some() {
                return vec![(0, text.len())];
            }
            let finder = memmem::Finder::new(secret);
            let (mut from, mut last) = (0, None::<(usize, usize)>);
            // Occurrences may overlap; those that do are one place, for there may be one at every byte.
            while let Some(at) = text.get(from..).and_then(|rest| finder.find(rest)) {
                let (start, end) = (from + at, from + at + secret.len());
                match &mut last {
                    Some((_, before)) if start <= *before => *before = end,
                    _ => found.extend(last.replace((start, end))),
                }
                from = start + 1;
            }
            found.extend(last);
            if cut_before {
                let piece = overlap(secret, text);
                found.extend((piece >= SHORTEST_PIECE).then_some((0, piece)));
            }
            if cut_after {
                let piece = overlap(text, secret);
                found.extend((piece >= SHORTEST_PIECE).then_some((text.len() - piece, text.len())));
            }
        }
        found
    }
}

fn mask(text: &[u8], mut places: Vec<(usize, usize)>) -> Vec<u8> {
    places.sort_unstable();
    let (mut out, mut done) = (Vec::with_capacity(text.len()), 0);
    let mut places = places.into_iter().peekable();
    while let Some((from, mut to)) = places.next() {
        while let Some((_, further)) = places.next_if(|(next, _)| *next <= to) {
            to = to.max(further);
        }
        out.extend_from_slice(text.get(done..from).unwrap_or_default());
        out.extend_from_slice(MASK);
        done = to;
    }
    out.extend_from_slice(text.get(done..).unwrap_or_default());
    out
}

/// Length of the longest end of `first` that is a beginning of `second` (Knuth, Morris and Pratt).
fn overlap(first: &[u8], second: &[u8]) -> usize {
    let most = second.len().min(first.len());
    let beginning = second.get(..most).unwrap_or_default();
    let end = first.get(first.len() - most..).unwrap_or_default();
    let mut borders = vec![0; most];
    let mut length = 0;
    for (at, byte) in beginning.iter().enumerate().skip(1) {
        length = grow(beginning, &borders, length, *byte);
        if let Some(border) = borders.get_mut(at) {
            *border = length;
        }
    }
    let mut length = 0;
    for byte in end {
        if length == most {
            length = borders.last().copied().unwrap_or(0);
        }
        length = grow(beginning, &borders, length, *byte);
    }
    length
}

/// The longest matched beginning after one more byte.
fn grow(beginning: &[u8], borders: &[usize], mut length: usize, byte: u8) -> usize {
    loop {
        if beginning.get(length) == Some(&byte) {
            return length + 1;
        }
        if length == 0 {
            return 0;
        }
        length = borders.get(length - 1).copied().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redact(secrets: &[&str], text: &str, cut: (bool, bool)) -> String {
        let redactor = Redactor::new(secrets.iter().map(|s| s.as_bytes().to_vec()));
        String::from_utf8(redactor.redact(text.as_bytes(), cut.0, cut.1)).unwrap()
    }

    #[test]
    fn a_value_is_replaced_wherever_it_stands() {
        let whole = (false, false);
        assert_eq!(redact(&["hunter2hunter2"], "a hunter2hunter2 b", whole), "a *** b");
        assert_eq!(redact(&["secret\n"], "x=secret;secret\n", whole), "x=***;***\n", "a newline at its end");
        assert_eq!(redact(&["short"], "short", whole), "short", "too short to be replaced");
        assert_eq!(redact(&[], "nothing", whole), "nothing");
    }

    #[test]
    fn values_that_overlap_are_both_gone() {
        let whole = (false, false);
        let runs: Vec<String> = (6..66).map(|length| "a".repeat(length)).collect();
        let runs: Vec<&str> = runs.iter().map(String::as_str).collect();
        let text = format!("{} aaaaa {}b", "a".repeat(1000), "a".repeat(70));
        assert_eq!(redact(&runs, &text, whole), "*** aaaaa ***b");
        assert_eq!(redact(&["abcdef", "defghi"], "xabcdefghix", whole), "x***x");
        assert_eq!(redact(&["aaaaaa"], "baaaaaaaaab", whole), "b***b");
        assert_eq!(redact(&["abcdef", "abcdefgh"], "abcdefgh", whole), "***");
        assert_eq!(redact(&["abcdef", "ghijkl"], "abcdefghijkl", whole), "***");
    }

    #[test]
    fn a_piece_at_a_cut_is_gone_too() {
        assert_eq!(redact(&["hunter2secret"], "2secret and more", (true, false)), "*** and more");
        assert_eq!(redact(&["hunter2secret"], "before hunter2", (false, true)), "before ***");
        assert_eq!(redact(&["hunter2secret"], "2secret", (false, false)), "2secret", "it is not cut there");
        assert_eq!(redact(&["hunter2secret"], "ret: fine", (true, false)), "ret: fine", "too short a piece");
        assert_eq!(redact(&["abababab"], "ababab-", (true, false)), "***-");
        assert_eq!(redact(&["abcabcabd"], "xxabcabcab", (false, true)), "xx***");
        // Longer than all there is of the text.
        assert_eq!(redact(&["hunter2secret"], "hunter2", (false, true)), "***");
        assert_eq!(redact(&["hunter2secret"], "2secret", (true, false)), "***");
        assert_eq!(redact(&["hunter2secret"], "ter2sec", (true, true)), "***");
        assert_eq!(redact(&["hunter2secret"], "ter2sec", (false, true)), "ter2sec", "it does not begin there");
    }

    #[test]
    fn a_value_is_found_without_its_blanks_by_its_lines_and_through_control_sequences() {
        let whole = (false, false);
        assert_eq!(redact(&["  spacey-secret \n"], "is spacey-secret.", whole), "is ***.");
        assert_eq!(redact(&["abcde\n"], "abcde\nabcde.", whole), "***abcde.", "six bytes with its newline");
        assert_eq!(redact(&["first-line\nab\nsecond-line\n"], "x second-line y\nab", whole), "x *** y\nab");
        assert_eq!(redact(&["hunter2"], "a hun\x1b[1mter\x1b[0m2 b", whole), "a *** b");
        assert_eq!(redact(&["hunter2"], "\x1b[1mhunt", (false, true)), "\x1b[1m***");
        assert_eq!(redact(&["      \n \t   "], "no      value", whole), "no      value", "blanks are no secret");
    }

    #[test]
    fn a_redactor_shows_no_value() {
        assert_eq!(format!("{:?}", Redactor::new([b"hunter2hunter2".to_vec()])), "Redactor(1 values)");
    }
}
