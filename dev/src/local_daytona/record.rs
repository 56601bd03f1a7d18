//! A sandbox as the control plane keeps it, and as it shows it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::clock::Moment;
use super::daemon::Daemon;
use super::environment::Environment;
use super::problem::Problem;

pub(super) const STARTED: &str = "started";
pub(super) const STOPPED: &str = "stopped";
pub(super) const ARCHIVED: &str = "archived";
pub(super) const DESTROYED: &str = "destroyed";

/// The longest time to the archive, in minutes; 0 asks for it.
const LONGEST_ARCHIVE_INTERVAL: i64 = 43_200;

/// The recorded activity may be so much older than the last request.
const ACTIVITY_THROTTLE: Duration = Duration::from_secs(45);

/// The body of a create. Unknown fields are ignored, as the service does.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Create {
    pub(super) name: Option<String>,
    pub(super) snapshot: Option<String>,
    pub(super) user: Option<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) labels: BTreeMap<String, Value>,
    pub(super) public: bool,
    pub(super) network_block_all: bool,
    pub(super) network_allow_list: Option<String>,
    pub(super) domain_allow_list: Option<String>,
    pub(super) target: Option<String>,
    pub(super) cpu: Option<u32>,
    pub(super) gpu: Option<u32>,
    pub(super) memory: Option<u32>,
    pub(super) disk: Option<u32>,
    pub(super) auto_stop_interval: Option<i64>,
    pub(super) auto_archive_interval: Option<i64>,
    pub(super) auto_delete_interval: Option<i64>,
    pub(super) auto_pause_interval: Option<i64>,
    pub(super) ttl_minutes: Option<i64>,
    pub(super) volumes: Vec<Value>,
    pub(super) build_info: Option<Value>,
}

impl Create {
    /// What cannot be asked for together, or at all.
    pub(super) fn check(&self) -> Result<(), Problem> {
        let refuse = |message: &str| Err(Problem::bad_request(message));
        if self.build_info.is_some() && self.snapshot.is_some() {
            return refuse("Cannot specify a snapshot when using a build info entry");
        }
        let resources = [self.cpu, self.gpu, self.memory, self.disk];
        if self.build_info.is_none() && resources.iter().any(Option::is_some) {
            return refuse("Cannot specify Sandbox resources when using a snapshot");
        }
        let intervals = [self.auto_stop_interval, self.auto_archive_interval, self.ttl_minutes];
        if intervals.iter().flatten().any(|minutes| *minutes < 0) {
            return refuse("Interval must be a non-negative integer");
        }
        let name = self.name.as_deref().unwrap_or_default();
        if name.contains(['<', '>']) || name.contains("://") || name.chars().any(char::is_control) {
            return refuse("name must not contain HTML, URLs or control characters");
        }
        Ok(())
    }
}

/// The end of a transition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transition {
    pub(super) due: Moment,
    pub(super) to: &'static str,
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) given: Create,
    pub(super) auto_stop: i64,
    pub(super) auto_archive: i64,
    pub(super) auto_delete: i64,
    pub(super) ttl_minutes: i64,
    pub(super) state: String,
    pub(super) desired: String,
    pub(super) error_reason: Option<String>,
    pub(super) recoverable: Option<bool>,
    pub(super) created_at: Moment,
    pub(super) updated_at: Moment,
    pub(super) last_activity: Moment,
    pub(super) stopped_at: Option<Moment>,
    pub(super) transition: Option<Transition>,
    /// Its processes are still being ended.
    pub(super) busy: bool,
    /// Requests to its toolbox that are still open: they keep it awake.
    pub(super) open_requests: usize,
    pub(super) environment: Environment,
    pub(super) daemon: Option<Arc<Daemon>>,
}

/// What its intervals ask for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Stop,
    Archive,
    Destroy,
}

pub(super) fn archive_interval(minutes: i64) -> i64 {
    minutes.min(LONGEST_ARCHIVE_INTERVAL)
}

impl Record {
    /// A sandbox that is on its way to be started.
    pub(super) fn new(id: String, name: String, given: Create, environment: Environment, now: Moment) -> Self {
        Self {
            id,
            name,
            auto_stop: given.auto_stop_interval.unwrap_or(15),
            auto_archive: archive_interval(given.auto_archive_interval.unwrap_or(10_080)),
            auto_delete: given.auto_delete_interval.unwrap_or(-1),
            ttl_minutes: given.ttl_minutes.unwrap_or(0),
            state: if given.build_info.is_some() { "pending_build" } else { "creating" }.to_owned(),
            desired: STARTED.to_owned(),
            error_reason: None,
            recoverable: None,
            created_at: now,
            updated_at: now,
            last_activity: now,
            stopped_at: None,
            transition: None,
            busy: false,
            open_requests: 0,
            environment,
            daemon: None,
            given,
        }
    }

    /// A transition is under way: most operations are refused meanwhile.
    pub(super) fn is_pending(&self) -> bool {
        self.transition.is_some()
    }

