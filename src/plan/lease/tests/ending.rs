//! Leases that are suspended, expire, leave their sandbox behind, or take one over.

use serde_json::{Value, json};

use super::*;
use crate::api::sandbox_label as label;

/// A lease of this stage with these fields of its spec besides.
pub(super) fn with_spec(stage: Stage, fields: &Value) -> SandboxLease {
    let mut lease = lease(stage);
    let mut spec = serde_json::to_value(&lease.spec).unwrap();
    for (name, value) in fields.as_object().unwrap() {
        spec[name] = value.clone();
    }
    lease.spec = serde_json::from_value(spec).unwrap();
    lease.metadata.creation_timestamp = Some(Time(at(0)));
    lease
}

fn suspended(stage: Stage) -> SandboxLease {
    with_spec(stage, &json!({ "suspend": true }))
}

fn ends(stage: Stage, policy: &str) -> SandboxLease {
    let lease = with_spec(stage, &json!({ "reclaimPolicy": policy }));
    SandboxLease { metadata: deleted(stage).metadata, ..lease }
}

/// A sandbox in this state with these fields besides.
pub(super) fn seen_with(state: &str, fields: &Value) -> Observed {
    let mut sandbox = json!({
        "id": "box", "name": "sblease-uid", "state": state, "autoDeleteInterval": -1,
        "labels": { "daytona-controller.dev/lease-uid": "uid" },
    });
    for (name, value) in fields.as_object().unwrap() {
        sandbox[name] = value.clone();
    }
    let sandbox: Sandbox = serde_json::from_value(sandbox).unwrap();
    let ours = sandbox.label(label::LEASE_UID) == Some("uid");
    seen(if ours { Remote::Present(sandbox) } else { Remote::Foreign(sandbox) })
}

fn box_(state: &str) -> Observed {
    seen_with(state, &json!({}))
}

fn is_ready(lease: &SandboxLease, observed: &Observed, reason: &str) {
    assert_eq!(ready(lease, observed), ("True".to_owned(), reason.to_owned(), Vec::new()));
}

#[test]
fn a_lease_that_is_created_suspended_makes_nothing() {
    for stage in [Finalizer, Intended] {
        is_ready(&suspended(stage), &absent(100), "Suspended");
        assert_eq!(step(&suspended(stage), &absent(100)), Step::Rest);
    }
}

#[test]
fn what_is_resumed_for_running_commands_serves_until_they_have_ended() {
    // Else it would be resumed over and over, and the commands would find it serving only by chance.
    let ending = ["Delete", "Stop", "Archive", "Retain"].map(|policy| ends(SessionLives, policy));
    let drains = suspended(SessionLives);
    let cancels = with_spec(SessionLives, &json!({ "suspend": true, "suspendPolicy": "Cancel" }));
    for lease in ending.iter().chain([&drains, &cancels]) {
        for (overdue, leaving) in [(false, 0), (true, 0), (false, 60), (true, 600)] {
            let leaving = Duration::from_secs(leaving);
            let observed = Observed { running: 1, overdue, leaving, ..with(Session::Listed) };
            let resumed = step(lease, &observed) == Step::ResumeSession;
            let case = format!("{:?} {:?} {overdue} {leaving:?}", lease.spec.reclaim_policy, lease.spec.suspend_policy);
            assert_eq!(waits_for_commands(lease, &observed, &INTERVALS), resumed, "{case}");
        }
    }
}

#[test]
fn a_session_that_was_to_be_replaced_lives_until_its_successor_serves() {
    let ids = |generation, lives: bool| {
        let recorded = SessionStatus { id: "now".to_owned(), generation, creation_time: lives.then(|| Time(at(0))) };
        session_ids(&lease(SessionLives), &recorded)
    };
    assert_eq!(ids(1, false), ["now"]);
    assert_eq!(ids(2, true), ["now"]);
    assert_eq!(ids(2, false), ["now", "uid-1"]);
}

