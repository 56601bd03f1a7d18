//! Started once, whatever happens on the way; and told truthfully.

use super::*;

#[test]
fn a_command_ends_with_its_code_and_its_two_outputs() {
    for_each(|sandbox| {
        let answer = sandbox.run("echo out; echo err >&2; pwd; exit 3");
        let work = sandbox.work();
        assert_eq!(ended(&answer), (3, How::Full, format!("out\n{}\n", work.display()), "err\n".to_owned()));
        let Answer::Done { killed: false, milliseconds, .. } = answer else { panic!("{answer:?}") };
        assert!((0..30_000).contains(&milliseconds), "{milliseconds}");
    });
}

#[test]
fn the_same_attempt_runs_once_however_often_it_arrives() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        let job = job("echo x >>runs; echo once");
        let session = sandbox.workspace.run(&attempt, &job);
        let one = sandbox.workspace.one(&attempt, &job, 20, FETCH, &[]);
        for _ in 0..3 {
            sandbox.feed(&session);
        }
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let sandbox = &*sandbox;
            let callers: Vec<_> = (0..4).map(|_| scope.spawn(|| sandbox.ask(&attempt, &one))).collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        });
        for answer in &answers {
            assert_eq!(answer, answers.first().unwrap());
            assert_eq!(ended(answer).2, "once\n");
        }
        assert_eq!(sandbox.output("cat runs"), "x\n");
        let collected = sandbox.workspace.wait(&attempt, 0, FETCH, std::slice::from_ref(&attempt.id));
        sandbox.execute(&collected);
        assert_eq!(sandbox.wait(&attempt), Answer::Cleared);
        let late = sandbox.feed(&session);
        sandbox.eventually("the late copy is refused", |_| late.code() == Some(97));
        assert_eq!(Sandbox::parse(&attempt, &sandbox.execute(&one)), Answer::Cleared);
        assert_eq!(sandbox.file("runs"), "x\n", "a late copy ran");
    });
}

#[test]
fn the_end_of_a_caller_ends_nothing_and_another_attaches() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        let job = job("echo x >>runs; until [ -e go ]; do sleep 0.02; done; echo done");
        let text = match sandbox.launcher {
            Launcher::Session => {
                sandbox.feed(&sandbox.workspace.run(&attempt, &job));
                sandbox.workspace.wait(&attempt, 20, FETCH, &[])
            }
            Launcher::OneShot => sandbox.workspace.one(&attempt, &job, 20, FETCH, &[]),
        };
        for _ in 0..3 {
            let mut caller = sandbox.spawn(&text);
            sandbox.begun(&attempt);
            caller.kill().unwrap();
            caller.wait().unwrap();
        }
        assert_eq!(
            Sandbox::parse(&attempt, &sandbox.execute(&sandbox.workspace.wait(&attempt, 0, FETCH, &[]))),
            Answer::Running
        );
        let waiter = sandbox.spawn(&text);
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        let said = String::from_utf8(waiter.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(ended(&Sandbox::parse(&attempt, &said)).2, "done\n");
        assert_eq!(sandbox.file("runs"), "x\n");
    });
}

#[test]
fn a_waiter_comes_before_the_command() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        let waiter = sandbox.spawn(&sandbox.workspace.wait(&attempt, 20, FETCH, &[]));
        sandbox.eventually("it waits", |s| s.base().join("wait").read_dir().unwrap().next().is_some());
        sandbox.submit(&attempt, &job("echo ran"));
        let said = String::from_utf8(waiter.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(ended(&Sandbox::parse(&attempt, &said)).2, "ran\n");
    });
}

#[test]
fn a_fence_keeps_from_starting_and_ends_nothing() {
    for_each(|sandbox| {
        let runs = sandbox.attempt();
        sandbox.submit(&runs, &job("while [ ! -e go ]; do sleep 0.02; done; exit 4"));
        sandbox.begun(&runs);
        assert_eq!(sandbox.fence(&runs), Answer::Running);
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        assert_eq!(ended(&sandbox.wait(&runs)).0, 4);
        let late = sandbox.attempt();
        assert_eq!(sandbox.fence(&late), Answer::Fenced);
        assert_eq!(sandbox.wait(&late), Answer::Fenced);
    });
}

