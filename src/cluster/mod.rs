//! Effects on the Kubernetes API. Knows nothing of Daytona.

pub mod crds;
pub mod escrow;
pub mod events;
pub mod finalizer;
pub mod logs;
pub mod refs;
pub mod status;

/// Field manager of everything that is written.
pub const MANAGER: &str = "daytona-controller";
