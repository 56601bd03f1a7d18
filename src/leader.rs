//! Leader election by a coordination Lease, after client-go's algorithm.
//!
//! The holder's time is measured by the own clock since the record was last seen to change, so the clocks of two
//! machines need not agree. Each write carries the resourceVersion that it was decided on. A leader acts for two thirds
//! of the time for which it asked, counted from before it asked: a third lies between its last call and the first of
//! whoever comes next.

use std::{
    fmt::Write as _,
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use futures::StreamExt;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use tokio_util::sync::CancellationToken;

use crate::leadership::Leadership;

/// Why a leader has to end.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Somebody else is it now.
    #[error("{0:?} leads now; this controller ends, so that only one acts")]
    Taken(String),
    /// Somebody else was it meanwhile, and what is known here is of before.
    #[error("another one has led meanwhile; this controller ends, to begin anew")]
    Interrupted,
    /// It could not say in time that it still leads.
    #[error("the Lease could not be renewed in time; this controller ends, so that only one acts")]
    NotRenewed,
}

/// One process among those that want to lead.
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    duration: Duration,
    leadership: Leadership,
    clock: fn() -> Timestamp,
    /// The record as it was written last.
    record: Option<Lease>,
}

/// What a look at the record leads to.
#[derive(Debug, PartialEq)]
enum Look {
    /// It is nobody's, or its holder has been silent for too long.
    Free,
    /// It is held for so long at least.
    Held(Duration),
}

/// What was seen of the record, and when it was seen first.
#[derive(Debug, Default)]
struct Seen(Option<(String, Instant)>);

impl Seen {
    /// Judges the record as it is now.
    fn look(&mut self, record: &Lease, usual: Duration, now: Instant) -> Look {
        if holder(record).is_empty() {
            return Look::Free;
        }
        let version = record.resource_version().unwrap_or_default();
        let since = match &self.0 {
            Some((seen, since)) if *seen == version => *since,
            _ => {
                self.0 = Some((version, now));
                now
            }
        };
        let said = record.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let duration = said.and_then(|s| u64::try_from(s).ok()).map_or(usual, Duration::from_secs);
        let left = (since + duration).saturating_duration_since(now);
        if left.is_zero() { Look::Free } else { Look::Held(left) }
    }
}

