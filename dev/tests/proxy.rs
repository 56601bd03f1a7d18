//! The proxy: what passes through it, each phase in which it has its caller killed, and what rules make of a call.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Redirect;
use axum::routing::{any, get, post};
use dev::faults::{Action, Mode, Rule, RuleError, When};
use dev::proxy::{At, Deed, Disturbance, FromEvent, Name, Naming, Phase, Proxy, Routes, Upstream};
use dev::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(20);

/// What the service behind the proxy has seen and done.
struct Service {
    begun: AtomicUsize,
    finished: AtomicUsize,
    /// `/held` answers only with a permit.
    go: Semaphore,
}

struct World {
    service: Arc<Service>,
    proxy: Proxy,
    http: reqwest::Client,
}

impl World {
    async fn start() -> Self {
        Self::start_naming(Arc::new(Routes)).await
    }

    async fn start_naming(naming: Arc<dyn Naming>) -> Self {
        let service = Service { begun: AtomicUsize::new(0), finished: AtomicUsize::new(0), go: Semaphore::new(0) };
        let service = Arc::new(service);
        let router = Router::new()
            .route("/count", post(count))
            .route("/held", post(held))
            .route("/echo", post(async |request: Request| request.into_body()))
            .route("/headers", any(headers))
            .route("/empty", get(async || StatusCode::NO_CONTENT))
            .route("/large", get(async || vec![b'x'; 8 << 20]))
            .route("/refused", post(async || StatusCode::CONFLICT))
            .route("/things", get(async || lines(&["one", "bookmark", "two", "three"])))
            .route("/nothing", get(async || lines(&["bookmark", "bookmark"])))
            .route("/away", get(async || Redirect::temporary("/count")))
            .with_state(Arc::clone(&service));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let proxy = Proxy::start_naming(Upstream::new(url), naming).await.unwrap();
        let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        Self { service, proxy, http: http.timeout(LIMIT).build().unwrap() }
    }

    fn post(&self, path: &str, body: &'static str) -> reqwest::RequestBuilder {
        self.http.post(format!("{}{path}", self.proxy.url())).body(body)
    }

    fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.http.get(format!("{}{path}", self.proxy.url()))
    }

    fn begun(&self) -> usize {
        self.service.begun.load(Ordering::SeqCst)
    }

    fn finished(&self) -> usize {
        self.service.finished.load(Ordering::SeqCst)
    }

    /// Aims at a call; the count is how often the caller was killed, which stands for "is dead" here.
    fn aim(&self, at: At, phase: Phase) -> Arc<AtomicUsize> {
        let kills = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&kills);
        self.proxy.kill_at(at, phase, move || async move {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        kills
    }
}

/// What a watch tells: a line each.
fn lines(names: &[&str]) -> String {
    let line = |name: &&str| {
        let kind = if *name == "bookmark" { "BOOKMARK" } else { "MODIFIED" };
        format!("{{\"type\":\"{kind}\",\"object\":\"{name}\"}}\n")
    };
    names.iter().map(line).collect()
}

async fn count(State(service): State<Arc<Service>>) -> &'static str {
    service.begun.fetch_add(1, Ordering::SeqCst);
    service.finished.fetch_add(1, Ordering::SeqCst);
    "counted"
}

async fn held(State(service): State<Arc<Service>>) -> &'static str {
    service.begun.fetch_add(1, Ordering::SeqCst);
    service.go.acquire().await.unwrap().forget();
    service.finished.fetch_add(1, Ordering::SeqCst);
    "held"
}

async fn headers(headers: HeaderMap, body: Body) -> String {
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let mut lines: Vec<_> =
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    lines.sort();
    lines.push(String::from_utf8(body.to_vec()).unwrap());
    lines.join("\n")
}

async fn until(what: &str, mut check: impl FnMut() -> bool) {
    wait::until(what, LIMIT, async || check().then_some(())).await.unwrap();
}

/// A caller that can be killed like a process: its connections end with it.
fn caller(request: reqwest::RequestBuilder) -> JoinHandle<Result<String, reqwest::Error>> {
    tokio::spawn(async move { request.send().await?.text().await })
}

