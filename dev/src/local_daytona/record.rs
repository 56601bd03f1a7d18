//! A sandbox as the control plane keeps it, and as it shows it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::clock::Moment;
use super::create::{BuildInfo, Create};
use super::daemon::Daemon;
use super::environment::Environment;

pub(super) const STARTED: &str = "started";
pub(super) const STOPPED: &str = "stopped";
pub(super) const ARCHIVED: &str = "archived";
pub(super) const PAUSED: &str = "paused";
pub(super) const DESTROYED: &str = "destroyed";
pub(super) const ERROR: &str = "error";

/// The longest time to the archive, in minutes; 0 asks for it.
pub(super) const LONGEST_ARCHIVE_INTERVAL: i64 = 43_200;

/// The recorded activity may be so much older than the last request.
const ACTIVITY_THROTTLE: Duration = Duration::from_secs(45);

/// The end of a transition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transition {
    pub(super) due: Moment,
    pub(super) to: &'static str,
    /// The reason, if it ends in an error.
    pub(super) why: Option<&'static str>,
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) organization: String,
    pub(super) name: String,
    pub(super) given: Create,
    pub(super) auto_stop: i64,
    pub(super) auto_archive: i64,
    pub(super) auto_delete: i64,
    /// Destroyed then, whatever its state is.
    pub(super) destroy_at: Option<Moment>,
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

/// 0 is the longest, and so is all that is longer.
pub(super) fn archive_interval(minutes: i64) -> i64 {
    if minutes == 0 { LONGEST_ARCHIVE_INTERVAL } else { minutes.min(LONGEST_ARCHIVE_INTERVAL) }
}

/// When a TTL that is set now ends a sandbox; 0 is never.
pub(super) fn destroy_at(minutes: i64, now: Moment) -> Option<Moment> {
    let minutes = u64::try_from(minutes).ok().filter(|minutes| *minutes > 0)?;
    Some(now.after(Duration::from_secs(minutes.saturating_mul(60))))
}

impl Record {
    /// A sandbox that is on its way to be started.
    pub(super) fn new(
        (id, name, organization): (String, String, String),
        given: Create,
        environment: Environment,
        now: Moment,
    ) -> Self {
        Self {
            id,
            organization,
            name,
            auto_stop: given.auto_stop_interval.unwrap_or(15),
            auto_archive: archive_interval(given.auto_archive_interval.unwrap_or(10_080)),
            auto_delete: given.auto_delete_interval.unwrap_or(-1),
            destroy_at: destroy_at(given.ttl_minutes.unwrap_or(0), now),
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
        let settled = matches!(self.state.as_str(), STARTED | STOPPED | ARCHIVED);
        self.transition.is_some() || (settled && self.state != self.desired)
    }

    pub(super) fn is_ephemeral(&self) -> bool {
        self.auto_delete == 0
    }

    pub(super) fn is_errored(&self) -> bool {
        matches!(self.state.as_str(), ERROR | "build_failed")
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

    /// How many minutes a start may take from its state, and what is said when it takes longer.
    pub(super) fn patience(&self) -> Option<(u64, &'static str)> {
        match self.state.as_str() {
            "creating" => Some((15, "Timeout while creating sandbox")),
            "pending_build" => Some((60, "Timeout while building")),
            "restoring" => Some((30, "Timeout while starting sandbox")),
            STOPPED if self.desired == STARTED => Some((5, "Timeout while starting sandbox")),
            _ => None,
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
        if self.destroy_at.is_some_and(|moment| moment <= now) {
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
            (STOPPED, Some(since)) if reached(since, self.auto_archive) => Some(Due::Archive),
            _ => None,
        }
    }

    /// The whole object, in the shape of the newest clients.
    pub(super) fn show(&self, toolbox: &str) -> Value {
        let mut shown = self.show_in_list(toolbox);
        let given = &self.given;
        let more = json!({
            "env": given.env,
            "volumes": given.volumes,
            "buildInfo": given.build_info.as_ref().map(|build| self.show_build(build)),
            "networkAllowList": given.network_allow_list,
            "domainAllowList": given.domain_allow_list,
            "linkedSandboxId": given.linked_sandbox,
            "kvm": false,
            "spot": false,
        });
        if let Value::Object(more) = more {
            shown.extend(more.into_iter().filter(|(_, value)| !value.is_null()));
        }
        Value::Object(shown)
    }

    fn show_build(&self, build: &BuildInfo) -> Value {
        json!({
            "dockerfileContent": build.dockerfile_content,
            "contextHashes": build.context_hashes,
            "createdAt": self.created_at.to_string(),
            "updatedAt": self.created_at.to_string(),
            "snapshotRef": format!("build-of-{}", self.id),
        })
    }

    /// As a list shows it: without what only the whole object has.
    pub(super) fn show_in_list(&self, toolbox: &str) -> Map<String, Value> {
        let given = &self.given;
        let shown = json!({
            "id": self.id,
            "organizationId": self.organization,
            "name": self.name,
            "snapshot": given.snapshot,
            "target": given.target.as_deref().unwrap_or("local"),
            "labels": self.labels(),
            "user": given.user.as_deref().unwrap_or("daytona"),
            "public": given.public,
            "networkBlockAll": given.network_block_all,
            "cpu": self.cpu(),
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
            "autoPauseInterval": given.auto_pause_interval,
            "autoDestroyAt": self.destroy_at.map(|moment| moment.to_string()),
            "sandboxClass": "container",
            "daemonVersion": "0.226.1",
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

    pub(super) fn cpu(&self) -> u32 {
        self.given.cpu.unwrap_or(1)
    }

    pub(super) fn labels(&self) -> &BTreeMap<String, Value> {
        &self.given.labels
    }
}
