//! The two controllers: observe → decide → act → report, wired to their watches.

mod attempts;
mod board;
mod by_lease;
mod change;
mod claims;
mod command;
mod context;
mod credentials;
mod error;
mod escrow;
mod files;
mod inputs;
mod latest;
mod launch;
mod lease;
mod ledger;
mod observe;
mod owners;
mod pace;
mod prepare;
mod report;
mod sequences;
mod slots;
mod start;
mod store;
mod subject;
mod sweep;
mod turns;
mod watches;

pub use context::Context;
pub use start::{Scope, start};
