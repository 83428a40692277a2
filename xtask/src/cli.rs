//! The whole command surface.

use crate::fetch::Version;
use clap::{Parser, Subcommand, ValueEnum};
use harness::gates::GateSet;
use harness::provider::Provider;
use harness::version::Minor;
use std::path::PathBuf;

/// Tests whether Kubernetes' Multiple Service CIDRs stay safe on control planes of mixed versions and feature gates.
///
/// Exit status: 0 as expected, 1 the system under test misbehaved, 2 usage or plan, 3 the environment failed.
#[derive(Parser)]
#[command(name = "cargo xtask")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the end-to-end suites and report; without arguments the v1.33 gate matrix
    E2e(Box<E2eArgs>),
    /// Start the control plane of a combo for a person to look at, until Ctrl-C
    Up(UpArgs),
    /// Find, download or build etcd, kube-apiserver and kube-controller-manager, and print their paths
    Fetch(crate::fetch::Args),
    /// Judge saved runs or cases again from their recordings
    Check(CheckArgs),
    /// Compare runs of different providers by combo, in one table
    Compare(crate::compare::Args),
    /// Measure start times and memory of servers and the speed of the judge, and print medians with their spread
    Bench(BenchArgs),
    /// Look at what runs need of this host and say what to do about what is missing
    Doctor(DoctorArgs),
    /// Print the legs of continuous integration, each a run of `e2e` of its own
    Matrix(MatrixArgs),
    /// Build the kind node image of a Kubernetes version and the load balancer image, without an image registry
    NodeImage(crate::node_image::Args),
    /// Print a cluster configuration of kind-configs as kind is given it
    KindConfig(crate::kind::ConfigArgs),
    /// Remove the clusters, containers and networks of runs that were killed, and no others
    Gc,
}

#[derive(clap::Args)]
pub struct E2eArgs {
    /// Only this suite; may be repeated
    #[arg(long = "suite", value_name = "SUITE")]
    pub suites: Vec<String>,
    /// Only scenarios whose name matches; may be repeated
    #[arg(long = "scenario", value_name = "GLOB")]
    pub scenarios: Vec<String>,
    /// Only combos whose id matches; may be repeated
    #[arg(long = "combo", value_name = "GLOB")]
    pub combos: Vec<String>,
    /// Only combos in which some server runs with all these values; given twice, two servers must meet the two lists
    #[arg(long = "gates", value_name = "GATE=BOOL,...")]
    pub gates: Vec<GateSet>,
    /// The path from this version (v1.33.13, or 1.33) ...
    #[arg(long, value_name = "VERSION", requires = "to")]
    pub from: Option<Version>,
    /// ... to this one, judged like the named paths
    #[arg(long, value_name = "VERSION", requires = "from")]
    pub to: Option<Version>,
    /// Feature gates of the first
    #[arg(long, value_name = "GATE=BOOL,...", requires = "from")]
    pub from_gates: Option<GateSet>,
    /// Feature gates of the second
    #[arg(long, value_name = "GATE=BOOL,...", requires = "to")]
    pub to_gates: Option<GateSet>,
    /// The minor that the first emulates
    #[arg(long, value_name = "MINOR", requires = "from")]
    pub from_emulated: Option<Minor>,
    /// The minor that the second emulates
    #[arg(long, value_name = "MINOR", requires = "to")]
    pub to_emulated: Option<Minor>,
    /// Take a path of more than one minor, which Kubernetes does not support
    #[arg(long, requires = "from")]
    pub allow_unsupported_skew: bool,
    /// What runs the servers: local (processes), kind (nodes), containers, or existing (those of a cluster that is there)
    #[arg(long, value_name = "PROVIDER", default_value_t = Provider::Local)]
    pub provider: Provider,
    /// With --provider existing: the context of a server; may be repeated, once per server [default: the current one of
    /// each kubeconfig]
    #[arg(long = "context", value_name = "CONTEXT")]
    pub contexts: Vec<String>,
    /// With --provider existing: where contexts are looked for; may be repeated [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long = "kubeconfig", value_name = "FILE")]
    pub kubeconfigs: Vec<PathBuf>,
    /// Busy cases at the same time, beside as many that mostly wait [default: local and containers two per processor,
    /// kind one, at most 8; existing 1 in all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub jobs: Option<u16>,
    /// Print the plan and stop
    #[arg(long)]
    pub plan: bool,
    /// Where results go [default: target/skewlab/<run id>]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A directory with binaries, looked at first [env: SKEWLAB_BIN_DIR]
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
    /// Keep the data of failed cases and print the command that starts it again
    #[arg(long)]
    pub keep: bool,
    /// Exit with 1 if any hazard shows, expected or not
    #[arg(long)]
    pub fail_on_hazard: bool,
}

