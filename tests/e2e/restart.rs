//! The controller dies at the worst moments. Each script runs exactly once, and nothing is left behind.

use dev::faults::Rule;
use serde_json::{Value, json};

use crate::world::{Options, World, command, one_shot};

/// Where the controller is killed: at a call that is held back before or after it took effect.
const MOMENTS: [(&str, &str, &str); 4] = [
    ("create", "POST", "/api/sandbox"),
    ("session", "POST", ".*/process/session"),
    ("exec", "POST", ".*/exec"),
    ("wait", "POST", ".*/process/execute"),
];

/// Case 27.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_call_it_does_nothing_twice() {
    let runs =
        MOMENTS.into_iter().flat_map(|m| [(m, false), (m, true)]).map(|((name, method, path), after)| async move {
            let mut world = World::without_controller(&format!("kill-{name}"), Options::default()).await;
            let rule = Rule::on(method, path).times(1).hang();
            let rule = if after { rule.after() } else { rule };
            let rule = world.daytona.add_rule(rule).await.unwrap();
            world.start_controller();
            world.lease("l").await;
            for n in ["one", "two", "three"] {
                world.command(n, &format!("echo {n} >>runs; exit 3")).await;
            }
            world.eventually("the moment", async || world.daytona.fired(rule).await.unwrap() > 0).await;
            world.kill_controller().await;
            world.start_controller();
            for n in ["one", "two", "three"] {
                let done = world.until_finished(n).await;
                assert_eq!(done["status"]["exitCode"], 3, "{name}, after: {after}: {done:#}");
            }
            assert_eq!(world.file("runs").await.as_deref(), Some("one\ntwo\nthree\n"), "{name}, after: {after}");
            assert_eq!(world.daytona.state().await.unwrap().sandboxes.len(), 1, "{name}, after: {after}");
            world.delete("sblease", "l").await;
            world.until_gone("sblease", "l").await;
            assert!(world.daytona.state().await.unwrap().sandboxes.is_empty(), "{name}, after: {after}");
        });
    for run in runs {
        run.await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_a_command_runs_it_takes_the_command_up_again() {
    let mut world = World::start("resume").await;
    world.lease("l").await;
    world.command("c", "echo x >>runs; while [ ! -e go ]; do sleep 0.05; done; echo went; exit 5").await;
    world.eventually("it runs", async || world.file("runs").await.as_deref() == Some("x\n")).await;
    world.kill_controller().await;
    world.start_controller();
    std::fs::write(world.path("runs").await.unwrap().with_file_name("go"), "").unwrap();
    let done = world.until_finished("c").await;
    assert_eq!(done["status"]["exitCode"], 5, "{done:#}");
    assert_eq!(done["status"]["stdout"]["tail"], "went\n");
    assert_eq!(world.file("runs").await.as_deref(), Some("x\n"), "it ran again");
    assert_eq!(world.get("sblease", "l").await["status"]["session"]["generation"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_a_lease_goes_it_lets_go_of_all() {
    let mut world = World::start("going").await;
    world.lease("l").await;
    world.command("runs", "sleep 600").await;
    world.until("sbcmd", "runs", "running", |o| o["status"]["state"] == "Running").await;
    let rule = world.daytona.add_rule(Rule::on("DELETE", ".*/process/session/.*").times(1).hang()).await.unwrap();
    world.delete("sblease", "l").await;
    world.eventually("the moment", async || world.daytona.fired(rule).await.unwrap() > 0).await;
    world.kill_controller().await;
    world.start_controller();
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
    assert_eq!(world.until_finished("runs").await["metadata"]["finalizers"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_while_the_controller_is_away_all_is_let_go_when_it_is_back() {
    let mut world = World::start("away").await;
    world.lease("l").await;
    world.command("runs", "sleep 600").await;
    world.until("sbcmd", "runs", "running", |o| o["status"]["state"] == "Running").await;
    world.kill_controller().await;
    world.delete("sbcmd", "runs").await;
    world.delete("sblease", "l").await;
    world.start_controller();
    world.until_gone("sbcmd", "runs").await;
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
}

/// Somebody wipes the status while the controller is away: the sandbox is found by its name, and released.
#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_status_leaves_nothing_behind() {
    let mut world = World::start("status").await;
    world.lease("l").await;
    world.until_ready("l").await;
    world.kill_controller().await;
    let wipe = r#"[{"op":"remove","path":"/status"}]"#;
    world.kubectl.run(&["patch", "sblease", "l", "--subresource=status", "--type=json", "-p", wipe]).await.unwrap();
    world.delete("sblease", "l").await;
    world.start_controller();
    world.until_gone("sblease", "l").await;
    assert!(world.daytona.state().await.unwrap().sandboxes.is_empty());
}

/// What finished commands left in the sandbox goes, also when the controller that knew of it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_left_before_a_restart_is_cleaned_up_and_what_runs_is_not() {
    let mut world = World::start("sweep").await;
    for (lease, manifest) in [("l", crate::world::lease("l")), ("o", one_shot("o", 2))] {
        world.apply(&manifest).await.unwrap();
        let apply = async |name: &str, script: &str| world.apply(&command(name, lease, script)).await.unwrap();
        let (done, runs) = (format!("done-{lease}"), format!("runs-{lease}"));
        apply(&done, "seq 1 1000").await;
        let done = world.until_finished(&done).await;
        apply(&runs, &format!("echo begun; touch begun-{lease}; while [ ! -e go ]; do sleep 0.05; done; exit 6")).await;
        world.eventually("it runs", async || world.path(&format!("begun-{lease}")).await.is_some()).await;
        let files = |uid: &Value| format!("{}-1", uid.as_str().unwrap());
        let attempts = world.own_path("attempt").await.unwrap();
        world.kill_controller().await;
        // As after a crash between the last write and the cleaning up.
        let left = attempts.join(files(&done["metadata"]["uid"]));
        std::fs::create_dir_all(&left).unwrap();
        std::fs::write(left.join("stdout"), "left").unwrap();
        world.start_controller();
        world.eventually("it is gone", async || !left.exists()).await;
        let begun = world.path(&format!("begun-{lease}")).await.unwrap();
        std::fs::write(begun.with_file_name("go"), "").unwrap();
        let runs = world.until_finished(&runs).await;
        assert_eq!((&runs["status"]["exitCode"], &runs["status"]["stdout"]["tail"]), (&json!(6), &json!("begun\n")));
        world.delete("sblease", lease).await;
        world.until_gone("sblease", lease).await;
    }
}
