//! Upgrade, downgrade, upgrade: what a cluster goes through on every path a user can take.

use crate::combos::upgrade_paths;
use harness::bitmap::AllocationBitmap;
use harness::check::{Bounds, Sometimes};
use harness::expect::Scenario;
use harness::hazard::Hazard;
use harness::history::{Operation, Outcome, ServerId, TopologyEvent};
use harness::net::ServiceRange;
use harness::record::Observed;
use harness::refusal::Refusal;
use harness::server::ServerSpec;
use harness::wait::{self, NotYet};
use rstest::rstest;
use rstest_reuse::apply;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use suites::case::{self, Case};
use suites::claims::{claim_of, missing_locks, primary_bitmap};
use suites::crash::kill_in_flight;
use suites::downgrade::downgrade;
use suites::namespaces::create_namespaces;
use suites::observe::{count_refusals, granted, require_only};
use suites::ranges;
use suites::readback::{ReadBack, read_back, replace_or_rewrite};
use suites::rolling::{Traffic, roll, start_controller_manager, start_server_under_traffic};
use suites::step::{await_locks, check_step, create_anchors};

/// Times a server is killed.
const CRASHES: usize = 4;
/// How long etcd is paused from the start of a server on: a third of the minute its start hook has.
const ETCD_PAUSE: Duration = Duration::from_secs(20);
/// Addresses raced for half way through an upgrade.
const HALF_WAY_ADDRESSES: usize = 200;
/// At least so many must really have been asked for at the same time.
const HALF_WAY_OVERLAPS: u64 = 180;
/// The range of the stale bitmap: small, so that what the bitmap misses matters.
const STALE_RANGE: &str = "10.0.0.0/24";
/// Services that nobody touches after their creation.
const UNTOUCHED: usize = 50;
/// Repair of IPAddresses is driven by events and a resync of 3 minutes.
const UNTOUCHED_TIMEOUT: Duration = Duration::from_secs(60);
/// The figures of the public report (kubernetes/kubernetes issue 136288).
const NAMESPACES: usize = 3_000;
const SERVICES_BESIDE_NAMESPACES: usize = 200;
/// `repairLoopInterval` of the bitmap repair.
const REPAIR_INTERVAL: Duration = Duration::from_secs(180);
/// What a pass may be late, or readiness later than the first pass.
const PASS_SLACK: Duration = Duration::from_secs(20);
/// The range to be replaced and its successor.
const REPLACED_RANGE: &str = "10.96.0.0/28";
const NEW_RANGE: &str = "10.97.0.0/28";
/// Services created while the default range is going.
const REPLACED_CREATES: usize = 5;

#[apply(upgrade_paths)]
#[tokio::test]
async fn a_rolling_upgrade_downgrade_upgrade_keeps_every_address(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::RollingUpgrade, combo, &[], async |case: &mut Case| {
        let (old, new) = (case.combo.servers[0].clone(), case.combo.servers[1].clone());
        roll(case, &[new.clone(), old, new]).await
    })
    .await
}

/// The other servers go on while one is away, so that three modes of one path meet.
#[rstest]
#[case::v1_32_bitmap__v1_33_dual_write("v1_32_bitmap__v1_33_dual_write")]
#[case::v1_33_dual_write__v1_34_ip_address("v1_33_dual_write__v1_34_ip_address")]
#[case::v1_36_ip_address__v1_37_ip_address("v1_36_ip_address__v1_37_ip_address")]
#[tokio::test]
async fn a_rolling_upgrade_of_three_servers_keeps_every_address(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::RollingOfThree, combo, &[], async |case: &mut Case| {
        let (old, new) = (case.combo.servers[0].clone(), case.combo.servers[1].clone());
        roll(case, &[new.clone(), old, new]).await
    })
    .await
}

