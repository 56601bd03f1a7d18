//! One call, before it is made.

use std::time::Duration;

use reqwest::{
    Method,
    multipart::{Form, Part},
};
use serde::Serialize;
use url::Url;

use super::{
    budget::Limiter,
    error::{Class, Error},
};

/// What a call carries.
pub(super) enum Body {
    None,
    Json(serde_json::Value),
    /// Paths and contents of files.
    Files(Vec<(String, Vec<u8>)>),
}

/// One call, before it is made.
pub(super) struct Call {
    pub(super) operation: &'static str,
    pub(super) limiter: Limiter,
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) body: Body,
    /// How long the server may hold the answer back on purpose.
    pub(super) held: Duration,
    /// Another limit than the usual one, for a call that should be answered soon or not at all.
    pub(super) limit: Option<Duration>,
    /// Whether the body of a successful answer is of interest.
    pub(super) with_body: bool,
    /// Whether it is no use of the sandbox, and must not keep it awake.
    pub(super) unnoticed: bool,
}

impl Call {
    pub(super) fn new(operation: &'static str, limiter: Limiter, method: Method, url: Url) -> Self {
        Self {
            operation,
            limiter,
            method,
            url,
            body: Body::None,
            held: Duration::ZERO,
            limit: None,
            with_body: true,
            unnoticed: false,
        }
    }

    pub(super) fn json(mut self, body: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_value(body)
            .map_err(|e| Error::new(self.operation, Class::Refused, format!("the request cannot be written: {e}")))?;
        self.body = Body::Json(body);
        Ok(self)
    }

    pub(super) fn files(mut self, files: Vec<(String, Vec<u8>)>) -> Self {
        self.body = Body::Files(files);
        self
    }

    pub(super) fn within(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(super) fn without_body(mut self) -> Self {
        self.with_body = false;
        self
    }

    pub(super) fn held(mut self, held: Duration) -> Self {
        self.held = held;
        self
    }
}

/// Daytona reads pairs of parts: the path, then the content.
pub(super) fn form(files: Vec<(String, Vec<u8>)>) -> Form {
    files.into_iter().enumerate().fold(Form::new(), |form, (number, (path, content))| {
        let content = Part::bytes(content).file_name("file");
        form.text(format!("files[{number}].path"), path).part(format!("files[{number}].file"), content)
    })
}

/// A URL below `base`; each segment is percent-encoded.
pub(super) fn below(base: &Url, segments: &[&str]) -> Url {
    let mut url = base.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 77.
    #[test]
    fn a_path_segment_cannot_leave_its_place() {
        let base = Url::parse("https://daytona.example/api/").unwrap();
        assert_eq!(
            below(&base, &["sandbox", "a/../b?c#d"]).as_str(),
            "https://daytona.example/api/sandbox/a%2F..%2Fb%3Fc%23d"
        );
    }
}
