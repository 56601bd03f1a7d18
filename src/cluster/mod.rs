//! Effects on the Kubernetes API. Knows nothing of Daytona.

pub mod crds;
pub mod escrow;
pub mod events;
pub mod finalizer;
pub mod logs;
pub mod refs;
pub mod status;

/// Whether the API server will not have it, however often it is asked: not allowed, invalid, too large, over a quota, or in
/// a namespace that is being deleted.
fn is_refusal(code: u16) -> bool {
    (400..500).contains(&code) && ![401, 404, 408, 409, 429].contains(&code)
}

/// Field manager of everything that is written.
pub const MANAGER: &str = "daytona-controller";
