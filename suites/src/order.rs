//! Two servers that share no lock, asked for the same address one after the other: what the repair loops make in between
//! decides, and it depends on the order.

use crate::case::Case;
use crate::claims::claim_of;
use crate::observe::{count_refusals, require_only};
use crate::race::Round;
use harness::gates::AllocatorMode;
use harness::history::ServerId;
use harness::provider::Need;
use harness::record::Observed;
use harness::refusal::Refusal;
use harness::wait::{self, NotYet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Addresses of each order.
pub const ADDRESSES: usize = 10;
/// Between the two calls for one address.
const GAP: Duration = Duration::from_secs(5);

/// A bitmap server and an IPAddress-only server.
#[derive(Debug, Clone, Copy)]
pub struct BlindPair {
    bitmap: ServerId,
    ip_address: ServerId,
}

/// The first two running servers that share no lock, if there are any.
///
/// # Errors
/// A server that no release would start.
pub fn blind_pair(case: &Case) -> anyhow::Result<Option<BlindPair>> {
    let (ids, modes) = (case.plane.server_ids(), case.running_modes()?);
    let of = |mode| modes.iter().position(|it| *it == mode).map(|index| ids[index]);
    let (bitmap, ip_address) = (of(AllocatorMode::Bitmap), of(AllocatorMode::IpAddress));
    Ok(bitmap.zip(ip_address).map(|(bitmap, ip_address)| BlindPair { bitmap, ip_address }))
}

/// Asks for one half of the addresses at the IPAddress-only server first, for the other at the bitmap server first, and
/// 5 s later at the other one. Returns how many were granted twice.
///
/// The bitmap server does not see the Service of the IPAddress-only server before its next pass, every three minutes:
/// granted twice. The other way round repair has made the IPAddress within the gap: refused.
///
/// # Errors
/// A server does not run, or does not answer.
pub async fn one_after_the_other(
    case: &mut Case,
    pair: BlindPair,
    addresses: &[IpAddr],
    observed: &mut Observed,
) -> anyhow::Result<usize> {
    let (ip_address_first, bitmap_first) = addresses.split_at(addresses.len() / 2);
    let (mut bitmap, mut ip_address) = (case.client(pair.bitmap)?, case.client(pair.ip_address)?);
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    for (index, ip) in ip_address_first.iter().enumerate() {
        let first = ip_address.create(&format!("ip-address-first-{index}"), &[*ip]).await;
        forward.push(Round { ip: *ip, operations: vec![first] });
    }
    for (index, ip) in bitmap_first.iter().enumerate() {
        let first = bitmap.create(&format!("bitmap-first-{index}"), &[*ip]).await;
        backward.push(Round { ip: *ip, operations: vec![first] });
    }
    let asked = Instant::now();
    // What makes the second answer of this order is the IPAddress, and it must be there within the gap.
    let made = wait::until("the IPAddresses of what the bitmap server granted", GAP, async || {
        for (index, ip) in bitmap_first.iter().enumerate() {
            let parent = case.parent_of(*ip).await.map_err(|error| NotYet::new(error.to_string()))?;
            if parent.is_none_or(|parent| parent != bitmap.key(&format!("bitmap-first-{index}"))) {
                return Err(NotYet::new(format!("the IPAddress of {ip}")));
            }
        }
        Ok(())
    });
    if let Err(timeout) = made.await {
        observed.wrong.push(timeout.to_string());
    }
    observed.measured.insert("bitmap_first_ip_addresses_seconds".into(), asked.elapsed().as_secs_f64());
    // Of the other order the gap itself is what is tested: that nothing happens in it leaves no trace to wait for.
    tokio::time::sleep(GAP.saturating_sub(asked.elapsed())).await;
    // But whether a pass of the bitmap server fell into it shows in the bits.
    let mut passed = false;
    if case.plane.provider().has(Need::RawEtcd) {
        let etcd = case.plane.etcd()?;
        for ip in ip_address_first {
            passed |= claim_of(&etcd, *ip).await?.bit;
        }
    }
    for (index, round) in forward.iter_mut().enumerate() {
        round.operations.push(bitmap.create(&format!("bitmap-second-{index}"), &[round.ip]).await);
    }
    for (index, round) in backward.iter_mut().enumerate() {
        round.operations.push(ip_address.create(&format!("ip-address-second-{index}"), &[round.ip]).await);
    }
    let twice = |rounds: &[Round]| rounds.iter().filter(|round| round.granted() > 1).count();
    let (forward_twice, backward_twice) = (twice(&forward), twice(&backward));
    let gap = GAP.as_secs();
    if passed || (forward_twice < forward.len() && !case.plane.provider().has(Need::RawEtcd)) {
        observed.inconclusive.push(format!("a pass of the bitmap repair may have fallen into the gap of {gap} s"));
    } else if forward_twice < forward.len() {
        let count = forward.len() - forward_twice;
        observed.wrong.push(format!(
            "{count} of {} addresses of {} were refused by {} {gap} s later, before a pass of its repair",
            forward.len(),
            pair.ip_address,
            pair.bitmap
        ));
    }
    if backward_twice > 0 {
        observed.wrong.push(format!(
            "{backward_twice} of {} addresses of {} were granted again by {} {gap} s later, although they had an IPAddress",
            backward.len(),
            pair.bitmap,
            pair.ip_address
        ));
    }
    let rounds: Vec<Round> = forward.into_iter().chain(backward).collect();
    rounds.iter().for_each(|round| round.require_granted(observed));
    let operations: Vec<_> = rounds.into_iter().flat_map(|round| round.operations).collect();
    count_refusals(&operations, observed);
    require_only(&[Refusal::StaticTaken], &operations, observed);
    observed.measured.insert("ip_address_first_granted_twice_addresses".into(), forward_twice as f64);
    observed.measured.insert("bitmap_first_granted_twice_addresses".into(), backward_twice as f64);
    observed.summary += &format!(
        "; with {gap} s in between granted twice: {forward_twice} of {} IPAddress only first, {backward_twice} of {} bitmap first",
        ip_address_first.len(),
        bitmap_first.len()
    );
    Ok(forward_twice + backward_twice)
}
