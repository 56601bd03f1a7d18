//! The texts that are sent; [`answer`] reads what comes back.

mod answer;
mod files;

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

pub use self::{
    answer::{Answer, Garbled, How},
    files::{File, Unfiled, filed},
};
use super::job::{Fetch, Job, Upload, quote};

/// The runner, as it is put into each sandbox.
const RUNNER: &str = include_str!("runner.sh");

/// The runner's part that asks about attempts and ends them.
const ASKING: &str = include_str!("asking.sh");

/// The runner's part that keeps what a script writes.
const KEEPING: &str = include_str!("keeping.sh");

/// The runner's part that puts a lease's files in their places.
const FILING: &str = include_str!("filing.sh");

/// What reads a script whose surroundings carry over.
const PERSIST: &str = include_str!("persist.sh");

/// All of them by name; the runner last, for it reads the others.
const PROGRAMS: [(&str, &str); 5] =
    [("persist", PERSIST), ("keeping", KEEPING), ("asking", ASKING), ("filing", FILING), ("runner", RUNNER)];

/// Most bytes that travel in a text: what Daytona lists stays short, and a here-document of this size is in its pipe
/// as a whole before anything reads it, so that the end of whoever sends it cannot cut it. 4096, and room for the last
/// line (a UID and a number).
const LONGEST_INLINE: usize = 4032;

/// Most attempts that a text names as those that run.
const MOST_KEPT: usize = 64;

/// Where a lease keeps its files in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    base: String,
    work_dir: String,
}

/// One attempt of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Command UID and attempt number: unique for ever, of `[A-Za-z0-9-]`.
    pub id: String,
    /// The mark under which it was sent first: the id of its session, or a mark that is no session's. When the mark
    /// is gone from the sandbox, somebody removed our files, and a missing guard no longer means that nothing ran.
    pub mark: String,
}

impl Attempt {
    /// Names attempt `number` of the command with this UID.
    #[must_use]
    pub fn new(command_uid: &str, number: i32, mark: &str) -> Self {
        Self { id: format!("{command_uid}-{number}"), mark: mark.to_owned() }
    }
}

impl Workspace {
    /// The lease's workspace below the sandbox user's home directory (absolute).
    #[must_use]
    pub fn new(home_dir: &str, work_dir: &str, lease_uid: &str) -> Self {
        let home = home_dir.trim_end_matches('/');
        Self { base: format!("{home}/.daytona-controller/{lease_uid}"), work_dir: work_dir.to_owned() }
    }

    /// One-shot text that makes the workspace and puts the runner there; safe to repeat. Prints [`Self::SET_UP`].
    #[must_use]
    pub fn set_up(&self) -> String {
        let base = quote(&self.base);
        let tools = "cat chmod dd env mkdir mkfifo mv od rm sleep tail tee tr wc";
        let mut text = format!(
            "for tool in {tools}; do command -v $tool >/dev/null 2>&1 || {{ echo \"dtc1 lacks $tool\"; exit 1; }}; done\n\
             umask 077 && cd / && mkdir -p {base} && cd {base} && chmod go= . .. && mkdir -p session guard input attempt wait persist &&\n",
        );
        for (name, content) in PROGRAMS {
            let _ = write!(
                text,
                "cat >{name}.new.$$ <<'DTC-{name}' && mv -f {name}.new.$$ {name}-{}.sh &&\n{content}DTC-{name}\n",
                version()
            );
        }
        let _ = writeln!(text, "echo '{}'", Self::SET_UP);
        text
    }

    /// What [`Self::set_up`] prints when it worked.
    pub const SET_UP: &str = "dtc1 workspace ready";

    /// One-shot text that takes the workspace out of a sandbox that is given out of our hands. Where the lease had files,
    /// what the next one has to know of them stays.
    #[must_use]
    pub fn remove(&self) -> String {
        let directory = self.base.rsplit_once('/').map_or("", |(directory, _)| directory);
        let stage = quote(&format!("{directory}/files/stage"));
        let end = format!("sh {} unfile 2>/dev/null", quote(&self.runner()));
        format!("{end}; rm -rf -- {} {stage}; rmdir -- {} 2>/dev/null; :", quote(&self.base), quote(directory))
    }

