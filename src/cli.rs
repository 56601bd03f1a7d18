//! The command line, as typed.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

use crate::{
    config::{Config, ControllerKeyFor, CredentialEscrow, InvalidEndpoint, OrphanPolicy, Orphans, parse_endpoints},
    daytona::{Key, Timeouts},
    plan::lease::Intervals,
};

/// Leases Daytona sandboxes and runs commands in them, declaratively.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controller.
    Run(Box<Run>),
    /// Print the custom resource definitions as YAML, or write each into a file of a directory.
    Crds {
        /// Directory to write into.
        #[arg(long)]
        directory: Option<PathBuf>,
    },
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Watch this namespace alone; may be given several times. Left out: all namespaces.
    #[arg(long, value_name = "NAMESPACE")]
    pub watch_namespace: Vec<String>,

    /// The controller's own Daytona API, for leases that name none, as URL or `URL=TOOLBOX_ORIGIN[,...]`.
    #[arg(long, env = "DAYTONA_API_URL", default_value = "https://app.daytona.io/api")]
    pub daytona_api_url: String,

    /// Another API that leases may name, as URL or `URL=TOOLBOX_ORIGIN[,...]`; may be given several times.
    #[arg(long, value_name = "URL")]
    pub allow_api_url: Vec<String>,

    /// Which namespaces may use the controller's own key (the environment variable `DAYTONA_API_KEY`).
    #[arg(long, value_enum, default_value_t = ControllerKeyFor::Labelled, ignore_case = true)]
    pub controller_key_for: ControllerKeyFor,

    /// Act only while holding a coordination Lease, so that several of these can run and one takes over from another.
    #[arg(long)]
    pub leader_elect: bool,

    /// Name of that Lease.
    #[arg(long, default_value = "daytona-controller", value_name = "NAME")]
    pub leader_elect_lease_name: String,

    /// How long the others wait for a leader that is silent. It renews three times as often, and one that could not for
    /// two thirds of this time does nothing more.
    #[arg(long, default_value = "15s", value_name = "DURATION", value_parser = lease_duration)]
    pub leader_elect_lease_duration: Duration,

    /// The controller's own namespace, where that Lease is, and copies of keys are kept. Left out: that of its service
    /// account, or of the kubeconfig.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE")]
    pub own_namespace: Option<String>,

    /// Whether a copy of each Daytona key that leases use is kept in the controller's own namespace, so that they can be
    /// let go when their namespace, and the Secret with it, is being deleted.
    #[arg(long, value_enum, default_value_t = CredentialEscrow::Enabled, ignore_case = true)]
    pub credential_escrow: CredentialEscrow,

    /// What this cluster is called on its sandboxes, so that no other cluster takes them for its own. Left out: the UID of
    /// the namespace kube-system. Never to be changed while there are leases.
    #[arg(long, value_name = "ID", value_parser = cluster_id)]
    pub cluster_id: Option<String>,

    /// What becomes of a sandbox that is ours and whose lease is gone without having let go of it.
    #[arg(long, value_enum, default_value_t = OrphanPolicy::Report, ignore_case = true)]
    pub orphan_policy: OrphanPolicy,

    /// How often such sandboxes are looked for.
    #[arg(long, default_value = "10m", value_parser = seconds)]
    pub orphan_interval: Duration,

    /// For how long, and at least twice, one must have been seen before it is deleted.
    #[arg(long, default_value = "10m", value_parser = seconds)]
    pub orphan_grace: Duration,

    /// Where /livez and /readyz are served.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub health_addr: SocketAddr,

    /// How often an idle lease's sandbox is looked at.
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub lease_poll: Duration,

    /// How often a sandbox is looked at while Daytona changes it.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub busy_poll: Duration,

    /// How long a sandbox must be seen absent until it counts as lost.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub absence_grace: Duration,

    /// How long a deleted lease waits for its running commands to be ended before it deletes session and sandbox.
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub drain_timeout: Duration,

    /// After how long a sandbox that Daytona keeps starting, stopping or deleting is told to be stuck.
    #[arg(long, default_value = "30m", value_parser = duration)]
    pub stuck_after: Duration,

    /// Idle minutes after which Daytona stops a sandbox with `autoStopMinutes: 0` when no controller keeps it awake.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(3..=525_600))]
    pub dead_man_minutes: u32,

    /// The longest that a lease may last from its creation on, however often it is renewed, for example 72h. Left out: as
    /// long as it says, or for ever.
    #[arg(long, value_parser = seconds)]
    pub max_lease_duration: Option<Duration>,

    /// How long one call is held that waits for a command's end; more keeps fewer calls, less survives strict proxies.
    #[arg(long, default_value = "20s", value_parser = seconds)]
    pub command_hold: Duration,

    /// How often a running command is looked at when nothing is heard.
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub command_poll: Duration,

    /// How long a watch of the Kubernetes API lasts before it is made anew; one that is silent is given up five seconds later.
    #[arg(long, default_value = "290s", value_parser = seconds)]
    pub watch_timeout: Duration,

    /// How old the counts of commands in a lease's status may be.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub gauge_interval: Duration,

    /// How many bytes of stored logs a namespace may hold, for example 64Mi. Beyond it no log is stored; the tail stays.
    #[arg(long, default_value = "64Mi", value_parser = bytes)]
    pub log_budget_per_namespace: u64,

    /// How long a connection to Daytona may take.
    #[arg(long, default_value = "5s", value_parser = duration)]
    pub connect_timeout: Duration,

    /// How long a call to Daytona may take. Creating a sandbox is answered after up to 30 seconds.
    #[arg(long, default_value = "40s", value_parser = duration)]
    pub request_timeout: Duration,

    /// How long a call to the Kubernetes API may wait for its answer. The API server itself gives up after a minute.
    #[arg(long, default_value = "60s", value_parser = seconds)]
    pub kubernetes_timeout: Duration,

    /// Log lines as JSON.
    #[arg(long)]
    pub log_json: bool,
}

