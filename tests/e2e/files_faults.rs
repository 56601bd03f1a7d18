//! What can go wrong while files are brought in, and what is refused.

use std::{path::Path, time::Duration};

use dev::faults::Rule;
use dev::local_daytona::ForcedState;
use serde_json::{Value, json};

use crate::{
    files::{put, read, with_files, work},
    schema::{Case, namespace, try_all},
    world::{Options, World, condition, lease},
};

const UPLOAD: &str = ".*/files/bulk-upload";
const EXECUTE: &str = ".*/process/execute";

fn some_files() -> Value {
    json!([
        { "path": "dir/shown", "content": "shown" },
        { "path": "dir/mine", "content": "mine", "access": "ReadWrite" },
    ])
}

fn leftovers(dir: &Path) -> usize {
    let found =
        std::process::Command::new("find").arg(dir).args(["-name", ".dtc-new*", "-o", "-path", "*/stage/*"]).output();
    String::from_utf8(found.unwrap().stdout).unwrap().lines().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_files_are_brought_in_it_brings_them_in_all_the_same() {
    for (name, rule) in
        [("upload", Rule::on("POST", UPLOAD)), ("file", Rule::on("POST", EXECUTE).body_contains(" file 'files-"))]
    {
        for after in [false, true] {
            let mut world = World::without_controller(&format!("kill-{name}"), Options::default()).await;
            let rule = rule.clone().times(1).hang();
            let rule = world.daytona.add_rule(if after { rule.after() } else { rule }).await.unwrap();
            world.start_controller();
            world.apply(&with_files(&some_files())).await.unwrap();
            world.eventually("the moment", async || world.daytona.fired(rule).await.unwrap() > 0).await;
            world.kill_controller().await;
            assert_eq!(world.get("sblease", "l").await["status"]["filesDigest"], "-", "{name}, after: {after}");
            let work = work(&world).await;
            let there = || ["dir/shown", "dir/mine"].iter().all(|file| work.join(file).exists());
            if name == "file" && after {
                // Nobody waits for its end any more, and it comes all the same.
                world.eventually("what was begun goes on", async || there()).await;
            } else {
                assert!(!there(), "{name}, after: {after}");
            }
            world.start_controller();
            world.until_ready("l").await;
            assert_eq!(
                (read(&work.join("dir/shown")), read(&work.join("dir/mine"))),
                ("shown".to_owned(), "mine".to_owned())
            );
            assert_eq!(leftovers(&world.sandbox().await.dir), 0, "{name}, after: {after}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_daytona_refuses_is_told_and_tried_again() {
    let world = World::start("refuses").await;
    let rule = Rule::on("POST", UPLOAD).answer(502, "");
    let rule = world.daytona.add_rule(rule).await.unwrap();
    world.apply(&with_files(&some_files())).await.unwrap();
    let lease = world.until_reason("sblease", "l", "Ready", "APIUnreachable").await;
    assert!(condition(&lease, "Ready")["message"].as_str().unwrap().contains("upload the lease's files"), "{lease:#}");
    world.daytona.remove_rule(rule).await.unwrap();
    let full = json!({ "errors": ["write: no space left on device"], "files": null });
    let rule = world.daytona.add_rule(Rule::on("POST", UPLOAD).answer(400, full).times(1)).await.unwrap();
    let told = world.until_reason("sblease", "l", "Ready", "SandboxError").await;
    assert_eq!(condition(&told, "Stalled")["status"], "True");
    // That is not tried again and again, but at once when somebody asks.
    world.kubectl.run(&["annotate", "sblease", "l", "reconcile.fluxcd.io/requestedAt=now"]).await.unwrap();
    world.until_ready("l").await;
    assert_eq!(world.daytona.fired(rule).await.unwrap(), 1);
    assert_eq!(read(&work(&world).await.join("dir/shown")), "shown");
    // Of an answer that makes no sense nothing is believed.
    let rule =
        Rule::on("POST", EXECUTE).body_contains(" file 'files-").answer(200, json!({ "exitCode": 0, "result": "hm" }));
    let rule = world.daytona.add_rule(rule.times(1)).await.unwrap();
    world.apply(&with_files(&json!([{ "path": "other", "content": "x" }]))).await.unwrap();
    world.eventually("the moment", async || world.daytona.fired(rule).await.unwrap() > 0).await;
    world.eventually("it is there", async || read(&work(&world).await.join("other")) == "x").await;
    let ready = world.until_ready("l").await;
    assert_eq!(ready["status"]["session"]["generation"], 1, "the session was renewed for nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_in_the_way_is_named_and_holds_up_no_other_file() {
    let world = World::start("in-the-way").await;
    world.lease("l").await;
    world.until_ready("l").await;
    world.command("mkdir", "mkdir -p taken/full; echo theirs >file").await;
    world.until_finished("mkdir").await;
    let files = json!([
        { "path": "taken", "content": "x" }, { "path": "file/below", "content": "x" }, { "path": "z", "content": "z" },
    ]);
    world.apply(&with_files(&files)).await.unwrap();
    let told = world.until_reason("sblease", "l", "Ready", "SandboxError").await;
    let message = condition(&told, "Ready")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("/taken: a directory is there") && message.contains("/file/below: "), "{message}");
    let is = |type_: &str| condition(&told, type_)["status"].clone();
    assert_eq!((is("Stalled"), is("Reconciling"), is("SandboxReady")), (json!("True"), Value::Null, json!("True")));
    let work = work(&world).await;
    assert_eq!((read(&work.join("z")), read(&work.join("file"))), ("z".to_owned(), "theirs\n".to_owned()));
    std::fs::remove_dir_all(work.join("taken")).unwrap();
    std::fs::remove_file(work.join("file")).unwrap();
    // Tried again later, or at once for other files.
    let files: Vec<Value> =
        files.as_array().unwrap().iter().cloned().chain([json!({ "path": "y", "content": "" })]).collect();
    world.apply(&with_files(&json!(files))).await.unwrap();
    world.until_ready("l").await;
    assert_eq!((read(&work.join("taken")), read(&work.join("file/below"))), ("x".to_owned(), "x".to_owned()));
}

/// Else one command that waits would have it started, and it would fall asleep, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_not_started_for_files_that_cannot_be_written_in_it() {
    let world = World::start("not-started").await;
    world.lease("l").await;
    world.until_ready("l").await;
    world.command("mkdir", "mkdir taken").await;
    world.until_finished("mkdir").await;
    world.apply(&with_files(&json!([{ "path": "taken", "content": "x" }]))).await.unwrap();
    world.until_reason("sblease", "l", "Ready", "SandboxError").await;
    world.command("waits", "cat other").await;
    let stopped =
        ForcedState { state: "stopped".to_owned(), desired_state: None, error_reason: None, recoverable: None };
    world.daytona.force_state(&world.sandbox().await.id, &stopped).await.unwrap();
    let sleeps = |l: &Value| condition(l, "Ready")["message"].as_str().unwrap_or_default().contains("is not started");
    let told = world.until("sblease", "l", "it sleeps", sleeps).await;
    assert_eq!(condition(&told, "Stalled")["status"], "True");
    assert_eq!(world.calls("POST /api/sandbox/{sandbox}/start").await, 0);
    world.apply(&with_files(&json!([{ "path": "other", "content": "x" }]))).await.unwrap();
    assert_eq!(world.until_finished("waits").await["status"]["stdout"]["tail"], "x");
}

/// It has not been told that the others were brought in, and yet they are there.
#[tokio::test(flavor = "multi_thread")]
async fn a_spec_that_goes_back_has_its_files_brought_in_again() {
    let world = World::start("goes-back").await;
    let files = |content: &str| with_files(&json!([{ "path": "a", "content": content }]));
    world.apply(&files("one")).await.unwrap();
    let digest = world.until_ready("l").await["status"]["filesDigest"].clone();
    let a = work(&world).await.join("a");
    let lost = Rule::on("POST", EXECUTE).body_contains(" file 'files-").after().answer(502, "");
    let lost = world.daytona.add_rule(lost).await.unwrap();
    world.apply(&files("two")).await.unwrap();
    world.eventually("the other one is there", async || read(&a) == "two").await;
    world.apply(&files("one")).await.unwrap();
    world.daytona.remove_rule(lost).await.unwrap();
    world.eventually("it is as it was", async || read(&a) == "one").await;
    let ready = world.until_ready("l").await;
    assert_eq!(ready["status"]["filesDigest"], digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_our_programs_were_removed_they_are_made_anew() {
    let world = World::start("anew").await;
    put(&world, "ConfigMap", "conf", &json!({ "a": "one" })).await;
    world.apply(&with_files(&json!([{ "path": "conf", "configMapRef": { "name": "conf" } }]))).await.unwrap();
    world.until_ready("l").await;
    let work = work(&world).await;
    std::fs::remove_dir_all(work.join(".daytona-controller")).unwrap();
    put(&world, "ConfigMap", "conf", &json!({ "a": "two" })).await;
    world.eventually("it is brought in", async || read(&work.join("conf/a")) == "two").await;
    let ready = world.until_ready("l").await;
    assert_eq!(ready["status"]["session"]["generation"], 2, "its mark was removed with all the rest");
}

/// Neither a source that changes often nor a file that can never be written keeps an idle sandbox awake.
#[tokio::test(flavor = "multi_thread")]
async fn bringing_files_in_is_no_use_of_the_sandbox() {
    let world = World::start("unnoticed").await;
    put(&world, "ConfigMap", "conf", &json!({ "a": "one" })).await;
    world.apply(&with_files(&json!([{ "path": "conf", "configMapRef": { "name": "conf" } }]))).await.unwrap();
    world.until_ready("l").await;
    let (work, before) = (work(&world).await, world.sandbox().await.last_activity_at);
    world.daytona.advance_clock(Duration::from_mins(5)).await.unwrap();
    put(&world, "ConfigMap", "conf", &json!({ "a": "two" })).await;
    world.eventually("it is brought in", async || read(&work.join("conf/a")) == "two").await;
    assert_eq!(world.sandbox().await.last_activity_at, before);
}

/// A sandbox outlives its lease, and so does what is known of its files.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_lease_of_a_sandbox_knows_what_is_the_users() {
    let world = World::start("next").await;
    let manifest = |files: &Value| {
        let mut manifest: Value = serde_json::from_str(&with_files(files)).unwrap();
        manifest["spec"]["sandbox"] = json!({ "reuseKey": "k" });
        manifest["spec"]["reclaimPolicy"] = "Stop".into();
        manifest.to_string()
    };
    world.apply(&manifest(&some_files())).await.unwrap();
    world.until_ready("l").await;
    world.command("edit", "echo edited >dir/mine").await;
    world.until_finished("edit").await;
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    let work = work(&world).await;
    assert_eq!(read(&work.join("dir/shown")), "shown");
    world.apply(&manifest(&json!([some_files()[1], { "path": "new", "content": "new" }]))).await.unwrap();
    world.until_ready("l").await;
    assert_eq!((read(&work.join("dir/mine")), read(&work.join("new"))), ("edited\n".to_owned(), "new".to_owned()));
    assert!(!work.join("dir/shown").exists());
}

/// Fields: files
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_told_before_anything_is_made() {
    let world = World::start("unfit").await;
    let big = "x".repeat(900_000);
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        put(&world, "ConfigMap", name, &json!({ "big": big })).await;
    }
    let files: Vec<Value> =
        names.iter().map(|name| json!({ "path": name, "configMapRef": { "name": name } })).collect();
    let told = async |part: &str| {
        let is = |l: &Value| condition(l, "Ready")["message"].as_str().is_some_and(|m| m.contains(part));
        let lease = world.until("sblease", "l", part, is).await;
        assert_eq!(
            (&condition(&lease, "Ready")["reason"], &condition(&lease, "Stalled")["status"]),
            (&json!("InvalidSpec"), &json!("True"))
        );
    };
    world.apply(&with_files(&json!(files))).await.unwrap();
    told("4194304 bytes in all").await;
    assert_eq!(world.calls("POST /api/sandbox").await, 0);
    world.apply(&with_files(&json!(&files[..4]))).await.unwrap();
    world.until_ready("l").await;
    let work = work(&world).await;
    assert_eq!(read(&work.join("d/big")).len(), big.len());
    // Two names of one place show only when the work directory is known.
    world
        .apply(&with_files(&json!([{ "path": "x", "content": "" }, { "path": work.join("x"), "content": "" }])))
        .await
        .unwrap();
    told("two entries write").await;
    assert!(work.join("d/big").exists());
    world.apply(&with_files(&json!([{ "path": ".daytona-controller/x", "content": "" }]))).await.unwrap();
    told("is the controller's own").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_refused_where_they_can_be_seen_to_be_wrong() {
    let kubectl = namespace("schema-files").await;
    let at = |path: &str| json!([{ "path": path, "content": "x" }]);
    let of = |source: Value| {
        let mut file = json!({ "path": "p" });
        file.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        json!([file])
    };
    let many = |count: usize| (0..count).map(|n| json!({ "path": format!("p{n}"), "content": "" })).collect::<Value>();
    let one_source = Some("set exactly one of content, configMapKeyRef");
    let cases: Vec<(Value, Option<&str>)> = vec![
        (at("a/b c/ünï😀/it's \"x\""), None),
        (at("/etc/..x/...y"), None),
        (at("a"), None),
        (at(""), Some("should be at least 1 chars long")),
        (at("/"), Some("should match")),
        (at("a/"), Some("should match")),
        (at("a//b"), Some("should match")),
        (at("a\nb"), Some("should match")),
        (at("a\u{0}b"), Some("should match")),
        (at("a/../b"), Some("path cannot contain the parts . and ..")),
        (at("./a"), Some("path cannot contain the parts . and ..")),
        (at("~/a"), Some("~ is not expanded")),
        (at(&"x".repeat(1025)), Some("may not be more than 1024")),
        (
            json!([{ "path": "a", "content": "" }, { "path": "a", "content": "" }]),
            Some("two entries of files have the same path"),
        ),
        (of(json!({})), one_source),
        (of(json!({ "content": "", "secretRef": { "name": "s" } })), one_source),
        (of(json!({ "secretRef": { "name": "s" }, "configMapRef": { "name": "s" } })), one_source),
        (of(json!({ "secretRef": { "name": "s", "optional": true } })), None),
        (of(json!({ "configMapKeyRef": { "name": "s" } })), Some("key: Required value")),
        (of(json!({ "secretKeyRef": { "name": "s", "key": "a/b" } })), Some("should match")),
        (of(json!({ "content": "", "mode": "0755", "access": "ReadWrite" })), None),
        (of(json!({ "content": "", "mode": "755" })), None),
        (of(json!({ "content": "", "mode": "4755" })), Some("should match")),
        (of(json!({ "content": "", "mode": "0888" })), Some("should match")),
        (of(json!({ "content": "", "mode": 420 })), Some("must be of type string")),
        (of(json!({ "content": "", "access": "Append" })), Some("Unsupported value: \"Append\"")),
        (of(json!({ "content": "x".repeat(65_536) })), None),
        (of(json!({ "content": "x".repeat(65_537) })), Some("may not be more than 65536")),
        (many(32), None),
        (many(33), Some("must have at most 32 items")),
    ];
    let cases: Vec<Case> = cases.into_iter().map(|(files, refusal)| ("/spec/files", files, refusal)).collect();
    try_all(&kubectl, &lease("x"), cases).await;
}
