//! The sandboxes and their states.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Map, Value};
use uuid::Uuid;

use super::clock::{Clock, Moment};
use super::create::Create;
use super::daemon::Daemon;
use super::environment::{Environment, Shell};
use super::events::Events;
use super::history::History;
use super::limits::Limiters;
use super::listing::{Page, Query, Row};
use super::model::{SandboxReport, Settings};
use super::problem::Problem;
use super::processes::Processes;
use super::record::{ARCHIVED, DESTROYED, Record, STARTED};
use super::{DEFAULT_SNAPSHOT, Options, lock};
use crate::faults::Mode;

#[derive(Debug)]
pub(super) struct Service {
    pub(super) clock: Clock,
    organization: String,
    pub(super) admin_key: String,
    /// `http://127.0.0.1:PORT`
    pub(super) origin: String,
    pub(super) processes: Arc<Processes>,
    shell: Shell,
    pub(super) grace: Duration,
    pub(super) dir: PathBuf,
    snapshots: Mutex<Vec<String>>,
    settings: Mutex<Settings>,
    sandboxes: Mutex<BTreeMap<String, Record>>,
    pub(super) limiters: Limiters,
    pub(super) history: History,
    pub(super) events: Events,
    /// How many lists have flapped.
    pub(super) flaps: AtomicU64,
}

