//! One command of a session: its text, its log, and how far it has come.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, Mode};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::lock;
use super::processes::Process;

/// A line that grows beyond this is written in pieces.
const LONGEST_PIECE: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

impl Stream {
    fn marker(self) -> [u8; 3] {
        match self {
            Self::Out => [1; 3],
            Self::Err => [2; 3],
        }
    }
}

/// The log as the service keeps it: every line behind the marker of its stream.
#[derive(Debug)]
pub(super) struct Log {
    state: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    file: File,
    length: u64,
    /// The stream whose unfinished line is the last thing written.
    unfinished: Option<Stream>,
}

impl Log {
    fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        Ok(Self { state: Mutex::new(Written { file, length: 0, unfinished: None }) })
    }

    pub(super) fn append(&self, stream: Stream, text: &[u8]) -> io::Result<()> {
        let mut state = lock(&self.state);
        let mut labelled = Vec::with_capacity(text.len() + 64);
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            if state.unfinished != Some(stream) {
                labelled.extend_from_slice(&stream.marker());
            }
            labelled.extend_from_slice(line);
            state.unfinished = (!line.ends_with(b"\n")).then_some(stream);
        }
        // The handle is kept from the start: whatever the sandbox puts at the path is not followed.
        state.file.write_all(&labelled)?;
        state.length += labelled.len() as u64;
        Ok(())
    }

    /// The whole log, markers included.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        self.read_at(0, usize::MAX)
    }

    /// At most `most` bytes of it from `start` on.
    pub(super) fn read_at(&self, start: u64, most: usize) -> io::Result<Vec<u8>> {
        let state = lock(&self.state);
        let there = usize::try_from(state.length.saturating_sub(start)).unwrap_or(usize::MAX);
        let mut content = vec![0; there.min(most)];
        state.file.read_exact_at(&mut content, start)?;
        Ok(content)
    }
}

#[derive(Debug)]
pub(super) struct Command {
    pub(super) id: String,
    pub(super) text: String,
    pub(super) is_async: bool,
    pub(super) log: Log,
    dir: PathBuf,
    progress: Mutex<Progress>,
    /// Told when the exit code is published.
    pub(super) finished: Notify,
}

#[derive(Debug, Default)]
struct Progress {
    started: bool,
    exit_code: Option<i32>,
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
    pub(super) fn stillborn(dir: PathBuf, id: String, text: &str, is_async: bool) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        let log = Log::create(&dir.join("output.log"))?;
        let progress = Mutex::default();
        Ok(Self { id, text: text.to_owned(), is_async, log, dir, progress, finished: Notify::new() })
    }

    /// Lays out all that the shell will need, and starts reading what it will write.
    pub(super) fn prepare(
        dir: PathBuf,
        id: String,
        text: &str,
        is_async: bool,
        keep_nul: bool,
        gone: &CancellationToken,
    ) -> io::Result<Arc<Self>> {
        let command = Arc::new(Self::stillborn(dir, id, text, is_async)?);
        fs::write(command.dir.join("cmd.sh"), text)?;
        for name in ["in", "out", "err", "hold", "go"] {
            make_fifo(&command.dir.join(name))?;
        }
        let mut progress = lock(&command.progress);
        if is_async {
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
                    _ = command.collect(receiver, stream, keep_nul) => {}
                }
            });
        }
        drop(progress);
        Ok(command)
    }

    /// What the shell is fed. It blocks at the gate until both outputs have been read to their end.
    /// No variable and no function of ours: the text runs in the user's shell. The background child
    /// makes a bare `wait` hang, as measured; that of an asynchronous command is one with a `sleep`.
    pub(super) fn wrapper(&self, status: &Path, builtin: &str) -> String {
        let file = |name: &str| quote(&self.dir.join(name).to_string_lossy());
        let (id, status) = (&self.id, quote(&status.to_string_lossy()));
        let input = if self.is_async { file("in") } else { "/dev/null".to_owned() };
        let holder =
            if self.is_async { "while :; do sleep 3600; done".to_owned() } else { format!(": <{}", file("hold")) };
        format!(
            "( {holder} ) </dev/null >/dev/null 2>&1 & \
             {builtin} printf 'started {id} %s\\n' \"$!\" >{status}\n\
             . {cmd} <{input} >{out} 2>{err}\n\
             {builtin} printf 'ended {id} %s\\n' \"$?\" >{status}\n\
             {gate} || {gate} || {gate}\n\
             {builtin} printf 'next {id} 0\\n' >{status}\n",
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
        let mut progress = lock(&self.progress);
        progress.exit_code = Some(code);
        progress.gate = gate.ok();
        drop(progress);
        self.finished.notify_waiters();
        for name in ["in", "out", "err", "hold"] {
            let _ = fs::remove_file(self.dir.join(name));
        }
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

    pub(super) fn exit_code(&self) -> Option<i32> {
        lock(&self.progress).exit_code
    }

    /// The record; that its exit code was seen changes what a later input answers.
    pub(super) fn show(&self) -> Value {
        let mut progress = lock(&self.progress);
        let mut record = json!({ "id": self.id, "command": self.text });
        if let (Some(code), Some(fields)) = (progress.exit_code, record.as_object_mut()) {
            progress.shown = true;
            fields.insert("exitCode".to_owned(), code.into());
        }
        record
    }

    /// Where input goes while it runs; else the exit code, if someone has seen it.
    pub(super) fn input(&self) -> Result<Arc<pipe::Sender>, Option<i32>> {
        let progress = lock(&self.progress);
        match &progress.input {
            Some(input) if progress.started => Ok(Arc::clone(input)),
            _ => Err(progress.exit_code.filter(|_| progress.shown)),
        }
    }

    async fn collect(&self, mut pipe: pipe::Receiver, stream: Stream, keep_nul: bool) -> io::Result<()> {
        let mut pending = Vec::new();
        let mut buffer = vec![0; LONGEST_PIECE];
        loop {
            let count = pipe.read(&mut buffer).await?;
            let read = buffer.get(..count).unwrap_or_default();
            pending.extend(read.iter().filter(|byte| keep_nul || **byte != 0));
            let complete = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            if count == 0 {
                if !pending.is_empty() {
                    // As the service does: a last line without an end gets one.
                    pending.push(b'\n');
                    self.log.append(stream, &pending)?;
                }
                return Ok(());
            }
            let ready = if pending.len() - complete >= LONGEST_PIECE { pending.len() } else { complete };
            if ready > 0 {
                let rest = pending.split_off(ready);
                self.log.append(stream, &pending)?;
                pending = rest;
            }
        }
    }
}

pub(super) fn make_fifo(path: &Path) -> io::Result<()> {
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0).map_err(io::Error::from)
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_labelled_and_torn_ones_are_labelled_again() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::create(&dir.path().join("log")).unwrap();
        log.append(Stream::Out, b"a\nb").unwrap();
        log.append(Stream::Out, b"c\n").unwrap();
        log.append(Stream::Out, b"d").unwrap();
        log.append(Stream::Err, b"e\n").unwrap();
        assert_eq!(log.read().unwrap(), b"\x01\x01\x01a\n\x01\x01\x01bc\n\x01\x01\x01d\x02\x02\x02e\n");
    }
}
