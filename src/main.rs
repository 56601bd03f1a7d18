//! The binary: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser;
use daytona_controller::{
    api,
    cli::{Cli, Command},
    run, telemetry,
};

// It waits most of the time: more threads would mean more memory, of which each keeps a part.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(arguments) => {
            telemetry::init(arguments.log_json);
            run::run(&arguments).await.map_err(|e| e.to_string())
        }
        Command::Crds { directory } => api::write_crds(directory.as_deref()).map_err(|e| e.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("daytona-controller: {error}");
            ExitCode::FAILURE
        }
    }
}
