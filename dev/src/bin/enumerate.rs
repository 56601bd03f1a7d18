//! Tries every fault at every call: see [`dev::enumerate`].

use std::process::ExitCode;

use clap::Parser;
use dev::enumerate::stage::{Options, exit, run};

#[tokio::main]
async fn main() -> ExitCode {
    exit("enumerate", run(&Options::parse()).await)
}
