//! The two controllers: observe → decide → act → report, wired to their watches.

mod attempts;
mod board;
mod command;
mod context;
mod credentials;
mod error;
mod lease;
mod observe;
mod sequences;
mod start;
mod watches;

pub use context::Context;
pub use start::{Scope, start};
