//! Creates after a downgrade that finds an old bitmap, and the formula that predicts how many fail.

use crate::case::Case;
use crate::claims::primary_bitmap;
use crate::observe::{count_refusals, granted, require_only};
use anyhow::Context;
use harness::bitmap::AllocationBitmap;
use harness::gates::Gate;
use harness::history::ServerId;
use harness::record::Observed;
use harness::refusal::Refusal;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Services before the upgrade, of these deleted after it, new ones after it, and creates after the downgrade: the
/// figures of the first observation by hand.
const STALE: (usize, usize, usize, usize) = (40, 20, 100, 60);

/// What creates met after a downgrade.
pub struct Downgraded {
    /// What the scenario saw so far.
    pub observed: Observed,
    /// Creates without an address that failed.
    pub failed: u64,
    /// Creates with an address that was free and refused.
    pub refused: u64,
}

/// Creates before an upgrade, deletes and creates after it, and creates after the downgrade; a bitmap server may rebuild
/// the bitmap in between.
///
/// # Errors
/// A server does not start, or etcd does not answer.
pub async fn downgrade(case: &mut Case, rebuild: bool) -> anyhow::Result<Downgraded> {
    let (old, new) = (case.combo.servers[0].clone(), case.combo.servers[1].clone());
    let (before, deleted, after, again) = STALE;
    let server = ServerId(0);
    let mut observed = Observed::default();
    let mut setup = Vec::new();
    let mut client = case.client(server)?;
    for index in 0..before {
        setup.push(client.create(&format!("before-{index}"), &[]).await);
    }
    let freed: Vec<IpAddr> = setup[..deleted].iter().flat_map(|it| granted(it).to_vec()).collect();
    case.plane.replace_server(server, new).await?;
    let mut client = case.client(server)?;
    for index in 0..deleted {
        setup.push(client.delete(&format!("before-{index}")).await);
    }
    for index in 0..after {
        setup.push(client.create(&format!("after-{index}"), &[]).await);
    }
    let given: BTreeSet<IpAddr> = setup[before + deleted..].iter().flat_map(|it| granted(it).to_vec()).collect();
    if !count_refusals(&setup, &mut observed).is_empty() {
        observed.wrong.push("a create or delete before the downgrade was refused".into());
    }
    if rebuild {
        // Ready only after the first pass of its repair loop.
        let bitmap_server = old.clone().gate(Gate::MultiCidrServiceAllocator, false);
        case.plane.replace_server(server, bitmap_server).await?;
    }
    case.plane.replace_server(server, old).await?;
    let bitmap = primary_bitmap(&case.plane.etcd()?).await?.context("the bitmap must exist after a downgrade")?;
    let predicted = predicted_failures(&bitmap, &given, again);
    let mut client = case.client(server)?;
    let mut dynamic = Vec::new();
    for index in 0..again {
        dynamic.push(client.create(&format!("again-{index}"), &[]).await);
    }
    // Only those that nobody holds by now: a dynamic create may have been given one.
    let taken: BTreeSet<IpAddr> = dynamic.iter().flat_map(|it| granted(it).to_vec()).chain(given).collect();
    let mut statics = Vec::new();
    for (index, ip) in freed.iter().filter(|ip| !taken.contains(ip)).enumerate() {
        statics.push(client.create(&format!("static-{index}"), &[*ip]).await);
    }
    let dynamic_refused = count_refusals(&dynamic, &mut observed);
    let static_refused = count_refusals(&statics, &mut observed);
    require_only(&[Refusal::DynamicTaken], &dynamic, &mut observed);
    require_only(&[Refusal::StaticTaken], &statics, &mut observed);
    let failed = dynamic_refused.values().sum::<u64>();
    let refused = static_refused.values().sum::<u64>();
    let (mean, deviation) = predicted;
    if (failed as f64 - mean).abs() > 4.0 * deviation + 1.0 {
        observed.wrong.push(format!("{failed} creates failed, {mean:.1} +- {deviation:.1} were predicted"));
    }
    observed.measured.insert("predicted_failures".into(), mean);
    observed.summary = format!(
        "after the downgrade {failed} of {again} creates failed ({mean:.1} +- {deviation:.1} predicted), and {refused} of {} freed static addresses were refused",
        statics.len()
    );
    Ok(Downgraded { observed, failed, refused })
}

/// Mean and standard deviation of the creates that fail: each picks a free bit, succeeds if no IPAddress is there, and
/// uses the bit up in both cases. That is drawing without replacement from the free bits.
fn predicted_failures(bitmap: &AllocationBitmap, given: &BTreeSet<IpAddr>, draws: usize) -> (f64, f64) {
    // Picks come from the upper band while it has room, as it has here.
    let free: Vec<IpAddr> = bitmap.range().dynamic_band().addresses().filter(|ip| !bitmap.contains(*ip)).collect();
    let bad = free.iter().filter(|ip| given.contains(ip)).count() as f64;
    let (n, total) = (draws as f64, free.len() as f64);
    let share = bad / total;
    // The picks scan forward from a random start, so that runs of bad addresses draw more picks; the hypergeometric
    // deviation is a floor, doubled here for that.
    let deviation = 2.0 * (n * share * (1.0 - share) * (total - n) / (total - 1.0)).max(0.0).sqrt();
    (n * share, deviation)
}
