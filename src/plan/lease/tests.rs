//! Decisions as tables: what is known in, what is to be done and told out.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{super::lease_seen::INTERVALS, *};
use crate::{
    api::{
        CommandGauges, ConnectionStatus, SandboxLeaseSpec, SandboxLeaseStatus, SandboxStatus, SessionStatus, condition,
    },
    daytona::{Class, Error, Setting},
};

mod abandoned;
mod ending;
mod escrowed;
mod kept;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

/// How far a lease has come.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Stage {
    New,
    Finalizer,
    Intended,
    Created,
    SessionIntended,
    SessionLives,
}

use Stage::{Created, Finalizer, Intended, New, SessionIntended, SessionLives};

fn lease(stage: Stage) -> SandboxLease {
    let spec: SandboxLeaseSpec = serde_json::from_value(serde_json::json!({ "useSessions": true })).unwrap();
    let mut lease = SandboxLease::new("l", spec);
    lease.metadata.uid = Some("uid".to_owned());
    lease.metadata.generation = Some(1);
    if stage >= Finalizer {
        lease.metadata.finalizers = Some(vec![LEASE_FINALIZER.to_owned()]);
    }
    let written = (stage >= Finalizer).then_some(1);
    let mut status = SandboxLeaseStatus { observed_generation: written, ..SandboxLeaseStatus::default() };
    if stage >= Intended {
        status.connection = Some(ConnectionStatus {
            api_url: "https://d/".to_owned(),
            organization_id: None,
            key_fingerprint: "k".to_owned(),
        });
        let id = (stage >= Created).then(|| "box".to_owned());
        status.sandbox = Some(SandboxStatus { id, name: "sblease-uid".to_owned(), ..SandboxStatus::default() });
    }
    if stage >= SessionIntended {
        let creation_time = (stage >= SessionLives).then(|| Time(at(0)));
        status.session = Some(SessionStatus { id: "uid-1".to_owned(), generation: 1, creation_time });
    }
    lease.status = Some(status);
    lease
}

fn deleted(stage: Stage) -> SandboxLease {
    let mut lease = lease(stage);
    lease.metadata.deletion_timestamp = Some(Time(at(0)));
    lease
}

fn sandbox(state: &str) -> Sandbox {
    let json = serde_json::json!({
        "id": "box", "name": "sblease-uid", "state": state, "organizationId": "org",
        "labels": { "daytona-controller.dev/lease-uid": "uid" },
    });
    serde_json::from_value(json).unwrap()
}

fn foreign() -> Sandbox {
    Sandbox { labels: std::collections::BTreeMap::new(), ..sandbox("started") }
}

fn error(class: Class) -> Error {
    Error { operation: "look at the sandbox", class, status: None, message: "x".to_owned() }
}

fn usable() -> Credentials {
    Credentials::Usable { api_url: "https://d/".to_owned(), fingerprint: "k".to_owned() }
}

fn seen(remote: Remote) -> Observed {
    let zero = Duration::ZERO;
    Observed {
        credentials: usable(),
        escrow: Escrow::NotWanted,
        owner: None,
        remote,
        session: Session::NotAsked,
        files: super::super::files::Files::Wanted(None),
        name: "sblease-uid".to_owned(),
        now: at(0),
        needed: false,
        running: 0,
        overdue: false,
        since: zero,
        leaving: zero,
        kept_awake: None,
        recovered: false,
    }
}

fn present(state: &str) -> Observed {
    seen(Remote::Present(sandbox(state)))
}

fn absent(seconds: u64) -> Observed {
    for_long(seconds, seen(Remote::Absent))
}

/// Seen like this for so many seconds.
fn for_long(seconds: u64, observed: Observed) -> Observed {
    Observed { since: Duration::from_secs(seconds), ..observed }
}

fn with(session: Session) -> Observed {
    Observed { session, ..present("started") }
}

fn step(lease: &SandboxLease, observed: &Observed) -> Step {
    decide(lease, observed, &INTERVALS).step
}

fn told(lease: &SandboxLease, observed: &Observed) -> SandboxLeaseStatus {
    let plan = decide(lease, observed, &INTERVALS);
    status(lease, &plan.told, CommandGauges::default(), at(5))
}

/// Status and reason of Ready, and the abnormal conditions that are there.
fn ready(lease: &SandboxLease, observed: &Observed) -> (String, String, Vec<String>) {
    let all = told(lease, observed).conditions;
    let ready = condition(&all, "Ready").unwrap_or_else(|| panic!("no Ready: {all:#?}"));
    let abnormal = ["Reconciling", "Stalled", "CleanupBlocked"];
    let abnormal = abnormal.iter().filter(|t| condition(&all, t).is_some()).map(|t| (*t).to_owned()).collect();
    (ready.status.clone(), ready.reason.clone(), abnormal)
}

