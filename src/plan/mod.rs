//! Decisions. Pure: no async, no client, and the time is passed in. What is not known is a value of its own, and
//! nothing is created, deleted or let go on the strength of it.

mod abandon;
pub mod backoff;
mod claim;
pub mod command;
mod command_end;
mod command_seen;
mod command_status;
pub mod defaults;
pub mod escrow;
mod expiry;
pub mod files;
pub mod lease;
mod lease_failure;
mod lease_seen;
mod lease_status;
pub mod logs;
#[cfg(test)]
mod model;
pub mod orphan;
pub mod outcome;
pub mod queue;
mod release;
pub mod sandbox;
mod suspend;
