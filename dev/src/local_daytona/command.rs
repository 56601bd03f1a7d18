//! One command of a session: its text, its log, and how far it has come.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode};
use serde_json::{Value, json};
use tokio::net::unix::pipe;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::environment::Labelling;
use super::labels::{Log, Stream, label};
use super::lock;
use super::processes::Process;

/// For how long a record says that its exit code is being written, which the service answers as an error. As measured
/// 0.7 % of commands are met in it by one who asks again and again.
const BEING_WRITTEN: Duration = Duration::from_micros(10);

/// The exit code was looked at while it was being written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to convert exit code to int: strconv.Atoi: parsing \"\": invalid syntax")]
pub(super) struct BeingWritten;

/// What the caller asked for.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) text: String,
    pub(super) is_async: bool,
    /// Input that is given later stays out of the log.
    pub(super) quiet_input: bool,
    /// Its exit code is never published.
    pub(super) unpublished: bool,
}

#[derive(Debug)]
pub(super) struct Command {
    pub(super) id: String,
    pub(super) order: Order,
    pub(super) log: Log,
    dir: PathBuf,
    progress: Mutex<Progress>,
    /// How often its log was followed and closed early.
    cut_short: AtomicU64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Exit {
    #[default]
    None,
    BeingWritten,
    Known(i32),
}

impl Exit {
    fn code(self) -> Result<Option<i32>, BeingWritten> {
        match self {
            Self::None => Ok(None),
            Self::BeingWritten => Err(BeingWritten),
            Self::Known(code) => Ok(Some(code)),
        }
    }
}

#[derive(Debug, Default)]
struct Progress {
    started: bool,
    exit: Exit,
    /// Someone was shown the exit code.
    shown: bool,
    input: Option<Arc<pipe::Sender>>,
    /// Our own ends of the outputs: they hold the end off until the shell says that it is through.
    held: Vec<pipe::Sender>,
    readers: JoinSet<()>,
    holder: Option<Process>,
    /// Opened when the shell may go on.
    gate: Option<pipe::Receiver>,
}

impl Command {
    /// A command that will never run, as a dead session lists them.
    pub(super) fn stillborn(dir: PathBuf, id: String, order: Order) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        let log = Log::create(&dir.join("output.log"))?;
        let progress = Mutex::default();
        Ok(Self { id, order, log, dir, progress, cut_short: AtomicU64::new(0) })
    }

    /// Lays out all that the shell will need, and starts reading what it will write.
    pub(super) fn prepare(
        dir: PathBuf,
        id: String,
        order: Order,
        labelling: Labelling,
        gone: &CancellationToken,
    ) -> io::Result<Arc<Self>> {
        let command = Arc::new(Self::stillborn(dir, id, order)?);
        fs::write(command.dir.join("cmd.sh"), &command.order.text)?;
        for name in ["in", "out", "err", "hold", "go"] {
            make_fifo(&command.dir.join(name))?;
        }
        let mut progress = lock(&command.progress);
        if command.order.is_async {
            let input = pipe::OpenOptions::new().read_write(true).open_sender(command.dir.join("in"))?;
            progress.input = Some(Arc::new(input));
        }
        for (name, stream) in [("out", Stream::Out), ("err", Stream::Err)] {
            let path = command.dir.join(name);
            let receiver = pipe::OpenOptions::new().open_receiver(&path)?;
            progress.held.push(pipe::OpenOptions::new().open_sender(&path)?);
            let (command, gone) = (Arc::clone(&command), gone.clone());
            progress.readers.spawn(async move {
                tokio::select! {
                    () = gone.cancelled() => {}
                    _ = label(receiver, stream, &command.log, labelling) => {}
                }
            });
        }
        drop(progress);
        Ok(command)
    }

    /// What the shell is fed. It blocks at the gate until both outputs have been read to their end.
    ///
    /// The text runs in the user's shell, and what is measured of the service's wrapper shows there: its variables and
    /// traps can be seen, a TERM to the shell itself is harmless, a read-only `_ec` hangs the session, and a bare `wait`
    /// hangs on the background child. That of an asynchronous command is one with a `sleep`.
    pub(super) fn wrapper(&self, status: &Path, builtin: &str) -> String {
        let file = |name: &str| quote(&self.dir.join(name).to_string_lossy());
        let (id, status) = (&self.id, quote(&status.to_string_lossy()));
        let input = if self.order.is_async { file("in") } else { "/dev/null".to_owned() };
        let holder = if self.order.is_async {
            "while :; do sleep 3600; done".to_owned()
        } else {
            format!(": <{}", file("hold"))
        };
        format!(
            "trap : EXIT HUP INT TERM\n\
             dir={dir} log=$dir/output.log sp=$dir/out ep=$dir/err ip=$dir/in\n\
             ( {holder} ) </dev/null >/dev/null 2>&1 & r1=$! r2=$! ip_pid=$!\n\
             {builtin} printf 'started {id} %s\\n' \"$!\" >{status}\n\
             . {cmd} <{input} >{out} 2>{err}\n\
             _ec=$? && {builtin} printf 'ended {id} %s\\n' \"$_ec\" >{status}\n\
             {gate} || {gate} || {gate}\n\
             {builtin} printf 'next {id} 0\\n' >{status}\n",
            dir = quote(&self.dir.to_string_lossy()),
            cmd = file("cmd.sh"),
            out = file("out"),
            err = file("err"),
            // In busybox ash the end of a child interrupts the opening; as a special builtin it would end the shell.
            gate = format!("{builtin} : <{}", file("go")),
        )
    }

