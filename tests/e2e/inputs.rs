//! What a command runs with: arguments, interpreter, directory, environment, standard input, Secrets.

use dev::local_daytona::ForcedState;
use serde_json::{Value, json};

use crate::world::{World, condition, one_shot, with_spec};

const SECRET: &str = "correct-horse-battery";

async fn world(name: &str) -> World {
    let world = World::start(name).await;
    let kubectl = &world.kubectl;
    let secret = format!("--from-literal=token={SECRET}");
    kubectl.run(&["create", "secret", "generic", "app", &secret, "--from-literal=not-a-name=x"]).await.unwrap();
    kubectl.run(&["create", "configmap", "conf", "--from-literal=MODE=fast", "--from-literal=LEVEL=3"]).await.unwrap();
    world.lease("l").await;
    world.apply(&one_shot("o", 4)).await.unwrap();
    world
}

/// The manifest, in both leases.
fn in_both(name: &str, spec: &Value) -> [(String, String); 2] {
    ["l", "o"].map(|lease| {
        let name = format!("{name}-{lease}");
        let mut manifest: Value = serde_json::from_str(&with_spec(&name, spec)).unwrap();
        manifest["spec"]["leaseRef"]["name"] = lease.into();
        (name, manifest.to_string())
    })
}

async fn each(world: &World, name: &str, spec: &Value, check: impl Fn(&Value)) {
    let both = in_both(name, spec);
    for (_, manifest) in &both {
        world.apply(manifest).await.unwrap();
    }
    for (name, _) in &both {
        check(&world.until_finished(name).await);
    }
}

fn stdout(command: &Value) -> &str {
    command["status"]["stdout"]["tail"].as_str().unwrap_or_default()
}

