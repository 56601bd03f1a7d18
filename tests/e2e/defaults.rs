//! What a lease says for all of its commands: environment, directory, time-out, logs.

use serde_json::{Value, json};

use crate::world::{World, condition, one_shot, with_spec};

const SECRET: &str = "correct-horse-battery";

/// A lease `l` with these fields besides.
async fn lease(world: &World, sessions: bool, fields: &Value) {
    let mut manifest: Value = serde_json::from_str(&one_shot("l", 1)).unwrap();
    manifest["spec"]["useSessions"] = sessions.into();
    manifest["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    world.apply(&manifest.to_string()).await.unwrap();
}

async fn run(world: &World, name: &str, spec: &Value) -> Value {
    world.apply(&with_spec(name, spec)).await.unwrap();
    world.until_finished(name).await
}

async fn secret(world: &World) {
    let token = format!("--from-literal=TOKEN={SECRET}");
    world.kubectl.run(&["create", "secret", "generic", "app", &token, "--from-literal=MODE=sec"]).await.unwrap();
}

/// Fields: env, envFrom, workingDir
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_surrounds_its_commands_and_they_have_the_last_word() {
    let world = World::start("defaults").await;
    secret(&world).await;
    world.kubectl.run(&["create", "configmap", "conf", "--from-literal=MODE=conf"]).await.unwrap();
    for sessions in [true, false] {
        let fields = json!({
            "env": [{ "name": "A", "value": "lease" }, { "name": "B", "value": "lease" }],
            "envFrom": [{ "secretRef": { "name": "app" } }],
            "workingDir": "there",
        });
        lease(&world, sessions, &fields).await;
        let name = |what: &str| format!("{what}-{sessions}");
        let shows = "echo \"$A $B $MODE ${PWD##*/} $TOKEN\"";
        let made = run(&world, &name("make"), &json!({ "script": "mkdir -p there", "workingDir": "." })).await;
        assert_eq!(made["status"]["exitCode"], 0, "{made:#}");
        let plain = run(&world, &name("plain"), &json!({ "script": shows })).await;
        assert_eq!(plain["status"]["stdout"]["tail"], "lease lease sec there ***\n", "{plain:#}");
        let own = json!({
            "script": shows, "env": [{ "name": "B", "value": "own" }],
            "envFrom": [{ "configMapRef": { "name": "conf" } }, { "configMapRef": { "name": "conf" }, "prefix": "A_" }],
        });
        let own = run(&world, &name("own"), &own).await;
        assert_eq!(own["status"]["stdout"]["tail"], "lease own conf there ***\n", "{own:#}");
        let quiet = "echo \"$GIT_TERMINAL_PROMPT $DEBIAN_FRONTEND $PIP_NO_INPUT\"";
        let quiet = run(&world, &name("quiet"), &json!({ "script": quiet })).await;
        assert_eq!(quiet["status"]["stdout"]["tail"], "0 noninteractive 1\n");
        let loud =
            json!({ "script": "echo $GIT_TERMINAL_PROMPT", "env": [{ "name": "GIT_TERMINAL_PROMPT", "value": "1" }] });
        assert_eq!(run(&world, &name("loud"), &loud).await["status"]["stdout"]["tail"], "1\n");
        world.delete("sblease", "l").await;
        world.until_gone("sblease", "l").await;
    }
    let everything = world.kubectl.get(&["get", "sblease,sbcmd,events,configmaps", "-o", "yaml"]).await.unwrap();
    assert!(!everything.contains(SECRET) && !world.logged().contains(SECRET));
}

/// Fields: envFrom
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_the_lease_is_waited_for_and_hidden_after_a_restart_too() {
    let mut world = World::start("defaults-secret").await;
    lease(&world, false, &json!({ "envFrom": [{ "secretRef": { "name": "app" } }] })).await;
    world.command("c", "echo >begun; until test -e go; do sleep 0.1; done; echo $TOKEN").await;
    world.until_reason("sbcmd", "c", "Succeeded", "SecretNotFound").await;
    world.until_ready("l").await;
    assert_eq!(world.calls("POST /api/sandbox").await, 1, "the lease's own");
    secret(&world).await;
    world.eventually("it runs", async || world.path("begun").await.is_some()).await;
    world.kill_controller().await;
    std::fs::write(world.path("begun").await.unwrap().with_file_name("go"), "").unwrap();
    world.start_controller();
    assert_eq!(world.until_finished("c").await["status"]["stdout"]["tail"], "***\n");
}

/// Fields: commandDefaults.timeoutSeconds, commandDefaults.logs
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_says_nothing_gets_its_leases_time_out_and_logs() {
    let world = World::start("defaults-commands").await;
    let defaults = json!({ "timeoutSeconds": 1, "logs": { "store": "None", "tailBytes": 3 } });
    lease(&world, true, &json!({ "commandDefaults": defaults })).await;
    let slow = run(&world, "slow", &json!({ "script": "sleep 600", "terminationGracePeriodSeconds": 1 })).await;
    assert_eq!(condition(&slow, "Succeeded")["reason"], "TimedOut", "{slow:#}");
    assert_eq!(
        (&slow["spec"]["timeoutSeconds"], &slow["spec"]["logs"]),
        (&Value::Null, &Value::Null),
        "nothing is written"
    );
    let longer = json!({ "script": "sleep 3; echo 123456", "timeoutSeconds": 60, "logs": { "tailBytes": 5 } });
    let longer = run(&world, "longer", &longer).await;
    assert_eq!((&longer["status"]["exitCode"], &longer["status"]["stdout"]["tail"]), (&json!(0), &json!("3456\n")));
    assert_eq!(condition(&longer, "OutputStored")["reason"], "NotAsked");

    // What has started keeps what it started with.
    lease(&world, true, &json!({ "commandDefaults": { "timeoutSeconds": 600 } })).await;
    world.command("runs", "echo >begun; sleep 3; echo in time").await;
    world.eventually("it runs", async || world.path("begun").await.is_some()).await;
    lease(&world, true, &json!({ "commandDefaults": { "timeoutSeconds": 1 } })).await;
    let runs = world.until_finished("runs").await;
    assert_eq!(runs["status"]["stdout"]["tail"], "in time\n", "{runs:#}");
    assert_eq!(runs["status"]["commandDefaults"]["timeoutSeconds"], 600);
}

/// The lease names another key of the same Secret, and the controller that knew the first value is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_secret_stays_hidden_although_the_lease_names_another_key_now() {
    let mut world = World::start("defaults-other-key").await;
    let values = [format!("--from-literal=old={SECRET}"), "--from-literal=new=another-value".to_owned()];
    world.kubectl.run(&["create", "secret", "generic", "app", &values[0], &values[1]]).await.unwrap();
    let from = |key: &str| json!({ "env": [{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "app", "key": key } } }] });
    lease(&world, true, &from("old")).await;
    world.command("c", "echo >begun; until test -e go; do sleep 0.1; done; echo $TOKEN").await;
    world.eventually("it runs", async || world.path("begun").await.is_some()).await;
    lease(&world, true, &from("new")).await;
    world.kill_controller().await;
    std::fs::write(world.path("begun").await.unwrap().with_file_name("go"), "").unwrap();
    world.start_controller();
    let ended = world.until_finished("c").await;
    assert_eq!(condition(&ended, "OutputStored")["reason"], "SecretChanged", "{ended:#}");
    let everything = world.kubectl.get(&["get", "sblease,sbcmd,events,configmaps", "-o", "yaml"]).await.unwrap();
    assert!(!everything.contains(SECRET) && !world.logged().contains(SECRET));
}
