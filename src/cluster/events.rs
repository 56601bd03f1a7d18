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
pub struct Events {
    client: Client,
    /// Keeps each event for six minutes, to count it up when it comes again.
    counting: Recorder,
}

impl Events {
    /// Events of this controller.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { counting: recorder(client.clone()), client }
    }

    /// Publishes an event about an object, in the background: nobody has to wait for it. One that `repeats` is counted
    /// where it would be told again; others are not kept for that, for ten thousand of them would fill the memory.
    pub fn publish(
        &self,
        about: ObjectReference,
        warning: bool,
        repeats: bool,
        (reason, action, note): (&str, &str, &str),
    ) {
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(cut(note, 900)),
            action: action.to_owned(),
            secondary: None,
        };
        let recorder = if repeats { self.counting.clone() } else { recorder(self.client.clone()) };
        tokio::spawn(async move {
            if let Err(error) = recorder.publish(&event, &about).await {
                // In a namespace that is being deleted nothing can be created, events neither.
                tracing::debug!(%error, reason = event.reason, "the event was not recorded");
            }
        });
    }
}

fn recorder(client: Client) -> Recorder {
    Recorder::new(client, Reporter { controller: MANAGER.to_owned(), instance: None })
}
