//! How containers can fail.

use crate::cluster::kind::engine::CommandError;
use crate::files::FileError;
use std::time::Duration;

/// A container that does not do what it should, or an engine that does not.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The program was built without what talks to the engine.
    #[error("this program was built without the cargo feature `containers`")]
    NotBuilt,
    /// The engine does not do what it is asked for.
    #[error("the container engine cannot {what}: {why}")]
    Engine {
        /// What it was asked for.
        what: String,
        /// Its words.
        why: String,
    },
    /// A command of the engine.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// An image that the plan did not bring.
    #[error("no image of {name} in this run")]
    NoImage {
        /// Component and version.
        name: String,
    },
    /// It ended although nobody ended it.
    #[error("{name} ended with exit status {code}; its last output:\n{log}")]
    Exited {
        /// Which.
        name: String,
        /// How.
        code: i64,
        /// The end of its log.
        log: String,
    },
    /// It runs but does not get ready.
    #[error("{name} not ready after {:.1} s; still missing: {missing}; its last output:\n{log}", waited.as_secs_f64())]
    NotReady {
        /// Which.
        name: String,
        /// How long.
        waited: Duration,
        /// What is missing.
        missing: String,
        /// The end of its log.
        log: String,
    },
}

impl ContainerError {
    /// The last output of a server that ended by itself; `None` for another error.
    pub fn log_of_exit(&self) -> Option<&str> {
        match self {
            ContainerError::Exited { log, .. } => Some(log),
            ContainerError::NotBuilt
            | ContainerError::Engine { .. }
            | ContainerError::Command(_)
            | ContainerError::File(_)
            | ContainerError::NoImage { .. }
            | ContainerError::NotReady { .. } => None,
        }
    }
}
