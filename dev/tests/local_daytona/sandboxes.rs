//! The control plane: states, names, lists, intervals.

use std::time::Duration;

use dev::local_daytona::Settings;
use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Server, ask, state, until, until_state};

#[tokio::test]
async fn a_sandbox_is_started_at_once_and_found_by_id_and_name() {
    let server = Server::bash().await;
    let body = json!({ "name": "n", "labels": { "a": "b" }, "env": { "E": "1" }, "autoStopInterval": 7 });
    let sandbox = server.create(body).await;
    for key in [sandbox.id.as_str(), "n"] {
        let shown = server.get(&format!("/sandbox/{key}")).await.json();
        assert_eq!((&shown["state"], &shown["desiredState"]), (&json!("started"), &json!("started")));
        assert_eq!((&shown["labels"]["a"], &shown["env"]["E"]), (&json!("b"), &json!("1")));
        assert_eq!((&shown["autoStopInterval"], &shown["autoArchiveInterval"]), (&json!(7), &json!(10_080)));
        assert_eq!((&shown["autoDeleteInterval"], &shown["kvm"]), (&json!(-1), &json!(false)));
        assert!(shown["cpu"].is_u64() && shown["organizationId"].is_string());
    }
    let url = server.get(&format!("/sandbox/{}/toolbox-proxy-url", sandbox.id)).await.json();
    assert_eq!(format!("{}/{}", url["url"].as_str().unwrap(), sandbox.id), sandbox.toolbox);
    let by_name = sandbox.toolbox.replace(&sandbox.id, "n");
    let answer = ask(server.request(Method::GET, &format!("{by_name}/version"))).await;
    assert_eq!(answer.status, 401, "the toolbox knows ids only");
}

#[tokio::test]
async fn refusals_have_the_measured_shape() {
    let server = Server::bash().await;
    server.create(json!({ "name": "taken" })).await;
    let conflict = server.api(Method::POST, "/sandbox", json!({ "name": "taken" })).await;
    let body = conflict.json();
    assert_eq!((conflict.status, &body["statusCode"], &body["error"]), (409, &json!(409), &json!("Conflict")));
    assert_eq!(body["path"], "/api/sandbox");
    for body in [
        json!({ "snapshot": "unknown" }),
        json!({ "cpu": 2 }),
        json!({ "autoStopInterval": -1 }),
        json!({ "name": "<b>" }),
    ] {
        let answer = server.api(Method::POST, "/sandbox", body.clone()).await;
        assert_eq!(answer.status, 400, "{body}");
    }
    server.daytona.add_snapshot("unknown").await.unwrap();
    server.create(json!({ "snapshot": "unknown" })).await;
    assert_eq!(server.get("/sandbox/none").await.status, 404);
    let url = format!("{}/sandbox", server.daytona.base_url());
    assert_eq!(ask(server.http.get(&url)).await.json()["message"], "Invalid credentials");
    assert_eq!(ask(server.http.get(&url).bearer_auth("wrong")).await.status, 401);
    assert_eq!(ask(server.http.get(format!("{}/config", server.daytona.base_url()))).await.status, 200);
}

#[tokio::test]
async fn deletion_frees_the_name_at_once_and_leaves_nothing() {
    let server = Server::bash().await;
    let sandbox = server.create(json!({ "name": "n" })).await;
    sandbox.open("s").await;
    sandbox.submit("s", "setsid sh -c 'trap \"\" TERM HUP; sleep 1000' & sleep 1000").await;
    sandbox.execute("(setsid env -i sleep 1000 >/dev/null 2>&1 &)").await;
    until("it is busy", async || sandbox.processes().await >= 4).await;
    server.daytona.set(Settings { delete_delay_seconds: Some(60), ..Settings::default() }).await.unwrap();
    let dir = sandbox.report().await.unwrap().dir;
    let deleted = server.api(Method::DELETE, "/sandbox/n", Value::Null).await.json();
    assert_eq!(deleted["state"], "destroying");
    assert!(deleted["name"].as_str().unwrap().starts_with("DESTROYED_n_"));
    assert_eq!(server.get("/sandbox/n").await.status, 404);
    assert_eq!(state(&server, &sandbox.id).await, "destroying");
    let again = server.api(Method::DELETE, &format!("/sandbox/{}", sandbox.id), Value::Null).await;
    assert_eq!(again.status, 409);
    let successor = server.create(json!({ "name": "n" })).await;
    assert_ne!(successor.id, sandbox.id);
    until("its processes are gone", async || sandbox.processes().await == 0).await;
    until("its files are gone", async || !dir.exists()).await;
    server.daytona.advance_clock(Duration::from_secs(61)).await.unwrap();
    until_state(&server, &sandbox.id, "404").await;
    assert_eq!(sandbox.get("/version").await.status, 401);
}

