//! Copies of keys: before anything is made, and when a key was changed.

use serde_json::json;

use super::{
    ending::{seen_with, with_spec},
    *,
};

fn knowing(escrow: Escrow, observed: Observed) -> Observed {
    Observed { escrow, ..observed }
}

fn refused() -> Escrow {
    Escrow::Refused("forbidden".to_owned())
}

#[test]
fn no_sandbox_is_made_or_taken_over_before_its_key_is_kept() {
    let adopts = |stage| with_spec(stage, &json!({ "sandbox": { "adopt": { "id": "box" } } }));
    let free = || seen_with("stopped", &json!({ "labels": {} }));
    for (lease, observed) in [
        (lease(Finalizer), absent(0)),
        (lease(Intended), absent(0)),
        (adopts(Finalizer), free()),
        (adopts(Intended), free()),
    ] {
        assert_eq!(step(&lease, &knowing(Escrow::Missing, observed.clone())), Step::KeepKey);
        stalls(&lease, &knowing(refused(), observed.clone()), "EscrowFailed");
        let intended = told(&lease, &knowing(refused(), observed.clone())).sandbox;
        assert_eq!(intended, lease.status.as_ref().unwrap().sandbox, "what is not to be made is not recorded");
        assert_ne!(step(&lease, &knowing(Escrow::Kept, observed)), Step::KeepKey);
    }
}

#[test]
fn a_key_that_was_changed_counts_once_it_has_reached_the_sandbox_and_is_kept() {
    let changed = || Credentials::Usable { api_url: "https://d/".to_owned(), fingerprint: "new".to_owned() };
    let key = |escrow, remote| {
        let observed = Observed { credentials: changed(), escrow, ..seen(remote) };
        let lease = lease(SessionLives);
        (step(&lease, &observed), told(&lease, &observed).connection.unwrap().key_fingerprint)
    };
    let there = || Remote::Present(sandbox("stopped"));
    assert_eq!(key(Escrow::Missing, there()), (Step::KeepKey, "k".to_owned()));
    assert_eq!(key(Escrow::Kept, there()), (Step::Rest, "new".to_owned()));
    assert_eq!(key(Escrow::Missing, Remote::Unproven).1, "k");
    assert_eq!(key(Escrow::Missing, Remote::Unknown(error(Class::Unauthorized))), (Step::Rest, "k".to_owned()));
    assert_eq!(key(Escrow::NotWanted, there()).1, "new");
    assert_eq!(key(refused(), there()).1, "new", "what works is used, with or without a copy");
}

#[test]
fn that_no_copy_could_be_kept_is_told_of_a_lease_that_serves() {
    let lease = lease(SessionLives);
    let serving = knowing(refused(), with(Session::Serving));
    assert_eq!(ready(&lease, &serving), ("True".to_owned(), "Ready".to_owned(), vec![]));
    let said = |observed: &Observed| {
        let all = told(&lease, observed).conditions;
        condition(&all, "CredentialsValid").map(|c| (c.status.clone(), c.reason.clone())).unwrap()
    };
    assert_eq!(said(&serving), ("True".to_owned(), "EscrowFailed".to_owned()));
    assert_eq!(said(&knowing(Escrow::Kept, with(Session::Serving))), ("True".to_owned(), "Ready".to_owned()));
}

#[test]
fn a_key_that_was_changed_before_the_end_is_kept_for_it() {
    let lease = deleted(SessionLives);
    assert_eq!(step(&lease, &knowing(Escrow::Missing, present("started"))), Step::KeepKey);
    let delete = Step::DeleteSandbox("box".to_owned());
    assert_eq!(step(&lease, &knowing(Escrow::Kept, present("stopped"))), delete);
    assert_eq!(step(&lease, &knowing(refused(), present("stopped"))), delete, "it goes with or without a copy");
}

#[test]
fn another_key_is_asked_where_the_one_that_is_there_does_not_help() {
    assert!(Remote::Unproven.is_hidden() && Remote::Unknown(error(Class::Unauthorized)).is_hidden());
    for other in [Class::Gone, Class::Conflict, Class::Throttled(Duration::ZERO), Class::Unavailable, Class::Unclear] {
        assert!(!Remote::Unknown(error(other)).is_hidden(), "{other:?}");
    }
    assert!(!Remote::Absent.is_hidden() && !Remote::Present(sandbox("started")).is_hidden());
}
