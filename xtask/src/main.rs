//! The command line of skewlab.

mod fetch;
mod progress;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The command line.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find, download or build etcd, kube-apiserver and kube-controller-manager, and print their paths
    Fetch(fetch::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Fetch(args) => match fetch::run(args) {
            Ok(obtained) => {
                obtained.iter().for_each(|found| println!("{}", found.path.display()));
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::from(3)
            }
        },
    }
}