/// What is wrong with the arguments.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// An API URL.
    #[error("--daytona-api-url or --allow-api-url: {0}")]
    Endpoint(#[from] InvalidEndpoint),
    /// The controller's own key.
    #[error("DAYTONA_API_KEY cannot be an API key: {0}")]
    Key(&'static str),
}

impl Run {
    /// The arguments made valid.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn config(&self, key: Option<&str>) -> Result<Config, Invalid> {
        let entries = std::iter::once(&self.daytona_api_url).chain(&self.allow_api_url);
        let allowed = parse_endpoints(entries.map(String::as_str))?;
        Ok(Config {
            allowed,
            key: key.filter(|k| !k.is_empty()).map(Key::new).transpose().map_err(Invalid::Key)?,
            key_for: self.controller_key_for,
            own_namespace: self.own_namespace.clone().unwrap_or_default(),
            credential_escrow: self.credential_escrow,
            cluster_id: self.cluster_id.clone(),
            orphans: Orphans { policy: self.orphan_policy, interval: self.orphan_interval, grace: self.orphan_grace },
            intervals: Intervals {
                idle: self.lease_poll,
                busy: self.busy_poll,
                absence: self.absence_grace,
                unheard: self.absence_grace.max(self.connect_timeout + self.request_timeout),
                drain: self.drain_timeout,
                stuck: self.stuck_after,
                dead_man: Duration::from_mins(self.dead_man_minutes.into()),
                longest_lease: self.max_lease_duration,
            },
            hold: self.command_hold,
            command_poll: self.command_poll,
            gauges: self.gauge_interval,
            watch: self.watch_timeout,
            log_budget: self.log_budget_per_namespace,
            timeouts: Timeouts {
                connect: self.connect_timeout,
                request: self.request_timeout,
                idle: self.command_hold + self.request_timeout,
            },
        })
    }
}

/// `15m`, `1h30m`, `500ms`; at least ten milliseconds, for what is done all the time.
fn duration(text: &str) -> Result<Duration, String> {
    at_least(Duration::from_millis(10), text)
}

/// What stands on sandboxes in a label, and is searched for there.
fn cluster_id(text: &str) -> Result<String, String> {
    let fits =
        (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if fits { Ok(text.to_owned()) } else { Err("write 1 to 128 letters, digits, '-', '_' or '.'".to_owned()) }
}

/// A number of bytes, or of Ki, Mi or Gi.
fn bytes(text: &str) -> Result<u64, String> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let unit = units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let number: u64 = number.parse().map_err(|_| "write a number of bytes, for example 67108864 or 64Mi".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is too much".to_owned())
}

/// Shorter ones would be lost by every slow answer.
fn lease_duration(text: &str) -> Result<Duration, String> {
    at_least(Duration::from_secs(3), text)
}

/// A time that sandboxes count in whole seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    at_least(Duration::from_secs(1), text)
}

fn at_least(least: Duration, text: &str) -> Result<Duration, String> {
    let parsed: kube::core::Duration = text.parse().map_err(|e| format!("{e}; write for example 90s or 1h30m"))?;
    if parsed.is_negative() || Duration::from(parsed) < least {
        return Err(format!("it must be at least {least:?}"));
    }
    Ok(parsed.into())
}
