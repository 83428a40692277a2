//! Servers of different allocator modes side by side on one etcd.

use crate::combos::gate_matrix;
use harness::check::{Bounds, Lock, Sometimes};
use harness::expect::Scenario;
use harness::gates::AllocatorMode;
use harness::history::{Operation, Outcome, ServerId};
use harness::net::ServiceRange;
use harness::record::Observed;
use harness::refusal::Refusal;
use harness::wait::{self, NotYet};
use rstest_reuse::apply;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use suites::case::{self, Case};
use suites::claims::{Claim, claim_of};
use suites::observe::{count_refusals, counts_text, granted, require_only};
use suites::race;
use suites::release;

/// Addresses that every server is asked for at the same time.
const STATIC_ADDRESSES: usize = 1_000;
/// At least so many of them must really have been asked for at the same time.
const OVERLAPS_NEEDED: u64 = 900;
/// A range small enough that servers blind to each other must collide when each fills it: 126 usable addresses.
const SMALL_RANGE: &str = "10.0.0.0/25";
/// Clients per server that create without naming an address.
const DYNAMIC_CLIENTS: usize = 2;
/// The repair of an IPAddress is driven by events; a minute is far beyond its retries under load.
const IP_ADDRESS_REPAIR: Duration = Duration::from_secs(60);
/// Rounds of create, delete elsewhere, create again.
const RELEASE_ROUNDS: usize = 40;

#[apply(gate_matrix)]
#[tokio::test]
async fn same_static_ip_is_granted_once(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::SameStaticIp, combo, &[], async |case: &mut Case| {
        race::static_addresses(case, STATIC_ADDRESSES, OVERLAPS_NEEDED).await
    })
    .await
}

#[apply(gate_matrix)]
#[tokio::test]
async fn no_dynamic_ip_is_held_twice(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::DynamicPressure, combo, &[SMALL_RANGE], async |case: &mut Case| {
        // Every server asked for the whole range, so it must have been full.
        case.context.required.insert(Sometimes::RangeFull, 1);
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
        require_only(&[Refusal::RangeFull, Refusal::DynamicTaken], &operations, &mut observed);
        let all: Vec<IpAddr> = operations.iter().flat_map(|it| granted(it).iter().copied()).collect();
        let distinct: BTreeSet<&IpAddr> = all.iter().collect();
        observed.summary = format!(
            "{} Services got {} of {usable} addresses; refused: {}",
            all.len(),
            distinct.len(),
            counts_text(&refusals)
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
                let created = Instant::now();
                services.push(Made { server: client.server(), mode: *mode, name, ip: granted[0], created });
            }
        }
        let mut pending: Vec<(Made, Lock)> = Vec::new();
        for made in &services {
            pending.extend(objects_made.then(|| (made.clone(), Lock::IpAddress)));
            pending.extend((made.mode.writes_bitmap() || bits_repaired).then(|| (made.clone(), Lock::Bit)));
        }
        let (mut t1, mut t2): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        let bitmap_repair = Duration::from_micros(Bounds::default().missing_bit.0);
        let all_there = wait::until("every lock", bitmap_repair, async || {
            for (made, lock) in std::mem::take(&mut pending) {
                let claim = claim_of(&etcd, made.ip).await.map_err(|error| NotYet::new(error.to_string()))?;
                let (which, texts, there) = match lock {
                    Lock::IpAddress => ("t1", &mut t1, claim.parent.is_some_and(|parent| parent.name == made.name)),
                    Lock::Bit => ("t2", &mut t2, claim.bit),
                };
                if there {
                    let seconds = made.created.elapsed().as_secs_f64();
                    observed.measured.insert(format!("{which}_{}_{}_seconds", made.server, made.mode.id()), seconds);
                    texts.push(format!("{seconds:.2} s ({})", made.mode));
                } else {
                    pending.push((made, lock));
                }
            }
            let late = |(made, lock): &(Made, Lock)| format!("{lock:?} of {} made by {}", made.ip, made.server);
            if pending.is_empty() {
                Ok(())
            } else {
                Err(NotYet::new(pending.iter().map(late).collect::<Vec<_>>().join(", ")))
            }
        });
        if let Err(timeout) = all_there.await {
            observed.wrong.push(timeout.to_string());
        }
        for (name, seconds) in observed.measured.iter().filter(|(name, _)| name.starts_with("t1")) {
            if *seconds > IP_ADDRESS_REPAIR.as_secs_f64() {
                observed
                    .wrong
                    .push(format!("{name} is {seconds:.0}, but the repair of IPAddresses is driven by events"));
            }
        }
        t1.sort();
        t2.sort();
        // Nobody makes what nobody is there to make: a claim that shows up all the same means our model is wrong.
        for Made { server, mode, ip, .. } in &services {
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

/// A Service of the propagation scenario.
#[derive(Debug, Clone)]
struct Made {
    server: ServerId,
    mode: AllocatorMode,
    name: String,
    ip: IpAddr,
    created: Instant,
}

#[apply(gate_matrix)]
#[tokio::test]
async fn a_released_static_ip_is_free_on_every_server(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::ReleaseElsewhere, combo, &[], async |case: &mut Case| {
        release::release_elsewhere(case, RELEASE_ROUNDS).await
    })
    .await
}
