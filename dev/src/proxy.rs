//! A reverse proxy that disturbs: it kills its caller at a chosen call, or does to calls what rules say.
//!
//! It stands between the controller and a service (Daytona, or the Kubernetes API), counts the calls, and at one of
//! them has the caller killed: before the call has reached the service, while the service acts on it, or right after
//! the answer was read. Calls that a rule ([`crate::faults`]) acts on are answered, cut, held or delayed, before or
//! after the service has had them. Everything else passes as it is: headers, `Expect`, bodies of any length and those
//! that never end. Nothing is sent twice and no redirect is followed. Where the service fails, the caller's connection
//! is cut, so that no answer is of the proxy's making unless a rule asks for one.

mod delivery;
mod forward;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::Method;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::faults::{Rule, RuleError, RuleReport, Rules};
use crate::local_daytona::routes;

pub use forward::Upstream;

/// Where in the course of a call the caller is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The call has not reached the service, and never will.
    Before,
    /// The call has reached the service, and no answer reaches the caller. The service finishes it.
    During,
    /// The caller has read the whole answer.
    After,
}

/// A call that can be aimed at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum At {
    /// The n-th of all calls, from 1.
    Number(u64),
    /// The n-th call of a route, from 1: holds also where calls of other routes come in another order.
    Nth {
        /// Method and path with placeholders, such as `POST /api/sandbox`.
        route: String,
        /// Which of its calls.
        nth: u64,
    },
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Counts up from 1, in the order of arrival.
    pub number: u64,
    /// Its method.
    pub method: Method,
    /// Method and path with placeholders for the ids, as in the local Daytona's call log; a watch ends in `?watch`.
    pub route: String,
    /// Which call of its route, from 1.
    pub nth: u64,
    /// What the service answered; absent as long as it has not.
    pub status: Option<u16>,
    /// The phase in which the caller was killed at this call.
    pub killed: Option<Phase>,
    /// The rule that meddled with it.
    pub rule: Option<u64>,
}

impl Call {
    /// How to aim at this call in another run.
    #[must_use]
    pub fn at(&self) -> At {
        At::Nth { route: self.route.clone(), nth: self.nth }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {} ({}, nth {}, ", self.number, self.route, self.nth)?;
        match self.status {
            Some(status) => write!(f, "answered {status})")?,
            None => f.write_str("not answered)")?,
        }
        self.killed.map_or(Ok(()), |phase| write!(f, ", killed {phase} it"))
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "call {number}"),
            Self::Nth { route, nth } => write!(f, "{route}, nth {nth}"),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "before",
            Self::During => "during",
            Self::After => "after",
        })
    }
}

/// Why there is no proxy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No port on loopback.
    #[error("cannot listen on loopback: {0}")]
    Listen(#[from] io::Error),
    /// The client for the service cannot be made, for example of this CA.
    #[error("cannot set up the way to the service: {0}")]
    Client(#[from] reqwest::Error),
}

/// A running proxy. Ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    record: Arc<Record>,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a port of its own on loopback, in front of `upstream`.
    ///
    /// # Errors
    /// When there is no port, or the upstream's CA cannot be used.
    pub async fn start(upstream: Upstream) -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let record = Arc::new(Record::default());
        let serving = tokio::spawn(forward::serve(listener, upstream.client()?, Arc::clone(&record)));
        Ok(Self { address, record, serving })
    }

    /// Where it listens, such as `http://127.0.0.1:4711`: stands for the origin of the service.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Has the caller killed at a call, once: `kill` comes back when the caller is dead. Replaces an aim that was not
    /// reached.
    pub fn kill_at<F>(&self, at: At, phase: Phase, kill: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let kill: Kill = Box::new(move || Box::pin(kill()));
        self.record.state().aim = Some((at, Aim { phase, kill }));
    }

    /// Adds a rule; says its number. Modes are the local Daytona's alone.
    ///
    /// # Errors
    /// When the rule cannot be.
    pub fn add_rule(&self, rule: Rule) -> Result<u64, RuleError> {
        if rule.action.mode.is_some() {
            return Err(RuleError::Mode);
        }
        self.record.rules.add(rule)
    }

    /// Takes all rules away.
    pub fn clear_rules(&self) {
        self.record.rules.clear();
    }

    /// All rules, and how often each has fired.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleReport> {
        self.record.rules.reports()
    }

    /// Every call so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.record.state().calls.clone()
    }

    /// The call at which the caller was killed, once it is dead.
    #[must_use]
    pub fn killed(&self) -> Option<Call> {
        self.record.state().calls.iter().find(|call| call.killed.is_some()).cloned()
    }

    /// Whether the aim was reached: the call has come, though the caller may be alive yet.
    #[must_use]
    pub fn reached(&self) -> bool {
        self.record.state().reached
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

type Kill = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// What happens at a call.
struct Aim {
    phase: Phase,
    kill: Kill,
}

/// All calls, the rules, and the aim.
#[derive(Default)]
struct Record {
    rules: Rules,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    counts: HashMap<String, u64>,
    aim: Option<(At, Aim)>,
    reached: bool,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("calls", &self.state().calls).finish_non_exhaustive()
    }
}

impl Record {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call; says its number, and the aim if this is the one.
    fn arrived(&self, method: &Method, path: &str, query: Option<&str>) -> (u64, Option<Aim>) {
        let watch = query.is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")));
        let route = format!("{method} {}{}", routes::name(path).pattern, if watch { "?watch" } else { "" });
        let mut state = self.state();
        let count = state.counts.entry(route.clone()).or_default();
        *count += 1;
        let nth = *count;
        let number = u64::try_from(state.calls.len()).unwrap_or(u64::MAX).saturating_add(1);
        let aimed_at = |at: &At| match at {
            At::Number(wanted) => *wanted == number,
            At::Nth { route: wanted, nth: which } => *wanted == route && *which == nth,
        };
        let aim = state.aim.take_if(|(at, _)| aimed_at(at)).map(|(_, aim)| aim);
        state.reached |= aim.is_some();
        state.calls.push(Call { number, method: method.clone(), route, nth, status: None, killed: None, rule: None });
        (number, aim)
    }

    fn answered(&self, number: u64, status: u16) {
        self.change(number, |call| call.status = Some(status));
    }

    fn meddled(&self, number: u64, rule: u64) {
        self.change(number, |call| call.rule = Some(rule));
    }

    fn killed(&self, number: u64, phase: Phase) {
        self.change(number, |call| call.killed = Some(phase));
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Call)) {
        if let Some(call) = self.state().calls.iter_mut().find(|call| call.number == number) {
            change(call);
        }
    }
}
