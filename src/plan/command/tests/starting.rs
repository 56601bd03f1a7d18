//! Where and with what a command is started, what keeps it from starting, and what is kept of its end.

use super::*;

fn one_shot(epoch: u64) -> Sandbox {
    let place = Place { launcher: Launcher::OneShot, id: "lease-uid-w1".to_owned(), generation: 1 };
    Sandbox::Up { id: "box".to_owned(), place, epoch, trusted: true }
}

#[test]
fn a_command_without_a_session_is_started_in_the_workspace() {
    let new = ours(command(SandboxCommandStatus::default()));
    let Step::Record(status, Again::AtOnce) = decide(&new, &seen(present(one_shot(1))), at(0)) else { panic!() };
    assert_eq!((status.workspace_id.as_deref(), status.session_id.as_deref()), (Some("lease-uid-w1"), None));
    let status = SandboxCommandStatus { session_id: None, session_generation: None, ..*status };
    let started = ours(command(status));
    let mut fresh = seen(present(one_shot(1)));
    fresh.sent.fresh = true;
    assert_eq!(decide(&started, &fresh, at(1)), Step::Submit { epoch: 1 });
    // Fenced by a kill that came too early: there is no session to be doubted.
    let again = decide(&started, &answered(present(one_shot(1)), Answer::Fenced), at(1));
    let Step::Record(status, Again::AtOnce) = again else { panic!("{again:?}") };
    assert_eq!(status.attempts, Some(2));
}

#[test]
fn what_is_missing_is_waited_for_and_what_cannot_run_is_told() {
    let new = ours(command(SandboxCommandStatus::default()));
    let with = |sandbox: Sandbox, inputs: Inputs| Observed { inputs, ..seen(present(sandbox)) };
    let missing = || Inputs::Missing(Reason::SecretNotFound, "waiting for Secret \"s\"".to_owned());
    for sandbox in [up("session-1", 1), Sandbox::Down] {
        waits(&decide(&new, &with(sandbox, missing()), at(0)), Reason::SecretNotFound);
    }
    let unfit = Inputs::Unfit("Secret \"s\" has no key \"k\"".to_owned());
    ends(&decide(&new, &with(Sandbox::Down, unfit.clone()), at(0)), Reason::StartFailed, None);
    // Recorded as running, never started, and the Secret is gone meanwhile.
    let unseen = |inputs| Observed { inputs, ..answered(present(up("session-1", 1)), Answer::Unseen) };
    let Step::Record(told, Again::After(_)) = decide(&running(), &unseen(missing()), at(1)) else { panic!() };
    assert_eq!(told.state, Some(CommandState::Running));
    assert_eq!(decide(&running(), &unseen(unfit.clone()), at(1)), Step::Fence);
    let fenced = Observed { inputs: unfit, ..answered(present(up("session-1", 1)), Answer::Fenced) };
    ends(&decide(&running(), &fenced, at(1)), Reason::StartFailed, None);
    // With another version of the Secret than was recorded it is another attempt: a copy may be under way.
    let secrets = || Inputs::Ready { secrets: Some("v2".to_owned()) };
    assert_eq!(decide(&running(), &unseen(secrets()), at(1)), Step::Fence);
    let fenced = Observed { inputs: secrets(), ..answered(present(up("session-1", 2)), Answer::Fenced) };
    let Step::Record(told, Again::AtOnce) = decide(&running(), &fenced, at(1)) else { panic!() };
    assert_eq!((told.secrets_version.as_deref(), told.attempts), (Some("v2"), Some(2)));
}

#[test]
fn a_command_that_is_never_started_is_given_up() {
    let fenced = || answered(present(up("session-1", 2)), Answer::Fenced);
    let mut often = running();
    often.status.as_mut().unwrap().attempts = Some(5);
    ends(&decide(&often, &fenced(), at(1)), Reason::StartFailed, None);
    let mut late = running();
    late.metadata.creation_timestamp = Some(Time(at(0)));
    late.spec.starting_deadline_seconds = Some(5);
    let Step::Record(again, _) = decide(&late, &fenced(), at(4)) else { panic!() };
    assert_eq!((again.state, again.attempts), (Some(CommandState::Running), Some(2)));
    ends(&decide(&late, &fenced(), at(5)), Reason::StartDeadlineExceeded, None);
}

#[test]
fn what_cannot_be_ended_keeps_nobody_waiting_for_ever() {
    let ready = || present(up("session-1", 1));
    let with = |garbled: u32, survived: u32| {
        let mut observed = seen(ready());
        observed.sent = Sent { garbled, survived: (survived, vec![7, 8]), epoch: Some(1), ..Sent::default() };
        observed
    };
    assert_eq!(decide(&running(), &with(3, 0), at(1)), Step::Wait);
    assert_eq!(decide(&running(), &with(4, 0), at(1)), Step::Kill { grace: 10, after: 0 }, "nobody will learn more");
    ends(&decide(&running(), &with(8, 0), at(1)), Reason::OutcomeUnknown, None);
    ends(&decide(&running(), &with(8, 0), at(61)), Reason::TimedOut, None);
    assert_eq!(after_telling(&running(), &with(0, 2), at(61)).1, Step::Kill { grace: 10, after: 60 });
    let step = decide(&running(), &with(0, 3), at(61));
    ends(&step, Reason::TimedOut, None);
    let Step::Record(status, _) = step else { panic!() };
    assert!(condition(&status.conditions, "Succeeded").unwrap().message.contains("processes 7, 8"));
}

