//! Log output.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt};

/// Logs to standard error, as text or JSON, filtered by `RUST_LOG` (default `info`).
pub fn init(json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    if json {
        builder.json().init();
    } else {
        builder.init();
    }
}
