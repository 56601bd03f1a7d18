//! daytona-controller leases Daytona sandboxes and runs commands in them, declaratively.
pub mod api;
pub mod daytona;
pub mod shell;
