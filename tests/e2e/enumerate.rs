//! The controller is killed at every call that it makes to Daytona: before the call gets there, while Daytona acts on
//! it, and right after the answer was read. Whatever the moment, each script runs exactly once, its exit code is
//! known, and nothing is left behind.
//!
//! A run without a kill tells which calls there are. A moment is the n-th call of a route, which is the same call also
//! where calls of other routes come in between.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use dev::{
    local_daytona::Settings,
    proxy::{At, Call, Phase, Proxy, Upstream},
    supervise, wait,
};
use futures::future;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::world::{self, LIMIT, Options, World};

/// How many runs go at once.
const AT_ONCE: usize = 4;

/// Name and exit code of the commands. Each appends its name to the file `runs`.
const COMMANDS: [(&str, i64); 3] = [("one", 0), ("two", 3), ("three", 7)];

/// How the commands of a lease are started: fed into its session, or each as a process of its own.
#[derive(Clone, Copy)]
struct Launcher {
    use_sessions: bool,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "useSessions: {}", self.use_sessions)
    }
}

/// A call, and where in its course the controller is killed.
struct Moment {
    call: Call,
    phase: Phase,
    /// How often it may be tried again when the call does not come.
    tries: u32,
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_call_it_loses_nothing_and_does_nothing_twice_with_a_session() {
    enumerate(Launcher { use_sessions: true }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_call_it_loses_nothing_and_does_nothing_twice_without_a_session() {
    enumerate(Launcher { use_sessions: false }).await;
}

async fn enumerate(launcher: Launcher) {
    let mut world = World::without_controller("quiet", Options::default()).await;
    let calls = run(&mut world, launcher, None).await.unwrap_or_else(|e| panic!("{launcher}, without a kill: {e}")).0;
    println!("{launcher}, without a kill:\n{}", list(&calls));
    let moments: VecDeque<Moment> = calls.iter().flat_map(moments).collect();
    let (total, start) = (moments.len(), Instant::now());
    let found = Found { moments: Mutex::new(moments), failures: Mutex::default(), missed: Mutex::default() };
    // One of them goes on in the world that is there.
    let others = (1..AT_ONCE).map(|_| found.work(launcher, None));
    future::join(found.work(launcher, Some(world)), future::join_all(others)).await;
    let (failures, missed) = (take(&found.failures), take(&found.missed));
    let took = start.elapsed().as_secs_f32();
    println!(
        "{launcher}: {} calls, {total} moments, {} failures, {} missed, {took:.1} s",
        calls.len(),
        failures.len(),
        missed.len()
    );
    for missed in &missed {
        println!("missed: {missed}");
    }
    assert!(failures.is_empty(), "{} of {total} failed:\n{}", failures.len(), failures.join("\n"));
}

/// The phases that differ. Where a call changes nothing, a controller that dies right after the answer, before it has
/// written anything, leaves the world as one that dies before the call.
fn moments(call: &Call) -> Vec<Moment> {
    let phases: &[Phase] = match call.method.as_str() {
        "GET" => &[Phase::Before],
        _ => &[Phase::Before, Phase::During, Phase::After],
    };
    phases.iter().map(|phase| Moment { call: call.clone(), phase: *phase, tries: 2 }).collect()
}

/// What is to be tried, and what came of it.
struct Found {
    moments: Mutex<VecDeque<Moment>>,
    failures: Mutex<Vec<String>>,
    /// Calls that a run of the same scenario did without.
    missed: Mutex<Vec<String>>,
}

impl Found {
    /// Tries one moment after the other, in one world as long as it stays clean.
    async fn work(&self, launcher: Launcher, mut world: Option<World>) {
        while let Some(Moment { call, phase, tries }) = self.next() {
            let mut here = match world.take() {
                Some(world) => world,
                None => World::without_controller("enumerate", Options::default()).await,
            };
            let named = format!("{launcher}, killed {phase} {}", call.at());
            match run(&mut here, launcher, Some((call.at(), phase))).await {
                Ok((_, Some(_))) => {}
                Ok((_, None)) if tries > 0 => self.again(Moment { call, phase, tries: tries - 1 }),
                // How often something is asked depends on how long it takes. A run that asks once less is gone
                // through all the same: each of its calls is among the moments.
                Ok((calls, None)) if calls.iter().any(|other| other.route == call.route) => push(&self.missed, named),
                Ok((calls, None)) => {
                    push(&self.failures, format!("{named}: there was no such call in\n{}", list(&calls)));
                }
                Err(error) => {
                    push(&self.failures, format!("{named}: {error}"));
                    // What is left in it would be the next one's.
                    continue;
                }
            }
            world = Some(here);
        }
    }

    fn again(&self, moment: Moment) {
        self.moments.lock().unwrap_or_else(PoisonError::into_inner).push_back(moment);
    }

    fn next(&self) -> Option<Moment> {
        self.moments.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

fn push(list: &Mutex<Vec<String>>, text: String) {
    list.lock().unwrap_or_else(PoisonError::into_inner).push(text);
}

fn take(list: &Mutex<Vec<String>>) -> Vec<String> {
    std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner))
}

fn list(calls: &[Call]) -> String {
    calls.iter().map(|call| format!("  {call}")).collect::<Vec<_>>().join("\n")
}

/// One run of the scenario, with a controller that is killed at a moment and started again. Gives the calls, and the
/// one at which it was killed.
async fn run(
    world: &mut World,
    launcher: Launcher,
    kill: Option<(At, Phase)>,
) -> Result<(Vec<Call>, Option<Call>), String> {
    let origin = world.daytona.base_url().trim_end_matches("/api").parse().map_err(text)?;
    let proxy = Proxy::start(Upstream::new(origin)).await.map_err(text)?;
    let toolbox_url = Some(format!("{}/toolbox", proxy.url()));
    world.daytona.set(Settings { toolbox_url, ..Settings::default() }).await.map_err(text)?;
    world.api_url = Some(format!("{}/api", proxy.url()));
    world.log = world.log.with_file_name(format!("controller-{}.log", proxy.url().rsplit(':').next().unwrap_or("")));
    let (reach, mut reached) = mpsc::channel::<oneshot::Sender<()>>(1);
    if let Some((at, phase)) = kill {
        proxy.kill_at(at, phase, move || async move {
            let (dead, is_dead) = oneshot::channel();
            let _ = reach.send(dead).await;
            let _ = is_dead.await;
        });
    }
    let mut controller = world.spawn_controller();
    let keep = async {
        if let Some(dead) = reached.recv().await {
            controller.kill().await.map_err(text)?;
            let _ = dead.send(());
            controller = world.spawn_controller();
        }
        future::pending().await
    };
    let scenario = async {
        scenario(world, launcher).await?;
        // The very last call: its caller may be about to be killed.
        let settled = async || (!proxy.reached() || proxy.killed().is_some()).then_some(());
        wait::until("the controller's end", LIMIT, settled).await.map_err(text)
    };
    let ended = tokio::select! { ended = keep => ended, ended = scenario => ended };
    controller.kill().await.map_err(text)?;
    let calls = proxy.calls();
    ended.map_err(|error| {
        let log = supervise::log_tail(&world.log, 60);
        format!("{error}\ncalls:\n{}\nend of the controller's log:\n{log}\n", list(&calls))
    })?;
    Ok((calls, proxy.killed()))
}

/// A lease, three commands, and the end of all of them.
async fn scenario(world: &World, launcher: Launcher) -> Result<(), String> {
    let mut lease: Value = serde_json::from_str(&world::lease("l")).map_err(text)?;
    lease["spec"]["useSessions"] = launcher.use_sessions.into();
    let commands = COMMANDS.iter().map(|(name, code)| {
        let command = world::command(name, "l", &format!("echo {name} >>runs; echo out {name}; exit {code}"));
        let mut command: Value = serde_json::from_str(&command).unwrap_or_default();
        // It travels as a file.
        if *name == "two" {
            command["spec"]["stdin"] = json!({ "value": "input" });
        }
        command
    });
    let all: Vec<Value> = std::iter::once(lease).chain(commands).collect();
    let all = json!({ "apiVersion": "v1", "kind": "List", "items": all });
    let limit = format!("--timeout={}s", LIMIT.as_secs());
    let kubectl = async |arguments: &[&str]| world.kubectl.get(arguments).await.map_err(text);

    world.apply(&all.to_string()).await.map_err(text)?;
    if let Err(error) = kubectl(&["wait", "--for=condition=Finished", "sbcmd", "--all", &limit]).await {
        return Err(format!("{error}\n{}", kubectl(&["get", "sblease,sbcmd", "-o", "yaml"]).await?));
    }
    let commands = kubectl(&["get", "sbcmd", "-o", "json"]).await?;
    outcomes(&commands)?;
    ran_once(world).await?;
    if let Err(error) = kubectl(&["delete", "sblease,sbcmd", "--all", &limit]).await {
        return Err(format!("{error}\n{}", kubectl(&["get", "sblease,sbcmd", "-o", "yaml"]).await?));
    }
    let left = world.daytona.state().await.map_err(text)?.sandboxes;
    if left.is_empty() { Ok(()) } else { Err(format!("sandboxes are left: {left:?}")) }
}

/// Each exit code and output is that of its script.
fn outcomes(commands: &str) -> Result<(), String> {
    let commands: Value = serde_json::from_str(commands).map_err(text)?;
    for (name, code) in COMMANDS {
        let command = commands["items"].as_array().and_then(|all| all.iter().find(|c| c["metadata"]["name"] == name));
        let status = command.map_or(&Value::Null, |command| &command["status"]);
        if status["exitCode"] != code || status["stdout"]["tail"] != format!("out {name}\n") {
            return Err(format!("{name} should have ended with {code}: {status:#}"));
        }
    }
    Ok(())
}

/// As the scripts themselves wrote it down, in whatever sandboxes there are.
async fn ran_once(world: &World) -> Result<(), String> {
    let sandboxes = world.daytona.state().await.map_err(text)?.sandboxes;
    let files = sandboxes.iter().filter_map(|sandbox| world::walk(&sandbox.dir, "runs"));
    let text: String = files.map(|file| std::fs::read_to_string(file).unwrap_or_default()).collect();
    let mut ran: Vec<&str> = text.lines().collect();
    ran.sort_unstable();
    if ran == ["one", "three", "two"] && sandboxes.len() == 1 {
        return Ok(());
    }
    Err(format!("these scripts ran, in {} sandboxes: {ran:?}", sandboxes.len()))
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}
