//! What is wanted, from which sources, and what is done about it.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::{
    api::{CommandGauges, LEASE_FINALIZER, SandboxLeaseStatus},
    daytona::Sandbox,
    plan::escrow::Escrow,
    plan::lease::{Credentials, Plan, Remote, Session, decide, status},
    plan::lease_seen::INTERVALS,
};

type Data = BTreeMap<String, Vec<u8>>;

fn data(pairs: &[(&str, &str)]) -> Data {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
}

/// Each mapping with the version and data of what it reads.
fn gather(mappings: &[(Value, Option<(&str, &Data)>)]) -> Result<Wanted, Hindrance> {
    let mut gathering = Gathering::new(Some("/work/"), Some("/home/me"));
    for (mapping, object) in mappings {
        let mapping: FileMapping = serde_json::from_value(mapping.clone()).unwrap();
        gathering.add(&mapping, object.map(|(version, data)| Object { version, data }))?;
    }
    gathering.finish()
}

fn refused(mappings: &[(Value, Option<(&str, &Data)>)]) -> (Reason, String) {
    let Err(Hindrance(reason, message)) = gather(mappings) else { panic!("it was accepted") };
    (reason, message)
}

fn inline(path: &str) -> (Value, Option<(&'static str, &'static Data)>) {
    (json!({ "path": path, "content": "x" }), None)
}

#[test]
fn files_are_gathered_from_all_kinds_of_sources() {
    let (map, secret) = (data(&[("a.conf", "A"), ("b", "B")]), data(&[("token", "hunter2")]));
    let wanted = gather(&[
        (json!({ "path": "in/line", "content": "text", "mode": "0600" }), None),
        (json!({ "path": "/etc/one", "configMapKeyRef": { "name": "m", "key": "b" } }), Some(("1", &map))),
        (json!({ "path": "conf", "configMapRef": { "name": "m" }, "access": "ReadWrite" }), Some(("1", &map))),
        (
            json!({ "path": "/t", "secretKeyRef": { "name": "s", "key": "token" }, "access": "ReadWrite" }),
            Some(("1", &secret)),
        ),
        (json!({ "path": "no", "secretKeyRef": { "name": "s", "key": "no", "optional": true } }), Some(("1", &secret))),
        (json!({ "path": "none", "secretRef": { "name": "none", "optional": true }, "access": "ReadWrite" }), None),
    ])
    .unwrap();
    let seen: Vec<_> =
        wanted.files.iter().map(|f| (f.path.as_str(), f.mode.as_str(), f.once, f.content.as_slice())).collect();
    assert_eq!(
        seen,
        [
            ("/etc/one", "0644", false, b"B".as_slice()),
            ("/t", "0644", true, b"hunter2"),
            ("/work/conf/a.conf", "0644", true, b"A"),
            ("/work/conf/b", "0644", true, b"B"),
            ("/work/in/line", "0600", false, b"text"),
        ]
    );
    assert_eq!(wanted.writable_dirs, ["/", "/work/conf", "/work/none"]);
}

#[test]
fn the_digest_follows_what_is_wanted_and_tells_no_secret() {
    let of = |mapping: &Value, version: &str, data: &Data| {
        gather(&[(mapping.clone(), Some((version, data)))]).unwrap().digest
    };
    let (one, two) = (data(&[("k", "1"), ("other", "1")]), data(&[("k", "1"), ("other", "2")]));
    let key = |kind: &str| json!({ "path": "p", kind: { "name": "n", "key": "k" } });
    let (map, secret) = (key("configMapKeyRef"), key("secretKeyRef"));
    assert_eq!(of(&map, "1", &one), of(&map, "2", &two), "neither its version nor another key matters");
    assert_ne!(of(&map, "1", &one), of(&map, "1", &data(&[("k", "2")])));
    assert_eq!(of(&secret, "1", &one), of(&secret, "1", &data(&[("k", "guess")])), "a value could be guessed");
    assert_ne!(of(&secret, "1", &one), of(&secret, "2", &one));
    let whole = json!({ "path": "p", "configMapRef": { "name": "n" } });
    assert_ne!(of(&whole, "1", &one), of(&whole, "1", &two));
    let digests: BTreeSet<_> = [
        json!({ "path": "p", "content": "x" }),
        json!({ "path": "q", "content": "x" }),
        json!({ "path": "p", "content": "y" }),
        json!({ "path": "p", "content": "x", "mode": "0600" }),
        json!({ "path": "p", "content": "x", "access": "ReadWrite" }),
    ]
    .into_iter()
    .map(|mapping| gather(&[(mapping, None)]).unwrap().digest)
    .collect();
    assert_eq!(digests.len(), 5);
}

