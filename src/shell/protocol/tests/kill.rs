//! Ending what runs: all of it, and nothing else.

use super::*;

#[test]
fn kill_ends_all_that_was_started_and_keeps_the_session() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        let script = "trap '' TERM; echo begun\n\
            (setsid sh -c 'trap \"\" TERM; echo $$ >own; sleep 300' &)\n\
            (env -i PATH=\"$PATH\" sh -c 'trap \"\" TERM; echo $$ >bare; sleep 300' &)\n\
            sleep 300";
        sandbox.submit(&attempt, &job(script));
        for pid in ["own", "bare"] {
            sandbox.eventually("the detached child", |s| s.file(pid).ends_with('\n'));
        }
        let answer = sandbox.kill(&attempt, 0);
        assert!(matches!(answer, Answer::Done { killed: true, .. }), "{answer:?}");
        let (code, _, out, _) = ended(&answer);
        assert_eq!((code, out.as_str()), (137, "begun\n"));
        for pid in ["own", "bare"] {
            assert!(!alive(&sandbox.file(pid)), "the child {pid} lives");
        }
        assert_eq!(sandbox.output("echo alive"), "alive\n");
    });
}

#[test]
fn a_child_without_its_cookie_is_known_by_its_parent() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        // The parent obeys; by then the child has no parent of ours, no variable of ours and a session of its own.
        let script = "env -i PATH=\"$PATH\" setsid sh -c 'trap \"\" TERM; echo $$ >pid; sleep 300' & wait";
        sandbox.submit(&attempt, &job(script));
        sandbox.eventually("the child", |s| s.file("pid").ends_with('\n'));
        let answer = sandbox.kill(&attempt, 1);
        assert_eq!(ended(&answer).0, 143, "{answer:?}");
        assert!(!alive(&sandbox.file("pid")), "it was forgotten");
    });
}

#[test]
fn the_grace_is_for_those_who_use_it() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        sandbox.submit(&attempt, &job("trap 'echo bye; exit 9' TERM; echo begun; while :; do sleep 0.05; done"));
        sandbox.eventually("it has its trap", |s| {
            std::fs::read(s.files_of(&attempt).join("stdout")).is_ok_and(|out| out == b"begun\n")
        });
        let answer = sandbox.kill(&attempt, 20);
        // On its other output a shell may say that its `sleep` was terminated.
        let (code, how, out, _) = ended(&answer);
        assert_eq!((code, how, out.as_str()), (9, How::Full, "begun\nbye\n"));
    });
}

#[test]
fn a_kill_can_be_repeated() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        for _ in 0..2 {
            assert_eq!(sandbox.kill(&attempt, 0), Answer::Fenced);
        }
        let attempt = sandbox.attempt();
        sandbox.submit(&attempt, &job("echo begun; sleep 300"));
        sandbox.begun(&attempt);
        let answers = [sandbox.kill(&attempt, 0), sandbox.kill(&attempt, 0)];
        assert_eq!(answers[0], answers[1]);
        assert!(matches!(answers[0], Answer::Done { killed: true, .. }), "{answers:?}");
        // A runner that died before it made anything.
        let attempt = sandbox.attempt();
        std::fs::write(sandbox.base().join("guard").join(&attempt.id), "999999999 1\n").unwrap();
        let Answer::Died { streams, .. } = sandbox.kill(&attempt, 0) else { panic!("not died") };
        assert_eq!(streams, Streams::default());
    });
}

#[test]
fn a_grace_period_may_be_longer_than_a_call() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        sandbox.submit(&attempt, &job("trap '' TERM; echo begun; sleep 300"));
        sandbox.eventually("it has its trap", |s| {
            std::fs::read(s.files_of(&attempt).join("stdout")).is_ok_and(|out| out == b"begun\n")
        });
        let kill = sandbox.workspace.kill(&attempt, 600, 0, 0, FETCH);
        for _ in 0..2 {
            let answer = Sandbox::parse(&attempt, &sandbox.execute(&kill));
            assert!(matches!(answer, Answer::Ending(left) if (500..=600).contains(&left)), "{answer:?}");
        }
        // The period counts from the first call on.
        let kill = sandbox.workspace.kill(&attempt, 0, 0, 0, FETCH);
        let answer = Sandbox::parse(&attempt, &sandbox.execute(&kill));
        assert!(matches!(answer, Answer::Done { killed: true, code: 137, .. }), "{answer:?}");
    });
}

