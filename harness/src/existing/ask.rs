//! Asks running servers what they are, whether they are one cluster, and whether a run may do there what it does.

use super::endpoint::{Endpoint, EndpointError};
use super::facts::{self, Facts, OUTSIDE_EVERY_RANGE};
use super::{Existing, Found};
use crate::client::{self, root_cause};
use crate::combo::Combo;
use crate::history::replay::State;
use crate::listing::{self, ListError, Networking};
use crate::server::ServerSpec;
use crate::traffic::{NAMESPACE, mk_service};
use ipnet::IpNet;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Api;
use kube::api::PostParams;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The name of the ServiceCIDR that holds the ranges of the flag.
const DEFAULT_CIDR: &str = "kubernetes";
/// The namespace whose uid tells clusters apart: every cluster has it, and nobody replaces it.
const IDENTITY: &str = "kube-system";
/// What a run does in a cluster: verb, API group, resource.
const RIGHTS: [(&str, &str, &str); 8] = [
    ("create", "", "namespaces"),
    ("list", "", "namespaces"),
    ("delete", "", "namespaces"),
    ("create", "", "services"),
    ("patch", "", "services"),
    ("delete", "", "services"),
    ("list", "", "services"),
    ("watch", "", "services"),
];
/// The same where the kinds are served.
const NETWORKING_RIGHTS: [(&str, &str, &str); 4] = [
    ("list", "networking.k8s.io", "ipaddresses"),
    ("watch", "networking.k8s.io", "ipaddresses"),
    ("list", "networking.k8s.io", "servicecidrs"),
    ("watch", "networking.k8s.io", "servicecidrs"),
];

/// Finds out what the servers are; nothing is written, the one Service that is asked for is a dry run.
///
/// # Errors
/// A server that does not answer, forbids something, or belongs to another cluster.
pub async fn find_out(endpoints: Vec<Endpoint>) -> Result<(Existing, Combo), AskError> {
    let mut servers = Vec::new();
    let mut specs = Vec::new();
    let mut notes = vec![
        "etcd cannot be seen through a kubeconfig: nothing is known of bitmaps, and what rests on them is not judged"
            .to_string(),
    ];
    let mut cluster: Option<(String, String)> = None;
    for endpoint in endpoints {
        let client = endpoint.client().await?;
        let version = client.apiserver_version().await.map_err(|error| failed(&endpoint, "/version", &error))?;
        let networking = Networking::of(&client).await.map_err(|error| failed(&endpoint, "its APIs", &error))?;
        require_rights(&endpoint, &client, networking).await?;
        let uid = identity(&endpoint, &client).await?;
        match &cluster {
            None => cluster = Some((endpoint.context.clone(), uid)),
            Some((_, first)) if *first == uid => {}
            Some((first, _)) => {
                return Err(AskError::OtherCluster { first: first.clone(), second: endpoint.context.clone() });
            }
        }
        let listed = listing::list(&client, networking, None).await;
        let state = listed.map_err(|source| AskError::List { context: endpoint.context.clone(), source })?.state();
        if servers.is_empty() {
            notes.extend(facts::doubled(&owners(&state)));
        }
        let (spec, mut assumed) = spec(&endpoint, &client, &version, &[]).await?;
        let ranges = ranges(&endpoint, &client, &spec, &state).await?;
        specs.push(spec.ranges(&ranges));
        notes.append(&mut assumed);
        servers.push(Found { endpoint, git_version: version.git_version });
    }
    if let [only] = servers.as_slice() {
        notes.push(format!(
            "one endpoint was given, {}: if it is a load balancer, which of the apiservers behind it answered is not \
             known, and nothing is said about pairs of them",
            only.endpoint.url
        ));
    }
    let combo = Combo::new(specs);
    notes.extend(facts::left_behind(&combo));
    Ok((Existing { servers, notes }, combo))
}

/// What a server is now: its `gitVersion` and its specification, with these ranges.
///
/// # Errors
/// It does not answer, or its version is none.
pub async fn spec_now(
    endpoint: &Endpoint,
    client: &kube::Client,
    ranges: &[IpNet],
) -> Result<(String, ServerSpec), AskError> {
    let version = client.apiserver_version().await.map_err(|error| failed(endpoint, "/version", &error))?;
    let (spec, _) = spec(endpoint, client, &version, ranges).await?;
    Ok((version.git_version, spec))
}

async fn spec(
    endpoint: &Endpoint,
    client: &kube::Client,
    version: &Info,
    ranges: &[IpNet],
) -> Result<(ServerSpec, Vec<String>), AskError> {
    let facts = Facts {
        git_version: version.git_version.clone(),
        emulation_minor: version.emulation_minor.clone(),
        gates: client::feature_gates(client).await.map_err(|error| reason(&error)),
        ranges: ranges.to_vec(),
    };
    facts::spec_of(&endpoint.context, &facts).map_err(|why| AskError::Version { why })
}

