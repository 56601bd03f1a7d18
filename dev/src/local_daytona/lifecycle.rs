//! What becomes of a sandbox: transitions, intervals, and what an admin does to it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::clock::Moment;
use super::daemon::Daemon;
use super::model::ForcedState;
use super::problem::Problem;
use super::record::{ARCHIVED, DESTROYED, Due, ERROR, Record, STARTED, STOPPED, Transition};
use super::service::{Service, find_any};
use crate::faults::Mode;

impl Service {
    /// Ends transitions that are over, and does what the intervals ask for.
    pub(super) fn evaluate(self: &Arc<Self>) {
        let now = self.clock.now();
        let mut records = self.records();
        for record in records.values_mut() {
            if record.open_requests > 0 {
                record.notice_activity(now);
            }
            if record.transition.is_some_and(|transition| transition.due <= now) && !record.busy {
                self.settle(record, now);
            }
            match record.due(now) {
                Some(Due::Stop) => self.begin_stop(record, None),
                Some(Due::Destroy) => self.begin_delete(record, None),
                Some(Due::Archive) => self.begin_archive(record, None),
                None => {}
            }
        }
        self.events.tell(records.values(), &self.toolbox_url());
        records.retain(|_, record| record.state != DESTROYED);
        self.note(&records, now);
    }

    /// Forces a state, with its real effect on processes.
    pub(super) async fn force(&self, key: &str, forced: ForcedState) -> Result<Value, Problem> {
        let (id, ends, shown) = {
            let now = self.clock.now();
            let mut records = self.records();
            let record = find_any(&mut records, key)?;
            let state = forced.state.as_str();
            let own_wish = matches!(state, STARTED | STOPPED | ARCHIVED).then_some(state);
            if let Some(desired) = forced.desired_state.as_deref().or(own_wish) {
                desired.clone_into(&mut record.desired);
            }
            record.transition = None;
            record.error_reason = forced.error_reason;
            record.recoverable = forced.recoverable;
            record.updated_at = now;
            let ends = matches!(state, STOPPED | ARCHIVED | DESTROYED);
            if state == STARTED {
                self.become_started(record, now);
            } else if ends {
                record.become_stopped(now);
            }
            state.clone_into(&mut record.state);
            (record.id.clone(), ends, self.show(record))
        };
        if ends {
            self.clear_away(&id, forced.state == DESTROYED).await;
        }
        Ok(shown)
    }

    /// The provider loses it: no state, no trace.
    pub(super) async fn lose(&self, key: &str) -> Result<(), Problem> {
        let record = {
            let mut records = self.records();
            let id = find_any(&mut records, key)?.id.clone();
            records.remove(&id).ok_or_else(|| Problem::no_sandbox(key))?
        };
        if let Some(daemon) = &record.daemon {
            daemon.lose();
        }
        self.clear_away(&record.id, true).await;
        Ok(())
    }

    /// The daemon starts anew: sessions and processes are gone, files stay.
    pub(super) async fn restart_daemon(&self, key: &str) -> Result<(), Problem> {
        let (id, environment) = {
            let mut records = self.records();
            let record = find_any(&mut records, key)?;
            let Some(daemon) = record.daemon.take() else {
                return Err(Problem::bad_request("Sandbox is not started"));
            };
            daemon.lose();
            (record.id.clone(), record.environment.clone())
        };
        self.processes.kill_all(&id).await;
        if let Some(record) = self.records().get_mut(&id) {
            record.daemon = Some(Daemon::start(environment, self.grace));
        }
        Ok(())
    }

    /// Begins a transition. Says whether it is over at once.
    pub(super) fn begin(
        &self,
        record: &mut Record,
        to: &'static str,
        delay_seconds: Option<u64>,
        mode: Option<Mode>,
    ) -> bool {
        let (now, delay) = (self.clock.now(), delay_seconds.unwrap_or(0));
        let stuck = mode == Some(Mode::StateStuck);
        record.updated_at = now;
        let due = now.after(Duration::from_secs(delay));
        let given_up = record.patience().map(|(minutes, why)| (now.after(Duration::from_secs(minutes * 60)), why));
        record.transition = Some(match given_up.filter(|(end, _)| *end < due) {
            _ if stuck => Transition { due: Moment::NEVER, to, why: None },
            Some((end, why)) => Transition { due: end, to: ERROR, why: Some(why) },
            None => Transition { due, to, why: (to == ERROR).then_some("Failed to destroy sandbox") },
        });
        delay == 0 && !stuck
    }

    pub(super) fn begin_stop(self: &Arc<Self>, record: &mut Record, mode: Option<Mode>) {
        if record.is_ephemeral() {
            return self.begin_delete(record, mode);
        }
        STOPPED.clone_into(&mut record.desired);
        self.begin(record, STOPPED, self.settings().stop_delay_seconds, mode);
        self.end_processes(record, false);
    }

    pub(super) fn begin_archive(&self, record: &mut Record, mode: Option<Mode>) {
        "archiving".clone_into(&mut record.state);
        ARCHIVED.clone_into(&mut record.desired);
        self.begin(record, ARCHIVED, self.settings().archive_delay_seconds, mode);
    }

    pub(super) fn begin_delete(self: &Arc<Self>, record: &mut Record, mode: Option<Mode>) {
        let fails = mode == Some(Mode::ErroredButListed);
        record.name = format!("DESTROYED_{}_{}", record.name, self.clock.now().millis());
        if !matches!(record.state.as_str(), STARTED | STOPPED) {
            "destroying".clone_into(&mut record.state);
        }
        DESTROYED.clone_into(&mut record.desired);
        let to = if fails { ERROR } else { DESTROYED };
        self.begin(record, to, self.settings().delete_delay_seconds, mode);
        self.end_processes(record, !fails);
    }

    /// As a container's end does: its main process is asked, all the others are simply killed.
    fn end_processes(self: &Arc<Self>, record: &mut Record, for_good: bool) {
        record.busy = true;
        if let Some(daemon) = record.daemon.take() {
            daemon.lose();
        }
        let (service, id) = (Arc::clone(self), record.id.clone());
        tokio::spawn(async move {
            service.clear_away(&id, for_good).await;
            if let Some(record) = service.records().get_mut(&id) {
                record.busy = false;
            }
            service.evaluate();
        });
    }

    async fn clear_away(&self, id: &str, files_too: bool) {
        self.processes.kill_all(id).await;
        if files_too {
            let _ = tokio::fs::remove_dir_all(self.dir.join(id)).await;
            self.processes.remove_home(id);
        }
    }

    pub(super) fn settle(&self, record: &mut Record, now: Moment) {
        let Some(transition) = record.transition.take() else {
            return;
        };
        match transition.to {
            STARTED => self.become_started(record, now),
            STOPPED => record.become_stopped(now),
            ERROR => record.error_reason = transition.why.map(str::to_owned),
            _ => {}
        }
        transition.to.clone_into(&mut record.state);
        record.updated_at = now;
    }

    fn become_started(&self, record: &mut Record, now: Moment) {
        record.stopped_at = None;
        record.last_activity = now;
        if record.daemon.is_none() {
            record.daemon = Some(Daemon::start(record.environment.clone(), self.grace));
        }
    }
}
