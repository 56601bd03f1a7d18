//! Client for Daytona's REST interface: the control plane and the toolbox of a sandbox. Knows no Kubernetes type.
//!
//! Every call is named, bounded in time and size, made once (no hidden retry), counted against one budget per URL and
//! key, and fails with a class that says what the caller can do. The facts behind it are Daytona's observed
//! behaviour, not its documentation alone: answers may be lost after they took effect, unknown values appear in
//! enumerations, and one answer is not proof of absence.

mod budget;
mod call;
mod client;
mod error;
mod model;
mod outage;
mod sandbox;
mod toolbox;

pub use client::{Client, Clients, Endpoint, Key, Timeouts};
pub use error::{Class, Error};
pub use model::{BuildInfo, Executed, Mount, NewSandbox, Sandbox, Setting, State, Submitted};
pub use sandbox::{CREATE, START};
pub use toolbox::Toolbox;
