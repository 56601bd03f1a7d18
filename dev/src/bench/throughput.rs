//! How many short commands end per second in many leases at once, beside a plain program that makes the service's own
//! calls and as many writes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use futures::stream::{self, StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::figures::per;
use super::kubernetes::Namespace;
use super::latency::LEASES as LEASES_OF_LATENCY;
use super::load::create_leases;
use super::raw::Sandbox;
use super::stage::{PLAIN, Stage};
use super::{Error, Options, progress};

const PART: &str = "throughput";
const SCRIPT: &str = "true";
const SESSION: &str = "plain";

/// How many commands are posted at once.
const POSTING: usize = 32;

/// Commands per second.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Throughput {
    /// Leases, and sandboxes of the plain program.
    pub leases: usize,
    /// Commands, all together.
    pub commands: usize,
    /// By the controller.
    pub controller_per_s: f64,
    /// By the plain program.
    pub plain_per_s: f64,
    /// The controller's writes per command when they wait for each other: on commands and stored logs, on leases, events.
    pub writes: [f64; 3],
    /// The plain program's writes per command.
    pub plain_writes: u64,
    /// Calls to Daytona per command.
    pub daytona_calls: f64,
}

impl Throughput {
    /// The controller's as a part of the plain program's.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.controller_per_s / self.plain_per_s
    }
}

/// The name of the lease with this number.
pub(super) fn lease(number: usize) -> String {
    format!("lease-{number}")
}

pub(super) async fn measure(stage: &Stage, options: &Options) -> Result<Throughput, Error> {
    let commands = options.leases * options.per_lease;
    create_leases(stage, 0..options.leases).await?;
    stage.until_ready(options.leases + LEASES_OF_LATENCY).await?;
    let (calls, before) = (stage.last_call().await?, stage.namespace.writes().await?);
    let controller = by_the_controller(stage, options, commands).await?;
    let (calls, after) = (stage.calls_since(calls).await?.len(), stage.namespace.writes().await? - before);
    let of_commands = after.commands + after.logs;
    // To the nearest whole number.
    let each = (of_commands + commands as u64 / 2) / commands as u64;
    let plain = by_a_plain_program(stage, options, each).await?;
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let commands_f64 = commands as f64;
    Ok(Throughput {
        leases: options.leases,
        commands,
        controller_per_s: commands_f64 / controller,
        plain_per_s: commands_f64 / plain,
        plain_writes: each,
        writes: [of_commands, after.leases, after.events].map(|count| per(count, commands)),
        daytona_calls: per(calls as u64, commands),
    })
}

/// Seconds from the first POST to the last end.
async fn by_the_controller(stage: &Stage, options: &Options, commands: usize) -> Result<f64, Error> {
    let follow = stage.namespace.follow(PART);
    let start = Instant::now();
    let bar = progress("throughput: controller", commands);
    post(&stage.namespace, PART, PART, 0..options.leases, options.per_lease, SCRIPT).await?;
    let last = {
        let ends = follow.ends(commands);
        tokio::pin!(ends);
        loop {
            tokio::select! {
                last = &mut ends => break last?,
                () = super::look() => bar.set_position(follow.count() as u64),
            }
        }
    };
    bar.finish_and_clear();
    match follow.failures() {
        0 => Ok((last - start).as_secs_f64()),
        failed => Err(Error::Wrong(format!("{failed} of {commands} commands did not exit with 0"))),
    }
}

/// Posts `each` commands in each of these leases, in turns; their names begin with the prefix.
pub(super) async fn post(
    namespace: &Namespace,
    part: &str,
    prefix: &str,
    leases: Range<usize>,
    each: usize,
    script: &str,
) -> Result<(), Error> {
    let all = (0..each).flat_map(|turn| leases.clone().map(move |number| (turn, number)));
    stream::iter(all.map(Ok))
        .try_for_each_concurrent(POSTING, |(turn, number)| async move {
            let name = format!("{prefix}-{number}-{turn}");
            namespace.create_command(part, &name, &lease(number), script).await
        })
        .await
}

/// Seconds from the first POST to the last end, of the same number of commands in as many sandboxes.
async fn by_a_plain_program(stage: &Stage, options: &Options, writes: u64) -> Result<f64, Error> {
    let namespace = stage.namespace.beside(PLAIN);
    let sandboxes: Vec<_> = stream::iter(0..options.leases)
        .map(|_| async {
            let sandbox = Sandbox::create(&stage.daytona).await?;
            sandbox.open(SESSION).await?;
            Ok::<_, Error>(sandbox)
        })
        .buffer_unordered(POSTING)
        .try_collect()
        .await?;
    let bar = Arc::new(progress("throughput: plain program", options.leases * options.per_lease));
    let start = Instant::now();
    // A command is taken up as soon as it and those before it are there, as the controller does.
    let (queues, workers): (Vec<_>, Vec<_>) = sandboxes
        .into_iter()
        .map(|sandbox| {
            let (queue, mut commands) = tokio::sync::mpsc::unbounded_channel::<String>();
            let (namespace, bar) = (namespace.clone(), Arc::clone(&bar));
            let worker = tokio::spawn(async move {
                while let Some(name) = commands.recv().await {
                    run_plainly(&namespace, &sandbox, &name, writes).await?;
                    bar.inc(1);
                }
                Ok::<_, Error>(())
            });
            (queue, worker)
        })
        .unzip();
    let all = (0..options.per_lease)
        .flat_map(|turn| queues.iter().enumerate().map(move |(number, queue)| (turn, number, queue)));
    stream::iter(all.map(Ok))
        .try_for_each_concurrent(POSTING, |(turn, number, queue)| {
            let namespace = &namespace;
            async move {
                let name = format!("{PART}-{number}-{turn}");
                namespace.create_command(PART, &name, &lease(number), SCRIPT).await?;
                // A worker that is gone says why below.
                let _ = queue.send(name);
                Ok::<_, Error>(())
            }
        })
        .await?;
    drop(queues);
    for worker in workers {
        worker.await??;
    }
    bar.finish_and_clear();
    Ok(start.elapsed().as_secs_f64())
}

/// One command: half of the writes before it, half after it. They say about what the controller's say.
async fn run_plainly(namespace: &Namespace, sandbox: &Sandbox, name: &str, writes: u64) -> Result<(), Error> {
    let before = writes.div_ceil(2);
    for number in 0..before {
        namespace.patch_status(name, &status("Running", number)).await?;
    }
    sandbox.exec(SESSION, SCRIPT).await?;
    for number in before..writes {
        namespace.patch_status(name, &status("Finished", number)).await?;
    }
    Ok(())
}

/// A status with the same conditions as the controller's; the number makes each write a change.
fn status(state: &str, number: u64) -> Value {
    let conditions = ["Started", "Finished", "Succeeded", "Ready", "Reconciling"].map(|type_| {
        json!({
            "type": type_, "status": "True", "reason": state, "message": format!("write {number}"),
            "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    });
    json!({ "status": { "state": state, "conditions": conditions, "observedGeneration": 1 } })
}