#[test]
fn what_was_fenced_never_starts_and_leaves_no_file() {
    for_each(|sandbox| {
        for kill in [false, true] {
            let (attempt, secret) = (sandbox.attempt(), Job { secret: true, ..job("touch ran") });
            let uploads = sandbox.workspace.uploads(&attempt, &secret);
            let input = sandbox.base().join("input").join(&attempt.id);
            Sandbox::upload(&uploads);
            assert!(input.exists());
            assert_eq!(if kill { sandbox.kill(&attempt, 0) } else { sandbox.fence(&attempt) }, Answer::Fenced);
            assert!(!input.exists(), "what was uploaded is still there");
            // All of it comes late, and it comes again.
            Sandbox::upload(&uploads);
            match sandbox.launcher {
                Launcher::Session => {
                    let log = sandbox.feed(&sandbox.workspace.run(&attempt, &secret));
                    sandbox.eventually("it is refused", |_| log.code() == Some(97));
                }
                Launcher::OneShot => {
                    let text = sandbox.workspace.one(&attempt, &secret, 5, FETCH, &[]);
                    assert_eq!(Sandbox::parse(&attempt, &sandbox.execute(&text)), Answer::Fenced);
                }
            }
            let other = sandbox.attempt();
            sandbox.execute(&sandbox.workspace.wait(&other, 0, FETCH, std::slice::from_ref(&attempt.id)));
            assert!(!input.exists(), "what was uploaded late is still there");
            assert!(!sandbox.work().join("ran").exists());
            assert_eq!(sandbox.wait(&attempt), Answer::Fenced);
        }
    });
}

#[test]
fn a_text_without_its_files_starts_nothing_and_may_come_again() {
    for_each(|sandbox| {
        let (attempt, secret) = (sandbox.attempt(), Job { secret: true, ..job("echo ran") });
        match sandbox.launcher {
            Launcher::Session => {
                let log = sandbox.feed(&sandbox.workspace.run(&attempt, &secret));
                sandbox.eventually("it is refused", |_| log.code() == Some(98));
                assert_eq!(log.errors(), format!("dtc1 {} missing\n", attempt.id));
            }
            Launcher::OneShot => {
                sandbox.execute(&sandbox.workspace.one(&attempt, &secret, 0, FETCH, &[]));
            }
        }
        let look = sandbox.workspace.wait(&attempt, 0, FETCH, &[]);
        assert_eq!(Sandbox::parse(&attempt, &sandbox.execute(&look)), Answer::Unseen);
        assert_eq!(ended(&sandbox.run_as(&attempt, &secret)).2, "ran\n");
    });
}

#[test]
fn a_runner_that_was_killed_is_told_from_one_that_runs() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        let job = job("echo begun; echo x >>runs; until [ -e go ]; do sleep 0.02; done; kill -9 $PPID; sleep 300");
        sandbox.submit(&attempt, &job);
        let waiter = sandbox.spawn(&sandbox.workspace.wait(&attempt, 600, FETCH, &[]));
        sandbox.eventually("what it wrote is kept", |s| {
            std::fs::read(s.files_of(&attempt).join("stdout")).is_ok_and(|out| out == b"begun\n")
        });
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        let said = String::from_utf8(waiter.wait_with_output().unwrap().stdout).unwrap();
        let answer = Sandbox::parse(&attempt, &said);
        let Answer::Died { streams, session_lives } = &answer else { panic!("not died: {answer:?}") };
        assert_eq!(streams.stdout.tail, b"begun\n");
        assert_eq!(*session_lives, sandbox.launcher == Launcher::Session);
        assert!(matches!(sandbox.kill(&attempt, 0), Answer::Died { .. }));
        sandbox.text(&attempt, &job);
        assert_eq!(sandbox.output("cat runs"), "x\n", "it ran again");
        let _ = sandbox.session.kill();
        let _ = sandbox.session.wait();
        assert!(matches!(sandbox.wait(&attempt), Answer::Died { session_lives: false, .. }));
    });
}

