//! Measures the controller: see [`dev::bench`].

use std::process::ExitCode;

use clap::Parser;
use dev::bench::{Options, run};

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nbench-local: {error}");
            ExitCode::FAILURE
        }
    }
}
