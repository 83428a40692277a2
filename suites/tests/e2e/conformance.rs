//! What any cluster must do, also one that somebody else has made, and that a run there leaves no trace.

use crate::combos::gate_matrix;
use anyhow::Context;
use harness::existing::{Existing, ask, endpoint, namespace};
use harness::expect::Scenario;
use harness::history::{Change, Outcome};
use harness::journal::Journal;
use harness::listing;
use harness::provider::Need;
use harness::record::Observed;
use harness::{judged, recorder};
use rstest::rstest;
use rstest_reuse::apply;
use std::collections::BTreeSet;
use suites::case::{self, Case};
use suites::{conformance, existing, race, rolling};

#[apply(gate_matrix)]
#[tokio::test]
async fn addresses_that_servers_choose_are_unique_ready_and_claimed(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::ChosenAddresses, combo, &[], conformance::dynamic_addresses).await
}

/// Services of somebody else, of which the run must leave each as it is.
const FOREIGN_SERVICES: usize = 30;
/// Addresses of the race.
const STATIC_ADDRESSES: usize = 20;

/// The servers of the case play a cluster of somebody else, with Services in it, for a whole run in it.
#[rstest]
#[case::v1_33_dual_write__v1_33_dual_write("v1_33_dual_write__v1_33_dual_write")]
#[tokio::test]
async fn a_run_in_a_cluster_of_somebody_else_leaves_no_trace(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::NoTrace, combo, &[], async |case: &mut Case| {
        rolling::start_controller_manager(case).await?;
        let mut foreign = case.client(case.plane.server_ids()[0])?;
        let taken = race::free_addresses(case, FOREIGN_SERVICES).await?;
        for (index, ip) in taken.iter().enumerate() {
            let wanted = if index % 2 == 0 { vec![*ip] } else { Vec::new() };
            let created = foreign.create(&format!("foreign-{index}"), &wanted).await;
            anyhow::ensure!(matches!(created.outcome, Outcome::Ok { .. }), "{:?}", created.outcome);
        }
        let files: Vec<_> = case.plane.server_ids().into_iter().map(|id| case.plane.layout().kubeconfig(id)).collect();
        let (found, combo) = ask::find_out(endpoint::resolve(&files, &[]).await?).await?;
        let client = found.servers[0].endpoint.client().await?;
        let before = objects(&client).await?;
        let mut observed = Observed::default();
        if combo.id()? != case.combo.id()? || combo.servers[0].service_ranges != case.combo.servers[0].service_ranges {
            observed.wrong.push(format!("the servers were taken for {combo:?}"));
        }
        let (inner, granted) = run_inside(case, &found, &combo).await?;
        observed.wrong.extend(inner.wrong);
        observed.inconclusive.extend(inner.inconclusive);
        let after = objects(&client).await?;
        let changed: Vec<String> = before.symmetric_difference(&after).cloned().collect();
        if !changed.is_empty() {
            observed.wrong.push(format!("objects of others were changed, made or deleted: {}", changed.join(", ")));
        }
        let left = namespace::sweep(&client, RUN).await?;
        if !left.is_empty() {
            observed.wrong.push(format!("namespaces were left: {}", left.join(", ")));
        }
        observed.summary = format!("{} objects of others as before; inside: {}; {granted}", after.len(), inner.summary);
        Ok(observed)
    })
    .await
}

/// The id of the run inside the case.
const RUN: &str = "inside";

/// A run in the cluster, judged from its own recording.
async fn run_inside(
    case: &Case,
    found: &Existing,
    combo: &harness::combo::Combo,
) -> anyhow::Result<(Observed, String)> {
    let dir = case.plane.layout().dir.join("inside");
    std::fs::create_dir_all(&dir)?;
    let (recording, journal): (_, Journal) = recorder::open(&dir)?;
    let name = namespace::name(RUN, 1);
    let place = existing::Place { existing: found, combo, run: RUN, namespace: &name };
    let mut lacking = None;
    let driven = existing::drive(&place, &dir, journal, async |case: &mut Case| {
        lacking = case.plane.etcd().err().map(|error| error.to_string());
        let stopped = case.plane.stop_server(case.plane.server_ids()[0]).await;
        anyhow::ensure!(stopped.is_err(), "a server of somebody else was stopped");
        let chosen = conformance::dynamic_addresses(case).await?;
        let mut raced = race::static_addresses(case, STATIC_ADDRESSES, 1).await?;
        raced.wrong.extend(chosen.wrong);
        raced.inconclusive.extend(chosen.inconclusive);
        raced.summary = format!("{}; {}", chosen.summary, raced.summary);
        Ok(raced)
    });
    let (mut observed, context) = driven.await?;
    let lacking = lacking.context("etcd was reached through a kubeconfig")?;
    anyhow::ensure!(lacking.contains(&Need::RawEtcd.to_string()), "{lacking}");
    recording.close()?;
    judged::write_context(&dir, &context)?;
    let verdict = judged::judge(&dir)?;
    judged::write(&dir, &verdict)?;
    suites::observe::add_verdict(&verdict, &harness::expect::Expectation::holds(), &[], &mut observed);
    let recorded = format!("recorded {} revisions, {:?}", verdict.statistics.revisions, verdict.judgement);
    Ok((observed, recorded))
}

/// Every Service and IPAddress with the revision of its last write, and every ServiceCIDR as it is: whenever an IPAddress
/// comes or goes, kube-controller-manager writes the status of its ServiceCIDR again, with another time in it.
async fn objects(client: &kube::Client) -> anyhow::Result<BTreeSet<String>> {
    let networking = listing::Networking::of(client).await?;
    let listed = listing::list(client, networking, None).await?;
    let text = |(revision, change): &(i64, Change)| match change {
        Change::PutServiceCidr(cidr) => format!("{cidr:?}"),
        Change::PutService(_)
        | Change::PutIpAddress(_)
        | Change::PutRange(_)
        | Change::DeleteService(_)
        | Change::DeleteIpAddress(_)
        | Change::DeleteServiceCidr(_)
        | Change::DeleteRange(_) => format!("{change:?} at {revision}"),
    };
    Ok(listed.writes.iter().map(text).collect())
}
