//! Names of clusters say whose they are, so that those whose owner is gone can be found.

use super::engine::{CommandError, Program, remove_labelled, remove_labelled_blocking};
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

/// The label by which kind marks the containers of a cluster.
const CLUSTER_LABEL: &str = "io.x-k8s.kind.cluster";
const PREFIX: &str = "skewlab";
/// How much of the boot id a name holds, in characters; a whole name must stay below 50, with room for that of a node.
const BOOT_LENGTH: usize = 8;

static CLUSTERS: AtomicU32 = AtomicU32::new(0);

/// The process that made a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The beginning of the boot id of its host.
    pub boot: String,
    /// Its process id.
    pub pid: u32,
    /// When it started, in clock ticks since boot: ids are used again.
    pub started: u64,
}

impl Owner {
    /// This process.
    pub fn this() -> Owner {
        let pid = std::process::id();
        Owner { boot: boot(), pid, started: started(pid).unwrap_or_default() }
    }

    /// The name of another cluster of it.
    pub fn next_name(&self) -> String {
        let Owner { boot, pid, started } = self;
        format!("{PREFIX}-{boot}-{pid}-{started}-{}", CLUSTERS.fetch_add(1, Ordering::Relaxed))
    }

    /// The owner of the cluster of this name; `None` for one that is not of skewlab.
    pub fn of(name: &str) -> Option<Owner> {
        let parts: Vec<&str> = name.split('-').collect();
        let [PREFIX, boot, pid, started, _] = parts.as_slice() else { return None };
        Some(Owner { boot: boot.to_string(), pid: pid.parse().ok()?, started: started.parse().ok()? })
    }

    /// Whether it is gone now; `runs` says whether anything of what it made still runs.
    pub fn has_left(&self, runs: bool) -> bool {
        self.is_gone(&boot(), started(self.pid), runs)
    }

    /// Whether it is gone. One of another boot may be one of another host that uses the same engine: it counts as gone
    /// only when nothing of its cluster runs.
    fn is_gone(&self, boot: &str, started: Option<u64>, cluster_runs: bool) -> bool {
        if self.boot == boot { started != Some(self.started) } else { !cluster_runs }
    }
}

/// A cluster whose owner is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// Its name.
    pub name: String,
    /// Its containers.
    pub containers: Vec<String>,
}

/// The clusters of skewlab whose owner is gone.
///
/// # Errors
/// The engine does not answer.
pub async fn stale(engine: &Program) -> Result<Vec<Stale>, CommandError> {
    let boot = boot();
    Ok(stale_in(&listed(engine).await?, |owner, runs| owner.is_gone(&boot, started(owner.pid), runs)))
}

/// A line per container of a kind cluster: its name, its state, its cluster.
async fn listed(engine: &Program) -> Result<String, CommandError> {
    let format = format!("{{{{.Names}}}} {{{{.State}}}} {{{{.Label \"{CLUSTER_LABEL}\"}}}}");
    let filter = format!("label={CLUSTER_LABEL}");
    engine.output(&["ps", "--all", "--filter", &filter, "--format", &format]).await
}

fn stale_in(listed: &str, is_gone: impl Fn(&Owner, bool) -> bool) -> Vec<Stale> {
    let mut clusters: BTreeMap<&str, (Vec<String>, bool)> = BTreeMap::new();
    for line in listed.lines() {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let [container, state, cluster] = parts.as_slice() else { continue };
        let (containers, runs) = clusters.entry(cluster).or_default();
        containers.push(container.to_string());
        *runs |= *state == "running";
    }
    let stale = clusters.into_iter().filter(|(name, (_, runs))| Owner::of(name).is_some_and(|it| is_gone(&it, *runs)));
    stale.map(|(name, (containers, _))| Stale { name: name.to_string(), containers }).collect()
}

