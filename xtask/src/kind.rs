//! What runs on kind need besides what runs of processes need: kind itself, images, and clusters cleared away.

use crate::exit::{Ended, PlanError};
use crate::fetch::Version;
use crate::progress::Terminal;
use anyhow::Context;
use harness::binaries::{self, KubeComponent, Sources, ToolVersion, Wanted};
use harness::cluster::Binaries;
use harness::cluster::kind::cluster::{base, node_image};
use harness::cluster::kind::config::{self, ClusterConfig};
use harness::cluster::kind::engine::{Program, engine};
use harness::cluster::kind::node_image::{has_image, image_name};
use harness::cluster::kind::{owner, releases};
use harness::combo::Combo;
use harness::provider::Provider;
use harness::server::ServerSpec;
use harness::version::KubeVersion;
use std::collections::BTreeSet;
use std::path::PathBuf;
use xshell::{Shell, cmd};

/// What `cargo xtask kind-config` prints.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    /// Control planes and address families, such as 2-v4 or 3-v6-v4; without a name all names are listed
    pub name: Option<String>,
    /// The kind that reads it
    #[arg(long, value_name = "VERSION", default_value_t = ToolVersion::KIND)]
    pub kind_version: ToolVersion,
    /// The Kubernetes of the nodes: v1.33.13, or 1.33
    #[arg(long, value_name = "VERSION", default_value = "1.33")]
    pub version: Version,
}

/// Runs `cargo xtask kind-config`.
///
/// # Errors
/// A name that does not exist, or a kind that cannot create this Kubernetes.
pub fn print_config(args: &ConfigArgs) -> anyhow::Result<Ended> {
    let names = config::names();
    let Some(name) = &args.name else {
        names.iter().for_each(|(name, _, _)| println!("{name}"));
        return Ok(Ended::AsExpected);
    };
    let (_, nodes, families) = names.iter().find(|(known, _, _)| known == name).ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|(name, _, _)| name.as_str()).collect();
        PlanError(format!("no configuration `{name}`; there are: {}", known.join(", ")))
    })?;
    let version = args.version.of(KubeComponent::Apiserver)?;
    let release = releases::release(args.kind_version).map_err(|error| PlanError(error.to_string()))?;
    let kubeadm = release.kubeadm_api(version.minor).map_err(|error| PlanError(error.to_string()))?;
    let spec = ServerSpec::new(version).ranges(&families.ranges());
    let config = ClusterConfig { nodes: *nodes, image: image_name(version), spec, kubeadm };
    print!("{}", config::render(&config)?);
    Ok(Ended::AsExpected)
}

/// Runs `cargo xtask gc`.
///
/// # Errors
/// The engine does not answer.
pub fn collect_garbage() -> anyhow::Result<Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let removed = runtime.block_on(sweep(Provider::Kind))?;
    if removed == 0 {
        println!("nothing to remove");
    }
    Ok(Ended::AsExpected)
}

/// Removes the clusters of processes that are gone, and returns how many. Processes leave nothing.
///
/// # Errors
/// The engine does not answer.
pub async fn sweep(provider: Provider) -> anyhow::Result<usize> {
    match provider {
        Provider::Local => Ok(0),
        Provider::Kind => {
            let engine = engine();
            let stale = owner::stale(&engine).await?;
            for cluster in &stale {
                owner::remove(&engine, cluster).await?;
                println!("removed {} ({} containers)", cluster.name, cluster.containers.len());
            }
            Ok(stale.len())
        }
    }
}

/// The binaries of a run: nodes bring their own etcd.
pub fn wanted_of(wanted: Vec<Wanted>, provider: Provider) -> Vec<Wanted> {
    match provider {
        Provider::Local => wanted,
        Provider::Kind => wanted.into_iter().filter(|wanted| !matches!(wanted, Wanted::Etcd(_))).collect(),
    }
}

/// Adds kind to the binaries of a run on kind: the one on PATH, else the one that is kept or can be had.
///
/// # Errors
/// There is none and none can be had, or it is one that is not supported.
pub fn add_to(binaries: &mut Binaries, provider: Provider) -> anyhow::Result<()> {
    match provider {
        Provider::Local => Ok(()),
        Provider::Kind => {
            let (version, path) = match on_path() {
                Some(found) => found,
                None => {
                    let wanted = Wanted::Kind(ToolVersion::KIND);
                    let obtained = binaries::obtain(&[wanted], &Sources::from_env(None)?, &Terminal::new())?;
                    (ToolVersion::KIND, obtained.path(wanted).context("kind was not obtained")?.to_path_buf())
                }
            };
            releases::release(version).map_err(|error| PlanError(error.to_string()))?;
            binaries.0.insert(format!("kind-{version}"), path);
            Ok(())
        }
    }
}

/// kind on PATH with its version.
fn on_path() -> Option<(ToolVersion, PathBuf)> {
    let shell = Shell::new().ok()?;
    let text = cmd!(shell, "kind version").quiet().ignore_stderr().read().ok()?;
    let version = text.split_whitespace().find_map(|word| word.strip_prefix('v')?.parse().ok())?;
    Some((version, "kind".into()))
}

/// Refuses a run on kind whose nodes have no image here and none that can be pulled.
///
/// # Errors
/// The versions without an image, and what to do.
pub async fn check_images(provider: Provider, combos: &[&Combo]) -> anyhow::Result<()> {
    match provider {
        Provider::Local => return Ok(()),
        Provider::Kind => {}
    }
    let engine = engine();
    let versions: BTreeSet<KubeVersion> = combos.iter().filter_map(|combo| base(combo)).map(|it| it.version).collect();
    let mut missing = Vec::new();
    for version in versions {
        if node_image(&engine, version).await.is_err() && !pulled(&engine, &format!("kindest/node:{version}")).await? {
            missing.push(version.to_string());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let versions = missing.join(" ");
    Err(anyhow::anyhow!(
        "no node image of Kubernetes {versions} is here and none could be pulled; `cargo xtask node-image {versions}` \
         builds them"
    ))
}

/// Whether an image is there after an attempt to pull it.
async fn pulled(engine: &Program, image: &str) -> anyhow::Result<bool> {
    if let Err(error) = engine.output(&["pull", "--quiet", image]).await {
        eprintln!("{error}");
    }
    Ok(has_image(engine, image).await?)
}
