//! Servers whose `--service-cluster-ip-range` is not the same: on purpose one after the other, or by mistake.

use harness::expect::Scenario;
use harness::gates::AllocatorMode;
use harness::hazard::Hazard;
use harness::history::{Outcome, ServerId};
use harness::net::ServiceRange;
use harness::record::Observed;
use harness::refusal::Refusal;
use harness::wait::{self, NotYet};
use ipnet::IpNet;
use rstest::rstest;
use rstest_reuse::{apply, template};
use std::time::{Duration, Instant};
use suites::case::{self, Case};
use suites::claims::missing_locks;
use suites::flags::{
    Fate, configured, create_prefer_dual_stack, create_through_every_server, default_cidr_edits_refused,
};
use suites::ranges;
use suites::step::{check_anchors, create_anchors};

/// The range of every cluster here before anything changes.
const FIRST: &str = "10.31.0.0/24";
/// The range of the server that has another one.
const OTHER: &str = "10.43.0.0/24";
/// The second family that is added.
const SECOND_FAMILY: &str = "fd00:10:31::/112";
/// Creates through each server where ranges differ: the figure of the public report (case 08).
const CREATES: usize = 20;
/// The bitmap repair passes every 3 minutes (`repairLoopInterval`).
const HEAL_TIMEOUT: Duration = Duration::from_secs(200);

/// Two servers of one kind: what differs is the flag alone.
#[template]
#[rstest::rstest]
#[case::v1_33_bitmap__v1_33_bitmap("v1_33_bitmap__v1_33_bitmap")]
#[case::v1_33_dual_write__v1_33_dual_write("v1_33_dual_write__v1_33_dual_write")]
#[case::v1_33_ip_address__v1_33_ip_address("v1_33_ip_address__v1_33_ip_address")]
#[case::v1_34_ip_address__v1_34_ip_address("v1_34_ip_address__v1_34_ip_address")]
pub fn uniform_pairs(#[case] combo: &str) {}

fn range(text: &str) -> anyhow::Result<ServiceRange> {
    Ok(ServiceRange::new(text.parse()?)?)
}

/// Field case 07, and the way back.
#[apply(uniform_pairs)]
#[tokio::test]
async fn a_second_family_is_added_one_server_at_a_time(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::SecondFamily, combo, &[FIRST], async |case: &mut Case| {
        let mut observed = Observed::default();
        let (single, dual): (Vec<IpNet>, Vec<IpNet>) =
            (vec![FIRST.parse()?], vec![FIRST.parse()?, SECOND_FAMILY.parse()?]);
        let has_cidr = case.combo.modes()?.iter().all(|mode| mode.writes_ip_addresses());
        let anchors = create_anchors(case).await?;
        let mut texts = Vec::new();
        let steps = [(0, &dual), (1, &dual), (0, &single), (0, &dual)];
        for (step, (server, flag)) in steps.into_iter().enumerate() {
            let server = ServerId(server);
            let spec = case.plane.spec(server)?.clone().ranges(flag);
            case.plane.replace_server(server, spec).await?;
            if has_cidr {
                // A range once added stays, also when a server does not know it any more.
                ranges::await_cidrs(&case.plane.etcd()?, ranges::DEFAULT, &dual).await?;
            }
            check_anchors(case, step, &anchors, &mut observed).await?;
            for mut client in case.clients()? {
                let wanted = case.plane.spec(client.server())?.service_ranges.len();
                let name = format!("prefer-{step}-{}", client.server());
                let operation = create_prefer_dual_stack(&mut client, &name).await;
                match &operation.outcome {
                    Outcome::Ok { granted, .. } if granted.len() == wanted => {}
                    outcome => observed.wrong.push(format!(
                        "step {step}: a PreferDualStack Service through {} with {wanted} ranges: {outcome:?}",
                        client.server()
                    )),
                }
            }
            texts.push(configured(case).await?.to_string());
        }
        if has_cidr {
            let accepted = default_cidr_edits_refused(&case.plane.client(ServerId(0))?, &dual).await?;
            observed.wrong.extend(accepted.iter().map(|edit| format!("the ServiceCIDR kubernetes took {edit}")));
        }
        observed.summary = texts.pop().unwrap_or_default();
        Ok(observed)
    })
    .await
}

/// Field case 08.
#[apply(uniform_pairs)]
#[tokio::test]
async fn servers_with_different_ranges_stay_in_one(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::DifferingRanges, combo, &[FIRST], async |case: &mut Case| {
        let odd = ServerId(1);
        let spec = case.plane.spec(odd)?.clone().ranges(&[OTHER.parse()?]);
        case.plane.replace_server(odd, spec).await?;
        meet(case, "differ").await
    })
    .await
}

