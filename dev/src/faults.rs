//! Faults by rules: which calls, how many of them, and what happens to them. The local Daytona has them for its own
//! calls, the proxy for those of whatever stands behind it, be it the Kubernetes API.

mod engine;
mod rule;

pub use engine::RuleError;
pub(crate) use engine::{Cut, Effect, Rules};
pub use rule::{Action, Mode, Rule, RuleReport, When};