#[test]
fn a_cancelled_command_is_not_started_and_a_running_one_is_ended() {
    let cancelled = |mut command: SandboxCommand| {
        command.spec.cancel = true;
        command
    };
    let queued = cancelled(command(SandboxCommandStatus::default()));
    ends(&decide(&queued, &seen(Lease::Missing), at(0)), Reason::Cancelled, None);
    let ready = || present(up("session-1", 1));
    let runs = cancelled(running());
    let (message, step) = after_telling(&runs, &seen(ready()), at(5));
    assert!(message.contains("spec.cancel"), "{message}");
    assert_eq!(step, Step::Kill { grace: 10, after: 0 });
    ends(&decide(&runs, &killed(ready(), done(143, true)), at(5)), Reason::Cancelled, Some(143));
    ends(&decide(&runs, &killed(ready(), done(0, false)), at(5)), Reason::Succeeded, Some(0));
    // Set back to false: it was seen.
    let Step::Record(told, _) = decide(&runs, &seen(ready()), at(5)) else { panic!() };
    assert_eq!(told.cancel_time, Some(Time(at(5))));
    let back = SandboxCommand { status: Some(*told), ..running() };
    assert_eq!(decide(&back, &seen(ready()), at(6)), Step::Kill { grace: 10, after: 0 });
}

#[test]
fn a_command_that_was_not_started_in_time_never_runs() {
    let mut late = command(SandboxCommandStatus::default());
    late.metadata.creation_timestamp = Some(Time(at(0)));
    late.spec.starting_deadline_seconds = Some(5);
    let Step::Record(status, Again::After(look)) = decide(&late, &seen(Lease::Missing), at(2)) else { panic!() };
    assert_eq!((status.state, look), (Some(CommandState::Queued), Duration::from_secs(3)));
    ends(&decide(&late, &seen(Lease::Missing), at(5)), Reason::StartDeadlineExceeded, None);
}

#[test]
fn logs_are_stored_before_the_outcome_is_told() {
    let output = Output { bytes: 9, truncated: true, log: Some(b"the log".to_vec()), ..Output::default() };
    let outputs = Arc::new(Outputs { stdout: output, stderr: Output::default() });
    let answer = Answer::Done { killed: false, code: 0, milliseconds: 1, how: How::Full, streams: outputs };
    let mut observed = answered(present(up("session-1", 1)), answer);
    let Step::Store(logs) = decide(&running(), &observed, at(1)) else { panic!() };
    assert_eq!((logs.len(), logs[0].content.as_slice()), (1, b"the log".as_slice()));
    let refs = vec![logs[0].at.clone()];
    let stored = |complete, reason| Stored { refs: refs.clone(), complete, reason, message: "m".to_owned() };
    observed.sent.stored = Some(stored(true, OutputReason::Stored));
    let Step::Record(status, _) = decide(&running(), &observed, at(1)) else { panic!() };
    assert_eq!(status.stdout.as_ref().unwrap().log_ref.as_ref(), Some(&refs[0]));
    assert_eq!(condition(&status.conditions, "OutputStored").unwrap().status, "True");
    observed.sent.withheld = true;
    let Step::Record(status, _) = decide(&running(), &observed, at(1)) else { panic!() };
    assert_eq!(condition(&status.conditions, "OutputStored").unwrap().reason, "SecretChanged");
    // What is about to go takes no log along.
    observed.sent.stored = None;
    observed.sent.withheld = false;
    let Step::Record(status, _) = decide(&deleted(running()), &observed, at(1)) else { panic!() };
    assert_eq!(condition(&status.conditions, "OutputStored").unwrap().reason, "StoreRefused");
}

#[test]
fn a_runner_that_was_killed_is_told_from_a_session_that_was_lost() {
    let ready = || present(up("session-1", 1));
    let died = |session_lives| killed(ready(), Answer::Died { streams: Arc::default(), session_lives });
    ends(&decide(&running(), &died(true), at(1)), Reason::ShellExited, None);
    ends(&decide(&running(), &died(false), at(1)), Reason::SessionLost, None);
    // Without a session there is no other shell than its own.
    let status =
        SandboxCommandStatus { session_id: None, workspace_id: Some("w".to_owned()), ..running().status.unwrap() };
    let died = killed(present(one_shot(1)), Answer::Died { streams: Arc::default(), session_lives: false });
    ends(&decide(&ours(command(status)), &died, at(1)), Reason::ShellExited, None);
}
