//! What is done at a call, and at which calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::names::may_be_held;
use super::scenario::Scenario;
use super::world::{COMMAND_HOLD, REQUEST_TIMEOUT};
use crate::faults::{Action, When};
use crate::proxy::{Call, Deed, Disturbance, FromEvent, Kill, Phase};

/// The service that a call goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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
    /// The controller has given up by then: the call gets there late (and is applied or refused, as the service decides), or
    /// is answered late.
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

/// A call is late when the controller has given up, however long it was ready to have it held. What comes later still than
/// `--absence-grace` after that is beyond what is promised: a creation could come when all has been deleted.
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

/// What is done at a call of this route. In [`Scenario::Reuse`] a sandbox goes from one lease to another by its labels:
/// that write is late as well.
#[must_use]
pub fn of(scenario: Scenario, route: &str) -> Vec<Fault> {
    if scenario.is_base() {
        return every();
    }
    let mut faults = gravest();
    if scenario == Scenario::Reuse && route.ends_with("/labels") {
        faults.push(Fault::Late(When::Before));
    }
    faults
}

/// Where among the events of a kind its watches are disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spot {
    /// From the first on.
    First,
    /// From the one in the middle on.
    Middle,
    /// From the one in the middle of the last third on.
    LastThird,
}

impl Spot {
    /// Those that so many events have.
    #[must_use]
    pub fn of(events: u64) -> Vec<Self> {
        match events {
            0 => Vec::new(),
            1 => vec![Self::First],
            2 => vec![Self::First, Self::LastThird],
            _ => vec![Self::First, Self::Middle, Self::LastThird],
        }
    }

    /// Which of so many events it is, from 1.
    #[must_use]
    pub fn event(self, events: u64) -> u64 {
        match self {
            Self::First => 1,
            Self::Middle => events.div_ceil(2),
            Self::LastThird => (events * 5).div_ceil(6),
        }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "from the first event on",
            Self::Middle => "from the middle on",
            Self::LastThird => "in the last third",
        })
    }
}

/// Whether a call changes something there, and is worth a fault. Events are told to people, and nothing waits for them;
/// of a claim to lead, which is renewed all the time, the beginning is.
#[must_use]
pub fn counts(call: &Call) -> bool {
    // Method and path; an event that is told again is changed by its name.
    let (path, group) = (call.route.trim_end_matches("/{name}"), "/apis/authorization.k8s.io/");
    matches!(call.method.as_str(), "POST" | "PUT" | "PATCH" | "DELETE")
        && !path.ends_with("/namespaces/{namespace}/events")
        && !path.contains(group)
        && (call.nth <= RENEWALS || !call.route.contains("/coordination.k8s.io/"))
}

/// The kind of object that a call watches.
#[must_use]
pub fn watched(call: &Call) -> Option<&str> {
    call.route.strip_suffix("?watch")?.rsplit('/').next()
}

impl Fault {
    /// Whether it was, at a call that it was to be done to: what is done after a call was applied was only if the service has
    /// applied it, or has answered as it does when nothing is done.
    #[must_use]
    pub fn was(self, call: &Call, usual: &BTreeSet<u16>) -> bool {
        let applied = |status: Option<u16>| status.is_some_and(|s| (200..300).contains(&s) || usual.contains(&s));
        call.met
            && match self {
                Self::Kill(Phase::Before)
                | Self::Answer(_, When::Before)
                | Self::Cut(When::Before)
                | Self::Late(When::Before)
                | Self::Watch(_) => true,
                // A call that is held is with the service, and has no answer yet.
                Self::Kill(Phase::During) => call.at_kill.is_none() || applied(call.at_kill),
                Self::Kill(Phase::After)
                | Self::Answer(_, When::After)
                | Self::Cut(When::After)
                | Self::Late(When::After) => applied(call.status),
            }
    }