fn waits(lease: &SandboxLease, observed: &Observed, reason: &str) {
    assert_eq!(ready(lease, observed), ("False".to_owned(), reason.to_owned(), vec!["Reconciling".to_owned()]));
}

fn stalls(lease: &SandboxLease, observed: &Observed, reason: &str) {
    assert_eq!(ready(lease, observed), ("False".to_owned(), reason.to_owned(), vec!["Stalled".to_owned()]));
    assert_eq!(step(lease, observed), Step::Rest);
}

#[test]
fn each_step_is_recorded_before_it_is_made() {
    assert_eq!(step(&lease(New), &absent(0)), Step::AddFinalizer);
    waits(&lease(New), &absent(0), "Provisioning");
    assert_eq!(step(&lease(Finalizer), &absent(0)), Step::Record);
    let intended = told(&lease(Finalizer), &absent(0));
    assert_eq!(intended.sandbox.unwrap().name, "sblease-uid");
    assert_eq!(intended.connection.unwrap().key_fingerprint, "k");
    assert_eq!(step(&lease(Intended), &absent(0)), Step::CreateSandbox);
    assert_eq!(step(&lease(Intended), &present("creating")), Step::Record);
    let created = told(&lease(Intended), &present("creating"));
    assert_eq!(created.sandbox.unwrap().id.as_deref(), Some("box"));
    assert_eq!(created.connection.unwrap().organization_id.as_deref(), Some("org"));
    assert_eq!(step(&lease(Created), &present("creating")), Step::Rest);
    assert_eq!(step(&lease(Created), &present("started")), Step::Record);
    assert_eq!(told(&lease(Created), &present("started")).session.unwrap().id, "uid-1");
    assert_eq!(step(&lease(SessionIntended), &with(Session::Absent)), Step::OpenSession);
    assert_eq!(
        step(&lease(SessionIntended), &with(Session::Listed)),
        Step::OpenSession,
        "its reply may have been lost"
    );
    assert_eq!(step(&lease(SessionLives), &with(Session::Listed)), Step::ResumeSession);
    let serving = with(Session::Serving);
    assert_eq!(step(&lease(SessionLives), &serving), Step::Rest);
    assert_eq!(ready(&lease(SessionLives), &serving), ("True".to_owned(), "Ready".to_owned(), vec![]));
}

#[test]
fn a_session_that_has_lived_is_never_opened_again_under_its_id() {
    for session in [Session::Absent, Session::Dead] {
        assert_eq!(step(&lease(SessionLives), &with(session.clone())), Step::Record);
        let renewed = told(&lease(SessionLives), &with(session)).session.unwrap();
        assert_eq!((renewed.id.as_str(), renewed.generation, renewed.creation_time), ("uid-2", 2, None));
    }
}

/// An error, a time-out or silence neither creates nor deletes nor lets go, whatever the stage.
#[test]
fn not_knowing_decides_nothing() {
    let classes = [
        Class::Conflict,
        Class::NotYet,
        Class::Throttled(Duration::from_secs(9)),
        Class::Unauthorized,
        Class::Unavailable,
        Class::NotMade,
        Class::Refused,
        Class::Unclear,
    ];
    for stage in [Finalizer, Intended, Created, SessionIntended, SessionLives] {
        for lease in [lease(stage), deleted(stage)] {
            let leaving = lease.metadata.deletion_timestamp.is_some();
            for class in classes {
                let observed = seen(Remote::Unknown(error(class)));
                let step = step(&lease, &observed);
                let nothing_was_intended = leaving && stage == Finalizer;
                assert!(
                    step == Step::Rest || (nothing_was_intended && step == Step::RemoveFinalizer),
                    "{class:?}: {step:?}"
                );
            }
            let unproven = seen(Remote::Unproven);
            assert!(matches!(step(&lease, &unproven), Step::Rest | Step::RemoveFinalizer));
            if stage >= Intended {
                assert_eq!(step(&lease, &unproven), Step::Rest);
                let keyless = Observed {
                    credentials: Credentials::Missing(Reason::SecretNotFound, "x".to_owned()),
                    remote: Remote::NotAsked,
                    ..present("started")
                };
                assert_eq!(step(&lease, &keyless), Step::Rest);
            }
        }
    }
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let observed = seen(Remote::Foreign(foreign()));
    stalls(&lease(Intended), &observed, "NameConflict");
    stalls(&lease(SessionLives), &observed, "OwnershipConflict");
    assert_eq!(step(&deleted(Intended), &observed), Step::Rest, "labels may lag");
    assert_eq!(step(&deleted(Intended), &for_long(10, observed.clone())), Step::RemoveFinalizer, "ours was never made");
    assert_eq!(step(&deleted(SessionLives), &for_long(10, observed.clone())), Step::Rest);
    assert!(condition(&told(&deleted(SessionLives), &observed).conditions, "CleanupBlocked").is_some());
}