    pub(super) fn started(&self, holder: Option<Process>) {
        let mut progress = lock(&self.progress);
        progress.started = true;
        progress.holder = holder;
    }

    /// The shell is through with the text; the code is published once both outputs have ended.
    pub(super) async fn ended(&self, code: i32) {
        let mut readers = {
            let mut progress = lock(&self.progress);
            progress.held.clear();
            progress.input = None;
            std::mem::take(&mut progress.readers)
        };
        while readers.join_next().await.is_some() {}
        let gate = pipe::OpenOptions::new().read_write(true).open_receiver(self.dir.join("go"));
        if !self.order.unpublished {
            self.publish(code);
        }
        lock(&self.progress).gate = gate.ok();
        for name in ["in", "out", "err", "hold"] {
            let _ = fs::remove_file(self.dir.join(name));
        }
    }

    fn publish(&self, code: i32) {
        lock(&self.progress).exit = Exit::BeingWritten;
        let begun = Instant::now();
        while begun.elapsed() < BEING_WRITTEN {
            std::hint::spin_loop();
        }
        lock(&self.progress).exit = Exit::Known(code);
    }

    /// Where a following that closes early ends: each time elsewhere, and in every run the same.
    pub(super) fn early_end(&self) -> u64 {
        let round = self.cut_short.fetch_add(1, Ordering::Relaxed);
        let mixed = (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % (self.log.length() + 1)
    }

    /// The shell has passed the gate.
    pub(super) fn passed(&self) {
        lock(&self.progress).gate = None;
        let _ = fs::remove_file(self.dir.join("go"));
    }

    /// The shell is dead: nothing more comes from it, and the code will never be known.
    pub(super) fn abandoned(&self) {
        let mut progress = lock(&self.progress);
        progress.held.clear();
        progress.input = None;
        progress.readers.detach_all();
    }

    pub(super) fn take_holder(&self) -> Option<Process> {
        lock(&self.progress).holder.take()
    }

    pub(super) fn exit_code(&self) -> Result<Option<i32>, BeingWritten> {
        lock(&self.progress).exit.code()
    }

    /// The record; that its exit code was seen changes what a later input answers.
    pub(super) fn show(&self) -> Result<Value, BeingWritten> {
        let mut progress = lock(&self.progress);
        let mut record = json!({ "id": self.id, "command": self.order.text });
        if let (Some(code), Some(fields)) = (progress.exit.code()?, record.as_object_mut()) {
            progress.shown = true;
            fields.insert("exitCode".to_owned(), code.into());
        }
        Ok(record)
    }

    pub(super) fn input_path(&self) -> String {
        self.dir.join("input.pipe").display().to_string()
    }

    /// Where input goes while it runs; else the exit code, if someone has seen it.
    pub(super) fn input(&self) -> Result<Arc<pipe::Sender>, Option<i32>> {
        let progress = lock(&self.progress);
        match &progress.input {
            Some(input) if progress.started => Ok(Arc::clone(input)),
            _ => Err(progress.exit.code().ok().flatten().filter(|_| progress.shown)),
        }
    }
}

pub(super) fn make_fifo(path: &Path) -> io::Result<()> {
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0).map_err(io::Error::from)
}

pub(super) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_that_is_being_written_is_an_error_to_who_looks() {
        let dir = tempfile::tempdir().unwrap();
        let order = Order { text: "true".to_owned(), is_async: true, quiet_input: false, unpublished: false };
        let command = Command::stillborn(dir.path().join("c"), "c".to_owned(), order).unwrap();
        assert_eq!(command.show().unwrap().get("exitCode"), None);
        lock(&command.progress).exit = Exit::BeingWritten;
        assert_eq!((command.show(), command.exit_code()), (Err(BeingWritten), Err(BeingWritten)));
        lock(&command.progress).exit = Exit::Known(3);
        assert_eq!((command.show().unwrap()["exitCode"].as_i64(), command.exit_code()), (Some(3), Ok(Some(3))));
    }
}
