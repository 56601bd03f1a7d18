//! The texts run by real shells: each of them as the session's shell and as the `sh` that reads the runner.

use std::{
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::*;

/// A sandbox in a directory, with a persistent shell.
struct Sandbox {
    dir: tempfile::TempDir,
    shell: &'static str,
    session: Child,
    workspace: Workspace,
}

const SESSION: &str = "lease-1";

/// Attempts are unique for ever; the tests share one process table, so they must be so here too.
fn attempt_in(sandbox: &Sandbox, n: i32) -> Attempt {
    let name = sandbox.dir.path().file_name().unwrap().to_str().unwrap();
    Attempt::new(&name.replace('.', ""), n, SESSION)
}

impl Sandbox {
    fn start(shell: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        std::fs::create_dir_all(home.join("work")).unwrap();
        let workspace = Workspace::new(home.to_str().unwrap(), home.join("work").to_str().unwrap(), "lease");
        let session = Self::command(shell, dir.path()).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut sandbox = Self { dir, shell, session, workspace };
        assert_eq!(sandbox.execute(&sandbox.workspace.set_up()).trim(), Workspace::SET_UP);
        sandbox.feed(&sandbox.workspace.session(SESSION));
        sandbox.eventually("the session's mark", |s| s.base().join("session").join(SESSION).exists());
        sandbox
    }

    fn command(shell: &str, dir: &Path) -> Command {
        let mut command = Command::new(shell);
        command.env_clear().env("PATH", std::env::var("PATH").unwrap()).env("HOME", dir.join("home")).current_dir(dir);
        command.stderr(Stdio::null());
        command
    }

    fn base(&self) -> std::path::PathBuf {
        self.dir.path().join("home/.daytona-controller/lease")
    }

    fn feed(&mut self, text: &str) {
        writeln!(self.session.stdin.as_mut().unwrap(), "{text}").unwrap();
    }

    /// As Daytona does it: the text is the standard input of a new shell.
    fn execute(&self, text: &str) -> String {
        let mut child =
            Self::command(self.shell, self.dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }

    fn wait(&self, attempt: &Attempt) -> Answer {
        let text = self.execute(&self.workspace.wait(attempt, 20, &[]));
        Answer::parse(attempt, &text).unwrap_or_else(|_| panic!("garbled: {text:?}"))
    }

    fn run(&mut self, n: i32, script: &str) -> Answer {
        let attempt = attempt_in(self, n);
        self.feed(&self.workspace.run(&attempt, script));
        self.wait(&attempt)
    }

    fn eventually(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !condition(self) {
            assert!(Instant::now() < deadline, "not seen within 30 s: {what}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.session.kill();
        let _ = self.session.wait();
    }
}

fn ended(answer: &Answer) -> (i32, How, String, String) {
    let Answer::Done { code, how, streams, .. } = answer else { panic!("not done: {answer:?}") };
    let text = |s: &Stream| String::from_utf8_lossy(&s.tail).into_owned();
    (*code, *how, text(&streams.stdout), text(&streams.stderr))
}

fn for_each_shell(test: impl Fn(&mut Sandbox)) {
    for shell in ["bash", "dash"] {
        assert!(
            Command::new(shell).arg("-c").arg(":").status().is_ok(),
            "{shell} is missing; type: apt-get install -y {shell}"
        );
        test(&mut Sandbox::start(shell));
    }
}

#[test]
fn a_command_ends_with_its_code_and_its_two_outputs() {
    for_each_shell(|sandbox| {
        let answer = sandbox.run(1, "echo out; echo err >&2; pwd; exit 3");
        let work = sandbox.dir.path().join("home/work");
        assert_eq!(
            ended(&answer),
            (3, How::Full, format!("out\n{}\n", work.display()), "err\n".to_owned()),
            "{}",
            sandbox.shell
        );
    });
}

#[test]
fn nothing_in_a_script_ends_or_blocks_the_session() {
    let scripts: &[(&str, i32)] = &[
        ("exit 300", 44),
        ("exec true", 0),
        ("exec false", 1),
        ("set -e; false; echo no", 1),
        ("set -u; echo $nothing_of_this_name; echo no", 1),
        ("return 7", 2),
        ("kill -9 $$", 137),
        ("kill -TERM 0; sleep 60", 143),
        ("trap 'exit 5' EXIT; exit 6", 5),
        ("wait; echo waited", 0),
        ("cat; read line || exit 9", 9),
        ("if", 2),
        ("echo 'unterminated", 2),
        ("base=/ attempt=x dir=/x guard=y op=z; export base dir; exit 8", 8),
        ("PATH=; IFS=x; umask 777; exit 4", 4),
        ("exec >&- 2>&-; exit 11", 11),
        ("no_such_program_at_all", 127),
        ("cat <<'X'\na \"$b\" `c` \\\nX", 0),
        ("# nothing", 0),
    ];
    for_each_shell(|sandbox| {
        for (n, (script, code)) in (1_i32..).zip(scripts) {
            let answer = sandbox.run(n, script);
            assert_eq!(ended(&answer).0, *code, "{}: {script}: {answer:?}", sandbox.shell);
            let alive = sandbox.run(n + 1000, "echo alive");
            assert_eq!(ended(&alive).2, "alive\n", "{} after {script}", sandbox.shell);
        }
    });
}

#[test]
fn the_same_attempt_runs_once_however_often_it_arrives() {
    for_each_shell(|sandbox| {
        let attempt = attempt_in(sandbox, 1);
        let text = sandbox.workspace.run(&attempt, "echo x >>runs; echo once");
        for _ in 0..5 {
            sandbox.feed(&text);
        }
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| sandbox.execute(&text));
            }
        });
        assert_eq!(ended(&sandbox.wait(&attempt)).2, "once\n");
        assert_eq!(ended(&sandbox.run(2, "cat runs")).2, "x\n", "{}", sandbox.shell);
        let collected = sandbox.workspace.wait(&attempt, 0, std::slice::from_ref(&attempt.id));
        sandbox.execute(&collected);
        assert_eq!(sandbox.wait(&attempt), Answer::Cleared);
        sandbox.execute(&text);
        assert_eq!(ended(&sandbox.run(3, "cat runs")).2, "x\n", "a late copy ran");
    });
}