#[test]
fn what_is_missing_is_named() {
    let map = data(&[("k", "1")]);
    let reference = |kind: &str| json!({ "path": "p", kind: { "name": "n", "key": "no" } });
    let (reason, message) = refused(&[(reference("secretKeyRef"), None)]);
    assert_eq!(
        (reason, message.as_str()),
        (Reason::SecretNotFound, "Secret \"n\", which files names, is not in this namespace; create it")
    );
    assert_eq!(
        refused(&[(json!({ "path": "p", "configMapRef": { "name": "n" } }), None)]).0,
        Reason::ConfigMapNotFound
    );
    let (reason, message) = refused(&[(reference("configMapKeyRef"), Some(("1", &map)))]);
    assert!(reason == Reason::ConfigMapNotFound && message.contains("has no key \"no\""), "{message}");
}

#[test]
fn what_does_not_fit_is_refused_with_a_way_out() {
    let refuse = |mappings: &[(Value, Option<(&str, &Data)>)], part: &str| {
        let (reason, message) = refused(mappings);
        assert!(reason == Reason::InvalidSpec && message.contains(part), "{message}");
    };
    refuse(&[inline("a"), inline("/work/a")], "two entries write /work/a");
    refuse(&[inline("a/b/c"), inline("a-"), inline("a")], "/work/a would be a file and the directory of /work/a/b/c");
    refuse(&[inline("/"), inline("/a")], "would be a file");
    refuse(&[inline("/home/me/.daytona-controller/x")], "is the controller's own");
    refuse(&[inline("a/.dtc-new-1")], "the controller uses names");
    refuse(&[inline("a/.dtc-new/b")], "the controller uses names");
    let big = data(&[("k", &"x".repeat(MOST_BYTES))]);
    let whole = (json!({ "path": "p", "configMapRef": { "name": "n" } }), Some(("1", &big)));
    assert!(gather(std::slice::from_ref(&whole)).is_ok());
    refuse(&[whole, inline("a")], "map fewer");
    let many: Data = (0..=MOST_FILES).map(|n| (n.to_string(), Vec::new())).collect();
    refuse(&[(json!({ "path": "p", "secretRef": { "name": "n" } }), Some(("1", &many)))], "map fewer");
    assert!(gather(&[inline("/home/me/.daytona-controller-x"), inline("a.b"), inline("a/b")]).is_ok());
    // Before the directories are known, what is relative cannot be compared.
    let mut early = Gathering::new(None, None);
    for (mapping, _) in [inline("a"), inline("/home/daytona/a")] {
        early.add(&serde_json::from_value(mapping).unwrap(), None).unwrap();
    }
    assert!(early.finish().is_ok());
}

// --- decisions ---------------------------------------------------------------------------------------------------------

/// A lease whose session has lived, with files of this digest in its sandbox.
fn lease(digest: Option<&str>) -> SandboxLease {
    let mut lease = SandboxLease::new("l", serde_json::from_value(json!({})).unwrap());
    (lease.metadata.uid, lease.metadata.generation) = (Some("uid".to_owned()), Some(1));
    lease.metadata.finalizers = Some(vec![LEASE_FINALIZER.to_owned()]);
    let recorded = json!({
        "sandbox": { "id": "box", "name": "sblease-uid" },
        "workspace": { "id": "uid-w1", "generation": 1, "creationTime": "2026-01-01T00:00:00Z" },
        "filesDigest": digest,
    });
    lease.status = Some(serde_json::from_value(recorded).unwrap());
    lease
}

