//! `cargo xtask doctor`: what runs need of this host.

use crate::cli::DoctorArgs;
use crate::e2e;
use crate::exit::{Ended, PlanError};
use harness::binaries::{self, Sources};
use harness::combo::{self, Combo};
use harness::host;
use harness::preflight::{self, Line};
use harness::provider::Provider;
use harness::version::Minor;
use std::collections::BTreeSet;

/// Runs the command: a line per fact. It ends without a verdict if one of them keeps runs from working.
///
/// # Errors
/// A minor that no combo has, or a cache directory that cannot be used.
pub fn run(args: DoctorArgs) -> anyhow::Result<Ended> {
    let combos = combos_of(&args.minors)?;
    let wanted = binaries::needed_by(&combos, true);
    let sources = Sources { offline: args.offline, ..Sources::from_env(args.bin_dir)? };
    // As many again may wait for a repair loop.
    let jobs = 2 * e2e::default_jobs(args.provider);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ports = preflight::local::ports_needed(jobs);
    let facts = runtime.block_on(host::local(&wanted, &sources, &e2e::target_dir(), ports))?;
    let mut lines = preflight::local::judge(&facts, jobs);
    match args.provider {
        Provider::Local => {}
        Provider::Kind => {
            let facts = runtime.block_on(host::kind(nodes_of(&combos), &sources));
            lines.extend(preflight::kind::judge(&facts));
        }
    }
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

/// The minors of the nodes: a cluster is created at the oldest version of its combo.
fn nodes_of(combos: &[Combo]) -> BTreeSet<Minor> {
    combos.iter().filter_map(|combo| combo.servers.iter().map(|server| server.version.minor).min()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minors_narrow_what_is_looked_at() {
        let nodes = |minors: &[u16]| {
            let minors: Vec<Minor> = minors.iter().copied().map(Minor).collect();
            combos_of(&minors).map(|combos| nodes_of(&combos).into_iter().map(|minor| minor.0).collect::<Vec<_>>())
        };
        assert_eq!(nodes(&[]).unwrap(), (31..=36).collect::<Vec<_>>());
        assert_eq!(nodes(&[33]).unwrap(), [33]);
        assert_eq!(nodes(&[36, 37]).unwrap(), [36]);
        assert!(nodes(&[37]).unwrap_err().to_string().contains("1.37"));
    }
}
