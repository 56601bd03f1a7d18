//! How many leases are looked at at once. One that waits for its turn is small; one that is looked at holds its object,
//! a connection and what it sends, and a restart has a thousand of them looked at.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use kube::ResourceExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::SandboxLease;

/// Leases of one connection that are looked at at once: as many as its client makes calls.
const TURNS: usize = 64;

/// Namespace, Secret, key and URL; none for the controller's own key.
type Connection = Option<[String; 4]>;

/// Turns by connection: a Daytona that hangs must not hold up the leases of another.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Connection, Weak<Semaphore>>>);

impl Turns {
    /// Waits for the lease's turn, which ends when what is returned is dropped.
    pub(super) async fn take(&self, lease: &SandboxLease) -> Option<OwnedSemaphorePermit> {
        self.of(lease).acquire_owned().await.ok()
    }

    fn of(&self, lease: &SandboxLease) -> Arc<Semaphore> {
        let connection = lease.spec.connection.as_ref().and_then(|connection| {
            let secret = connection.api_key_secret_ref.clone()?;
            let url = connection.api_url.clone().unwrap_or_default();
            Some([lease.namespace().unwrap_or_default(), secret.name, secret.key, url])
        });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = all.get(&connection).and_then(Weak::upgrade) {
            return turns;
        }
        all.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(TURNS));
        all.insert(connection, Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn leases_of_a_connection_share_its_turns_and_others_have_their_own() {
        let lease = |secret: &str| {
            let spec = serde_json::json!({ "connection": { "apiKeySecretRef": { "name": secret } } });
            let mut lease = SandboxLease::new("l", serde_json::from_value(spec).unwrap());
            lease.metadata.namespace = Some("n".to_owned());
            lease
        };
        let turns = Turns::default();
        let mut taken = Vec::new();
        for _ in 0..TURNS {
            taken.push(turns.take(&lease("hangs")).await.unwrap());
        }
        assert_eq!(turns.of(&lease("hangs")).available_permits(), 0);
        assert!(turns.take(&lease("works")).await.is_some());
        assert!(taken.pop().is_some());
        assert!(turns.take(&lease("hangs")).await.is_some());
        drop(taken);
        drop(turns.take(&lease("another")).await);
        assert_eq!(turns.0.lock().unwrap().len(), 1, "what nobody uses is forgotten");
    }
}