/// Removes the containers of a cluster with their volumes, if it is there.
///
/// # Errors
/// The engine does not remove them.
pub async fn remove(engine: &Program, cluster: &str) -> Result<(), CommandError> {
    remove_labelled(engine, &label_of(cluster)).await
}

/// The same without a runtime, for the way out of a failure.
///
/// # Errors
/// The engine does not remove them.
pub(super) fn remove_blocking(engine: &Program, cluster: &str) -> Result<(), CommandError> {
    remove_labelled_blocking(engine, &label_of(cluster))
}

fn label_of(cluster: &str) -> String {
    format!("{CLUSTER_LABEL}={cluster}")
}

/// The clusters of an owner, whether it lives or not.
///
/// # Errors
/// The engine does not answer.
pub async fn clusters_of(engine: &Program, owner: &Owner) -> Result<Vec<Stale>, CommandError> {
    Ok(stale_in(&listed(engine).await?, |it, _| it == owner))
}

/// The beginning of the boot id; without one, zeros.
fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(BOOT_LENGTH).collect();
    format!("{digits:0<BOOT_LENGTH$}")
}

/// When a process started, in clock ticks since boot; `None` if there is none.
#[cfg(target_os = "linux")]
fn started(pid: u32) -> Option<u64> {
    started_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Zero where the system does not tell; `None` if there is no such process. Another one with the same id keeps what the
/// first has left until it ends too.
#[cfg(not(target_os = "linux"))]
fn started(pid: u32) -> Option<u64> {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).ok()?);
    nix::sys::signal::kill(pid, None).ok().map(|()| 0)
}

#[cfg(any(target_os = "linux", test))]
fn started_in(stat: &str) -> Option<u64> {
    // The name of the program stands in parentheses and may hold anything; the start is the 20th field after it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    match fields.as_slice() {
        // Dead, and only not yet waited for.
        ["Z" | "X", ..] => None,
        fields => fields.get(19)?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_cluster_says_whose_it_is_and_is_short_enough_for_kind() {
        let owner = Owner::this();
        let name = owner.next_name();
        assert_eq!(Owner::of(&name), Some(owner.clone()));
        assert_ne!(owner.next_name(), name);
        assert!(name.len() < 50, "{name}");
        assert_eq!(started(owner.pid), Some(owner.started));
    }

    #[test]
    fn a_living_owner_keeps_its_cluster_and_a_dead_or_reused_pid_does_not() {
        let owner = Owner { boot: "1a2b3c4d".into(), pid: 7, started: 99 };
        assert!(!owner.is_gone("1a2b3c4d", Some(99), true));
        assert!(owner.is_gone("1a2b3c4d", None, true));
        assert!(owner.is_gone("1a2b3c4d", Some(100), true));
        assert!(owner.is_gone("ffffffff", None, false));
        assert!(!owner.is_gone("ffffffff", None, true));
    }

    #[test]
    fn a_process_that_is_dead_but_not_waited_for_is_gone() {
        let stat = |state: &str| format!("7 (a) b) {state} {}99 1 2", "0 ".repeat(18));
        assert_eq!(started_in(&stat("S")), Some(99));
        assert_eq!(started_in(&stat("Z")), None);
    }

    #[test]
    fn clusters_of_others_are_never_stale() {
        let listed = "kind-control-plane running kind\nskewlab-control-plane exited skewlab\n\
                      skewlab-1a2b3c4d-7-99-0-control-plane running skewlab-1a2b3c4d-7-99-0\n\
                      skewlab-1a2b3c4d-7-99-0-control-plane2 exited skewlab-1a2b3c4d-7-99-0\n";
        let all = stale_in(listed, |_, runs| runs);
        assert_eq!(
            all.iter().map(|it| (it.name.as_str(), it.containers.len())).collect::<Vec<_>>(),
            [("skewlab-1a2b3c4d-7-99-0", 2)]
        );
        assert!(stale_in(listed, |_, _| false).is_empty());
    }
}
