//! What is kept of outputs that are longer than their tails.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::world::{Options, World, condition, with_spec};

fn verdict(command: &Value) -> (String, String) {
    let stored = condition(command, "OutputStored");
    (stored["status"].as_str().unwrap().to_owned(), stored["reason"].as_str().unwrap().to_owned())
}

fn said(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

/// The stored bytes of a stream.
async fn log(world: &World, command: &Value, stream: &str) -> Vec<u8> {
    let at = &command["status"][stream]["logRef"];
    let object = world.get(at["kind"].as_str().unwrap(), at["name"].as_str().unwrap()).await;
    assert_eq!(object["immutable"], true);
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], command["metadata"]["uid"]);
    let key = at["key"].as_str().unwrap();
    if at["kind"] == "ConfigMap"
        && let Some(text) = object["data"][key].as_str()
    {
        return text.as_bytes().to_vec();
    }
    let encoded = object["binaryData"][key].as_str().or_else(|| object["data"][key].as_str()).unwrap();
    STANDARD.decode(encoded).unwrap()
}

/// Case 75.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_longer_than_its_tail_is_stored_beside_it() {
    let world = World::start("logs").await;
    world.lease("l").await;
    world.command("short", "echo short").await;
    let short = world.until_finished("short").await;
    assert_eq!(verdict(&short), said("True", "InStatus"));
    assert_eq!(short["status"]["stdout"]["logRef"], Value::Null);

    world.command("whole", "seq 1 5000; seq 1 3 >&2").await;
    let whole = world.until_finished("whole").await;
    assert_eq!(verdict(&whole), said("True", "Stored"));
    let expected = (1..=5000).map(|n| n.to_string()).collect::<Vec<_>>().join("\n") + "\n";
    assert_eq!(log(&world, &whole, "stdout").await, expected.as_bytes());
    assert_eq!(whole["status"]["stderr"]["logRef"], Value::Null);
    let tail = whole["status"]["stdout"]["tail"].as_str().unwrap();
    assert!(expected.ends_with(tail) && tail.len() == 4096);

    let binary =
        json!({ "script": "printf '\\377\\000\\001'; printf '\\033[1mx\\033[0m' >&2", "logs": { "store": "Secret" } });
    world.apply(&with_spec("binary", &binary)).await.unwrap();
    let binary = world.until_finished("binary").await;
    assert_eq!(binary["status"]["stdout"]["logRef"]["kind"], "Secret");
    assert_eq!(log(&world, &binary, "stdout").await, b"\xff\0\x01");
    assert_eq!(log(&world, &binary, "stderr").await, b"\x1b[1mx\x1b[0m");

    let large = json!({ "script": "echo first; yes 0123456789 | head -c 50000000; echo; echo last", "logs": { "maxBytes": 1000, "tailBytes": 16 } });
    world.apply(&with_spec("large", &large)).await.unwrap();
    let large = world.until_finished("large").await;
    let stored = log(&world, &large, "stdout").await;
    let text = String::from_utf8(stored).unwrap();
    let told = format!("\n[... {} bytes are left out here ...]\n", 50_000_012 - 1000);
    assert_eq!(text.len(), 1000 + told.len());
    assert!(text.starts_with("first\n0123456789\n") && text.ends_with("\nlast\n") && text.contains(&told), "{text}");
    assert_eq!(large["status"]["stdout"]["bytes"], 50_000_012);
    assert_eq!(large["status"]["stdout"]["tail"].as_str().unwrap().len(), 16);

    let none = json!({ "script": "seq 1 5000", "logs": { "store": "None", "tailBytes": 0 } });
    world.apply(&with_spec("none", &none)).await.unwrap();
    let none = world.until_finished("none").await;
    assert_eq!((verdict(&none), &none["status"]["stdout"]["logRef"]), (said("True", "NotAsked"), &Value::Null));
    assert_eq!((&none["status"]["stdout"]["tail"], &none["status"]["lastLine"]), (&Value::Null, &json!("5000")));

    // A log goes with its command.
    let name = whole["status"]["stdout"]["logRef"]["name"].as_str().unwrap().to_owned();
    world.kubectl.run(&["delete", "sbcmd", "whole"]).await.unwrap();
    world.until_gone("configmap", &name).await;
    // And stays when the lease goes.
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert_eq!(log(&world, &large, "stdout").await, text.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_log_is_stored_with_two_calls() {
    let world = World::start("longest").await;
    world.lease("l").await;
    world.command("first", ":").await;
    world.until_finished("first").await;
    let before = world.daytona.calls().await.unwrap().len();
    let spec =
        json!({ "script": "seq 1 200000; seq 1 200000 >&2", "logs": { "maxBytes": 524_288, "tailBytes": 16384 } });
    world.apply(&with_spec("c", &spec)).await.unwrap();
    let done = world.until_finished("c").await;
    assert_eq!(verdict(&done), said("True", "Stored"), "{done:#}");
    for stream in ["stdout", "stderr"] {
        let stored = log(&world, &done, stream).await;
        assert!((524_288..524_400).contains(&stored.len()), "{}", stored.len());
        assert!(stored.starts_with(b"1\n2\n") && stored.ends_with(b"\n200000\n"));
    }
    let calls = world.daytona.calls().await.unwrap();
    assert_eq!(calls[before..].iter().filter(|c| c.route.contains("/toolbox")).count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_holds_no_more_logs_than_it_may() {
    let options = Options { flags: vec!["--log-budget-per-namespace=12Ki"], ..Options::default() };
    let mut world = World::start_with("budget", options).await;
    world.lease("l").await;
    world.command("one", "seq 1 2000").await;
    assert_eq!(verdict(&world.until_finished("one").await), said("True", "Stored"));
    world.command("two", "seq 1 2000").await;
    let two = world.until_finished("two").await;
    assert_eq!(verdict(&two), said("False", "LogBudgetExceeded"));
    assert_eq!(condition(&two, "Succeeded")["status"], "True", "the outcome is another matter");
    assert!(two["status"]["stdout"]["tail"].as_str().unwrap().ends_with("\n2000\n"));
    // A controller that has just started counts the same, and room that is made is used.
    world.kill_controller().await;
    world.start_controller();
    world.command("three", "seq 1 2000").await;
    assert_eq!(verdict(&world.until_finished("three").await), said("False", "LogBudgetExceeded"));
    let name = world.get("sbcmd", "one").await["status"]["stdout"]["logRef"]["name"].as_str().unwrap().to_owned();
    world.kubectl.run(&["delete", "sbcmd", "one"]).await.unwrap();
    world.until_gone("configmap", &name).await;
    world.command("four", "seq 1 2000").await;
    assert_eq!(verdict(&world.until_finished("four").await), said("True", "Stored"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_the_api_server_refuses_does_not_keep_the_outcome() {
    let world = World::start("refused").await;
    world.lease("l").await;
    world.until_ready("l").await;
    // The role's first rule is about Secrets and ConfigMaps.
    let role = world.kubectl.get(&["get", "role", "-o", "name"]).await.unwrap();
    let patch = r#"[{"op":"replace","path":"/rules/0/verbs","value":["get","list","watch"]}]"#;
    world.kubectl.run(&["patch", &role, "--type=json", "-p", patch]).await.unwrap();
    let user = world.kubectl.get(&["get", "rolebinding", "-o", "jsonpath={.items[0].subjects[0].name}"]).await.unwrap();
    let user = format!("--as=system:serviceaccount:{}-controller:{user}", world.namespace);
    world
        .eventually("the right is gone", async || {
            world.kubectl.run(&["auth", "can-i", "create", "configmaps", &user]).await.is_err()
        })
        .await;
    world.command("c", "seq 1 2000; exit 4").await;
    let done = world.until_finished("c").await;
    assert_eq!((verdict(&done), &done["status"]["exitCode"]), (said("False", "StoreRefused"), &json!(4)));
    assert!(condition(&done, "OutputStored")["message"].as_str().unwrap().contains("forbidden"), "{done:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_stored_even_after_a_restart() {
    const SECRET: &str = "correct-horse-battery";
    let mut world = World::start("redact").await;
    let secret = format!("--from-literal=token={SECRET}");
    world.kubectl.run(&["create", "secret", "generic", "app", &secret]).await.unwrap();
    world.lease("l").await;
    let script = "seq 1 5000; echo \"$token\"; echo x >>runs; while [ ! -e go ]; do sleep 0.05; done; echo \"$token\"";
    let spec = json!({ "envFrom": [{ "secretRef": { "name": "app" } }], "script": script });
    for (name, change) in [("same", false), ("changed", true)] {
        world.apply(&with_spec(name, &spec)).await.unwrap();
        world.eventually("it runs", async || world.file("runs").await.is_some()).await;
        world.kill_controller().await;
        if change {
            let other = json!({ "stringData": { "token": "another-value" } }).to_string();
            world.kubectl.run(&["patch", "secret", "app", "--type=merge", "-p", &other]).await.unwrap();
        }
        world.start_controller();
        let runs = world.path("runs").await.unwrap();
        std::fs::write(runs.with_file_name("go"), "").unwrap();
        let done = world.until_finished(name).await;
        assert_eq!(done["status"]["exitCode"], 0, "{done:#}");
        if change {
            assert_eq!(verdict(&done), said("False", "SecretChanged"));
            assert_eq!(done["status"]["stdout"]["tail"], Value::Null);
        } else {
            assert_eq!(verdict(&done), said("True", "Stored"), "{done:#}");
            assert!(done["status"]["stdout"]["tail"].as_str().unwrap().ends_with("\n5000\n***\n***\n"));
            assert!(log(&world, &done, "stdout").await.ends_with(b"\n5000\n***\n***\n"));
        }
        let all = world.kubectl.get(&["get", "sbcmd,configmaps", "-o", "yaml"]).await.unwrap();
        assert!(!all.contains(SECRET) && !world.logged().contains(SECRET));
        std::fs::remove_file(runs.with_file_name("go")).unwrap();
        std::fs::remove_file(runs).unwrap();
    }
}

/// What it read from a `ConfigMap` is gone when the controller is back; what must not be shown is known all the same.
#[tokio::test(flavor = "multi_thread")]
async fn every_secret_is_taken_out_after_a_restart_whatever_else_is_gone() {
    let mut world = World::start("gone").await;
    let secret =
        ["create", "secret", "generic", "app", "--from-literal=a=first-secret", "--from-literal=b=second-secret"];
    world.kubectl.run(&secret).await.unwrap();
    world.kubectl.run(&["create", "configmap", "m", "--from-literal=k=v"]).await.unwrap();
    world.lease("l").await;
    let key = |key: &str| json!({ "secretKeyRef": { "name": "app", "key": key } });
    let spec = json!({
        "env": [
            { "name": "A", "valueFrom": key("a") },
            { "name": "M", "valueFrom": { "configMapKeyRef": { "name": "m", "key": "k" } } },
            { "name": "B", "valueFrom": key("b") },
        ],
        "stdin": key("b"),
        "script": "touch begun; while [ ! -e go ]; do sleep 0.05; done; echo \"$A $M $B\"; cat",
    });
    world.apply(&with_spec("c", &spec)).await.unwrap();
    world.eventually("it runs", async || world.path("begun").await.is_some()).await;
    world.kill_controller().await;
    world.kubectl.run(&["delete", "configmap", "m"]).await.unwrap();
    world.start_controller();
    std::fs::write(world.path("begun").await.unwrap().with_file_name("go"), "").unwrap();
    let done = world.until_finished("c").await;
    assert_eq!(done["status"]["stdout"]["tail"], "*** v ***\n***", "{done:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_somebody_else_is_no_log() {
    let world = World::start("taken").await;
    world.command("c", "seq 1 5000").await;
    let waits = world.until_reason("sbcmd", "c", "Succeeded", "LeaseNotFound").await;
    let name = format!("c-{}-stdout", waits["metadata"]["uid"].as_str().unwrap());
    world.kubectl.run(&["create", "configmap", &name, "--from-literal=stdout=forged"]).await.unwrap();
    world.lease("l").await;
    let done = world.until_finished("c").await;
    assert_eq!((verdict(&done), &done["status"]["stdout"]["logRef"]), (said("False", "StoreRefused"), &Value::Null));
    assert_eq!(world.get("configmap", &name).await["data"]["stdout"], "forged", "it was changed");
}
