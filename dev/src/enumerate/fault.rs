//! What is done at a call, and at which calls.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::json;

use super::world::{COMMAND_HOLD, REQUEST_TIMEOUT};
use crate::faults::{Action, When};
use crate::proxy::{Call, Deed, Disturbance, Kill, Phase};

/// The service that a call goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Daytona.
    Daytona,
    /// The Kubernetes API.
    Kubernetes,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The controller is killed, and another starts.
    Kill(Phase),
    /// Another answer than the service's; [`When::Before`]: the service has not even seen the call.
    Answer(u16, When),
    /// The connection is cut.
    Cut(When),
    /// The controller has given up by then: the call gets there late, or is answered late.
    Late(When),
    /// The events of a watch are disturbed.
    Watch(Disturbance),
}

/// Refusals that pass.
const STATUSES: [u16; 5] = [409, 429, 500, 502, 504];
const PHASES: [Phase; 3] = [Phase::Before, Phase::During, Phase::After];
const BOTH: [When; 2] = [When::Before, When::After];

/// Faults are at so many writes of a claim to lead.
const RENEWALS: u64 = 2;

/// How far the events of a watch lag behind, and for how long they are missed.
const LAG: Duration = Duration::from_secs(2);
/// How many events are told again.
const AGAIN: usize = 3;

/// A call is late when the controller has given up, however long it was ready to have it held.
const LATE: Duration = Duration::from_millis(700).saturating_add(REQUEST_TIMEOUT);

/// All that can be done at a call that changes something.
#[must_use]
pub fn every() -> Vec<Fault> {
    let kills = PHASES.map(Fault::Kill);
    let answers = STATUSES.into_iter().flat_map(|status| BOTH.map(|when| Fault::Answer(status, when)));
    kills.into_iter().chain(answers).chain(BOTH.map(Fault::Cut)).chain(BOTH.map(Fault::Late)).collect()
}

/// What differs most: the kills, a lost answer, an answer that comes too late.
#[must_use]
pub fn gravest() -> Vec<Fault> {
    let mut faults = PHASES.map(Fault::Kill).to_vec();
    faults.extend([Fault::Cut(When::After), Fault::Late(When::After)]);
    faults
}

/// All that is done to watches.
#[must_use]
pub fn of_watches() -> Vec<Fault> {
    let all = [Disturbance::Hold(LAG), Disturbance::Miss(LAG), Disturbance::Replay(AGAIN), Disturbance::Freeze];
    all.map(Fault::Watch).to_vec()
}

/// Whether a call changes something there, and is worth a fault. Events are told to people, and nothing waits for them;
/// of a claim to lead, which is renewed all the time, the beginning is.
#[must_use]
pub fn counts(call: &Call) -> bool {
    let left_out = ["/events", "reviews"];
    matches!(call.method.as_str(), "POST" | "PUT" | "PATCH" | "DELETE")
        && !left_out.iter().any(|part| call.route.contains(part))
        && (call.nth <= RENEWALS || !call.route.contains("/coordination.k8s.io/"))
}

/// The kind of object that a call watches.
#[must_use]
pub fn watched(call: &Call) -> Option<&str> {
    call.route.strip_suffix("?watch")?.rsplit('/').next()
}

impl Fault {
    /// What the proxy does. `kill` ends the controller.
    #[must_use]
    pub fn deed(self, side: Side, kill: impl FnOnce() -> Kill) -> Deed {
        match self {
            Self::Kill(phase) => Deed::Kill(phase, kill()),
            Self::Answer(status, when) => Deed::Act(when, answer(side, status)),
            Self::Cut(when) => Deed::Act(when, Action { cut: true, ..Action::default() }),
            Self::Late(when) if side == Side::Daytona => Deed::Late(when, LATE + COMMAND_HOLD),
            Self::Late(when) => Deed::Late(when, LATE),
            Self::Watch(disturbance) => Deed::Watch(disturbance),
        }
    }
}

fn answer(side: Side, status: u16) -> Action {
    let message = format!("{status} by the proxy");
    let reason = match status {
        409 => "Conflict",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    let body = match side {
        Side::Daytona => json!({ "statusCode": status, "message": message }),
        Side::Kubernetes => json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": status,
        }),
    };
    let mut headers = BTreeMap::new();
    if status == 429 {
        headers.insert("retry-after".to_owned(), "1".to_owned());
    }
    Action { status: Some(status), headers, body: Some(body), ..Action::default() }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Daytona => "daytona",
            Self::Kubernetes => "kubernetes",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let applied = |when: &When| if *when == When::Before { "not applied" } else { "applied" };
        match self {
            Self::Kill(phase) => write!(f, "killed {phase} it"),
            Self::Answer(status, when) => write!(f, "answered {status}, {}", applied(when)),
            Self::Cut(when) => write!(f, "cut, {}", applied(when)),
            Self::Late(When::Before) => f.write_str("applied late"),
            Self::Late(When::After) => f.write_str("answered late"),
            Self::Watch(Disturbance::Hold(_)) => f.write_str("events held back"),
            Self::Watch(Disturbance::Miss(_)) => f.write_str("events missed"),
            Self::Watch(Disturbance::Replay(_)) => f.write_str("events replayed"),
            Self::Watch(Disturbance::Freeze) => f.write_str("watch frozen"),
        }
    }
}
