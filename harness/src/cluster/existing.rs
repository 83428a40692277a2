//! Servers that run already: clients of them, and nothing else.

use super::{ClusterError, Running};
use crate::existing::ask::spec_now;
use crate::existing::{Existing, Found};
use crate::history::{ServerId, TopologyEvent};
use crate::journal::Journal;
use crate::server::ServerSpec;

/// A server that was there before and stays.
pub struct Server {
    /// A client of it.
    pub client: kube::Client,
}

/// Makes a client of a server and compares what it is now with the plan.
pub(super) async fn join(
    existing: &Existing,
    id: ServerId,
    spec: &ServerSpec,
    journal: &Journal,
) -> Result<Running, ClusterError> {
    let found = existing.servers.get(usize::from(id.0)).ok_or(ClusterError::NoSuchServer { server: id })?;
    let Found { endpoint, git_version } = found;
    let client = endpoint.client().await.map_err(|error| ClusterError::Existing(error.into()))?;
    let command = vec![endpoint.url.clone()];
    journal.topology(TopologyEvent::Started { server: id, spec: spec.clone(), command });
    let (version, now) = spec_now(endpoint, &client, &spec.service_ranges).await.map_err(ClusterError::Existing)?;
    let differing = [
        ("version", git_version.clone(), version),
        ("specification", spec.id().unwrap_or_default(), now.id().unwrap_or_default()),
    ];
    match differing.into_iter().find(|(_, planned, seen)| planned != seen) {
        None => Ok(Running::Existing(Server { client })),
        Some((what, planned, seen)) => Err(ClusterError::NotAsPlanned { server: id, what, planned, seen }),
    }
}