/// One server that is switched on, off and on, and then off and on again: upstream stops at off, on, off.
#[rstest]
#[case::v1_33_bitmap__v1_33_dual_write("v1_33_bitmap__v1_33_dual_write")]
#[case::v1_33_bitmap__v1_33_ip_address("v1_33_bitmap__v1_33_ip_address")]
#[case::v1_33_dual_write__v1_33_ip_address("v1_33_dual_write__v1_33_ip_address")]
#[case::v1_32_bitmap__v1_32_dual_write("v1_32_bitmap__v1_32_dual_write")]
#[case::v1_34_ip_address__v1_34_as_1_33_bitmap("v1_34_ip_address__v1_34_as_1_33_bitmap")]
// The other order: what is on first initializes the locks.
#[case::v1_33_dual_write__v1_33_bitmap("v1_33_dual_write__v1_33_bitmap")]
#[case::v1_33_ip_address__v1_33_bitmap("v1_33_ip_address__v1_33_bitmap")]
#[case::v1_33_ip_address__v1_33_dual_write("v1_33_ip_address__v1_33_dual_write")]
#[tokio::test]
async fn switching_the_allocator_keeps_every_address(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::Switching, combo, &[], async |case: &mut Case| {
        let (old, new) = (case.combo.servers[0].clone(), case.combo.servers[1].clone());
        roll(case, &[new.clone(), old.clone(), new.clone(), old, new]).await
    })
    .await
}

#[rstest]
#[case::v1_32_bitmap__v1_33_dual_write__v1_34_ip_address__v1_35_ip_address__v1_36_ip_address__v1_37_ip_address(
    "v1_32_bitmap__v1_33_dual_write__v1_34_ip_address__v1_35_ip_address__v1_36_ip_address__v1_37_ip_address"
)]
#[tokio::test]
async fn a_chain_of_minors_and_back_keeps_every_address(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::Chain, combo, &[], async |case: &mut Case| {
        let up = case.combo.servers.clone();
        let there_and_back: Vec<ServerSpec> = up[1..].iter().chain(up.iter().rev().skip(1)).cloned().collect();
        roll(case, &there_and_back).await
    })
    .await
}

/// Every step is inside the supported skew; what is stored on the way up stays until it is written again.
#[rstest]
#[case::v1_32_dual_write__v1_33_dual_write("v1_32_dual_write__v1_33_dual_write")]
#[case::v1_33_dual_write__v1_34_ip_address("v1_33_dual_write__v1_34_ip_address")]
#[case::v1_32_dual_write__v1_33_dual_write__v1_34_ip_address("v1_32_dual_write__v1_33_dual_write__v1_34_ip_address")]
#[tokio::test]
async fn objects_of_a_newer_minor_are_read_on_the_way_back(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::StoredVersions, combo, &[], async |case: &mut Case| {
        let up = case.combo.servers.clone();
        let there_and_back: Vec<ServerSpec> = up[1..].iter().chain(up.iter().rev().skip(1)).cloned().collect();
        let (server, mut observed, mut seen) = (ServerId(0), Observed::default(), ReadBack::default());
        let (anchors, mut way_out) = (create_anchors(case).await?, String::new());
        for (step, target) in there_and_back.into_iter().enumerate() {
            let name = format!("{} as {}", target.version, target.mode()?);
            if let Some(written) = replace_or_rewrite(case, server, target).await? {
                observed.hazards.insert(Hazard::UnreadableAfterDowngrade, written);
                way_out =
                    format!("; {name} did not start until {written} objects were written back by the server before it");
            }
            // It stays, in the version in which this server stores it.
            let kept = case.client(server)?.create(&format!("kept-{step}"), &[]).await;
            if !matches!(kept.outcome, Outcome::Ok { .. }) {
                observed.wrong.push(format!("step {step}: {server} does not create: {:?}", kept.outcome));
            }
            check_step(case, step, &anchors, &mut observed).await?;
            seen.merge(read_back(case, step, &mut observed).await?);
        }
        observed.summary = format!("{seen}{way_out}");
        Ok(observed)
    })
    .await
}

