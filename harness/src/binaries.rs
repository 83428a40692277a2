//! Finding etcd, kube-apiserver and kube-controller-manager in exact versions.
//!
//! Looked for in this order: a directory of the user's, the cache, a download with a checksum, `go build` from the Go
//! module proxy. Every step that does not have a binary says why, and what was downloaded or built is kept in the cache.

mod cache;
mod download;
mod error;
mod gobuild;
mod gomodule;
mod probe;
mod search;
mod sources;
mod table;
#[cfg(test)]
mod tests;

pub use error::{BinaryError, Missing};
pub use sources::{Mirror, Sources};
pub use table::{KubeComponent, ToolVersion, ToolVersionError, Wanted, default_version};

use crate::combo::Combo;
use crate::version::{KubeVersion, Minor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Finds, downloads or builds every binary that is wanted. It blocks: for seconds if the binaries are at hand, for
/// minutes if they must be built. Calls from several threads and processes share their work: the first one downloads or
/// builds, the others wait for it.
///
/// # Errors
/// A binary no step has, with every step's answer and, where another version helps, that version; too little free disk;
/// a file system that fails.
pub fn obtain(wanted: &[Wanted], sources: &Sources, progress: &dyn Progress) -> Result<Obtained, BinaryError> {
    search::run(wanted, sources, progress)
}

/// Those of the wanted binaries that are at hand, in the directory of the user's or whole in the cache. Nothing is
/// downloaded, built or waited for.
///
/// # Errors
/// A file system that fails.
pub fn at_hand(wanted: &[Wanted], sources: &Sources) -> Result<Obtained, BinaryError> {
    search::at_hand(wanted, sources)
}

/// Free disk that the cache needs to download these binaries, in bytes.
pub fn disk_to_download(wanted: &[Wanted]) -> u64 {
    download::FREE_DISK * wanted.len() as u64
}

/// Free disk that the cache needs to build these binaries, in bytes: one release is built at a time.
pub fn disk_to_build(wanted: &[Wanted]) -> u64 {
    wanted.iter().map(|wanted| gobuild::free_disk(wanted.release())).max().unwrap_or(0)
}

/// etcd and the apiservers of these combos; with controller managers, one for each of their minors.
pub fn needed_by<'a>(combos: impl IntoIterator<Item = &'a Combo>, controller_managers: bool) -> Vec<Wanted> {
    let servers = combos.into_iter().flat_map(|combo| &combo.servers);
    let versions: BTreeSet<KubeVersion> = servers.map(|server| server.version).collect();
    let minors: BTreeSet<Minor> = versions.iter().map(|version| version.minor).collect();
    let mut wanted = vec![Wanted::Etcd(ToolVersion::ETCD)];
    wanted.extend(versions.into_iter().map(|version| Wanted::Kube(KubeComponent::Apiserver, version)));
    if controller_managers {
        let managers = minors.into_iter().filter_map(|minor| default_version(KubeComponent::ControllerManager, minor));
        wanted.extend(managers.map(|version| Wanted::Kube(KubeComponent::ControllerManager, version)));
    }
    wanted
}

/// The binaries of one [`obtain`] call.
#[derive(Debug, Clone, Default)]
pub struct Obtained(BTreeMap<Wanted, Found>);

impl Obtained {
    /// The absolute path of a binary; `None` for one that was not asked for.
    pub fn path(&self, wanted: Wanted) -> Option<&Path> {
        self.0.get(&wanted).map(|found| found.path.as_path())
    }

    /// Every binary, etcd first.
    pub fn iter(&self) -> impl Iterator<Item = &Found> {
        self.0.values()
    }
}

/// Where a binary is looked for, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A directory of the user's.
    BinDir,
    /// The directory that binaries are kept in.
    Cache,
    /// A release host or a mirror.
    Download,
    /// `go build`.
    GoBuild,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::BinDir => "given directory",
            Step::Cache => "cache",
            Step::Download => "download",
            Step::GoBuild => "go build",
        })
    }
}

/// A step that does not have a binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The step.
    pub step: Step,
    /// Why it does not.
    pub why: String,
    /// How long it took to find out.
    pub took: Duration,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.why)?;
        if self.took >= Duration::from_millis(50) {
            write!(f, " ({:.1} s)", self.took.as_secs_f64())?;
        }
        Ok(())
    }
}

/// A binary that was found, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What was wanted.
    pub wanted: Wanted,
    /// Its absolute path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// The step that had it.
    pub step: Step,
    /// How long that step took.
    pub took: Duration,
    /// What the steps before it answered.
    pub answers: Vec<Answer>,
}

impl fmt::Display for Found {
    /// One line: the binary, every step's answer, and the path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.wanted)?;
        for answer in &self.answers {
            write!(f, "{answer}; ")?;
        }
        let (megabytes, seconds) = (self.size as f64 / 1e6, self.took.as_secs_f64());
        let done = match self.step {
            Step::BinDir => "its --version checked",
            Step::Cache => "its sha256 checked",
            Step::Download => "its sha256 and --version checked, cached",
            Step::GoBuild => "its --version checked, cached",
        };
        write!(f, "{}: {} ({megabytes:.1} MB, {done}, {seconds:.1} s)", self.step, self.path.display())
    }
}

/// What happens to one binary while it is looked for.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step does not have it; the next one is tried.
    Answered(&'a Answer),
    /// Another process or thread downloads or builds it.
    Waiting {
        /// The lock that is waited for.
        lock: &'a Path,
    },
    /// A download begins.
    Downloading {
        /// The URL or path.
        from: &'a str,
    },
    /// A download goes on.
    Bytes {
        /// Bytes so far.
        done: u64,
        /// The size, if the host tells.
        total: Option<u64>,
    },
    /// `go` fetches sources.
    Resolving {
        /// The version of `go`.
        go: &'a str,
        /// What it reports, such as `go: downloading k8s.io/api v0.33.13`.
        line: &'a str,
    },
    /// `go` compiles.
    Building {
        /// The version of `go`.
        go: &'a str,
        /// The package it compiles; the last one is followed by the linker, which says nothing.
        package: &'a str,
        /// Packages so far, this one included.
        done: usize,
        /// How many there are.
        total: usize,
    },
    /// It is there.
    Found(&'a Found),
}

/// Is told what happens; shows it.
pub trait Progress: Sync {
    /// Something happens to a binary.
    fn event(&self, wanted: Wanted, event: Event<'_>);
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn event(&self, _: Wanted, _: Event<'_>) {}
}
