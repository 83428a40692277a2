//! How a control plane can fail.

use super::containers::ContainerError;
use super::kind::KindError;
use crate::client::ClientError;
use crate::etcd::EtcdError;
use crate::existing::ask::AskError;
use crate::files::FileError;
use crate::history::ServerId;
use crate::pki::PkiError;
use crate::process::ProcessError;
use crate::provider::Lacking;
use crate::server::SpecError;
use crate::startup::{StartFailure, classify, reasons};

/// The environment failed, or a server is not what the plan says.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A binary the plan did not bring.
    #[error("no binary {name} in this run; `cargo xtask fetch` gets it")]
    NoBinary {
        /// Component and version.
        name: String,
    },
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A specification no release would start.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// etcd.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// No free port after several tries.
    #[error("cannot find a free port on 127.0.0.1: {source}")]
    NoPort {
        /// Why.
        source: std::io::Error,
    },
    /// A server reports something else than planned.
    #[error("{server} is not what the plan says: {what} planned {planned}, reported {seen}")]
    NotAsPlanned {
        /// Which.
        server: ServerId,
        /// What differs.
        what: &'static str,
        /// What was planned.
        planned: String,
        /// What it reports.
        seen: String,
    },
    /// An operation on a server that is not there.
    #[error("there is no {server} in this control plane")]
    NoSuchServer {
        /// Which.
        server: ServerId,
    },
    /// An operation on a server that is down.
    #[error("{server} does not run")]
    NotRunning {
        /// Which.
        server: ServerId,
    },
    /// More servers than ids.
    #[error("a control plane has at most 256 servers")]
    TooManyServers,
    /// A second controller manager.
    #[error("a kube-controller-manager runs already; without leader election two would fight")]
    TwoControllerManagers,
    /// A cluster of kind.
    #[error(transparent)]
    Kind(#[from] KindError),
    /// A server that was there before.
    #[error(transparent)]
    Existing(#[from] AskError),
    /// A container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// An operation that the provider does not have.
    #[error(transparent)]
    Lacking(#[from] Lacking),
    /// A task of the harness panicked.
    #[error("a task of the harness failed: {why}")]
    Task {
        /// Its words.
        why: String,
    },
}

impl ClusterError {
    /// Whether a server ended by itself because its first repair pass failed: the post-start hook of the repair loops
    /// gives up after a minute (`start-service-ip-repair-controllers`). Its next start may succeed.
    pub fn is_first_repair_pass_lost(&self) -> bool {
        self.ended_saying(StartFailure::CheckFailed) && !self.is_unreadable_storage()
    }

    /// Whether a server ended by itself because etcd holds objects in a version it does not know. No start will succeed.
    pub fn is_unreadable_storage(&self) -> bool {
        self.ended_saying(StartFailure::UnreadableStorage)
    }

    fn ended_saying(&self, failure: StartFailure) -> bool {
        self.log_of_exit().is_some_and(|log| log.lines().any(|line| classify(line) == Some(failure)))
    }

    /// The lines that name a reason, of a server that ended by itself: of all it logged for a process, else of the end.
    pub(super) fn reasons_of_exit(&self) -> Option<Vec<String>> {
        if let ClusterError::Process(ProcessError::Exited { reasons, .. }) = self {
            return Some(reasons.clone());
        }
        self.log_of_exit().map(|log| reasons(log.lines()))
    }

    /// The end of the log of a server that ended by itself.
    fn log_of_exit(&self) -> Option<&str> {
        match self {
            ClusterError::Process(ProcessError::Exited { log, .. }) => Some(log),
            ClusterError::Kind(error) => error.log_of_exit(),
            ClusterError::Container(error) => error.log_of_exit(),
            ClusterError::Process(
                ProcessError::CannotStart { .. } | ProcessError::NotReady { .. } | ProcessError::CannotWait { .. },
            )
            | ClusterError::NoBinary { .. }
            | ClusterError::Spec(_)
            | ClusterError::Pki(_)
            | ClusterError::File(_)
            | ClusterError::Client(_)
            | ClusterError::Etcd(_)
            | ClusterError::NoPort { .. }
            | ClusterError::NotAsPlanned { .. }
            | ClusterError::NoSuchServer { .. }
            | ClusterError::NotRunning { .. }
            | ClusterError::TooManyServers
            | ClusterError::TwoControllerManagers
            | ClusterError::Existing(_)
            | ClusterError::Lacking(_)
            | ClusterError::Task { .. } => None,
        }
    }
}
