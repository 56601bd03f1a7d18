//! Which pairs there are: by the calls and the events of undisturbed runs.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fault::{self, Fault, Side, Spot, watched};
use super::report;
use super::run::{Pair, Target};
use super::scenario::Scenario;
use crate::proxy::{At, Call};

/// What undisturbed runs of a scenario have shown, taken together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reference {
    /// The scenario's name.
    pub scenario: String,
    calls: Vec<Known>,
    /// By kind of object, how many events came on its watches: the fewest of all runs, and the most.
    events: BTreeMap<String, (u64, u64)>,
    /// How things stood before the deletion, in the last of them.
    pub standing: Value,
}

/// A call that a fault can be at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    side: Side,
    route: String,
    object: String,
    nth: u64,
    /// What the service answered.
    statuses: BTreeSet<u16>,
}

impl Known {
    fn is(&self, other: &Self) -> bool {
        (self.side, self.nth, &self.route, &self.object) == (other.side, other.nth, &other.route, &other.object)
    }

    fn target(&self) -> Target {
        let (route, object) = (self.route.clone(), self.object.clone());
        Target::Call(self.side, At::Nth { route, object, nth: self.nth })
    }
}

impl Reference {
    /// What one run has shown.
    #[must_use]
    pub fn of(scenario: Scenario, calls: &[(Side, Call)], standing: Value) -> Self {
        let mut events: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (kind, more) in calls.iter().filter_map(|(_, call)| Some((watched(call)?, call.events))) {
            let (fewest, most) = events.entry(kind.to_owned()).or_default();
            *fewest += more;
            *most += more;
        }
        let known = calls.iter().filter(|(_, call)| fault::counts(call)).map(|(side, call)| Known {
            side: *side,
            route: call.route.clone(),
            object: call.object.clone(),
            nth: call.nth,
            statuses: call.status.into_iter().collect(),
        });
        Self { scenario: scenario.name().to_owned(), calls: known.collect(), events, standing }
    }

    /// Takes in what another run of the scenario has shown.
    pub fn add(&mut self, other: &Self) {
        for call in &other.calls {
            match self.calls.iter_mut().find(|known| known.is(call)) {
                Some(known) => known.statuses.extend(&call.statuses),
                None => self.calls.push(call.clone()),
            }
        }
        for (kind, (fewest, most)) in &other.events {
            let known = self.events.entry(kind.clone()).or_insert((*fewest, *most));
            *known = (known.0.min(*fewest), known.1.max(*most));
        }
        self.standing = other.standing.clone();
    }

    /// How many calls there are that a fault can be at.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// The kinds of objects that are watched and of which no event comes: nothing can be disturbed there.
    pub fn silent(&self) -> impl Iterator<Item = &str> {
        self.events.iter().filter(|(_, (_, most))| *most == 0).map(|(kind, _)| kind.as_str())
    }

    /// What the service answers at a call when nothing is done to it.
    #[must_use]
    pub fn usual(&self, target: &Target) -> BTreeSet<u16> {
        let found = self.calls.iter().find(|known| known.target() == *target);
        found.map(|known| known.statuses.clone()).unwrap_or_default()
    }

    /// All pairs: each call with each of its faults, and for each kind that is watched a few events with each disturbance.
    #[must_use]
    pub fn pairs(&self, scenario: Scenario) -> Vec<Pair> {
        let mut pairs: Vec<Pair> = Vec::new();
        for known in &self.calls {
            let faults = fault::of(scenario, &known.route);
            pairs.extend(faults.into_iter().map(|fault| Pair { scenario, target: known.target(), fault }));
        }
        for (kind, (fewest, most)) in &self.events {
            for spot in Spot::of(*most) {
                // Of the fewest that have come: it is to come in each run.
                let target = Target::Watches { kind: kind.clone(), spot, event: spot.event((*fewest).max(1)) };
                let all = fault::of_watches().into_iter();
                pairs.extend(all.map(|fault| Pair { scenario, target: target.clone(), fault }));
            }
        }
        pairs
    }
}

impl Pair {
    /// Why its fault never was in a run with these calls; nothing if it was. `usual`: as of [`Reference::usual`].
    #[must_use]
    pub fn missed(&self, calls: &[(Side, Call)], usual: &BTreeSet<u16>) -> Option<String> {
        let here = |side: Side, call: &Call| match &self.target {
            Target::Call(own, at) => *own == side && at.is(call),
            Target::Watches { kind, .. } => watched(call) == Some(kind.as_str()),
        };
        let mut those = calls.iter().filter(|(side, call)| here(*side, call)).map(|(_, call)| call).peekable();
        if those.peek().is_none() {
            return Some("there was no such call".to_owned());
        }
        let mut why = None;
        for call in those {
            if self.fault.was(call, usual) {
                return None;
            }
            let answer = call.status.map_or_else(|| "not".to_owned(), |status| status.to_string());
            why = Some(match (&self.target, call.met) {
                (Target::Watches { event, .. }, _) => format!("event {event} did not come"),
                (Target::Call(..), true) => format!("the service did not apply the call; answered: {answer}"),
                (Target::Call(..), false) => format!("the call came, and nothing was done to it; answered: {answer}"),
            });
        }
        why
    }
}

