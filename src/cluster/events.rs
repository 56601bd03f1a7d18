//! Events: one when the reason of an object's condition changes, none otherwise.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use super::MANAGER;
use crate::api::cut;

/// Publishes events; a failure to do so is logged and nothing more.
#[derive(Clone)]
pub struct Events(Recorder);

impl Events {
    /// Events of this controller.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self(Recorder::new(client, Reporter { controller: MANAGER.to_owned(), instance: None }))
    }

    /// Publishes an event about an object, in the background: nobody has to wait for it.
    pub fn publish(&self, about: ObjectReference, warning: bool, reason: &str, action: &str, note: &str) {
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(cut(note, 900)),
            action: action.to_owned(),
            secondary: None,
        };
        let recorder = self.0.clone();
        tokio::spawn(async move {
            if let Err(error) = recorder.publish(&event, &about).await {
                // In a namespace that is being deleted nothing can be created, events neither.
                tracing::debug!(%error, reason = event.reason, "the event was not recorded");
            }
        });
    }
}
