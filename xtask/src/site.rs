//! What the servers of a run are started from, where they run, and what is cleared away after them.

use crate::exit::{Ended, PlanError};
use crate::progress::Terminal;
use crate::{containers, existing, kind};
use harness::binaries::{self, Sources, Wanted};
use harness::cluster::{Binaries, Site};
use harness::combo::Combo;
use harness::provider::{Lacking, Need, Provider};
use harness::record::RunPlan;
use std::path::PathBuf;
use tokio::runtime::Runtime;

/// The binaries of a run: nodes bring their own etcd, and servers that run already everything.
pub fn wanted_of(wanted: Vec<Wanted>, provider: Provider) -> Vec<Wanted> {
    match provider {
        Provider::Local | Provider::Containers => wanted,
        Provider::Existing => Vec::new(),
        Provider::Kind => wanted.into_iter().filter(|wanted| !matches!(wanted, Wanted::Etcd(_))).collect(),
    }
}

/// Gets what the servers of these combos need: binaries, for containers images.
///
/// # Errors
/// Something cannot be had.
pub fn prepare(
    provider: Provider,
    wanted: &[Wanted],
    combos: &[&Combo],
    bin_dir: Option<PathBuf>,
    runtime: &Runtime,
) -> anyhow::Result<(Binaries, Site)> {
    let sources = Sources::from_env(bin_dir)?;
    match provider {
        Provider::Local => {
            let obtained = binaries::obtain(wanted, &sources, &Terminal::new())?;
            Ok((Binaries::from(&obtained), Site::Local))
        }
        Provider::Kind => {
            let obtained = binaries::obtain(wanted, &sources, &Terminal::new())?;
            let mut binaries = Binaries::from(&obtained);
            kind::add_to(&mut binaries)?;
            let site = runtime.block_on(kind::site(combos, &binaries))?;
            Ok((binaries, site))
        }
        Provider::Containers => {
            let images = runtime.block_on(containers::images(wanted, &sources))?;
            Ok((Binaries::default(), Site::Containers(images)))
        }
        Provider::Existing => Err(PlanError(Lacking { provider, need: Need::Control }.to_string()).into()),
    }
}

/// Clears away what the cases of a run share or, when they were killed, have left. Processes leave nothing.
///
/// # Errors
/// The engine does not answer.
pub async fn end(plan: &RunPlan) -> anyhow::Result<()> {
    match &plan.site {
        Site::Local => {}
        Site::Kind(_) => kind::end().await?,
        Site::Containers(_) => drop(containers::sweep().await?),
        Site::Existing(servers) => existing::end(servers, &plan.run).await,
    }
    Ok(())
}

/// Runs `cargo xtask gc`.
///
/// # Errors
/// The engine does not answer.
pub fn collect_garbage() -> anyhow::Result<Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let removed = runtime.block_on(async { anyhow::Ok(kind::sweep().await? + containers::sweep().await?) })?;
    if removed == 0 {
        println!("nothing to remove");
    }
    Ok(Ended::AsExpected)
}

/// Refuses a provider that this very program has to drive and was built without. `e2e` builds its test binary as needed.
///
/// # Errors
/// How to build it.
pub fn check_built_in(provider: Provider, command: &str) -> Result<(), PlanError> {
    match provider {
        Provider::Local | Provider::Kind | Provider::Existing => Ok(()),
        Provider::Containers if cfg!(feature = "containers") => Ok(()),
        Provider::Containers => Err(PlanError(format!(
            "`{command}` was built without the provider containers; \
             cargo run --package xtask --features containers -- {command} ... has it"
        ))),
    }
}