#[tokio::test]
async fn before_means_that_the_call_never_reaches_the_service() {
    let world = World::start().await;
    let kills = world.aim(At::Number(1), Phase::Before);
    assert!(world.post("/count", "").send().await.is_err(), "an answer without the service");
    assert_eq!((kills.load(Ordering::SeqCst), world.begun()), (1, 0));
    let killed = world.proxy.killed().unwrap();
    assert_eq!((killed.number, killed.status, killed.killed), (1, None, Some(Phase::Before)));
    assert_eq!(killed.to_string(), "call 1 (POST /count, nth 1, not answered), killed before it");
    assert_eq!(world.post("/count", "").send().await.unwrap().status(), 200);
    assert_eq!(kills.load(Ordering::SeqCst), 1, "once");
}

#[tokio::test]
async fn during_means_done_by_the_service_and_never_answered() {
    let world = World::start().await;
    let kills = world.aim(At::Number(1), Phase::During);
    assert!(world.post("/count", "").send().await.is_err(), "the answer came through");
    assert_eq!((kills.load(Ordering::SeqCst), world.finished()), (1, 1));
    assert_eq!(world.proxy.killed().unwrap().status, Some(200));
    assert_eq!(world.post("/count", "").send().await.unwrap().status(), 200);
    assert_eq!((kills.load(Ordering::SeqCst), world.finished()), (1, 2));
}

#[tokio::test]
async fn a_call_that_is_held_is_finished_by_the_service_although_its_caller_is_dead() {
    let world = World::start().await;
    let (killer, kill) = oneshot::channel();
    world.proxy.kill_at(At::Number(1), Phase::During, move || async move {
        killer.send(()).unwrap();
    });
    let caller = caller(world.post("/held", "x"));
    kill.await.unwrap();
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    assert_eq!((world.begun(), world.finished()), (1, 0), "the service acts on it while the caller dies");
    assert_eq!(world.proxy.calls()[0].at_kill, None, "it had not answered");
    world.service.go.add_permits(1);
    until("the service is through", || world.finished() == 1).await;
    until("its answer is noted", || world.proxy.calls()[0].status == Some(200)).await;
}

#[tokio::test]
async fn after_means_that_the_caller_has_read_the_whole_answer() {
    let world = World::start().await;
    for (path, length) in [("/large", 8 << 20), ("/empty", 0), ("/headers", 0)] {
        let at = At::nth(&format!("GET {path}"), 1);
        let kills = world.aim(at, Phase::After);
        let mut response = world.get(path).send().await.unwrap();
        let mut read = 0;
        if length > 0 {
            read += response.chunk().await.unwrap().unwrap().len();
            assert_eq!(kills.load(Ordering::SeqCst), 0, "killed in the middle of the answer");
        }
        while let Some(chunk) = response.chunk().await.unwrap() {
            read += chunk.len();
        }
        assert!(read >= length, "{path}: {read}");
        until("the caller is killed", || kills.load(Ordering::SeqCst) == 1).await;
        let route = format!("GET {path}");
        until("it is noted", || world.proxy.calls().iter().any(|c| c.route == route && c.killed == Some(Phase::After)))
            .await;
    }
}

