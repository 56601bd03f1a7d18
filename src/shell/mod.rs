//! The script protocol: what is sent to a sandbox's shell and what is read back. Pure; knows neither Daytona's
//! REST interface nor Kubernetes. `docs/protocol.md` documents it; `runner.sh` is the part that lives in the sandbox.

mod job;
mod output;
mod protocol;
mod redact;

pub use job::{Fetch, Job, Unfit, Upload};
pub use output::{Kept, Output, Outputs, Stream, Streams};
pub use protocol::{Answer, Attempt, File, Garbled, How, Unfiled, Workspace, filed, hex};
pub use redact::Redactor;
