//! `cargo xtask node-image`: a kind node image without an image registry.

use crate::exit::Ended;
use crate::fetch::Version;
use crate::progress::Terminal;
use harness::binaries::{self, KubeComponent, Sources};
use harness::cluster::kind::node_image;
use std::path::PathBuf;
use std::time::Instant;

/// Builds the node image of a Kubernetes version and the load balancer image.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kubernetes versions: v1.33.13, or 1.33 for the default patch of a minor
    #[arg(value_name = "VERSION", default_value = "1.33")]
    pub versions: Vec<Version>,
    /// Where Debian packages come from
    #[arg(long, value_name = "URL", default_value = "http://deb.debian.org/debian")]
    pub debian_mirror: String,
    /// A directory with binaries, looked at first [env: SKEWLAB_BIN_DIR]
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
}

/// Runs the command: the names of the images go to standard output, everything else to standard error.
///
/// # Errors
/// Binaries that cannot be had, or a build that fails.
pub fn run(args: Args) -> anyhow::Result<Ended> {
    let sources = Sources::from_env(args.bin_dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for version in args.versions {
        let version = version.of(KubeComponent::Kubelet)?;
        let obtained = binaries::obtain(&node_image::wanted(version), &sources, &Terminal::new())?;
        let begin = Instant::now();
        let report = |step: &str| eprintln!("[{:5.1} s] {step}", begin.elapsed().as_secs_f64());
        let images = runtime.block_on(node_image::build(version, &obtained, &args.debian_mirror, report))?;
        report("done");
        for image in images {
            println!("{image}");
        }
    }
    Ok(Ended::AsExpected)
}
