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
    /// Replaces these values. What a file or an editor put at the end of a value, a newline, need not be printed
    /// with it.
    pub fn new(values: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let trimmed = values.into_iter().map(|mut value| {
            while value.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
                value.pop();
            }
            value
        });
        let mut all: Vec<Vec<u8>> = trimmed.filter(|value| value.len() >= SHORTEST_SECRET).collect();
        all.sort_unstable();
        all.dedup();
        Self(all)
    }

    /// The text without the values. At an end where the text was cut, a piece of a value is taken out too.
    #[must_use]
    pub fn redact(&self, text: &[u8], cut_before: bool, cut_after: bool) -> Vec<u8> {
        let mut found: Vec<(usize, usize)> = Vec::new();
        for secret in &self.0 {
            let finder = memmem::Finder::new(secret);
            let mut from = 0;
            // Occurrences may overlap.
            while let Some(at) = text.get(from..).and_then(|rest| finder.find(rest)) {
                found.push((from + at, from + at + secret.len()));
                from += at + 1;
            }
            if cut_before {
                let piece = overlap(secret, text);
                found.extend((piece >= SHORTEST_PIECE).then_some((0, piece)));
            }
            if cut_after {
                let piece = overlap(text, secret);
                found.extend((piece >= SHORTEST_PIECE).then_some((text.len() - piece, text.len())));
            }
        }
        found.sort_unstable();
        let (mut out, mut done) = (Vec::with_capacity(text.len()), 0);
        let mut places = found.into_iter().peekable();
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
}

/// Length of the longest proper end of `first` that is a beginning of `second` (Knuth, Morris and Pratt).
fn overlap(first: &[u8], second: &[u8]) -> usize {
    let most = second.len().min(first.len().saturating_sub(1));
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
    }

    #[test]
    fn a_redactor_shows_no_value() {
        assert_eq!(format!("{:?}", Redactor::new([b"hunter2hunter2".to_vec()])), "Redactor(1 values)");
    }
}