#[rstest]
#[case::v1_33_bitmap__v1_33_bitmap("v1_33_bitmap__v1_33_bitmap")]
#[case::v1_33_dual_write__v1_33_dual_write("v1_33_dual_write__v1_33_dual_write")]
#[case::v1_33_ip_address__v1_33_ip_address("v1_33_ip_address__v1_33_ip_address")]
#[case::v1_34_ip_address__v1_34_ip_address("v1_34_ip_address__v1_34_ip_address")]
#[tokio::test]
async fn a_crash_in_the_middle_of_creates_loses_nothing(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::Crash, combo, &[], async |case: &mut Case| {
        case.context.required.insert(Sometimes::KilledInFlight, 1);
        let mut observed = Observed::default();
        let mut traffic = Traffic::start(case)?;
        let server = ServerId(0);
        let mut operations = Vec::new();
        for crash in 0..CRASHES {
            traffic.run_for_a_while().await?;
            operations.extend(kill_in_flight(case, server, crash).await?);
            traffic.leave(server);
            start_server_under_traffic(case, server, &mut observed).await?;
            traffic.join(server, case.plane.client(server)?);
        }
        traffic.run_for_a_while().await?;
        let quiet = traffic.quiet().await;
        case.journal.topology(TopologyEvent::QuietBegin);
        let etcd = case.plane.etcd()?;
        let begin = Instant::now();
        let orphans_timeout = Duration::from_micros(Bounds::default().orphan_ip_address.0);
        let gone = wait::until("the end of every orphan IPAddress", orphans_timeout, async || {
            let orphans = missing_locks(&etcd).await.map_err(|error| NotYet::new(error.to_string()))?.orphans;
            if orphans.is_empty() { Ok(()) } else { Err(NotYet::new(format!("{orphans:?}"))) }
        });
        if let Err(timeout) = gone.await {
            observed.wrong.push(timeout.to_string());
        }
        let waited = begin.elapsed().as_secs_f64();
        await_locks(case, CRASHES, &mut observed).await?;
        case.journal.topology(TopologyEvent::QuietEnd);
        drop(quiet);
        operations.extend(traffic.stop().await?);
        let finished: Vec<Operation> =
            operations.iter().filter(|it| !matches!(it.outcome, Outcome::Unknown { .. })).cloned().collect();
        count_refusals(&finished, &mut observed);
        require_only(&[], &finished, &mut observed);
        observed.measured.insert("orphans_gone_seconds".into(), waited);
        observed.summary = format!(
            "{CRASHES} crashes under {} calls, {} cut off; orphans gone after {waited:.1} s",
            operations.len(),
            operations.len() - finished.len()
        );
        Ok(observed)
    })
    .await
}

#[rstest]
#[case::v1_33_bitmap__v1_33_bitmap("v1_33_bitmap__v1_33_bitmap")]
#[case::v1_33_dual_write__v1_33_dual_write("v1_33_dual_write__v1_33_dual_write")]
#[case::v1_34_ip_address__v1_34_ip_address("v1_34_ip_address__v1_34_ip_address")]
#[tokio::test]
async fn a_pause_of_etcd_at_the_start_of_a_server_is_survived(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::EtcdPausedAtStart, combo, &[], async |case: &mut Case| {
        let mut observed = Observed::default();
        let anchors = create_anchors(case).await?;
        let server = ServerId(1);
        case.plane.stop_server(server).await?;
        let begin = Instant::now();
        let started = case.plane.start_server_while_etcd_is_paused(server, ETCD_PAUSE).await;
        let ready = begin.elapsed().as_secs_f64();
        let ended = match started {
            Ok(()) => format!("ready {:.1} s after etcd went on", ready - ETCD_PAUSE.as_secs_f64()),
            Err(error) if error.is_first_repair_pass_lost() => {
                observed.hazards.insert(Hazard::FirstRepairPassLost, 1);
                case.plane.start_server(server).await?;
                format!("gave up after {ready:.1} s; ready at its second start")
            }
            Err(error) => return Err(error.into()),
        };
        check_step(case, 1, &anchors, &mut observed).await?;
        observed.measured.insert("ready_seconds_with_pause".into(), ready);
        observed.summary = format!("etcd paused for {} s from the start of {server}: {ended}", ETCD_PAUSE.as_secs());
        Ok(observed)
    })
    .await
}