/// The ranges of a server: those of the ServiceCIDR `kubernetes` for one that allocates from ServiceCIDRs, else what it
/// names when it refuses an address outside of them.
async fn ranges(
    endpoint: &Endpoint,
    client: &kube::Client,
    spec: &ServerSpec,
    state: &State,
) -> Result<Vec<IpNet>, AskError> {
    let from_cidrs = spec.mode().is_ok_and(|mode| mode.writes_ip_addresses());
    if let Some(cidr) = state.service_cidrs.get(DEFAULT_CIDR).filter(|_| from_cidrs) {
        return Ok(cidr.cidrs.clone());
    }
    let mut ranges = Vec::new();
    let mut answers = Vec::new();
    for text in OUTSIDE_EVERY_RANGE {
        let ip: IpAddr = text.parse().expect("an address for documentation must be one");
        let api: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        match api.create(&dry_run, &mk_service("skewlab-asks-for-the-range", &[ip])).await {
            Ok(_) => answers.push(format!("{ip} would be granted")),
            Err(kube::Error::Api(status)) => {
                ranges.extend(facts::range_in_refusal(&status.message));
                answers.push(status.message.clone());
            }
            Err(error) => return Err(failed(endpoint, "a dry run", &error)),
        }
    }
    // The Service `kubernetes` has an address of the first range of the flag.
    let kubernetes = state.services.iter().find(|(key, _)| key.to_string() == "default/kubernetes");
    let first = kubernetes.and_then(|(_, service)| service.ips.first().copied());
    ranges.sort_by_key(|range: &IpNet| !first.is_some_and(|ip| range.contains(&ip)));
    if ranges.is_empty() {
        return Err(AskError::NoRange { context: endpoint.context.clone(), answers: answers.join("; ") });
    }
    Ok(ranges)
}

/// The Services of each address.
fn owners(state: &State) -> BTreeMap<IpAddr, BTreeSet<String>> {
    let mut owners: BTreeMap<IpAddr, BTreeSet<String>> = BTreeMap::new();
    for service in state.services.values() {
        for ip in &service.ips {
            owners.entry(*ip).or_default().insert(service.key.to_string());
        }
    }
    owners
}

async fn identity(endpoint: &Endpoint, client: &kube::Client) -> Result<String, AskError> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = api.get(IDENTITY).await.map_err(|error| failed(endpoint, "namespace kube-system", &error))?;
    Ok(namespace.metadata.uid.unwrap_or_default())
}

async fn require_rights(
    endpoint: &Endpoint,
    client: &kube::Client,
    networking: Option<Networking>,
) -> Result<(), AskError> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let more = networking.map(|_| NETWORKING_RIGHTS);
    let mut missing = Vec::new();
    for (verb, group, resource) in RIGHTS.into_iter().chain(more.into_iter().flatten()) {
        let attributes = ResourceAttributes {
            verb: Some(verb.into()),
            group: Some(group.into()),
            resource: Some(resource.into()),
            ..Default::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..Default::default() };
        let answer = api.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| failed(endpoint, "what the user may do", &error))?;
        if !answer.status.is_some_and(|SubjectAccessReviewStatus { allowed, .. }| allowed) {
            missing.push(format!("{verb} {resource}"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(AskError::Forbidden { context: endpoint.context.clone(), missing })
}

fn failed(endpoint: &Endpoint, what: &'static str, error: &kube::Error) -> AskError {
    let (context, url) = (endpoint.context.clone(), endpoint.url.clone());
    AskError::NoAnswer { context, url, what, why: reason(error) }
}

/// The message of an answer, else the innermost cause.
fn reason(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} {}", status.code, status.message);
    }
    root_cause(error)
}

/// Servers that a run cannot use.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// A kubeconfig.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A server that does not answer as it should.
    #[error("context `{context}` ({url}) does not tell {what}: {why}")]
    NoAnswer {
        /// Which.
        context: String,
        /// Its URL.
        url: String,
        /// What was asked.
        what: &'static str,
        /// Why not.
        why: String,
    },
    /// A list.
    #[error("context `{context}` does not list Services: {source}")]
    List {
        /// Which.
        context: String,
        /// Why.
        source: ListError,
    },
    /// A user without the rights.
    #[error("the user of context `{context}` may not {}", missing.join(", "))]
    Forbidden {
        /// Which.
        context: String,
        /// Verbs and resources.
        missing: Vec<String>,
    },
    /// A server of another cluster.
    #[error(
        "contexts `{first}` and `{second}` are different clusters (the uid of namespace kube-system differs); give servers of one"
    )]
    OtherCluster {
        /// The first context.
        first: String,
        /// The other one.
        second: String,
    },
    /// A version that is none.
    #[error("{why}, which begins with no Kubernetes release")]
    Version {
        /// Which server has which.
        why: String,
    },
    /// A server that does not name its service range.
    #[error("context `{context}` does not say its service range: {answers}")]
    NoRange {
        /// Which.
        context: String,
        /// What it said instead.
        answers: String,
    },
}

impl AskError {
    /// Whether another command line would help, rather than another state of the cluster.
    pub fn is_usage(&self) -> bool {
        match self {
            AskError::Endpoint(_) | AskError::OtherCluster { .. } | AskError::Version { .. } => true,
            AskError::NoAnswer { .. }
            | AskError::List { .. }
            | AskError::Forbidden { .. }
            | AskError::NoRange { .. } => false,
        }
    }
}
