//! Of several controllers one acts: by whom, when another takes over, and what one that no longer leads does not do.

use std::process::Command;

use dev::supervise::{self, Supervised};
use serde_json::Value;

use crate::world::{LIMIT, Options, World};

const QUICK: [&str; 3] = ["--leader-elect", "--leader-elect-lease-duration=3s", "--lease-poll=10m"];

/// The holder of the Lease; empty for nobody.
async fn holder(world: &World) -> String {
    let record = world.kubectl.get(&["get", "lease", "--namespace", &world.home, "-o", "json"]).await.unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    record["items"][0]["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// Two controllers, of which the first leads; their logs are apart.
async fn pair(name: &str, flags: &[&'static str]) -> (World, Supervised, Supervised) {
    let options = Options { flags: flags.to_vec(), ..Options::default() };
    let mut world = World::without_controller(name, options).await;
    let first = world.spawn_controller();
    world.eventually("the first leads", async || !holder(&world).await.is_empty()).await;
    world.log = world.log.with_file_name("second.log");
    let second = world.spawn_controller();
    (world, first, second)
}

async fn another_leads(world: &World, before: &str) {
    let other = async || ![before, ""].contains(&holder(world).await.as_str());
    world.eventually("another leads", other).await;
}

fn signal(process: &Supervised, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.pid().to_string()]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_takes_over_from_a_leader_that_died_and_takes_its_commands_up() {
    let (world, mut first, _second) = pair("leader-dies", &QUICK).await;
    let leader = holder(&world).await;
    world.lease("l").await;
    world.command("c", "echo x >>runs; while [ ! -e go ]; do sleep 0.05; done; exit 5").await;
    world.eventually("it runs", async || world.file("runs").await.as_deref() == Some("x\n")).await;
    assert!(!world.logged().contains("decided"), "it stands by");
    first.kill().await.unwrap();
    another_leads(&world, &leader).await;
    std::fs::write(world.path("runs").await.unwrap().with_file_name("go"), "").unwrap();
    let done = world.until_finished("c").await;
    assert_eq!(done["status"]["exitCode"], 5, "{done:#}");
    assert_eq!(world.file("runs").await.as_deref(), Some("x\n"), "it ran again");
    assert_eq!(world.get("sblease", "l").await["status"]["session"]["generation"], 1);
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
}

/// The time for which a silent leader would be waited for is longer than this test waits for anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_told_to_end_is_followed_at_once() {
    let flags = ["--leader-elect", "--leader-elect-lease-duration=10m"];
    let (world, mut first, mut second) = pair("leader-leaves", &flags).await;
    let leader = holder(&world).await;
    assert!(first.terminate().await.unwrap().success());
    another_leads(&world, &leader).await;
    world.lease("l").await;
    world.until_ready("l").await;
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert!(second.terminate().await.unwrap().success());
    assert_eq!(holder(&world).await, "", "the last one leaves it free");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_frozen_makes_no_call_when_it_wakes_up() {
    let (world, mut first, _second) = pair("leader-frozen", &QUICK).await;
    let leader = holder(&world).await;
    world.lease("l").await;
    world.until_ready("l").await;
    signal(&first, "-STOP");
    another_leads(&world, &leader).await;
    world.command("two", "echo two >>runs").await;
    // The last write and the last look that the other has reason for.
    let over = |o: &serde_json::Value| o["status"]["state"] == "Finished" && o["metadata"]["finalizers"].is_null();
    let done = world.until("sbcmd", "two", "finished and released", over).await;
    world.until("sblease", "l", "counted", |lease| lease["status"]["commands"]["succeeded"] == 1).await;
    let calls = world.daytona.calls().await.unwrap().len();
    signal(&first, "-CONT");
    assert_eq!(first.wait().await.unwrap().code(), Some(1));
    assert_eq!(world.daytona.calls().await.unwrap().len(), calls, "it called Daytona");
    assert_eq!(world.file("runs").await.as_deref(), Some("two\n"));
    let after = world.get("sbcmd", "two").await;
    assert_eq!(after["metadata"]["resourceVersion"], done["metadata"]["resourceVersion"], "{after:#}");
    let log = supervise::log_tail(&world.log.with_file_name("controller.log"), 3);
    assert!(log.contains("so that only one acts"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_cannot_renew_or_is_replaced_ends() {
    let (world, mut first, mut second) = pair("leader-loses", &QUICK).await;
    let lease = format!("{}-daytona-controller", world.namespace);
    let take = r#"{"spec":{"holderIdentity":"somebody"}}"#;
    let leader = holder(&world).await;
    world.kubectl.run(&["patch", "lease", &lease, "--namespace", &world.home, "--patch", take]).await.unwrap();
    assert_eq!(first.wait().await.unwrap().code(), Some(1));
    world
        .eventually("the second leads", async || ![&leader, "somebody"].contains(&holder(&world).await.as_str()))
        .await;
    let binding = format!("{lease}:own-namespace");
    world.kubectl.run(&["delete", "rolebinding", &binding, "--namespace", &world.home]).await.unwrap();
    let ended = tokio::time::timeout(LIMIT, second.wait()).await.expect("it goes on").unwrap();
    assert_eq!(ended.code(), Some(1));
    let log = supervise::log_tail(&world.log, 3);
    assert!(log.contains("could not be renewed in time"), "{log}");
}
