//! Scripts that turn on what runs them. What is thrown at the session itself is in the table.

use super::*;

#[test]
fn a_script_that_removes_our_files_ends_with_its_code() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        let script = "until [ -e go ]; do sleep 0.01; done; echo gone; rm -rf \"$HOME/.daytona-controller\"; exit 3";
        sandbox.submit(&attempt, &job(script));
        sandbox.begun(&attempt);
        // Who asks only then finds nothing to ask with.
        let waiter = sandbox.spawn(&sandbox.workspace.wait(&attempt, 20, FETCH, &[]));
        sandbox.eventually("somebody waits", |s| std::fs::read_dir(s.base().join("wait")).unwrap().count() > 0);
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        let text = String::from_utf8(waiter.wait_with_output().unwrap().stdout).unwrap();
        let answer = Sandbox::parse(&attempt, &text);
        assert_eq!((ended(&answer).0, ended(&answer).1), (3, How::OutputLost), "{answer:?}");
        sandbox.execute(&sandbox.workspace.set_up());
        let next = sandbox.attempt();
        let look = sandbox.workspace.wait(&next, 0, FETCH, &[]);
        assert_eq!(Sandbox::parse(&next, &sandbox.execute(&look)), Answer::Lost, "its guard may be gone");
    });
}

#[test]
fn a_script_that_ends_the_readers_of_its_output_goes_on() {
    for_each(|sandbox| {
        let script = "cd \"${0%/*}\"; for name in stdout stderr; do\n\
            until [ -s $name.taker ]; do sleep 0.01; done; read pid _ <$name.taker; kill -9 $pid; done\n\
            i=0; while [ $i -lt 3000 ]; do echo a line of some length; i=$((i + 1)); done; rm out err; exit 3";
        let answer = sandbox.run(script);
        assert_eq!((ended(&answer).0, ended(&answer).1), (3, How::OutputLost), "{answer:?}");
        assert_eq!(sandbox.output("echo alive"), "alive\n");
    });
}

#[test]
fn a_profile_that_fails_or_speaks_is_part_of_the_script() {
    for_each(|sandbox| {
        let profile = sandbox.dir.path().join("home/.profile");
        std::fs::write(&profile, "echo profile; PROFILE=read; export PROFILE").unwrap();
        assert_eq!(sandbox.output("echo $PROFILE"), "profile\nread\n");
        std::fs::write(&profile, "exit 7").unwrap();
        assert_eq!(sandbox.result("echo no").0, 7);
        let by = Job { interpreter: vec!["sh".to_owned()], ..job("echo ${PROFILE-none}") };
        assert_eq!(ended(&sandbox.run_job(&by)).2, "none\n");
    });
}
