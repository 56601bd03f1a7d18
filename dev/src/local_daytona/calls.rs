//! The call log: every call to `/api` and `/toolbox`, in the order of arrival.

use std::sync::Mutex;

use super::clock::Moment;
use super::lock;
use super::model::Call;
use super::routes;

/// Set by a handler that knows better than the path what the call is about.
#[derive(Debug, Clone)]
pub(super) enum Subject {
    Sandbox(String),
    Session(String),
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    log: Mutex<Vec<Call>>,
}

impl Calls {
    /// Notes an arrival: a call that is never answered must be seen too.
    pub(super) fn arrived(&self, method: &str, path: &str, at: Moment) -> u64 {
        let route = routes::name(path);
        let mut log = lock(&self.log);
        let seq = log.last().map_or(1, |call| call.seq + 1);
        log.push(Call {
            seq,
            at: at.to_string(),
            method: method.to_owned(),
            route: format!("{method} {}", route.pattern),
            object: route.session.clone().or_else(|| route.sandbox.clone()),
            sandbox: route.sandbox,
            session: route.session,
            command: route.command,
            status: None,
            rule: None,
        });
        seq
    }

    pub(super) fn is_about(&self, seq: u64, subject: &Subject) {
        self.change(seq, |call| match subject {
            Subject::Sandbox(id) => {
                call.sandbox = Some(id.clone());
                call.object = Some(id.clone());
            }
            Subject::Session(id) => {
                call.session = Some(id.clone());
                call.object = Some(id.clone());
            }
        });
    }

    pub(super) fn meddled(&self, seq: u64, rule: u64) {
        self.change(seq, |call| call.rule = Some(rule));
    }

    pub(super) fn answered(&self, seq: u64, status: u16) {
        self.change(seq, |call| call.status = Some(status));
    }

    pub(super) fn since(&self, seq: u64) -> Vec<Call> {
        lock(&self.log).iter().filter(|call| call.seq > seq).cloned().collect()
    }

    fn change(&self, seq: u64, change: impl FnOnce(&mut Call)) {
        let mut log = lock(&self.log);
        if let Ok(index) = log.binary_search_by_key(&seq, |call| call.seq)
            && let Some(call) = log.get_mut(index)
        {
            change(call);
        }
    }
}
