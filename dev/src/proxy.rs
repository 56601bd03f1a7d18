//! A reverse proxy that disturbs: it kills its caller at a chosen call, or does to calls what rules say.
//!
//! It stands between the controller and a service (Daytona, or the Kubernetes API), counts the calls, and asks a meddler
//! at each what is done at it ([`Deed`]): the caller is killed, before the call has reached the service, while the
//! service acts on it, or right after the answer was read; the call is answered, cut or late; the events of a watch are
//! disturbed. Rules ([`crate::faults`]) act on the calls that the meddler leaves alone. Everything else passes as it is:
//! headers, `Expect`, bodies of any length and those that never end. Nothing is sent twice and no redirect is followed.
//! Where the service fails, the caller's connection is cut, so that no answer is of the proxy's making unless a rule or
//! the meddler asks for one.

mod deed;
mod delivery;
mod forward;
mod name;
mod sockets;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::Method;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::faults::{Rule, RuleError, RuleReport, Rules};

pub use deed::{Deed, Disturbance, FromEvent, Kill, Meddler};
pub use forward::Upstream;
pub use name::{Name, Naming, Routes};
pub use sockets::is_end_of;

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
    /// The n-th call of a route on an object, from 1: holds also where other calls come in another order.
    Nth {
        /// Method and path with placeholders, such as `POST /api/sandbox`.
        route: String,
        /// What it is about; empty where nothing is told.
        object: String,
        /// Which of these calls.
        nth: u64,
    },
}

impl At {
    /// The n-th call of a route whose objects have no names.
    #[must_use]
    pub fn nth(route: &str, nth: u64) -> Self {
        Self::Nth { route: route.to_owned(), object: String::new(), nth }
    }

    /// Whether it is this call.
    #[must_use]
    pub fn is(&self, call: &Call) -> bool {
        match self {
            Self::Number(number) => *number == call.number,
            Self::Nth { route, object, nth } => (route, object, *nth) == (&call.route, &call.object, call.nth),
        }
    }
}

/// One call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    /// Counts up from 1, in the order of arrival.
    pub number: u64,
    /// Its method.
    pub method: Method,
    /// Method and path with placeholders for the ids, as in the local Daytona's call log; a watch ends in `?watch`.
    pub route: String,
    /// What it is about, as far as its name tells.
    pub object: String,
    /// Which call of its route and object, from 1.
    pub nth: u64,
    /// What the service answered; absent as long as it has not.
    pub status: Option<u16>,
    /// The phase in which the caller was killed at this call.
    pub killed: Option<Phase>,
    /// What the service had answered when the kill began; absent if it had not.
    pub at_kill: Option<u16>,
    /// The rule that meddled with it.
    pub rule: Option<u64>,
    /// Whether the meddler's deed was done to it: the caller is dead, the answer is another (of a call that is to be applied:
    /// after the service has answered), a late one has reached the service or is answered, an event was disturbed. What
    /// the service has answered is for others to judge.
    pub met: bool,
    /// How many events were told on an undisturbed watch.
    pub events: u64,
}

impl Call {
    /// How to aim at this call in another run.
    #[must_use]
    pub fn at(&self) -> At {
        At::Nth { route: self.route.clone(), object: self.object.clone(), nth: self.nth }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {} ({}, ", self.number, self.at())?;
        match self.status {
            Some(status) => write!(f, "answered {status})")?,
            None => f.write_str("not answered)")?,
        }
        self.killed.map_or(Ok(()), |phase| write!(f, ", killed {phase} it"))?;
        if self.met && self.killed.is_none() { f.write_str(", disturbed") } else { Ok(()) }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "call {number}"),
            Self::Nth { route, object, nth } if object.is_empty() => write!(f, "{route}, nth {nth}"),
            Self::Nth { route, object, nth } => write!(f, "{route}, {object}, nth {nth}"),
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
    /// Listens on a port of its own on loopback, in front of `upstream`, and names calls by Daytona's routes.
    ///
    /// # Errors
    /// When there is no port, or the upstream's CA cannot be used.
    pub async fn start(upstream: Upstream) -> Result<Self, Error> {
        Self::start_naming(upstream, Arc::new(Routes)).await
    }

    /// As [`Self::start`], with other names for calls.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_naming(upstream: Upstream, naming: Arc<dyn Naming>) -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let record = Arc::new(Record { naming, rules: Rules::default(), state: Mutex::default() });
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
        let kill: Kill = Box::new(move |_| Box::pin(kill()));
        self.aim(at, Deed::Kill(phase, kill));
    }