fn reason(command: &Value) -> String {
    condition(command, "Succeeded")["reason"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_gets_exactly_what_its_manifest_says() {
    let world = world("inputs").await;
    let words = json!(["printf", "<%s>", "a b", "it's", "$HOME `x` \"y\" *", "", "ünï😀"]);
    each(&world, "argv", &json!({ "command": words }), |c| {
        assert_eq!(stdout(c), "<a b><it's><$HOME `x` \"y\" *><><ünï😀>", "{c:#}");
    })
    .await;
    each(&world, "missing", &json!({ "command": ["no-such-program"] }), |c| {
        assert_eq!((reason(c).as_str(), &c["status"]["exitCode"]), ("NonZeroExit", &json!(127)));
    })
    .await;
    let python = json!({ "shell": ["awk", "-f"], "script": "BEGIN { print 6 * 7 }" });
    each(&world, "shell", &python, |c| assert_eq!(stdout(c), "42\n", "{c:#}")).await;
    each(&world, "no-shell", &json!({ "shell": ["no-such-shell", "-x"], "script": "true" }), |c| {
        assert_eq!((reason(c).as_str(), &c["status"]["exitCode"]), ("StartFailed", &Value::Null), "{c:#}");
        let message = condition(c, "Succeeded")["message"].as_str().unwrap().to_owned();
        assert!(message.contains("nothing ran") && message.contains("no-such-shell"), "{message}");
    })
    .await;
    each(&world, "dir", &json!({ "script": "mkdir -p deep/er; pwd" }), |_| {}).await;
    each(&world, "in-dir", &json!({ "workingDir": "deep/er", "script": "pwd" }), |c| {
        assert!(stdout(c).ends_with("/deep/er\n"), "{c:#}");
    })
    .await;
    each(&world, "no-dir", &json!({ "workingDir": "nowhere", "script": "true" }), |c| {
        assert_eq!((reason(c).as_str(), &c["status"]["exitCode"]), ("StartFailed", &Value::Null), "{c:#}");
    })
    .await;
    each(&world, "stdin", &json!({ "stdin": { "value": "one\ntwo" }, "script": "cat; echo \"|$?\"" }), |c| {
        assert_eq!(stdout(c), "one\ntwo|0\n", "{c:#}");
    })
    .await;
    let crlf = json!({ "script": "printf '%s\\n' \"a\r\nb\" | od -An -c | tr -d ' \\n'" });
    each(&world, "crlf", &crlf, |c| assert_eq!(stdout(c), "a\\r\\nb\\n", "{c:#}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_come_from_where_they_are_said_to() {
    let world = world("env").await;
    let spec = json!({
        "env": [
            { "name": "PLAIN", "value": "it's \"a\nb\" $HOME" },
            { "name": "LEVEL", "value": "4" },
            { "name": "dir", "value": "theirs" },
            { "name": "KEY", "valueFrom": { "configMapKeyRef": { "name": "conf", "key": "MODE" } } },
            { "name": "GONE", "valueFrom": { "configMapKeyRef": { "name": "none", "key": "x", "optional": true } } },
        ],
        "envFrom": [
            { "configMapRef": { "name": "conf" } },
            { "configMapRef": { "name": "conf" }, "prefix": "C_" },
            { "secretRef": { "name": "none", "optional": true } },
        ],
        "script": "echo \"$PLAIN|$LEVEL|$dir|$KEY|${GONE-unset}|$MODE|$C_MODE\"",
    });
    each(&world, "env", &spec, |c| {
        assert_eq!(stdout(c), "it's \"a\nb\" $HOME|4|theirs|fast|unset|fast|fast\n", "{c:#}");
    })
    .await;
}

/// Case 51.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_reaches_the_command_and_nothing_else() {
    let world = world("secret").await;
    let spec = json!({
        "env": [{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "app", "key": "token" } } }],
        "envFrom": [{ "secretRef": { "name": "app" }, "prefix": "APP_" }],
        "stdin": { "secretKeyRef": { "name": "app", "key": "token" } },
        "script": "cat; echo; echo \"$TOKEN $APP_token\"; echo ${#TOKEN} >&2; echo \"last $TOKEN\"; \
                   find \"$HOME/.daytona-controller\" -name env -o -name stdin; echo $TOKEN >kept",
    });
    each(&world, "secret", &spec, |c| {
        assert_eq!(stdout(c), "***\n*** ***\nlast ***\n", "{c:#}");
        assert_eq!(c["status"]["stderr"]["tail"], format!("{}\n", SECRET.len()));
        assert_eq!(c["status"]["lastLine"], "last ***");
        assert_eq!(c["status"]["stdout"]["bytes"], 4 * SECRET.len() as u64 + 9);
    })
    .await;
    assert_eq!(world.file("kept").await.as_deref(), Some(format!("{SECRET}\n").as_str()), "it was the real one");
    let everything = ["get", "sblease,sbcmd,events,configmaps", "-o", "yaml"];
    assert!(!world.kubectl.get(&everything).await.unwrap().contains(SECRET), "in the Kubernetes API");
    assert!(!world.logged().contains(SECRET), "in the controller's log");
    // Nor in what Daytona lists of the session, nor in its log.
    let sandboxes = world.daytona.state().await.unwrap().sandboxes;
    for sandbox in sandboxes {
        let listed = std::process::Command::new("grep").args(["-rl", SECRET]).arg(&sandbox.dir).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        // What the script wrote itself stands where it wrote it: in its output and in its file.
        let elsewhere = listed.lines().filter(|f| !f.ends_with("/stdout") && !f.ends_with("/kept"));
        assert_eq!(elsewhere.count(), 0, "{listed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_waited_for_and_holds_up_nobody() {
    let world = world("missing").await;
    let token = |name: &str, key: &str| json!({ "secretKeyRef": { "name": name, "key": key } });
    let waits = json!({
        "env": [{ "name": "T", "valueFrom": token("later", "token") }],
        "script": "echo \"got $T\" >>order",
    });
    world.apply(&with_spec("waits", &waits)).await.unwrap();
    world.until_reason("sbcmd", "waits", "Succeeded", "SecretNotFound").await;
    world.command("passes", "echo passes >>order").await;
    assert_eq!(world.until_finished("passes").await["status"]["exitCode"], 0);
    let from = json!({ "scriptFrom": { "configMapKeyRef": { "name": "scripts", "key": "main.sh" } } });
    world.apply(&with_spec("script", &from)).await.unwrap();
    world.until_reason("sbcmd", "script", "Succeeded", "ConfigMapNotFound").await;
    world.kubectl.run(&["create", "secret", "generic", "later", "--from-literal=token=abcdefgh"]).await.unwrap();
    assert_eq!(world.until_finished("waits").await["status"]["exitCode"], 0);
    let long = format!("echo begin\n: {}\necho end", "x".repeat(200_000));
    let manifest = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "scripts" }, "data": { "main.sh": long } });
    world.kubectl.run_with_input(&["create", "-f", "-"], &manifest.to_string()).await.unwrap();
    assert_eq!(stdout(&world.until_finished("script").await), "begin\nend\n");
    assert_eq!(world.file("order").await.as_deref(), Some("passes\ngot abcdefgh\n"));

    let no_key = json!({ "env": [{ "name": "T", "valueFrom": token("app", "nothing") }], "script": "echo ran >ran" });
    world.apply(&with_spec("no-key", &no_key)).await.unwrap();
    let failed = world.until_finished("no-key").await;
    assert_eq!(reason(&failed), "StartFailed");
    assert!(condition(&failed, "Succeeded")["message"].as_str().unwrap().contains("has no key \"nothing\""));
    assert_eq!(failed["status"]["attempts"], Value::Null);
    assert_eq!(world.file("ran").await, None);
    // A value that no program can be started with.
    let big = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "big" }, "data": { "B": "x".repeat(140_000) } });
    world.kubectl.run_with_input(&["create", "-f", "-"], &big.to_string()).await.unwrap();
    let spec = json!({ "envFrom": [{ "configMapRef": { "name": "big" } }], "script": "true" });
    world.apply(&with_spec("big", &spec)).await.unwrap();
    let big = world.until_finished("big").await;
    assert!(condition(&big, "Succeeded")["message"].as_str().unwrap().contains("longer than 131071 bytes"), "{big:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_waits_for_a_secret_wakes_no_sandbox() {
    let world = world("asleep").await;
    world.until_ready("l").await;
    let id = world.get("sblease", "l").await["status"]["sandbox"]["id"].as_str().unwrap().to_owned();
    let stopped =
        ForcedState { state: "stopped".to_owned(), desired_state: None, error_reason: None, recoverable: None };
    world.daytona.force_state(&id, &stopped).await.unwrap();
    world.until_reason("sblease", "l", "Ready", "Asleep").await;
    let spec = json!({ "envFrom": [{ "secretRef": { "name": "later" } }], "script": "echo $TOKEN" });
    world.apply(&with_spec("waits", &spec)).await.unwrap();
    world.until_reason("sbcmd", "waits", "Succeeded", "SecretNotFound").await;
    // Looked at again, and again.
    for n in 0..3 {
        let at = format!("reconcile.fluxcd.io/requestedAt={n}");
        world.kubectl.run(&["annotate", "sblease", "l", "--overwrite", &at]).await.unwrap();
        let value = n.to_string();
        world.until("sblease", "l", "looked at", |o| o["status"]["lastHandledReconcileAt"] == *value).await;
    }
    assert_eq!(world.calls("POST /sandbox/{sandbox}/start").await, 0);
    world.kubectl.run(&["create", "secret", "generic", "later", "--from-literal=TOKEN=short"]).await.unwrap();
    assert_eq!(stdout(&world.until_finished("waits").await), "short\n");
}
