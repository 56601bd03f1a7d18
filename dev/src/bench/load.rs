//! The controller under a load that stays: many leases, many finished and many queued commands. What it holds in
//! memory, and what it does when nothing happens.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use futures::stream::{self, TryStreamExt};
use serde::{Deserialize, Serialize};

use super::latency::{LEASES as LEASES_OF_LATENCY, is_for_commands};
use super::stage::Stage;
use super::{Error, Options, look, progress, throughput};

const FINISHED: &str = "finished";
const BLOCKING: &str = "blocking";
const QUEUED: &str = "queued";

/// Each lease that has commands queued has so many.
const QUEUE: usize = 100;

/// How many commands are under way at once until enough have ended: they are to have ended, not to run.
const AT_ONCE: usize = 100;

/// How many leases are created at once.
const CREATING: usize = 16;

/// What was there, and what it took.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load {
    /// Leases, each with a sandbox and a session.
    pub leases: usize,
    /// Commands that have ended.
    pub finished: usize,
    /// Commands that wait for their turn, besides one running in each of their leases.
    pub queued: usize,
    /// Seconds until all leases were ready.
    pub leases_ready_s: f64,
    /// The most memory that the controller has held, from its start on.
    pub peak_mib: f64,
    /// The most memory of a controller that was started when all was there, and then had the queued commands run.
    pub peak_after_restart_mib: f64,
    /// Calls to Daytona in a minute in which nothing happens, by route.
    pub idle_calls: BTreeMap<String, f64>,
    /// Writes on commands, stored logs, leases, and events in that minute.
    pub idle_writes: f64,
}

impl Load {
    /// Of the calls per minute those that serve commands, which all have ended.
    #[must_use]
    pub fn idle_calls_for_commands(&self) -> f64 {
        // The sum of nothing is -0.0.
        self.idle_calls.iter().filter(|(route, _)| is_for_commands(route)).fold(0.0, |sum, (_, count)| sum + count)
    }

    /// The higher of both peaks.
    #[must_use]
    pub fn rss_mib(&self) -> f64 {
        self.peak_mib.max(self.peak_after_restart_mib)
    }
}

pub(super) async fn measure(stage: &mut Stage, options: &Options) -> Result<Load, Error> {
    let leases_ready_s = more_leases(stage, options).await?;
    let finished = finish(stage, options).await?;
    let queued = Queued::fill(stage, options).await?;
    let peak_mib = stage.peak_mib()?;
    stage.restart_controller().await?;
    queued.until_seen(stage).await?;
    queued.release(stage).await?;
    let (idle_calls, idle_writes) = idle(stage, options).await?;
    let peak_after_restart_mib = stage.peak_mib()?;
    Ok(Load {
        leases: options.load_leases,
        finished,
        queued: queued.count,
        leases_ready_s,
        peak_mib,
        peak_after_restart_mib,
        idle_calls,
        idle_writes,
    })
}

async fn more_leases(stage: &Stage, options: &Options) -> Result<f64, Error> {
    let start = Instant::now();
    create_leases(stage, options.leases..options.load_leases).await?;
    stage.until_ready(options.load_leases + LEASES_OF_LATENCY).await?;
    Ok(start.elapsed().as_secs_f64())
}

/// Has commands run until enough have ended, those of the parts before included.
async fn finish(stage: &Stage, options: &Options) -> Result<usize, Error> {
    let before = options.leases * options.per_lease;
    let each = options.finished.saturating_sub(before).div_ceil(options.load_leases);
    let count = each * options.load_leases;
    let follow = stage.namespace.follow(FINISHED);
    let bar = progress("load: finished commands", count);
    let ended = async {
        let rounds =
            (0..each).flat_map(|turn| (0..options.load_leases).step_by(AT_ONCE).map(move |first| (turn, first)));
        let mut posted = 0;
        for (turn, first) in rounds {
            let leases = first..options.load_leases.min(first + AT_ONCE);
            posted += leases.len();
            throughput::post(&stage.namespace, FINISHED, &format!("{FINISHED}-{turn}"), leases, 1, "true").await?;
            follow.ends(posted).await?;
        }
        Ok::<_, Error>(())
    };
    tokio::pin!(ended);
    loop {
        tokio::select! {
            end = &mut ended => {
                end?;
                break;
            }
            () = look() => bar.set_position(follow.count() as u64),
        }
    }
    bar.finish_and_clear();
    match follow.failures() {
        0 => Ok(before + count),
        failed => Err(Error::Wrong(format!("{failed} of {count} commands did not exit with 0"))),
    }
}

/// Leases with a running command and more behind it.
struct Queued {
    leases: usize,
    count: usize,
}

impl Queued {
    async fn fill(stage: &Stage, options: &Options) -> Result<Self, Error> {
        let leases = options.queued.div_ceil(QUEUE);
        let queued = Self { leases, count: leases * QUEUE };
        let wait = "mkfifo ~/go 2>/dev/null; cat ~/go";
        throughput::post(&stage.namespace, BLOCKING, BLOCKING, 0..leases, 1, wait).await?;
        stage.until_counted("running", leases).await?;
        throughput::post(&stage.namespace, QUEUED, QUEUED, 0..leases, QUEUE, "true").await?;
        queued.until_seen(stage).await?;
        Ok(queued)
    }

    async fn until_seen(&self, stage: &Stage) -> Result<(), Error> {
        stage.until_counted("queued", self.count).await
    }

    /// Lets all of them run to their end.
    async fn release(&self, stage: &Stage) -> Result<(), Error> {
        let (blocking, queued) = (stage.namespace.follow(BLOCKING), stage.namespace.follow(QUEUED));
        for number in 0..self.leases {
            let home = stage.home_of(&throughput::lease(number)).await?;
            // The reader has opened it already, so this waits for nobody.
            tokio::task::spawn_blocking(move || std::fs::write(home.join("go"), ""))
                .await?
                .map_err(|source| Error::File { path: "go".into(), source })?;
        }
        blocking.ends(self.leases).await?;
        queued.ends(self.count).await?;
        Ok(())
    }
}

/// A while in which nobody does anything: calls and writes per minute.
async fn idle(stage: &Stage, options: &Options) -> Result<(BTreeMap<String, f64>, f64), Error> {
    let seconds = options.idle_seconds();
    let bar = progress("idle", usize::try_from(seconds).unwrap_or_default());
    // What the end before it has stirred up must settle first; the leases' gauges follow ten seconds later.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let (calls, writes) = (stage.last_call().await?, stage.namespace.writes().await?);
    for _ in 0..seconds {
        look().await;
        bar.inc(1);
    }
    let (calls, writes) = (stage.calls_since(calls).await?, stage.namespace.writes().await? - writes);
    bar.finish_and_clear();
    #[expect(clippy::cast_precision_loss, reason = "a minute or less, a few thousand calls")]
    let per_minute = |count: u64| count as f64 * 60.0 / seconds as f64;
    let mut by_route: BTreeMap<String, u64> = BTreeMap::new();
    for call in calls {
        *by_route.entry(call.route).or_default() += 1;
    }
    let by_route = by_route.into_iter().map(|(route, count)| (route, per_minute(count))).collect();
    Ok((by_route, per_minute(writes.commands + writes.logs + writes.leases + writes.events)))
}

/// Creates leases, several at once.
pub(super) async fn create_leases(stage: &Stage, leases: Range<usize>) -> Result<(), Error> {
    stream::iter(leases.map(Ok))
        .try_for_each_concurrent(CREATING, |number| async move {
            stage.namespace.create_lease(&throughput::lease(number), true).await
        })
        .await
}
