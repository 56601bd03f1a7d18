//! What really happened, and whether an outcome tells it.

use std::collections::{BTreeMap, BTreeSet};

use super::event::COMMANDS;
use crate::{
    api::{CommandState, SandboxCommandStatus, condition},
    plan::command_end::{GARBLED, SURVIVED},
    shell::Attempt,
};

/// How a script came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Itself,
    Killed,
    /// With its session.
    Session,
}

/// What became of an attempt that was started.
#[derive(Clone, Debug, Default)]
struct Run {
    command: usize,
    starts: u32,
    since: i64,
    end: Option<(i32, End, i64)>,
    /// It ended without a trace.
    vanished: bool,
    /// Somebody was told to end it.
    killed: bool,
}

/// What befell a command's sandbox and lease while its present attempt was recorded as running.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Fate {
    /// The sandbox failed, or was deleted.
    pub(super) lost: bool,
    /// It did not run.
    pub(super) down: bool,
    /// It was not the lease's.
    pub(super) not_ours: bool,
    /// The lease was suspended.
    pub(super) suspended: bool,
    /// It was to be ended for that.
    pub(super) cut_short: bool,
}

impl Fate {
    fn is_cut_off(self) -> bool {
        self.lost || self.down || self.not_ours
    }
}

/// Answers about an attempt that say nothing.
#[derive(Debug, Default)]
struct Nonsense {
    /// How many made no sense in a row, and how many at most.
    garbled: (u32, u32),
    /// How many kills something has survived.
    survived: u32,
}

/// What really happened.
#[derive(Debug, Default)]
pub(super) struct Truth {
    runs: BTreeMap<String, Run>,
    /// Marks of the places whose files were removed, or went back to those of an earlier day.
    damaged: BTreeSet<String>,
    nonsense: BTreeMap<String, Nonsense>,
    pub(super) fates: [Fate; COMMANDS],
    /// Commands that were cancelled or deleted.
    pub(super) cancelled: BTreeSet<usize>,
    /// Commands that Daytona refused to take.
    pub(super) refused: BTreeSet<usize>,
    /// When each lease ends, or has ended.
    pub(super) leases: BTreeMap<String, i64>,
    pub(super) wrong: Vec<String>,
}

/// When it is, and by when a command was to be started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) now: i64,
    /// Seconds since the epoch at which the world began.
    pub(super) epoch: i64,
    pub(super) deadline: Option<i64>,
}

/// Seconds that a command may run.
pub(super) const TIMEOUT: i64 = 60;

/// Exit codes of what ends with its session.
const SIGNALLED: [i32; 3] = [129, 137, 143];

/// How often an attempt is made when none is started.
const MOST_ATTEMPTS: i32 = 5;

impl Truth {
    pub(super) fn started(&mut self, attempt: &str, command: usize, now: i64) {
        let run = self.runs.entry(attempt.to_owned()).or_default();
        (run.command, run.since) = (command, now);
        run.starts += 1;
        let starts: u32 = self.runs.values().filter(|run| run.command == command).map(|run| run.starts).sum();
        if starts > 1 {
            self.wrong.push(format!("script {command} was started {starts} times, now as {attempt}"));
        }
    }

    pub(super) fn ended(&mut self, attempt: &str, code: i32, end: End, now: i64) {
        self.runs.entry(attempt.to_owned()).or_default().end = Some((code, end, now));
    }

    pub(super) fn vanished(&mut self, attempt: &str) {
        self.runs.entry(attempt.to_owned()).or_default().vanished = true;
    }

    pub(super) fn killed(&mut self, attempt: &str) {
        self.runs.entry(attempt.to_owned()).or_default().killed = true;
    }

