//! Errors, classed by what the caller can do about them.

use std::time::Duration;

/// What the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The thing is not there (404, 410). From a toolbox it says nothing about the sandbox.
    Gone,
    /// Something else is going on with it (409): look again.
    Conflict,
    /// The sandbox cannot take calls now, for example because it is stopped: look at its state.
    NotYet,
    /// The limit of calls is reached: no call before this much time has passed.
    Throttled(Duration),
    /// The key is not accepted (401, 403). From a toolbox it may also mean that the sandbox is gone.
    Unauthorized,
    /// There is nobody to take the call (no connection, 503). As a rule it did not take effect, but that is no proof.
    Unavailable,
    /// The call was not made: nobody has answered lately, which is tried for all at once, or this process does not lead.
    NotMade,
    /// The request itself is refused (other 4xx): the same request will be refused again.
    Refused,
    /// The call may have taken effect or not (time-out, cut connection, 5xx, an answer that makes no sense).
    Unclear,
}

/// A call to Daytona that did not succeed. Its text never holds the key.
#[derive(Clone, Debug, thiserror::Error)]
#[error("could not {operation}: {message}")]
pub struct Error {
    /// Which call, in words.
    pub operation: &'static str,
    /// What the caller can do.
    pub class: Class,
    /// HTTP status, where there was an answer.
    pub status: Option<u16>,
    /// What Daytona or the network said; cut to 300 characters.
    pub message: String,
}

impl Error {
    /// Whether the call was not made because Daytona wants a pause.
    pub(super) fn is_pause(&self) -> bool {
        matches!(self.class, Class::Throttled(_)) && self.status.is_none()
    }

    /// Whether it is the service itself that did not answer.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self.class, Class::Unavailable | Class::Unclear) && self.status.is_none_or(|status| status >= 500)
    }

    pub(super) fn new(operation: &'static str, class: Class, message: impl Into<String>) -> Self {
        let message: String = message.into();
        Self { operation, class, status: None, message: message.chars().take(300).collect() }
    }

    /// Classes an answer by its status and, where statuses are ambiguous, by its text.
    pub(super) fn from_answer(operation: &'static str, status: u16, retry_after: Option<Duration>, body: &str) -> Self {
        let said = said(body);
        let class = match status {
            404 | 410 => Class::Gone,
            // An exec into a session that is unknown, dead or being deleted.
            500 if ["session not found", "broken pipe", "session cancelled"].iter().any(|t| said.contains(t)) => {
                Class::Gone
            }
            409 => Class::Conflict,
            429 => Class::Throttled(retry_after.unwrap_or(Duration::from_secs(10))),
            401 | 403 => Class::Unauthorized,
            400 if ["no IP address found", "failed to get runner info"].iter().any(|t| said.contains(t)) => {
                Class::NotYet
            }
            503 => Class::Unavailable,
            400..=499 if status != 408 => Class::Refused,
            300..=399 => Class::Refused,
            _ => Class::Unclear,
        };
        let mut error = Self::new(operation, class, format!("Daytona answered {status}: {said}"));
        error.status = Some(status);
        error
    }

    /// Classes a failure of the connection. The URL is left out: it may be long, and it is told elsewhere.
    pub(super) fn from_connection(operation: &'static str, error: reqwest::Error) -> Self {
        let class = if error.is_connect() || error.is_builder() { Class::Unavailable } else { Class::Unclear };
        let what = if error.is_timeout() {
            "no answer in time".to_owned()
        } else {
            let error = error.without_url();
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(deeper) = cause {
                text = format!("{text}: {deeper}");
                cause = deeper.source();
            }
            text
        };
        Self::new(operation, class, what)
    }
}

/// The message in an error body: JSON `message`, else the text.
fn said(body: &str) -> String {
    let message = serde_json::from_str::<serde_json::Value>(body).ok().and_then(|v| match v.get("message") {
        Some(serde_json::Value::String(text)) => Some(text.clone()),
        _ => None,
    });
    let text = message.unwrap_or_else(|| body.to_owned());
    let text: String = text.chars().filter(|c| !c.is_control()).take(250).collect();
    if text.trim().is_empty() { "(no message)".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(status: u16, body: &str) -> Class {
        Error::from_answer("test", status, None, body).class
    }

    #[test]
    fn an_answer_is_classed_by_what_can_be_done() {
        assert_eq!(class(404, ""), Class::Gone);
        assert_eq!(class(409, r#"{"message":"conflict"}"#), Class::Conflict);
        assert_eq!(
            class(400, r#"{"message":"bad request: no IP address found. Is the Sandbox started?"}"#),
            Class::NotYet
        );
        assert_eq!(class(400, r#"{"message":"Total CPU limit exceeded"}"#), Class::Refused);
        assert_eq!(class(401, ""), Class::Unauthorized);
        assert_eq!(class(408, ""), Class::Unclear);
        assert_eq!(class(500, r#"{"message":"failed to execute command: not found: session not found"}"#), Class::Gone);
        assert_eq!(class(500, r#"{"message":"failed to write command: write |1: broken pipe"}"#), Class::Gone);
        assert_eq!(class(500, "oops"), Class::Unclear);
        assert_eq!(class(502, ""), Class::Unclear);
        assert_eq!(class(503, ""), Class::Unavailable);
        assert_eq!(class(302, ""), Class::Refused);
        assert_eq!(
            Error::from_answer("test", 429, Some(Duration::from_secs(7)), "").class,
            Class::Throttled(Duration::from_secs(7))
        );
    }

    #[test]
    fn a_long_body_is_cut_and_cleaned() {
        let text = Error::from_answer("test", 500, None, &format!("\x1b[31m{}", "x".repeat(9000))).to_string();
        assert!(text.len() < 400 && !text.contains('\x1b'));
    }
}
