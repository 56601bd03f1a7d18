//! The sandboxes and their states.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::clock::{Clock, Moment};
use super::daemon::Daemon;
use super::environment::{Environment, Shell};
use super::model::{SandboxReport, Settings};
use super::problem::Problem;
use super::processes::Processes;
use super::record::{self, ARCHIVED, Create, DESTROYED, Record, STARTED, STOPPED, Transition};
use super::{DEFAULT_SNAPSHOT, Options, lock};

#[derive(Debug)]
pub(super) struct Service {
    pub(super) clock: Clock,
    pub(super) organization: String,
    pub(super) api_key: String,
    /// `http://127.0.0.1:PORT`
    pub(super) origin: String,
    pub(super) processes: Arc<Processes>,
    shell: Shell,
    pub(super) grace: Duration,
    pub(super) dir: PathBuf,
    snapshots: Mutex<Vec<String>>,
    settings: Mutex<Settings>,
    sandboxes: Mutex<BTreeMap<String, Record>>,
}

/// What a request to a toolbox finds.
#[derive(Debug)]
pub(super) enum Entry {
    Unknown,
    NotStarted,
    Ready(Arc<Daemon>),
}

/// The interval that a setter sets.
#[derive(Debug, Clone, Copy)]
pub(super) enum Interval {
    Stop,
    Archive,
    Delete,
    Ttl,
}

impl Service {
    pub(super) fn new(options: Options, dir: &Path, origin: String) -> io::Result<Arc<Self>> {
        let mut snapshots = options.snapshots;
        snapshots.push(DEFAULT_SNAPSHOT.to_owned());
        let shell = Shell::choose(options.shell.as_deref(), &dir.join("shell"), !options.unthrottled)?;
        let dir = dir.join("sandboxes");
        fs::create_dir_all(&dir)?;
        Ok(Arc::new(Self {
            clock: Clock::default(),
            organization: options.organization,
            api_key: options.api_key,
            origin,
            processes: Arc::new(Processes::new()?),
            shell,
            grace: Duration::from_millis(options.session_grace_ms),
            dir,
            snapshots: Mutex::new(snapshots),
            settings: Mutex::default(),
            sandboxes: Mutex::default(),
        }))
    }

    pub(super) fn show(&self, record: &Record) -> Value {
        record.show(&self.organization, &self.toolbox_url())
    }

    pub(super) fn toolbox_url(&self) -> String {
        self.settings().toolbox_url.unwrap_or_else(|| format!("{}/toolbox", self.origin))
    }

    pub(super) fn records(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        lock(&self.sandboxes)
    }

    pub(super) fn add_snapshot(&self, name: String) {
        lock(&self.snapshots).push(name);
    }

    pub(super) fn settings(&self) -> Settings {
        lock(&self.settings).clone()
    }

    /// Takes over the settings that are present, and says what holds now.
    pub(super) fn set(&self, new: Settings) -> Settings {
        let mut settings = lock(&self.settings);
        settings.create_delay_seconds = new.create_delay_seconds.or(settings.create_delay_seconds);
        settings.delete_delay_seconds = new.delete_delay_seconds.or(settings.delete_delay_seconds);
        settings.start_delay_seconds = new.start_delay_seconds.or(settings.start_delay_seconds);
        settings.stop_delay_seconds = new.stop_delay_seconds.or(settings.stop_delay_seconds);
        settings.api_key = new.api_key.or_else(|| settings.api_key.take());
        settings.toolbox_url = new.toolbox_url.or_else(|| settings.toolbox_url.take());
        settings.clone()
    }

