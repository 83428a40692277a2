//! What the servers of a run are started from, and where they run.

use crate::exit::PlanError;
use crate::progress::Terminal;
use crate::{containers, kind};
use harness::binaries::{self, Sources, Wanted};
use harness::cluster::{Binaries, Site};
use harness::combo::Combo;
use harness::provider::{Lacking, Need, Provider};
use std::path::PathBuf;
use tokio::runtime::Runtime;

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
