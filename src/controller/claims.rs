//! Sandboxes that are being taken over, or given out of our hands, one lease at a time. Of leases in namespaces that are
//! watched apart, the one whose label was written over is told at its next look.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

/// Ids of sandboxes.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<HashSet<String>>);

/// The right to take a sandbox over; given back when dropped.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    claims: &'a Claims,
    sandbox: String,
}

impl Claims {
    /// Takes the right, unless somebody else has it.
    pub(super) fn take(&self, sandbox: &str) -> Option<Claim<'_>> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(sandbox.to_owned());
        taken.then(|| Claim { claims: self, sandbox: sandbox.to_owned() })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.sandbox);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_until_it_is_given_back() {
        let claims = Claims::default();
        let first = claims.take("a");
        assert!(first.is_some() && claims.take("a").is_none() && claims.take("b").is_some());
        drop(first);
        assert!(claims.take("a").is_some());
    }
}
