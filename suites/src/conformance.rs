//! What any cluster must do: addresses that the server chooses are unique, of a ready range, and claimed by IPAddresses.

use crate::case::Case;
use crate::observe::{count_refusals, counts_text, granted, require_only};
use harness::expect::hazard_of_dynamic_taken;
use harness::history::replay::State;
use harness::history::{Operation, ServiceKey, StoredServiceCidr};
use harness::net::ServiceRange;
use harness::record::Observed;
use harness::refusal::Refusal;
use harness::wait::{self, NotYet};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Services that each server makes.
const SERVICES: usize = 20;
/// An IPAddress is made with its Service, or by repair that is driven by events.
const IP_ADDRESS_TIMEOUT: Duration = Duration::from_secs(60);

/// Every server makes Services without naming addresses, at the same time; what they got is compared with what is listed.
///
/// # Errors
/// A server does not run, or does not list.
pub async fn dynamic_addresses(case: &mut Case) -> anyhow::Result<Observed> {
    let mut calls = tokio::task::JoinSet::new();
    for mut client in case.clients()? {
        calls.spawn(async move {
            let mut made: Vec<(ServiceKey, Operation)> = Vec::new();
            for index in 0..SERVICES {
                let name = format!("chosen-{index}-{}", client.server());
                made.push((client.key(&name), client.create(&name, &[]).await));
            }
            made
        });
    }
    let made = calls.join_all().await.concat();
    let operations: Vec<Operation> = made.iter().map(|(_, operation)| operation.clone()).collect();
    let mut observed = Observed::default();
    let refusals = count_refusals(&operations, &mut observed);
    require_only(&[Refusal::DynamicTaken, Refusal::RangeFull], &operations, &mut observed);
    if let Some(count) = refusals.get(&Refusal::DynamicTaken) {
        observed.hazards.insert(hazard_of_dynamic_taken(&case.combo.modes()?), *count);
    }
    let addresses: Vec<(&ServiceKey, IpAddr)> =
        made.iter().flat_map(|(key, operation)| granted(operation).iter().map(move |ip| (key, *ip))).collect();
    if addresses.is_empty() {
        observed.inconclusive.push(format!("no Service got an address; refused: {}", counts_text(&refusals)));
    }
    let distinct: BTreeSet<IpAddr> = addresses.iter().map(|(_, ip)| *ip).collect();
    let state = case.list().await?;
    let ranges = ready_ranges(case, &state)?;
    let in_range = distinct.iter().filter(|ip| ranges.iter().any(|range| range.can_grant(**ip))).count();
    let in_upper = distinct.iter().filter(|ip| ranges.iter().any(|range| range.dynamic_band().contains(**ip))).count();
    if in_range < distinct.len() {
        observed.wrong.push(format!("{} addresses lie in no ready range", distinct.len() - in_range));
    }
    let claimed = if case.combo.modes()?.iter().any(|mode| mode.writes_ip_addresses()) {
        await_ip_addresses(case, &addresses, &mut observed).await
    } else {
        "no server makes IPAddresses".to_string()
    };
    observed.summary = format!(
        "{} Services got {} addresses, {in_range} in a ready range, {in_upper} in its upper band; {claimed}; refused: {}",
        addresses.len(),
        distinct.len(),
        counts_text(&refusals)
    );
    Ok(observed)
}

/// The ranges that can be granted from: ready ServiceCIDRs, and the flag of servers that know none.
fn ready_ranges(case: &Case, state: &State) -> anyhow::Result<Vec<ServiceRange>> {
    let ready = |cidr: &&StoredServiceCidr| cidr.ready != Some(false) && !cidr.deleting;
    let mut nets: BTreeSet<_> =
        state.service_cidrs.values().filter(ready).flat_map(|cidr| cidr.cidrs.clone()).collect();
    for server in &case.combo.servers {
        if !server.mode()?.writes_ip_addresses() {
            nets.extend(&server.service_ranges);
        }
    }
    Ok(nets.into_iter().map(ServiceRange::new).collect::<Result<_, _>>()?)
}

/// Waits until each address has an IPAddress of the allocator that refers to its Service. An address of two Services has
/// one for either of them.
async fn await_ip_addresses(case: &Case, addresses: &[(&ServiceKey, IpAddr)], observed: &mut Observed) -> String {
    let mut owners: BTreeMap<IpAddr, Vec<&ServiceKey>> = BTreeMap::new();
    for (key, ip) in addresses {
        owners.entry(*ip).or_default().push(key);
    }
    let begin = Instant::now();
    let all_there = wait::until("the IPAddress of every address", IP_ADDRESS_TIMEOUT, async || {
        let state = case.list().await.map_err(|error| NotYet::new(error.to_string()))?;
        let claimed = |(ip, owners): &(&IpAddr, &Vec<&ServiceKey>)| {
            let object = state.ip_addresses.get(ip).filter(|object| object.managed);
            object.and_then(|object| object.parent.as_ref()).is_some_and(|parent| owners.contains(&parent))
        };
        let missing: Vec<String> = owners.iter().filter(|it| !claimed(it)).map(|(ip, _)| ip.to_string()).collect();
        if missing.is_empty() { Ok(()) } else { Err(NotYet::new(missing.join(", "))) }
    });
    match all_there.await {
        Ok(()) => format!("all with their IPAddress after {:.1} s", begin.elapsed().as_secs_f64()),
        Err(timeout) => {
            observed.wrong.push(timeout.to_string());
            "not all with their IPAddress".into()
        }
    }
}
