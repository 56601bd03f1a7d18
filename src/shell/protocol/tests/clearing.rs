//! What is cleared never starts, and leaves nothing behind; what runs is left alone.

use super::*;

impl Sandbox {
    /// Attempts that have files.
    fn left(&self, place: &str) -> Vec<String> {
        let mut names: Vec<String> = (self.base().join(place).read_dir().unwrap())
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    fn collect(&self, attempt: &Attempt) {
        let other = self.attempt();
        self.execute(&self.workspace.wait(&other, 0, FETCH, std::slice::from_ref(&attempt.id)));
    }
}

#[test]
fn what_is_recorded_is_cleared_unless_its_runner_lives() {
    for_each(|sandbox| {
        // One whose runner died without a word.
        let died = sandbox.attempt();
        sandbox.submit(&died, &job("kill -9 $PPID; echo $$ >pid; sleep 300"));
        assert!(matches!(sandbox.wait(&died), Answer::Died { .. }));
        sandbox.eventually("the orphan", |s| s.file("pid").ends_with('\n'));
        sandbox.collect(&died);
        assert!(!sandbox.files_of(&died).exists());
        assert_eq!(sandbox.wait(&died), Answer::Cleared);
        assert!(signal("KILL", &sandbox.file("pid")));
        // One that never came: its text may still be under way, and its files.
        let late = sandbox.attempt();
        let secret = Job { secret: true, ..job("touch ran") };
        sandbox.collect(&late);
        sandbox.submit(&late, &secret);
        assert_eq!(sandbox.wait(&late), Answer::Cleared);
        sandbox.collect(&late);
        assert_eq!(sandbox.left("input"), [""; 0]);
        assert!(!sandbox.work().join("ran").exists());
        // One that runs.
        let runs = sandbox.attempt();
        sandbox.submit(&runs, &job("until [ -e go ]; do sleep 0.02; done; exit 4"));
        sandbox.begun(&runs);
        sandbox.collect(&runs);
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        assert_eq!(ended(&sandbox.wait(&runs)).0, 4);
    });
}

#[test]
fn a_controller_that_has_just_started_sweeps() {
    for_each(|sandbox| {
        let [kept, over, runs, uploaded] = [(); 4].map(|()| sandbox.attempt());
        sandbox.run_as(&kept, &job("echo kept"));
        sandbox.run_as(&over, &job("echo over"));
        sandbox.submit(&runs, &job("until [ -e go ]; do sleep 0.02; done; exit 4"));
        sandbox.begun(&runs);
        let secret = Job { secret: true, ..job("touch ran") };
        Sandbox::upload(&sandbox.workspace.uploads(&uploaded, &secret));
        std::fs::create_dir(sandbox.base().join("input").join(format!("{}.12", uploaded.id))).unwrap();
        std::fs::write(sandbox.base().join("wait").join(format!("{}.999999999", over.id)), "").unwrap();
        let keep = [kept.id.clone()];
        assert_eq!(sandbox.execute(&sandbox.workspace.sweep("other", &keep)), "");
        assert_eq!(sandbox.left("input").len(), 2, "swept without the mark");
        let said = sandbox.execute(&sandbox.workspace.sweep(MARK, &keep));
        assert_eq!(said.trim(), Workspace::session_ready(MARK));
        let mut stay = [kept.id.clone(), runs.id.clone()];
        stay.sort_unstable();
        assert_eq!(sandbox.left("attempt"), stay);
        assert_eq!((sandbox.left("input"), sandbox.left("wait")), (Vec::new(), Vec::new()));
        sandbox.submit(&uploaded, &secret);
        assert_eq!(sandbox.wait(&uploaded), Answer::Cleared);
        assert_eq!((sandbox.wait(&over), ended(&sandbox.wait(&kept)).2), (Answer::Cleared, "kept\n".to_owned()));
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        assert_eq!(ended(&sandbox.wait(&runs)).0, 4);
        // A text stays short.
        let many: Vec<String> = (0..64).map(|n| format!("0b8e9f9e-27ca-4f39-a7bb-64ff5c6ae61c-{n}")).collect();
        assert!(sandbox.workspace.sweep(MARK, &many).len() < LONGEST_INLINE);
        let more: Vec<String> = (0..65).map(|n| n.to_string()).collect();
        assert_eq!(sandbox.workspace.sweep(MARK, &more), sandbox.workspace.check(MARK));
    });
}

#[test]
fn a_text_that_was_cut_starts_nothing_and_may_come_again() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        let env = vec![("A".to_owned(), b"b".to_vec())];
        let job = Job { env, persist: true, ..job("echo $A >ran\necho the end") };
        let text = sandbox.workspace.run(&attempt, &job);
        let body = text.find('\n').unwrap() + 1;
        // Where its last line ends, without the newline.
        let whole = text.rfind(&format!("\n{}\n", attempt.id)).unwrap() + 1 + attempt.id.len();
        for end in (body..whole).step_by(9).chain([whole - 1]) {
            sandbox.execute(text.get(..end).unwrap());
            assert!(!sandbox.work().join("ran").exists(), "ran: {}", text.get(..end).unwrap());
            assert_eq!(sandbox.left("input"), [""; 0]);
        }
        let look = sandbox.workspace.wait(&attempt, 0, FETCH, &[]);
        assert_eq!(Sandbox::parse(&attempt, &sandbox.execute(&look)), Answer::Unseen);
        assert_eq!(ended(&sandbox.run_as(&attempt, &job)).2, "the end\n");
        assert_eq!(sandbox.file("ran"), "b\n");
    });
}