#[test]
fn output_is_exact_whatever_it_is() {
    for_each_shell(|sandbox| {
        let answer = sandbox.run(1, r"printf '\377\376a\000b\342\202'; printf abc >&2");
        let Answer::Done { streams, .. } = &answer else { panic!("{answer:?}") };
        assert_eq!(streams.stdout.tail, b"\xff\xfea\0b\xe2\x82");
        assert_eq!(streams.stderr.tail, b"abc");
        assert_eq!(
            streams.stderr.sha256.as_deref(),
            Some("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        );
        let answer = sandbox.run(2, "seq 1 200000; echo early; echo late >/dev/stderr; echo later >/dev/stderr");
        let Answer::Done { streams, .. } = &answer else { panic!("{answer:?}") };
        assert_eq!(streams.stdout.bytes, 1_288_895 + 6);
        assert_eq!(streams.stdout.tail.len(), FETCHED_TAIL);
        assert!(streams.stdout.tail.ends_with(b"\n200000\nearly\n"));
        assert_eq!(streams.stderr.tail, b"late\nlater\n");
    });
}

#[test]
fn a_background_process_that_holds_the_output_does_not_hold_the_command() {
    for_each_shell(|sandbox| {
        let answer = sandbox.run(1, "sleep 300 & echo $!");
        let (code, how, pid, _) = ended(&answer);
        assert_eq!((code, how), (0, How::Background));
        assert!(Path::new("/proc").join(pid.trim()).exists(), "it was to live on");
        let text = sandbox.execute(&sandbox.workspace.kill(&attempt_in(sandbox, 1), 0, 0));
        assert!(text.contains(" done 0 "), "it had ended by itself: {text}");
        assert!(alive(&pid), "what it left in the background was ended with a command that was over");
        assert!(Command::new("kill").args(["-9", pid.trim()]).status().unwrap().success());
    });
}

#[test]
fn kill_ends_all_that_was_started_and_keeps_the_session() {
    for_each_shell(|sandbox| {
        let attempt = attempt_in(sandbox, 1);
        let script = "trap '' TERM; echo begun; (setsid sh -c 'trap \"\" TERM; echo $$ >pid; sleep 300' &) ; sleep 300";
        sandbox.feed(&sandbox.workspace.run(&attempt, script));
        let pid = sandbox.dir.path().join("home/work/pid");
        sandbox.eventually("the detached child", |_| std::fs::read_to_string(&pid).is_ok_and(|p| p.ends_with('\n')));
        let text = sandbox.execute(&sandbox.workspace.kill(&attempt, 0, 0));
        let answer = Answer::parse(&attempt, &text).unwrap();
        assert!(matches!(answer, Answer::Done { killed: true, .. }), "{answer:?}");
        let (code, _, out, _) = ended(&answer);
        assert_eq!((code, out.as_str()), (137, "begun\n"), "{text}");
        assert!(!alive(&std::fs::read_to_string(&pid).unwrap()), "the detached child lives");
        assert_eq!(ended(&sandbox.run(2, "echo alive")).2, "alive\n");
    });
}

#[test]
fn a_kill_can_be_repeated() {
    for_each_shell(|sandbox| {
        let attempt = attempt_in(sandbox, 1);
        let kill = sandbox.workspace.kill(&attempt, 0, 0);
        for _ in 0..2 {
            assert_eq!(Answer::parse(&attempt, &sandbox.execute(&kill)), Ok(Answer::Fenced), "{}", sandbox.shell);
        }
        let attempt = attempt_in(sandbox, 2);
        sandbox.feed(&sandbox.workspace.run(&attempt, "echo begun; sleep 300"));
        let started = sandbox.base().join("attempt").join(&attempt.id).join("child");
        sandbox.eventually("it runs", |_| started.exists());
        let kill = sandbox.workspace.kill(&attempt, 0, 0);
        let answers =
            [sandbox.execute(&kill), sandbox.execute(&kill)].map(|text| Answer::parse(&attempt, &text).unwrap());
        assert_eq!(answers[0], answers[1]);
        assert!(matches!(answers[0], Answer::Done { killed: true, .. }), "{answers:?}");
        // A runner that died before it made anything.
        let guard = sandbox.base().join("guard").join(attempt_in(sandbox, 3).id);
        std::fs::write(guard, "999999999 1\n").unwrap();
        let attempt = attempt_in(sandbox, 3);
        let text = sandbox.execute(&sandbox.workspace.kill(&attempt, 0, 0));
        assert_eq!(Answer::parse(&attempt, &text), Ok(Answer::Died(Streams::default())), "{text}");
    });
}

#[test]
fn a_kill_may_come_too_early() {
    for_each_shell(|sandbox| {
        let attempt = attempt_in(sandbox, 1);
        sandbox.feed(&sandbox.workspace.run(&attempt, "sleep 300"));
        let started = sandbox.base().join("attempt").join(&attempt.id).join("child");
        sandbox.eventually("it runs", |_| started.exists());
        let text = sandbox.execute(&sandbox.workspace.kill(&attempt, 0, 100));
        let Ok(Answer::Early(left)) = Answer::parse(&attempt, &text) else { panic!("{text}") };
        assert!((60..=100).contains(&left), "{left}");
        let text = sandbox.execute(&sandbox.workspace.kill(&attempt, 0, 0));
        assert!(matches!(Answer::parse(&attempt, &text), Ok(Answer::Done { killed: true, .. })), "{text}");
    });
}

#[test]
fn what_is_left_in_the_background_fills_no_disk() {
    for_each_shell(|sandbox| {
        let answer = sandbox.run(1, "(while :; do echo x; sleep 0.005; done) & echo $!");
        let (_, how, pid, _) = ended(&answer);
        assert_eq!(how, How::Background);
        let pid = pid.lines().next().unwrap().to_owned();
        let output = sandbox.base().join("attempt").join(attempt_in(sandbox, 1).id).join("stdout");
        let size = || std::fs::metadata(&output).unwrap().len();
        let (before, deadline) = (size(), Instant::now() + Duration::from_millis(300));
        while Instant::now() < deadline {
            assert!(alive(&pid), "it was ended by a closed output");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(size(), before);
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    });
}

#[test]
fn a_runner_that_was_stopped_is_woken_or_ended() {
    for_each_shell(|sandbox| {
        let attempt = attempt_in(sandbox, 1);
        sandbox.feed(&sandbox.workspace.run(&attempt, "echo begun; kill -STOP $PPID; sleep 300"));
        let guard = sandbox.base().join("guard").join(&attempt.id);
        sandbox.eventually("the runner is stopped", |_| {
            let pid = std::fs::read_to_string(&guard).unwrap_or_default();
            let pid = pid.split(' ').next().unwrap().to_owned();
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().unwrap().starts_with('T')
        });
        let text = sandbox.execute(&sandbox.workspace.kill(&attempt, 0, 0));
        let answer = Answer::parse(&attempt, &text).unwrap();
        assert!(matches!(answer, Answer::Done { killed: true, .. } | Answer::Died(_)), "{text}");
        assert_eq!(ended(&sandbox.run(2, "echo alive")).2, "alive\n");
    });
}

#[test]
fn a_fence_keeps_from_starting_and_ends_nothing() {
    for_each_shell(|sandbox| {
        let runs = attempt_in(sandbox, 1);
        sandbox.feed(&sandbox.workspace.run(&runs, "while [ ! -e go ]; do sleep 0.02; done; exit 4"));
        let started = sandbox.base().join("attempt").join(&runs.id).join("child");
        sandbox.eventually("it runs", |_| started.exists());
        let text = sandbox.execute(&sandbox.workspace.fence(&runs));
        assert_eq!(Answer::parse(&runs, &text), Ok(Answer::Running));
        std::fs::write(sandbox.dir.path().join("home/work/go"), "").unwrap();
        assert_eq!(ended(&sandbox.wait(&runs)).0, 4);
        let late = attempt_in(sandbox, 2);
        let text = sandbox.execute(&sandbox.workspace.fence(&late));
        assert_eq!(Answer::parse(&late, &text), Ok(Answer::Fenced));
    });
}

#[test]
fn what_was_fenced_never_starts() {
    for_each_shell(|sandbox| {
        let attempt = attempt_in(sandbox, 1);
        let text = sandbox.execute(&sandbox.workspace.kill(&attempt, 0, 0));
        assert_eq!(Answer::parse(&attempt, &text), Ok(Answer::Fenced));
        sandbox.feed(&sandbox.workspace.run(&attempt, "touch ran"));
        assert_eq!(ended(&sandbox.run(2, "ls")).2, "");
        assert_eq!(sandbox.wait(&attempt), Answer::Fenced);
    });
}

#[test]
fn a_runner_that_was_killed_is_told_from_one_that_runs() {
    for_each_shell(|sandbox| {
        let attempt = attempt_in(sandbox, 1);
        sandbox.feed(&sandbox.workspace.run(&attempt, "echo begun; echo x >>runs; kill -9 $PPID; sleep 300"));
        let guard = sandbox.base().join("guard").join(&attempt.id);
        sandbox.eventually("the runner is dead", |_| {
            std::fs::read_to_string(&guard).is_ok_and(|g| g.split(' ').next().is_some_and(|pid| !alive(pid)))
        });
        let Answer::Died(streams) = sandbox.wait(&attempt) else { panic!("not died") };
        assert_eq!(streams.stdout.tail, b"begun\n");
        sandbox.execute(&sandbox.workspace.kill(&attempt, 0, 0));
        sandbox.feed(&sandbox.workspace.run(&attempt, "echo x >>runs"));
        assert_eq!(ended(&sandbox.run(2, "cat runs")).2, "x\n", "it ran again");
    });
}

#[test]
fn unseen_and_lost_are_two_things() {
    for_each_shell(|sandbox| {
        let attempt = attempt_in(sandbox, 1);
        let ask = sandbox.workspace.wait(&attempt, 0, &[]);
        assert_eq!(Answer::parse(&attempt, &sandbox.execute(&ask)), Ok(Answer::Unseen));
        std::fs::remove_dir_all(sandbox.base()).unwrap();
        sandbox.execute(&sandbox.workspace.set_up());
        assert_eq!(Answer::parse(&attempt, &sandbox.execute(&ask)), Ok(Answer::Lost));
        sandbox.feed(&sandbox.workspace.run(&attempt, "touch ran"));
        sandbox.feed("echo fed >fed");
        sandbox.eventually("the session went on", |s| s.dir.path().join("fed").exists());
        assert!(!sandbox.dir.path().join("home/work/ran").exists(), "it ran although nobody could know whether it had");
    });
}

#[test]
fn what_a_script_started_is_found_without_our_files() {
    for_each_shell(|sandbox| {
        let attempt = attempt_in(sandbox, 1);
        sandbox.feed(&sandbox.workspace.run(&attempt, "echo $$ >pid; rm -rf \"$HOME/.daytona-controller\"; sleep 300"));
        let pid = sandbox.dir.path().join("home/work/pid");
        sandbox.eventually("our files are gone", |s| pid.exists() && !s.base().exists());
        let pid = std::fs::read_to_string(&pid).unwrap();
        let check = sandbox.workspace.check(SESSION);
        assert!(!sandbox.execute(&check).contains("ready"));
        sandbox.execute(&sandbox.workspace.set_up());
        assert!(!sandbox.execute(&check).contains("ready"), "a mark was made again");
        let text = sandbox.execute(&sandbox.workspace.kill(&attempt, 0, 0));
        let answer = Answer::parse(&attempt, &text).unwrap();
        assert!(matches!(answer, Answer::Lost | Answer::Done { killed: true, .. }), "{text}");
        assert!(!alive(&pid));
    });
}

#[test]
fn a_missing_working_directory_is_a_start_that_failed() {
    for_each_shell(|sandbox| {
        std::fs::remove_dir_all(sandbox.dir.path().join("home/work")).unwrap();
        let (code, how, _, err) = ended(&sandbox.run(1, "echo no"));
        assert_eq!((code, how), (126, How::NotStarted));
        assert!(err.contains("home/work"), "{err}");
    });
}

#[test]
fn a_script_may_contain_its_own_delimiter_and_be_as_long_as_is_allowed() {
    for_each_shell(|sandbox| {
        let attempt = attempt_in(sandbox, 1);
        let script = format!("echo a\n: <<'E'\nDTC-{}\n{}\nE\necho b", attempt.id, "x".repeat(98_000));
        sandbox.feed(&sandbox.workspace.run(&attempt, &script));
        assert_eq!(ended(&sandbox.wait(&attempt)).2, "a\nb\n");
    });
}

#[test]
fn an_answer_that_is_cut_or_foreign_says_nothing() {
    let attempt = Attempt::new("0b8e9f9e-command", 1, SESSION);
    let good = "dtc1 0b8e9f9e-command-1 done 0 1.00 1.25 full\nstdout 2 - 6f6b\nstderr 0 - \n";
    assert!(matches!(Answer::parse(&attempt, good), Ok(Answer::Done { milliseconds: 250, .. })));
    for end in 0..good.len() - 11 {
        assert_eq!(Answer::parse(&attempt, good.get(..end).unwrap()), Err(Garbled), "{}", good.get(..end).unwrap());
    }
    let noisy = format!("bash: warning: setlocale: LC_ALL: cannot change locale\n{good}");
    assert_eq!(Answer::parse(&attempt, &noisy), Answer::parse(&attempt, good));
    let forged =
        "dtc1 0b8e9f9e-command-1 done 0 -92233720368547758.07 92233720368547758.07 full\nstdout 0 - \nstderr 0 - \n";
    assert_eq!(Answer::parse(&attempt, forged), Err(Garbled));
    for bad in ["", "ok", "dtc1 0b8e9f9e-command-11 running", "dtc1 other running", "502 Bad Gateway"] {
        assert_eq!(Answer::parse(&attempt, bad), Err(Garbled), "{bad}");
    }
}

fn alive(pid: &str) -> bool {
    std::fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with('Z'))
}
