//! The same static address asked of every server at once.

use crate::case::Case;
use crate::observe::{count_refusals, counts_text, overlap, require_only};
use harness::check::Sometimes;
use harness::history::{Operation, Outcome};
use harness::net::{ServiceRange, free_static};
use harness::record::Observed;
use harness::refusal::Refusal;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Free addresses of the static band of the service range, at most so many.
///
/// # Errors
/// There is none, or a server does not list what is in use.
pub async fn free_addresses(case: &Case, count: usize) -> anyhow::Result<Vec<IpAddr>> {
    let state = case.list().await?;
    let services = state.services.values().flat_map(|service| service.ips.iter().copied());
    let in_use: BTreeSet<IpAddr> = services.chain(state.ip_addresses.keys().copied()).collect();
    let ranges = case.combo.servers.iter().filter_map(|server| server.service_ranges.first());
    let ranges: Vec<ServiceRange> = ranges.map(|net| ServiceRange::new(*net)).collect::<Result<_, _>>()?;
    let free = free_static(&ranges, &in_use, count);
    anyhow::ensure!(!free.is_empty(), "no address of the static band of {} is free", ranges[0]);
    Ok(free)
}

/// Asks all servers for the same addresses, one after the other; a lone endpoint is asked by two clients. What was
/// granted twice is for the judge to say. Of so many addresses so many must really have been asked for at the same time,
/// and in proportion of fewer where fewer are free.
///
/// # Errors
/// A server does not run.
pub async fn static_addresses(case: &mut Case, count: usize, overlaps: u64) -> anyhow::Result<Observed> {
    let addresses = free_addresses(case, count).await?;
    let asked = addresses.len();
    let required = (overlaps * asked as u64).div_ceil(count as u64);
    let mut overlapped = 0;
    let mut clients = case.clients()?;
    let alone = clients.len() == 1;
    if alone {
        clients.push(case.client(clients[0].server())?);
    } else {
        case.context.required.insert(Sometimes::SameAddressOverlapped, required);
    }
    let mut operations: Vec<Operation> = Vec::new();
    let (mut granted_twice, mut granted_to_none) = (0, 0);
    for (index, ip) in addresses.into_iter().enumerate() {
        let mut calls = tokio::task::JoinSet::new();
        for (number, mut client) in clients.drain(..).enumerate() {
            let name = format!("static-{index}-{number}-{}", client.server());
            calls.spawn(async move { (client.create(&name, &[ip]).await, client) });
        }
        let (round, returned): (Vec<_>, Vec<_>) = calls.join_all().await.into_iter().unzip();
        clients = returned;
        match round.iter().filter(|it| matches!(it.outcome, Outcome::Ok { .. })).count() {
            0 => granted_to_none += 1,
            1 => {}
            _ => granted_twice += 1,
        }
        overlapped += u64::from(round.iter().zip(&round[1..]).any(|(a, b)| overlap(a, b)));
        operations.extend(round);
    }
    let mut observed = Observed::default();
    if alone && overlapped < required {
        observed
            .inconclusive
            .push(format!("{overlapped} of {asked} addresses were asked for at once, {required} required"));
    }
    let refusals = count_refusals(&operations, &mut observed);
    require_only(&[Refusal::StaticTaken], &operations, &mut observed);
    observed.summary = format!(
        "{granted_twice} of {asked} static addresses granted twice, {granted_to_none} to nobody; refused: {}",
        counts_text(&refusals)
    );
    Ok(observed)
}
