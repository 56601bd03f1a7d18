//! What a short command costs: calls to Daytona and writes to Kubernetes.

use std::{collections::BTreeSet, fs::File};

use crate::world::{Options, World, command, one_shot};

#[tokio::test(flavor = "multi_thread")]
async fn a_short_command_costs_two_calls_and_four_writes() {
    // However slow the machine is, its end is waited for in one call.
    let options = Options { flags: vec!["--command-poll=20s"], ..Options::default() };
    let world = World::start_with("cost", options).await;
    world.lease("session").await;
    world.apply(&one_shot("one-shot", 1)).await.unwrap();
    let log = world.log.with_extension("versions");
    let columns = "jsonpath={.metadata.name} {.metadata.resourceVersion}{\"\\n\"}";
    let mut watch = world.kubectl.tied(&["get", "sandboxcommands", "--watch", "-o", columns]).unwrap();
    let mut watch = watch.stdout(File::create(&log).unwrap()).spawn().unwrap();
    for (lease, most_calls) in [("session", 2), ("one-shot", 1)] {
        world.until_ready(lease).await;
        let [warm_up, counted, after] = ["warm-up", "counted", "after"].map(|name| format!("{lease}-{name}"));
        let run = async |name: &str| {
            world.apply(&command(name, lease, "true")).await.unwrap();
            let done = "it is finished and released";
            world
                .until("sandboxcommand", name, done, |c| {
                    c["status"]["state"] == "Finished" && c["metadata"]["finalizers"].is_null()
                })
                .await
        };
        run(&warm_up).await;
        let before = world.daytona.calls().await.unwrap().last().map_or(0, |call| call.seq);
        run(&counted).await;
        let calls = world.daytona.calls_since(before).await.unwrap();
        let calls: Vec<_> = calls.iter().filter(|call| call.route.contains("/process/")).map(|c| &c.route).collect();
        assert_eq!(calls.len(), most_calls, "{calls:?}");
        // Had something been written of it later, it would have been seen before the next one's end.
        let last = run(&after).await["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let versions = |name: &str| -> BTreeSet<String> {
            let seen = std::fs::read_to_string(&log).unwrap_or_default();
            seen.lines()
                .filter_map(|line| line.split_once(' '))
                .filter(|of| of.0 == name)
                .map(|of| of.1.to_owned())
                .collect()
        };
        world.eventually("the watch has seen the last write", async || versions(&after).contains(&last)).await;
        // Its creation is its user's.
        assert_eq!(versions(&counted).len(), 1 + 4, "{:?}", std::fs::read_to_string(&log));
    }
    watch.kill().unwrap();
    watch.wait().unwrap();
}
