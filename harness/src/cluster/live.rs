//! What running servers say of themselves.

use super::ClusterError;
use crate::client::{self, Readiness};
use crate::etcd::Etcd;
use crate::gates::Gate;
use crate::history::{Observation, ServerId};
use crate::journal::Journal;
use crate::server::ServerSpec;
use crate::wait::NotYet;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a server is asked for its metrics before it is stopped: paused ones never answer.
const METRICS_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a running server is asked whether it is still ready: what a kubelet's readiness probe does.
const READYZ_PERIOD: Duration = Duration::from_secs(1);

/// Takes the last words of a server about its allocators into the recording. One that does not answer in time has none.
pub(super) async fn record_metrics(server: ServerId, client: kube::Client, journal: &Journal) {
    let answer = tokio::time::timeout(METRICS_TIMEOUT, client::allocator_metrics(&client)).await;
    for (name, value) in answer.ok().and_then(Result::ok).into_iter().flatten() {
        journal.observe(Observation::Metric { server, name, value });
    }
}

/// Compares what a server says of itself with the plan; `Err(Ok)` is "not answering yet", `Err(Err)` a mismatch.
async fn compare_with_plan(client: &kube::Client, id: ServerId, spec: &ServerSpec) -> Result<(), Unlike> {
    let unanswered = |what: &str, error: kube::Error| {
        Unlike::NotYet(NotYet::new(format!("{what} ({})", client::root_cause(&error))))
    };
    let version = client::git_version(client).await.map_err(|error| unanswered("/version", error))?;
    if version != spec.version.to_string() {
        return Err(Unlike::Plan(ClusterError::NotAsPlanned {
            server: id,
            what: "version",
            planned: spec.version.to_string(),
            seen: version,
        }));
    }
    let reported = client::feature_gates(client).await.map_err(|error| unanswered("/metrics", error))?;
    let planned = spec.effective_gates().map_err(|error| Unlike::Plan(ClusterError::Spec(error.into())))?;
    if reported != planned {
        let text = |gates: &BTreeMap<Gate, bool>| {
            gates.iter().map(|(gate, value)| format!("{gate}={value}")).collect::<Vec<_>>().join(",")
        };
        return Err(Unlike::Plan(ClusterError::NotAsPlanned {
            server: id,
            what: "feature gates",
            planned: text(&planned),
            seen: text(&reported),
        }));
    }
    Ok(())
}

/// Whether a server is ready and what the plan says; `Ok(Err)` if it is ready and differs.
pub(super) async fn as_planned(
    readyz: &mut Readyz,
    client: &kube::Client,
    id: ServerId,
    spec: &ServerSpec,
) -> Result<Result<(), ClusterError>, NotYet> {
    readyz.ask(client).await.required()?;
    match compare_with_plan(client, id, spec).await {
        Ok(()) => Ok(Ok(())),
        Err(Unlike::NotYet(missing)) => Err(missing),
        Err(Unlike::Plan(error)) => Ok(Err(error)),
    }
}

/// Whether an etcd answers.
pub(super) async fn etcd_answers(etcd: &Etcd) -> Result<(), NotYet> {
    etcd.get("skewlab").await.map(|_| ()).map_err(|error| NotYet::new(error.to_string()))
}

/// Whether a kube-controller-manager is healthy.
pub(super) async fn is_healthy(client: &kube::Client) -> Result<(), NotYet> {
    let answer = client::get_text(client, "/healthz").await;
    answer.map(|_| ()).map_err(|error| NotYet::new(format!("/healthz ({})", client::root_cause(&error))))
}

/// A server that is not, or not yet, what the plan says.
enum Unlike {
    /// It does not answer yet.
    NotYet(NotYet),
    /// It answers, and differs.
    Plan(ClusterError),
}

/// Records every change of what a server says to `/readyz`. Silence is no change: a stopped or paused server is in the
/// recording by itself.
pub(super) struct Readyz {
    server: ServerId,
    journal: Journal,
    last: Option<Readiness>,
}

impl Readyz {
    pub(super) fn new(server: ServerId, journal: &Journal) -> Readyz {
        Readyz { server, journal: journal.clone(), last: None }
    }

    pub(super) async fn ask(&mut self, client: &kube::Client) -> Readiness {
        let seen = client::readyz(client).await;
        let failing = match &seen {
            Readiness::Ready => Some(Vec::new()),
            Readiness::Failing(checks) => Some(checks.clone()),
            Readiness::Silent(_) => None,
        };
        if let Some(failing) = failing.filter(|_| self.last.as_ref() != Some(&seen)) {
            self.journal.observe(Observation::Readyz { server: self.server, failing });
            self.last = Some(seen.clone());
        }
        seen
    }

    /// Goes on asking until the server is dropped.
    pub(super) fn watch(mut self, client: kube::Client) -> AbortOnDrop {
        AbortOnDrop(tokio::spawn(async move {
            let mut pace = tokio::time::interval(READYZ_PERIOD);
            pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                pace.tick().await;
                self.ask(&client).await;
            }
        }))
    }
}

/// A task that ends with its owner.
pub(super) struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