    /// Has something done at a call, once. Replaces whatever was to be done.
    pub fn aim(&self, at: At, deed: Deed) {
        let mut deed = Some(deed);
        self.meddle(Box::new(move |call| if at.is(call) { deed.take() } else { None }));
    }

    /// Has what `meddler` says done at each call from now on, in place of whatever was to be done.
    pub fn meddle(&self, meddler: Meddler) {
        self.record.state().meddler = Some(meddler);
    }

    /// Nothing is done at any call any more, save for what rules say.
    pub fn leave_alone(&self) {
        self.record.state().meddler = None;
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

    /// Whether a call has come at which the caller is killed, though it may be alive yet.
    #[must_use]
    pub fn reached(&self) -> bool {
        self.record.state().reached
    }

    /// How many calls are carried on although their caller has left, or has to wait: those that are late, or at which it is
    /// killed.
    #[must_use]
    pub fn carried_on(&self) -> usize {
        self.record.state().carried_on
    }

    /// How many calls the meddler's deeds were done to.
    #[must_use]
    pub fn met(&self) -> usize {
        self.record.state().calls.iter().filter(|call| call.met).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// All calls, the rules, and what else is to be done.
struct Record {
    naming: Arc<dyn Naming>,
    rules: Rules,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    counts: HashMap<(String, String), u64>,
    meddler: Option<Meddler>,
    reached: bool,
    carried_on: usize,
}

/// What is known of a call when it arrives.
struct Arrived {
    number: u64,
    deed: Option<Deed>,
    is_watch: bool,
    may_be_held: bool,
}

/// A call is carried on for as long as this lives.
struct CarriedOn(Arc<Record>);

impl CarriedOn {
    fn new(record: &Arc<Record>) -> Self {
        record.state().carried_on += 1;
        Self(Arc::clone(record))
    }
}

impl Drop for CarriedOn {
    fn drop(&mut self) {
        self.0.state().carried_on -= 1;
    }
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

    /// Notes a call; says its number, and what is to be done at it.
    fn arrived(&self, method: &Method, path: &str, query: Option<&str>, body: &[u8]) -> Arrived {
        let is_watch = query.is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")));
        let name = self.naming.name(method, path, body);
        let may_be_held = self.naming.may_be_held(&name);
        let Name { route, object } = name;
        let route = format!("{method} {route}{}", if is_watch { "?watch" } else { "" });
        let mut state = self.state();
        let count = state.counts.entry((route.clone(), object.clone())).or_default();
        *count += 1;
        let nth = *count;
        let number = u64::try_from(state.calls.len()).unwrap_or(u64::MAX).saturating_add(1);
        let method = method.clone();
        let call = Call { number, method, route, object, nth, ..Call::default() };
        let deed = state.meddler.as_mut().and_then(|meddler| meddler(&call));
        state.reached |= matches!(deed, Some(Deed::Kill(..)));
        state.calls.push(call);
        Arrived { number, deed, is_watch, may_be_held }
    }

    fn answered(&self, number: u64, status: u16) {
        self.change(number, |call| call.status = Some(status));
    }

    fn meddled(&self, number: u64, rule: u64) {
        self.change(number, |call| call.rule = Some(rule));
    }

    fn told(&self, number: u64, events: u64) {
        self.change(number, |call| call.events += events);
    }

    fn killing(&self, number: u64) {
        self.change(number, |call| call.at_kill = call.status);
    }

    fn killed(&self, number: u64, phase: Phase) {
        self.change(number, |call| call.killed = Some(phase));
    }

    fn met(&self, number: u64) {
        self.change(number, |call| call.met = true);
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Call)) {
        let place = usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX);
        if let Some(call) = self.state().calls.get_mut(place) {
            change(call);
        }
    }
}
