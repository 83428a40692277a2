//! `cargo xtask doctor`: what runs need of this host.

use crate::cli::DoctorArgs;
use crate::e2e;
use crate::existing;
use crate::exit::{Ended, PlanError};
use anyhow::Context;
use harness::binaries::{self, Sources};
use harness::cluster::containers::images;
use harness::combo::{self, Combo};
use harness::host;
use harness::preflight::{self, Line};
use harness::provider::Provider;
use harness::version::Minor;

/// Runs the command: a line per fact. It ends without a verdict if one of them keeps runs from working.
///
/// # Errors
/// A minor that no combo has, or a cache directory that cannot be used.
pub fn run(args: DoctorArgs) -> anyhow::Result<Ended> {
    existing::require_own_servers(args.provider)?;
    let combos = combos_of(&args.minors)?;
    let wanted = binaries::needed_by(&combos, true);
    let sources = Sources { offline: args.offline, ..Sources::from_env(args.bin_dir)? };
    // As many again may wait for a repair loop.
    let jobs = 2 * e2e::default_jobs(args.provider);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ports = preflight::local::ports_needed(jobs);
    let local = || -> anyhow::Result<Vec<Line>> {
        let facts = runtime.block_on(host::local(&wanted, &sources, &e2e::target_dir(), ports))?;
        Ok(preflight::local::judge(&facts, jobs))
    };
    let lines = match args.provider {
        Provider::Local | Provider::Existing => local()?,
        Provider::Kind => {
            let facts =
                runtime.block_on(host::kind(combo::oldest(&combos).context("a combo must have servers")?, &sources));
            [local()?, preflight::kind::judge(&facts)].concat()
        }
        // Binaries of this host cannot tell whether images can be had.
        Provider::Containers => {
            let disk = host::disk(&e2e::target_dir());
            let run = preflight::local::judge_run(&disk, host::memory(), &host::ports(ports), jobs);
            let prefix = images::prefix().unwrap_or_else(|| images::PUBLIC.into());
            let engine = runtime.block_on(host::engine());
            [run, preflight::containers::judge(&engine, &prefix, &wanted)].concat()
        }
    };
    lines.iter().for_each(|line| println!("{line}"));
    Ok(if lines.iter().any(Line::is_failure) { Ended::NoVerdict } else { Ended::AsExpected })
}

/// The combos all of whose servers are of the given minors; without minors all.
fn combos_of(minors: &[Minor]) -> Result<Vec<Combo>, PlanError> {
    let asked = |combo: &Combo| combo.servers.iter().all(|server| minors.contains(&server.version.minor));
    let combos: Vec<Combo> = combo::all().into_iter().filter(|combo| minors.is_empty() || asked(combo)).collect();
    match combos.is_empty() {
        false => Ok(combos),
        true => {
            let minors: Vec<String> = minors.iter().map(ToString::to_string).collect();
            Err(PlanError(format!("no combo has only servers of {}", minors.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minors_narrow_what_is_looked_at() {
        let oldest = |minors: &[u16]| {
            let minors: Vec<Minor> = minors.iter().copied().map(Minor).collect();
            combos_of(&minors).map(|combos| combo::oldest(&combos).unwrap().minor.0)
        };
        assert_eq!(oldest(&[]).unwrap(), 31);
        assert_eq!(oldest(&[33]).unwrap(), 33);
        assert_eq!(oldest(&[36, 37]).unwrap(), 36);
        assert!(oldest(&[37]).unwrap_err().to_string().contains("1.37"));
    }
}
