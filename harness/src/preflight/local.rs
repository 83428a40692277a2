//! What runs of processes need of their host: tools, binaries, disk, memory, ports.

use super::{Line, gb};
use crate::binaries::Wanted;
use crate::version::Minor;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Memory that one case takes, in bytes: two apiservers of some 280 MB, etcd and the test process.
const MEMORY_OF_A_CASE: u64 = 700_000_000;
/// Disk that one running case takes, in bytes: the write-ahead log that etcd reserves, its database, logs.
const DISK_OF_A_CASE: u64 = 250_000_000;
/// Disk that the results of a run take, in bytes.
const DISK_OF_RESULTS: u64 = 500_000_000;
/// Ports that one case of three servers binds: etcd two, each apiserver and the controller manager one.
const PORTS_OF_A_CASE: usize = 6;

/// What was found out about the host.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The version line of cargo.
    pub cargo: Result<String, String>,
    /// The version of go; an error says why there is none.
    pub go: Result<String, String>,
    /// The binaries that runs need.
    pub binaries: Binaries,
    /// Whether the host that binaries are downloaded from answers: its name, or why not. `None` if it was not asked.
    pub download_host: Option<Result<String, String>>,
    /// Free disk where results go.
    pub results_disk: Disk,
    /// Free disk where binaries are kept.
    pub cache_disk: Disk,
    /// Memory in bytes that new processes can have; `None` where the system does not tell.
    pub memory: Option<u64>,
    /// Ports of 127.0.0.1 that could be bound at the same time, or why one could not.
    pub ports: Result<usize, String>,
}

/// Which binaries are there.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// The cache.
    pub dir: PathBuf,
    /// How many are there.
    pub there: usize,
    /// Which are not.
    pub missing: Vec<Wanted>,
    /// Free disk that it takes to download the missing ones, in bytes.
    pub disk_to_download: u64,
    /// Free disk that it takes to build them.
    pub disk_to_build: u64,
}

/// Free disk of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The directory, or the nearest one above it that exists.
    pub dir: PathBuf,
    /// Free bytes, or why that is not known.
    pub free: Result<u64, String>,
}

/// How the binaries that are missing can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Supply {
    /// None is missing.
    Complete,
    /// From a host that answers.
    Download,
    /// With go.
    Build,
    /// Not at all.
    Nothing,
}

fn supply(facts: &Facts) -> Supply {
    match (&facts.download_host, &facts.go) {
        _ if facts.binaries.missing.is_empty() => Supply::Complete,
        (Some(Ok(_)), _) => Supply::Download,
        (Some(Err(_)), Ok(_)) => Supply::Build,
        // Not asked: `--offline`, and go without its proxy builds nothing either.
        (Some(Err(_)), Err(_)) | (None, _) => Supply::Nothing,
    }
}

/// Ports that this many cases at a time bind.
pub fn ports_needed(jobs: usize) -> usize {
    PORTS_OF_A_CASE * jobs
}

/// A line per fact for runs of this many cases at a time.
pub fn judge(facts: &Facts, jobs: usize) -> Vec<Line> {
    let supply = supply(facts);
    let mut lines = vec![cargo(&facts.cargo), go(&facts.go, supply), binaries(&facts.binaries, supply)];
    lines.extend(facts.download_host.as_ref().map(|host| download_host(host, supply)));
    lines.push(cache_disk(&facts.cache_disk, &facts.binaries, supply));
    lines.extend(judge_run(&facts.results_disk, facts.memory, &facts.ports, jobs));
    lines
}

/// The facts that change from run to run and cost milliseconds: disk, memory and ports for so many cases at a time.
pub fn judge_run(results: &Disk, memory: Option<u64>, bound: &Result<usize, String>, jobs: usize) -> Vec<Line> {
    let disk_needed = DISK_OF_RESULTS + DISK_OF_A_CASE * jobs as u64;
    let purpose = format!("{jobs} cases at a time");
    let advice = "free some, or choose another disk with --out";
    vec![disk("disk", results, disk_needed, &purpose, advice), available(memory, jobs), ports(bound, jobs)]
}

fn cargo(version: &Result<String, String>) -> Line {
    match version {
        Ok(version) => Line::fine("rust", version),
        Err(why) => Line::fails("rust", why, "install Rust with rustup, https://rustup.rs"),
    }
}

fn go(version: &Result<String, String>, supply: Supply) -> Line {
    let unused = |reason: &str, seen: &str| Line::fine("go", format!("{seen}, not needed: {reason}"));
    match (version, supply) {
        (Ok(version), Supply::Build) => Line::fine("go", format!("{version} builds what is missing")),
        (Ok(version), Supply::Complete | Supply::Download | Supply::Nothing) => Line::fine("go", version),
        (Err(why), Supply::Complete) => unused("every binary is there", why),
        (Err(why), Supply::Download) => unused("what is missing can be downloaded", why),
        (Err(why), Supply::Build | Supply::Nothing) => {
            Line::fails("go", why, "install Go, https://go.dev/dl, to build what cannot be downloaded")
        }
    }
}

