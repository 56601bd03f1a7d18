//! The forms in which a log is handed out.

use axum::http::{HeaderMap, header};
use serde_json::Value;

const OUT: [u8; 3] = [1; 3];
const ERR: [u8; 3] = [2; 3];

/// A browser cannot set headers on a WebSocket: it says its version as a protocol that it would speak.
const VERSION_PROTOCOL: &str = "X-Daytona-SDK-Version~";

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
        let header = |name: &str| headers.get(name)?.to_str().ok().filter(|value| !value.is_empty());
        let said =
            header("X-Daytona-SDK-Version").or_else(|| version_protocol(headers)?.strip_prefix(VERSION_PROTOCOL));
        match said.map(version) {
            // Garbage is taken for something recent enough to know markers.
            Some(None) => Self::Raw,
            Some(Some(version)) if version >= (0, 167) || version == (0, 0) => Self::Split,
            Some(Some(version)) if version >= (0, 27) => Self::Raw,
            None if header("X-Daytona-Split-Output") == Some("true") => Self::Raw,
            Some(Some(_)) | None => Self::Stripped,
        }
    }
}

/// The protocol that says the version, as it was said.
pub(super) fn version_protocol(headers: &HeaderMap) -> Option<&str> {
    let offered = headers.get(header::SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?;
    offered.split(',').map(str::trim).find(|protocol| protocol.starts_with(VERSION_PROTOCOL))
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

fn marker(bytes: &[u8]) -> Option<[u8; 3]> {
    [OUT, ERR].into_iter().find(|marker| bytes.starts_with(marker))
}

/// Takes the markers out of a log that comes in pieces, with the service's own mistake: when a piece ends with a marker,
/// all of it is kept and comes again with the next.
#[derive(Debug, Default)]
pub(super) struct Stripper {
    kept: Vec<u8>,
}

impl Stripper {
    pub(super) fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        self.kept.extend_from_slice(piece);
        let (mut clean, mut at) = (Vec::new(), 0);
        while let Some((&first, after)) = self.kept.get(at..).and_then(<[u8]>::split_first) {
            let rest = self.kept.get(at..).unwrap_or_default();
            if let Some(marker) = marker(rest) {
                at += marker.len();
            } else if after.len() < 2 {
                // Too short to tell: it may be the beginning of a marker.
                let begins = matches!(rest, [1 | 2] | [1, 1] | [2, 2]);
                let rest = self.kept.split_off(at);
                self.kept = if begins {
                    rest
                } else {
                    clean.extend(rest);
                    Vec::new()
                };
                return clean;
            } else {
                clean.push(first);
                at += 1;
            }
        }
        clean
    }
}

/// A marker counts wherever it stands, the user's own bytes included.
fn pieces(log: &[u8]) -> Vec<([u8; 3], &[u8])> {
    let mut found = Vec::new();
    let (mut current, mut start, mut at) = (OUT, 0, 0);
    while at < log.len() {
        let rest = log.get(at..).unwrap_or_default();
        let Some(next) = marker(rest) else {
            at += 1;
            continue;
        };
        found.push((current, log.get(start..at).unwrap_or_default()));
        current = next;
        at += next.len();
        start = at;
    }
    found.push((current, log.get(start..).unwrap_or_default()));
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
        for version in ["0.27.0", "0.166.9", "garbage"] {
            assert_eq!(form("x-daytona-sdk-version", version), Form::Raw, "{version}");
        }
        for version in ["0.26.5", ""] {
            assert_eq!(form("x-daytona-sdk-version", version), Form::Stripped, "{version}");
        }
    }

    #[test]
    fn a_log_is_stripped_and_split() {
        let log = b"\x01\x01\x01a\n\x02\x02\x02e\n\x01\x01\x01b\n";
        assert_eq!(strip(log), b"a\ne\nb\n");
        assert_eq!(split(log), (b"a\nb\n".to_vec(), b"e\n".to_vec()));
    }

    /// As measured: `seq 1 100000` came as 2 282 249 bytes.
    #[test]
    fn stripping_pieces_repeats_what_ends_with_a_marker() {
        let log: Vec<u8> = (1..=100_000).flat_map(|n| format!("\x01\x01\x01{n}\n").into_bytes()).collect();
        let mut stripper = Stripper::default();
        let sent: usize = log.chunks(1024).map(|piece| stripper.take(piece).len()).sum();
        assert_eq!((log.len(), strip(&log).len(), sent), (888_895, 588_895, 2_282_249));
    }
}
