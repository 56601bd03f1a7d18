//! What a lease's decision is made from: what `controller/observe.rs` and `credentials.rs` do. No files are wanted; no copies
//! of keys are kept, and nobody abandons a lease.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;

use super::{
    Halt, INTERVALS, World,
    command::attempt,
    event::Key,
    lease::Seen,
    memory::{Handle, Leaving, Suspicion},
};
use crate::{
    api::{LEASE_FINALIZER, LeaseReason as Reason, SandboxCommand, SandboxLease, SuspendPolicy},
    daytona::{Sandbox, State},
    plan::{
        command::due,
        escrow::Escrow,
        files::Files,
        lease::{
            Credentials, Observed, Remote, Session, adopts, is_ending, is_ours, own_name, reuse_key, session_ids,
            waits_for_commands,
        },
        queue,
    },
    shell::Answer,
};

impl World {
    fn credentials(&mut self, lease: &SandboxLease) -> (Credentials, Option<Key>) {
        let usable = |key: Key| {
            let fingerprint = format!("{key:?}");
            (Credentials::Usable { api_url: "https://d/".to_owned(), fingerprint }, Some(key))
        };
        let problem = match self.key {
            // What it would make there is another story.
            Key::Foreign if lease.status.as_ref().is_none_or(|s| s.connection.is_none()) => return usable(Key::Right),
            key @ (Key::Right | Key::Foreign) => return usable(key),
            Key::Missing => Credentials::Missing(Reason::SecretNotFound, "there is none".to_owned()),
            Key::Untold => Credentials::Unknown("no answer".to_owned()),
        };
        let kept = self.memory.board(&lease.uid().unwrap_or_default()).client.filter(|_| is_ending(lease));
        kept.map_or((problem, None), usable)
    }

    pub(super) fn observe_lease(&mut self, lease: &SandboxLease) -> Result<Seen, Halt> {
        let uid = lease.uid().unwrap_or_default();
        let over = is_ending(lease) && !lease.finalizers().iter().any(|f| f == LEASE_FINALIZER);
        let (credentials, key) =
            if over { (Credentials::Unknown(String::new()), None) } else { self.credentials(lease) };
        let recorded = lease.status.as_ref().and_then(|s| s.sandbox.as_ref()).map(|sandbox| sandbox.name.clone());
        let name = recorded
            .or_else(|| adopts(lease).map(str::to_owned))
            .unwrap_or_else(|| if reuse_key(lease).is_some() { "sbreuse".to_owned() } else { own_name(lease) });
        let (needed, running, overdue) = self.wanted_by_commands(lease);
        let leaving = if is_ending(lease) {
            Some(Leaving::Ending)
        } else {
            let drains = running > 0 && lease.spec.suspend_policy == SuspendPolicy::Drain;
            (lease.spec.suspend && !drains).then_some(Leaving::Suspended)
        };
        let now = self.now;
        let board = self.memory.board(&uid);
        let same = board.leaving.filter(|(how, _)| Some(*how) == leaving);
        board.leaving = leaving.map(|how| same.unwrap_or((how, now)));
        let (leaving, recovered) = (board.leaving.map_or(0, |(_, since)| now - since), board.recovered);
        let mut observed = Observed {
            credentials,
            remote: Remote::NotAsked,
            session: Session::NotAsked,
            files: Files::Wanted(None),
            escrow: Escrow::NotWanted,
            owner: None,
            name,
            now: self.time(),
            needed,
            running,
            overdue,
            since: Duration::ZERO,
            leaving: Duration::from_secs(leaving.unsigned_abs()),
            kept_awake: None,
            recovered,
        };
        if let Some(key) = key {
            observed.remote = self.remote(lease, &observed.name, key)?;
            let looks = looks(&observed.remote);
            let board = self.memory.board(&uid);
            let since = match &board.seen {
                Some((same, since)) if *same == looks => *since,
                _ => now,
            };
            board.seen = Some((looks, since));
            observed.since = Duration::from_secs((now - since).unsigned_abs());
            if let Remote::Present(sandbox) = &observed.remote
                && sandbox.state == State::Started
            {
                board.recovered = false;
                let drains = waits_for_commands(lease, &observed, &INTERVALS);
                observed.session = self.look_at_session(lease, sandbox, drains, key)?;
            }
            if !matches!(observed.remote, Remote::Unknown(_) | Remote::Unproven) {
                self.memory.board(&uid).client = Some(key);
            }
        }
        Ok(Seen { observed, key })
    }

    fn wanted_by_commands(&self, lease: &SandboxLease) -> (bool, usize, bool) {
        let uid = lease.uid();
        let (mut needed, mut running, mut late) = (false, 0, 0);
        let mut fenced = BTreeSet::new();
        for command in self.kube.seen_commands.iter().flatten().filter(|c| queue::unfinished(c)) {
            let to = command.status.as_ref().and_then(|s| s.lease_uid.clone());
            if self.is_fenced(command) {
                fenced.extend(command.uid());
            } else if queue::running(command) && to == uid {
                running += 1;
                let grace = u64::from(command.spec.termination_grace_period_seconds.unsigned_abs());
                let more = SignedDuration::try_from(Duration::from_secs(grace) + INTERVALS.drain).unwrap();
                let due = command.status.as_ref().and_then(|status| due(command, status));
                late += usize::from(due.is_some_and(|due| self.time() >= due.checked_add(more).unwrap()));
            }
            let ours = to.is_none() || to == uid;
            let wanted = command.metadata.deletion_timestamp.is_none() && !queue::held_up(command);
            needed |= ours && (queue::running(command) || wanted);
        }
        let present = self.kube.seen_commands.iter().flatten().filter_map(ResourceExt::uid);
        let counts: BTreeSet<String> = present.filter(|uid| !fenced.contains(uid)).collect();
        let running = running.max(self.memory.slots_taken(uid.as_deref().unwrap_or_default(), &counts));
        (needed, running, running > 0 && late == running)
    }

