//! Decisions as tables: what is known in, what is to be done out.

use std::sync::Arc;

use super::{super::queue::Turn, *};
use crate::{
    api::{OutputReason, SandboxCommandSpec, condition},
    plan::logs::Stored,
    shell::{How, Output, Outputs},
};

mod ending;
mod starting;

const BOUND: &str = "lease-uid";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn command(status: SandboxCommandStatus) -> SandboxCommand {
    let spec: SandboxCommandSpec = serde_json::from_value(
        serde_json::json!({ "leaseRef": { "name": "l" }, "script": "true", "timeoutSeconds": 60 }),
    )
    .unwrap();
    let mut command = SandboxCommand::new("c", spec);
    command.metadata.uid = Some("command-uid".to_owned());
    command.metadata.generation = Some(1);
    command.metadata.resource_version = Some("77".to_owned());
    command.status = Some(status);
    command
}

fn ours(mut command: SandboxCommand) -> SandboxCommand {
    command.metadata.finalizers = Some(vec![COMMAND_FINALIZER.to_owned()]);
    command
}

fn deleted(mut command: SandboxCommand) -> SandboxCommand {
    command.metadata.deletion_timestamp = Some(Time(at(0)));
    command
}

fn running() -> SandboxCommand {
    ours(command(SandboxCommandStatus {
        state: Some(CommandState::Running),
        lease_uid: Some(BOUND.to_owned()),
        sandbox_id: Some("box".to_owned()),
        session_id: Some("session-1".to_owned()),
        session_generation: Some(2),
        attempts: Some(1),
        start_time: Some(Time(at(0))),
        ..SandboxCommandStatus::default()
    }))
}

fn up(session: &str, epoch: u64) -> Sandbox {
    let place = Place { launcher: Launcher::Session, id: session.to_owned(), generation: 2 };
    Sandbox::Up { id: "box".to_owned(), place, epoch, trusted: true }
}

fn present(sandbox: Sandbox) -> Lease {
    Lease::Present {
        uid: BOUND.to_owned(),
        sandbox,
        reason: "Ready".to_owned(),
        message: "yes".to_owned(),
        suspended: None,
    }
}

fn terminating(sandbox: Sandbox) -> Lease {
    Lease::Terminating { uid: BOUND.to_owned(), sandbox }
}

fn seen(lease: Lease) -> Observed {
    Observed {
        lease,
        turn: Turn { ahead: 0, now: true },
        inputs: Inputs::Ready { secrets: None },
        sent: Sent::default(),
        defaults: None,
        lost: None,
    }
}

fn answered(lease: Lease, answer: Answer<Arc<Outputs>>) -> Observed {
    Observed { sent: Sent { answer: Some(answer), epoch: Some(1), times: 1, ..Sent::default() }, ..seen(lease) }
}

/// As the answer of a kill.
fn killed(lease: Lease, answer: Answer<Arc<Outputs>>) -> Observed {
    let mut observed = answered(lease, answer);
    observed.sent.killed = true;
    observed
}

/// The status to be written while it is being ended, and the decision after that.
fn after_telling(command: &SandboxCommand, observed: &Observed, at: Timestamp) -> (String, Step) {
    let Step::Record(status, Again::AtOnce) = decide(command, observed, at) else { panic!("nothing is told") };
    let message = condition(&status.conditions, "Succeeded").unwrap().message.clone();
    assert_eq!(status.state, Some(CommandState::Running));
    let told = SandboxCommand { status: Some(*status), ..command.clone() };
    (message, decide(&told, observed, at))
}

fn done(code: i32, killed: bool) -> Answer<Arc<Outputs>> {
    Answer::Done { killed, code, milliseconds: 10, how: How::Full, streams: Arc::default() }
}

fn died() -> Answer<Arc<Outputs>> {
    Answer::Died { streams: Arc::default(), session_lives: false }
}

/// State, reason of Succeeded and exit code of the status that is to be written.
fn written(step: &Step) -> (CommandState, String, Option<i32>) {
    let Step::Record(status, _) = step else { panic!("nothing is written: {step:?}") };
    let succeeded = condition(&status.conditions, "Succeeded").unwrap();
    (status.state.unwrap(), succeeded.reason.clone(), status.exit_code)
}

