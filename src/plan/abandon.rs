//! A lease that cannot let go is let go by a person, who takes what may be left in Daytona upon himself.

use kube::ResourceExt;

use super::expiry::is_ending;
use crate::api::{ABANDON, SandboxLease, cut};

/// What may be left behind: the recorded id of the sandbox, or its name while no id is known. `None`: nothing was made.
#[must_use]
pub fn orphan(lease: &SandboxLease) -> Option<&str> {
    let sandbox = lease.status.as_ref()?.sandbox.as_ref()?;
    Some(sandbox.id.as_deref().unwrap_or(&sandbox.name))
}

/// Whether the lease ends and is to be let go without proof: its annotation names what may be left behind.
#[must_use]
pub fn is_abandoned(lease: &SandboxLease) -> bool {
    is_ending(lease) && orphan(lease).is_some_and(|orphan| asked(lease) == Some(orphan))
}

fn asked(lease: &SandboxLease) -> Option<&str> {
    lease.annotations().get(ABANDON).map(String::as_str)
}

/// What is said of this way out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WayOut {
    /// The annotation is there and is ignored.
    ignored: Option<String>,
    /// How to go this way.
    hint: Option<String>,
}

impl WayOut {
    pub(super) fn of(lease: &SandboxLease) -> Self {
        let Some(orphan) = orphan(lease).filter(|_| is_ending(lease)) else { return Self::default() };
        let ignored = asked(lease).filter(|asked| *asked != orphan).map(|asked| {
            let asked = cut(asked, 128);
            format!("The annotation {ABANDON} is ignored: it says {asked:?}, and would have to say {orphan:?}")
        });
        let hint = format!(
            "If that cannot be mended, annotate the lease with {ABANDON}={orphan}: it is let go without proof, and what is \
             left in Daytona is yours to delete"
        );
        Self { ignored, hint: Some(hint) }
    }

    /// The message with a word about an annotation that is ignored.
    pub(super) fn beside(&self, message: &str) -> String {
        sentences(message, self.ignored.as_deref())
    }

    /// The message with a word about what a person can do.
    pub(super) fn after(&self, message: &str) -> String {
        sentences(message, self.ignored.as_deref().or(self.hint.as_deref()))
    }
}

fn sentences(message: &str, then: Option<&str>) -> String {
    then.map_or_else(|| message.to_owned(), |then| format!("{}. {then}", message.trim_end_matches('.')))
}
