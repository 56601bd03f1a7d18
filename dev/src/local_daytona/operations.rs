//! What a caller may do to a sandbox, and when it is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::clock::Moment;
use super::problem::Problem;
use super::record::{self, ARCHIVED, ERROR, PAUSED, Record, STARTED, STOPPED};
use super::service::Service;
use crate::faults::Mode;

/// How often a call that waits looks again.
const LOOK: Duration = Duration::from_millis(20);

/// The interval that a setter sets.
#[derive(Debug, Clone, Copy)]
pub(super) enum Interval {
    Stop,
    Archive,
    Delete,
    Pause,
    Ttl,
}

/// What a change of the network says; what is absent stays.
#[derive(Debug, Deserialize)]
pub(super) struct Network {
    #[serde(rename = "networkBlockAll")]
    block_all: Option<bool>,
    #[serde(rename = "networkAllowList")]
    addresses: Option<String>,
    #[serde(rename = "domainAllowList")]
    domains: Option<String>,
}

impl Service {
    /// Starts a stopped or archived sandbox.
    pub(super) fn start(&self, key: &str, mode: Option<Mode>) -> Result<Value, Problem> {
        self.check_not_suspended()?;
        let mut records = self.records();
        let archived = {
            let record = self.find(&mut records, key)?;
            not_errored(record)?;
            not_pending(record)?;
            match record.state.as_str() {
                STARTED => return Ok(self.show(record)),
                STOPPED | PAUSED => None,
                ARCHIVED => Some(record.cpu()),
                _ => return Err(Problem::bad_request("Sandbox is not in valid state")),
            }
        };
        if archived.is_some() {
            self.check_quota(&records, archived)?;
        }
        let record = self.find(&mut records, key)?;
        if archived.is_some() {
            "restoring".clone_into(&mut record.state);
        } else if record.state == PAUSED {
            "resuming".clone_into(&mut record.state);
        }
        STARTED.clone_into(&mut record.desired);
        // What comes from the archive is answered before it is there.
        if self.begin(record, STARTED, self.settings().start_delay_seconds, mode) && archived.is_none() {
            self.settle(record, self.clock.now());
        }
        Ok(self.show(record))
    }