#[test]
fn each_state_of_a_sandbox_has_its_reason() {
    let l = lease(SessionLives);
    for state in ["stopped", "archived", "paused"] {
        let asleep = present(state);
        assert_eq!(ready(&l, &asleep), ("True".to_owned(), "Asleep".to_owned(), vec![]), "{state}");
        assert_eq!(step(&l, &asleep), Step::Rest, "it is not started for its own sake");
        let wanted = Observed { needed: true, ..asleep.clone() };
        assert_eq!(step(&l, &wanted), Step::StartSandbox("box".to_owned()));
        waits(&l, &wanted, "Restoring");
        waits(&l, &Observed { running: 1, ..wanted }, "SandboxStopped");
    }
    waits(&lease(Created), &present("creating"), "Provisioning");
    waits(&l, &present("restoring"), "Restoring");
    waits(&l, &present("levitating"), "SandboxStateUnknown");
    stalls(&l, &present("error"), "SandboxError");
    stalls(&l, &present("build_failed"), "SandboxError");
    stalls(&l, &present("destroyed"), "SandboxLost");
    stalls(&l, &absent(10), "SandboxLost");
    assert_eq!(step(&l, &absent(9)), Step::Rest);
    assert!(condition(&told(&l, &absent(9)).conditions, "Ready").is_none(), "one look says nothing");
}

#[test]
fn a_release_goes_from_inside_out_and_only_on_proof() {
    let busy = Observed { running: 1, ..with(Session::Serving) };
    assert_eq!(step(&deleted(SessionLives), &busy), Step::Rest, "its commands are ended first");
    let restarted = Observed { running: 1, ..with(Session::Listed) };
    assert_eq!(step(&deleted(SessionLives), &restarted), Step::ResumeSession, "and that needs a way in");
    let late = Observed { leaving: Duration::from_mins(1), ..busy };
    assert_eq!(step(&deleted(SessionLives), &late), Step::DeleteSession, "but not for ever");
    assert_eq!(step(&deleted(SessionLives), &with(Session::Listed)), Step::DeleteSession);
    assert_eq!(step(&deleted(SessionLives), &with(Session::Unknown(error(Class::Unclear)))), Step::DeleteSession);
    assert_eq!(step(&deleted(SessionLives), &with(Session::Absent)), Step::Record);
    assert_eq!(told(&deleted(SessionLives), &with(Session::Absent)).session, None);
    assert_eq!(step(&deleted(Created), &present("started")), Step::DeleteSandbox("box".to_owned()));
    for state in ["stopped", "archived", "error", "build_failed", "creating", "levitating"] {
        assert_eq!(step(&deleted(SessionLives), &present(state)), Step::DeleteSandbox("box".to_owned()), "{state}");
    }
    assert_eq!(step(&deleted(Created), &present("destroying")), Step::Rest);
    assert_eq!(step(&deleted(Created), &absent(0)), Step::RemoveFinalizer, "gone by id");
    let failed = seen(Remote::FailedDeletion(sandbox("error")));
    assert_eq!(step(&deleted(Created), &failed), Step::DeleteSandbox("box".to_owned()), "404 by id, but still listed");
    assert!(condition(&told(&deleted(Created), &failed).conditions, "CleanupBlocked").is_some());
}

#[test]
fn a_create_call_under_way_is_waited_for_before_letting_go() {
    assert_eq!(step(&deleted(Intended), &absent(49)), Step::Rest);
    assert_eq!(step(&deleted(Intended), &absent(50)), Step::RemoveFinalizer);
    assert_eq!(step(&deleted(Intended), &present("creating")), Step::Record, "it has appeared after all");
    assert_eq!(step(&deleted(Finalizer), &seen(Remote::NotAsked)), Step::RemoveFinalizer, "nothing was ever intended");
    assert_eq!(step(&deleted(Finalizer), &present("started")), Step::Record, "unless the status was wiped");
    assert_eq!(told(&deleted(Finalizer), &present("started")).sandbox.unwrap().id.as_deref(), Some("box"));
}

/// The lease after a step of its has failed.
fn after_failure(lease: &SandboxLease, observed: &Observed, error: &Error) -> SandboxLease {
    let mut plan = decide(lease, observed, &INTERVALS);
    plan.told.error(error);
    let status = status(lease, &plan.told, CommandGauges::default(), at(5));
    SandboxLease { status: Some(status), ..lease.clone() }
}

