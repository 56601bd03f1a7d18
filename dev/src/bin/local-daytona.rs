//! A Daytona on this machine: see [`dev::local_daytona`].

use std::process::ExitCode;

use clap::Parser;
use dev::local_daytona::{Options, run};

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match run(Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("local-daytona: {error}");
            ExitCode::FAILURE
        }
    }
}