    /// Waits, no longer than the settings say, for a start that was answered like this; says how it looks then. Builds
    /// and what comes from the archive are not waited for.
    pub(super) async fn wait_for_start(&self, begun: &Value) -> Result<Option<Value>, Problem> {
        let text = |field: &str| begun.get(field).and_then(Value::as_str).unwrap_or_default();
        let end = self.clock.now().after(Duration::from_secs(self.settings().answer_wait_seconds.unwrap_or(0)));
        if !matches!(text("state"), "creating" | "starting") {
            return Ok(None);
        }
        loop {
            {
                let records = self.records();
                let Some(record) = records.get(text("id")) else {
                    return Ok(None);
                };
                if record.is_errored() {
                    let reason = record.error_reason.as_deref().unwrap_or_default();
                    return Err(Problem::bad_request(format!("Sandbox failed to start: {reason}")));
                }
                if !record.is_pending() || self.clock.now() >= end {
                    return Ok(Some(self.show(record)));
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Stops a started or paused sandbox; an ephemeral one is destroyed instead.
    pub(super) fn stop(self: &Arc<Self>, key: &str, mode: Option<Mode>) -> Result<Value, Problem> {
        self.change(key, |record, _| {
            not_errored(record)?;
            not_pending(record)?;
            if ![STARTED, PAUSED].contains(&record.state.as_str()) {
                return Err(Problem::bad_request("Sandbox is not in a stoppable state"));
            }
            self.begin_stop(record, mode);
            Ok(())
        })
    }

    /// Begins to delete a sandbox. Its name is free at once.
    pub(super) fn delete(self: &Arc<Self>, key: &str, mode: Option<Mode>) -> Result<Value, Problem> {
        self.change(key, |record, _| {
            if record.state != "pending_build" {
                not_pending(record)?;
            }
            self.begin_delete(record, mode);
            Ok(())
        })
    }

    pub(super) fn archive(&self, key: &str, mode: Option<Mode>) -> Result<Value, Problem> {
        self.change(key, |record, _| {
            not_errored(record)?;
            not_pending(record)?;
            if record.state != STOPPED {
                return Err(Problem::bad_request("Sandbox is not stopped"));
            }
            if record.is_ephemeral() {
                return Err(Problem::bad_request("Ephemeral sandboxes cannot be archived"));
            }
            self.begin_archive(record, mode);
            Ok(())
        })
    }

    /// Containers cannot.
    pub(super) fn pause(&self, key: &str) -> Result<Value, Problem> {
        self.change(key, |record, _| {
            if record.state != STARTED {
                return Err(Problem::bad_request("Sandbox must be in started state to pause"));
            }
            not_pending(record)?;
            Err(Problem::unsupported("Pausing"))
        })
    }

    /// Containers cannot.
    pub(super) fn fork(&self, key: &str) -> Result<Value, Problem> {
        self.change(key, |_, _| Err(Problem::unsupported("Forking")))
    }

    pub(super) fn backup(&self, key: &str) -> Result<Value, Problem> {
        self.change(key, |record, _| {
            if record.is_ephemeral() {
                return Err(Problem::bad_request("Ephemeral sandboxes cannot be backed up"));
            }
            Ok(())
        })
    }

    /// Makes a snapshot of a sandbox that others can be created from.
    pub(super) fn snapshot(&self, key: &str, name: String) -> Result<Value, Problem> {
        let shown = self.change(key, |record, _| {
            if !matches!(record.state.as_str(), STARTED | STOPPED) {
                let message = "Sandbox must be in started or stopped state to create a snapshot";
                return Err(Problem::bad_request(message));
            }
            not_pending(record)
        })?;
        self.add_snapshot(name);
        Ok(shown)
    }

    /// Brings a recoverable sandbox back from its error.
    pub(super) fn recover(&self, key: &str, skip_start: bool) -> Result<Value, Problem> {
        let shown = self.change(key, |record, now| {
            if record.recoverable != Some(true) {
                return Err(Problem::bad_request("Sandbox is not in a recoverable state"));
            }
            if record.state != ERROR {
                return Err(Problem::bad_request("Sandbox must be in error state to recover"));
            }
            self.check_not_suspended()?;
            record.error_reason = None;
            record.recoverable = Some(false);
            STOPPED.clone_into(&mut record.state);
            STOPPED.clone_into(&mut record.desired);
            record.stopped_at = Some(now);
            Ok(())
        })?;
        if skip_start { Ok(shown) } else { self.start(key, None) }
    }

    pub(super) fn set_labels(&self, key: &str, labels: BTreeMap<String, Value>) -> Result<Value, Problem> {
        self.change(key, |record, _| {
            record.given.labels = labels;
            Ok(())
        })
    }

    pub(super) fn set_public(&self, key: &str, public: bool) -> Result<Value, Problem> {
        self.change(key, |record, _| {
            record.given.public = public;
            Ok(())
        })
    }

    /// An allow-list and blocking everything exclude each other; an empty list is none.
    pub(super) fn set_network(&self, key: &str, network: Network) -> Result<Value, Problem> {
        let list = |list: String| Some(list).filter(|list| !list.trim().is_empty());
        self.change(key, |record, _| {
            let given = &mut record.given;
            if let Some(domains) = network.domains {
                given.domain_allow_list = list(domains);
            }
            if let Some(block) = network.block_all {
                given.network_block_all = block;
                given.network_allow_list = None;
            }
            if let Some(addresses) = network.addresses.map(list) {
                given.network_block_all &= addresses.is_none();
                given.network_allow_list = addresses;
            }
            Ok(())
        })
    }

    pub(super) fn set_interval(&self, key: &str, which: Interval, minutes: i64) -> Result<Value, Problem> {
        let name = match which {
            Interval::Stop => "Auto-stop interval",
            Interval::Archive => "Auto-archive interval",
            Interval::Pause => "Auto-pause interval",
            Interval::Ttl => "TTL",
            Interval::Delete => "",
        };
        if minutes < 0 && !name.is_empty() {
            return Err(Problem::bad_request(format!("{name} must be non-negative")));
        }
        self.change(key, |record, now| {
            match which {
                Interval::Stop => record.auto_stop = minutes,
                Interval::Archive => record.auto_archive = record::archive_interval(minutes),
                Interval::Pause => record.given.auto_pause_interval = Some(minutes),
                Interval::Ttl => record.destroy_at = record::destroy_at(minutes, now),
                Interval::Delete if record.given.gpu.unwrap_or(0) > 0 => {
                    return Err(Problem::bad_request("GPU sandboxes must remain ephemeral"));
                }
                Interval::Delete => record.auto_delete = minutes,
            }
            Ok(())
        })
    }

    /// Activity that the caller reports itself.
    pub(super) fn touch(&self, id: &str) -> Result<(), Problem> {
        let (mut records, organization) = (self.records(), self.organization());
        let record = records.get_mut(id).filter(|record| record.organization == organization);
        record.ok_or_else(|| Problem::no_sandbox(id))?.last_activity = self.clock.now();
        Ok(())
    }

    fn change(
        &self,
        key: &str,
        change: impl FnOnce(&mut Record, Moment) -> Result<(), Problem>,
    ) -> Result<Value, Problem> {
        let now = self.clock.now();
        let mut records = self.records();
        let record = self.find(&mut records, key)?;
        change(record, now)?;
        record.updated_at = now;
        Ok(self.show(record))
    }
}

fn not_pending(record: &Record) -> Result<(), Problem> {
    if record.is_pending() { Err(Problem::conflict("Sandbox state change in progress")) } else { Ok(()) }
}

fn not_errored(record: &Record) -> Result<(), Problem> {
    if record.is_errored() { Err(Problem::bad_request("Sandbox is in an errored state")) } else { Ok(()) }
}
