//! Finds the rule that acts on a call, and says what it makes of it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Body;
use regex_lite::Regex;
use serde_json::Value;

use super::rule::{Action, Rule, RuleReport, When};

/// A rule that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// The path or the object is no pattern.
    #[error("not a regular expression: {0}")]
    Pattern(#[from] regex_lite::Error),
    /// It would do nothing.
    #[error("the action needs one of status, cut, hang, delayMs, mode")]
    NoAction,
    /// Nothing can be answered with it.
    #[error("{0} is not a status")]
    Status(u16),
    /// It cannot be sent.
    #[error("header {0:?} is not one")]
    Header(String),
    /// A proxy cannot make the service behind it fail in its own ways.
    #[error("a proxy has no modes; give the rule to the local Daytona")]
    Mode,
}

/// The caller's connection is closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("cut by a rule")]
pub(crate) struct Cut;

/// A rule that fired, and what it asks for.
#[derive(Debug, Clone)]
pub(crate) struct Fired {
    pub(crate) rule: u64,
    pub(crate) effect: Effect,
}

/// What is made of a call.
#[derive(Debug, Clone)]
pub(crate) struct Effect {
    pub(crate) when: When,
    pub(crate) action: Action,
}

#[derive(Debug, Default)]
pub(crate) struct Rules {
    all: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    last_id: u64,
    rules: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    path: Regex,
    object: Option<Regex>,
    report: RuleReport,
}

impl Rules {
    pub(crate) fn add(&self, rule: Rule) -> Result<u64, RuleError> {
        let segment = Regex::new(r"\{[a-z]+\}")?;
        let path = Regex::new(&format!("^(?:{})$", segment.replace_all(&rule.path, "[^/]+")))?;
        let object = rule.object.as_ref().map(|object| Regex::new(&format!("^(?:{object})$"))).transpose()?;
        check(&rule.action)?;
        let mut known = self.known();
        known.last_id += 1;
        let id = known.last_id;
        known.rules.push(Entry { path, object, report: RuleReport { id, rule, matched: 0, fired: 0 } });
        Ok(id)
    }

    pub(crate) fn clear(&self) {
        self.known().rules.clear();
    }

    pub(crate) fn remove(&self, id: u64) -> bool {
        let mut known = self.known();
        let before = known.rules.len();
        known.rules.retain(|entry| entry.report.id != id);
        known.rules.len() < before
    }

    pub(crate) fn reports(&self) -> Vec<RuleReport> {
        self.known().rules.iter().map(|entry| entry.report.clone()).collect()
    }

    /// The first rule that acts on this request. Its body is read only for a rule that asks for it.
    pub(crate) async fn meet<B>(
        &self,
        request: Request<B>,
    ) -> Result<(Request<Either<B, Full<Bytes>>>, Option<Fired>), Cut>
    where
        B: Body<Data = Bytes>,
    {
        let (method, path) = (request.method().as_str().to_owned(), request.uri().path().to_owned());
        if !self.need_body(&method, &path) {
            return Ok((request.map(Either::Left), self.find(&method, &path, None)));
        }
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.map_err(|_| Cut)?.to_bytes();
        let fault = self.find(&method, &path, Some(&bytes));
        Ok((Request::from_parts(parts, Either::Right(Full::new(bytes))), fault))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn need_body(&self, method: &str, path: &str) -> bool {
        let known = self.known();
        known.rules.iter().any(|entry| entry.report.rule.body_contains.is_some() && entry.fits(method, path))
    }

    /// The first rule that acts on this call. Every rule that matches counts it, whichever acts.
    fn find(&self, method: &str, path: &str, body: Option<&[u8]>) -> Option<Fired> {
        let mut found = None;
        for entry in &mut self.known().rules {
            if !entry.fits(method, path) || !body_fits(&entry.report.rule, body) {
                continue;
            }
            let report = &mut entry.report;
            report.matched += 1;
            let spent = report.rule.times.is_some_and(|times| report.fired >= times);
            if found.is_none() && report.matched > report.rule.skip && !spent {
                report.fired += 1;
                let action = report.rule.action.clone();
                let effect = Effect { when: report.rule.when, action };
                found = Some(Fired { rule: report.id, effect });
            }
        }
        found
    }
}

impl Entry {
    fn fits(&self, method: &str, path: &str) -> bool {
        let wanted = &self.report.rule.method;
        wanted.as_deref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(method))
            && self.path.is_match(path)
            && self.object.as_ref().is_none_or(|object| path.split('/').any(|segment| object.is_match(segment)))
    }
}