    /// Creates a sandbox, and says its id and how it looks.
    pub(super) fn create(&self, mut given: Create) -> Result<(String, Value), Problem> {
        given.check()?;
        if given.build_info.is_none() {
            let snapshot = given.snapshot.get_or_insert_with(|| DEFAULT_SNAPSHOT.to_owned());
            if !lock(&self.snapshots).contains(snapshot) {
                return Err(Problem::bad_request(format!("Snapshot {snapshot} not found")));
            }
        }
        let id = Uuid::new_v4().to_string();
        let name = given.name.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| id.clone());
        let mut records = self.records();
        if records.values().any(|record| record.name == name) {
            return Err(Problem::conflict(format!("Sandbox with name {name} already exists")));
        }
        let environment = Environment::create(
            self.dir.join(&id),
            &id,
            given.user.as_deref().unwrap_or("daytona"),
            given.env.clone(),
            self.shell.clone(),
            Arc::clone(&self.processes),
        )
        .map_err(|error| Problem::bad_request(format!("Sandbox failed to start: {error}")))?;
        let now = self.clock.now();
        let delay = self.settings().create_delay_seconds.unwrap_or(0);
        let started = Transition { due: now.after(Duration::from_secs(delay)), to: STARTED };
        let mut record = Record::new(id.clone(), name, given, environment, now);
        record.transition = Some(started);
        // The path through a build always answers before it has ended.
        if delay == 0 && record.given.build_info.is_none() {
            self.settle(&mut record, now);
        }
        let shown = self.show(&record);
        records.insert(id.clone(), record);
        Ok((id, shown))
    }

    /// Starts a stopped or archived sandbox.
    pub(super) fn start(&self, key: &str) -> Result<Value, Problem> {
        let mut records = self.records();
        let record = find(&mut records, key)?;
        if record.is_pending() {
            return Err(in_progress());
        }
        match record.state.as_str() {
            STARTED => return Ok(self.show(record)),
            STOPPED => {}
            ARCHIVED => "restoring".clone_into(&mut record.state),
            _ if record.is_errored() => return Err(Problem::bad_request("Sandbox is in an errored state")),
            _ => return Err(Problem::bad_request("Sandbox is not in a startable state")),
        }
        let now = self.clock.now();
        let delay = self.settings().start_delay_seconds.unwrap_or(0);
        STARTED.clone_into(&mut record.desired);
        record.updated_at = now;
        record.transition = Some(Transition { due: now.after(Duration::from_secs(delay)), to: STARTED });
        if delay == 0 {
            self.settle(record, now);
        }
        Ok(self.show(record))
    }

    /// Stops a started sandbox; an ephemeral one is destroyed instead.
    pub(super) fn stop(self: &Arc<Self>, key: &str) -> Result<Value, Problem> {
        let mut records = self.records();
        let record = find(&mut records, key)?;
        if record.is_errored() {
            return Err(Problem::bad_request("Sandbox is in an errored state"));
        }
        if record.is_pending() {
            return Err(in_progress());
        }
        if record.state != STARTED {
            return Err(Problem::bad_request("Sandbox is not in a stoppable state"));
        }
        self.begin_stop(record);
        Ok(self.show(record))
    }

    /// Begins to delete a sandbox. Its name is free at once.
    pub(super) fn delete(self: &Arc<Self>, key: &str) -> Result<Value, Problem> {
        let mut records = self.records();
        let record = find(&mut records, key)?;
        if record.is_pending() && record.state != "pending_build" {
            return Err(in_progress());
        }
        self.begin_delete(record);
        Ok(self.show(record))
    }

    pub(super) fn archive(&self, key: &str) -> Result<Value, Problem> {
        self.change(key, |record, _| {
            if record.is_pending() {
                return Err(in_progress());
            }
            if record.state != STOPPED {
                return Err(Problem::bad_request("Sandbox is not stopped"));
            }
            if record.is_ephemeral() {
                return Err(Problem::bad_request("Ephemeral sandboxes cannot be archived"));
            }
            ARCHIVED.clone_into(&mut record.state);
            ARCHIVED.clone_into(&mut record.desired);
            Ok(())
        })
    }

    /// Brings a recoverable sandbox back from its error.
    pub(super) fn recover(&self, key: &str, skip_start: bool) -> Result<Value, Problem> {
        let shown = self.change(key, |record, now| {
            if record.state != "error" || record.recoverable != Some(true) {
                return Err(Problem::bad_request("Sandbox is not recoverable"));
            }
            record.error_reason = None;
            record.recoverable = Some(false);
            STOPPED.clone_into(&mut record.state);
            STOPPED.clone_into(&mut record.desired);
            record.stopped_at = Some(now);
            Ok(())
        })?;
        if skip_start { Ok(shown) } else { self.start(key) }
    }

    pub(super) fn set_labels(&self, key: &str, labels: BTreeMap<String, Value>) -> Result<Value, Problem> {
        self.change(key, |record, _| {
            record.given.labels = labels;
            Ok(())
        })
    }

    pub(super) fn set_interval(&self, key: &str, which: Interval, minutes: i64) -> Result<Value, Problem> {
        self.change(key, |record, _| {
            if minutes < 0 && !matches!(which, Interval::Delete) {
                return Err(Problem::bad_request("Interval must be a non-negative integer"));
            }
            match which {
                Interval::Stop => record.auto_stop = minutes,
                Interval::Archive => record.auto_archive = record::archive_interval(minutes),
                Interval::Delete => record.auto_delete = minutes.max(-1),
                Interval::Ttl => record.ttl_minutes = minutes,
            }
            Ok(())
        })
    }

    /// Activity that the caller reports itself.
    pub(super) fn touch(&self, id: &str) -> Result<(), Problem> {
        let mut records = self.records();
        let record = records.get_mut(id).ok_or_else(|| Problem::no_sandbox(id))?;
        record.last_activity = self.clock.now();
        Ok(())
    }

    /// A request to the toolbox begins: the daemon that answers it, if the sandbox has one.
    pub(super) fn enter(&self, id: &str, counts: bool) -> Entry {
        let now = self.clock.now();
        let mut records = self.records();
        let Some(record) = records.get_mut(id) else {
            return Entry::Unknown;
        };
        let ready = record.state == STARTED && record.desired == STARTED;
        let Some(daemon) = record.daemon.clone().filter(|_| ready) else {
            return Entry::NotStarted;
        };
        if counts {
            record.open_requests += 1;
            record.notice_activity(now);
        }
        Entry::Ready(daemon)
    }

    pub(super) fn leave(&self, id: &str) {
        if let Some(record) = self.records().get_mut(id) {
            record.open_requests = record.open_requests.saturating_sub(1);
        }
    }

    pub(super) fn report(&self) -> Vec<SandboxReport> {
        let mut processes = self.processes.by_sandbox();
        let records = self.records();
        let mut reports: Vec<_> = records.values().collect();
        reports.sort_by_key(|record| record.created_at);
        reports.into_iter().map(|record| report(record, processes.remove(&record.id))).collect()
    }

    fn change(
        &self,
        key: &str,
        change: impl FnOnce(&mut Record, Moment) -> Result<(), Problem>,
    ) -> Result<Value, Problem> {
        let now = self.clock.now();
        let mut records = self.records();
        let record = find(&mut records, key)?;
        change(record, now)?;
        record.updated_at = now;
        Ok(self.show(record))
    }
}

