//! The forms in which a log is handed out.

use axum::http::HeaderMap;
use serde_json::Value;

const OUT: [u8; 3] = [1; 3];
const ERR: [u8; 3] = [2; 3];

/// The form that a request's headers ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Both streams together, without markers.
    Stripped,
    /// As it is kept, with markers.
    Raw,
    /// JSON with the streams apart.
    Split,
}

impl Form {
    pub(super) fn asked(headers: &HeaderMap) -> Self {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        match header("X-Daytona-SDK-Version").map(version) {
            // Garbage is taken for something recent enough to know markers.
            Some(None) => Self::Raw,
            Some(Some(version)) if version >= (0, 167) || version == (0, 0) => Self::Split,
            Some(Some(version)) if version >= (0, 27) => Self::Raw,
            None if header("X-Daytona-Split-Output") == Some("true") => Self::Raw,
            Some(Some(_)) | None => Self::Stripped,
        }
    }
}

/// Major and minor; `0.0.0-dev` is a build without a version.
fn version(text: &str) -> Option<(u32, u32)> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts = text.split(['.', '-', '+']);
    let mut number = || parts.next()?.parse::<u32>().ok();
    let version = (number()?, number()?);
    number()?;
    Some(version)
}

pub(super) fn strip(log: &[u8]) -> Vec<u8> {
    pieces(log).into_iter().flat_map(|(_, piece)| piece.iter().copied()).collect()
}

/// Standard output and standard error.
pub(super) fn split(log: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    for (marker, piece) in pieces(log) {
        if marker == ERR {
            err.extend_from_slice(piece);
        } else {
            out.extend_from_slice(piece);
        }
    }
    (out, err)
}

/// Invalid UTF-8 cannot be said in JSON.
pub(super) fn text(bytes: &[u8]) -> Value {
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}

/// A marker counts wherever it stands, the user's own bytes included.
fn pieces(log: &[u8]) -> Vec<([u8; 3], &[u8])> {
    let mut found = Vec::new();
    let (mut marker, mut start, mut at) = (OUT, 0, 0);
    while at < log.len() {
        let rest = log.get(at..).unwrap_or_default();
        let Some(next) = [OUT, ERR].into_iter().find(|marker| rest.starts_with(marker)) else {
            at += 1;
            continue;
        };
        found.push((marker, log.get(start..at).unwrap_or_default()));
        marker = next;
        at += marker.len();
        start = at;
    }
    found.push((marker, log.get(start..).unwrap_or_default()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(name: &'static str, value: &str) -> Form {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        Form::asked(&headers)
    }

    #[test]
    fn the_form_follows_the_headers() {
        assert_eq!(Form::asked(&HeaderMap::new()), Form::Stripped);
        assert_eq!(form("x-daytona-split-output", "true"), Form::Raw);
        for version in ["0.167.0", "0.226.1", "v0.226.1", "0.0.0-dev", "1.0.0"] {
            assert_eq!(form("x-daytona-sdk-version", version), Form::Split, "{version}");
        }
        for version in ["0.27.0", "0.166.9", "garbage", ""] {
            assert_eq!(form("x-daytona-sdk-version", version), Form::Raw, "{version}");
        }
        assert_eq!(form("x-daytona-sdk-version", "0.26.5"), Form::Stripped);
    }

    #[test]
    fn a_log_is_stripped_and_split() {
        let log = b"\x01\x01\x01a\n\x02\x02\x02e\n\x01\x01\x01b\n";
        assert_eq!(strip(log), b"a\ne\nb\n");
        assert_eq!(split(log), (b"a\nb\n".to_vec(), b"e\n".to_vec()));
    }
}
