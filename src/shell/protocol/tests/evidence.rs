//! What a script puts in the place of our files, or takes away, changes no code, holds up no end, and says nothing false.

use super::*;

/// Puts a script into the directory of its own attempt.
const THERE: &str = "cd \"$(echo \"$HOME\"/.daytona-controller/*/attempt/\"$DTC_ATTEMPT\")\" || exit 99\n";

#[test]
fn the_outcome_is_written_whatever_is_in_its_place() {
    for_each(|sandbox| {
        for garbage in [
            "mkdir exit",
            "echo a b >exit",
            "mkfifo exit",
            "rm exit.new; mkdir exit.new",
            "rm exit.new; mkfifo exit.new",
            "mkdir exit exit/a",
            "mkfifo stdout.size",
        ] {
            let (code, how, out, _) = ended(&sandbox.run(&format!("{THERE}echo x; {garbage}; exit 6")));
            assert_eq!((code, how, out.as_str()), (6, How::Full, "x\n"), "{garbage}");
        }
    });
}

#[test]
fn what_is_no_number_is_not_reckoned_with() {
    for_each(|sandbox| {
        for (garbage, how) in [
            ("echo a b >stdout.size; rm stderr.taker; mkdir stderr.taker", None),
            ("rm begun; mkdir begun", Some(How::Full)),
            ("echo 08+1 >>stdout.said; rm -f child; mkfifo child", Some(How::Full)),
            (
                "rm stdout.taker; mkfifo stdout.taker; until rm -f stderr; mkdir stderr 2>/dev/null; do :; done",
                Some(How::OutputLost),
            ),
        ] {
            let read = "until [ -s stdout.taker ] && [ -s stderr.taker ]; do sleep 0.01; done";
            let answer = sandbox.run(&format!("{THERE}{read}; {garbage}; exit 6"));
            assert_eq!(ended(&answer).0, 6, "{garbage}");
            assert!(how.is_none_or(|how| ended(&answer).1 == how), "{garbage}: {answer:?}");
        }
        let attempt = sandbox.attempt();
        sandbox.run_as(&attempt, &job("echo x"));
        // What is there by now counts, however the outcome came to be what it is.
        for (garbage, died) in [("0 1.00 2.00 fine", true), ("0 x.00 1.00 full", true), ("00 1.00 2.00 full", true)] {
            std::fs::write(sandbox.files_of(&attempt).join("exit"), garbage).unwrap();
            assert_eq!(matches!(sandbox.wait(&attempt), Answer::Died { .. }), died, "{garbage}");
            assert_eq!(matches!(sandbox.kill(&attempt, 0), Answer::Died { .. }), died, "{garbage}");
        }
    });
}

#[test]
fn nothing_in_the_place_of_our_files_keeps_from_being_ended() {
    for_each(|sandbox| {
        for garbage in [
            "mkdir exit; echo a b >begun",
            "echo 0 1 2 >exit; mkdir killed",
            "printf 'x y\\n1 2\\n' >killed; mkfifo exit",
            "echo a b >stdout.size; mkdir stderr.size child; echo x >../../guard/$DTC_ATTEMPT",
            "rm ../../guard/$DTC_ATTEMPT; mkdir ../../guard/$DTC_ATTEMPT",
            "rm ../../guard/$DTC_ATTEMPT; mkfifo ../../guard/$DTC_ATTEMPT",
            "cd ..; rm -rf \"$DTC_ATTEMPT\"; echo file >\"$DTC_ATTEMPT\"",
        ] {
            let attempt = sandbox.attempt();
            let pid = sandbox.work().join("pid");
            let script = format!(
                "trap '' TERM; {THERE}{garbage}; cd {}; echo $$ >new; mv new pid; sleep 300",
                sandbox.work().display()
            );
            sandbox.submit(&attempt, &job(&script));
            sandbox.eventually("it is there", |_| pid.exists());
            for _ in 0..2 {
                let answer = sandbox.kill(&attempt, 0);
                assert!(
                    matches!(answer, Answer::Done { killed: true, .. } | Answer::Died { .. }),
                    "{garbage}: {answer:?}"
                );
            }
            assert!(!alive(&std::fs::read_to_string(&pid).unwrap()), "{garbage}: it lives");
            std::fs::remove_file(pid).unwrap();
            sandbox.wait(&attempt);
        }
        assert_eq!(sandbox.output("echo alive"), "alive\n");
    });
}

#[test]
fn a_script_cannot_unmake_that_it_has_begun() {
    for_each(|sandbox| {
        for gone in ["rm -f begun", ": >begun", "rm -f *"] {
            let (code, how, ..) = ended(&sandbox.run(&format!("{THERE}echo hi; {gone}; exit 3")));
            assert_eq!(code, 3, "{gone}");
            assert_ne!(how, How::NotStarted, "{gone}");
        }
    });
}

#[test]
fn of_an_output_that_was_taken_away_no_digest_is_told() {
    for_each(|sandbox| {
        for gone in ["rm stdout", ": >stdout", "rm stdout; mkdir stdout"] {
            // busybox's dd does not count.
            if sandbox.shell == "busybox" && gone == ": >stdout" {
                continue;
            }
            let attempt = sandbox.attempt();
            let stay = "until [ -s stdout ]; do sleep 0.01; done";
            let answer =
                sandbox.run_as(&attempt, &job(&format!("{THERE}echo hello; {stay}; {gone}; echo more; exit 4")));
            assert_eq!((ended(&answer).0, ended(&answer).1), (4, How::OutputLost), "{gone}: {answer:?}");
            assert_eq!(streams_of(&answer).stdout.sha256, None);
        }
        // Also when it was taken away later.
        let attempt = sandbox.attempt();
        assert_eq!(ended(&sandbox.run_as(&attempt, &job("echo hello; exit 5"))).1, How::Full);
        std::fs::write(sandbox.files_of(&attempt).join("stdout"), "").unwrap();
        assert_eq!((ended(&sandbox.wait(&attempt)).0, ended(&sandbox.wait(&attempt)).1), (5, How::OutputLost));
    });
}

#[test]
fn a_reader_that_was_stopped_goes_on() {
    for_each(|sandbox| {
        let stop = "until [ -s stdout.taker ] && [ -s stdout ]; do sleep 0.01; done; read pid _ <stdout.taker; kill -STOP $pid";
        let (code, how, out, _) = ended(&sandbox.run(&format!("{THERE}echo first; {stop}; echo second; exit 9")));
        // zsh cannot tell a reader that was stopped from one that was ended.
        let expected = if sandbox.shell == "zsh" { How::OutputLost } else { How::Full };
        assert_eq!((code, how, out.as_str()), (9, expected, "first\nsecond\n"));
    });
}