fn ends(step: &Step, reason: Reason, exit_code: Option<i32>) {
    assert_eq!(written(step), (CommandState::Finished, reason.as_str().to_owned(), exit_code), "{step:?}");
}

fn waits(step: &Step, reason: Reason) {
    assert_eq!(written(step), (CommandState::Queued, reason.as_str().to_owned(), None), "{step:?}");
}

#[test]
fn a_new_command_says_what_it_waits_for() {
    let new = command(SandboxCommandStatus::default());
    let other = |lease| decide(&new, &seen(lease), at(0));
    waits(&other(Lease::Missing), Reason::LeaseNotFound);
    waits(&other(terminating(up("s", 1))), Reason::LeaseTerminating);
    for sandbox in [Sandbox::Unknown, Sandbox::Down, Sandbox::Lost] {
        waits(&other(present(sandbox)), Reason::WaitingForLease);
    }
    let behind = Observed { turn: Turn { ahead: 3, now: false }, ..seen(present(up("s", 1))) };
    let step = decide(&new, &behind, at(0));
    waits(&step, Reason::Queued);
    let Step::Record(status, Again::After(_)) = step else { panic!() };
    assert_eq!((status.queue_position, status.sequence), (Some(4), Some(77)));
    assert_eq!(status.lease_uid.as_deref(), Some(BOUND), "it is bound whatever the lease's readiness");
    assert_eq!(condition(&status.conditions, "Reconciling").unwrap().status, "True");
}

#[test]
fn nothing_is_written_twice() {
    let behind = Observed { turn: Turn { ahead: 3, now: false }, ..seen(present(up("s", 1))) };
    let Step::Record(status, _) = decide(&command(SandboxCommandStatus::default()), &behind, at(0)) else { panic!() };
    assert!(matches!(decide(&command(*status), &behind, at(500)), Step::Look(_)));
}

#[test]
fn finalizer_and_intent_come_before_the_first_call() {
    let ready = seen(present(up("session-2", 1)));
    let new = command(SandboxCommandStatus::default());
    let step = decide(&new, &ready, at(0));
    let Step::Record(status, Again::AtOnce) = &step else { panic!("{step:?}") };
    assert_eq!(status.state, Some(CommandState::Running));
    assert_eq!(status.attempts, Some(1));
    assert_eq!(status.sandbox_id.as_deref(), Some("box"));
    let recorded = command((**status).clone());
    let fresh = Observed { sent: Sent { fresh: true, ..Sent::default() }, ..ready.clone() };
    assert_eq!(decide(&recorded, &fresh, at(0)), Step::AddFinalizer);
    let recorded = ours(recorded);
    assert_eq!(decide(&recorded, &fresh, at(0)), Step::Submit { epoch: 1 });
    assert_eq!(decide(&recorded, &ready, at(0)), Step::Wait, "recorded by an earlier controller: look first");
}

#[test]
fn the_last_word_of_the_sandbox_is_the_outcome() {
    let say = |answer| decide(&running(), &answered(present(up("session-1", 1)), answer), at(5));
    ends(&say(done(0, false)), Reason::Succeeded, Some(0));
    ends(&say(done(3, false)), Reason::NonZeroExit, Some(3));
    ends(&say(done(137, false)), Reason::Signalled, Some(137));
    assert_eq!(say(died()), Step::Kill { grace: 10, after: 0 }, "what its runner left behind goes first");
    let died = killed(present(up("session-1", 1)), died());
    ends(&decide(&running(), &died, at(5)), Reason::SessionLost, None);
    assert_eq!(say(Answer::Lost), Step::Kill { grace: 10, after: 0 });
    let ended = killed(present(up("session-1", 1)), done(143, true));
    ends(&decide(&running(), &ended, at(5)), Reason::OutcomeUnknown, None);
    let lost = killed(present(up("session-1", 1)), Answer::Lost);
    ends(&decide(&running(), &lost, at(5)), Reason::OutcomeUnknown, None);
    ends(&say(Answer::Cleared), Reason::OutcomeUnknown, None);
    assert_eq!(say(Answer::Running), Step::Wait);
}