fn binaries(binaries: &Binaries, supply: Supply) -> Line {
    let Binaries { dir, there, missing, .. } = binaries;
    let seen = format!("{there} of {} in {}", there + missing.len(), dir.display());
    let names = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match supply {
        Supply::Complete => Line::fine("binaries", seen),
        Supply::Download => Line::fine("binaries", format!("{seen}; to download: {names}")),
        Supply::Build => Line::fine("binaries", format!("{seen}; to build, in some minutes each: {names}")),
        Supply::Nothing => Line::fails(
            "binaries",
            format!("{seen}; missing: {names}"),
            format!(
                "run `{}` where a network is, or give a directory with --bin-dir or SKEWLAB_BIN_DIR",
                fetch_command(missing)
            ),
        ),
    }
}

/// What gets these binaries: the default versions of their minors, and etcd with any of them.
fn fetch_command(missing: &[Wanted]) -> String {
    let minors: BTreeSet<Minor> = missing
        .iter()
        .filter_map(|wanted| if let Wanted::Kube(_, version) = wanted { Some(version.minor) } else { None })
        .collect();
    minors.iter().fold("cargo xtask fetch".to_string(), |command, minor| format!("{command} {minor}"))
}

fn download_host(answer: &Result<String, String>, supply: Supply) -> Line {
    let fact = "download host";
    match (answer, supply) {
        (Ok(host), _) => Line::fine(fact, format!("{host} answers")),
        (Err(why), Supply::Complete) => Line::fine(fact, format!("{why}; every binary is there")),
        (Err(why), Supply::Build) => Line::fine(fact, format!("{why}; go builds what is missing")),
        (Err(why), Supply::Download | Supply::Nothing) => {
            Line::fails(fact, why, "name a mirror with SKEWLAB_MIRROR, or install Go")
        }
    }
}

fn cache_disk(cache: &Disk, binaries: &Binaries, supply: Supply) -> Line {
    let (needed, purpose) = match supply {
        Supply::Complete | Supply::Nothing => (0, "nothing more"),
        Supply::Download => (binaries.disk_to_download, "a download"),
        Supply::Build => (binaries.disk_to_build, "a build"),
    };
    disk("cache disk", cache, needed, purpose, "free some, or set XDG_CACHE_HOME to a larger disk")
}

pub(super) fn disk(fact: &'static str, disk: &Disk, needed: u64, purpose: &str, advice: &str) -> Line {
    let dir = disk.dir.display();
    match &disk.free {
        Ok(free) if *free >= needed => Line::fine(fact, format!("{} free in {dir}", gb(*free))),
        Ok(free) => {
            Line::fails(fact, format!("{} free in {dir}, {} needed for {purpose}", gb(*free), gb(needed)), advice)
        }
        Err(why) => Line::fails(fact, format!("free disk of {dir} is not known: {why}"), advice),
    }
}

fn available(memory: Option<u64>, jobs: usize) -> Line {
    let Some(available) = memory else {
        return Line::fine("memory", "the system does not tell");
    };
    let needed = MEMORY_OF_A_CASE * jobs as u64;
    let seen = format!("{} available", gb(available));
    if available >= needed {
        return Line::fine("memory", seen);
    }
    let advice = match available / MEMORY_OF_A_CASE {
        0 => "end other programs: not one case fits".to_string(),
        fitting => format!("end other programs, or run with --jobs {fitting}"),
    };
    Line::fails("memory", format!("{seen}, {} needed for {jobs} cases at a time", gb(needed)), advice)
}

