//! The command line of skewlab.

mod cli;
mod clusters;
mod compare;
mod exit;
mod fetch;
mod progress;
mod select;
mod e2e;
mod schedule;
mod up;
mod check;
mod bench;
mod doctor;
mod existing;
mod matrix;
mod node_image;
mod kind;
mod containers;
mod site;

use clap::Parser;
use cli::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::E2e(args) => e2e::run(*args),
        Command::Up(args) => up::run(args),
        Command::Fetch(args) => fetch::run_command(args),
        Command::Check(args) => check::run(args),
        Command::Compare(args) => compare::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Matrix(args) => matrix::run(args),
        Command::NodeImage(args) => node_image::run(args),
        Command::KindConfig(args) => kind::print_config(&args),
        Command::Gc => site::collect_garbage(),
    };
    exit::code(result)
}