#[test]
fn what_was_not_seen_is_sent_again_then_fenced_and_then_a_new_attempt() {
    let unseen = |session, epoch| answered(present(up(session, epoch)), Answer::Unseen);
    assert_eq!(decide(&running(), &unseen("session-1", 1), at(5)), Step::Submit { epoch: 1 });
    let mut twice = unseen("session-1", 1);
    twice.sent.times = 2;
    assert_eq!(decide(&running(), &twice, at(5)), Step::Fence);
    assert_eq!(decide(&running(), &unseen("session-1", 2), at(5)), Step::Submit { epoch: 2 });
    let step = decide(&running(), &unseen("session-2", 2), at(5));
    let Step::Record(status, Again::AtOnce) = step else { panic!("{step:?}") };
    assert_eq!((status.session_id.as_deref(), status.attempts), (Some("session-2"), Some(1)));
    assert_eq!(status.start_time, Some(Time(at(5))), "its time begins anew");

    let fenced = |epoch| answered(present(up("session-2", epoch)), Answer::Fenced);
    for time in [at(5), at(500)] {
        // Overdue or not: it never began.
        let told = running();
        let step = decide(&told, &fenced(1), time);
        let step = if let Step::Record(status, _) = &step {
            decide(&SandboxCommand { status: Some((**status).clone()), ..told }, &fenced(1), time)
        } else {
            step
        };
        assert_eq!(step, Step::Suspect { epoch: 1 });
    }
    let step = decide(&running(), &fenced(2), at(5));
    let Step::Record(status, Again::AtOnce) = step else { panic!("{step:?}") };
    assert_eq!((status.attempts, status.session_id.as_deref()), (Some(2), Some("session-2")));
}

#[test]
fn a_text_that_daytona_refuses_is_fenced_and_told() {
    let mut refused = answered(present(up("session-1", 1)), Answer::Unseen);
    refused.sent.refused = Some("413 too large".to_owned());
    assert_eq!(decide(&running(), &refused, at(5)), Step::Fence);
    refused.sent.answer = Some(Answer::Fenced);
    ends(&decide(&running(), &refused, at(5)), Reason::StartFailed, None);
}

#[test]
fn time_deletion_and_the_leases_end_stop_it() {
    let ready = || present(up("session-1", 1));
    assert_eq!(decide(&running(), &seen(ready()), at(60)), Step::Wait, "never before its time");
    let (message, step) = after_telling(&running(), &seen(ready()), at(61));
    assert!(message.contains("being ended") && message.contains("timeoutSeconds (60)"), "{message}");
    assert_eq!(step, Step::Kill { grace: 10, after: 60 });
    assert_eq!(after_telling(&deleted(running()), &seen(ready()), at(5)).1, Step::Kill { grace: 10, after: 0 });
    assert_eq!(
        after_telling(&running(), &seen(terminating(up("session-1", 1))), at(5)).1,
        Step::Kill { grace: 10, after: 0 }
    );

    let stopped = |command: SandboxCommand, lease, answer| decide(&command, &killed(lease, answer), at(61));
    ends(&stopped(running(), ready(), done(143, true)), Reason::TimedOut, Some(143));
    ends(&stopped(running(), ready(), done(0, false)), Reason::Succeeded, Some(0));
    ends(&stopped(running(), ready(), died()), Reason::TimedOut, None);
    ends(&stopped(deleted(running()), ready(), done(143, true)), Reason::Cancelled, Some(143));
    ends(&stopped(deleted(running()), ready(), Answer::Fenced), Reason::Cancelled, None);
    ends(&stopped(running(), terminating(up("session-1", 1)), done(143, true)), Reason::LeaseEnded, Some(143));
    ends(&stopped(running(), terminating(up("session-1", 1)), Answer::Fenced), Reason::LeaseEnded, None);
    let survivors = answered(ready(), Answer::Survivors(vec![7]));
    assert_eq!(after_telling(&running(), &survivors, at(61)).1, Step::Kill { grace: 10, after: 60 });
}

#[test]
fn not_knowing_decides_nothing() {
    let unknown = || present(Sandbox::Unknown);
    assert!(matches!(decide(&running(), &seen(unknown()), at(5)), Step::Look(_)));
    let waits =
        |command: &SandboxCommand, lease| matches!(after_telling(command, &seen(lease), at(500)).1, Step::Look(_));
    assert!(waits(&running(), unknown()), "overdue, but nobody can tell");
    assert!(waits(&deleted(running()), unknown()));
    assert!(waits(&running(), terminating(Sandbox::Unknown)));
    assert!(
        matches!(decide(&running(), &seen(present(Sandbox::Down)), at(5)), Step::Look(_)),
        "it is started and asked"
    );
}