#[apply(upgrade_paths)]
#[tokio::test]
async fn the_same_static_ip_is_granted_once_half_way(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::HalfWay, combo, &[], async |case: &mut Case| {
        suites::race::static_addresses(case, HALF_WAY_ADDRESSES, HALF_WAY_OVERLAPS).await
    })
    .await
}

#[rstest]
#[case::v1_33_dual_write__v1_34_ip_address("v1_33_dual_write__v1_34_ip_address")]
#[case::v1_33_dual_write__v1_33_ip_address("v1_33_dual_write__v1_33_ip_address")]
#[case::v1_33_dual_write__v1_34_dual_write("v1_33_dual_write__v1_34_dual_write")]
#[case::v1_32_bitmap__v1_33_dual_write("v1_32_bitmap__v1_33_dual_write")]
#[tokio::test]
async fn a_downgrade_finds_a_bitmap_that_is_true(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::BitmapAfterDowngrade, combo, &[STALE_RANGE], async |case: &mut Case| {
        let downgraded = downgrade(case, false).await?;
        let mut observed = downgraded.observed;
        observed.hazards.insert(Hazard::StaleBitmapAfterDowngrade, downgraded.failed + downgraded.refused);
        Ok(observed)
    })
    .await
}

#[rstest]
#[case::v1_33_dual_write__v1_34_ip_address("v1_33_dual_write__v1_34_ip_address")]
#[case::v1_33_dual_write__v1_33_ip_address("v1_33_dual_write__v1_33_ip_address")]
#[tokio::test]
async fn a_bitmap_that_was_rebuilt_makes_a_downgrade_safe(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::BitmapRebuilt, combo, &[STALE_RANGE], async |case: &mut Case| {
        let downgraded = downgrade(case, true).await?;
        let mut observed = downgraded.observed;
        if downgraded.failed > 0 {
            observed.wrong.push(format!("{} creates failed although the bitmap was rebuilt", downgraded.failed));
        }
        observed.hazards.insert(Hazard::StaleBit, downgraded.refused);
        Ok(observed)
    })
    .await
}

#[rstest]
#[case::v1_32_bitmap__v1_33_dual_write("v1_32_bitmap__v1_33_dual_write")]
#[case::v1_33_bitmap__v1_33_dual_write("v1_33_bitmap__v1_33_dual_write")]
#[case::v1_33_bitmap__v1_33_ip_address("v1_33_bitmap__v1_33_ip_address")]
#[case::v1_33_bitmap__v1_34_ip_address("v1_33_bitmap__v1_34_ip_address")]
#[tokio::test]
async fn services_that_nobody_touches_get_their_ip_addresses(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::UntouchedServices, combo, &[], async |case: &mut Case| {
        let new = case.combo.servers[1].clone();
        let mut observed = Observed::default();
        let mut made = Vec::new();
        let mut client = case.client(ServerId(0))?;
        for index in 0..UNTOUCHED {
            made.push(client.create(&format!("untouched-{index}"), &[]).await);
        }
        if !count_refusals(&made, &mut observed).is_empty() {
            observed.wrong.push("a create before the upgrade was refused".into());
        }
        case.plane.replace_server(ServerId(0), new).await?;
        let (ready, etcd) = (Instant::now(), case.plane.etcd()?);
        let ips: Vec<IpAddr> = made.iter().flat_map(|it| granted(it).to_vec()).collect();
        let mut at_ready = None;
        let all = wait::until("an IPAddress for each Service", UNTOUCHED_TIMEOUT, async || {
            let mut missing = 0;
            for ip in &ips {
                let claim = claim_of(&etcd, *ip).await.map_err(|error| NotYet::new(error.to_string()))?;
                missing += usize::from(claim.parent.is_none());
            }
            at_ready.get_or_insert(missing);
            if missing == 0 { Ok(()) } else { Err(NotYet::new(format!("{missing} of {}", ips.len()))) }
        });
        if let Err(timeout) = all.await {
            observed.wrong.push(timeout.to_string());
        }
        // Readiness is held back until the first repair pass is done (start-service-ip-repair-controllers).
        let missing = at_ready.unwrap_or(ips.len());
        if missing > 0 {
            observed
                .wrong
                .push(format!("the server was ready while {missing} of {} IPAddresses were missing", ips.len()));
        }
        observed.measured.insert("complete_after_ready_seconds".into(), ready.elapsed().as_secs_f64());
        observed.summary =
            format!("{} of {} IPAddresses were there when the server became ready", ips.len() - missing, ips.len());
        Ok(observed)
    })
    .await
}

