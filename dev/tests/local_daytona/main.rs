//! The local Daytona seen from outside: each behaviour that a client can notice, with real shells.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "all of it is tests")]

mod changes;
mod commands;
mod events;
mod faults;
mod files;
mod follow;
mod limits;
mod lists;
mod modes;
mod one_shot;
mod output;
mod proxy;
mod python_sdk;
mod refusals;
mod routes;
mod sandboxes;
mod session_ends;
mod sessions;
mod state_modes;
mod support;
