//! Daytona does not answer, or wants fewer calls: how often it is asked, and what goes on when it is back.

use dev::faults::Rule;
use serde_json::json;

use crate::world::{Options, World, condition, one_shot};

const LEASES: usize = 40;

/// Case 39: the calls of an outage do not grow with the number of objects.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_is_down_is_asked_by_one_call_for_all_and_all_go_on_when_it_is_back() {
    let mut world = World::start("outage").await;
    let names: Vec<String> = (0..LEASES).map(|n| format!("l{n}")).collect();
    let all: Vec<_> = names.iter().map(|name| one_shot(name, 1)).collect();
    world.apply(&all.join("\n---\n")).await.unwrap();
    for name in &names {
        world.until_ready(name).await;
    }
    world.kill_controller().await;
    for method in ["GET", "POST", "PUT", "DELETE"] {
        world.daytona.add_rule(Rule::on(method, ".*").answer(500, json!({ "message": "boom" }))).await.unwrap();
    }
    world.start_controller();
    world.eventually("the outage is seen", async || world.logged().contains("Daytona does not answer")).await;
    world.delete("sblease", "l0").await;
    for name in &names {
        let what = "told, with what is done about it";
        let told = |lease: &serde_json::Value| {
            let ready = condition(lease, "Ready");
            let text = ready["message"].as_str().unwrap_or_default().to_owned();
            ["APIUnreachable", "Deleting"].contains(&ready["reason"].as_str().unwrap_or_default())
                && (name == "l0" || text.contains("boom") && text.contains("every 10 seconds"))
        };
        world.until("sblease", name, what, told).await;
    }
    let before = world.daytona.calls().await.unwrap();
    let last = before.last().unwrap().seq;
    let probes = async || world.daytona.calls_since(last).await.unwrap();
    world.eventually("two are tried", async || probes().await.len() >= 2).await;
    let probes = probes().await;
    let routes: Vec<_> = probes.iter().map(|call| call.route.as_str()).collect();
    assert!(routes.len() <= 3 && routes.iter().all(|route| *route == "GET /api/sandbox"), "{routes:?}");
    let versions = world.kubectl.get(&["get", "sblease", "-o", "jsonpath={.items[*].metadata.resourceVersion}"]);
    let versions = versions.await.unwrap();
    world.eventually("another is tried", async || world.calls("GET /api/sandbox").await > probes.len()).await;
    let jsonpath = "jsonpath={.items[*].metadata.resourceVersion}";
    let after = world.kubectl.get(&["get", "sblease", "-o", jsonpath]).await.unwrap();
    assert_eq!(after, versions, "a try is no news");
    world.daytona.clear_rules().await.unwrap();
    world.until_gone("sblease", "l0").await;
    for name in &names[1..] {
        world.until_ready(name).await;
    }
}

/// Case 72, what is said of the pause and what goes first after it.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_pause_that_was_asked_for_what_ends_goes_first() {
    let options = Options { flags: vec!["--lease-poll=10m"], ..Options::default() };
    let mut world = World::start_with("paused-calls", options).await;
    world.apply(&[one_shot("ends", 1), one_shot("stays", 1)].join("\n---\n")).await.unwrap();
    world.until_ready("ends").await;
    world.until_ready("stays").await;
    let id = async |name| world.get("sblease", name).await["status"]["sandbox"]["id"].as_str().unwrap().to_owned();
    let (ends, stays) = (id("ends").await, id("stays").await);
    // A restart has both looked at, and both have to wait.
    world.kill_controller().await;
    let wait = json!({ "message": "ThrottlerException: Too Many Requests" });
    let rule = Rule::on("GET", "/api/sandbox/.*").answer(429, wait).header("Retry-After-authenticated", "3").times(2);
    let rule = world.daytona.add_rule(rule).await.unwrap();
    world.start_controller();
    world.eventually("one was refused", async || world.daytona.fired(rule).await.unwrap() > 0).await;
    world.delete("sblease", "ends").await;
    world.until_gone("sblease", "ends").await;
    let answered = async |route: &str, sandbox: &str| {
        let calls = world.daytona.calls().await.unwrap();
        let last = calls.iter().rfind(|call| call.status == Some(429)).unwrap().seq;
        let found = calls
            .into_iter()
            .find(|call| call.seq > last && call.route.starts_with(route) && call.sandbox.as_deref() == Some(sandbox));
        found.map(|call| call.seq)
    };
    world.eventually("the other is looked at", async || answered("GET", &stays).await.is_some()).await;
    assert!(answered("DELETE", &ends).await < answered("GET", &stays).await);
}
