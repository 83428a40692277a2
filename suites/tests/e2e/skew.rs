//! Servers of different allocator modes side by side on one etcd.

use crate::combos::gate_matrix;
use harness::expect::{Hazard, Scenario};
use harness::gates::AllocatorMode;
use harness::history::{Operation, Outcome, ServerId};
use harness::net::ServiceRange;
use harness::record::Observed;
use harness::refusal::Refusal;
use harness::server::DEFAULT_SERVICE_RANGE;
use harness::wait::{self, NotYet};
use rstest_reuse::apply;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use suites::case::{self, Case};
use suites::claims::{Claim, claim_of};
use suites::observe::{count_refusals, duplicates, overlap, refusals_text, stored_services};

/// Addresses that every server is asked for at the same time.
const STATIC_ADDRESSES: usize = 100;
/// At least so many of them must really have been asked for at the same time.
const OVERLAPS_NEEDED: usize = 90;
/// A range small enough that servers blind to each other must collide when each fills it: 126 usable addresses.
const SMALL_RANGE: &str = "10.0.0.0/25";
/// Clients per server that create without naming an address.
const DYNAMIC_CLIENTS: usize = 2;
/// The repair of an IPAddress is driven by events; a minute is far beyond its retries under load.
const IP_ADDRESS_REPAIR: Duration = Duration::from_secs(60);
/// The bitmap repair runs every 3 minutes (`repairLoopInterval`), first at start; 20 s for the pass itself.
const BITMAP_REPAIR: Duration = Duration::from_secs(200);
/// Rounds of create, delete elsewhere, create again.
const RELEASE_ROUNDS: usize = 40;

/// Addresses of the static band that no other part of a scenario uses.
fn static_addresses(count: usize) -> anyhow::Result<Vec<IpAddr>> {
    let range = ServiceRange::new(DEFAULT_SERVICE_RANGE.parse()?)?;
    let band = range.static_band().expect("the default service range must have a static band");
    // The first ten are left out: `kubernetes` has the first, and DNS by custom the tenth.
    Ok(band.addresses().skip(10).take(count).collect())
}

#[apply(gate_matrix)]
#[tokio::test]
async fn same_static_ip_is_granted_once(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::SameStaticIp, combo, &[], async |case: &mut Case| {
        let mut clients = case.clients()?;
        let mut operations: Vec<Operation> = Vec::new();
        let (mut overlapped, mut granted_twice, mut granted_to_none) = (0, 0, 0);
        for (index, ip) in static_addresses(STATIC_ADDRESSES)?.into_iter().enumerate() {
            let mut calls = tokio::task::JoinSet::new();
            for mut client in clients.drain(..) {
                let name = format!("static-{index}-{}", client.server());
                calls.spawn(async move { (client.create(&name, &[ip]).await, client) });
            }
            let (round, returned): (Vec<_>, Vec<_>) = calls.join_all().await.into_iter().unzip();
            clients = returned;
            clients.sort_by_key(|client| client.server());
            let all_overlap = round.iter().enumerate().all(|(at, a)| round[..at].iter().all(|b| overlap(a, b)));
            overlapped += usize::from(all_overlap);
            match round.iter().filter(|it| matches!(it.outcome, Outcome::Ok { .. })).count() {
                0 => granted_to_none += 1,
                1 => {}
                _ => granted_twice += 1,
            }
            operations.extend(round);
        }
        let mut observed = Observed::default();
        let refusals = count_refusals(&operations, &mut observed);
        require_only(&[Refusal::StaticTaken], &refusals, &mut observed);
        let stored = duplicates(&stored_services(&case.plane.etcd()?).await?).len() as u64;
        if stored != granted_twice {
            observed.wrong.push(format!("{granted_twice} addresses were granted twice, but {stored} are stored twice"));
        }
        if overlapped < OVERLAPS_NEEDED {
            observed.inconclusive.push(format!("only {overlapped} of {STATIC_ADDRESSES} attempts overlapped"));
        }
        observed.hazards.insert(Hazard::NoSharedLock, granted_twice);
        observed.summary = format!(
            "{granted_twice} of {STATIC_ADDRESSES} static addresses granted twice, {granted_to_none} to nobody; {overlapped} overlapped; refused: {}",
            refusals_text(&refusals)
        );
        Ok(observed)
    })
    .await
}