    /// Session text that proves that the session's shell reads its input, and leaves the session's mark, which names
    /// that shell. Prints [`Self::session_ready`].
    #[must_use]
    pub fn session(&self, session: &str) -> String {
        format!("sh {} session {}", quote(&self.runner()), quote(session))
    }

    /// One-shot text that leaves a mark that is no session's. Prints [`Self::session_ready`].
    #[must_use]
    pub fn mark(&self, mark: &str) -> String {
        format!("exec sh {} mark {}", quote(&self.runner()), quote(mark))
    }

    /// Text that proves the same for a session that has its mark already, in the session or beside it. The mark is
    /// not made again: where it is gone, guards may be gone too.
    #[must_use]
    pub fn check(&self, mark: &str) -> String {
        format!("sh {} check {}", quote(&self.runner()), quote(mark))
    }

    /// What [`Self::check`] does, and then, if the mark is there, the files of every attempt that is not in `keep` go,
    /// and it never starts; save for one that runs. For a controller that does not know what was there before it. With
    /// more than a text should name, nothing goes.
    #[must_use]
    pub fn sweep(&self, mark: &str, keep: &[String]) -> String {
        if keep.len() > MOST_KEPT {
            return self.check(mark);
        }
        let mut text = format!("sh {} sweep {}", quote(&self.runner()), quote(mark));
        for id in keep {
            let _ = write!(text, " {}", quote(id));
        }
        text
    }

    /// What [`Self::session`], [`Self::mark`], [`Self::sweep`] and [`Self::check`] print when it worked.
    #[must_use]
    pub fn session_ready(mark: &str) -> String {
        format!("dtc1 {mark} ready")
    }

    /// The files that have to be in the sandbox before the text of [`Self::run`] or [`Self::one`] is sent; none where
    /// the text carries the job itself. Putting them there again changes nothing that runs.
    #[must_use]
    pub fn uploads(&self, attempt: &Attempt, job: &Job) -> Vec<Upload> {
        if inline(job).is_some() {
            return Vec::new();
        }
        let upload =
            |name: &str, content| Upload { path: format!("{}/input/{}/{name}", self.base, attempt.id), content };
        let mut uploads = Vec::new();
        if !job.env.is_empty() {
            uploads.push(upload("env", exports(job)));
            if job.persist {
                uploads.push(upload("names", names(job).into_bytes()));
            }
        }
        uploads.extend(job.stdin.clone().map(|stdin| upload("stdin", stdin)));
        // Last, for its presence says that there is something to run.
        uploads.push(upload("script", job.script.clone()));
        uploads
    }

    /// Session text that runs a job. It may arrive any number of times: the first one runs, the others do nothing.
    #[must_use]
    pub fn run(&self, attempt: &Attempt, job: &Job) -> String {
        self.launch("run", attempt, job)
    }

    /// One-shot text that starts a job in a process of its own, unless it was started, fenced or cleared, and then
    /// does what [`Self::wait`] does. It may be sent any number of times, at once or later: it starts or attaches.
    #[must_use]
    pub fn one(&self, attempt: &Attempt, job: &Job, seconds: u64, fetch: Fetch, collected: &[String]) -> String {
        self.launch("start", attempt, job) + &self.wait(attempt, seconds, fetch, collected)
    }

    fn launch(&self, operation: &str, attempt: &Attempt, job: &Job) -> String {
        let body = inline(job);
        let mut form = match &body {
            Some(body) => {
                // What is carried in a text is UTF-8.
                let exports = String::from_utf8_lossy(&exports(job)).lines().count();
                format!("inline={exports}/{}", body.lines().count() - exports - usize::from(job.persist))
            }
            None => "uploaded".to_owned(),
        };
        let options = [(job.persist, ",persist"), (job.working_dir.is_some(), ",placed"), (job.secret, ",secret")];
        form.extend(options.iter().filter(|(applies, _)| *applies).map(|(_, option)| *option));
        let mut text = format!(
            "sh {} {operation} {} {} {form} {}",
            quote(&self.runner()),
            quote(&attempt.id),
            quote(&attempt.mark),
            quote(&self.directory(job)),
        );
        for word in &job.interpreter {
            let _ = write!(text, " {}", quote(word));
        }
        if let Some(body) = body {
            let mut delimiter = format!("DTC-{}", attempt.id);
            while body.lines().any(|line| line == delimiter) {
                delimiter.push('-');
            }
            let _ = write!(text, " <<'{delimiter}'\n{body}{}\n{delimiter}", attempt.id);
        }
        text.push('\n');
        text
    }