#[test]
fn a_suspended_lease_ends_its_session_then_stops_its_sandbox() {
    let lease = suspended(SessionLives);
    let running = Observed { running: 1, session: Session::Serving, ..box_("started") };
    assert_eq!(step(&lease, &running), Step::Rest);
    waits(&lease, &running, "Suspended");
    let cut_off = Observed { running: 1, session: Session::Listed, ..box_("started") };
    assert_eq!(step(&lease, &cut_off), Step::ResumeSession, "who sees them to their end needs a way in");
    let idle = |session| Observed { session, ..box_("started") };
    assert_eq!(step(&lease, &idle(Session::Listed)), Step::DeleteSession);
    assert_eq!(step(&lease, &idle(Session::Absent)), Step::Record);
    assert_eq!(told(&lease, &idle(Session::Absent)).session, None);
    let created = suspended(Created);
    assert_eq!(step(&created, &box_("started")), Step::StopSandbox("box".to_owned()));
    waits(&created, &box_("stopping"), "Suspended");
    is_ready(&created, &box_("stopped"), "Suspended");
    let needed = Observed { needed: true, ..box_("stopped") };
    assert_eq!(step(&created, &needed), Step::Rest, "nothing wakes it");
}

#[test]
fn daytona_does_not_delete_what_is_suspended() {
    let goes = seen_with("started", &json!({ "autoDeleteInterval": 0 }));
    assert_eq!(step(&suspended(Created), &goes), Step::Spare("box".to_owned()), "stopping it would delete it");
    let later = seen_with("started", &json!({ "autoDeleteInterval": 5 }));
    assert_eq!(step(&suspended(Created), &later), Step::Spare("box".to_owned()), "so would a controller that is gone");
    let never = Step::Adjust("box".to_owned(), vec![Setting::AutoDelete(-1)]);
    assert_eq!(step(&suspended(Created), &seen_with("stopped", &json!({ "autoDeleteInterval": 60 }))), never);
}

#[test]
fn after_a_suspension_it_is_started_with_a_session_that_never_was() {
    let mut lease = lease(Created);
    lease.status.as_mut().unwrap().last_session_generation = Some(3);
    assert_eq!(step(&lease, &box_("stopped")), Step::StartSandbox("box".to_owned()));
    let session = told(&lease, &box_("started")).session.unwrap();
    assert_eq!((session.id.as_str(), session.generation), ("uid-4", 4));
}

#[test]
fn an_expired_lease_lets_go_and_stays_so() {
    let expires = |stage| with_spec(stage, &json!({ "leaseDurationSeconds": 60 }));
    let when = |seconds, observed: Observed| Observed { now: at(seconds), ..observed };
    let plan = decide(&expires(SessionLives), &when(50, with(Session::Serving)), &INTERVALS);
    assert_eq!((plan.step, plan.again), (Step::Rest, Duration::from_secs(10)), "it is looked at when it expires");
    let over = when(60, with(Session::Listed));
    assert_eq!(step(&expires(SessionLives), &over), Step::Record, "that it has expired is written first");
    waits(&expires(SessionLives), &over, "Expired");
    let latched = |stage| {
        let mut lease = expires(stage);
        lease.status.as_mut().unwrap().expired_time = Some(Time(at(60)));
        lease
    };
    assert_eq!(step(&latched(SessionLives), &over), Step::DeleteSession);
    assert_eq!(step(&latched(Created), &when(60, box_("started"))), Step::DeleteSandbox("box".to_owned()));
    assert_eq!(step(&latched(Created), &when(60, absent(0))), Step::RemoveFinalizer);
    let status = told(&expires(New), &when(60, absent(0)));
    assert_eq!(status.expired_time, Some(Time(at(60))));
    stalls(&expires(New), &when(60, absent(0)), "Expired");

    let mut renewed = with_spec(New, &json!({ "leaseDurationSeconds": 60, "renewTime": at(1000).to_string() }));
    assert_eq!(step(&renewed, &when(1001, absent(0))), Step::AddFinalizer, "renewed in time");
    renewed.status = Some(status);
    stalls(&renewed, &when(1001, absent(0)), "Expired");
}

#[test]
fn what_is_kept_is_brought_into_the_state_that_is_asked_for() {
    let box_id = || "box".to_owned();
    for policy in ["Stop", "Archive"] {
        assert_eq!(step(&ends(Created, policy), &box_("started")), Step::StopSandbox(box_id()));
        let failed = ready(&ends(Created, policy), &box_("error"));
        assert_eq!(
            (step(&ends(Created, policy), &box_("error")), failed.2.contains(&"CleanupBlocked".to_owned())),
            (Step::Rest, true)
        );
        assert_eq!(step(&ends(SessionLives, policy), &box_("stopping")), Step::Rest);
    }
    assert_eq!(step(&ends(Created, "Archive"), &box_("stopped")), Step::ArchiveSandbox(box_id()));
    assert_eq!(step(&ends(Created, "Archive"), &box_("archiving")), Step::Rest);
    for (policy, state) in
        [("Stop", "stopped"), ("Stop", "archived"), ("Archive", "archived"), ("Retain", "started"), ("Retain", "error")]
    {
        assert_eq!(step(&ends(Created, policy), &box_(state)), Step::HandOver(box_id()), "{policy} {state}");
    }
    for (policy, state) in [("Stop", "started"), ("Stop", "stopped"), ("Retain", "started"), ("Retain", "stopped")] {
        let goes = seen_with(state, &json!({ "autoDeleteInterval": 5 }));
        assert_eq!(
            step(&ends(Created, policy), &goes),
            Step::Spare(box_id()),
            "{policy} {state}: Daytona would delete it"
        );
    }
    for policy in ["Stop", "Archive"] {
        assert_eq!(step(&ends(Created, policy), &box_("paused")), Step::StopSandbox(box_id()), "{policy}");
    }
}