#[apply(gate_matrix)]
#[tokio::test]
async fn no_dynamic_ip_is_held_twice(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::DynamicPressure, combo, &[SMALL_RANGE], async |case: &mut Case| {
        let usable = usize::try_from(ServiceRange::new(SMALL_RANGE.parse()?)?.usable().len())?;
        let mut calls = tokio::task::JoinSet::new();
        for server in case.plane.server_ids() {
            for number in 0..DYNAMIC_CLIENTS {
                let mut client = case.client(server)?;
                // Each server alone asks for every address there is.
                let attempts = usable / DYNAMIC_CLIENTS;
                calls.spawn(async move {
                    let mut operations = Vec::new();
                    for index in 0..attempts {
                        operations
                            .push(client.create(&format!("dynamic-{}-{number}-{index}", client.server()), &[]).await);
                    }
                    operations
                });
            }
        }
        let operations: Vec<Operation> = calls.join_all().await.concat();
        let mut observed = Observed::default();
        let refusals = count_refusals(&operations, &mut observed);
        require_only(&[Refusal::RangeFull, Refusal::DynamicTaken], &refusals, &mut observed);
        let services = stored_services(&case.plane.etcd()?).await?;
        let twice = duplicates(&services);
        let held: BTreeSet<IpAddr> = services.iter().flat_map(|service| service.ips.clone()).collect();
        // With every server asking for the whole range, the last address must have gone.
        if held.len() < usable && !refusals.contains_key(&Refusal::RangeFull) {
            observed.inconclusive.push(format!("only {} of {usable} addresses were given out", held.len()));
        }
        observed.hazards.insert(Hazard::NoSharedLock, twice.len() as u64);
        observed.summary = format!(
            "{} Services hold {} of {usable} addresses, {} of them held twice; refused: {}",
            services.len(),
            held.len(),
            twice.len(),
            refusals_text(&refusals)
        );
        Ok(observed)
    })
    .await
}

#[apply(gate_matrix)]
#[tokio::test]
async fn a_service_of_one_server_is_known_to_the_others(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::Propagation, combo, &[], async |case: &mut Case| {
        let modes = case.combo.modes()?;
        let objects_made = modes.iter().any(|mode| mode.writes_ip_addresses());
        let bits_repaired = modes.contains(&AllocatorMode::Bitmap);
        let etcd = case.plane.etcd()?;
        let mut observed = Observed::default();
        let mut services = Vec::new();
        for (mut client, mode) in case.clients()?.into_iter().zip(&modes) {
            let name = format!("from-{}", client.server());
            let operation = client.create(&name, &[]).await;
            count_refusals(std::slice::from_ref(&operation), &mut observed);
            if let Outcome::Ok { granted, .. } = &operation.outcome {
                services.push((client.server(), *mode, name, granted[0], Instant::now()));
            }
        }
        let (mut t1, mut t2): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        for (server, mode, name, ip, created) in &services {
            if objects_made {
                let seen = wait::until("the IPAddress", IP_ADDRESS_REPAIR, async || {
                    let claim = claim_of(&etcd, *ip).await.map_err(|error| NotYet::new(error.to_string()))?;
                    let owner = claim.parent.as_ref().map(|parent| parent.name.as_str());
                    if owner == Some(name) { Ok(()) } else { Err(NotYet::new(format!("IPAddress {ip} of {name}"))) }
                });
                match seen.await {
                    Ok(()) => record_time(&mut observed, &mut t1, "t1", *server, *mode, created.elapsed()),
                    Err(timeout) => observed.wrong.push(timeout.to_string()),
                }
            }
            if mode.writes_bitmap() || bits_repaired {
                let seen = wait::until("the bit", BITMAP_REPAIR, async || {
                    let claim = claim_of(&etcd, *ip).await.map_err(|error| NotYet::new(error.to_string()))?;
                    if claim.bit { Ok(()) } else { Err(NotYet::new(format!("the bit of {ip}"))) }
                });
                match seen.await {
                    Ok(()) => record_time(&mut observed, &mut t2, "t2", *server, *mode, created.elapsed()),
                    Err(timeout) => observed.wrong.push(timeout.to_string()),
                }
            }
        }
        // Nobody makes what nobody is there to make: a claim that shows up all the same means our model is wrong.
        for (server, mode, _, ip, _) in &services {
            let Claim { bit, parent, .. } = claim_of(&etcd, *ip).await?;
            if !objects_made && parent.is_some() {
                observed.wrong.push(format!("{ip} of {server} has an IPAddress although no server makes any"));
            }
            if !mode.writes_bitmap() && !bits_repaired && bit {
                observed.wrong.push(format!("{ip} of {server} has a bit although no server sets or repairs it"));
            }
        }
        let text = |times: &[String]| if times.is_empty() { "never".to_string() } else { times.join(", ") };
        observed.summary = format!("IPAddress after {}; bit after {}", text(&t1), text(&t2));
        Ok(observed)
    })
    .await
}

