//! Servers whose `--service-cluster-ip-range` differ, and what creates through them meet.

use crate::case::Case;
use crate::claims::{primary_bitmap, stored_cidr, stored_services};
use crate::observe::granted;
use harness::history::{Operation, OperationKind, Outcome, ServerId};
use harness::net::ServiceRange;
use harness::refusal::{Refusal, classify};
use harness::traffic::{Client, mk_service};
use ipnet::IpNet;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// What became of a create without an address where two ranges are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// An address of the range the cluster began with.
    InFirst,
    /// An address of the other range.
    InOther,
    /// Addresses of neither, or not one.
    Elsewhere,
    /// Refused; `None` for a reason that is not known.
    Refused(Option<Refusal>),
    /// Whether it was done is unknown.
    Open,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::InFirst => f.write_str("in the first range"),
            Fate::InOther => f.write_str("in the other range"),
            Fate::Elsewhere => f.write_str("in no range"),
            Fate::Refused(Some(refusal)) => write!(f, "refused with {refusal}"),
            Fate::Refused(None) => f.write_str("refused for an unknown reason"),
            Fate::Open => f.write_str("unknown"),
        }
    }
}

/// The fates of creates through one server each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fates(BTreeMap<(ServerId, Fate), u64>);

impl Fates {
    /// How many creates through any server had a fate like this.
    pub fn count(&self, like: impl Fn(Fate) -> bool) -> u64 {
        self.0.iter().filter(|((_, fate), _)| like(*fate)).map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Fates {
    /// `server-1: 20 in the first range; server-2: 20 refused with 500 not in range`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> =
            self.0.iter().map(|((server, fate), count)| format!("{server}: {count} {fate}")).collect();
        f.write_str(&texts.join("; "))
    }
}

/// Creates Services without an address through every server, one after the other.
///
/// # Errors
/// A server does not run.
pub async fn create_through_every_server(
    case: &mut Case,
    prefix: &str,
    count: usize,
    ranges: [ServiceRange; 2],
) -> anyhow::Result<Fates> {
    let mut fates = Fates::default();
    for mut client in case.clients()? {
        for index in 0..count {
            let operation = client.create(&format!("{prefix}-{}-{index}", client.server()), &[]).await;
            *fates.0.entry((client.server(), fate(&operation, ranges))).or_default() += 1;
        }
    }
    Ok(fates)
}

fn fate(operation: &Operation, [first, other]: [ServiceRange; 2]) -> Fate {
    match &operation.outcome {
        Outcome::Refused { code, reason, message } => Fate::Refused(classify(*code, reason, message)),
        Outcome::Unknown { .. } => Fate::Open,
        Outcome::Ok { .. } => match granted(operation) {
            [ip] if first.contains(*ip) => Fate::InFirst,
            [ip] if other.contains(*ip) => Fate::InOther,
            _ => Fate::Elsewhere,
        },
    }
}

/// What etcd says the cluster's ranges are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configured {
    /// The ranges of the ServiceCIDR `kubernetes`, empty without one.
    pub default_cidr: Vec<IpNet>,
    /// The range the bitmap is for.
    pub bitmap: Option<IpNet>,
    /// The addresses of the Service `kubernetes`.
    pub kubernetes: Vec<IpAddr>,
}

impl fmt::Display for Configured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |texts: Vec<String>| if texts.is_empty() { "none".to_string() } else { texts.join(",") };
        write!(
            f,
            "ServiceCIDR {}, bitmap {}, Service kubernetes {}",
            list(self.default_cidr.iter().map(ToString::to_string).collect()),
            list(self.bitmap.iter().map(ToString::to_string).collect()),
            list(self.kubernetes.iter().map(ToString::to_string).collect())
        )
    }
}

/// Reads what etcd says the cluster's ranges are.
///
/// # Errors
/// etcd does not answer, or a value does not decode.
pub async fn configured(case: &Case) -> anyhow::Result<Configured> {
    let etcd = case.plane.etcd()?;
    let services = stored_services(&etcd).await?;
    let kubernetes = services.into_iter().find(|service| service.key.name == "kubernetes");
    Ok(Configured {
        default_cidr: stored_cidr(&etcd, crate::ranges::DEFAULT).await?.map_or(Vec::new(), |cidr| cidr.cidrs),
        bitmap: primary_bitmap(&etcd).await?.map(|bitmap| bitmap.range().net()),
        kubernetes: kubernetes.map_or(Vec::new(), |service| service.ips),
    })
}

/// Creates a Service that takes a second family where the server has one.
pub async fn create_prefer_dual_stack(client: &mut Client, name: &str) -> Operation {
    let mut service = mk_service(name, &[]);
    if let Some(spec) = &mut service.spec {
        spec.ip_family_policy = Some("PreferDualStack".into());
    }
    let kind = OperationKind::CreateService { service: client.key(name), wanted: Vec::new() };
    client.create_as(kind, service).await
}

/// Tries the edits of the default ServiceCIDR that validation must refuse, as dry runs, and returns those it took:
/// only the step from one family to two is allowed (k/k PR 131263).
///
/// # Errors
/// The server gives another answer than 200 or 422.
pub async fn default_cidr_edits_refused(client: &kube::Client, dual: &[IpNet]) -> anyhow::Result<Vec<String>> {
    let api: Api<ServiceCIDR> = Api::all(client.clone());
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let texts: Vec<String> = dual.iter().map(ToString::to_string).collect();
    let (v4, v6) = (texts[0].as_str(), texts[1].as_str());
    let mut accepted = Vec::new();
    for cidrs in [vec![v4], vec![v6, v4], vec!["10.99.0.0/24", v6], vec![v4, "fd00:99::/112"]] {
        let patch = Patch::Merge(json!({"spec": {"cidrs": cidrs}}));
        match api.patch(crate::ranges::DEFAULT, &dry_run, &patch).await {
            Ok(_) => accepted.push(cidrs.join(",")),
            Err(kube::Error::Api(status)) if status.code == 422 => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(accepted)
}
