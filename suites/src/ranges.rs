//! ServiceCIDRs of a scenario.

use crate::claims::stored_cidr;
use harness::client::root_cause;
use harness::etcd::Etcd;
use harness::history::Outcome;
use harness::traffic::Client;
use harness::wait::{self, NotYet};
use ipnet::IpNet;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Api;
use std::time::Duration;

/// The name of the default ServiceCIDR (`DefaultServiceCIDRName`).
pub const DEFAULT: &str = "kubernetes";
/// Conditions are set within seconds; a deletion waits 10 s (`deletionGracePeriod`).
const CONDITION_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates a ServiceCIDR.
///
/// # Errors
/// It is not a list of CIDRs, or the server refuses it.
pub async fn create(client: &mut Client, name: &str, cidrs: &[&str]) -> anyhow::Result<()> {
    let cidrs: Vec<IpNet> = cidrs.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    require_ok(&client.create_service_cidr(name, &cidrs).await.outcome, name)
}

/// Deletes a ServiceCIDR; it stays, terminating, while addresses depend on it.
///
/// # Errors
/// The server refuses it.
pub async fn delete(client: &mut Client, name: &str) -> anyhow::Result<()> {
    require_ok(&client.delete_service_cidr(name).await.outcome, name)
}

fn require_ok(outcome: &Outcome, name: &str) -> anyhow::Result<()> {
    match outcome {
        Outcome::Ok { .. } => Ok(()),
        Outcome::Refused { .. } | Outcome::Unknown { .. } => anyhow::bail!("ServiceCIDR {name}: {outcome:?}"),
    }
}

/// Waits until the `Ready` condition of a ServiceCIDR is set to this value.
///
/// # Errors
/// It is not in time.
pub async fn await_ready(client: &kube::Client, name: &str, ready: bool) -> anyhow::Result<()> {
    let api: Api<ServiceCIDR> = Api::all(client.clone());
    let wanted = if ready { "True" } else { "False" };
    let reached = wait::until(format!("ServiceCIDR {name} Ready={wanted}"), CONDITION_TIMEOUT, async || {
        let object = api.get(name).await.map_err(|error| NotYet::new(root_cause(&error)))?;
        let conditions = object.status.and_then(|status| status.conditions).unwrap_or_default();
        let seen = conditions.into_iter().find(|it| it.type_ == "Ready").map(|it| it.status);
        if seen.as_deref() == Some(wanted) { Ok(()) } else { Err(NotYet::new(format!("the condition, now {seen:?}"))) }
    });
    Ok(reached.await?)
}

/// Waits until a ServiceCIDR has these ranges.
///
/// # Errors
/// It does not in time.
pub async fn await_cidrs(etcd: &Etcd, name: &str, cidrs: &[IpNet]) -> anyhow::Result<()> {
    let reached = wait::until(format!("ServiceCIDR {name} with {cidrs:?}"), CONDITION_TIMEOUT, async || {
        let stored = stored_cidr(etcd, name).await.map_err(|error| NotYet::new(error.to_string()))?;
        let seen = stored.map(|cidr| cidr.cidrs);
        if seen.as_deref() == Some(cidrs) { Ok(()) } else { Err(NotYet::new(format!("the ranges, now {seen:?}"))) }
    });
    Ok(reached.await?)
}
