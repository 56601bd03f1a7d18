//! Leases that are suspended or expire, and Persist commands that are lost.

use super::*;
use crate::api::SuspendPolicy;

fn queued() -> SandboxCommand {
    command(SandboxCommandStatus { state: Some(CommandState::Queued), ..SandboxCommandStatus::default() })
}

fn suspended(policy: SuspendPolicy) -> Observed {
    let Lease::Present { uid, sandbox, reason, message, .. } = present(up("session-1", 1)) else { unreachable!() };
    seen(Lease::Present { uid, sandbox, reason, message, suspended: Some(policy) })
}

#[test]
fn under_a_suspended_lease_nothing_starts_and_what_runs_finishes_or_is_ended() {
    waits(&decide(&queued(), &suspended(SuspendPolicy::Drain), at(5)), Reason::LeaseSuspended);
    assert_eq!(decide(&running(), &suspended(SuspendPolicy::Drain), at(5)), Step::Wait);
    let Step::Record(told, Again::AtOnce) = decide(&running(), &suspended(SuspendPolicy::Cancel), at(5)) else {
        panic!("it should be told that it is being ended")
    };
    let message = condition(&told.conditions, "Succeeded").map(|c| c.message.clone());
    assert_eq!(message.as_deref(), Some("being ended: the lease was suspended while it ran"));
    let fenced =
        Observed { sent: Sent { answer: Some(Answer::Fenced), ..Sent::default() }, ..suspended(SuspendPolicy::Cancel) };
    ends(&decide(&running(), &fenced, at(5)), Reason::LeaseSuspended, None);
}

#[test]
fn what_was_recorded_and_never_began_does_not_keep_a_lease_from_being_suspended() {
    let sent = |sent: Sent| Observed { sent, ..suspended(SuspendPolicy::Drain) };
    let fresh = sent(Sent { fresh: true, ..Sent::default() });
    assert_eq!(decide(&running(), &fresh, at(5)), Step::Submit { epoch: 1 }, "it drains");
    let fenced = sent(Sent { answer: Some(Answer::Fenced), ..Sent::default() });
    ends(&decide(&running(), &fenced, at(5)), Reason::LeaseSuspended, None);
    let Lease::Present { uid, sandbox: _, reason, message, suspended } = suspended(SuspendPolicy::Drain).lease else {
        unreachable!()
    };
    let stopped = seen(Lease::Present { uid, sandbox: Sandbox::Down, reason, message, suspended });
    ends(&decide(&running(), &stopped, at(5)), Reason::SessionLost, None);
}

#[test]
fn what_ends_with_its_session_says_so() {
    let ended = |code| Observed {
        sent: Sent {
            answer: Some(Answer::Done {
                code,
                milliseconds: 5,
                how: How::Full,
                streams: Arc::default(),
                killed: false,
            }),
            stored: Some(Stored::nothing(true, OutputReason::InStatus, "")),
            ..Sent::default()
        },
        ..seen(terminating(up("session-1", 1)))
    };
    ends(&decide(&running(), &ended(143), at(5)), Reason::LeaseEnded, Some(143));
    ends(&decide(&running(), &ended(3), at(5)), Reason::NonZeroExit, Some(3));
}

#[test]
fn what_is_being_ended_for_a_suspension_is_ended_also_if_the_lease_is_resumed() {
    let mut command = running();
    command.status.as_mut().unwrap().lease_suspended = true;
    let resumed = seen(present(up("session-1", 1)));
    let killed = Observed { sent: Sent { answer: Some(Answer::Fenced), ..Sent::default() }, ..resumed };
    ends(&decide(&command, &killed, at(5)), Reason::LeaseSuspended, None);
}

#[test]
fn an_expired_lease_ends_all_that_name_it() {
    let expired = || Lease::Expired { uid: BOUND.to_owned(), sandbox: Sandbox::Lost };
    ends(&decide(&queued(), &seen(expired()), at(5)), Reason::LeaseEnded, None);
    ends(&decide(&running(), &seen(expired()), at(5)), Reason::LeaseEnded, None);
    let new = command(SandboxCommandStatus::default());
    let Step::Record(ended, _) = decide(&new, &seen(expired()), at(5)) else { panic!("it should end") };
    assert_eq!(ended.lease_uid.as_deref(), Some(BOUND));
}

#[test]
fn what_waited_behind_a_lost_persist_command_never_runs() {
    let lost = Observed { lost: Some("before".to_owned()), ..seen(present(up("session-1", 1))) };
    ends(&decide(&queued(), &lost, at(5)), Reason::SessionLost, None);
}
