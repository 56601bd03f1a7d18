//! Nothing outlives its starter.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dev::supervise::{Program, Supervised};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

const LIMIT: Duration = Duration::from_secs(20);

fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pid_in(file: &Path) -> Pid {
    until(&format!("a pid in {}", file.display()), || {
        Pid::from_raw(std::fs::read_to_string(file).ok()?.strip_suffix('\n')?.parse().ok()?)
    })
}

fn until_gone(pid: Pid) {
    until(&format!("the end of {pid:?}"), || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        let zombie = state.is_ok_and(|stat| stat.rsplit(')').next().unwrap().starts_with(" Z"));
        (test_kill_process(pid).is_err() || zombie).then_some(())
    });
}

fn shell(script: &str, folder: &Path) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(folder);
    command
}

/// A program that ignores TERM, with a grandchild in a session of its own; both say who they are.
const STUBBORN: &str = r#"trap "" TERM
setsid bash -c 'trap "" TERM; echo $$ > grandchild; while :; do sleep 1000; done' &
echo $$ > child; while :; do sleep 1000; done"#;

#[test]
fn all_ends_with_a_starter_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let scratch = folder.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let mut supervisor = Command::new(dev::programs::built("supervise").unwrap());
    supervisor.args(["--grace-ms=50", "--scratch", "scratch", "--", "bash", "-c", STUBBORN]);
    // The starter is a shell that holds the only write end of the supervisor's stdin.
    let mut starter = Command::new("bash")
        .args(["-c", r#"exec 9> >(exec "$@" >log 2>&1); echo ready; read -r"#, "starter"])
        .arg(supervisor.get_program())
        .args(supervisor.get_args())
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (child, grandchild) = (pid_in(&folder.path().join("child")), pid_in(&folder.path().join("grandchild")));
    assert!(test_kill_process(child).is_ok() && test_kill_process(grandchild).is_ok());
    starter.kill().unwrap();
    starter.wait().unwrap();
    until_gone(child);
    until_gone(grandchild);
    until("the scratch directory's removal", || (!scratch.exists()).then_some(()));
}

#[test]
fn the_command_ends_with_a_supervisor_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut supervisor = Command::new(dev::programs::built("supervise").unwrap())
        .args(["--", "bash", "-c", "echo $$ > child; exec sleep 1000"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let child = pid_in(&folder.path().join("child"));
    kill_process(Pid::from_child(&supervisor), Signal::KILL).unwrap();
    supervisor.wait().unwrap();
    until_gone(child);
}

#[tokio::test]
async fn exit_codes_are_passed_on() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137)] {
        let mut program = Supervised::spawn(&shell(script, folder.path()), &log).unwrap();
        assert_eq!(program.wait().await.unwrap().code(), Some(code), "{script}");
    }
    let mut missing = Supervised::spawn(&Command::new("/no/such/program"), &log).unwrap();
    assert_eq!(missing.wait().await.unwrap().code(), Some(127));
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("supervise: cannot run /no/such/program"), "{said}");
}

#[tokio::test]
async fn terminate_is_graceful_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let script = r"trap 'echo bye; exit 4' TERM; setsid sleep 1000 & echo $! > left; while :; do sleep 0.01; done";
    let mut program = Supervised::spawn(&shell(script, folder.path()), &log).unwrap();
    let left = pid_in(&folder.path().join("left"));
    assert!(program.is_running().unwrap());
    assert_eq!(program.terminate().await.unwrap().code(), Some(4));
    assert!(!program.is_running().unwrap());
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "bye\n");
    until_gone(left);
}

#[tokio::test]
async fn grace_is_bounded_and_kill_is_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let files = [PathBuf::from("child"), PathBuf::from("grandchild")].map(|f| folder.path().join(f));
    for graceful in [true, false] {
        let command = shell(STUBBORN, folder.path());
        // A kill does not wait for the grace, or the limit of this test would strike.
        let grace = if graceful { Duration::from_millis(50) } else { LIMIT * 10 };
        let mut program = Program::new(&command, &log).grace(grace).spawn().unwrap();
        let [child, grandchild] = files.each_ref().map(|file| pid_in(file));
        assert_eq!(u32::try_from(child.as_raw_nonzero().get()).unwrap(), program.pid());
        let end = async { if graceful { program.terminate().await } else { program.kill().await } };
        let status = tokio::time::timeout(LIMIT, end).await.unwrap().unwrap();
        assert_eq!(status.code(), Some(137));
        until_gone(child);
        until_gone(grandchild);
        for file in &files {
            std::fs::remove_file(file).unwrap();
        }
    }
}