/// What a request to a toolbox finds.
#[derive(Debug)]
pub(super) enum Entry {
    Unknown,
    /// What the proxy says of it.
    NotStarted(&'static str),
    Ready(Arc<Daemon>),
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
            admin_key: options.api_key,
            origin,
            processes: Arc::new(Processes::new()?),
            shell,
            grace: Duration::from_millis(options.session_grace_ms),
            dir,
            snapshots: Mutex::new(snapshots),
            settings: Mutex::default(),
            sandboxes: Mutex::default(),
            limiters: Limiters::default(),
            history: History::default(),
            events: Events::default(),
            flaps: AtomicU64::new(0),
        }))
    }

    pub(super) fn show(&self, record: &Record) -> Value {
        record.show(&self.toolbox_url())
    }

    /// The key that is accepted now.
    pub(super) fn key(&self) -> String {
        self.settings().api_key.unwrap_or_else(|| self.admin_key.clone())
    }

    /// The organisation that the accepted key belongs to now.
    pub(super) fn organization(&self) -> String {
        self.settings().organization.unwrap_or_else(|| self.organization.clone())
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
    pub(super) fn set(&self, new: &Settings) -> Settings {
        let mut settings = lock(&self.settings);
        let merged = [&*settings, new].map(serde_json::to_value).into_iter().flatten();
        let merged: Map<_, _> = merged.filter_map(|part| part.as_object().cloned()).flatten().collect();
        if let Ok(merged) = serde_json::from_value(merged.into()) {
            *settings = merged;
        }
        settings.clone()
    }

    /// Creates a sandbox, and says its id and how it looks.
    pub(super) fn create(&self, mut given: Create, mode: Option<Mode>) -> Result<(String, Value), Problem> {
        self.check_not_suspended()?;
        if given.build_info.is_none() {
            let snapshot = given.snapshot.get_or_insert_with(|| DEFAULT_SNAPSHOT.to_owned());
            if !lock(&self.snapshots).contains(snapshot) {
                let hint = "Did you add it through the Daytona Dashboard?";
                return Err(Problem::bad_request(format!("Snapshot {snapshot} not found. {hint}")));
            }
        }
        let id = Uuid::new_v4().to_string();
        let organization = self.organization();
        let name = given.name.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| id.clone());
        let mut records = self.records();
        self.check_quota(&records, given.cpu)?;
        if records.values().any(|record| record.name == name && record.organization == organization) {
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
        let mut record = Record::new((id.clone(), name, organization), given, environment, now);
        let at_once = self.begin(&mut record, STARTED, self.settings().create_delay_seconds, mode);
        // The path through a build always answers before it has ended.
        if at_once && record.given.build_info.is_none() {
            self.settle(&mut record, now);
        }
        let shown = self.show(&record);
        records.insert(id.clone(), record);
        Ok((id, shown))
    }

    pub(super) fn check_not_suspended(&self) -> Result<(), Problem> {
        match self.settings().suspended.filter(|reason| !reason.is_empty()) {
            Some(reason) => Err(Problem::forbidden(format!("Organization is suspended: {reason}"))),
            None => Ok(()),
        }
    }

    /// Whether one sandbox more may run, with so many CPUs.
    pub(super) fn check_quota(&self, records: &BTreeMap<String, Record>, cpu: Option<u32>) -> Result<(), Problem> {
        let Some(total) = self.settings().total_cpu else {
            return Ok(());
        };
        let organization = self.organization();
        let counts = |record: &&Record| {
            record.organization == organization && record.state != ARCHIVED && record.desired != DESTROYED
        };
        let used: u32 = records.values().filter(counts).map(Record::cpu).sum();
        if used.saturating_add(cpu.unwrap_or(1)) > total {
            return Err(Problem::bad_request(format!("Total CPU limit exceeded. Maximum allowed: {total}.")));
        }
        Ok(())
    }

    /// What a list shows, at the moment that it shows.
    pub(super) fn list(&self, query: &Query) -> Page {
        let (settings, organization) = (self.settings(), self.organization());
        let lag = settings.list_lag_seconds.unwrap_or(0);
        let then = self.clock.now().before(Duration::from_secs(lag));
        match self.history.at(then).filter(|_| lag > 0) {
            Some(rows) => query.page(rows.iter(), &organization),
            None => query.page(self.rows(&self.records()).iter(), &organization),
        }
    }

    pub(super) fn rows(&self, records: &BTreeMap<String, Record>) -> Vec<Row> {
        let toolbox = self.toolbox_url();
        records.values().map(|record| Row::of(record, &toolbox)).collect()
    }

    /// Keeps what a lagging list will show.
    pub(super) fn note(&self, records: &BTreeMap<String, Record>, now: Moment) {
        match self.settings().list_lag_seconds.unwrap_or(0) {
            0 => self.history.forget(),
            lag => self.history.note(now, self.rows(records), now.before(Duration::from_secs(lag))),
        }
    }

    /// A request to the toolbox begins: the daemon that answers it, if the sandbox has one.
    pub(super) fn enter(&self, id: &str, counts: bool) -> Entry {
        let now = self.clock.now();
        let mut records = self.records();
        let organization = self.organization();
        let Some(record) = records.get_mut(id).filter(|record| record.organization == organization) else {
            return Entry::Unknown;
        };
        let ready = record.state == STARTED && record.desired == STARTED;
        let Some(daemon) = record.daemon.clone().filter(|_| ready) else {
            // No runner has what is in the archive.
            let archived = matches!(record.state.as_str(), ARCHIVED | "restoring");
            return Entry::NotStarted(if archived {
                "failed to get runner info: sandbox has no runner"
            } else {
                "no IP address found. Is the Sandbox started?"
            });
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

    /// The sandbox with this id or name that the caller may know of.
    pub(super) fn find<'a>(
        &self,
        records: &'a mut BTreeMap<String, Record>,
        key: &str,
    ) -> Result<&'a mut Record, Problem> {
        let organization = self.organization();
        let record = find_own(records, key, Some(&organization))?;
        if record.is_hidden() { Err(Problem::no_sandbox(key)) } else { Ok(record) }
    }
}

/// The sandbox with this id or, while it is not being deleted, this name, whoever has it.
pub(super) fn find_any<'a>(records: &'a mut BTreeMap<String, Record>, key: &str) -> Result<&'a mut Record, Problem> {
    find_own(records, key, None)
}

fn find_own<'a>(
    records: &'a mut BTreeMap<String, Record>,
    key: &str,
    organization: Option<&str>,
) -> Result<&'a mut Record, Problem> {
    let own = |record: &&Record| organization.is_none_or(|organization| record.organization == organization);
    let named = |record: &&Record| record.name == key && record.desired != DESTROYED && own(record);
    let found = records.get(key).filter(own).or_else(|| records.values().find(named));
    let id = found.map(|record| record.id.clone());
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
        auto_archive_interval: record.auto_archive,
        auto_delete_interval: record.auto_delete,
        last_activity_at: record.last_activity.to_string(),
    }
}
