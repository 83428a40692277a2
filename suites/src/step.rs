//! What must hold after every step of a path: anchors, defaults, locks, and creates and deletes through every server.

use crate::case::Case;
use crate::claims::{default_cidr_exists, missing_locks, stored_services};
use crate::observe::{count_refusals, granted};
use harness::expect::hazard_of_dynamic_taken;
use harness::gates::AllocatorMode;
use harness::history::{Outcome, ServerId};
use harness::net::ServiceRange;
use harness::record::Observed;
use harness::refusal::Refusal;
use harness::wait::{self, NotYet};
use std::net::IpAddr;
use std::time::Duration;

/// Services that no traffic touches; their addresses must outlive every step.
const ANCHORS: usize = 6;
/// A lock that repair makes is there within seconds, the first bitmap pass included.
const LOCKS_TIMEOUT: Duration = Duration::from_secs(60);

/// Services that no traffic touches, with the addresses they must keep.
pub type Anchors = Vec<(String, Vec<IpAddr>)>;

/// Creates the Services that no traffic touches, and returns them with their addresses.
///
/// # Errors
/// The first server does not run.
pub async fn create_anchors(case: &mut Case) -> anyhow::Result<Anchors> {
    let mut anchors = Vec::new();
    let mut client = case.client(ServerId(0))?;
    for index in 0..ANCHORS {
        let name = format!("anchor-{index}");
        let operation = client.create(&name, &[]).await;
        anchors.push((name, granted(&operation).to_vec()));
    }
    Ok(anchors)
}

/// The anchors and the Service `kubernetes` have the addresses they had.
///
/// # Errors
/// etcd does not answer.
pub async fn check_anchors(
    case: &Case,
    step: usize,
    anchors: &[(String, Vec<IpAddr>)],
    observed: &mut Observed,
) -> anyhow::Result<()> {
    let services = stored_services(&case.plane.etcd()?).await?;
    for (name, ips) in anchors {
        let now = services.iter().find(|service| service.key.name == *name).map(|service| service.ips.clone());
        if now.as_ref() != Some(ips) {
            observed.wrong.push(format!("step {step}: {name} had {ips:?} and has {now:?}"));
        }
    }
    let kubernetes = services.iter().find(|service| service.key.name == "kubernetes").map(|it| it.ips.clone());
    let first = ServiceRange::new(case.combo.servers[0].service_ranges[0])?.kubernetes_service_ip();
    if kubernetes != Some(vec![first]) {
        observed.wrong.push(format!("step {step}: the Service kubernetes has {kubernetes:?} instead of {first}"));
    }
    Ok(())
}

/// After a step: the anchors have their addresses, every server creates and deletes, the defaults are intact.
///
/// # Errors
/// etcd does not answer, or a server does not run.
pub async fn check_step(
    case: &mut Case,
    step: usize,
    anchors: &[(String, Vec<IpAddr>)],
    observed: &mut Observed,
) -> anyhow::Result<()> {
    check_anchors(case, step, anchors, observed).await?;
    let makes_objects = case.running_modes()?.iter().any(|mode| mode.writes_ip_addresses());
    if makes_objects && !default_cidr_exists(&case.plane.etcd()?).await? {
        observed.wrong.push(format!("step {step}: the default ServiceCIDR is missing or being deleted"));
    }
    await_locks(case, step, observed).await?;
    for mut client in case.clients()? {
        let name = format!("probe-{step}-{}", client.server());
        let created = client.create(&name, &[]).await;
        match &created.outcome {
            Outcome::Ok { .. } => {
                let deleted = client.delete(&name).await;
                if !matches!(deleted.outcome, Outcome::Ok { .. }) {
                    observed.wrong.push(format!(
                        "step {step}: {} does not delete: {:?}",
                        client.server(),
                        deleted.outcome
                    ));
                }
            }
            Outcome::Refused { .. } | Outcome::Unknown { .. } => {
                let seen = count_refusals(std::slice::from_ref(&created), observed);
                if seen.contains_key(&Refusal::DynamicTaken) {
                    *observed.hazards.entry(hazard_of_dynamic_taken(&case.combo.modes()?)).or_default() += 1;
                } else {
                    observed.wrong.push(format!(
                        "step {step}: {} does not create: {:?}",
                        client.server(),
                        created.outcome
                    ));
                }
            }
        }
    }
    Ok(())
}

/// In the quiet phase every Service gets the locks that some server makes: IPAddresses by events, bits by the first pass
/// of a bitmap server.
///
/// # Errors
/// A server that no release would start, or no etcd.
pub async fn await_locks(case: &Case, step: usize, observed: &mut Observed) -> anyhow::Result<()> {
    let modes = case.running_modes()?;
    let objects = modes.iter().any(|mode| mode.writes_ip_addresses());
    // Beside an IPAddress-only server the bitmap follows only every three minutes.
    let bits = modes.contains(&AllocatorMode::Bitmap) && !modes.contains(&AllocatorMode::IpAddress);
    let etcd = case.plane.etcd()?;
    let complete = wait::until("the locks of every Service", LOCKS_TIMEOUT, async || {
        let missing = missing_locks(&etcd).await.map_err(|error| NotYet::new(error.to_string()))?;
        let wanted = [(objects, &missing.without_ip_address, "IPAddress"), (bits, &missing.without_bit, "bit")];
        let texts: Vec<String> = wanted
            .into_iter()
            .filter(|(wanted, missing, _)| *wanted && !missing.is_empty())
            .map(|(_, missing, what)| format!("{what} of {missing:?}"))
            .collect();
        if texts.is_empty() { Ok(()) } else { Err(NotYet::new(texts.join(", "))) }
    });
    if let Err(timeout) = complete.await {
        observed.wrong.push(format!("step {step}: {timeout}"));
    }
    Ok(())
}
