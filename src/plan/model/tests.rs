//! The properties, and what they have found.

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use super::{
    World,
    event::{CALM, COMMANDS, Deed, Event, Fault, Nature, Scenario, Script, Trouble, WHOLE, Wants, events, scenario},
    live,
    oracle::told,
};
use crate::{api::ReclaimPolicy, daytona::Class};

/// The same cases each time, as a test must have; `PROPTEST_RNG_SEED` and `PROPTEST_CASES` ask for others, and more.
fn explore(sessions: bool, cases: u32, seed: u64) {
    let asked = Config::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { asked.cases } else { cases };
    let rng_seed = if asked.rng_seed == RngSeed::Random { RngSeed::Fixed(seed) } else { asked.rng_seed };
    let config = Config { cases, rng_seed, failure_persistence: None, max_shrink_iters: 20_000, ..asked };
    let result = TestRunner::new(config).run(&(scenario(sessions), events()), |(scenario, events)| {
        live(&scenario, &events, false).map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => {}
        Err(TestError::Abort(why)) => panic!("{why}"),
        Err(TestError::Fail(_, (scenario, events))) => {
            let events = fewest(&scenario, events);
            let wrong = live(&scenario, &events, true).unwrap_err();
            panic!("{wrong}\n{scenario:#?}\n{events:#?}");
        }
    }
}

/// What has become harmless while the others were made simpler is left out.
fn fewest(scenario: &Scenario, mut events: Vec<Event>) -> Vec<Event> {
    let mut at = events.len();
    while at > 0 {
        at -= 1;
        let left_out = events.remove(at);
        if live(scenario, &events, false).is_ok() {
            events.insert(at, left_out);
        }
    }
    events
}

#[test]
fn whatever_happens_nothing_is_lost_done_twice_or_left_behind_with_a_session() {
    explore(true, 2000, 1);
}

#[test]
fn whatever_happens_nothing_is_lost_done_twice_or_left_behind_without_a_session() {
    explore(false, 2000, 2);
}

// --- what was found ------------------------------------------------------------------------------------------------

const LEASE: Event = Event::Lease { fresh: true, phases: WHOLE, trouble: None };

fn quiet(sessions: bool, calm: usize) -> Scenario {
    let script = Script { code: 0, when_ended: 143, nature: Nature::Plain, deadline: None };
    Scenario {
        sessions,
        parallel: 1,
        reclaim: ReclaimPolicy::Retain,
        wants: Wants::Own,
        deaf: false,
        secret: false,
        lasts: None,
        taken: false,
        usual: Fault::Lost,
        resumes: false,
        calm,
        scripts: [script; COMMANDS],
    }
}

fn holds(scenario: &Scenario, events: &[Event]) {
    if let Err(wrong) = live(scenario, events, true) {
        panic!("{wrong}");
    }
}

#[test]
fn what_goes_on_for_longer_than_the_time_to_drain_is_ended_through_a_place_that_serves() {
    let restarted = [Event::DeleteLease, Event::Restart, LEASE, Event::Pass(61), LEASE];
    holds(&quiet(false, CALM.len()), &restarted);
    holds(&quiet(true, CALM.len()), &restarted);
}

#[test]
fn a_session_that_was_to_be_replaced_is_not_given_away_with_its_sandbox() {
    // The answer of its first shell is lost.
    let trouble = Some(Trouble { at: 7, writes: true, fault: Fault::Lost });
    let opened = Event::Lease { fresh: true, phases: WHOLE, trouble };
    holds(&quiet(true, 2), &[opened, Event::DeleteLease]);
}

#[test]
fn what_never_began_does_not_keep_its_lease_from_making_a_place_anew() {
    let command = |phases, trouble| Event::Command { which: 0, fresh: false, phases, trouble };
    // It is fenced; the next attempt is not recorded before our files are gone.
    let trouble = Some(Trouble { at: 2, writes: true, fault: Fault::Refused(Class::Conflict) });
    let ended = [Event::Pass(61), command(WHOLE, trouble)];
    let wiped = [Event::Do(Deed::Wipe), Event::TouchCommand(0), command(1, None)];
    holds(&quiet(false, 4), &[ended.as_slice(), &wiped].concat());
}

#[test]
fn what_is_deleted_when_it_is_about_to_start_keeps_no_other_waiting() {
    let decided = Event::Command { which: 0, fresh: true, phases: 1, trouble: None };
    holds(&quiet(true, 3), &[decided, Event::DeleteCommand(0)]);
}

#[test]
fn what_a_late_label_takes_from_the_next_lease_is_shown_and_a_person_can_give_it_back() {
    let scenario = Scenario { wants: Wants::Reused, ..quiet(true, CALM.len()) };
    let look = |which| Event::Command { which, fresh: true, phases: WHOLE, trouble: None };
    let ended = [Event::DeleteCommand(0), Event::DeleteCommand(1), look(0), look(1), Event::DeleteLease, LEASE];
    let mut shown = Vec::new();
    // Any call of the last look but one of the first lease may be late; one of them gives the sandbox away.
    for at in 0..9 {
        let trouble = Some(Trouble { at, writes: false, fault: Fault::Late });
        let late = Event::Lease { fresh: true, phases: WHOLE, trouble };
        let next = [late, LEASE, LEASE, Event::CreateLease, LEASE, LEASE, Event::Arrive, LEASE];
        let events = [ended.as_slice(), &next].concat();
        let mut world = World::new(scenario.clone());
        CALM.iter().chain(&events).for_each(|event| world.happens(*event));
        if !world.belated.is_empty() {
            shown.push(told(world.kube.lease.as_ref().unwrap()).1);
        }
        holds(&scenario, &events);
    }
    assert_eq!(shown, ["OwnershipConflict"]);
}

#[test]
fn a_creation_that_is_refused_does_not_make_one_forgotten_that_is_under_way() {
    let look = |at, fault| {
        let trouble = Some(Trouble { at, writes: false, fault });
        Event::Lease { fresh: true, phases: WHOLE, trouble }
    };
    for (late, refused) in (0..4).flat_map(|late| (0..4).map(move |refused| (late, refused))) {
        let both = [look(late, Fault::Late), look(refused, Fault::Refused(Class::Refused))];
        holds(&quiet(true, 0), &[both.as_slice(), &[Event::DeleteLease, LEASE, Event::Arrive]].concat());
    }
}
