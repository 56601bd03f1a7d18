//! Faults: rules that answer, cut, hold or delay chosen calls.

use std::sync::Mutex;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use regex_lite::Regex;
use serde_json::Value;

use super::lock;
use super::model::{Action, Rule, RuleReport, When};

/// A rule that cannot be.
#[derive(Debug, thiserror::Error)]
pub(super) enum RuleError {
    #[error("the path is not a regular expression: {0}")]
    Path(#[from] regex_lite::Error),
    #[error("the action needs one of status, cut, hang, delayMs")]
    NoAction,
    #[error("{0} is not a status")]
    Status(u16),
    #[error("header {0:?} is not one")]
    Header(String),
}

/// What a rule that fired asks for.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) rule: u64,
    pub(super) when: When,
    pub(super) action: Action,
}

/// How a fault ends a call, its delay aside.
pub(super) enum End {
    /// The call goes on as if nothing had been.
    Pass,
    Answer(Response),
    Cut,
    Hang,
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    all: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    last_id: u64,
    rules: Vec<(Regex, RuleReport)>,
}

impl Rules {
    pub(super) fn add(&self, rule: Rule) -> Result<u64, RuleError> {
        let path = Regex::new(&format!("^(?:{})$", rule.path))?;
        check(&rule.action)?;
        let mut known = lock(&self.all);
        known.last_id += 1;
        let id = known.last_id;
        known.rules.push((path, RuleReport { id, rule, matched: 0, fired: 0 }));
        Ok(id)
    }

    pub(super) fn clear(&self) {
        lock(&self.all).rules.clear();
    }

    pub(super) fn remove(&self, id: u64) -> bool {
        let mut known = lock(&self.all);
        let before = known.rules.len();
        known.rules.retain(|(_, report)| report.id != id);
        known.rules.len() < before
    }

    pub(super) fn reports(&self) -> Vec<RuleReport> {
        lock(&self.all).rules.iter().map(|(_, report)| report.clone()).collect()
    }

    /// Whether some rule wants to see the body before it can say.
    pub(super) fn need_body(&self, method: &str, path: &str) -> bool {
        lock(&self.all)
            .rules
            .iter()
            .any(|(regex, report)| report.rule.body_contains.is_some() && fits(regex, &report.rule, method, path))
    }

    /// The first rule that acts on this call. Every rule that matches counts it.
    pub(super) fn meet(&self, method: &str, path: &str, body: Option<&[u8]>) -> Option<Fault> {
        let mut known = lock(&self.all);
        for (regex, report) in &mut known.rules {
            if !fits(regex, &report.rule, method, path) || !body_fits(&report.rule, body) {
                continue;
            }
            report.matched += 1;
            let spent = report.rule.times.is_some_and(|times| report.fired >= times);
            if report.matched > report.rule.skip && !spent {
                report.fired += 1;
                let action = report.rule.action.clone();
                return Some(Fault { rule: report.id, when: report.rule.when, action });
            }
        }
        None
    }
}

impl Fault {
    /// Waits as asked, then says how the call ends.
    pub(super) async fn end(&self) -> End {
        if let Some(delay) = self.action.delay_ms {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        if self.action.cut {
            End::Cut
        } else if self.action.hang {
            End::Hang
        } else if let Some(status) = self.action.status {
            End::Answer(answer(status, &self.action))
        } else {
            End::Pass
        }
    }
}

fn fits(regex: &Regex, rule: &Rule, method: &str, path: &str) -> bool {
    rule.method.as_deref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(method)) && regex.is_match(path)
}

fn body_fits(rule: &Rule, body: Option<&[u8]>) -> bool {
    rule.body_contains
        .as_ref()
        .is_none_or(|text| body.is_some_and(|body| String::from_utf8_lossy(body).contains(text.as_str())))
}

fn check(action: &Action) -> Result<(), RuleError> {
    if action.status.is_none() && !action.cut && !action.hang && action.delay_ms.is_none() {
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

fn answer(status: u16, action: &Action) -> Response {
    let (body, kind) = match &action.body {
        None => (String::new(), None),
        Some(Value::String(text)) => (text.clone(), None),
        Some(json) => (json.to_string(), Some("application/json")),
    };
    let mut response = Body::from(body).into_response();
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
        let fired: Vec<bool> = (0..3).map(|_| rules.meet("POST", "/api/sandbox", None).is_some()).collect();
        assert_eq!(fired, [false, true, false]);
        assert_eq!((rules.reports()[0].matched, rules.reports()[0].fired), (3, 1));
    }

    #[test]
    fn the_whole_path_must_match() {
        let rules = Rules::default();
        rules.add(Rule::on("POST", "/api/sandbox").cut()).unwrap();
        assert!(rules.meet("POST", "/api/sandbox/x/start", None).is_none());
        assert!(rules.meet("GET", "/api/sandbox", None).is_none());
    }

    #[test]
    fn a_body_can_be_asked_for() {
        let rules = Rules::default();
        rules.add(Rule::on("POST", "/x").body_contains("once").hang()).unwrap();
        assert!(rules.need_body("POST", "/x") && !rules.need_body("POST", "/y"));
        assert!(rules.meet("POST", "/x", Some(b"twice")).is_none());
        assert!(rules.meet("POST", "/x", Some(b"at once")).is_some());
    }

    #[test]
    fn an_action_is_needed() {
        assert!(matches!(Rules::default().add(Rule::on("GET", "/x")), Err(RuleError::NoAction)));
    }
}