    pub(super) fn damaged<'a>(&mut self, marks: impl IntoIterator<Item = &'a String>) {
        self.damaged.extend(marks.into_iter().cloned());
    }

    /// An answer about an attempt made sense, or none.
    pub(super) fn answered(&mut self, attempt: &Attempt, sense: bool) {
        let (row, most) = &mut self.nonsense.entry(attempt.id.clone()).or_default().garbled;
        *row = if sense { 0 } else { *row + 1 };
        *most = (*most).max(*row);
    }

    pub(super) fn survived(&mut self, attempt: &Attempt) {
        self.nonsense.entry(attempt.id.clone()).or_default().survived += 1;
    }

    fn run_of(&self, command: usize) -> Option<&Run> {
        self.runs.values().find(|run| run.command == command)
    }

    /// Judges a status that is written in place of another.
    pub(super) fn command_written(
        &mut self,
        which: usize,
        uid: &str,
        old: Option<&SandboxCommandStatus>,
        new: &SandboxCommandStatus,
        clock: Clock,
    ) {
        let old = old.cloned().unwrap_or_default();
        let wrong = match (old.state, new.state) {
            (Some(CommandState::Finished), state) if state != old.state || outcome(&old) != outcome(new) => {
                Some("a finished command changed")
            }
            (Some(CommandState::Running), Some(CommandState::Queued) | None) => Some("what was sent was queued again"),
            _ if new.attempts < old.attempts => Some("attempts became fewer"),
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.wrong.push(format!("{wrong}: {:?} → {:?}", outcome(&old), outcome(new)));
        }
        if new.attempts != old.attempts {
            self.fates[which] = Fate::default();
        }
        if new.state == Some(CommandState::Finished)
            && old.state != new.state
            && let Err(wrong) = self.judge(which, uid, new, clock)
        {
            self.wrong.push(format!("command {which} finished as {:?}: {wrong}", outcome(new)));
        }
    }

    /// Whether what was said never to have run has not run to this day.
    pub(super) fn still_holds(&self, which: usize, status: &SandboxCommandStatus) -> Result<(), &'static str> {
        if says_never(status) && self.run_of(which).is_some() { Err("it ran") } else { Ok(()) }
    }

    /// Whether an outcome is what happened.
    fn judge(&self, which: usize, uid: &str, status: &SandboxCommandStatus, clock: Clock) -> Result<(), &'static str> {
        self.still_holds(which, status)?;
        let run = self.run_of(which);
        let end = run.and_then(|run| run.end);
        let (reason, message, truth) = told(status);
        let code = status.exit_code;
        if code.is_some() && end.map(|(code, ..)| code) != code {
            return Err("its script has another exit code, or none");
        }
        if (truth == "True") != (reason == "Succeeded") {
            return Err("its condition says something else");
        }
        let fate = self.fates[which];
        let mark = status.session_id.as_ref().or(status.workspace_id.as_ref());
        let damaged = mark.is_some_and(|mark| self.damaged.contains(mark));
        let attempt = mark.map(|mark| Attempt::new(uid, status.attempts.unwrap_or_default(), mark).id);
        let nonsense = attempt.and_then(|attempt| self.nonsense.get(&attempt));
        let given_up = nonsense.is_some_and(|n| n.garbled.1 >= GARBLED || n.survived >= SURVIVED);
        let unknown = damaged || given_up;
        let vanished = run.is_some_and(|run| run.vanished);
        if run.is_some() && end.is_none() && !vanished && !unknown && !fate.is_cut_off() {
            return Err("its script runs still");
        }
        let signal = code.is_some_and(|code| (129..=159).contains(&code));
        match reason.as_str() {
            "Succeeded" if code != Some(0) => Err("that is no success"),
            "Signalled" if !signal => Err("that was no signal"),
            "NonZeroExit" if signal || matches!(code, None | Some(0)) => Err("that is no such code"),
            "Succeeded" | "Signalled" | "NonZeroExit" => match end {
                Some((_, End::Killed, _)) => Err("it was ended"),
                _ => Ok(()),
            },
            "OutcomeUnknown" if !unknown => Err("its evidence was there"),
            "SandboxLost" if !fate.lost => Err("its sandbox was there"),
            // What sleeps and is suspended is not woken to tell.
            "SessionLost" if message.contains("the lease is suspended") => {
                if fate.down && fate.suspended {
                    Ok(())
                } else {
                    Err("its sandbox ran, or its lease was wanted")
                }
            }
            "ShellExited" | "SessionLost" if !vanished && !damaged => Err("its script had not ended without a trace"),
            "OutcomeUnknown" | "SandboxLost" | "ShellExited" | "SessionLost" => Ok(()),
            "StartFailed" if self.refused.contains(&which) || status.attempts >= Some(MOST_ATTEMPTS) => Ok(()),
            "StartFailed" => Err("nobody refused it"),
            "StartDeadlineExceeded" if clock.deadline.is_none_or(|deadline| clock.now < deadline) => {
                Err("it could have been started")
            }
            "StartDeadlineExceeded" => {
                if run.is_some() {
                    Err("it ran")
                } else {
                    Ok(())
                }
            }
            "Cancelled" if !self.cancelled.contains(&which) => Err("nobody cancelled it"),
            "LeaseEnded" if status.lease_uid.as_ref().is_none_or(|uid| self.leases[uid] > clock.now) => {
                Err("its lease has not ended")
            }
            "LeaseSuspended" if !(fate.cut_short || fate.suspended && run.is_none()) => {
                Err("its lease was not suspended while it ran")
            }
            "TimedOut"
                if status.start_time.as_ref().is_none_or(|s| clock.epoch + clock.now < s.0.as_second() + TIMEOUT) =>
            {
                Err("its time was not over")
            }
            "TimedOut" if !unknown && is_early(run) => Err("it had run for less than its time"),
            "Cancelled" | "LeaseEnded" | "LeaseSuspended" | "TimedOut" => match (code, run, end) {
                // The end of its session looks the same.
                (Some(code), ..) if reason.starts_with("Lease") && SIGNALLED.contains(&code) => Ok(()),
                (Some(_), Some(run), Some((_, End::Itself, _))) if !run.killed => Err("it had ended by itself"),
                (None, _, Some((_, End::Itself, _))) if !unknown && !fate.is_cut_off() => {
                    Err("its exit code could be known")
                }
                _ => Ok(()),
            },
            _ => Err("that is no reason to end"),
        }
    }
}

/// Whether it was ended before it had run for as long as it may.
fn is_early(run: Option<&Run>) -> bool {
    run.is_some_and(|run| matches!(run.end, Some((_, End::Killed, at)) if at < run.since + TIMEOUT))
}

fn says_never(status: &SandboxCommandStatus) -> bool {
    let (_, message, _) = told(status);
    ["never ran", "never will", "nothing ran"].iter().any(|words| message.contains(words))
}

/// What must not change of a finished command.
pub(super) fn outcome(status: &SandboxCommandStatus) -> (Option<i32>, Option<i32>, (String, String, String)) {
    (status.exit_code, status.attempts, told(status))
}

/// Reason, message and status of its Succeeded condition.
fn told(status: &SandboxCommandStatus) -> (String, String, String) {
    condition(&status.conditions, "Succeeded")
        .map(|c| (c.reason.clone(), c.message.clone(), c.status.clone()))
        .unwrap_or_default()
}