#[test]
fn what_is_paused_is_stopped_where_it_would_be_given_away_with_its_session() {
    let box_id = || "box".to_owned();
    let paused = || box_("paused");
    for policy in ["Stop", "Archive", "Retain"] {
        assert_eq!(step(&ends(SessionLives, policy), &paused()), Step::StopSandbox(box_id()), "{policy}");
    }
    assert_eq!(step(&ends(SessionLives, "Delete"), &paused()), Step::DeleteSandbox(box_id()));
    let running = Observed { running: 1, ..paused() };
    assert_eq!(step(&ends(Created, "Retain"), &running), Step::StopSandbox(box_id()));
    assert_eq!(step(&ends(Created, "Retain"), &paused()), Step::HandOver(box_id()), "nothing is frozen in it");
    assert_eq!(step(&suspended(SessionLives), &paused()), Step::StopSandbox(box_id()));
}

#[test]
fn where_nobody_answers_for_a_session_it_ends_with_its_sandbox_at_last() {
    let error = || Session::Unknown(error(Class::Unavailable));
    let dead = |leaving| Observed { session: error(), leaving, ..box_("started") };
    for (policy, last) in [
        ("Delete", Step::DeleteSandbox("box".to_owned())),
        ("Stop", Step::StopSandbox("box".to_owned())),
        ("Retain", Step::DeleteSession),
    ] {
        assert_eq!(step(&ends(SessionLives, policy), &dead(Duration::ZERO)), Step::DeleteSession, "{policy}");
        assert_eq!(step(&ends(SessionLives, policy), &dead(INTERVALS.drain)), last, "{policy}");
    }
    assert_eq!(step(&suspended(SessionLives), &dead(Duration::ZERO)), Step::Rest);
    assert_eq!(step(&suspended(SessionLives), &dead(INTERVALS.drain)), Step::StopSandbox("box".to_owned()));
}

#[test]
fn a_status_that_was_wiped_is_no_proof_that_nothing_is_there() {
    let mut wiped = ends(Finalizer, "Delete");
    assert_eq!(step(&wiped, &seen(Remote::NotAsked)), Step::RemoveFinalizer);
    wiped.status.as_mut().unwrap().observed_generation = None;
    assert_eq!(step(&wiped, &seen(Remote::NotAsked)), Step::Record);
    let nameless = Observed { name: String::new(), ..seen(Remote::NotAsked) };
    assert_eq!(step(&wiped, &nameless), Step::Rest);
}

#[test]
fn a_session_is_deleted_whatever_becomes_of_the_sandbox() {
    for policy in ["Delete", "Stop", "Archive", "Retain"] {
        assert_eq!(
            step(&ends(SessionLives, policy), &Observed { session: Session::Listed, ..box_("started") }),
            Step::DeleteSession
        );
    }
}

#[test]
fn what_was_handed_over_is_let_go() {
    let released = seen_with("stopped", &json!({ "labels": { label::RELEASED_BY: "who had it next" } }));
    let taken = seen_with("started", &json!({ "labels": { label::LEASE_UID: "another" } }));
    assert_eq!(step(&ends(Created, "Stop"), &released), Step::RemoveFinalizer);
    assert_eq!(step(&ends(Created, "Delete"), &released), Step::RemoveFinalizer, "it was changed after that");
    assert_eq!(step(&ends(Created, "Stop"), &taken), Step::RemoveFinalizer);
    let mut reuses = with_spec(Created, &json!({ "sandbox": { "reuseKey": "k" } }));
    reuses.metadata = deleted(Created).metadata;
    assert_eq!(step(&reuses, &taken), Step::RemoveFinalizer, "the next lease of the key has it");
    assert_eq!(step(&ends(Created, "Delete"), &taken), Step::Rest);
    assert!(ready(&ends(Created, "Delete"), &taken).2.contains(&"CleanupBlocked".to_owned()));
}

