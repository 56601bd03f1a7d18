//! Condition types and reasons as closed sets, and how a condition is merged into a list.

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

/// Longest message written into a condition, in characters.
const MESSAGE_MAX: usize = 1024;

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident $(= $text:literal)?),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are the documentation; docs/api.md explains each")]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name as it stands in `status`.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => names!(@text $variant $($text)?)),+ }
            }
        }
    };
    (@text $variant:ident) => { stringify!($variant) };
    (@text $variant:ident $text:literal) => { $text };
}

names! {
    /// Condition types of a `SandboxLease`.
    LeaseCondition { Ready, CredentialsValid, SandboxReady, SessionReady, Reconciling, Stalled, CleanupBlocked }
}

names! {
    /// Condition types of a `SandboxCommand`.
    CommandCondition { Started, Finished, Succeeded, OutputStored, Ready, Reconciling, Stalled }
}

names! {
    /// Reasons of a lease's conditions.
    LeaseReason {
        Ready, Asleep, Suspended, Provisioning, Restoring, SandboxStopped, SandboxLost, SandboxError, SandboxStateUnknown,
        SnapshotNotFound, NameConflict, ReuseConflict, OwnershipConflict, SecretNotFound, ConfigMapNotFound, SecretInvalid,
        Unauthorized, CredentialMismatch, EscrowFailed, SyncingFiles,
        ControllerKeyNotAllowed, UrlNotAllowed = "URLNotAllowed", QuotaExceeded, ApiThrottled = "APIThrottled",
        ApiUnreachable = "APIUnreachable", Expired, Deleting, InvalidSpec,
    }
}

names! {
    /// Reasons of a command's `Succeeded` condition.
    CommandReason {
        Queued, WaitingForLease, LeaseNotFound, LeaseTerminating, LeaseSuspended, SecretNotFound, ConfigMapNotFound,
        ApiUnreachable = "APIUnreachable", Running, Succeeded, NonZeroExit, Signalled, StartFailed, TimedOut,
        StartDeadlineExceeded, Cancelled, ShellExited, SessionLost, SandboxLost, LeaseEnded, OutcomeUnknown,
    }
}

names! {
    /// Reasons of a command's `OutputStored` condition.
    OutputReason { InStatus, Stored, NotAsked, LogBudgetExceeded, StoreRefused, SecretChanged, OutputLost }
}

/// `status` of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the three values of metav1.ConditionStatus")]
pub enum Truth {
    True,
    False,
    Unknown,
}

impl Truth {
    /// The value as it stands in `status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// Finds the condition of this type.
#[must_use]
pub fn condition<'a>(all: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    all.iter().find(|c| c.type_ == type_)
}

/// What every condition of one status has in common.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// `metadata.generation` that the status is for.
    pub generation: Option<i64>,
    /// The time, in whole seconds.
    pub now: Timestamp,
}

/// Puts a condition into the list. `lastTransitionTime` moves only when `status` flips.
pub fn set_condition(
    all: &mut Vec<Condition>,
    type_: &'static str,
    truth: Truth,
    reason: &'static str,
    message: &str,
    stamp: Stamp,
) {
    let mut new = Condition {
        type_: type_.to_owned(),
        status: truth.as_str().to_owned(),
        reason: reason.to_owned(),
        message: cut(message, MESSAGE_MAX),
        observed_generation: stamp.generation,
        last_transition_time: Time(stamp.now),
    };
    match all.iter_mut().find(|c| c.type_ == new.type_) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time.clone();
            }
            *old = new;
        }
        None => all.push(new),
    }
}

/// Takes a condition out of the list; abnormal conditions are present only while abnormal.
pub fn remove_condition(all: &mut Vec<Condition>, type_: &str) {
    all.retain(|c| c.type_ != type_);
}

/// Cuts a text from outside to `max` characters: one overlong value would make a whole status write fail.
#[must_use]
pub fn cut(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(max.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_only_when_the_status_flips() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let stamp = |generation, s| Stamp { generation: Some(generation), now: at(s) };
        let mut all = Vec::new();
        set_condition(&mut all, "Ready", Truth::False, "Provisioning", "a", stamp(1, 1));
        set_condition(&mut all, "Ready", Truth::False, "Restoring", "b", stamp(2, 2));
        assert_eq!(all[0].last_transition_time.0, at(1));
        assert_eq!((all[0].reason.as_str(), all[0].observed_generation), ("Restoring", Some(2)));
        set_condition(&mut all, "Ready", Truth::True, "Ready", "c", stamp(2, 3));
        assert_eq!(all[0].last_transition_time.0, at(3));
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn every_name_is_explained() {
        let page = include_str!("../../docs/api.md");
        let lease = LeaseReason::ALL.iter().map(|r| r.as_str()).chain(LeaseCondition::ALL.iter().map(|t| t.as_str()));
        let command =
            CommandReason::ALL.iter().map(|r| r.as_str()).chain(CommandCondition::ALL.iter().map(|t| t.as_str()));
        for name in lease.chain(command).chain(OutputReason::ALL.iter().map(|r| r.as_str())) {
            assert!(page.contains(&format!("`{name}`")), "docs/api.md does not explain {name}");
        }
    }

    #[test]
    fn a_text_is_cut_on_a_character() {
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(cut("äöüß", 3), "äö…");
    }
}