#[test]
fn a_kill_may_come_too_early() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        sandbox.submit(&attempt, &job("sleep 300"));
        sandbox.begun(&attempt);
        let text = sandbox.workspace.kill(&attempt, 0, 100, 20, FETCH);
        let answer = Sandbox::parse(&attempt, &sandbox.execute(&text));
        let Answer::Early(left) = answer else { panic!("{answer:?}") };
        assert!((60..=100).contains(&left), "{left}");
        assert!(matches!(sandbox.kill(&attempt, 0), Answer::Done { killed: true, .. }));
    });
}

#[test]
fn early_is_said_only_of_what_runs_by_a_clock_that_goes_on() {
    for_each(|sandbox| {
        for (alter, kills) in [("5.00", false), ("99999999.00", true), ("x", true), ("", true)] {
            let attempt = sandbox.attempt();
            sandbox.submit(&attempt, &job("echo $$ >new; mv new pid; sleep 300"));
            sandbox.eventually("it is there", |s| s.work().join("pid").exists());
            let guard = sandbox.base().join("guard").join(&attempt.id);
            let taken = std::fs::read_to_string(&guard).unwrap();
            let words: Vec<&str> = taken.split_whitespace().collect();
            assert_eq!(words.len(), 3, "{taken}");
            std::fs::write(&guard, format!("{} {} {alter}\n", words[0], words[1])).unwrap();
            // As long as the machine is up.
            let text = sandbox.workspace.kill(&attempt, 0, 90_000_000, 20, FETCH);
            let answer = Sandbox::parse(&attempt, &sandbox.execute(&text));
            assert_eq!(matches!(answer, Answer::Early(_)), !kills, "{alter}: {answer:?}");
            assert_eq!(alive(&sandbox.file("pid")), !kills, "{alter}");
            sandbox.kill(&attempt, 0);
            std::fs::remove_file(sandbox.work().join("pid")).unwrap();
        }
        // Its runner is gone.
        let attempt = sandbox.attempt();
        sandbox.submit(&attempt, &job("kill -9 $PPID; sleep 300"));
        assert!(matches!(sandbox.wait(&attempt), Answer::Died { .. }));
        let text = sandbox.workspace.kill(&attempt, 0, 1000, 20, FETCH);
        assert!(matches!(Sandbox::parse(&attempt, &sandbox.execute(&text)), Answer::Died { .. }));
    });
}

#[test]
fn a_session_whose_number_is_another_ones_is_left_alone() {
    for_each(|sandbox| {
        let mut other = Sandbox::command(sandbox.shell, sandbox.dir.path());
        let mut other = { other.stdin(Stdio::piped()) }.spawn().unwrap();
        writeln!(
            other.stdin.as_mut().unwrap(),
            "setsid sh -c 'echo $$ >other; mv other {}/leader; exec sleep 300'",
            sandbox.work().display()
        )
        .unwrap();
        sandbox.eventually("the other", |s| s.file("leader").ends_with('\n'));
        let attempt = sandbox.attempt();
        sandbox.submit(&attempt, &job("trap '' TERM; echo begun; sleep 300"));
        sandbox.begun(&attempt);
        let kill = sandbox.workspace.kill(&attempt, 600, 0, 0, FETCH);
        let answer = Sandbox::parse(&attempt, &sandbox.execute(&kill));
        assert!(matches!(answer, Answer::Ending(_)), "{answer:?}");
        // As a call left it that had seen a session of this number, whose leader was another process.
        let killed = sandbox.files_of(&attempt).join("killed");
        let text = std::fs::read_to_string(&killed).unwrap();
        let number = sandbox.file("leader").trim().to_owned();
        std::fs::write(&killed, format!("{} {number}:1 {number}:-\n", text.trim_end())).unwrap();
        assert!(matches!(sandbox.kill(&attempt, 0), Answer::Done { killed: true, .. }));
        assert!(alive(&number), "another's session was ended");
        assert!(signal("KILL", &number));
        other.kill().unwrap();
        other.wait().unwrap();
    });
}