#[tokio::test]
async fn a_stop_ends_processes_and_sessions_and_keeps_files() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.open("s").await;
    sandbox.exec("s", "echo kept >file; sleep 1000 >/dev/null 2>&1 &").await;
    let stop = format!("/sandbox/{}/stop", sandbox.id);
    let stopped = server.api(Method::POST, &stop, Value::Null).await;
    assert_eq!((stopped.status, &stopped.json()["state"]), (200, &json!("stopping")));
    until_state(&server, &sandbox.id, "stopped").await;
    assert_eq!(sandbox.processes().await, 0);
    let asleep = sandbox.get("/version").await;
    let message = "bad request: no IP address found. Is the Sandbox started?";
    assert_eq!((asleep.status, asleep.json()["message"].as_str()), (400, Some(message)));
    assert_eq!(server.api(Method::POST, &stop, Value::Null).await.status, 400);
    let started = server.api(Method::POST, &format!("/sandbox/{}/start", sandbox.id), Value::Null).await;
    assert_eq!(started.json()["state"], "started");
    assert_eq!(sandbox.get("/process/session/s").await.status, 404);
    assert_eq!(sandbox.exec("s", "true").await.status, 500);
    assert_eq!(sandbox.execute("cat file").await.1, "kept\n");
}

#[tokio::test]
async fn activity_keeps_a_sandbox_awake_and_reading_it_does_not() {
    let server = Server::bash().await;
    let minutes = |minutes: u64| Duration::from_mins(minutes);
    let sandbox = server.create(json!({ "autoStopInterval": 5 })).await;
    for touch in [true, false] {
        server.daytona.advance_clock(minutes(4)).await.unwrap();
        if touch {
            sandbox.get("/version").await;
        } else {
            let path = format!("/sandbox/{}/last-activity", sandbox.id);
            let answer = server.api(Method::POST, &path, Value::Null).await;
            assert_eq!((answer.status, answer.bytes.len()), (201, 0));
        }
    }
    server.daytona.advance_clock(minutes(4)).await.unwrap();
    assert_eq!(state(&server, &sandbox.id).await, "started");
    server.daytona.advance_clock(minutes(1)).await.unwrap();
    until_state(&server, &sandbox.id, "stopped").await;
}

#[tokio::test]
async fn an_open_request_keeps_a_sandbox_awake_and_a_silent_command_does_not() {
    let server = Server::bash().await;
    let sandbox = server.create(json!({ "autoStopInterval": 1 })).await;
    sandbox.open("s").await;
    let held = async {
        let running = sandbox.execute("touch up; until test -e enough; do sleep 0.02; done");
        running.await.0
    };
    let watching = async {
        until("it runs", async || {
            sandbox.report().await.is_some_and(|report| report.dir.join("home/daytona/up").exists())
        })
        .await;
        server.daytona.advance_clock(Duration::from_mins(10)).await.unwrap();
        assert_eq!(state(&server, &sandbox.id).await, "started");
        sandbox.execute("touch enough").await;
    };
    let (code, ()) = tokio::join!(held, watching);
    assert_eq!(code, 0);
    sandbox.submit("s", "sleep 1000").await;
    server.daytona.advance_clock(Duration::from_mins(2)).await.unwrap();
    until_state(&server, &sandbox.id, "stopped").await;
}

