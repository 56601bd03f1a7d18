//! The binary: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser;
use daytona_controller::{
    api,
    cli::{Cli, Command},
    run, telemetry,
};

// It waits most of the time, and each further thread keeps memory for itself. What takes long to reckon goes to
// `spawn_blocking`.
#[tokio::main(flavor = "current_thread")]
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