    fn is_fenced(&self, command: &SandboxCommand) -> bool {
        attempt(command).is_some_and(|(uid, attempt)| self.memory.sent(&uid, &attempt).answer == Some(Answer::Fenced))
    }

    fn remote(&mut self, lease: &SandboxLease, name: &str, key: Key) -> Result<Remote, Halt> {
        let status = lease.status.clone().unwrap_or_default();
        let id = status.sandbox.as_ref().and_then(|s| s.id.clone());
        let judge =
            |sandbox| if is_ours(lease, &sandbox) { Remote::Present(sandbox) } else { Remote::Foreign(sandbox) };
        let found = match self.sandbox(id.as_deref().unwrap_or(name), key) {
            Err(Halt::Daytona(error)) => return Ok(Remote::Unknown(error)),
            found => found?,
        };
        match found {
            Some(sandbox) if id.is_none() && adopts(lease).is_some_and(|adopted| adopted != sandbox.id) => {
                return Ok(Remote::Absent);
            }
            Some(sandbox) => return Ok(judge(sandbox)),
            None => {}
        }
        // A key of another organisation proves nothing.
        if status.connection.as_ref().is_some_and(|c| c.key_fingerprint != format!("{key:?}")) {
            let proved = key == Key::Right && !self.machines.is_empty();
            let organization = proved.then(|| "org".to_owned());
            if organization.is_none() || status.connection.and_then(|c| c.organization_id) != organization {
                return Ok(Remote::Unproven);
            }
        }
        let Some(id) = id else { return Ok(Remote::Absent) };
        let listed = match self.listed_sandbox(&id, key) {
            Err(Halt::Daytona(error)) => return Ok(Remote::Unknown(error)),
            listed => listed?,
        };
        Ok(match listed {
            None => Remote::Absent,
            Some(sandbox) => match sandbox.state {
                State::Destroyed(word) if word == "destroyed" => Remote::Absent,
                State::Failed(_) => match judge(sandbox) {
                    Remote::Present(sandbox) => Remote::FailedDeletion(sandbox),
                    other => other,
                },
                _ => judge(sandbox),
            },
        })
    }

    fn look_at_session(
        &mut self,
        lease: &SandboxLease,
        sandbox: &Sandbox,
        drains: bool,
        key: Key,
    ) -> Result<Session, Halt> {
        let status = lease.status.clone().unwrap_or_default();
        let Some(recorded) = status.place() else { return Ok(Session::NotAsked) };
        let leaving = is_ending(lease) || lease.spec.suspend;
        let board = self.memory.board(&lease.uid().unwrap_or_default());
        let suspicion = board.suspect;
        let is = |handle: &Handle| handle.place.id == recorded.id && handle.key == key && handle.sandbox == sandbox.id;
        if board.handle().is_some_and(is) && suspicion.is_none() && (!leaving || drains) {
            return Ok(Session::Serving);
        }
        if !lease.spec.use_sessions {
            return Ok(Session::Listed);
        }
        match self.session_exists(&sandbox.id, &recorded.id) {
            Err(Halt::Daytona(error)) => Ok(Session::Unknown(error)),
            Err(halt) => Err(halt),
            Ok(false) if leaving => {
                for other in session_ids(lease, recorded).iter().filter(|id| **id != recorded.id) {
                    match self.session_exists(&sandbox.id, other) {
                        Ok(true) => return Ok(Session::Listed),
                        Ok(false) => {}
                        Err(Halt::Daytona(error)) => return Ok(Session::Unknown(error)),
                        Err(halt) => return Err(halt),
                    }
                }
                Ok(Session::Absent)
            }
            Ok(false) => Ok(Session::Absent),
            Ok(true) if suspicion == Some(Suspicion::Shell) && !leaving => {
                self.probe(&sandbox.id, &recorded.id, |machine, id| machine.has_mark(id))
            }
            Ok(true) => Ok(Session::Listed),
        }
    }
}

/// What has to stay the same for a look to confirm the one before.
pub(super) fn looks(remote: &Remote) -> String {
    match remote {
        Remote::NotAsked => "not asked".to_owned(),
        Remote::Unknown(_) => "unknown".to_owned(),
        Remote::Absent => "absent".to_owned(),
        Remote::Unproven => "unproven".to_owned(),
        Remote::FailedDeletion(_) => "failed deletion".to_owned(),
        Remote::Foreign(sandbox) => format!("foreign {}", sandbox.id),
        Remote::Present(sandbox) => format!("present {}", sandbox.state.as_str()),
    }
}
