//! The texts run by real shells: each of them as the session's shell, as the `sh` that reads the runner, and as the
//! shell of a one-shot call.

mod answers;
mod clearing;
mod evidence;
mod files;
mod filing;
mod inputs;
mod isolation;
mod kill;
mod launch;
mod output;
mod persist;
mod scripts;
mod table;

use std::{
    fmt,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicI32, Ordering},
    time::{Duration, Instant},
};

use super::*;
use crate::shell::output::{Stream, Streams};

const MARK: &str = "lease-1";
const FETCH: Fetch = Fetch { head: 4096, tail: 8192 };
const LIVELY: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launcher {
    Session,
    OneShot,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Session => "session",
            Self::OneShot => "one-shot",
        })
    }
}

const SHELLS: [&str; 4] = ["zsh", "bash", "dash", "busybox"];

/// A sandbox in a directory, with a persistent shell.
struct Sandbox {
    dir: tempfile::TempDir,
    shell: &'static str,
    launcher: Launcher,
    session: Child,
    workspace: Workspace,
    fed: u32,
    next: AtomicI32,
}

impl Sandbox {
    fn start(shell: &'static str, launcher: Launcher) -> Self {
        Self::altered(shell, launcher, str::to_owned)
    }

    /// One whose programs differ from those that are shipped.
    fn altered(shell: &'static str, launcher: Launcher, alter: impl Fn(&str) -> String) -> Self {
        let found = Command::new(shell).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(found.is_ok(), "{shell} is missing; type: apt-get install -y zsh bash dash busybox");
        let dir = tempfile::tempdir().unwrap();
        let (home, bin) = (dir.path().join("home"), dir.path().join("bin"));
        std::fs::create_dir_all(home.join("work")).unwrap();
        std::fs::create_dir_all(&bin).unwrap();
        if shell == "busybox" {
            assert!(Command::new(shell).args(["--install", "-s"]).arg(&bin).status().unwrap().success());
        } else {
            std::os::unix::fs::symlink(in_path(shell), bin.join("sh")).unwrap();
        }
        let workspace = Workspace::new(home.to_str().unwrap(), home.join("work").to_str().unwrap(), "lease");
        let session = Self::command(shell, dir.path()).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut sandbox = Self { dir, shell, launcher, session, workspace, fed: 0, next: AtomicI32::new(1) };
        assert_eq!(sandbox.execute(&alter(&sandbox.workspace.set_up())).trim(), Workspace::SET_UP);
        match launcher {
            Launcher::Session => {
                let log = sandbox.feed(&sandbox.workspace.session(MARK));
                sandbox.eventually("the session's mark", |_| log.output().contains(&Workspace::session_ready(MARK)));
            }
            Launcher::OneShot => {
                let said = sandbox.execute(&sandbox.workspace.mark(MARK));
                assert_eq!(said.trim(), Workspace::session_ready(MARK));
            }
        }
        sandbox
    }