fn record_time(
    observed: &mut Observed,
    texts: &mut Vec<String>,
    which: &str,
    server: ServerId,
    mode: AllocatorMode,
    time: Duration,
) {
    observed.measured.insert(format!("{which}_{server}_{}_seconds", mode.id()), time.as_secs_f64());
    texts.push(format!("{:.2} s ({mode})", time.as_secs_f64()));
}

#[apply(gate_matrix)]
#[tokio::test]
async fn a_released_static_ip_is_free_on_every_server(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::ReleaseElsewhere, combo, &[], async |case: &mut Case| {
        let etcd = case.plane.etcd()?;
        let mut clients = case.clients()?;
        let servers = clients.len();
        let mut operations = Vec::new();
        let mut observed = Observed::default();
        let mut causes: BTreeMap<String, u64> = BTreeMap::new();
        for (round, ip) in static_addresses(RELEASE_ROUNDS)?.into_iter().enumerate() {
            let (creator, deleter, again) = (round % servers, (round + 1) % servers, (round / servers) % servers);
            let first = clients[creator].create(&format!("first-{round}"), &[ip]).await;
            let deleted = clients[deleter].delete(&format!("first-{round}")).await;
            for (operation, what) in [(&first, "the first create"), (&deleted, "the delete")] {
                if !matches!(operation.outcome, Outcome::Ok { .. }) {
                    observed.wrong.push(format!("{what} of round {round} failed: {:?}", operation.outcome));
                }
            }
            let second = clients[again].create(&format!("second-{round}"), &[ip]).await;
            if let Outcome::Refused { .. } = second.outcome {
                let path = format!("{} -> {} -> {}", first.server, deleted.server, second.server);
                match hazard_of_refusal(&claim_of(&etcd, ip).await?) {
                    Some(hazard) => {
                        *observed.hazards.entry(hazard).or_default() += 1;
                        *causes.entry(format!("{hazard} on {path}")).or_default() += 1;
                    }
                    None => *causes.entry(format!("refused on {path}, free a moment later")).or_default() += 1,
                }
            }
            operations.push(second);
        }
        let refusals = count_refusals(&operations, &mut observed);
        require_only(&[Refusal::StaticTaken], &refusals, &mut observed);
        let causes: Vec<String> = causes.iter().map(|(cause, count)| format!("{count} x {cause}")).collect();
        observed.summary = format!(
            "{} of {RELEASE_ROUNDS} released addresses refused; {}",
            refusals.values().sum::<u64>(),
            if causes.is_empty() { "no cause".to_string() } else { causes.join(", ") }
        );
        Ok(observed)
    })
    .await
}

/// What keeps an address that no Service holds from being granted.
fn hazard_of_refusal(claim: &Claim) -> Option<Hazard> {
    match (&claim.parent, claim.bit) {
        (Some(_), _) => Some(Hazard::OrphanIpAddress),
        (None, true) => Some(Hazard::StaleBit),
        (None, false) => None,
    }
}

/// A refusal of another kind than the scenario is about is wrong.
fn require_only(allowed: &[Refusal], seen: &BTreeMap<Refusal, u64>, observed: &mut Observed) {
    for (kind, count) in seen.iter().filter(|(kind, _)| !allowed.contains(kind)) {
        observed.wrong.push(format!("{count} calls were refused with {kind}, which this scenario cannot cause"));
    }
}