#[test]
fn an_adopted_sandbox_is_claimed_before_it_is_used_and_never_made_or_deleted() {
    let adopts = |stage| with_spec(stage, &json!({ "sandbox": { "adopt": { "id": "box" } } }));
    stalls(&adopts(Finalizer), &absent(0), "InvalidSpec");
    let free = seen_with("stopped", &json!({ "labels": { "team": "a" } }));
    assert_eq!(step(&adopts(Finalizer), &free), Step::Record);
    assert!(matches!(step(&adopts(Intended), &free), Step::Claim(..)));
    let leased = seen_with("stopped", &json!({ "labels": { label::LEASE_UID: "another" } }));
    stalls(&adopts(Finalizer), &leased, "OwnershipConflict");
    stalls(&adopts(Created), &leased, "OwnershipConflict");
    let mut gone = adopts(Created);
    gone.metadata = deleted(Created).metadata;
    assert_eq!(step(&gone, &box_("stopped")), Step::HandOver("box".to_owned()), "whatever its reclaimPolicy");
    let goes = seen_with("stopped", &json!({ "autoDeleteInterval": 5 }));
    assert_eq!(step(&gone, &goes), Step::HandOver("box".to_owned()), "it is left as it is");
}

#[test]
fn an_error_that_daytona_can_recover_from_is_recovered_once() {
    let failed = seen_with("error", &json!({ "recoverable": true }));
    let running = Observed { running: 1, ..failed.clone() };
    assert_eq!(step(&lease(SessionLives), &running), Step::Rest, "what ran is told as lost first");
    assert_eq!(step(&lease(SessionLives), &failed), Step::RecoverSandbox("box".to_owned()));
    stalls(&lease(SessionLives), &Observed { recovered: true, ..failed }, "SandboxError");
}

#[test]
fn what_daytona_never_ends_changing_is_told() {
    waits(&lease(Created), &for_long(60, box_("creating")), "Provisioning");
    stalls(&lease(Created), &for_long(1800, box_("creating")), "SandboxError");
    let (_, reason, abnormal) = ready(&deleted(Created), &for_long(1800, box_("destroying")));
    assert!(reason == "Deleting" && abnormal.contains(&"CleanupBlocked".to_owned()));
}

#[test]
fn a_sandbox_of_another_organisation_is_not_used() {
    let connection = json!({ "apiKeySecretRef": { "name": "k" }, "organizationID": "mine" });
    let lease = with_spec(Created, &json!({ "connection": connection }));
    stalls(&lease, &seen_with("started", &json!({ "organizationId": "theirs" })), "CredentialMismatch");
}

#[test]
fn a_session_is_recorded_until_somebody_has_seen_its_end() {
    for (policy, state) in [("Stop", "error"), ("Delete", "error"), ("Delete", "paused"), ("Delete", "stopping")] {
        let ends = ends(SessionLives, policy);
        assert!(told(&ends, &box_(state)).session.is_some(), "{policy} {state}");
    }
    for policy in ["Delete", "Stop", "Archive", "Retain"] {
        assert_eq!(told(&ends(SessionLives, policy), &box_("stopped")).session, None, "{policy}");
    }
}

#[test]
fn a_session_that_cannot_be_deleted_ends_with_its_sandbox() {
    for session in [Session::Listed, Session::Dead, Session::NotAsked, Session::Serving] {
        let after =
            |seconds| Observed { session: session.clone(), leaving: Duration::from_secs(seconds), ..box_("started") };
        for (policy, last) in [
            ("Delete", Step::DeleteSandbox("box".to_owned())),
            ("Stop", Step::StopSandbox("box".to_owned())),
            ("Retain", Step::DeleteSession),
        ] {
            assert_eq!(step(&ends(SessionLives, policy), &after(119)), Step::DeleteSession, "{policy} {session:?}");
            assert_eq!(step(&ends(SessionLives, policy), &after(120)), last, "{policy} {session:?}");
        }
        assert_eq!(step(&suspended(SessionLives), &after(119)), Step::DeleteSession, "{session:?}");
        assert_eq!(step(&suspended(SessionLives), &after(120)), Step::StopSandbox("box".to_owned()), "{session:?}");
    }
}
