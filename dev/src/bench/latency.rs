//! How long one command takes: by the service's own calls, by the official SDK, and by the controller; in turns, so
//! that all meet the same machine.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::figures::{Spread, per};
use super::kubernetes::Follow;
use super::raw::Sandbox;
use super::sdk::Sdk;
use super::stage::Stage;
use super::{Error, Options, progress};

const PART: &str = "latency";
const RAW_SESSION: &str = "raw";

/// How many leases it makes.
pub(super) const LEASES: usize = 2;

/// How a command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Launcher {
    /// In the lease's one session.
    Session,
    /// As a process of its own.
    OneShot,
}

impl Launcher {
    /// The lease that runs its commands so.
    fn lease(self) -> &'static str {
        match self {
            Self::Session => "in-a-session",
            Self::OneShot => "one-shot",
        }
    }
}

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Workload {
    script: &'static str,
    /// The end of what it prints.
    prints: &'static str,
}

const SHORT: Workload = Workload { script: "true", prints: "" };
const LONG: Workload = Workload { script: "seq 1 100000", prints: "99999\n100000\n" };

/// One script by one launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Latency {
    /// How it was run.
    pub launcher: Launcher,
    /// What was run.
    pub script: String,
    /// The service's own calls.
    pub raw: Spread,
    /// The official SDK.
    pub sdk: Spread,
    /// From the POST of the command to `Finished` on a watch.
    pub controller: Spread,
    /// Calls to the sandbox per command.
    pub daytona_calls: f64,
    /// Writes on the command and on stored logs per command.
    pub kube_writes: f64,
    /// Events per command.
    pub events: f64,
    /// Writes on leases per command.
    pub lease_writes: f64,
}

impl Latency {
    /// What the controller adds to the service's own calls.
    #[must_use]
    pub fn overhead_ms(&self) -> f64 {
        self.controller.median_ms - self.raw.median_ms
    }

    /// The controller's time as a part of the SDK's.
    #[must_use]
    pub fn vs_sdk(&self) -> f64 {
        self.controller.median_ms / self.sdk.median_ms
    }
}

pub(super) async fn measure(stage: &Stage, options: &Options) -> Result<Vec<Latency>, Error> {
    let mut contest = Contest::prepare(stage).await?;
    let mut all = Vec::new();
    for (workload, rounds) in [(SHORT, options.rounds), (LONG, options.long_rounds())] {
        for launcher in [Launcher::Session, Launcher::OneShot] {
            all.push(contest.run(stage, launcher, workload, rounds).await?);
        }
    }
    Ok(all)
}

struct Contest {
    raw: Sandbox,
    sdk: Sdk,
    follow: Follow,
    posted: usize,
}

impl Contest {
    async fn prepare(stage: &Stage) -> Result<Self, Error> {
        let raw = Sandbox::create(&stage.daytona).await?;
        raw.open(RAW_SESSION).await?;
        let sdk = Sdk::start(&stage.daytona).await?;
        for launcher in [Launcher::Session, Launcher::OneShot] {
            let sessions = launcher == Launcher::Session;
            stage.namespace.create_lease(launcher.lease(), sessions).await?;
        }
        stage.until_ready(LEASES).await?;
        Ok(Self { raw, sdk, follow: stage.namespace.follow(PART), posted: 0 })
    }

    async fn run(
        &mut self,
        stage: &Stage,
        launcher: Launcher,
        workload: Workload,
        rounds: usize,
    ) -> Result<Latency, Error> {
        let script = workload.script;
        // One of each that does not count: connections, caches, the first write of a lease.
        self.round(stage, launcher, workload).await?;
        let (calls, writes) = (stage.last_call().await?, stage.namespace.writes().await?);
        let bar = progress(&format!("{script} {}", launcher.lease()), rounds);
        let (mut raw, mut sdk, mut controller) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let [a, b, c] = self.round(stage, launcher, workload).await?;
            raw.push(a);
            sdk.push(b);
            controller.push(c);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let writes = stage.namespace.writes().await? - writes;
        let sandbox = stage.sandbox_of(launcher.lease()).await?;
        let calls = stage.calls_since(calls).await?;
        let calls = calls.iter().filter(|call| call.sandbox.as_ref() == Some(&sandbox) && is_for_commands(&call.route));
        Ok(Latency {
            launcher,
            script: script.to_owned(),
            raw: Spread::of(&raw),
            sdk: Spread::of(&sdk),
            controller: Spread::of(&controller),
            daytona_calls: per(calls.count() as u64, rounds),
            kube_writes: per(writes.commands + writes.logs, rounds),
            events: per(writes.events, rounds),
            lease_writes: per(writes.leases, rounds),
        })
    }

    async fn round(&mut self, stage: &Stage, launcher: Launcher, workload: Workload) -> Result<[Duration; 3], Error> {
        let script = workload.script;
        let (raw, sdk) = match launcher {
            Launcher::Session => (self.raw.exec(RAW_SESSION, script).await?, self.sdk.exec(script).await?),
            Launcher::OneShot => (self.raw.execute(script).await?, self.sdk.execute(script).await?),
        };
        self.posted += 1;
        let name = format!("{PART}-{}", self.posted);
        let start = Instant::now();
        stage.namespace.create_command(PART, &name, launcher.lease(), script).await?;
        let end = self.follow.end(&name).await?;
        // A figure for a wrong result is none.
        if end.exit_code() != Some(0) || !end.stdout().ends_with(workload.prints) {
            return Err(Error::Wrong(format!("command {name} did not end as it should: {:?}", end.command.data)));
        }
        Ok([raw, sdk, end.at - start])
    }
}

/// Whether a call serves a command, not the look after its sandbox and session.
pub(super) fn is_for_commands(route: &str) -> bool {
    route.contains("/exec") || route.contains("/command/") || route.contains("/files/")
}