#[derive(clap::Args)]
pub struct UpArgs {
    /// The id of a combo, or a pattern that matches exactly one
    pub combo: String,
    /// What runs the servers: local (processes), kind (nodes) or containers
    #[arg(long, value_name = "PROVIDER", default_value_t = Provider::Local)]
    pub provider: Provider,
    /// Start on the data of a kept case
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// A directory with binaries, looked at first [env: SKEWLAB_BIN_DIR]
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct CheckArgs {
    /// Run directories, or directories of single cases
    #[arg(required = true, value_name = "RUN_DIR")]
    pub dirs: Vec<PathBuf>,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// How verdicts are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs: an object of verdicts by case, the same bytes for the same recordings.
    Json,
}

/// What `bench` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Figures {
    /// Control planes: start, memory, stop.
    Servers,
    /// The judge on a synthetic recording of ten million revisions.
    Checker,
}

#[derive(clap::Args)]
pub struct BenchArgs {
    /// What to measure [default: all]
    #[arg(value_enum, value_name = "FIGURES")]
    pub figures: Vec<Figures>,
    /// Counted runs of each measurement
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=50))]
    pub runs: u16,
    /// A directory with binaries, looked at first [env: SKEWLAB_BIN_DIR]
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct DoctorArgs {
    /// Kubernetes minors that will run [default: all]
    #[arg(value_name = "MINOR")]
    pub minors: Vec<Minor>,
    /// What will run the servers: local, kind or containers
    #[arg(long, value_name = "PROVIDER", default_value_t = Provider::Local)]
    pub provider: Provider,
    /// Ask no host; what is not here counts as missing
    #[arg(long)]
    pub offline: bool,
    /// A directory with binaries, looked at first [env: SKEWLAB_BIN_DIR]
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct MatrixArgs {
    /// What to print
    #[arg(long, value_enum, default_value_t = MatrixFormat::Text)]
    pub format: MatrixFormat,
    /// What has started the workflow
    #[arg(long, value_enum, default_value_t = Event::Nightly)]
    pub event: Event,
    /// Only legs with this provider: local, kind or containers
    #[arg(long, value_name = "PROVIDER")]
    pub provider: Option<Provider>,
    /// Instead of the legs of the event, one per provider of this suite; may be repeated
    #[arg(long = "suite", value_name = "SUITE")]
    pub suites: Vec<String>,
    /// The same with combos whose id matches; may be repeated
    #[arg(long = "combo", value_name = "GLOB")]
    pub combos: Vec<String>,
    /// The same with gates as in `e2e`; may be repeated
    #[arg(long = "gates", value_name = "GATE=BOOL,...")]
    pub gates: Vec<GateSet>,
}

/// How legs are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MatrixFormat {
    /// A table with the command of each leg.
    Text,
    /// One line for `$GITHUB_OUTPUT`.
    Github,
}

/// What starts a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Event {
    /// A pull request: a small local set.
    PullRequest,
    /// The night, or a person: everything.
    Nightly,
}
