//! Files that a lease brings into its sandbox.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use dev::faults::Rule;
use dev::local_daytona::ForcedState;
use serde_json::{Value, json};

use crate::world::{World, condition, lease, one_shot};

const UPLOAD: &str = ".*/files/bulk-upload";
const UPLOADS: &str = "POST /toolbox/{sandbox}/files/bulk-upload";
const SECRET: &str = "correct-horse-battery";

/// The lease `l` with these files.
pub(crate) fn with_files(files: &Value) -> String {
    let mut manifest: Value = serde_json::from_str(&lease("l")).unwrap();
    manifest["spec"]["files"] = files.clone();
    manifest.to_string()
}

/// Makes or replaces a `ConfigMap` or Secret.
pub(crate) async fn put(world: &World, kind: &str, name: &str, data: &Value) {
    let field = if kind == "Secret" { "stringData" } else { "data" };
    let manifest = json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name }, field: data }).to_string();
    let made = world.kubectl.run_with_input(&["create", "-f", "-"], &manifest).await;
    if made.is_err() {
        world.kubectl.run_with_input(&["replace", "-f", "-"], &manifest).await.unwrap();
    }
}

/// The work directory of the one sandbox.
pub(crate) async fn work(world: &World) -> PathBuf {
    world.sandbox().await.dir.join("home/daytona")
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| format!("({e})"))
}

/// Waits until a file holds this.
async fn until_file(world: &World, path: &Path, content: &str) {
    world.eventually(&format!("{}: {content:?}", path.display()), async || read(path) == content).await;
}

async fn until_gone(world: &World, path: &Path) {
    world.eventually(&format!("{} is gone", path.display()), async || !path.exists()).await;
}

/// Waits until the lease has been looked at `count` times more because of its annotation.
async fn looked_at(world: &World, count: usize) {
    for n in 0..count {
        let at = format!("reconcile.fluxcd.io/requestedAt={n}");
        world.kubectl.run(&["annotate", "sblease", "l", "--overwrite", &at]).await.unwrap();
        let value = n.to_string();
        world.until("sblease", "l", "looked at", |o| o["status"]["lastHandledReconcileAt"] == *value).await;
    }
}

/// Fields: files, status.filesDigest, status.writableDirs
#[tokio::test(flavor = "multi_thread")]
async fn files_are_there_before_the_lease_is_ready() {
    let world = World::start("files").await;
    put(&world, "ConfigMap", "conf", &json!({ "a.conf": "A\n", "b": "B" })).await;
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "bin" }, "binaryData": { "b": "AP8N" } });
    world.kubectl.run_with_input(&["create", "-f", "-"], &map.to_string()).await.unwrap();
    put(&world, "Secret", "app", &json!({ "token": SECRET, "user": "me" })).await;
    let odd = "it's \"odd\" $HOME \\n * ünï😀 -x /-rf ";
    let files = json!([
        { "path": "in/line.txt", "content": "text\nwithout an end", "mode": "0640" },
        { "path": odd, "content": "odd" },
        { "path": "empty", "content": "" },
        { "path": "one", "configMapKeyRef": { "name": "conf", "key": "b" } },
        { "path": "bin", "configMapKeyRef": { "name": "bin", "key": "b" }, "mode": "755" },
        { "path": ".ssh/key", "secretKeyRef": { "name": "app", "key": "token" }, "mode": "0400" },
        { "path": "conf", "configMapRef": { "name": "conf" } },
        { "path": "secrets", "secretRef": { "name": "app" }, "access": "ReadWrite", "mode": "600" },
        { "path": "mine/notes.md", "content": "begin", "access": "ReadWrite" },
        { "path": "none", "configMapRef": { "name": "none", "optional": true } },
        { "path": "nor", "secretKeyRef": { "name": "app", "key": "none", "optional": true } },
    ]);
    let slow = world.daytona.add_rule(Rule::on("POST", UPLOAD).delay(Duration::from_secs(3)).times(1)).await.unwrap();
    world.apply(&with_files(&files)).await.unwrap();
    world.command("c", "cat in/line.txt; stat -c %a in/line.txt").await;
    let syncing = world.until_reason("sblease", "l", "Ready", "SyncingFiles").await;
    assert_eq!(condition(&syncing, "Ready")["status"], "False");
    assert_eq!(
        (&condition(&syncing, "Reconciling")["status"], &condition(&syncing, "Stalled")),
        (&json!("True"), &Value::Null)
    );
    assert_eq!(condition(&syncing, "SandboxReady")["status"], "True");
    world.until("sblease", "l", "it is written that they are under way", |l| l["status"]["filesDigest"] == "-").await;
    world.eventually("the upload", async || world.daytona.fired(slow).await.unwrap() == 1).await;
    assert_ne!(world.get("sbcmd", "c").await["status"]["state"], "Running", "it did not wait for its files");
    let ready = world.until_ready("l").await;
    let work = work(&world).await;
    for (path, content, mode) in [
        ("in/line.txt", "text\nwithout an end", 0o640),
        (odd, "odd", 0o644),
        ("empty", "", 0o644),
        ("one", "B", 0o644),
        (".ssh/key", SECRET, 0o400),
        ("conf/a.conf", "A\n", 0o644),
        ("conf/b", "B", 0o644),
        ("secrets/token", SECRET, 0o600),
        ("secrets/user", "me", 0o600),
        ("mine/notes.md", "begin", 0o644),
    ] {
        let path = work.join(path);
        assert_eq!(read(&path), content, "{}", path.display());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, mode, "{}", path.display());
    }
    assert_eq!(std::fs::read(work.join("bin")).unwrap(), [0, 255, 13]);
    assert!(!work.join("none").exists() && !work.join("nor").exists());
    let writable = ["mine", "secrets"].map(|name| work.join(name).display().to_string());
    assert_eq!(ready["status"]["writableDirs"], json!(writable));
    assert_eq!(ready["status"]["filesDigest"].as_str().unwrap().len(), 32);
    assert_eq!(world.until_finished("c").await["status"]["stdout"]["tail"], "text\nwithout an end640\n");

    // Nothing changed, nothing is done; nor after a restart.
    let calls = world.calls(UPLOADS).await;
    assert_eq!(calls, 1);
    looked_at(&world, 3).await;
    let mut world = world;
    world.kill_controller().await;
    world.start_controller();
    world.command("d", "true").await;
    world.until_finished("d").await;
    looked_at(&world, 5).await;
    assert_eq!(world.calls(UPLOADS).await, calls);
    assert_eq!(world.get("sblease", "l").await["status"]["filesDigest"], ready["status"]["filesDigest"]);
}

