//! The Kubernetes API goes away and comes back while a command runs.

use serde_json::json;

use crate::world::{self, Options, World, lease};

/// Has `script` of the command `name` run while something is away, and come to its end meanwhile.
async fn begin(world: &World, name: &str) -> std::path::PathBuf {
    let script = format!(
        "echo {name} >>runs; while [ ! -e go-{name} ]; do sleep 0.05; done; echo bye; echo x >over-{name}; exit 5"
    );
    world.command(name, &script).await;
    world.eventually("it runs", async || world.file("runs").await.is_some_and(|runs| runs.contains(name))).await;
    world.path("runs").await.unwrap().with_file_name(format!("go-{name}"))
}

async fn end(world: &World, go: &std::path::Path) {
    std::fs::write(go, "").unwrap();
    let over = go.file_name().unwrap().to_string_lossy().replace("go-", "over-");
    world.eventually("the script is over", async || world.file(&over).await.is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_apiserver_and_store_loses_nothing_and_runs_nothing_twice() {
    let mut plane = world::plane().await;
    let options = Options { flags: vec!["--watch-timeout=5s"], ..Options::default() };
    let mut world = World::on(&plane, "restarts", options).await;
    world.start_controller();
    world.apply(&lease("l")).await.unwrap();

    let go = begin(&world, "one").await;
    plane.without_apiserver(end(&world, &go)).await.unwrap();
    let done = world.until_finished("one").await;
    assert_eq!((&done["status"]["exitCode"], &done["status"]["stdout"]["tail"]), (&json!(5), &json!("bye\n")));

    let go = begin(&world, "two").await;
    plane.without_etcd(end(&world, &go)).await.unwrap();
    let done = world.until_finished("two").await;
    assert_eq!((&done["status"]["exitCode"], &done["status"]["stdout"]["tail"]), (&json!(5), &json!("bye\n")));

    world.command("three", "echo three >>runs").await;
    world.until_finished("three").await;
    assert_eq!(world.file("runs").await.as_deref(), Some("one\ntwo\nthree\n"));
    assert_eq!(world.get("sblease", "l").await["status"]["session"]["generation"], 1);
    assert_eq!(world.calls("POST /api/sandbox").await, 1);
    world.delete("sblease", "l").await;
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
    let noise: Vec<_> = world.logged().lines().filter(|line| line.contains(" ERROR ")).map(str::to_owned).collect();
    assert!(noise.is_empty(), "{noise:#?}");
}