/// The sandbox with this id or, while it is not being deleted, this name.
pub(super) fn find<'a>(records: &'a mut BTreeMap<String, Record>, key: &str) -> Result<&'a mut Record, Problem> {
    let record = find_any(records, key)?;
    if record.is_hidden() { Err(Problem::no_sandbox(key)) } else { Ok(record) }
}

pub(super) fn find_any<'a>(records: &'a mut BTreeMap<String, Record>, key: &str) -> Result<&'a mut Record, Problem> {
    let id = if records.contains_key(key) {
        Some(key.to_owned())
    } else {
        let named = |record: &&Record| record.name == key && record.desired != DESTROYED;
        records.values().find(named).map(|record| record.id.clone())
    };
    id.and_then(|id| records.get_mut(&id)).ok_or_else(|| Problem::no_sandbox(key))
}

fn report(record: &Record, processes: Option<Vec<super::processes::Process>>) -> SandboxReport {
    SandboxReport {
        id: record.id.clone(),
        name: record.name.clone(),
        state: record.shown_state().to_owned(),
        desired_state: record.desired.clone(),
        labels: record.labels().clone(),
        sessions: record.daemon.as_ref().map(|daemon| daemon.session_ids()).unwrap_or_default(),
        processes: processes.map_or(0, |processes| processes.len()),
        dir: record.environment.root.clone(),
        auto_stop_interval: record.auto_stop,
        last_activity_at: record.last_activity.to_string(),
    }
}

fn in_progress() -> Problem {
    Problem::conflict("Sandbox state change in progress")
}