/// Fields: files, status.filesDigest
#[tokio::test(flavor = "multi_thread")]
async fn read_only_files_are_kept_in_step() {
    let world = World::start("step").await;
    put(&world, "ConfigMap", "conf", &json!({ "kept": "one", "goes": "one", "single": "a".repeat(200_000) })).await;
    put(&world, "Secret", "app", &json!({ "token": SECRET })).await;
    let mapped = |name: &str, path: &str| json!({ "path": path, "configMapKeyRef": { "name": name, "key": "single" } });
    let whole = json!({ "path": "conf", "configMapRef": { "name": "conf" } });
    let secret = json!({ "path": "token", "secretKeyRef": { "name": "app", "key": "token" } });
    let inline = json!({ "path": "inline", "content": "one" });
    world.apply(&with_files(&json!([whole, secret, inline, mapped("conf", "single")]))).await.unwrap();
    let ready = world.until_ready("l").await;
    let since = condition(&ready, "Ready")["lastTransitionTime"].clone();
    let work = work(&world).await;
    let [kept, goes, token, single] = ["conf/kept", "conf/goes", "token", "single"].map(|name| work.join(name));
    assert_eq!((read(&kept), read(&token)), ("one".to_owned(), SECRET.to_owned()));
    // What the user puts there in the meantime: beside ours, in place of ours, and where ours will be.
    std::fs::write(work.join("conf/theirs"), "theirs").unwrap();
    std::fs::write(work.join("conf/new"), "theirs").unwrap();

    // A reader in a loop never sees a part.
    let done = AtomicBool::new(false);
    let reader = async {
        let mut seen = 0;
        while !done.load(Ordering::Relaxed) {
            let text = std::fs::read(&single).unwrap();
            assert!(text.len() == 200_000 && text.iter().all(|byte| *byte == text[0]));
            seen += 1;
            tokio::task::yield_now().await;
        }
        assert!(seen > 1);
    };
    let changes = async {
        let data = json!({ "kept": "two", "new": "two", "single": "b".repeat(200_000) });
        put(&world, "ConfigMap", "conf", &data).await;
        until_file(&world, &kept, "two").await;
        until_gone(&world, &goes).await;
        until_file(&world, &work.join("conf/new"), "two").await;
        put(&world, "Secret", "app", &json!({ "token": "another" })).await;
        until_file(&world, &token, "another").await;
        done.store(true, Ordering::Relaxed);
    };
    tokio::join!(reader, changes);
    assert_eq!(read(&single).chars().next(), Some('b'));
    let settled = |l: &Value| ![&ready["status"]["filesDigest"], &json!("-")].contains(&&l["status"]["filesDigest"]);
    let ready = world.until("sblease", "l", "settled", settled).await;
    assert_eq!(condition(&ready, "Ready")["lastTransitionTime"], since, "it was not ready in between");
    let events = world.kubectl.get(&["get", "events", "-o", "yaml"]).await.unwrap();
    assert_eq!(events.matches("reason: SyncingFiles").count(), 1, "{events}");

    // A change that does not matter costs nothing.
    let calls = world.calls(UPLOADS).await;
    world.kubectl.run(&["annotate", "configmap", "conf", "a=b"]).await.unwrap();
    looked_at(&world, 2).await;
    assert_eq!(world.calls(UPLOADS).await, calls);

    // The spec: entries go, come and change, and the command that comes with it finds them so.
    let manifest = with_files(&json!([
        { "path": work.join("abs/olute"), "content": "abs" },
        { "path": "inline", "content": "two", "mode": "0600" },
        mapped("conf", "single"),
    ]));
    let command = crate::world::command("c", "l", "cat inline abs/olute; ls conf");
    world.apply(&format!("{manifest}\n---\n{command}")).await.unwrap();
    let done = world.until_finished("c").await;
    assert_eq!(done["status"]["stdout"]["tail"], "twoabstheirs\n", "{done:#}");
    assert!(!token.exists() && !kept.exists());
    assert_eq!(work.join("inline").metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    world.apply(&lease("l")).await.unwrap();
    until_gone(&world, &single).await;
    let empty = world.until("sblease", "l", "no digest", |l| l["status"]["filesDigest"].is_null()).await;
    assert_eq!(empty["status"]["writableDirs"], Value::Null);
    assert!(!work.join("inline").exists() && !work.join("abs/olute").exists());
    assert_eq!(read(&work.join("conf/theirs")), "theirs");
}

/// Fields: files, status.writableDirs
#[tokio::test(flavor = "multi_thread")]
async fn a_read_write_file_is_written_once() {
    let mut world = World::start("once").await;
    put(&world, "ConfigMap", "conf", &json!({ "a": "one", "b": "one" })).await;
    let files = json!([
        { "path": "mine", "configMapRef": { "name": "conf" }, "access": "ReadWrite" },
        { "path": "z-marker", "configMapKeyRef": { "name": "conf", "key": "a" } },
    ]);
    world.apply(&with_files(&files)).await.unwrap();
    world.until_ready("l").await;
    let work = work(&world).await;
    let [a, b, c, marker] = ["mine/a", "mine/b", "mine/c", "z-marker"].map(|name| work.join(name));
    assert_eq!((read(&a), read(&b)), ("one".to_owned(), "one".to_owned()));
    world.command("edit", "echo edited >mine/a; rm mine/b").await;
    world.until_finished("edit").await;
    let unchanged = || assert!(read(&a) == "edited\n" && !b.exists(), "{} {}", read(&a), read(&b));
    // A change of its source; a new key is new.
    put(&world, "ConfigMap", "conf", &json!({ "a": "two", "b": "two", "c": "two" })).await;
    until_file(&world, &marker, "two").await;
    assert_eq!(read(&c), "two");
    unchanged();
    // Another controller.
    world.kill_controller().await;
    put(&world, "ConfigMap", "conf", &json!({ "a": "three", "b": "three" })).await;
    world.start_controller();
    until_file(&world, &marker, "three").await;
    unchanged();
    // The sandbox sleeps, and nothing wakes it but a command, which finds the newest.
    let id = world.sandbox().await.id;
    let stopped =
        ForcedState { state: "stopped".to_owned(), desired_state: None, error_reason: None, recoverable: None };
    world.daytona.force_state(&id, &stopped).await.unwrap();
    world.until_reason("sblease", "l", "Ready", "Asleep").await;
    put(&world, "ConfigMap", "conf", &json!({ "a": "four", "b": "four" })).await;
    looked_at(&world, 3).await;
    assert_eq!(world.calls("POST /api/sandbox/{sandbox}/start").await, 0, "woken for a file");
    assert_eq!(read(&marker), "three");
    world.command("wakes", "cat z-marker mine/a").await;
    assert_eq!(world.until_finished("wakes").await["status"]["stdout"]["tail"], "fouredited\n");
    unchanged();
    // The entry goes, the files stay; it comes again, and they were written once.
    world.apply(&with_files(&json!([files[1]]))).await.unwrap();
    world.until("sblease", "l", "nothing is writable", |l| l["status"]["writableDirs"].is_null()).await;
    assert_eq!(read(&c), "two");
    world.apply(&with_files(&files)).await.unwrap();
    world.until("sblease", "l", "it is writable", |l| l["status"]["writableDirs"] == json!([work.join("mine")])).await;
    unchanged();
}

/// Fields: files
#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_waited_for() {
    let world = World::start("lacks").await;
    let files = json!([
        { "path": "conf", "configMapRef": { "name": "conf" } },
        { "path": "token", "secretKeyRef": { "name": "app", "key": "token" } },
        { "path": "maybe", "configMapRef": { "name": "maybe", "optional": true } },
    ]);
    world.apply(&with_files(&files)).await.unwrap();
    let missing = |lease: &Value, name: &str| {
        let message = condition(lease, "Ready")["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(name), "{message}");
        assert_eq!(
            (&condition(lease, "Ready")["status"], &condition(lease, "Stalled")["status"]),
            (&json!("False"), &json!("True"))
        );
        assert_eq!(condition(lease, "Reconciling"), Value::Null);
    };
    missing(&world.until_reason("sblease", "l", "Ready", "SecretNotFound").await, "\"app\"");
    put(&world, "Secret", "app", &json!({ "other": "x" })).await;
    let no_key = |l: &Value| condition(l, "Ready")["message"].to_string().contains("no key");
    missing(&world.until("sblease", "l", "there is no key", no_key).await, "\"app\"");
    put(&world, "Secret", "app", &json!({ "token": SECRET })).await;
    missing(&world.until_reason("sblease", "l", "Ready", "ConfigMapNotFound").await, "\"conf\"");
    assert_eq!(world.calls("POST /api/sandbox").await, 0, "a sandbox was made for nothing");
    put(&world, "ConfigMap", "conf", &json!({ "a": "one" })).await;
    put(&world, "ConfigMap", "maybe", &json!({ "m": "one" })).await;
    world.until_ready("l").await;
    let work = work(&world).await;
    until_file(&world, &work.join("maybe/m"), "one").await;

    // Gone later: what is there stays, and commands wait; of what is optional the files go.
    world.delete("configmap", "conf").await;
    missing(&world.until_reason("sblease", "l", "Ready", "ConfigMapNotFound").await, "\"conf\"");
    assert_eq!(read(&work.join("conf/a")), "one");
    world.command("waits", "cat conf/a").await;
    let waits = world.until_reason("sbcmd", "waits", "Succeeded", "WaitingForLease").await;
    assert!(condition(&waits, "Succeeded")["message"].as_str().unwrap().contains("ConfigMapNotFound"), "{waits:#}");
    put(&world, "ConfigMap", "conf", &json!({ "a": "two" })).await;
    assert_eq!(world.until_finished("waits").await["status"]["stdout"]["tail"], "two");
    world.delete("configmap", "maybe").await;
    until_gone(&world, &work.join("maybe/m")).await;
    world.until_ready("l").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_in_its_file_and_nowhere_else() {
    let world = World::start("secrecy").await;
    put(&world, "Secret", "app", &json!({ "token": SECRET })).await;
    let files = json!([
        { "path": "token", "secretKeyRef": { "name": "app", "key": "token" }, "mode": "0600" },
        { "path": "all", "secretRef": { "name": "app" }, "access": "ReadWrite" },
    ]);
    // An answer that repeats what was sent.
    let echo = Rule::on("POST", UPLOAD).answer(500, format!("could not write {SECRET}")).times(2);
    world.daytona.add_rule(echo).await.unwrap();
    let mut manifest: Value = serde_json::from_str(&one_shot("l", 2)).unwrap();
    manifest["spec"]["files"] = files;
    world.apply(&manifest.to_string()).await.unwrap();
    world.until_ready("l").await;
    let dir = world.sandbox().await.dir;
    let found = std::process::Command::new("grep").args(["-rlI", SECRET]).arg(&dir).output().unwrap();
    let mut found: Vec<_> = String::from_utf8(found.stdout).unwrap().lines().map(PathBuf::from).collect();
    found.sort_unstable();
    let work = work(&world).await;
    assert_eq!(found, [work.join("all/token"), work.join("token")]);
    // What a command prints is in its own output, and nowhere else either.
    world.command("prints", "cat token all/token").await;
    assert_eq!(world.until_finished("prints").await["status"]["stdout"]["tail"], "***");
    let everything = ["get", "sblease,sbcmd,events,configmaps", "-o", "yaml"];
    assert!(!world.kubectl.get(&everything).await.unwrap().contains(SECRET), "in the Kubernetes API");
    assert!(!world.logged().contains(SECRET), "in the controller's log");
}
