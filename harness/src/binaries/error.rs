//! What can keep a binary from being had.

use super::{Answer, Wanted};
use crate::version::Minor;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A binary cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    /// No place for the cache.
    #[error("neither XDG_CACHE_HOME nor HOME is set: there is no place to keep binaries in; set one of them")]
    NoCacheDir,
    /// `SKEWLAB_MIRROR` is no URL.
    #[error("SKEWLAB_MIRROR=`{text}` is neither http://HOST/..., https://HOST/... nor file:///DIRECTORY")]
    BadMirror {
        /// What was given.
        text: String,
    },
    /// A minor without a default patch.
    #[error("no default patch of Kubernetes {minor} is known; known are {oldest} to {newest}, or name an exact version", oldest = Minor::OLDEST, newest = Minor::NEWEST)]
    UnknownMinor {
        /// The minor.
        minor: Minor,
    },
    /// Too little free disk.
    #[error("{purpose} needs {} free in {}, which has {}; free some or set XDG_CACHE_HOME to a larger disk", Gb(*needed), dir.display(), Gb(*free))]
    DiskFull {
        /// What the space is for.
        purpose: String,
        /// The directory.
        dir: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes there are.
        free: u64,
    },
    /// The file system or a process failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Every step was tried in vain.
    #[error("{}", listed(missing))]
    Unavailable {
        /// What cannot be had.
        missing: Vec<Missing>,
    },
}

impl BinaryError {
    /// For `map_err`: the action that failed and the path it failed on.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BinaryError {
        move |source| BinaryError::Io { action, path: path.to_path_buf(), source }
    }
}

/// A binary that no step has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What was wanted.
    pub wanted: Wanted,
    /// What each step answered.
    pub answers: Vec<Answer>,
    /// The version to take instead, where another version helps.
    pub instead: Option<Wanted>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be had: ", self.wanted)?;
        for (index, answer) in self.answers.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{answer}")?;
        }
        match self.instead {
            Some(instead) => write!(f, "; {instead} can be built: ask for that version"),
            None => f.write_str(
                "; give a directory with --bin-dir or SKEWLAB_BIN_DIR, a mirror with SKEWLAB_MIRROR, or a `go` on PATH that \
                 reaches a module proxy",
            ),
        }
    }
}

fn listed(missing: &[Missing]) -> String {
    missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// A step's failure: the next step is tried, or nothing is.
#[derive(Debug)]
pub(super) enum StepError {
    /// This step does not have it, and why.
    No(String),
    /// No version of it that this step could make exists; another version may.
    NoSuchVersion(String),
    /// No later step could succeed either.
    Fatal(BinaryError),
}

impl From<BinaryError> for StepError {
    fn from(error: BinaryError) -> Self {
        StepError::Fatal(error)
    }
}

/// Bytes as gigabytes with one decimal.
struct Gb(u64);

impl fmt::Display for Gb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0 / 100_000_000;
        write!(f, "{}.{} GB", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binaries::{Step, ToolVersion};
    use std::time::Duration;

    #[test]
    fn a_missing_binary_tells_every_answer_and_what_to_do() {
        let answer = |step, why: &str| Answer { step, why: why.to_string(), took: Duration::from_millis(300) };
        let answers = vec![answer(Step::Cache, "not there"), answer(Step::GoBuild, "no `go` on PATH")];
        let missing = Missing { wanted: Wanted::Etcd(ToolVersion::ETCD), answers, instead: None };
        let message = BinaryError::Unavailable { missing: vec![missing] }.to_string();
        for word in ["etcd v3.6.16", "cache: not there", "go build: no `go` on PATH", "--bin-dir", "SKEWLAB_MIRROR"] {
            assert!(message.contains(word), "`{message}` does not say `{word}`");
        }
    }

    #[test]
    fn too_little_disk_tells_both_sizes() {
        let dir = PathBuf::from("/cache");
        let error =
            BinaryError::DiskFull { purpose: "go build".to_string(), dir, needed: 6_000_000_000, free: 950_000_000 };
        assert!(error.to_string().contains("go build needs 6.0 GB free in /cache, which has 0.9 GB"), "{error}");
    }
}