#[test]
fn unseen_and_lost_are_two_things() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        let look = sandbox.workspace.wait(&attempt, 0, FETCH, &[]);
        assert_eq!(Sandbox::parse(&attempt, &sandbox.execute(&look)), Answer::Unseen);
        std::fs::remove_dir_all(sandbox.base()).unwrap();
        sandbox.execute(&sandbox.workspace.set_up());
        assert_eq!(Sandbox::parse(&attempt, &sandbox.execute(&look)), Answer::Lost);
        match sandbox.launcher {
            Launcher::Session => {
                let log = sandbox.feed(&sandbox.workspace.run(&attempt, &job("touch ran")));
                sandbox.eventually("it is refused", |_| log.code() == Some(98));
            }
            Launcher::OneShot => {
                let text = sandbox.workspace.one(&attempt, &job("touch ran"), 0, FETCH, &[]);
                assert_eq!(Sandbox::parse(&attempt, &sandbox.execute(&text)), Answer::Lost);
            }
        }
        assert_eq!(sandbox.kill(&attempt, 0), Answer::Lost);
        assert!(!sandbox.work().join("ran").exists(), "it ran although nobody could know whether it had");
    });
}

#[test]
fn what_a_shell_leaves_is_a_mark_and_a_mark_is_not_made_again() {
    for_each(|sandbox| {
        let mark = std::fs::read_to_string(sandbox.base().join("session").join(MARK)).unwrap();
        match sandbox.launcher {
            Launcher::Session => assert_eq!(mark.split(' ').next().unwrap(), sandbox.session.id().to_string()),
            Launcher::OneShot => assert_eq!(mark, "none\n"),
        }
        let check = sandbox.workspace.check(MARK);
        assert_eq!(sandbox.execute(&check).trim(), Workspace::session_ready(MARK));
        std::fs::remove_dir_all(sandbox.base()).unwrap();
        assert_eq!(sandbox.execute(&check), "");
        sandbox.execute(&sandbox.workspace.set_up());
        assert_eq!(sandbox.execute(&check), "");
    });
}

#[test]
fn nothing_is_left_behind_by_commands_that_ended() {
    for_each(|sandbox| {
        let mut collected: Vec<String> = Vec::new();
        for n in 0..20 {
            let attempt = sandbox.attempt();
            let job = job(&format!("echo {n}"));
            if sandbox.launcher == Launcher::Session {
                sandbox.feed(&sandbox.workspace.run(&attempt, &job));
            }
            let text = match sandbox.launcher {
                Launcher::Session => sandbox.workspace.wait(&attempt, 20, FETCH, &collected),
                Launcher::OneShot => sandbox.workspace.one(&attempt, &job, 20, FETCH, &collected),
            };
            assert_eq!(ended(&Sandbox::parse(&attempt, &sandbox.execute(&text))).2, format!("{n}\n"));
            collected = vec![attempt.id];
        }
        sandbox.eventually("only the session's shell is left", |s| s.processes().is_empty());
        let entries = |dir: &str| sandbox.base().join(dir).read_dir().unwrap().count();
        assert_eq!((entries("wait"), entries("input"), entries("attempt")), (0, 0, 1));
        assert_eq!(entries("guard"), 20, "a guard outlives the files");
    });
}

#[test]
fn the_log_of_the_session_shows_the_end_of_both_outputs() {
    for_each_session(|sandbox| {
        let attempt = sandbox.attempt();
        let log = sandbox.feed(&sandbox.workspace.run(&attempt, &job("seq 1 10000; echo oops >&2; exit 5")));
        sandbox.eventually("it is over", |_| log.code() == Some(5));
        assert_eq!(log.output().len(), 16384);
        assert!(log.output().ends_with("\n9999\n10000\n"));
        assert_eq!(log.errors(), "oops\n");
        let secret = Job { secret: true, ..job("echo hidden; echo hidden >&2") };
        let attempt = sandbox.attempt();
        Sandbox::upload(&sandbox.workspace.uploads(&attempt, &secret));
        let text = sandbox.workspace.run(&attempt, &secret);
        assert!(!text.contains("hidden"));
        let log = sandbox.feed(&text);
        sandbox.eventually("it is over", |_| log.code() == Some(0));
        assert_eq!((log.output(), log.errors()), (String::new(), String::new()));
    });
}