    pub(super) fn is_ephemeral(&self) -> bool {
        self.auto_delete == 0
    }

    pub(super) fn is_errored(&self) -> bool {
        matches!(self.state.as_str(), "error" | "build_failed")
    }

    /// An errored one whose deletion was asked for answers 404, and is listed only on request.
    pub(super) fn is_hidden(&self) -> bool {
        self.desired == DESTROYED && self.is_errored()
    }

    /// The shown state is derived from what is and what is wanted.
    pub(super) fn shown_state(&self) -> &str {
        match (self.state.as_str(), self.desired.as_str()) {
            (STARTED, STOPPED) => "stopping",
            (STARTED | STOPPED, DESTROYED) => "destroying",
            (STOPPED, STARTED) => "starting",
            (STOPPED, ARCHIVED) => "archiving",
            (ARCHIVED, STARTED) => "restoring",
            ("unknown", STARTED) => "creating",
            (state, _) => state,
        }
    }

    /// A request to the toolbox was made or is still open.
    pub(super) fn notice_activity(&mut self, now: Moment) {
        if now >= self.last_activity.after(ACTIVITY_THROTTLE) {
            self.last_activity = now;
        }
    }

    pub(super) fn become_stopped(&mut self, now: Moment) {
        self.stopped_at = Some(now);
        if let Some(daemon) = self.daemon.take() {
            daemon.lose();
        }
    }

    /// What the intervals ask for at `now`.
    pub(super) fn due(&self, now: Moment) -> Option<Due> {
        let reached = |since: Moment, minutes: i64| now.minutes_since(since) >= minutes;
        if self.desired == DESTROYED || self.busy {
            return None;
        }
        if self.ttl_minutes > 0 && reached(self.created_at, self.ttl_minutes) {
            return Some(Due::Destroy);
        }
        if self.is_pending() {
            return None;
        }
        match (self.state.as_str(), self.stopped_at) {
            (STARTED, _) if self.auto_stop > 0 && reached(self.last_activity, self.auto_stop) => Some(Due::Stop),
            (STOPPED | ARCHIVED, Some(since)) if self.auto_delete >= 0 && reached(since, self.auto_delete) => {
                Some(Due::Destroy)
            }
            (STOPPED, Some(since)) if reached(since, self.archive_after()) => Some(Due::Archive),
            _ => None,
        }
    }

    fn archive_after(&self) -> i64 {
        if self.auto_archive == 0 { LONGEST_ARCHIVE_INTERVAL } else { self.auto_archive }
    }

    /// The whole object, in the shape of the newest clients.
    pub(super) fn show(&self, organization: &str, toolbox: &str) -> Value {
        let mut shown = self.common(organization, toolbox);
        let given = &self.given;
        let more = json!({
            "env": given.env,
            "volumes": given.volumes,
            "buildInfo": given.build_info,
            "networkAllowList": given.network_allow_list,
            "domainAllowList": given.domain_allow_list,
            "autoPauseInterval": given.auto_pause_interval,
            "ttlMinutes": self.ttl_minutes,
            "class": "small",
            "daemonVersion": "0.226.1",
            "kvm": false,
            "spot": false,
        });
        if let Value::Object(more) = more {
            shown.extend(more.into_iter().filter(|(_, value)| !value.is_null()));
        }
        Value::Object(shown)
    }

    /// As a list shows it.
    pub(super) fn show_in_list(&self, organization: &str, toolbox: &str) -> Value {
        Value::Object(self.common(organization, toolbox))
    }

    fn common(&self, organization: &str, toolbox: &str) -> Map<String, Value> {
        let given = &self.given;
        let shown = json!({
            "id": self.id,
            "organizationId": organization,
            "name": self.name,
            "snapshot": given.snapshot,
            "target": given.target.as_deref().unwrap_or("local"),
            "labels": self.labels(),
            "user": given.user.as_deref().unwrap_or("daytona"),
            "public": given.public,
            "networkBlockAll": given.network_block_all,
            "cpu": given.cpu.unwrap_or(1),
            "gpu": given.gpu.unwrap_or(0),
            "memory": given.memory.unwrap_or(1),
            "disk": given.disk.unwrap_or(3),
            "state": self.shown_state(),
            "desiredState": self.desired,
            "errorReason": self.error_reason,
            "recoverable": self.recoverable,
            "autoStopInterval": self.auto_stop,
            "autoArchiveInterval": self.auto_archive,
            "autoDeleteInterval": self.auto_delete,
            "createdAt": self.created_at.to_string(),
            "updatedAt": self.updated_at.to_string(),
            "lastActivityAt": self.last_activity.to_string(),
            "toolboxProxyUrl": toolbox,
        });
        match shown {
            Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            _ => Map::new(),
        }
    }

    pub(super) fn labels(&self) -> &BTreeMap<String, Value> {
        &self.given.labels
    }
}