    /// What the proxy does at a call about `object`. `from`: at which event of a watch it begins. `kill` ends the controller.
    #[must_use]
    pub fn deed(self, side: Side, object: &str, from: &FromEvent, kill: impl FnOnce() -> Kill) -> Deed {
        match self {
            Self::Kill(phase) => Deed::Kill(phase, kill()),
            Self::Answer(status, when) => Deed::Act(when, answer(side, status)),
            Self::Cut(when) => Deed::Act(when, Action { cut: true, ..Action::default() }),
            Self::Late(when) if side == Side::Daytona && may_be_held(object) => Deed::Late(when, LATE + COMMAND_HOLD),
            Self::Late(when) => Deed::Late(when, LATE),
            Self::Watch(disturbance) => Deed::Watch(from.clone(), disturbance),
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
            Self::Late(When::Before) => f.write_str("arrives late"),
            Self::Late(When::After) => f.write_str("answered late"),
            Self::Watch(Disturbance::Hold(_)) => f.write_str("events held back"),
            Self::Watch(Disturbance::Miss(_)) => f.write_str("events missed"),
            Self::Watch(Disturbance::Replay(_)) => f.write_str("events replayed"),
            Self::Watch(Disturbance::Freeze) => f.write_str("watch frozen"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_after_a_call_was_applied_was_only_if_it_was_applied() {
        let call = |status, at_kill| Call { met: true, status, at_kill, ..Call::default() };
        let after = [Fault::Cut(When::After), Fault::Answer(500, When::After), Fault::Late(When::After)];
        for fault in after.into_iter().chain([Fault::Kill(Phase::After)]) {
            let was = |status, usual: &[u16]| fault.was(&call(status, None), &usual.iter().copied().collect());
            assert!(was(Some(201), &[]) && was(Some(404), &[404]), "{fault}");
            assert!(!was(Some(409), &[200]) && !was(None, &[200]), "{fault}: the service had refused it");
        }
        let during = |at_kill| Fault::Kill(Phase::During).was(&call(Some(200), at_kill), &BTreeSet::new());
        assert!(during(Some(200)) && during(None) && !during(Some(500)));
        let before = call(None, None);
        assert!(Fault::Cut(When::Before).was(&before, &BTreeSet::new()));
        assert!(!Fault::Cut(When::Before).was(&Call { met: false, ..before }, &BTreeSet::new()));
        assert!(Fault::Late(When::Before).was(&call(Some(409), None), &BTreeSet::new()), "refused because it is late");
    }

    #[test]
    fn what_is_late_comes_before_its_absence_is_believed() {
        let by = |side, object| match Fault::Late(When::Before)
            .deed(side, object, &FromEvent::nth(1), || Box::new(|_| Box::pin(async {})))
        {
            Deed::Late(_, by) => by,
            other => panic!("{other:?}"),
        };
        let grace = Duration::from_secs(1);
        let (create, wait) = (by(Side::Daytona, ""), by(Side::Daytona, "sandbox 1, wait c-1"));
        assert!(create > REQUEST_TIMEOUT && create < REQUEST_TIMEOUT + grace, "{create:?}");
        assert!(wait > REQUEST_TIMEOUT + COMMAND_HOLD, "{wait:?}");
    }

    #[test]
    fn the_spots_of_a_watch_are_spread_over_its_events() {
        let events = |count: u64| Spot::of(count).iter().map(|spot| spot.event(count)).collect::<Vec<_>>();
        assert_eq!([events(0), events(1), events(2), events(3)], [vec![], vec![1], vec![1, 2], vec![1, 2, 3]]);
        assert_eq!(events(30), [1, 15, 25]);
    }

    #[test]
    fn a_label_write_is_late_where_a_sandbox_goes_from_hand_to_hand() {
        let late = Fault::Late(When::Before);
        assert!(of(Scenario::Reuse, "PUT /api/sandbox/{sandbox}/labels").contains(&late));
        assert!(!of(Scenario::Reuse, "POST /api/sandbox").contains(&late));
        assert!(!of(Scenario::Files, "PUT /api/sandbox/{sandbox}/labels").contains(&late));
    }
}
