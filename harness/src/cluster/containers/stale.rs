//! Containers and networks of processes that are gone, by the command line of the engine: it needs no cargo feature.

use crate::cluster::kind::engine::{CommandError, Program, remove_labelled, remove_labelled_blocking, unless_gone};
use crate::cluster::kind::owner::Owner;
use std::collections::BTreeMap;

/// The label of every container and network of a case; its value is the name of the case, which says whose it is.
pub(super) const CASE_LABEL: &str = "skewlab.case";

/// What is left of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// The name of the case, and of its network.
    pub case: String,
    /// How many containers it has.
    pub containers: usize,
}

/// The cases whose owner is gone.
///
/// # Errors
/// The engine does not answer.
pub async fn stale(engine: &Program) -> Result<Vec<Stale>, CommandError> {
    let filter = format!("label={CASE_LABEL}");
    let format = format!("{{{{.Label \"{CASE_LABEL}\"}}}} {{{{.State}}}}");
    let containers = engine.output(&["ps", "--all", "--filter", &filter, "--format", &format]).await?;
    let networks = engine.output(&["network", "ls", "--filter", &filter, "--format", "{{.Name}}"]).await?;
    Ok(stale_in(&containers, &networks, |owner, runs| owner.has_left(runs)))
}

fn stale_in(containers: &str, networks: &str, has_left: impl Fn(&Owner, bool) -> bool) -> Vec<Stale> {
    let mut cases: BTreeMap<&str, (usize, bool)> = networks.lines().map(|name| (name, (0, false))).collect();
    for line in containers.lines() {
        let Some((case, state)) = line.split_once(' ') else { continue };
        let (count, runs) = cases.entry(case).or_default();
        *count += 1;
        *runs |= state == "running" || state == "paused";
    }
    let stale = cases.into_iter().filter(|(case, (_, runs))| Owner::of(case).is_some_and(|it| has_left(&it, *runs)));
    stale.map(|(case, (containers, _))| Stale { case: case.into(), containers }).collect()
}

fn label_of(case: &str) -> String {
    format!("{CASE_LABEL}={case}")
}

/// Removes the containers of a case with their volumes, then its network. What is not there is no error.
///
/// # Errors
/// The engine does not remove them.
pub async fn remove(engine: &Program, case: &str) -> Result<(), CommandError> {
    remove_labelled(engine, &label_of(case)).await?;
    unless_gone(engine.output(&["network", "rm", case]).await)
}

/// The same without a runtime, for the way out of a failure.
///
/// # Errors
/// The engine does not remove them.
pub(super) fn remove_blocking(engine: &Program, case: &str) -> Result<(), CommandError> {
    remove_labelled_blocking(engine, &label_of(case))?;
    unless_gone(engine.output_blocking(&["network", "rm", case]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: &str = "skewlab-1a2b3c4d-7-99-0";

    fn found(containers: &str, networks: &str, has_left: impl Fn(&Owner, bool) -> bool) -> Vec<(String, usize)> {
        stale_in(containers, networks, has_left).into_iter().map(|it| (it.case, it.containers)).collect()
    }

    #[test]
    fn a_network_without_containers_is_found_too() {
        assert_eq!(found("", &format!("{CASE}\n"), |_, runs| !runs), [(CASE.to_string(), 0)]);
    }

    #[test]
    fn a_paused_container_runs() {
        let containers = format!("{CASE} exited\n{CASE} paused\n");
        assert_eq!(found(&containers, CASE, |_, runs| runs), [(CASE.to_string(), 2)]);
    }

    #[test]
    fn what_has_another_name_or_a_living_owner_is_never_stale() {
        assert!(found("of-somebody-else running\n", "bridge\n", |_, _| true).is_empty());
        assert!(found(&format!("{CASE} running\n"), CASE, |_, _| false).is_empty());
    }
}