#[tokio::test]
async fn intervals_archive_and_delete() {
    let server = Server::bash().await;
    let body = json!({ "autoStopInterval": 1, "autoArchiveInterval": 2, "autoDeleteInterval": 10 });
    let lasting = server.create(body).await;
    let ephemeral = server.create(json!({ "autoStopInterval": 1, "autoDeleteInterval": 0 })).await;
    let doomed = server.create(json!({ "autoStopInterval": 0, "ttlMinutes": 3 })).await;
    server.daytona.advance_clock(Duration::from_mins(1)).await.unwrap();
    until_state(&server, &lasting.id, "stopped").await;
    until_state(&server, &ephemeral.id, "404").await;
    assert_eq!(state(&server, &doomed.id).await, "started");
    server.daytona.advance_clock(Duration::from_mins(2)).await.unwrap();
    until_state(&server, &lasting.id, "archived").await;
    until_state(&server, &doomed.id, "404").await;
    server.daytona.advance_clock(Duration::from_mins(9)).await.unwrap();
    until_state(&server, &lasting.id, "404").await;
}

#[tokio::test]
async fn setters_answer_201_and_labels_replace() {
    let server = Server::bash().await;
    let sandbox = server.create(json!({ "labels": { "old": "1" } })).await;
    for (setter, field) in
        [("autostop", "autoStopInterval"), ("autoarchive", "autoArchiveInterval"), ("autodelete", "autoDeleteInterval")]
    {
        let answer = server.api(Method::POST, &format!("/sandbox/{}/{setter}/9", sandbox.id), Value::Null).await;
        assert_eq!((answer.status, &answer.json()[field]), (201, &json!(9)));
    }
    let labels = json!({ "labels": { "new": "2" } });
    let answer = server.api(Method::PUT, &format!("/sandbox/{}/labels", sandbox.id), labels).await;
    assert_eq!((answer.status, &answer.json()["labels"]), (200, &json!({ "new": "2" })));
    let negative = format!("/sandbox/{}/autostop/-1", sandbox.id);
    assert_eq!(server.api(Method::POST, &negative, Value::Null).await.status, 400);
}

#[tokio::test]
async fn a_list_has_pages_and_filters() {
    let server = Server::bash().await;
    for number in 0..5 {
        let parity = if number % 2 == 0 { "even" } else { "odd" };
        let body = json!({ "name": format!("box-{number}"), "labels": { "parity": parity } });
        server.create(body).await;
    }
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/sandbox?limit=2&sort=name&order=asc&cursor={cursor}")).await.json();
        for item in page["items"].as_array().unwrap() {
            assert!(item.get("env").is_none() && item["networkBlockAll"].is_boolean());
            names.push(item["name"].as_str().unwrap().to_owned());
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(names, ["box-0", "box-1", "box-2", "box-3", "box-4"]);
    let count =
        async |query: &str| server.get(&format!("/sandbox?{query}")).await.json()["items"].as_array().unwrap().len();
    assert_eq!(count("labels=%7B%22parity%22%3A%22odd%22%7D").await, 2);
    assert_eq!(count("name=BOX-3").await, 1);
    assert_eq!(count("states=started").await, 5);
    assert_eq!(count("states=stopped").await, 0);
    assert_eq!(server.get("/sandbox?limit=0").await.status, 400);
}

#[tokio::test]
async fn a_slow_create_is_seen_and_refuses_to_be_disturbed() {
    let server = Server::bash().await;
    let settings = Settings { create_delay_seconds: Some(60), ..Settings::default() };
    server.daytona.set(settings).await.unwrap();
    let sandbox = server.sandbox().await;
    assert_eq!(state(&server, &sandbox.id).await, "creating");
    assert_eq!(sandbox.get("/version").await.status, 400);
    let deleted = server.api(Method::DELETE, &format!("/sandbox/{}", sandbox.id), Value::Null).await;
    assert_eq!(deleted.status, 409);
    server.daytona.advance_clock(Duration::from_secs(61)).await.unwrap();
    assert_eq!(state(&server, &sandbox.id).await, "started");
    assert_eq!(sandbox.get("/version").await.status, 200);
}
