//! A session: one real shell, fed through its stdin, strictly one command after the other.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::command::{BeingWritten, Command, Order, make_fifo};
use super::environment::{Environment, ShellKind};
use super::lock;
use super::processes::{self, Process};

/// So many commands may be unfinished before a submission waits: the pipe to the shell is full then.
const LONGEST_QUEUE: usize = 32;

/// Why a command was not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    #[error("bad request: session cancelled")]
    Cancelled,
    #[error("bad request: failed to write command: write |1: broken pipe")]
    BrokenPipe,
    #[error("bad request: {0}")]
    BeingWritten(#[from] BeingWritten),
    #[error("failed to prepare command: {0}")]
    Prepare(#[from] io::Error),
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    dir: PathBuf,
    /// The FIFO on which the shell says how far it is.
    status: PathBuf,
    environment: Environment,
    shell: Process,
    input: tokio::sync::Mutex<ChildStdin>,
    inside: Mutex<Inside>,
    /// Told when a command ends and when the shell does.
    moved: Notify,
    /// Its deletion is done, or its daemon gone.
    pub(super) gone: CancellationToken,
    /// Its deletion has begun.
    closing: AtomicBool,
    /// A finished command has left its `sleep` behind.
    leaked: AtomicBool,
}

#[derive(Debug, Default)]
struct Inside {
    commands: HashMap<String, Arc<Command>>,
    /// Accepted and not finished, in order.
    unfinished: Vec<Arc<Command>>,
    dead: Option<Death>,
}

/// What the shell was running when it ended.
#[derive(Debug, Clone, Copy)]
struct Death {
    in_async_command: bool,
}

impl Session {
    pub(super) fn open(environment: &Environment, id: &str) -> io::Result<Arc<Self>> {
        let dir = environment.inside(&Path::new(".daytona/sessions").join(directory_name(id)))?;
        // A later session of the same name takes over what an earlier daemon left behind.
        fs::create_dir_all(&dir)?;
        // Of this session alone: a predecessor that still listens would take words meant for it.
        let status_path = dir.join(format!("status-{}", Uuid::new_v4()));
        make_fifo(&status_path)?;
        let status = pipe::OpenOptions::new().read_write(true).open_receiver(&status_path)?;
        let mut command = environment.command(&environment.shell.path);
        let (mut child, shell) = environment.processes.spawn(&mut command)?;
        let input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let session = Arc::new(Self {
            id: id.to_owned(),
            dir,
            status: status_path,
            environment: environment.clone(),
            shell,
            input: tokio::sync::Mutex::new(input),
            inside: Mutex::default(),
            moved: Notify::new(),
            gone: CancellationToken::new(),
            closing: AtomicBool::new(false),
            leaked: AtomicBool::new(false),
        });
        tokio::spawn(Arc::clone(&session).follow(child, status));
        Ok(session)
    }

    /// Hands a command to the shell. It runs when all before it have ended.
    pub(super) async fn exec(&self, order: Order) -> Result<Arc<Command>, ExecError> {
        if self.gone.is_cancelled() {
            return Err(ExecError::Cancelled);
        }
        let mut input = self.input.lock().await;
        self.room_in_the_queue().await?;
        if lock(&self.inside).dead.is_some() {
            // It is listed all the same.
            return self.after_death(self.list_only(order)?);
        }
        let id = Uuid::new_v4().to_string();
        let dir = self.environment.inside(&self.dir.join(&id))?;
        let labelling = self.environment.shell.labelling;
        let command = Command::prepare(dir, id.clone(), order, labelling, &self.gone)?;
        {
            let mut inside = lock(&self.inside);
            inside.commands.insert(id, Arc::clone(&command));
            inside.unfinished.push(Arc::clone(&command));
        }
        let builtin = if self.environment.shell.kind == ShellKind::Dash { "command" } else { "builtin" };
        let wrapper = command.wrapper(&self.status, builtin);
        let written = async {
            input.write_all(wrapper.as_bytes()).await?;
            input.flush().await
        };
        match written.await {
            Ok(()) => Ok(command),
            Err(_) => self.after_death(command),
        }
    }

    /// Kills the shell, and takes the command as if nobody had noticed: it never runs.
    pub(super) async fn exec_in_dead_shell(&self, order: Order) -> Result<Arc<Command>, ExecError> {
        processes::signal(&self.shell, Signal::KILL);
        loop {
            let moved = self.moved.notified();
            if lock(&self.inside).dead.is_some() {
                return self.list_only(order);
            }
            moved.await;
        }
    }

    fn list_only(&self, order: Order) -> Result<Arc<Command>, ExecError> {
        let id = Uuid::new_v4().to_string();
        let dir = self.environment.inside(&self.dir.join(&id))?;
        let command = Arc::new(Command::stillborn(dir, id.clone(), order)?);
        lock(&self.inside).commands.insert(id, Arc::clone(&command));
        Ok(command)
    }

    /// zsh that ended in an asynchronous command: something left over still holds its pipe, so that
    /// nobody notices, and what is submitted never runs.
    fn after_death(&self, command: Arc<Command>) -> Result<Arc<Command>, ExecError> {
        let inside = lock(&self.inside);
        // It may be dead before its end was noted.
        let last = || inside.unfinished.first().is_some_and(|first| first.order.is_async && first.id != command.id);
        let in_async_command = inside.dead.map_or_else(last, |death| death.in_async_command);
        let unnoticed = self.environment.shell.kind == ShellKind::Zsh && in_async_command;
        drop(inside);
        if unnoticed { Ok(command) } else { Err(ExecError::BrokenPipe) }
    }

    pub(super) fn command(&self, id: &str) -> Option<Arc<Command>> {
        lock(&self.inside).commands.get(id).cloned()
    }

    /// The session with the full text of all its commands, in no particular order.
    pub(super) fn show(&self) -> Result<Value, BeingWritten> {
        let commands: Result<Vec<_>, _> = lock(&self.inside).commands.values().map(|command| command.show()).collect();
        Ok(json!({ "sessionId": self.id, "commands": commands? }))
    }

    /// Asks the shell, its group and its descendants to end. When its children are gone the shell itself is killed; when
    /// they are not after `grace`, or when `hurry` says so, its group. A process in a session of its own may survive.
    pub(super) async fn close(&self, grace: Duration, hurry: &CancellationToken) {
        self.closing.store(true, Ordering::Relaxed);
        for process in processes::group_and_descendants(self.shell.pid) {
            processes::signal(&process, Signal::TERM);
        }
        let deadline = Instant::now() + grace;
        let step = Duration::from_millis(100).min(grace);
        loop {
            tokio::select! {
                () = tokio::time::sleep(step) => {}
                () = hurry.cancelled() => break,
            }
            if !self.has_children() || Instant::now() >= deadline {
                break;
            }
        }
        if self.has_children() {
            for process in processes::descendants_in_group(self.shell.pid) {
                processes::signal(&process, Signal::KILL);
            }
        } else {
            processes::signal(&self.shell, Signal::KILL);
        }
        while processes::is_alive(&self.shell) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.environment.processes.reap();
        self.gone.cancel();
        if let Ok(dir) = self.environment.inside(&self.dir) {
            let _ = fs::remove_dir_all(dir);
        }
    }

    fn has_children(&self) -> bool {
        processes::descendants(self.shell.pid).iter().any(processes::is_alive)
    }

    /// A session whose daemon is gone: nobody reads from it any more.
    pub(super) fn lose(&self) {
        self.gone.cancel();
    }

    async fn room_in_the_queue(&self) -> Result<(), ExecError> {
        loop {
            let moved = self.moved.notified();
            {
                let inside = lock(&self.inside);
                if inside.dead.is_some() || inside.unfinished.len() < LONGEST_QUEUE {
                    return Ok(());
                }
            }
            tokio::select! {
                () = moved => {}
                () = self.gone.cancelled() => return Err(ExecError::Cancelled),
            }
        }
    }

    /// Listens to the shell until it ends.
    async fn follow(self: Arc<Self>, mut child: Child, status: pipe::Receiver) {
        let mut said = BufReader::new(status).lines();
        let mut exited = false;
        loop {
            // What it said before it ended must be heard first.
            let patience = if exited { Duration::from_millis(20) } else { Duration::MAX };
            tokio::select! {
                biased;
                line = said.next_line() => match line {
                    Ok(Some(line)) => self.hear(&line),
                    _ => break,
                },
                _ = child.wait(), if !exited => exited = true,
                () = tokio::time::sleep(patience), if exited => break,
            }
        }
        if !exited {
            let _ = child.wait().await;
        }
        self.environment.processes.ended(&self.shell);
        let _ = fs::remove_file(&self.status);
        let mut inside = lock(&self.inside);
        let current = inside.unfinished.first().map(|command| command.order.is_async);
        inside.dead = Some(Death { in_async_command: current.unwrap_or(false) });
        for command in &inside.unfinished {
            command.abandoned();
        }
        drop(inside);
        self.moved.notify_waiters();
    }

    /// The user's script can write here too, so nothing is believed that does not fit.
    fn hear(self: &Arc<Self>, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [word, id, number] = words.as_slice() else {
            return;
        };
        let (Some(command), Ok(number)) = (self.command(id), number.parse::<i32>()) else {
            return;
        };
        match *word {
            "started" => {
                let holder = processes::descendant(number).filter(|it| it.parent == self.shell.pid);
                command.started(holder);
            }
            // As measured: of a command that ends by the deletion only zsh still tells how.
            "ended" if self.closing.load(Ordering::Relaxed) && self.environment.shell.kind != ShellKind::Zsh => {}
            "ended" => {
                self.end_holder(&command);
                let session = Arc::clone(self);
                tokio::spawn(async move {
                    command.ended(number).await;
                    lock(&session.inside).unfinished.retain(|other| other.id != command.id);
                    session.moved.notify_waiters();
                });
            }
            "next" => command.passed(),
            _ => {}
        }
    }

    /// Ends the background child of a finished command. As measured, each asynchronous one leaves its
    /// `sleep` behind in bash and dash, in zsh about one in all.
    fn end_holder(&self, command: &Command) {
        let Some(holder) = command.take_holder() else { return };
        let leaves = self.environment.shell.kind != ShellKind::Zsh || !self.leaked.swap(true, Ordering::Relaxed);
        let children = if leaves { Vec::new() } else { processes::descendants(holder.pid) };
        // Shells do not report a child that ended by PIPE; KILL is for one that ignores it.
        processes::signal(&holder, Signal::PIPE);
        processes::signal(&holder, Signal::KILL);
        for child in children {
            processes::signal(&child, Signal::KILL);
        }
    }
}

/// Ids come unchecked, and may hold anything; most are fit for a file name.
fn directory_name(id: &str) -> String {
    let plain = id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if plain { id.to_owned() } else { format!("x{}", Uuid::new_v4()) }
}
