//! Tries every fault at every call: see [`dev::enumerate`].

use std::process::ExitCode;

use clap::Parser;
use dev::enumerate::stage::{Options, exit, run};

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    exit("enumerate", run(&options).await, options.strict)
}