#[rstest]
#[case::v1_33_dual_write__v1_33_dual_write("v1_33_dual_write__v1_33_dual_write")]
#[case::v1_33_ip_address__v1_33_ip_address("v1_33_ip_address__v1_33_ip_address")]
#[case::v1_34_ip_address__v1_34_ip_address("v1_34_ip_address__v1_34_ip_address")]
#[tokio::test]
async fn the_default_range_can_be_replaced(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::ReplacedRange, combo, &[REPLACED_RANGE], async |case: &mut Case| {
        start_controller_manager(case).await?;
        let mut observed = Observed::default();
        let server = ServerId(0);
        let mut client = case.client(server)?;
        // The default ServiceCIDR can only be terminating, not gone, while an address depends on it.
        let first = client.create("before", &[]).await;
        ranges::create(&mut client, "newrange", &[NEW_RANGE]).await?;
        ranges::await_ready(&case.plane.client(server)?, "newrange", true).await?;
        ranges::delete(&mut client, ranges::DEFAULT).await?;
        ranges::await_ready(&case.plane.client(server)?, ranges::DEFAULT, false).await?;
        let bits = |bitmap: Option<AllocationBitmap>| bitmap.map_or(0, |bitmap| bitmap.len());
        let etcd = case.plane.etcd()?;
        let before = bits(primary_bitmap(&etcd).await?);
        let mut operations = vec![first];
        for index in 0..REPLACED_CREATES {
            operations.push(client.create(&format!("moved-{index}"), &[]).await);
        }
        let burned = bits(primary_bitmap(&etcd).await?) - before;
        let refusals = count_refusals(&operations, &mut observed);
        require_only(&[Refusal::DynamicOutOfRange], &operations, &mut observed);
        let failed = refusals.values().sum::<u64>();
        let new_range = ServiceRange::new(NEW_RANGE.parse()?)?;
        let moved = operations[1..].iter().flat_map(|it| granted(it)).filter(|ip| new_range.contains(**ip)).count();
        if failed as usize + moved != REPLACED_CREATES {
            observed.wrong.push(format!("{} creates got an address outside {NEW_RANGE}", REPLACED_CREATES - moved - failed as usize));
        }
        observed.hazards.insert(Hazard::DefaultRangePinnedByDualWrite, failed);
        observed.summary =
            format!("{failed} of {REPLACED_CREATES} creates failed, {moved} got an address of the new range, {burned} bits burned");
        Ok(observed)
    })
    .await
}

/// Field case 01: the first repair pass met an admission chain that did not know the namespaces yet.
#[rstest]
#[case::v1_32_bitmap__v1_33_dual_write("v1_32_bitmap__v1_33_dual_write")]
#[case::v1_33_bitmap__v1_34_ip_address("v1_33_bitmap__v1_34_ip_address")]
#[tokio::test]
async fn many_namespaces_do_not_keep_a_server_from_starting(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::ManyNamespaces, combo, &[], async |case: &mut Case| {
        let (server, new) = (ServerId(0), case.combo.servers[1].clone());
        let mut observed = Observed::default();
        create_namespaces(&case.plane.client(server)?, NAMESPACES).await?;
        let mut made = Vec::new();
        let mut client = case.client(server)?;
        for index in 0..SERVICES_BESIDE_NAMESPACES {
            made.push(client.create(&format!("beside-{index}"), &[]).await);
        }
        if !count_refusals(&made, &mut observed).is_empty() {
            observed.wrong.push("a create before the upgrade was refused".into());
        }
        let begin = Instant::now();
        // A server that ends by itself is an error here: not one restart is granted.
        case.plane.replace_server(server, new).await?;
        let ready = begin.elapsed().as_secs_f64();
        await_locks(case, 1, &mut observed).await?;
        observed.measured.insert("replaced_seconds".into(), ready);
        observed.summary = format!(
            "{NAMESPACES} namespaces, {SERVICES_BESIDE_NAMESPACES} Services: ready {ready:.1} s after the old server was told to stop, every Service has its IPAddress {:.1} s after it",
            begin.elapsed().as_secs_f64()
        );
        Ok(observed)
    })
    .await
}

