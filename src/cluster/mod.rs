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

/// What the API server said, for a person: an error's own text shows its parts as well.
#[must_use]
pub fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// Field manager of everything that is written.
pub const MANAGER: &str = "daytona-controller";
