//! What every toolbox call has in common, and the calls that are about nothing in particular.

use reqwest::{Method, redirect};
use serde_json::{Value, json};

use super::support::{KEY, Server, ask, until};

#[tokio::test]
async fn every_answer_of_the_daemon_has_a_request_id_of_its_own() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let mut seen = std::collections::BTreeSet::new();
    for path in ["/version", "/nothing", "/process/session/none", "/files/info?path=none"] {
        seen.insert(sandbox.get(path).await.headers["x-request-id"].to_str().unwrap().to_owned());
    }
    assert_eq!(seen.len(), 4);
}

#[tokio::test]
async fn no_route_knows_a_method_that_it_does_not_name() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    for (method, path) in [(Method::POST, "/version"), (Method::PUT, "/files/info"), (Method::GET, "/nothing/")] {
        let answer = sandbox.call(method, path, Value::Null).await;
        assert_eq!((answer.status, answer.text().as_str()), (404, "404 page not found"), "{path}");
        assert_eq!(answer.headers["content-type"], "text/plain");
    }
    assert_eq!(sandbox.call(Method::HEAD, "/version", Value::Null).await.status, 404);
}

#[tokio::test]
async fn a_slash_too_many_leads_back() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let client = reqwest::Client::builder().no_proxy().redirect(redirect::Policy::none()).build().unwrap();
    let send = async |method: Method, path: &str| {
        ask(client.request(method, format!("{}{path}", sandbox.toolbox)).bearer_auth(KEY)).await
    };
    let moved = send(Method::GET, "/process/session/?a=b").await;
    assert_eq!(moved.status, 301);
    assert_eq!(moved.headers["location"], format!("/toolbox/{}/process/session?a=b", sandbox.id));
    assert_eq!(moved.text(), "<a href=\"/process/session?a=b\">Moved Permanently</a>.\n\n");
    let moved = send(Method::POST, "/process/session/").await;
    assert_eq!((moved.status, moved.bytes.len()), (307, 0));
    assert_eq!(send(Method::GET, "/files/").await.status, 200, "the files have both");
    assert_eq!(sandbox.get("/version/").await.status, 200, "and a client finds its way");
}

#[tokio::test]
async fn the_daemon_tells_where_it_is_and_takes_its_key() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    assert!(sandbox.get("/version").await.json()["version"].as_str().unwrap().starts_with('v'));
    let home = sandbox.execute("pwd").await.1;
    for path in ["/work-dir", "/user-home-dir", "/project-dir"] {
        assert_eq!(sandbox.get(path).await.json(), json!({ "dir": home.trim() }));
    }
    assert_eq!(sandbox.post("/init", json!({ "token": "t" })).await.status, 200);
    assert_eq!(sandbox.post("/init", json!([])).await.status, 400);
}

#[tokio::test]
async fn only_the_ports_of_the_sandbox_itself_are_told() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    assert_eq!(sandbox.get("/port").await.json(), json!({ "ports": [2280] }), "the daemon's own");
    let serve = "import socket,sys,time\nfor port in range(3000, 10000):\n s = socket.socket()\n try: s.bind(('127.0.0.1', port))\n except OSError: continue\n s.listen()\n open('port', 'w').write(str(port))\n time.sleep(1000)";
    sandbox.open("s").await;
    sandbox.submit("s", &format!("python3 -c \"{serve}\"")).await;
    until("it listens", async || sandbox.execute("test -s port").await.0 == 0).await;
    let port: u64 = sandbox.execute("cat port").await.1.parse().unwrap();
    assert_eq!(sandbox.get("/port").await.json(), json!({ "ports": [2280, port] }));
    let in_use = async |port: &str| {
        let answer = sandbox.get(&format!("/port/{port}/in-use")).await;
        (answer.status, answer.json()["isInUse"].as_bool())
    };
    assert_eq!(in_use(&port.to_string()).await, (200, Some(true)));
    sandbox.close("s").await;
    assert_eq!(in_use(&port.to_string()).await, (200, Some(false)));
    for port in ["2999", "10000", "x", "-1"] {
        assert_eq!(in_use(port).await, (400, None), "{port}");
    }
}

#[tokio::test]
async fn code_runs_in_the_interpreter_of_its_language() {
    let server = Server::bash().await;
    let sandbox = server.create(json!({ "env": { "GIVEN": "yes" } })).await;
    let run = async |body: Value| sandbox.post("/process/code-run", body).await;
    let python = "import os, sys\nprint(sys.argv, os.environ['A'], 'it\\'s')\nsys.exit(3)";
    let body = json!({ "code": python, "language": "python", "argv": ["a", "b"], "envs": { "A": "x y" } });
    let answer = run(body).await;
    assert_eq!((answer.status, &answer.json()["exitCode"]), (200, &json!(3)));
    assert_eq!(answer.json()["result"], "['-', 'a', 'b'] x y it's\n");
    // Whether there is an interpreter is the machine's matter: without one the shell says 127.
    let there = |name: &str| format!("command -v {name} >/dev/null");
    for (language, program) in [("javascript", "node"), ("typescript", "ts-node")] {
        let code = "console.log(process.argv.slice(1).join('+'))";
        let answer = run(json!({ "code": code, "language": language, "argv": ["a", "b"] })).await.json();
        if sandbox.execute(&there(program)).await.0 == 0 {
            assert!(answer["exitCode"] == 0 && answer["result"].as_str().unwrap().ends_with("a+b\n"), "{answer}");
        } else {
            assert_eq!(answer["exitCode"], 127, "{answer}");
        }
    }
    let late = run(json!({ "code": "import time\ntime.sleep(1000)", "language": "python", "timeout": 1 })).await;
    assert_eq!((late.status, &late.json()["code"]), (408, &json!("REQUEST_TIMEOUT")));
}

#[tokio::test]
async fn code_without_a_language_is_refused() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    for (body, code) in [
        (json!({ "code": "1" }), "INVALID_REQUEST_BODY"),
        (json!({ "language": "python" }), "INVALID_REQUEST_BODY"),
        (json!([]), "INVALID_REQUEST_BODY"),
        (json!({ "code": "1", "language": "perl" }), "BAD_REQUEST"),
        (json!({ "code": "1", "language": "python", "envs": { "A=B": "x" } }), "BAD_REQUEST"),
    ] {
        let answer = sandbox.post("/process/code-run", body).await;
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!(code)));
    }
}