#[tokio::test]
async fn a_caller_that_has_not_read_is_not_killed_yet() {
    let world = World::start().await;
    let kills = world.aim(At::Number(1), Phase::After);
    let mut stream = TcpStream::connect(world.proxy.url().strip_prefix("http://").unwrap()).await.unwrap();
    stream.write_all(b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    until("the service has answered", || world.proxy.calls().first().is_some_and(|c| c.status == Some(200))).await;
    // It lies in the caller's socket: what can be seen from there is that it is readable.
    stream.readable().await.unwrap();
    assert_eq!(kills.load(Ordering::SeqCst), 0);
    let mut answer = [0; 4096];
    let count = stream.read(&mut answer).await.unwrap();
    assert!(String::from_utf8_lossy(&answer[..count]).ends_with("counted"));
    until("the caller is killed", || kills.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn calls_are_numbered_and_named_as_in_the_call_log() {
    let world = World::start().await;
    let kills = world.aim(At::nth("POST /api/sandbox/{sandbox}/stop", 2), Phase::Before);
    for path in ["/api/sandbox/a/stop?force=true", "/count"] {
        world.post(path, "").send().await.unwrap();
    }
    world.get("/apis/x/v1/things?watch=true&resourceVersion=4").send().await.unwrap();
    assert!(!world.proxy.reached());
    assert!(world.post("/api/sandbox/b/stop", "").send().await.is_err());
    assert!(world.proxy.reached());
    assert_eq!(kills.load(Ordering::SeqCst), 1);
    let calls: Vec<_> = world.proxy.calls().into_iter().map(|c| (c.number, c.route, c.nth)).collect();
    let expected = [
        (1, "POST /api/sandbox/{sandbox}/stop", 1),
        (2, "POST /count", 1),
        (3, "GET /apis/x/v1/things?watch", 1),
        (4, "POST /api/sandbox/{sandbox}/stop", 2),
    ];
    assert_eq!(calls, expected.map(|(number, route, nth)| (number, route.to_owned(), nth)));
}

#[tokio::test]
async fn rules_act_before_and_after_the_service_and_are_counted() {
    let world = World::start().await;
    let rule = |rule: Rule| world.proxy.add_rule(rule).unwrap();
    let refused = rule(Rule::on("POST", "/count").times(1).answer(429, "later").header("Retry-After", "7"));
    let lost = rule(Rule::on("POST", "/count").nth(3).after().cut());
    let answer = world.post("/count", "").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (429, &"7".parse().unwrap()));
    assert_eq!((answer.text().await.unwrap().as_str(), world.begun()), ("later", 0), "the service has not seen it");
    assert_eq!(world.post("/count", "").send().await.unwrap().status(), 200);
    assert!(world.post("/count", "").send().await.is_err(), "an answer to a call whose answer is lost");
    assert_eq!(world.finished(), 2, "the service has done it all the same");
    let fired: Vec<_> = world.proxy.rules().iter().map(|report| (report.id, report.fired)).collect();
    assert_eq!(fired, [(refused, 1), (lost, 1)]);
    let meddled: Vec<_> = world.proxy.calls().iter().map(|call| call.rule).collect();
    assert_eq!(meddled, [Some(refused), None, Some(lost)]);
    assert!(matches!(world.proxy.add_rule(Rule::on("GET", "/x").mode(Mode::DeadShell)), Err(RuleError::Mode)));
}

#[tokio::test]
async fn a_rule_can_ask_for_an_object_and_for_a_word_in_the_body() {
    let world = World::start().await;
    world.proxy.add_rule(Rule::on("POST", "/{kind}").object("count|held").body_contains("twice").hang()).unwrap();
    assert_eq!(world.post("/count", "once").send().await.unwrap().status(), 200);
    assert_eq!(world.post("/echo", "twice").send().await.unwrap().text().await.unwrap(), "twice");
    let hung = caller(world.post("/count", "twice"));
    until("the rule fires", || world.proxy.rules()[0].fired == 1).await;
    assert!(!hung.is_finished());
    assert_eq!(world.begun(), 1);
    world.proxy.clear_rules();
    assert_eq!(world.post("/count", "twice").send().await.unwrap().status(), 200);
}

/// By hand, so that each byte is known: a body that goes on while its echo comes back.
#[tokio::test]
async fn bodies_stream_both_ways_and_expect_is_kept() {
    let world = World::start().await;
    let mut stream = TcpStream::connect(world.proxy.url().strip_prefix("http://").unwrap()).await.unwrap();
    let head = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut said = String::new();
    for part in ["", "one", "two", "three"] {
        if !part.is_empty() {
            stream.write_all(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes()).await.unwrap();
        }
        let wanted = if part.is_empty() { "100 Continue\r\n\r\n" } else { part };
        while !said.contains(wanted) {
            let mut piece = [0; 1024];
            let read = tokio::time::timeout(LIMIT, stream.read(&mut piece)).await;
            let count = read.unwrap_or_else(|_| panic!("{wanted} did not come: {said}")).unwrap();
            assert_ne!(count, 0, "{said}");
            said.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        }
    }
}

#[tokio::test]
async fn headers_and_bodies_pass_as_they_are() {
    let world = World::start().await;
    let request = world.post("/headers?a=%2Fb", "body").bearer_auth("secret").header("X-Some-Thing", "Else");
    let seen = request.header("Expect", "100-continue").send().await.unwrap().text().await.unwrap();
    let host = world.proxy.url().replace("http://", "host: ");
    for line in [host.as_str(), "authorization: Bearer secret", "x-some-thing: Else", "expect: 100-continue", "body"] {
        assert!(seen.lines().any(|other| other == line), "{line} is missing in {seen}");
    }
    let bare = world.get("/headers").send().await.unwrap().text().await.unwrap();
    assert!(!bare.contains("transfer-encoding") && !bare.contains("content-length"), "{bare}");
}

#[tokio::test]
async fn no_redirect_is_followed_and_no_answer_is_made_up() {
    let world = World::start().await;
    let away = world.get("/away").send().await.unwrap();
    assert_eq!((away.status().as_u16(), &away.headers()["location"]), (307, &"/count".parse().unwrap()));
    assert_eq!(world.begun(), 0);
    let nowhere = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(Upstream::new(format!("http://{nowhere}").parse().unwrap())).await.unwrap();
    assert!(world.http.get(proxy.url()).send().await.is_err());
    assert_eq!(proxy.calls()[0].status, None);
}

#[tokio::test]
async fn a_late_call_gets_there_although_its_caller_has_given_up() {
    let world = World::start().await;
    let late = Duration::from_millis(400);
    world.proxy.aim(At::Number(1), Deed::Late(When::Before, late));
    let given_up = world.post("/count", "").timeout(Duration::from_millis(100)).send().await;
    assert!(given_up.unwrap_err().is_timeout());
    assert_eq!(world.begun(), 0, "it is not late");
    until("it gets there", || world.finished() == 1).await;

    world.proxy.aim(At::Number(2), Deed::Late(When::After, late));
    let caller = caller(world.post("/count", ""));
    until("the service has done it", || world.finished() == 2).await;
    assert!(!caller.is_finished(), "its answer is not late");
    assert_eq!(caller.await.unwrap().unwrap(), "counted");
    assert_eq!(world.proxy.met(), 2);
}

#[tokio::test]
async fn a_meddler_answers_and_cuts_with_and_without_the_service() {
    let world = World::start().await;
    let answer = || Action { status: Some(409), ..Action::default() };
    let cut = || Action { cut: true, ..Action::default() };
    for (action, when, done) in
        [(answer(), When::Before, 0), (answer(), When::After, 1), (cut(), When::Before, 1), (cut(), When::After, 2)]
    {
        let is_cut = action.cut;
        let mut deed = Some(Deed::Act(when, action));
        world.proxy.meddle(Box::new(move |_| deed.take()));
        let answered = world.post("/count", "").send().await;
        assert_eq!(answered.ok().map(|answer| answer.status().as_u16()), (!is_cut).then_some(409));
        assert_eq!(world.finished(), done);
    }
    world.proxy.leave_alone();
    assert_eq!(world.post("/count", "").send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn the_events_of_a_watch_are_held_back_replayed_missed_and_never_told() {
    let world = World::start().await;
    let lag = Duration::from_millis(300);
    let watch = async |disturbance| {
        let mut deed = Some(Deed::Watch(FromEvent::nth(2), disturbance));
        world.proxy.meddle(Box::new(move |_| deed.take()));
        world.get("/things?watch=true").timeout(LIMIT).send().await.unwrap()
    };
    let all = lines(&["one", "bookmark", "two", "three"]);
    let began = std::time::Instant::now();
    let mut held = watch(Disturbance::Hold(lag)).await;
    assert_eq!(held.chunk().await.unwrap().unwrap(), lines(&["one"]));
    assert!(began.elapsed() < lag, "what comes before the chosen event is not held");
    assert_eq!(lines(&["one"]) + &held.text().await.unwrap(), all);
    assert!(began.elapsed() >= lag);
    let replayed = watch(Disturbance::Replay(2)).await.text().await.unwrap();
    assert_eq!(replayed, lines(&["one", "bookmark", "two", "one", "two", "three", "two", "three"]));
    let missed = watch(Disturbance::Miss(lag)).await.text().await.unwrap();
    assert!(missed.starts_with(&lines(&["one", "bookmark"])) && missed.contains(r#""code":410"#), "{missed}");
    assert!(!missed.contains("two") && !missed.contains("three"), "{missed}");
    let mut frozen = watch(Disturbance::Freeze).await;
    let mut told = String::new();
    while told.len() < lines(&["one", "bookmark"]).len() {
        told += std::str::from_utf8(&frozen.chunk().await.unwrap().unwrap()).unwrap();
    }
    assert_eq!(told, lines(&["one", "bookmark"]));
    // The service has long come to the end of it.
    assert!(tokio::time::timeout(lag, frozen.chunk()).await.is_err(), "something was told, or its end");
    assert_eq!(world.proxy.met(), 4);
}

#[tokio::test]
async fn a_watch_on_which_no_event_comes_is_not_disturbed() {
    let world = World::start().await;
    for disturbance in [
        Disturbance::Hold(Duration::ZERO),
        Disturbance::Miss(Duration::ZERO),
        Disturbance::Replay(3),
        Disturbance::Freeze,
    ] {
        world.proxy.aim(At::nth("GET /nothing?watch", 1), Deed::Watch(FromEvent::nth(1), disturbance));
        let told = world.get("/nothing?watch=true").timeout(LIMIT).send().await.unwrap().text().await.unwrap();
        assert_eq!(told, lines(&["bookmark", "bookmark"]), "{disturbance:?}");
        assert_eq!(world.proxy.met(), 0, "{disturbance:?}");
    }
}

#[tokio::test]
async fn events_are_counted_over_all_watches_that_are_disturbed_together_and_on_those_that_are_not() {
    let world = World::start().await;
    let from = FromEvent::nth(5);
    world.proxy.meddle(Box::new(move |_| Some(Deed::Watch(from.clone(), Disturbance::Miss(Duration::ZERO)))));
    let watch = async || world.get("/things?watch=true").send().await.unwrap().text().await.unwrap();
    assert_eq!(watch().await, lines(&["one", "bookmark", "two", "three"]));
    assert!(watch().await.contains(r#""code":410"#), "the fifth comes on the second watch");
    assert_eq!(watch().await, lines(&["one", "bookmark", "two", "three"]), "it comes once");
    let met: Vec<bool> = world.proxy.calls().iter().map(|call| call.met).collect();
    assert_eq!(met, [false, true, false]);
    world.proxy.leave_alone();
    watch().await;
    assert_eq!(world.proxy.calls().last().unwrap().events, 3);
}

#[tokio::test]
async fn a_deed_on_an_answer_is_done_when_the_service_has_answered() {
    let world = World::start().await;
    let (held, late) = (At::nth("POST /held", 1), Duration::from_millis(300));
    world.proxy.aim(held, Deed::Act(When::After, Action { cut: true, ..Action::default() }));
    let caller = caller(world.post("/held", ""));
    until("the service has begun", || world.begun() == 1).await;
    assert_eq!(world.proxy.met(), 0, "the service has not answered");
    world.service.go.add_permits(1);
    assert!(caller.await.unwrap().is_err());
    assert_eq!((world.proxy.met(), world.proxy.calls()[0].status), (1, Some(200)));

    world.proxy.aim(At::nth("POST /refused", 1), Deed::Late(When::Before, late));
    let given_up = world.post("/refused", "").timeout(Duration::from_millis(50)).send().await;
    assert!(given_up.unwrap_err().is_timeout());
    assert_eq!((world.proxy.met(), world.proxy.carried_on()), (1, 1), "it has not got there");
    until("it gets there", || world.proxy.carried_on() == 0).await;
    let call = world.proxy.calls().pop().unwrap();
    assert_eq!((call.met, call.status), (true, Some(409)), "what it was answered is told");

    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(Upstream::new(format!("http://{gone}").parse().unwrap())).await.unwrap();
    for deed in [
        Deed::Act(When::After, Action { cut: true, ..Action::default() }),
        Deed::Late(When::Before, Duration::ZERO),
        Deed::Late(When::After, Duration::ZERO),
        Deed::Kill(Phase::During, Box::new(|_| Box::pin(async {}))),
    ] {
        let mut deed = Some(deed);
        proxy.meddle(Box::new(move |_| deed.take()));
        assert!(world.http.post(proxy.url()).send().await.is_err());
    }
    assert_eq!(proxy.met(), 0, "the service has seen none of them");
}

/// As [`Routes`]; nothing is ever held.
struct NeverHeld;

impl Naming for NeverHeld {
    fn reads_body(&self, _: &axum::http::Method, _: &str) -> bool {
        false
    }

    fn name(&self, method: &axum::http::Method, path: &str, body: &[u8]) -> Name {
        Routes.name(method, path, body)
    }

    fn may_be_held(&self, _: &Name) -> bool {
        false
    }
}

#[tokio::test]
async fn during_waits_for_a_slow_service_unless_it_may_hold_the_call() {
    let world = World::start_naming(Arc::new(NeverHeld)).await;
    let kills = world.aim(At::Number(1), Phase::During);
    let caller = caller(world.post("/held", "x"));
    until("the service has begun", || world.begun() == 1).await;
    // Longer than a call may be held.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(kills.load(Ordering::SeqCst), 0, "the call is not applied yet");
    // Nor is it forgotten when the caller gives up.
    caller.abort();
    world.service.go.add_permits(1);
    until("the caller is killed", || world.proxy.killed().is_some()).await;
    assert_eq!((world.proxy.killed().unwrap().at_kill, world.finished()), (Some(200), 1));
}
