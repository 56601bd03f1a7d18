//! Shows the controller at work: see [`dev::demo`].

use std::process::ExitCode;

use clap::Parser;
use dev::demo::{Error, Options, run};

/// What a shell says of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("demo: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(run(&options));
    // A build that was interrupted must not hold the process: its supervisor ends it.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("\ndemo: {error}");
            ExitCode::FAILURE
        }
    }
}
