//! How a cluster of kind can fail.

use super::engine::CommandError;
use super::manifest::ManifestError;
use super::releases::ReleaseError;
use crate::files::FileError;
use crate::server::SpecError;
use std::time::Duration;

/// A cluster or a server in it that does not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum KindError {
    /// A command of the engine or of kind, or one in a node.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A kind that cannot make the cluster.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// A manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A specification no release would start.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The plan has no kind.
    #[error("this run has no kind; put one on PATH or run `cargo xtask fetch --component kind`")]
    NoKind,
    /// A plan without servers.
    #[error("a cluster must have a server")]
    NoServer,
    /// What kubeadm leaves in a node.
    #[error("kubeconfig, certificates or manifests in {node} are not what kubeadm writes: {why}")]
    Secrets {
        /// Which node.
        node: String,
        /// What is wrong.
        why: String,
    },
    /// The clock of a node.
    #[error("{node} does not say what time it is; its `date` must know nanoseconds (%N)")]
    Clock {
        /// Which node.
        node: String,
    },
    /// It ended although nobody ended it.
    #[error("{component} on {node} ended by itself; its last output:\n{log}")]
    Exited {
        /// Which.
        component: &'static str,
        /// Where.
        node: String,
        /// The end of its log.
        log: String,
    },
    /// It takes too long.
    #[error("{what} not reached in {:.1} s; still missing: {missing}; last output:\n{log}", waited.as_secs_f64())]
    NotReady {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
        /// What is missing.
        missing: String,
        /// The end of its log.
        log: String,
    },
}

impl KindError {
    /// The last output of a server that ended by itself; `None` for another error.
    pub fn log_of_exit(&self) -> Option<&str> {
        match self {
            KindError::Exited { log, .. } => Some(log),
            KindError::Command(_)
            | KindError::File(_)
            | KindError::Release(_)
            | KindError::Manifest(_)
            | KindError::Spec(_)
            | KindError::NoKind
            | KindError::NoServer
            | KindError::Secrets { .. }
            | KindError::Clock { .. }
            | KindError::NotReady { .. } => None,
        }
    }
}