fn ports(bound: &Result<usize, String>, jobs: usize) -> Line {
    let needed = ports_needed(jobs);
    let advice = "bring the loopback interface up (`ip link set lo up`), or end what holds the ports of \
                  net.ipv4.ip_local_port_range";
    match bound {
        Ok(count) if *count >= needed => Line::fine("ports", format!("{count} bound on 127.0.0.1 at the same time")),
        Ok(count) => Line::fails("ports", format!("{count} free on 127.0.0.1, {needed} are needed"), advice),
        Err(why) => Line::fails("ports", format!("none on 127.0.0.1: {why}"), advice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binaries::KubeComponent;
    use crate::version::KubeVersion;

    fn healthy() -> Facts {
        let disk = |dir: &str| Disk { dir: dir.into(), free: Ok(50_000_000_000) };
        Facts {
            cargo: Ok("cargo 1.95.0".into()),
            go: Ok("go1.26.8".into()),
            binaries: Binaries {
                dir: "/cache".into(),
                there: 3,
                missing: Vec::new(),
                disk_to_download: 300_000_000,
                disk_to_build: 6_000_000_000,
            },
            download_host: Some(Ok("dl.k8s.io".into())),
            results_disk: disk("/results"),
            cache_disk: disk("/cache"),
            memory: Some(16_000_000_000),
            ports: Ok(64),
        }
    }

    fn incomplete() -> Facts {
        let mut facts = healthy();
        facts.binaries.missing = vec![Wanted::Kube(KubeComponent::Apiserver, KubeVersion::new(33, 13))];
        facts
    }

    /// Facts and advice of the lines that fail.
    fn failing(facts: &Facts) -> Vec<(&'static str, String)> {
        let lines = judge(facts, 6);
        lines.iter().filter(|line| line.is_failure()).map(|line| (line.fact, line.to_string())).collect()
    }

    #[track_caller]
    fn fails_with(facts: &Facts, expected: &[(&str, &str)]) {
        let failing = failing(facts);
        assert_eq!(
            failing.iter().map(|it| it.0).collect::<Vec<_>>(),
            expected.iter().map(|it| it.0).collect::<Vec<_>>()
        );
        for ((_, line), (_, word)) in failing.iter().zip(expected) {
            assert!(line.contains(word), "`{line}` does not say `{word}`");
        }
    }

    #[test]
    fn a_healthy_host_has_a_line_per_fact_and_none_fails() {
        let facts: Vec<&str> = judge(&healthy(), 6).iter().map(|line| line.fact).collect();
        assert_eq!(facts, ["rust", "go", "binaries", "download host", "cache disk", "disk", "memory", "ports"]);
        fails_with(&healthy(), &[]);
    }

    #[test]
    fn without_cargo_nothing_can_be_built() {
        fails_with(&Facts { cargo: Err("cargo is not on PATH".into()), ..healthy() }, &[("rust", "rustup")]);
    }

    #[test]
    fn what_is_missing_is_downloaded_or_else_built() {
        let no_go = || Err("go is not on PATH".to_string());
        let no_host = || Some(Err("dl.k8s.io: connection refused".to_string()));
        fails_with(&Facts { go: no_go(), ..incomplete() }, &[]);
        fails_with(&Facts { download_host: no_host(), ..incomplete() }, &[]);
        fails_with(
            &Facts { go: no_go(), download_host: no_host(), ..incomplete() },
            &[("go", "go.dev"), ("binaries", "kube-apiserver v1.33.13"), ("download host", "SKEWLAB_MIRROR")],
        );
        // All there: neither is needed.
        fails_with(&Facts { go: no_go(), download_host: no_host(), ..healthy() }, &[]);
    }

    #[test]
    fn offline_what_is_missing_cannot_be_had_although_go_is_there() {
        fails_with(&Facts { download_host: None, ..incomplete() }, &[("binaries", "`cargo xtask fetch 1.33`")]);
        fails_with(&Facts { download_host: None, ..healthy() }, &[]);
    }

    #[test]
    fn the_cache_needs_disk_for_a_build_only_if_something_is_built() {
        let full = |facts: Facts| Facts {
            cache_disk: Disk { dir: "/cache".into(), free: Ok(1_000_000_000) },
            download_host: Some(Err("away".into())),
            ..facts
        };
        fails_with(
            &full(incomplete()),
            &[("cache disk", "1.0 GB free in /cache, 6.0 GB needed for a build; free some")],
        );
        fails_with(&full(healthy()), &[]);
    }

    #[test]
    fn disk_memory_and_ports_are_counted_per_case() {
        let short = |bytes| Disk { dir: "/results".into(), free: bytes };
        fails_with(&Facts { results_disk: short(Ok(1_900_000_000)), ..healthy() }, &[("disk", "--out")]);
        fails_with(&Facts { results_disk: short(Ok(2_100_000_000)), ..healthy() }, &[]);
        fails_with(&Facts { results_disk: short(Err("no such file".into())), ..healthy() }, &[("disk", "not known")]);
        fails_with(&Facts { memory: Some(3_000_000_000), ..healthy() }, &[("memory", "--jobs 4")]);
        fails_with(&Facts { memory: Some(100_000_000), ..healthy() }, &[("memory", "not one case fits")]);
        fails_with(&Facts { memory: None, ..healthy() }, &[]);
        fails_with(&Facts { ports: Ok(35), ..healthy() }, &[("ports", "36 are needed")]);
        fails_with(
            &Facts { ports: Err("cannot connect: unreachable".into()), ..healthy() },
            &[("ports", "ip link set lo up")],
        );
    }
}