#[test]
fn a_refused_create_call_tells_why_and_leaves_nothing_to_look_for() {
    let refused = |message: &str| Error {
        operation: "create the sandbox",
        class: Class::Refused,
        status: Some(400),
        message: message.to_owned(),
    };
    for (message, reason) in [
        ("Daytona answered 400: Snapshot x not found. Did you add it through the Dashboard?", "SnapshotNotFound"),
        ("Daytona answered 400: Total CPU limit exceeded. Maximum allowed: 4.", "QuotaExceeded"),
        ("Daytona answered 400: No available runners", "InvalidSpec"),
    ] {
        let lease = after_failure(&lease(Intended), &absent(0), &refused(message));
        let recorded = lease.status.clone().unwrap();
        assert_eq!(condition(&recorded.conditions, "Stalled").unwrap().reason, reason);
        assert_eq!((&recorded.sandbox, &recorded.connection), (&None, &None));
        assert_eq!(step(&lease, &absent(60)), Step::Record, "it is tried again");
        assert_eq!(told(&lease, &absent(60)).conditions, recorded.conditions, "in silence");
    }
    let made =
        after_failure(&lease(Intended), &absent(0), &refused("Daytona answered 400: Sandbox failed to start: x"));
    assert!(made.status.unwrap().sandbox.is_some(), "it exists, and has to be released");
}

#[test]
fn conditions_do_not_flap_with_each_try() {
    for class in [Class::Unavailable, Class::Unclear, Class::Unauthorized, Class::Throttled(Duration::from_secs(9))] {
        for (stage, observed) in [(Intended, absent(0)), (SessionIntended, with(Session::Absent))] {
            let failed = after_failure(&lease(stage), &observed, &error(class));
            let before = failed.status.clone().unwrap().conditions;
            assert!(!matches!(step(&failed, &observed), Step::Rest));
            assert_eq!(told(&failed, &observed).conditions, before, "{class:?}");
        }
    }
    let mut leaving = deleted(Created);
    let mut plan = decide(&leaving, &present("started"), &INTERVALS);
    plan.told.blocked_by(&error(Class::Unclear), "box");
    leaving.status = Some(status(&leaving, &plan.told, CommandGauges::default(), at(5)));
    let before = leaving.status.clone().unwrap().conditions;
    assert!(condition(&before, "CleanupBlocked").is_some());
    assert_eq!(step(&leaving, &present("started")), Step::DeleteSandbox("box".to_owned()));
    assert_eq!(told(&leaving, &present("started")).conditions, before);
    // What failed before it was deleted does not hide what keeps it from going.
    for before in [seen(Remote::FailedDeletion(sandbox("error"))), present("error")] {
        let mut failed = lease(Created);
        failed.status = Some(told(&failed, &before));
        failed.metadata.deletion_timestamp = Some(Time(at(0)));
        let (_, reason, abnormal) = ready(&failed, &before);
        let blocked = matches!(before.remote, Remote::FailedDeletion(_));
        assert_eq!((reason.as_str(), abnormal.contains(&"CleanupBlocked".to_owned())), ("Deleting", blocked));
    }
    let going = told(&leaving, &present("destroying")).conditions;
    assert!(condition(&going, "CleanupBlocked").is_none(), "it goes after all");
}

#[test]
fn what_takes_long_is_looked_at_less_often() {
    let again = |seconds| decide(&lease(Created), &for_long(seconds, present("creating")), &INTERVALS).again.as_secs();
    assert_eq!([0, 8, 80, 8000].map(again), [1, 1, 10, 30]);
}

#[test]
fn a_key_that_cannot_be_used_stalls_and_blocks() {
    for reason in
        [Reason::SecretNotFound, Reason::SecretInvalid, Reason::UrlNotAllowed, Reason::ControllerKeyNotAllowed]
    {
        let observed = Observed {
            credentials: Credentials::Missing(reason, "because".to_owned()),
            remote: Remote::NotAsked,
            ..present("started")
        };
        stalls(&lease(Finalizer), &observed, reason.as_str());
        assert_eq!(
            condition(&told(&lease(Finalizer), &observed).conditions, "CredentialsValid").unwrap().status,
            "False"
        );
        let blocked = told(&deleted(Created), &observed).conditions;
        assert_eq!(condition(&blocked, "CleanupBlocked").unwrap().reason, reason.as_str());
    }
}

#[test]
fn every_condition_follows_the_generation_on_every_path() {
    for observed in [present("started"), present("error"), absent(60), seen(Remote::Unknown(error(Class::Unclear)))] {
        let mut lease = lease(SessionLives);
        lease.status = Some(told(&lease, &observed));
        lease.metadata.generation = Some(2);
        let status = told(&lease, &observed);
        assert_eq!(status.observed_generation, Some(2));
        assert!(status.conditions.iter().all(|c| c.observed_generation == Some(2)), "{status:#?}");
    }
}