#[test]
fn what_ended_by_itself_is_left_as_it_is() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        let (code, how, pid, _) = ended(&sandbox.run_as(&attempt, &job("sleep 300 & echo $!")));
        assert_eq!((code, how), (0, How::Background));
        assert!(alive(&pid), "it was to live on");
        assert!(matches!(sandbox.kill(&attempt, 0), Answer::Done { killed: false, .. }));
        assert!(alive(&pid), "what it left in the background was ended with a command that was over");
        assert!(signal("KILL", &pid));
    });
}

#[test]
fn a_runner_that_was_stopped_is_woken_or_ended() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        sandbox.submit(&attempt, &job("echo begun; kill -STOP $PPID; sleep 300"));
        let guard = sandbox.base().join("guard").join(&attempt.id);
        sandbox.eventually("the runner is stopped", |_| {
            let pid = std::fs::read_to_string(&guard).unwrap_or_default();
            let pid = pid.split(' ').next().unwrap().to_owned();
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().unwrap().starts_with('T')
        });
        let answer = sandbox.kill(&attempt, 0);
        assert!(matches!(answer, Answer::Done { killed: true, .. } | Answer::Died { .. }), "{answer:?}");
        assert_eq!(sandbox.output("echo alive"), "alive\n");
    });
}

#[test]
fn what_a_script_started_is_found_without_our_files() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        sandbox.submit(&attempt, &job("echo $$ >pid; rm -rf \"$HOME/.daytona-controller\"; sleep 300"));
        sandbox.eventually("our files are gone", |s| s.work().join("pid").exists() && !s.base().exists());
        sandbox.execute(&sandbox.workspace.set_up());
        let answer = sandbox.kill(&attempt, 0);
        assert!(matches!(answer, Answer::Lost | Answer::Done { killed: true, .. }), "{answer:?}");
        assert!(!alive(&sandbox.file("pid")));
    });
}

#[test]
fn nothing_of_a_killed_attempt_is_left_not_even_ours() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        sandbox.submit(&attempt, &job("sleep 300 & sleep 300 | cat"));
        sandbox.begun(&attempt);
        let waiter = sandbox.spawn(&sandbox.workspace.wait(&attempt, 600, FETCH, &[]));
        let killed = sandbox.kill(&attempt, 0);
        let said = String::from_utf8(waiter.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(Sandbox::parse(&attempt, &said), killed, "the waiter is told");
        let id = attempt.id.as_bytes();
        sandbox.eventually("no process knows of it", |_| {
            processes().iter().all(|process| {
                let read = |file: &str| std::fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
                let mut known = read("environ");
                known.extend(read("cmdline"));
                !known.windows(id.len()).any(|part| part == id)
            })
        });
        assert_eq!(sandbox.base().join("wait").read_dir().unwrap().count(), 0);
    });
}

#[test]
fn a_kill_before_the_child_is_there_keeps_it_from_starting() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        // As a kill leaves it that came right after the guard was taken.
        std::fs::create_dir(sandbox.files_of(&attempt)).unwrap();
        std::fs::write(sandbox.files_of(&attempt).join("killed"), "kill\n").unwrap();
        let answer = sandbox.run_as(&attempt, &job("touch ran"));
        assert!(matches!(answer, Answer::Done { killed: true, how: How::NotStarted, .. }), "{answer:?}");
        assert!(!sandbox.work().join("ran").exists());
    });
}