fn seen(state: &str, files: Files) -> Observed {
    let sandbox: Sandbox = serde_json::from_value(json!({ "id": "box", "state": state })).unwrap();
    let usable = Credentials::Usable { api_url: "https://d/".to_owned(), fingerprint: "k".to_owned() };
    Observed {
        credentials: usable,
        escrow: Escrow::NotWanted,
        owner: None,
        remote: Remote::Present(sandbox),
        session: Session::Serving,
        files,
        name: "sblease-uid".to_owned(),
        now: Timestamp::from_second(1).unwrap(),
        needed: false,
        running: 0,
        overdue: false,
        since: Duration::ZERO,
        leaving: Duration::ZERO,
        kept_awake: None,
        recovered: false,
    }
}

fn wanted(digest: &str) -> Files {
    Files::Wanted(Some(digest.to_owned()))
}

fn unknown(seconds: u64) -> Files {
    Files::Unknown("x".to_owned(), Duration::from_secs(seconds))
}

fn unwritable(seconds: u64) -> Files {
    Files::Unwritable(Some("a".to_owned()), "full".to_owned(), Duration::from_secs(seconds))
}

fn missing_secret() -> Files {
    Files::Hindered(Reason::SecretNotFound, "create it".to_owned())
}

fn told(lease: &SandboxLease, plan: &Plan) -> SandboxLeaseStatus {
    status(lease, &plan.told, CommandGauges::default(), Timestamp::from_second(1).unwrap())
}

/// The next step; status and reason of Ready; the conditions that are there.
fn next(lease: &SandboxLease, observed: &Observed) -> (Step, String, Vec<String>) {
    let plan = decide(lease, observed, &INTERVALS);
    let all = told(lease, &plan).conditions;
    let ready = condition(&all, "Ready").map(|c| format!("{} {}", c.status, c.reason)).unwrap_or_default();
    let abnormal = ["Reconciling", "Stalled"].into_iter().filter(|t| condition(&all, t).is_some());
    (plan.step, ready, abnormal.map(str::to_owned).collect())
}

fn is(seen: &(Step, String, Vec<String>), step: &Step, ready: &str, abnormal: &[&str]) {
    assert_eq!((&seen.0, seen.1.as_str()), (step, ready));
    assert_eq!(seen.2, abnormal);
}

#[test]
fn a_lease_is_ready_when_its_files_are_there() {
    is(&next(&lease(None), &seen("started", wanted("a"))), &Step::Record, "False SyncingFiles", &["Reconciling"]);
    is(
        &next(&lease(Some("-")), &seen("started", wanted("a"))),
        &Step::SyncFiles,
        "False SyncingFiles",
        &["Reconciling"],
    );
    is(&next(&lease(Some("a")), &seen("started", wanted("a"))), &Step::Rest, "True Ready", &[]);
    is(
        &next(&lease(Some("a")), &seen("started", Files::Wanted(None))),
        &Step::Record,
        "False SyncingFiles",
        &["Reconciling"],
    );
    is(&next(&lease(None), &seen("started", Files::Wanted(None))), &Step::Rest, "True Ready", &[]);
    is(&next(&lease(None), &seen("started", unknown(0))), &Step::Rest, "False APIUnreachable", &["Reconciling"]);
}

/// What was begun is written down before: neither a spec that goes back nor another controller takes what was there
/// before for what is there now.
#[test]
fn files_that_are_under_way_are_none_that_are_wanted() {
    for digest in [None, Some("a")] {
        let mut lease = lease(digest);
        lease.status = Some(told(&lease, &decide(&lease, &seen("started", wanted("b")), &INTERVALS)));
        assert_eq!(lease.status.as_ref().unwrap().files_digest.as_deref(), Some("-"));
        for then in [wanted("a"), wanted("b"), Files::Wanted(None)] {
            assert_eq!(next(&lease, &seen("started", then)).0, Step::SyncFiles);
        }
    }
    // A sandbox that Daytona has recovered may be an older one.
    let failed = |digest| {
        let lease = lease(digest);
        let mut observed = seen("error", wanted("a"));
        observed.remote = Remote::Present(
            serde_json::from_value(json!({ "id": "box", "state": "error", "recoverable": true })).unwrap(),
        );
        let plan = decide(&lease, &observed, &INTERVALS);
        assert_eq!(plan.step, Step::RecoverSandbox("box".to_owned()));
        told(&lease, &plan).files_digest
    };
    assert_eq!((failed(Some("a")).as_deref(), failed(None)), (Some("-"), None));
}

