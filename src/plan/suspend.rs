//! A lease is suspended: what runs is brought to its end, the session is deleted, the sandbox stopped.

use std::time::Duration;

use super::{
    lease_failure::{failure, stuck},
    lease_seen::{Intervals, Observed, Session, Step, pace},
    lease_status::Told,
    sandbox::spared,
};
use crate::{
    api::{LeaseReason as Reason, SandboxLease, SuspendPolicy},
    daytona::{Sandbox, State},
};

/// Decides what to do next about the sandbox of a lease that is to be suspended.
pub(super) fn suspend(
    sandbox: &Sandbox,
    lease: &SandboxLease,
    observed: &Observed,
    intervals: &Intervals,
    told: &mut Told,
) -> (Step, Duration) {
    let (id, word) = (&sandbox.id, sandbox.state.as_str());
    let wait = pace(observed, intervals);
    match &sandbox.state {
        State::Started => suspend_running(sandbox, lease, observed, intervals, told),
        // Frozen with all that runs in it.
        State::Paused => {
            told.waiting(Reason::Suspended, "suspending; stopping the sandbox, which is paused");
            (spared(sandbox).unwrap_or_else(|| Step::StopSandbox(id.clone())), wait)
        }
        State::Stopped | State::Archived => {
            told.session_gone();
            told.ready(Reason::Suspended, &format!("the lease is suspended and the sandbox {word}; nothing wakes it"));
            (Step::Rest, intervals.idle)
        }
        State::Changing(_) | State::Unheard(_) if observed.since >= intervals.stuck => {
            told.failed(Reason::SandboxError, &stuck(sandbox, false, intervals));
            (Step::Rest, wait)
        }
        State::Changing(_) | State::Unheard(_) => {
            told.waiting(Reason::Suspended, &format!("suspending; the sandbox is {word}"));
            (Step::Rest, wait)
        }
        State::Failed(_) => {
            told.failed(Reason::SandboxError, &failure(sandbox, false));
            (Step::Rest, wait.max(intervals.absence))
        }
        State::Destroyed(_) => {
            told.failed(Reason::SandboxLost, &format!("somebody deleted sandbox {id}; its data is gone"));
            (Step::Rest, intervals.idle)
        }
    }
}

/// Whether what runs is not waited for any more.
pub(super) fn is_over(lease: &SandboxLease, observed: &Observed, intervals: &Intervals) -> bool {
    match lease.spec.suspend_policy {
        SuspendPolicy::Drain => observed.overdue,
        SuspendPolicy::Cancel => observed.leaving >= intervals.drain,
    }
}

fn suspend_running(
    sandbox: &Sandbox,
    lease: &SandboxLease,
    observed: &Observed,
    intervals: &Intervals,
    told: &mut Told,
) -> (Step, Duration) {
    let wait = pace(observed, intervals);
    let status = lease.status.clone().unwrap_or_default();
    told.sandbox_runs();
    // What runs is seen to its end by its own controller, which needs a way into the sandbox.
    let over = is_over(lease, observed, intervals);
    if observed.running > 0 && status.place().is_some() && !over {
        let doing = match lease.spec.suspend_policy {
            SuspendPolicy::Drain => "waiting for the end of",
            SuspendPolicy::Cancel => "ending",
        };
        told.waiting(Reason::Suspended, &format!("suspending; {doing} {} running command(s)", observed.running));
        let resume = !matches!(observed.session, Session::Serving);
        return (if resume { Step::ResumeSession } else { Step::Rest }, wait);
    }
    if let Some(session) = &status.session {
        match &observed.session {
            Session::Absent => {
                told.session_gone();
                return (Step::Record, Duration::ZERO);
            }
            // Nobody answers for it; with its sandbox it ends for certain.
            Session::Unknown(_) if over || observed.leaving >= intervals.drain => {}
            _ if observed.leaving >= 2 * intervals.drain => {}
            Session::Unknown(error) => {
                told.error(error);
                return (Step::Rest, wait);
            }
            Session::Serving | Session::NotAsked | Session::Listed | Session::Dead => {
                told.waiting(Reason::Suspended, &format!("suspending; deleting session {}", session.id));
                return (Step::DeleteSession, wait);
            }
        }
    }
    told.session_gone();
    told.waiting(Reason::Suspended, "suspending; stopping the sandbox");
    (spared(sandbox).unwrap_or_else(|| Step::StopSandbox(sandbox.id.clone())), wait)
}
