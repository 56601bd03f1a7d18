//! The whole thing from outside: manifests in, what kubectl shows out. One real control plane for all tests; each has
//! a namespace, a local Daytona and a controller process of its own, so they run in parallel.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is tests"
)]

mod abandon;
mod apiserver;
mod cancel;
mod cases;
mod cases_kubernetes;
mod cases_more;
mod chart;
mod commands;
mod connection;
mod cost;
mod defaults;
mod drain;
mod enumerate;
mod escrow;
mod escrow_rights;
mod faults;
mod files;
mod files_faults;
mod inputs;
mod leader;
mod lifecycle;
mod logs;
mod old_crds;
mod one_shot;
mod orphans;
mod outage;
mod paused;
mod persist;
mod reclaim;
mod restart;
mod sandbox;
mod schema;
mod schema_lease;
mod shells;
mod states;
mod suspend;
mod world;