fn holder(record: &Lease) -> &str {
    record.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

impl Election {
    /// Takes part under a name that no other process has. `duration`: how long a silent leader is waited for.
    #[must_use]
    pub fn new(
        api: Api<Lease>,
        name: &str,
        host: &str,
        duration: Duration,
        leadership: Leadership,
        clock: fn() -> Timestamp,
    ) -> Self {
        let mut identity = host.to_owned();
        // A random number: two processes on one host, or one that was started anew, are not the same.
        let _ = write!(identity, "_{:016x}", RandomState::new().hash_one(std::process::id()));
        Self { api, name: name.to_owned(), identity, duration, leadership, clock, record: None }
    }

    /// Does `work` once this process leads, and for as long as it does; gives the lead up afterwards.
    ///
    /// # Errors
    /// When the lead is lost. The work has been dropped then; the process is to end.
    pub async fn lead(
        mut self,
        won: impl FnOnce(),
        work: impl Future<Output = ()>,
        stop: &CancellationToken,
    ) -> Result<(), Lost> {
        tracing::info!(identity = %self.identity, lease = %self.name, "waiting to lead");
        if Box::pin(stop.run_until_cancelled(self.win())).await.is_none() {
            // It may have been won in this moment.
            self.release().await;
            return Ok(());
        }
        tracing::info!(identity = %self.identity, "leading");
        won();
        tokio::select! {
            () = work => {}
            lost = self.keep() => return Err(lost),
        }
        self.release().await;
        Ok(())
    }

    /// Waits until this process is the leader.
    async fn win(&mut self) {
        let mut changes = std::pin::pin!(watcher::watch_object(self.api.clone(), &self.name).default_backoff());
        let mut seen = Seen::default();
        loop {
            let wait = match self.attempt(&mut seen).await {
                Ok(None) => return,
                Ok(Some(wait)) => wait,
                Err(error) => {
                    tracing::warn!(%error, lease = %self.name, "cannot take part in the election; trying again");
                    self.pause()
                }
            };
            // A change is news, such as that the leader has left. A watch that tells none costs time, nothing else.
            tokio::select! {
                Some(_) = changes.next() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Leads, or says how long to wait.
    async fn attempt(&mut self, seen: &mut Seen) -> Result<Option<Duration>, Failed> {
        let found = self.call(self.api.get_opt(&self.name)).await?;
        if let Some(record) = &found
            && let Look::Held(left) = seen.look(record, self.duration, Instant::now())
        {
            return Ok(Some(left));
        }
        match self.write(found.as_ref()).await {
            Ok(()) => Ok(None),
            // Somebody else was faster.
            Err(Failed::Api(kube::Error::Api(status))) if status.is_conflict() || status.is_already_exists() => {
                Ok(Some(self.pause()))
            }
            Err(error) => Err(error),
        }
    }

    /// Renews until the lead is lost.
    async fn keep(&mut self) -> Lost {
        let mut next = self.duration / 3;
        loop {
            tokio::time::sleep(next).await;
            next = match self.renew().await {
                Ok(()) => self.duration / 3,
                Err(Renewal::Lost(lost)) => {
                    self.leadership.give_up();
                    return lost;
                }
                Err(Renewal::Failed(error)) => {
                    tracing::warn!(%error, lease = %self.name, "the Lease was not renewed; trying again");
                    self.pause()
                }
            };
            if self.leadership.check().is_err() {
                return Lost::NotRenewed;
            }
        }
    }

    async fn renew(&mut self) -> Result<(), Renewal> {
        let record = self.record.clone();
        match self.write(record.as_ref()).await {
            Err(Failed::Api(kube::Error::Api(status)))
                if status.is_conflict() || status.is_already_exists() || status.is_not_found() =>
            {
                let found = self.call(self.api.get_opt(&self.name)).await?;
                match found.as_ref().map(holder) {
                    // It was changed otherwise, or by an own write whose answer was lost.
                    Some(holder) if holder == self.identity => Ok(self.write(found.as_ref()).await?),
                    Some("") => Err(Renewal::Lost(Lost::Interrupted)),
                    // It was deleted: made anew, unless somebody else is faster.
                    None => Ok(self.write(None).await?),
                    Some(other) => Err(Renewal::Lost(Lost::Taken(other.to_owned()))),
                }
            }
            other => Ok(other?),
        }
    }

    /// Lets the next one lead at once.
    async fn release(mut self) {
        self.leadership.give_up();
        // A renewal that was under way may have been written.
        let record = match self.call(self.api.get_opt(&self.name)).await {
            Ok(found) => found.filter(|record| holder(record) == self.identity),
            Err(error) => {
                tracing::debug!(%error, "the Lease could not be looked at");
                self.record.take()
            }
        };
        let Some(mut record) = record else { return };
        if let Some(spec) = &mut record.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime((self.clock)()));
        }
        let parameters = PostParams::default();
        match self.call(self.api.replace(&self.name, &parameters, &record)).await {
            Ok(_) => tracing::info!("the lead was given up"),
            Err(error) => tracing::warn!(%error, "the lead was not given up; it ends by itself"),
        }
    }

    /// Writes that this process leads, over the record that was seen.
    async fn write(&mut self, over: Option<&Lease>) -> Result<(), Failed> {
        let record = self.next(over);
        let asked = Instant::now();
        let parameters = PostParams::default();
        let written = match over {
            None => self.call(self.api.create(&parameters, &record)).await?,
            Some(_) => self.call(self.api.replace(&self.name, &parameters, &record)).await?,
        };
        self.leadership.hold(asked + self.duration * 2 / 3);
        self.record = Some(written);
        Ok(())
    }

    fn next(&self, over: Option<&Lease>) -> Lease {
        let now = MicroTime((self.clock)());
        let before = over.and_then(|record| record.spec.clone()).unwrap_or_default();
        let same = before.holder_identity.as_deref() == Some(self.identity.as_str());
        let transitions = before.lease_transitions.unwrap_or(0);
        let metadata = over.map_or_else(
            || ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            |record| record.metadata.clone(),
        );
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
                acquire_time: if same { before.acquire_time } else { Some(now.clone()) },
                renew_time: Some(now),
                lease_transitions: Some(if same || over.is_none() {
                    transitions
                } else {
                    transitions.saturating_add(1)
                }),
                ..LeaseSpec::default()
            }),
        }
    }

    /// A call that is over, one way or the other, before the next is due.
    async fn call<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Result<T, Failed> {
        let limit = self.duration / 4;
        Ok(tokio::time::timeout(limit, call).await.map_err(|_| Failed::Slow(limit))??)
    }

    fn pause(&self) -> Duration {
        self.duration / 15
    }
}

