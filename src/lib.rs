//! daytona-controller leases Daytona sandboxes and runs commands in them, declaratively.
//!
//! The layers, each of which uses only what stands before it (`tests/layers.rs` holds that):
//!
//! 1. [`api`]: the two resources as users write them: types, schema, CEL rules.
//! 2. [`shell`]: the script protocol: what is sent to a sandbox's shell and what is read back. Pure.
//! 3. [`leadership`]: whether this process may act.
//! 4. [`daytona`]: the client for Daytona's REST interface. Knows no Kubernetes.
//! 5. [`plan`]: decisions. Pure, the time passed in.
//! 6. [`cluster`]: effects on the Kubernetes API. Knows no Daytona.
//! 7. [`config`]: the arguments made valid.
//! 8. [`controller`]: observe → decide → act → report, for both kinds.
//! 9. [`cli`], [`leader`], [`server`], [`telemetry`], [`mod@run`]: the process around it.

pub mod api;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod daytona;
pub mod leader;
pub mod leadership;
pub mod plan;
pub mod run;
pub mod server;
pub mod shell;
pub mod telemetry;