/// So many of the pairs, or somewhat more: of each scenario each fault once at least. Which, their names decide alone.
#[must_use]
pub fn sample(mut pairs: Vec<Pair>, count: usize) -> Vec<Pair> {
    pairs.sort_by_cached_key(|pair| report::place(&pair.to_string()));
    let mut seen: HashSet<(Scenario, Fault)> = HashSet::new();
    let (mut chosen, others): (Vec<Pair>, Vec<Pair>) =
        pairs.into_iter().partition(|pair| seen.insert((pair.scenario, pair.fault)));
    let more = count.saturating_sub(chosen.len());
    chosen.extend(others.into_iter().take(more));
    chosen
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;

    fn call(method: Method, route: &str) -> (Side, Call) {
        let route = format!("{method} {route}");
        let events = if route.ends_with("things?watch") { 12 } else { 0 };
        (Side::Kubernetes, Call { number: 1, method, route, nth: 1, events, status: Some(200), ..Call::default() })
    }

    fn calls() -> Vec<(Side, Call)> {
        vec![
            call(Method::GET, "/api/v1/namespaces/{namespace}/secrets/{name}"),
            call(Method::POST, "/apis/events.k8s.io/v1/namespaces/{namespace}/events"),
            call(Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
            call(Method::PATCH, "/apis/g/v1/namespaces/{namespace}/things/{name}"),
            call(Method::GET, "/apis/g/v1/namespaces/{namespace}/things?watch"),
            call(Method::GET, "/api/v1/namespaces/{namespace}/secrets?watch"),
        ]
    }

    fn names(pairs: &[Pair]) -> BTreeSet<String> {
        pairs.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pair_is_a_fault_and_a_call_that_changes_something_or_an_event_of_a_watch() {
        let count = |scenario| {
            let reference = Reference::of(scenario, &calls(), Value::Null);
            assert_eq!(reference.silent().collect::<Vec<_>>(), ["secrets"], "what never comes cannot be disturbed");
            let all = reference.pairs(scenario);
            assert_eq!(names(&all).len(), all.len(), "no two have the same name");
            let watches: Vec<_> = all.iter().filter(|pair| matches!(pair.target, Target::Watches { .. })).collect();
            (all.len() - watches.len(), watches.len())
        };
        assert_eq!(count(Scenario::Sessions), (17, 12), "three kills, ten answers, two cuts, two late ones");
        assert_eq!(count(Scenario::Files), (5, 12), "three kills, a cut, a late answer; four at three events");
    }

    #[test]
    fn what_one_run_has_seen_is_there_in_the_next() {
        let mut reference = Reference::of(Scenario::Sessions, &calls(), Value::Null);
        let before = names(&reference.pairs(Scenario::Sessions));
        let mut less = calls();
        less.remove(3);
        if let Some((_, watch)) = less.iter_mut().find(|(_, call)| call.events > 0) {
            watch.events = 1;
        }
        let mut refused = call(Method::DELETE, "/apis/g/v1/namespaces/{namespace}/things/{name}");
        refused.1.status = Some(404);
        less.push(refused);
        reference.add(&Reference::of(Scenario::Sessions, &less, Value::from("new")));
        let pairs = reference.pairs(Scenario::Sessions);
        let after = names(&pairs);
        assert!(after.is_superset(&before) && after.len() == before.len() + 17, "{after:?}");
        assert_eq!(reference.standing, "new");
        let events = pairs.iter().filter_map(|pair| match &pair.target {
            Target::Watches { event, .. } => Some(*event),
            Target::Call(..) => None,
        });
        assert_eq!(events.max(), Some(1), "no later one than comes in each run");
        let deleted = pairs.iter().find(|pair| pair.to_string().contains("DELETE")).unwrap();
        assert_eq!(reference.usual(&deleted.target), [404].into());
    }

    #[test]
    fn why_a_fault_never_was_is_told() {
        let fault = Fault::Cut(crate::faults::When::After);
        let (side, patch) = call(Method::PATCH, "/x");
        let pair = Pair { scenario: Scenario::Files, target: Target::Call(side, patch.at()), fault };
        let missed = |call: &Call| pair.missed(&[(side, call.clone())], &BTreeSet::new());
        assert_eq!(missed(&Call { met: true, ..patch.clone() }), None);
        for (call, why) in [
            (Call { nth: 2, met: true, ..patch.clone() }, "no such call"),
            (Call { met: true, status: Some(409), ..patch.clone() }, "did not apply"),
            (patch.clone(), "nothing was done"),
        ] {
            let told = missed(&call).unwrap_or_default();
            assert!(told.contains(why), "{told}");
        }
        assert!(pair.missed(&[(Side::Daytona, Call { met: true, ..patch })], &BTreeSet::new()).is_some());
    }

    #[test]
    fn a_sample_has_each_fault_in_each_scenario_and_is_the_same_for_the_same_pairs() {
        let of = |scenario| Reference::of(scenario, &calls(), Value::Null).pairs(scenario);
        let all = [of(Scenario::Sessions), of(Scenario::Files)].concat();
        let chosen = sample(all.clone(), 33);
        assert_eq!(chosen.len(), 33);
        let faults: HashSet<_> = chosen.iter().map(|pair| (pair.scenario, pair.fault)).collect();
        assert_eq!(faults.len(), 17 + 4 + 5 + 4);
        let backwards: Vec<Pair> = all.iter().rev().cloned().collect();
        assert_eq!(names(&sample(backwards, 33)), names(&chosen), "in whatever order they come");
        assert_eq!(sample(all, 1).len(), 30, "each fault all the same");
    }
}
