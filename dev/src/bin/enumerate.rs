//! Tries every fault at every call: see [`dev::enumerate`].

use std::process::ExitCode;

use clap::Parser;
use dev::enumerate::stage::{Options, run};

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Options::parse()).await {
        Ok(totals) => {
            println!("{totals}");
            if totals.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(trouble) => {
            eprintln!("\nenumerate: {trouble}");
            ExitCode::FAILURE
        }
    }
}