    /// The job's working directory, absolute.
    fn directory(&self, job: &Job) -> String {
        match job.working_dir.as_deref() {
            None => self.work_dir.clone(),
            Some(absolute) if absolute.starts_with('/') => absolute.to_owned(),
            Some(relative) => format!("{}/{relative}", self.work_dir.trim_end_matches('/')),
        }
    }

    /// One-shot text that is held until the attempt has ended, `seconds` at most, and then reports. `collected`:
    /// attempts whose outcome is recorded; their files are removed in passing.
    #[must_use]
    pub fn wait(&self, attempt: &Attempt, seconds: u64, fetch: Fetch, collected: &[String]) -> String {
        let mut text = self.ask("wait", attempt, fetch);
        let _ = write!(text, " {seconds}");
        for id in collected {
            let _ = write!(text, " {}", quote(id));
        }
        text
    }

    /// One-shot text after which the attempt does not start any more, unless it has started before.
    #[must_use]
    pub fn fence(&self, attempt: &Attempt, fetch: Fetch) -> String {
        self.ask("fence", attempt, fetch)
    }

    /// One-shot text after which the attempt does not run: it never started and never will, or all that it started
    /// was sent TERM and, `grace` seconds later, KILL. One that has run for less than `after` seconds, by the
    /// sandbox's own clock, is left alone. Held for `seconds` at most: to be sent again while it answers that the
    /// attempt is being ended.
    #[must_use]
    pub fn kill(&self, attempt: &Attempt, grace: u64, after: u64, seconds: u64, fetch: Fetch) -> String {
        format!("{} {grace} {after} {seconds}", self.ask("kill", attempt, fetch))
    }

    fn ask(&self, operation: &str, attempt: &Attempt, fetch: Fetch) -> String {
        format!(
            "exec sh {} {operation} {} {} {} {}",
            quote(&self.runner()),
            quote(&attempt.id),
            quote(&attempt.mark),
            fetch.head,
            fetch.tail,
        )
    }

    fn runner(&self) -> String {
        format!("{}/runner-{}.sh", self.base, version())
    }
}

/// The programs are named by their content: an upgrade of the controller must not change a file that a shell reads.
fn version() -> String {
    let digest = PROGRAMS.iter().fold(Sha256::new(), |digest, (_, text)| digest.chain_update(text)).finalize();
    hex(digest.iter().take(6))
}

/// Bytes as hexadecimal digits.
pub fn hex<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> String {
    bytes.into_iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What a text carries behind its first line, when it can carry the whole job.
fn inline(job: &Job) -> Option<String> {
    if job.secret || job.stdin.is_some() {
        return None;
    }
    let mut body = if job.persist { names(job) } else { String::new() };
    body.push_str(str::from_utf8(&exports(job)).ok()?);
    body.push_str(str::from_utf8(&job.script).ok()?);
    if !job.script.is_empty() && !body.ends_with('\n') {
        body.push('\n');
    }
    (body.len() <= LONGEST_INLINE && !body.contains('\0')).then_some(body)
}

/// The environment as a shell reads it.
fn exports(job: &Job) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in &job.env {
        text.extend_from_slice(b"export ");
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b"='");
        for byte in value {
            match byte {
                b'\'' => text.extend_from_slice(br"'\''"),
                byte => text.push(*byte),
            }
        }
        text.extend_from_slice(b"'\n");
    }
    text
}

/// The line that takes the environment out of what carries over.
fn names(job: &Job) -> String {
    job.env.iter().fold("unset DTC_ATTEMPT".to_owned(), |line, (name, _)| line + " " + name) + "\n"
}

#[cfg(test)]
mod tests;
