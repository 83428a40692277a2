//! What runs on kind need besides what runs of processes need: kind itself, images, and clusters cleared away.

use crate::exit::{Ended, PlanError};
use crate::fetch::Version;
use crate::progress::Terminal;
use anyhow::Context;
use harness::binaries::{self, KubeComponent, Sources, ToolVersion, Wanted};
use harness::cluster::kind::Nodes;
use harness::cluster::kind::cluster::kind_of;
use harness::cluster::kind::config::{self, ClusterConfig};
use harness::cluster::kind::engine::{engine, images};
use harness::cluster::kind::nodes::{NodeImage, choose};
use harness::cluster::kind::owner::{self, Owner};
use harness::cluster::kind::releases;
use harness::cluster::{Binaries, Site};
use harness::combo::{self, Combo};
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
    let image = NodeImage::built_here(version);
    print!("{}", config::render(&ClusterConfig { nodes: *nodes, image, families: *families, kubeadm }));
    Ok(Ended::AsExpected)
}

/// Removes the clusters of this run, which its cases share.
///
/// # Errors
/// The engine does not answer.
pub async fn end() -> anyhow::Result<()> {
    let engine = engine();
    for cluster in owner::clusters_of(&engine, &Owner::this()).await? {
        owner::remove(&engine, &cluster.name).await?;
    }
    Ok(())
}

/// Removes the clusters of processes that are gone, and returns how many.
///
/// # Errors
/// The engine does not answer.
pub async fn sweep() -> anyhow::Result<usize> {
    let engine = engine();
    let stale = owner::stale(&engine).await?;
    for cluster in &stale {
        owner::remove(&engine, &cluster.name).await?;
        println!("removed {} ({} containers)", cluster.name, cluster.containers.len());
    }
    Ok(stale.len())
}

/// Adds kind to the binaries of a run on kind: the one on PATH, else the one that is kept or can be had.
///
/// # Errors
/// There is none and none can be had, or it is one that is not supported.
pub fn add_to(binaries: &mut Binaries) -> anyhow::Result<()> {
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

/// kind on PATH with its version.
fn on_path() -> Option<(ToolVersion, PathBuf)> {
    let shell = Shell::new().ok()?;
    let text = cmd!(shell, "kind version").quiet().ignore_stderr().read().ok()?;
    let version = text.split_whitespace().find_map(|word| word.strip_prefix('v')?.parse().ok())?;
    Some((version, "kind".into()))
}

/// Where the cases of these combos run on kind: on nodes of one image, which is pulled if it is not here.
///
/// # Errors
/// No image can be had, and what to do.
pub async fn site(combos: &[&Combo], binaries: &Binaries) -> anyhow::Result<Site> {
    let engine = engine();
    let there = images(&engine).await?;
    let oldest = combo::oldest(combos.iter().copied()).context("no case of this run can run on kind")?;
    let (version, _) = kind_of(binaries)?;
    let image = choose(&there, oldest, releases::release(version)?);
    if !there.contains(&image.name) {
        eprintln!("pulling {}", image.name);
        engine.output(&["pull", "--quiet", &image.name]).await.with_context(|| {
            format!("no node image is here and {} could not be pulled; `cargo xtask node-image` builds one", image.name)
        })?;
    }
    Ok(Site::Kind(Nodes { image, lease: None }))
}
