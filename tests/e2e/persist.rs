//! Working directory and variables that carry over.

use serde_json::json;

use crate::world::{World, one_shot, with_spec};

async fn persist(world: &World, name: &str, script: &str) -> String {
    let spec = json!({ "shellState": "Persist", "script": script });
    world.apply(&with_spec(name, &spec)).await.unwrap();
    world.until_finished(name).await["status"]["stdout"]["tail"].as_str().unwrap_or_default().to_owned()
}

/// Case 3.
#[tokio::test(flavor = "multi_thread")]
async fn directory_and_variables_carry_over_and_an_exit_ends_nothing() {
    let world = World::start("persist").await;
    world.kubectl.run(&["create", "secret", "generic", "app", "--from-literal=TOKEN=secret-value"]).await.unwrap();
    for launcher in ["session", "process"] {
        if launcher == "session" {
            world.lease("l").await;
        } else {
            world.delete("sblease", "l").await;
            world.until_gone("sblease", "l").await;
            world.apply(&one_shot("l", 4)).await.unwrap();
        }
        let name = |n: u32| format!("{launcher}-{n}");
        persist(&world, &name(1), "mkdir -p here; cd here; export A=\"it's\nB\" C=3; D=4; exit 7").await;
        assert!(
            persist(&world, &name(2), "echo \"$PWD|$A|$C|${D-unset}\"; unset C")
                .await
                .ends_with("/here|it's\nB|3|unset\n")
        );
        assert_eq!(persist(&world, &name(3), "echo \"${C-unset} ${PWD##*/}\"; kill -9 $$").await, "unset here\n");
        world.command(&name(4), "echo \"${A-unset} ${PWD##*/}\"; cd /; export A=isolated").await;
        let isolated = world.until_finished(&name(4)).await;
        assert!(isolated["status"]["stdout"]["tail"].as_str().unwrap().starts_with("unset "), "{isolated:#}");
        let secret = json!({
            "shellState": "Persist", "envFrom": [{ "secretRef": { "name": "app" } }],
            "script": "echo ${#TOKEN}; export E=5",
        });
        world.apply(&with_spec(&name(5), &secret)).await.unwrap();
        assert_eq!(world.until_finished(&name(5)).await["status"]["stdout"]["tail"], "12\n");
        assert_eq!(persist(&world, &name(6), "echo \"${TOKEN-unset} $E ${PWD##*/}\"").await, "unset 5 here\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn persist_commands_never_overlap() {
    let world = World::start("overlap").await;
    world.apply(&one_shot("l", 4)).await.unwrap();
    for n in 0..4 {
        let script = format!("mkdir lock && sleep 0.1 && rmdir lock && export SEEN=\"${{SEEN}}{n}\"; echo $SEEN");
        world.apply(&with_spec(&format!("c{n}"), &json!({ "shellState": "Persist", "script": script }))).await.unwrap();
    }
    for (n, seen) in ["0\n", "01\n", "012\n", "0123\n"].iter().enumerate() {
        assert_eq!(world.until_finished(&format!("c{n}")).await["status"]["stdout"]["tail"], *seen);
    }
}