/// A bit that no Service has: set by a bitmap server, and not cleared by the IPAddress-only server that deleted the
/// Service. It runs in front of the other cases, because it waits.
#[rstest]
#[case::v1_33_bitmap__v1_33_ip_address("v1_33_bitmap__v1_33_ip_address")]
#[case::v1_33_bitmap__v1_34_ip_address("v1_33_bitmap__v1_34_ip_address")]
#[tokio::test]
async fn a_leaked_bit_is_freed_on_the_third_pass(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::LeakedBit, combo, &[], async |case: &mut Case| {
        let mut observed = Observed::default();
        let leaked = leak_a_bit(case).await?;
        let freed = await_freed(case, leaked, &mut observed).await?;
        observed.summary = format!("the bit was freed {freed:.0} s after the bitmap server was ready");
        Ok(observed)
    })
    .await
}

#[rstest]
#[case::v1_33_bitmap__v1_33_ip_address("v1_33_bitmap__v1_33_ip_address")]
#[tokio::test]
async fn a_restart_begins_the_count_of_passes_anew(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::LeakedBitRestart, combo, &[], async |case: &mut Case| {
        let mut observed = Observed::default();
        let leaked = leak_a_bit(case).await?;
        // Time is what is tested: the second pass leaves no trace to wait for.
        tokio::time::sleep(REPAIR_INTERVAL + PASS_SLACK).await;
        let old = case.plane.spec(ServerId(0))?.clone();
        case.plane.replace_server(ServerId(0), old).await?;
        let freed = await_freed(case, leaked, &mut observed).await?;
        observed.summary = format!("restarted after two passes, the bit was freed {freed:.0} s after the restart");
        Ok(observed)
    })
    .await
}

/// Makes a leaked bit and leaves a bitmap server running that has just become ready: its first pass has seen it.
async fn leak_a_bit(case: &mut Case) -> anyhow::Result<IpAddr> {
    let (server, old, new) = (ServerId(0), case.combo.servers[0].clone(), case.combo.servers[1].clone());
    let leaked = suites::race::free_addresses(case, 1).await?[0];
    case.client(server)?.create("leaked", &[leaked]).await;
    case.plane.replace_server(server, new).await?;
    case.client(server)?.delete("leaked").await;
    case.plane.replace_server(server, old).await?;
    let claim = claim_of(&case.plane.etcd()?, leaked).await?;
    anyhow::ensure!(claim.bit && claim.parent.is_none(), "{leaked} must have a bit and no IPAddress, not {claim:?}");
    Ok(leaked)
}

/// Waits until the bit is cleared and returns after how many seconds; before the third pass it must not be.
async fn await_freed(case: &Case, leaked: IpAddr, observed: &mut Observed) -> anyhow::Result<f64> {
    let (begin, etcd) = (Instant::now(), case.plane.etcd()?);
    let bound = Duration::from_micros(Bounds::default().leaked_bit.0);
    let freed = wait::until("the end of a leaked bit", bound, async || {
        let claim = claim_of(&etcd, leaked).await.map_err(|error| NotYet::new(error.to_string()))?;
        if claim.bit { Err(NotYet::new(format!("the bit of {leaked}"))) } else { Ok(()) }
    });
    if let Err(timeout) = freed.await {
        observed.wrong.push(timeout.to_string());
    }
    // The first pass was before readiness, the third comes two intervals after it.
    let (after, earliest) = (begin.elapsed(), 2 * REPAIR_INTERVAL - PASS_SLACK);
    if after < earliest {
        observed.wrong.push(format!("{leaked} was freed after {after:?}, before the third pass"));
    }
    observed.measured.insert("freed_seconds".into(), after.as_secs_f64());
    Ok(after.as_secs_f64())
}