/// Field case 10.
#[rstest]
#[case::v1_32_bitmap__v1_33_dual_write("v1_32_bitmap__v1_33_dual_write")]
#[case::v1_33_dual_write__v1_34_ip_address("v1_33_dual_write__v1_34_ip_address")]
#[case::v1_33_bitmap__v1_34_ip_address("v1_33_bitmap__v1_34_ip_address")]
#[case::v1_34_ip_address__v1_35_ip_address("v1_34_ip_address__v1_35_ip_address")]
#[tokio::test]
async fn an_upgrade_that_loses_the_range_keeps_the_old_one(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::LostRange, combo, &[FIRST], async |case: &mut Case| {
        let new = case.combo.servers[1].clone().ranges(&[OTHER.parse()?]);
        create_anchors(case).await?;
        case.plane.replace_server(ServerId(0), new).await?;
        meet(case, "lost").await
    })
    .await
}

/// Field case 11: a bootstrap or recovery server beside a cluster that works.
#[apply(uniform_pairs)]
#[tokio::test]
async fn a_short_lived_server_with_the_wrong_range_leaves_nothing(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::ShortLivedWrongRange, combo, &[FIRST], async |case: &mut Case| {
        let anchors = create_anchors(case).await?;
        let before = configured(case).await?;
        let spec = case.plane.spec(ServerId(0))?.clone().ranges(&[OTHER.parse()?]);
        let helper = case.plane.add_server(spec).await?;
        let mut observed = meet(case, "during").await?;
        case.plane.stop_server(helper).await?;
        let gone = Instant::now();
        // A bitmap server puts its range back with its next pass; the new allocator has nothing to put back.
        let healed = wait::until("the ranges from before", HEAL_TIMEOUT, async || {
            let now = configured(case).await.map_err(|error| NotYet::new(error.to_string()))?;
            if now == before { Ok(()) } else { Err(NotYet::new(format!("{before}; now {now}"))) }
        });
        if let Err(timeout) = healed.await {
            observed.wrong.push(timeout.to_string());
        }
        let healed = gone.elapsed().as_secs_f64();
        check_anchors(case, 1, &anchors, &mut observed).await?;
        let after = create_through_every_server(case, "after", CREATES, [range(FIRST)?, range(OTHER)?]).await?;
        // The Services of a dual-write helper have no bit; a create that picks one of theirs is refused and sets it.
        let unset = observed.hazards.get(&Hazard::DifferingRanges).copied().unwrap_or(0);
        let taken = after.count(|fate| fate == Fate::Refused(Some(Refusal::DynamicTaken)));
        if after.count(|fate| fate != Fate::InFirst) > taken || taken > unset || (taken > 0 && !all_dual_write(case)?) {
            observed.wrong.push(format!("after the helper was gone: {after}"));
        }
        observed.measured.insert("healed_seconds".into(), healed);
        observed.summary =
            format!("{}; ranges as before {healed:.1} s after it was gone, then {after}", observed.summary);
        Ok(observed)
    })
    .await
}

/// Creates where a server has another range: whatever leaves the range of the cluster, or is refused, is the hazard.
async fn meet(case: &mut Case, prefix: &str) -> anyhow::Result<Observed> {
    let mut observed = Observed::default();
    let fates = create_through_every_server(case, prefix, CREATES, [range(FIRST)?, range(OTHER)?]).await?;
    let open = fates.count(|fate| fate == Fate::Open);
    let unknown = fates.count(|fate| matches!(fate, Fate::Refused(None) | Fate::Elsewhere));
    if open > 0 {
        observed.inconclusive.push(format!("{open} creates have an unknown outcome"));
    }
    if unknown > 0 {
        observed.wrong.push(format!("unexplained answers: {fates}"));
    }
    let strayed = fates.count(|fate| fate != Fate::InFirst && fate != Fate::Open);
    let without_bit = match all_dual_write(case)? {
        true => missing_locks(&case.plane.etcd()?).await?.without_bit.len() as u64,
        false => 0,
    };
    observed.hazards.insert(Hazard::DifferingRanges, strayed + without_bit);
    observed.summary = format!("{fates}; {}", configured(case).await?);
    if without_bit > 0 {
        observed.summary = format!("{}; {without_bit} addresses without a bit", observed.summary);
    }
    Ok(observed)
}

/// Whether every running server writes both locks, so that an address without a bit is a lock that is missing.
fn all_dual_write(case: &Case) -> anyhow::Result<bool> {
    Ok(case.running_modes()?.iter().all(|mode| *mode == AllocatorMode::DualWrite))
}
