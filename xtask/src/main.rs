//! The command line of skewlab.

mod fetch;
mod progress;

use clap::{Parser, Subcommand};

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

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Fetch(args) => {
            for found in fetch::run(args)?.iter() {
                println!("{}", found.path.display());
            }
            Ok(())
        }
    }
}