/// Why a call about the Lease has not succeeded.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("no answer within {0:?}")]
    Slow(Duration),
}

enum Renewal {
    Lost(Lost),
    Failed(Failed),
}

impl From<Failed> for Renewal {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str, version: &str, seconds: i32) -> Lease {
        Lease {
            metadata: ObjectMeta { resource_version: Some(version.to_owned()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: Some(seconds),
                ..LeaseSpec::default()
            }),
        }
    }

    #[test]
    fn a_leader_is_waited_for_from_when_its_record_last_changed() {
        let (usual, start) = (Duration::from_secs(15), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut seen = Seen::default();
        assert_eq!(seen.look(&record("a", "1", 15), usual, at(0)), Look::Held(usual));
        assert_eq!(seen.look(&record("a", "1", 15), usual, at(10)), Look::Held(Duration::from_secs(5)));
        assert_eq!(seen.look(&record("a", "2", 15), usual, at(14)), Look::Held(usual), "it was renewed");
        assert_eq!(seen.look(&record("a", "2", 15), usual, at(28)), Look::Held(Duration::from_secs(1)));
        assert_eq!(seen.look(&record("a", "2", 15), usual, at(29)), Look::Free);
    }

    #[test]
    fn what_the_record_says_counts_and_nobody_is_not_waited_for() {
        let (usual, now) = (Duration::from_secs(15), Instant::now());
        let look = |record: &Lease| Seen::default().look(record, usual, now);
        assert_eq!(look(&record("a", "1", 40)), Look::Held(Duration::from_secs(40)));
        assert_eq!(look(&record("", "1", 40)), Look::Free);
        assert_eq!(look(&Lease::default()), Look::Free);
        let mut silent = record("a", "1", 1);
        silent.spec.as_mut().unwrap().lease_duration_seconds = None;
        assert_eq!(look(&silent), Look::Held(usual));
    }

    #[tokio::test]
    async fn taking_over_counts_a_transition_and_renewing_does_not() {
        let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(axum::http::Response::new(kube::client::Body::empty()))
        });
        let client = kube::Client::new(service, "ns");
        let clock = || Timestamp::from_second(1_000_000).unwrap();
        let duration = Duration::from_secs(15);
        let mine = Election::new(Api::namespaced(client, "ns"), "l", "host", duration, Leadership::of_several(), clock);
        let spec = |lease: Lease| lease.spec.unwrap();
        let first = mine.next(None);
        assert_eq!(spec(first.clone()).lease_transitions, Some(0));
        assert!(spec(first.clone()).holder_identity.unwrap().starts_with("host_"));
        assert_eq!(spec(mine.next(Some(&first))).lease_transitions, Some(0));
        assert_eq!(spec(mine.next(Some(&first))).acquire_time, spec(first).acquire_time);
        let taken = mine.next(Some(&record("other", "7", 15)));
        assert_eq!(taken.metadata.resource_version.as_deref(), Some("7"), "what was seen is what is replaced");
        assert_eq!(spec(taken).lease_transitions, Some(1));
    }
}