impl Effect {
    /// What becomes of a call: `apply` is its way without this, `own` takes over an answer of the rule's.
    pub(crate) async fn around<R>(
        &self,
        apply: impl Future<Output = Result<R, Cut>>,
        own: impl FnOnce(Response<Bytes>) -> R,
    ) -> Result<R, Cut> {
        if self.when == When::After {
            let applied = apply.await?;
            return Ok(self.end().await?.map_or(applied, own));
        }
        match self.end().await? {
            Some(answer) => Ok(own(answer)),
            None => apply.await,
        }
    }

    /// Waits as asked, then says how the call ends; nothing if it goes on as if nothing had been.
    async fn end(&self) -> Result<Option<Response<Bytes>>, Cut> {
        if let Some(delay) = self.action.delay_ms {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        if self.action.cut {
            return Err(Cut);
        }
        if self.action.hang {
            // Ends when the caller leaves: its connection's future is dropped then.
            std::future::pending::<()>().await;
        }
        Ok(self.action.status.map(|status| answer(status, &self.action)))
    }
}

fn body_fits(rule: &Rule, body: Option<&[u8]>) -> bool {
    rule.body_contains
        .as_ref()
        .is_none_or(|text| body.is_some_and(|body| String::from_utf8_lossy(body).contains(text.as_str())))
}

fn check(action: &Action) -> Result<(), RuleError> {
    let acts = action.status.is_some() || action.cut || action.hang;
    if !acts && action.delay_ms.is_none() && action.mode.is_none() {
        return Err(RuleError::NoAction);
    }
    if let Some(status) = action.status {
        StatusCode::from_u16(status).map_err(|_| RuleError::Status(status))?;
    }
    for (name, value) in &action.headers {
        if name.parse::<HeaderName>().is_err() || HeaderValue::from_str(value).is_err() {
            return Err(RuleError::Header(name.clone()));
        }
    }
    Ok(())
}

fn answer(status: u16, action: &Action) -> Response<Bytes> {
    let (body, kind) = match &action.body {
        None => (String::new(), None),
        Some(Value::String(text)) => (text.clone(), None),
        Some(json) => (json.to_string(), Some("application/json")),
    };
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    let headers = response.headers_mut();
    if let Some(kind) = kind {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    for (name, value) in &action.headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            headers.insert(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_skips_fires_and_is_spent() {
        let rules = Rules::default();
        rules.add(Rule::on("POST", "/api/sandbox").skip(1).times(1).answer(502, "")).unwrap();
        let fired: Vec<bool> = (0..3).map(|_| rules.find("POST", "/api/sandbox", None).is_some()).collect();
        assert_eq!(fired, [false, true, false]);
        assert_eq!((rules.reports()[0].matched, rules.reports()[0].fired), (3, 1));
    }

    #[test]
    fn the_whole_path_must_match() {
        let rules = Rules::default();
        rules.add(Rule::on("POST", "/api/sandbox").cut()).unwrap();
        assert!(rules.find("POST", "/api/sandbox/x/start", None).is_none());
        assert!(rules.find("GET", "/api/sandbox", None).is_none());
    }

    #[test]
    fn a_name_in_braces_stands_for_a_segment_and_an_object_for_one_of_them() {
        let rules = Rules::default();
        rules.add(Rule::on("POST", "/api/sandbox/{sandbox}/start").object("s[0-9]+").cut()).unwrap();
        let fires = |path| rules.find("POST", path, None).is_some();
        assert!(fires("/api/sandbox/s1/start"));
        assert!(!fires("/api/sandbox/other/start") && !fires("/api/sandbox/s1/x/start"));
        assert!(!fires("/api/sandbox/s1x/start"), "the whole segment must match");
        assert!(matches!(rules.add(Rule::on("GET", "(")), Err(RuleError::Pattern(_))));
    }

    #[test]
    fn the_nth_is_the_nth() {
        let rules = Rules::default();
        rules.add(Rule::on("GET", "/x").nth(2).cut()).unwrap();
        let fired: Vec<bool> = (0..3).map(|_| rules.find("GET", "/x", None).is_some()).collect();
        assert_eq!(fired, [false, true, false]);
    }

    #[test]
    fn an_action_is_needed() {
        assert!(matches!(Rules::default().add(Rule::on("GET", "/x")), Err(RuleError::NoAction)));
    }
}
