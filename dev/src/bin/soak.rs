//! Random faults under load: see [`dev::enumerate::soak`].

use std::process::ExitCode;

use clap::Parser;
use dev::enumerate::stage::{SoakOptions, exit, soak};

#[tokio::main]
async fn main() -> ExitCode {
    exit("soak", soak(&SoakOptions::parse()).await, false)
}