#[test]
fn a_session_that_is_suspected_gets_nothing_more() {
    let Sandbox::Up { id, place, epoch, .. } = up("session-1", 2) else { panic!() };
    let suspected = || present(Sandbox::Up { id: id.clone(), place: place.clone(), epoch, trusted: false });
    waits(&decide(&command(SandboxCommandStatus::default()), &seen(suspected()), at(0)), Reason::WaitingForLease);
    for answer in [Answer::Unseen, Answer::Fenced] {
        let step = decide(&running(), &answered(suspected(), answer), at(5));
        assert!(matches!(step, Step::Look(_) | Step::Record(_, Again::After(_))), "{step:?}");
    }
    let lost = answered(suspected(), Answer::Lost);
    assert_eq!(decide(&running(), &lost, at(5)), Step::Kill { grace: 10, after: 0 }, "but what runs can be ended");
}

#[test]
fn a_finalizer_that_was_taken_off_is_put_back_while_it_runs() {
    let mut stripped = running();
    stripped.metadata.finalizers = None;
    assert_eq!(decide(&stripped, &seen(present(up("session-1", 1))), at(5)), Step::AddFinalizer);
    assert_eq!(decide(&deleted(stripped), &seen(present(up("session-1", 1))), at(5)), Step::Rest);
}

#[test]
fn a_sandbox_that_is_gone_is_the_end() {
    ends(&decide(&running(), &seen(present(Sandbox::Lost)), at(5)), Reason::SandboxLost, None);
    ends(&decide(&running(), &seen(Lease::Missing), at(5)), Reason::LeaseEnded, None);
    let other = Lease::Present {
        uid: "another".to_owned(),
        sandbox: up("x", 1),
        reason: String::new(),
        message: String::new(),
        suspended: None,
    };
    ends(&decide(&running(), &seen(other.clone()), at(5)), Reason::LeaseEnded, None);
    ends(&decide(&running(), &seen(terminating(Sandbox::Down)), at(5)), Reason::LeaseEnded, None);
    let queued = SandboxCommandStatus {
        state: Some(CommandState::Queued),
        lease_uid: Some(BOUND.to_owned()),
        ..SandboxCommandStatus::default()
    };
    for lease in [Lease::Missing, other, terminating(up("s", 1))] {
        ends(&decide(&command(queued.clone()), &seen(lease), at(5)), Reason::LeaseEnded, None);
    }
}

#[test]
fn a_finished_command_lets_go_and_then_only_follows_its_generation() {
    let end = decide(&running(), &answered(present(up("session-1", 1)), done(0, false)), at(5));
    let Step::Record(status, _) = end else { panic!() };
    let mut finished = ours(command(*status));
    for lease in [Lease::Missing, present(Sandbox::Lost), present(up("x", 9))] {
        assert_eq!(decide(&finished, &seen(lease), at(900)), Step::RemoveFinalizer);
    }
    finished.metadata.finalizers = None;
    assert_eq!(decide(&finished, &seen(Lease::Missing), at(900)), Step::Rest);
    finished.metadata.generation = Some(2);
    let before = finished.status.clone().unwrap();
    let Step::Record(after, _) = decide(&finished, &seen(Lease::Missing), at(900)) else { panic!() };
    assert!(after.conditions.iter().all(|c| c.observed_generation == Some(2)));
    assert_eq!((after.exit_code, &after.completion_time), (before.exit_code, &before.completion_time));
    assert_eq!(decide(&deleted(finished), &seen(Lease::Missing), at(900)), Step::Rest, "not ours to let go of");
}

#[test]
fn a_command_that_was_never_sent_can_be_deleted_at_once() {
    let queued = SandboxCommandStatus { state: Some(CommandState::Queued), ..SandboxCommandStatus::default() };
    let step = decide(&deleted(ours(command(queued.clone()))), &seen(present(up("s", 1))), at(0));
    assert_eq!(step, Step::RemoveFinalizer);
    assert_eq!(
        decide(&deleted(command(queued)), &seen(present(up("s", 1))), at(0)),
        Step::Rest,
        "no finalizer is put on a dying object"
    );
}
