//! Log output.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt};

/// Tells every failed call as an error, though it is tried again, and without what it was about. We tell each that
/// matters ourselves.
const NOISE: &str = "kube_client::client::builder=off";

/// Logs to standard error, as text or JSON, filtered by `RUST_LOG` (default `info`).
pub fn init(json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let filter = match NOISE.parse() {
        // Whoever asks for it gets it.
        Ok(noise) if !filter.to_string().contains("kube_client") => filter.add_directive(noise),
        _ => filter,
    };
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    if json {
        builder.json().init();
    } else {
        builder.init();
    }
}
