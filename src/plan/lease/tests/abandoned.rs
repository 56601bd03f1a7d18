//! Leases that a person lets go without proof.

use serde_json::json;

use super::{ending::with_spec, *};
use crate::api::ABANDON;

fn annotated(mut lease: SandboxLease, value: &str) -> SandboxLease {
    lease.metadata.annotations = Some([(ABANDON.to_owned(), value.to_owned())].into());
    lease
}

fn message(lease: &SandboxLease, observed: &Observed, type_: &str) -> String {
    condition(&told(lease, observed).conditions, type_).map(|c| c.message.clone()).unwrap_or_default()
}

#[test]
fn what_ends_is_let_go_where_the_annotation_names_what_is_recorded() {
    let unknown = || seen(Remote::Unknown(error(Class::Unavailable)));
    for observed in [unknown(), seen(Remote::NotAsked), seen(Remote::Unproven), present("started"), absent(0)] {
        assert_eq!(step(&annotated(deleted(SessionLives), "box"), &observed), Step::Abandon);
        assert_eq!(step(&annotated(deleted(Intended), "sblease-uid"), &observed), Step::Abandon, "no id is known");
    }
    let mut expired = annotated(with_spec(Created, &json!({ "leaseDurationSeconds": 1 })), "box");
    assert_ne!(step(&expired, &unknown()), Step::Abandon, "that it has expired is written first");
    expired.status.as_mut().unwrap().expired_time = Some(Time(at(1)));
    assert_eq!(step(&expired, &unknown()), Step::Abandon);
    expired.metadata.finalizers = None;
    assert_eq!(step(&expired, &seen(Remote::NotAsked)), Step::Rest);
    assert!(message(&expired, &seen(Remote::NotAsked), "Ready").contains("without proof"));
}

#[test]
fn an_annotation_that_names_another_is_ignored_and_told() {
    let blocked = seen(Remote::Unknown(error(Class::Unauthorized)));
    for (stage, wrong, right) in
        [(Created, "sblease-uid", "\"box\""), (Created, "", "\"box\""), (Intended, "box", "\"sblease-uid\"")]
    {
        let lease = annotated(deleted(stage), wrong);
        assert_eq!(step(&lease, &blocked), Step::Rest);
        for type_ in ["CleanupBlocked", "Ready"] {
            let said = message(&lease, &blocked, type_);
            assert!(said.contains("is ignored") && said.contains(right), "{type_}: {said}");
        }
    }
    let goes = message(&annotated(deleted(Created), "other"), &present("destroying"), "Ready");
    assert!(goes.contains("is ignored"), "also where nothing blocks: {goes}");
    let long = message(&annotated(deleted(Created), &"x".repeat(5000)), &blocked, "CleanupBlocked");
    assert!(long.ends_with("\"box\"") && long.chars().count() < 1024, "{long}");
}

#[test]
fn what_blocks_says_how_to_abandon() {
    let said = message(&deleted(Created), &seen(Remote::Unproven), "CleanupBlocked");
    assert!(said.contains("daytona-controller.dev/abandon=box"), "{said}");
    let said = message(&deleted(Intended), &seen(Remote::Unproven), "CleanupBlocked");
    assert!(said.contains("daytona-controller.dev/abandon=sblease-uid"), "{said}");
}

#[test]
fn a_lease_that_is_wanted_is_not_abandoned() {
    for observed in [present("started"), absent(0), absent(100), seen(Remote::Unproven), seen(Remote::NotAsked)] {
        for value in ["box", "other"] {
            let (plain, annotated) = (lease(SessionLives), annotated(lease(SessionLives), value));
            assert_eq!(step(&annotated, &observed), step(&plain, &observed));
            assert_eq!(told(&annotated, &observed), told(&plain, &observed));
        }
    }
}