#[test]
fn a_change_of_a_source_leaves_a_lease_ready_and_one_of_its_spec_does_not() {
    let mut lease = lease(Some("a"));
    lease.status = Some(told(&lease, &decide(&lease, &seen("started", wanted("a")), &INTERVALS)));
    is(&next(&lease, &seen("started", wanted("b"))), &Step::Record, "True Ready", &[]);
    is(&next(&lease, &seen("started", unknown(0))), &Step::Rest, "True Ready", &[]);
    is(&next(&lease, &seen("started", unknown(10))), &Step::Rest, "False APIUnreachable", &["Reconciling"]);
    is(&next(&lease, &seen("started", missing_secret())), &Step::Rest, "False SecretNotFound", &["Stalled"]);
    lease.metadata.generation = Some(2);
    is(&next(&lease, &seen("started", wanted("b"))), &Step::Record, "False SyncingFiles", &["Reconciling"]);
}

#[test]
fn nothing_is_made_or_woken_for_what_is_missing() {
    let mut new = lease(None);
    new.status = None;
    let absent = |files| Observed { remote: Remote::Absent, ..seen("started", files) };
    is(&next(&new, &absent(missing_secret())), &Step::Rest, "False SecretNotFound", &["Stalled"]);
    assert_eq!(next(&new, &absent(wanted("a"))).0, Step::Record);
    let asleep = |files, needed, running| Observed { needed, running, ..seen("stopped", files) };
    is(&next(&lease(Some("a")), &asleep(missing_secret(), true, 0)), &Step::Rest, "False SecretNotFound", &["Stalled"]);
    let start = Step::StartSandbox("box".to_owned());
    assert_eq!(next(&lease(Some("a")), &asleep(missing_secret(), true, 1)).0, start, "what runs is looked after");
    assert_eq!(next(&lease(Some("a")), &asleep(wanted("b"), true, 0)).0, start);
    is(&next(&lease(Some("a")), &asleep(wanted("b"), false, 0)), &Step::Rest, "True Asleep", &[]);
}

#[test]
fn what_cannot_be_written_is_tried_again_later_and_wakes_nothing() {
    let lease = |digest| lease(Some(digest));
    is(&next(&lease("-"), &seen("started", unwritable(9))), &Step::Rest, "False SandboxError", &["Stalled"]);
    assert_eq!(decide(&lease("-"), &seen("started", unwritable(9)), &INTERVALS).again, Duration::from_secs(9));
    let mut told_of = lease("-");
    told_of.status = Some(told(&told_of, &decide(&told_of, &seen("started", unwritable(9)), &INTERVALS)));
    is(&next(&told_of, &seen("started", unwritable(0))), &Step::SyncFiles, "False SandboxError", &["Stalled"]);
    let asleep = |running| Observed { needed: true, running, ..seen("stopped", unwritable(0)) };
    is(&next(&lease("-"), &asleep(0)), &Step::Rest, "False SandboxError", &["Stalled"]);
    assert_eq!(next(&lease("-"), &asleep(1)).0, Step::StartSandbox("box".to_owned()));
}

#[test]
fn a_sandbox_is_kept_awake_before_its_files_are_tried_again() {
    let mut lease = lease(Some("-"));
    lease.spec.sandbox = serde_json::from_value(json!({ "autoStopMinutes": 0 })).unwrap();
    let step = |minutes| {
        let kept_awake = Some(Duration::from_mins(minutes));
        next(&lease, &Observed { kept_awake, ..seen("started", wanted("a")) }).0
    };
    assert_eq!((step(1), step(41)), (Step::SyncFiles, Step::KeepAwake("box".to_owned())));
    assert_eq!(step(50), Step::SyncFiles, "what does not work holds up no files");
    let data = data(&[("token", "hunter2")]);
    assert_eq!(format!("{:?}", Object { version: "1", data: &data }), "Object(1, 1 keys)");
}
