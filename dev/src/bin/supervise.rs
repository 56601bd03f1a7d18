//! Runs a command so that nothing of it outlives whoever started it, not even after SIGKILL.
//!
//! The starter holds the other end of this program's stdin. When that end closes, for whatever reason,
//! the command gets TERM, then after the grace everything that descends from it gets KILL.
//! As a child subreaper this program inherits every orphan below it, so that `setsid` and double forks do
//! not escape. The command is tied to this program too: see `--tied-to`.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use dev::supervise::KILL_ORDER;
use rustix::io::Errno;
use rustix::process::{self, Pid, Signal, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// What a shell answers when a command cannot be run.
const CANNOT_RUN: u8 = 127;

/// Runs a command until it ends or stdin does, then ends all that descends from it.
#[derive(Parser)]
struct Arguments {
    /// How long the command may take to end after TERM, in milliseconds, before all is killed.
    #[arg(long, default_value_t = 10_000)]
    grace_ms: u64,
    /// A directory to remove once everything has ended.
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Do not supervise: become the command, and be killed when the process with this id, which has to be
    /// the parent, ends.
    #[arg(long, value_name = "PID")]
    tied_to: Option<i32>,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// What the starter asks for through stdin.
enum Order {
    /// End of file: TERM, grace, KILL.
    Stop,
    /// One byte: KILL now, as a crash would.
    Kill,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.tied_to {
        Some(parent) => become_command(parent, &arguments.command),
        None => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            // On this thread, because the death signal of the command follows the thread that forked it.
            .and_then(|runtime| runtime.block_on(supervise(&arguments))),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let command = arguments.command.first().map(|c| c.display().to_string());
            eprintln!("supervise: cannot run {}: {error}", command.unwrap_or_default());
            ExitCode::from(CANNOT_RUN)
        }
    }
}

fn become_command(parent: i32, command: &[OsString]) -> io::Result<u8> {
    process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above: then no signal would come any more.
    if process::getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        return Err(io::Error::other("its starter is gone"));
    }
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    Err(Command::new(program).args(arguments).exec())
}

async fn supervise(arguments: &Arguments) -> io::Result<u8> {
    let mut ended = signal(SignalKind::child())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    process::set_child_subreaper(Some(process::getpid()))?;
    let mut orders = orders();
    let child = start(&arguments.command)?;
    // A starter that is gone cannot read this; end of stdin says the same.
    let _ = writeln!(io::stdout(), "{}", child.as_raw_nonzero());

    let grace = Duration::from_millis(arguments.grace_ms);
    let mut deadline = None;
    let code = loop {
        let order = tokio::select! {
            _ = ended.recv() => match reap(child) {
                Some(code) => break code,
                None => continue,
            },
            order = orders.recv() => order.unwrap_or(Order::Stop),
            _ = terminate.recv() => Order::Stop,
            _ = interrupt.recv() => Order::Stop,
            _ = hangup.recv() => Order::Stop,
            () = until(deadline) => Order::Kill,
        };
        // The child is not reaped yet, so its id cannot belong to another process.
        match order {
            Order::Kill => {
                deadline = None;
                let _ = process::kill_process(child, Signal::KILL);
            }
            Order::Stop => {
                deadline.get_or_insert_with(|| Instant::now() + grace);
                let _ = process::kill_process(child, Signal::TERM);
            }
        }
    };
    end_all_children();
    if let Some(scratch) = &arguments.scratch {
        let _ = std::fs::remove_dir_all(scratch);
    }
    Ok(code)
}

/// Reads the starter's orders on a thread of its own: it ends with the process.
fn orders() -> mpsc::UnboundedReceiver<Order> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let mut byte = [0];
        loop {
            match io::stdin().read(&mut byte) {
                Ok(1..) if byte == [KILL_ORDER] => {
                    let _ = sender.send(Order::Kill);
                }
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => {
                    let _ = sender.send(Order::Stop);
                    // A closed channel would answer at once for ever.
                    std::thread::park();
                }
            }
        }
    });
    receiver
}

/// Starts the command through this very program, which first ties itself to us and then becomes it.
fn start(command: &[OsString]) -> io::Result<Pid> {
    let child = Command::new("/proc/self/exe")
        .arg("--tied-to")
        .arg(process::getpid().as_raw_nonzero().to_string())
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .process_group(0)
        .spawn()?;
    // Never waited for through `Child`: `reap` collects it along with the orphans.
    Ok(Pid::from_child(&child))
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Collects whoever has ended; the exit code of the command if it is among them.
fn reap(command: Pid) -> Option<u8> {
    let mut code = None;
    while let Ok(Some((pid, status))) = process::wait(WaitOptions::NOHANG) {
        if pid == command {
            code = Some(exit_code(status));
        }
    }
    code
}

/// As shells do: the code, or 128 and the signal.
fn exit_code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Kills our children until there are none. The children of the dead become ours, so this reaches all
/// descendants; and a child stays a zombie until we collect it, so no id here is stale.
fn end_all_children() {
    loop {
        for child in children() {
            let _ = process::kill_process(child, Signal::KILL);
        }
        match process::wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn children() -> Vec<Pid> {
    let own = process::getpid();
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            let pid = Pid::from_raw(name.to_str()?.parse().ok()?)?;
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
            // The name in parentheses may hold anything; after it come the state and the parent.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            (Pid::from_raw(parent)? == own).then_some(pid)
        })
        .collect()
}