    fn command(shell: &str, dir: &Path) -> Command {
        let bin = dir.join("bin");
        let (mut command, path) = if shell == "busybox" {
            (Command::new(bin.join("ash")), bin.to_str().unwrap().to_owned())
        } else {
            (Command::new(in_path(shell)), format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()))
        };
        command.env_clear().env("PATH", path).env("HOME", dir.join("home")).current_dir(dir).stderr(Stdio::null());
        command
    }

    fn base(&self) -> PathBuf {
        self.dir.path().join("home/.daytona-controller/lease")
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("home/work")
    }

    /// A file in the work directory.
    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.work().join(name)).unwrap_or_default()
    }

    fn files_of(&self, attempt: &Attempt) -> PathBuf {
        self.base().join("attempt").join(&attempt.id)
    }

    /// Attempts are unique for ever; the tests share one process table, so they must be so here too.
    fn attempt(&self) -> Attempt {
        let name = self.dir.path().file_name().unwrap().to_str().unwrap().replace('.', "");
        Attempt::new(&name, self.next.fetch_add(1, Ordering::Relaxed), MARK)
    }

    /// As Daytona does it: the session's shell sources the text, with FIFOs for its input and files behind its
    /// outputs. What holds the input open is left behind; a text begins only once that has opened it.
    fn feed(&mut self, text: &str) -> Log {
        self.fed += 1;
        let log = Log(self.dir.path().join(format!("log-{}", self.fed)));
        std::fs::create_dir(&log.0).unwrap();
        std::fs::write(log.0.join("cmd.sh"), text).unwrap();
        let at = log.0.display();
        // Opened for both, so that the opening does not block: in busybox ash the end of a child would interrupt it.
        writeln!(
            self.session.stdin.as_mut().unwrap(),
            "mkfifo {at}/in; {{ (while :; do sleep 3600; done) >{at}/in 2>/dev/null &\n\
             until read -r held </proc/$!/task/$!/children; read -r held </proc/${{held%% *}}/comm; [ \"$held\" = sleep ]\n\
             do held=; sleep 0.002; done 2>/dev/null\n\
             . {at}/cmd.sh; }} 0<>{at}/in >{at}/out 2>{at}/err; echo $? >{at}/new; mv {at}/new {at}/code"
        )
        .unwrap();
        log
    }

    /// As Daytona does it: the text is the standard input of a new shell.
    fn spawn(&self, text: &str) -> Child {
        let mut command = Self::command(self.shell, self.dir.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child
    }

    fn execute(&self, text: &str) -> String {
        String::from_utf8(self.spawn(text).wait_with_output().unwrap().stdout).unwrap()
    }

    fn parse(attempt: &Attempt, text: &str) -> Answer {
        Answer::parse(attempt, text).unwrap_or_else(|_| panic!("garbled answer about {}: {text:?}", attempt.id))
    }

    /// As the controller does: what says nothing is asked for again, for every operation may be repeated.
    fn ask(&self, attempt: &Attempt, text: &str) -> Answer {
        let first = self.execute(text);
        Answer::parse(attempt, &first).unwrap_or_else(|_| {
            eprintln!("{} said {first:?} of {}; asked again", self.shell, attempt.id);
            Self::parse(attempt, &self.execute(text))
        })
    }

    fn wait(&self, attempt: &Attempt) -> Answer {
        self.ask(attempt, &self.workspace.wait(attempt, 20, FETCH, &[]))
    }

    fn kill(&self, attempt: &Attempt, grace: u64) -> Answer {
        self.ask(attempt, &self.workspace.kill(attempt, grace, 0, 20, FETCH))
    }

    fn fence(&self, attempt: &Attempt) -> Answer {
        self.ask(attempt, &self.workspace.fence(attempt, FETCH))
    }

    /// What Daytona does with files: readable by all, in directories that all may look into.
    fn upload(uploads: &[Upload]) {
        for upload in uploads {
            std::fs::create_dir_all(Path::new(&upload.path).parent().unwrap()).unwrap();
            std::fs::write(&upload.path, &upload.content).unwrap();
        }
    }

    /// Sends a job; does not wait for its end.
    fn submit(&mut self, attempt: &Attempt, job: &Job) {
        Self::upload(&self.workspace.uploads(attempt, job));
        self.text(attempt, job);
    }

    /// Sends only the text.
    fn text(&mut self, attempt: &Attempt, job: &Job) {
        match self.launcher {
            Launcher::Session => {
                self.feed(&self.workspace.run(attempt, job));
            }
            Launcher::OneShot => {
                self.execute(&self.workspace.one(attempt, job, 0, FETCH, &[]));
            }
        }
    }

    fn run_job(&mut self, job: &Job) -> Answer {
        let attempt = self.attempt();
        self.run_as(&attempt, job)
    }

    fn run_as(&mut self, attempt: &Attempt, job: &Job) -> Answer {
        Self::upload(&self.workspace.uploads(attempt, job));
        match self.launcher {
            Launcher::Session => {
                self.feed(&self.workspace.run(attempt, job));
                self.wait(attempt)
            }
            Launcher::OneShot => self.ask(attempt, &self.workspace.one(attempt, job, 20, FETCH, &[])),
        }
    }

    fn run(&mut self, script: &str) -> Answer {
        self.run_job(&job(script))
    }

    /// Code, output and errors of a script.
    fn result(&mut self, script: &str) -> (i32, String, String) {
        let (code, how, out, err) = ended(&self.run(script));
        assert_eq!(how, How::Full, "{script}");
        (code, out, err)
    }

    /// Only the output.
    fn output(&mut self, script: &str) -> String {
        self.result(script).1
    }

    fn eventually(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LIVELY;
        while !condition(self) {
            assert!(Instant::now() < deadline, "not seen within {LIVELY:?}: {what}\n{}", self.described());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What runs in it, for who looks for the cause of a failure.
    fn described(&self) -> String {
        let of = |process: &String, file: &str| {
            std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default().replace('\0', " ")
        };
        let lines = self.processes().into_iter().map(|p| format!("{p}: {}; {}", of(&p, "cmdline"), of(&p, "stat")));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// All that was started in this sandbox and has an environment, apart from the session's shell.
    fn processes(&self) -> Vec<String> {
        let home = format!("HOME={}", self.dir.path().join("home").display());
        let session = self.session.id().to_string();
        let ours = |process: &String| {
            let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            *process != session && environment.split(|byte| *byte == 0).any(|entry| entry == home.as_bytes())
        };
        processes().into_iter().filter(ours).collect()
    }

    /// Waits until the script itself runs.
    fn begun(&self, attempt: &Attempt) {
        self.eventually("it runs", |s| s.files_of(attempt).join("begun").exists());
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Until there is nothing left of it: what is ended may just have started something.
        while self.processes().into_iter().filter(|process| signal("KILL", process)).count() > 0 {}
        let _ = self.session.kill();
        let _ = self.session.wait();
    }
}

/// What Daytona has of a command in a session.
struct Log(PathBuf);

impl Log {
    fn output(&self) -> String {
        std::fs::read_to_string(self.0.join("out")).unwrap_or_default()
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.0.join("err")).unwrap_or_default()
    }

    fn code(&self) -> Option<i32> {
        std::fs::read_to_string(self.0.join("code")).ok()?.trim().parse().ok()
    }
}

fn job(script: &str) -> Job {
    Job { script: script.as_bytes().to_vec(), ..Job::default() }
}

fn in_path(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.exists()).unwrap()
}

fn ended(answer: &Answer) -> (i32, How, String, String) {
    let Answer::Done { code, how, streams, .. } = answer else { panic!("not done: {answer:?}") };
    let text = |s: &Stream| String::from_utf8_lossy(&s.tail).into_owned();
    (*code, *how, text(&streams.stdout), text(&streams.stderr))
}

fn streams_of(answer: &Answer) -> &Streams {
    match answer {
        Answer::Done { streams, .. } | Answer::Died { streams, .. } => streams,
        other => panic!("no outputs: {other:?}"),
    }
}

/// Runs the test in each shell with each launcher, all at once, and names those that failed.
fn for_each(test: impl Fn(&mut Sandbox) + Sync) {
    for_each_with(&[Launcher::Session, Launcher::OneShot], test);
}

fn for_each_session(test: impl Fn(&mut Sandbox) + Sync) {
    for_each_with(&[Launcher::Session], test);
}

fn for_each_with(launchers: &[Launcher], test: impl Fn(&mut Sandbox) + Sync) {
    let failed: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = SHELLS
            .iter()
            .flat_map(|shell| launchers.iter().map(move |launcher| (*shell, *launcher)))
            .map(|(shell, launcher)| {
                let test = &test;
                let thread = scope.spawn(move || test(&mut Sandbox::start(shell, launcher)));
                (format!("{shell} {launcher}"), thread)
            })
            .collect();
        threads.into_iter().filter_map(|(name, thread)| thread.join().is_err().then_some(name)).collect()
    });
    assert!(failed.is_empty(), "failed in: {}", failed.join(", "));
}

fn processes() -> Vec<String> {
    let names = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.bytes().all(|b| b.is_ascii_digit())).collect()
}

fn signal(signal: &str, pid: &str) -> bool {
    let pid = pid.trim();
    assert!(pid.parse::<u32>().is_ok_and(|pid| pid > 1), "{pid:?} is no process to be sent a signal");
    Command::new("kill").args([&format!("-{signal}"), pid]).stderr(Stdio::null()).status().unwrap().success()
}

fn alive(pid: &str) -> bool {
    std::fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with('Z'))
}
