//! A Daytona on this machine, for trying and testing: a sandbox is a directory, a session a real shell
//! fed through its stdin. Seen from outside it behaves as the service was measured to behave, its
//! surprises included; faults are switched on by rules (`crate::faults`), and its clock can be set.
//!
//! It listens on loopback only, signals only processes that descend from it, and writes only below
//! its own directory. What runs *in* a sandbox is an ordinary process of this machine: it is no jail.
//!
//! Where to look: `server` owns connections, faults and the call log; `control` has the control plane's
//! routes, with `guards` (keys, limits) before and `operations` (what may be done when), `listing` and
//! `events` behind them, over `service` (the sandboxes) and `lifecycle` (what becomes of them); `toolbox`
//! is the proxy before a sandbox's daemon and what all its answers have in common. The daemon answers for
//! sessions in `sessions` (over `session`, `command`, `labels` and `follow`), for one-shot commands in
//! `execute` and `code_run`, for files in `files`, `transfer`, `bulk` and `search`. `processes` is the only
//! place that sends a signal.

mod admin;
mod bulk;
mod calls;
mod client;
mod clock;
mod code_run;
mod command;
mod control;
mod create;
mod daemon;
mod environment;
mod events;
mod execute;
mod files;
mod follow;
mod guards;
mod history;
mod labels;
mod lifecycle;
mod limits;
mod listing;
mod model;
mod operations;
mod output;
mod paths;
mod ports;
mod problem;
mod processes;
mod record;
pub(crate) mod routes;
mod search;
mod server;
mod service;
mod session;
mod sessions;
mod toolbox;
mod transfer;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use client::{Launch, LocalDaytona, RequestError, StartError};
pub use model::{Call, ForcedState, RateLimits, SandboxReport, Settings, State};
pub use server::{ServerError, run};

/// The organisation that owns every sandbox unless another is given.
pub const DEFAULT_ORGANIZATION: &str = "0d5a2a54-3c1c-4b0e-9d0c-1f6c7f1f2b10";

/// The snapshot that is used when a create names none.
pub const DEFAULT_SNAPSHOT: &str = "daytonaio/sandbox:0.6.0";

/// What the `local-daytona` binary is told on its command line.
#[derive(Debug, Clone, clap::Parser)]
#[command(about = "A Daytona on this machine, for trying and testing")]
pub struct Options {
    /// Address to listen on; anything but loopback is refused.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Directory that holds everything it writes.
    #[arg(long)]
    pub dir: PathBuf,
    /// The one key that is accepted.
    #[arg(long, env = "LOCAL_DAYTONA_API_KEY", hide_env_values = true)]
    pub api_key: String,
    /// File that gets the base URL as soon as requests are answered.
    #[arg(long)]
    pub ready_file: Option<PathBuf>,
    /// Shell of the sessions: zsh, bash, dash, ash (busybox) or a path. Without it the first of zsh and bash that
    /// /etc/shells lists, as the service does.
    #[arg(long)]
    pub shell: Option<String>,
    /// Organisation that owns every sandbox.
    #[arg(long, default_value = DEFAULT_ORGANIZATION)]
    pub organization: String,
    /// Further snapshot that exists (repeatable).
    #[arg(long = "snapshot")]
    pub snapshots: Vec<String>,
    /// End when stdin reaches its end.
    #[arg(long)]
    pub exit_on_stdin_eof: bool,
    /// How long the deletion of a session waits for processes that ignore TERM.
    #[arg(long, default_value_t = 5000)]
    pub session_grace_ms: u64,
    /// Take output as fast as it comes, instead of as slowly as the shell's loops of the service.
    #[arg(long)]
    pub unthrottled: bool,
}

/// A panic elsewhere must not take the whole service with it: what the lock guards stays usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
