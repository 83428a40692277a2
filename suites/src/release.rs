//! A static address that one server grants, a second one frees and a third one is asked for: what each leaves follows from
//! the modes of the three.

use crate::case::Case;
use crate::observe::{count_refusals, require_only};
use crate::race;
use crate::words::{answer, list};
use harness::gates::AllocatorMode;
use harness::hazard::Hazard;
use harness::history::{Operation, Outcome};
use harness::record::Observed;
use harness::refusal::Refusal;
use harness::wait::{self, NotYet};
use std::collections::BTreeMap;
use std::time::Duration;

/// The repair of IPAddresses is driven by events; a minute is far beyond its retries under load.
const IP_ADDRESS_TIMEOUT: Duration = Duration::from_secs(60);

/// What the create after the delete meets and leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The bit that the delete left.
    pub bit_left: bool,
    /// The IPAddress that the delete left.
    pub ip_address_left: bool,
    /// Whether the second create is refused.
    pub refused: bool,
}

impl Release {
    /// The prediction, where every Service has an IPAddress before it is deleted if some server makes any.
    pub fn predict(creator: AllocatorMode, deleter: AllocatorMode, again: AllocatorMode, objects_made: bool) -> Self {
        let bit_left = creator.writes_bitmap() && !deleter.writes_bitmap();
        let ip_address_left = objects_made && !deleter.writes_ip_addresses();
        let refused = (again.writes_bitmap() && bit_left) || (again.writes_ip_addresses() && ip_address_left);
        Release { bit_left, ip_address_left, refused }
    }

    /// What of the address counts as a hazard. What was left and then granted again has an owner again.
    pub fn hazards(self, again: AllocatorMode) -> Vec<Hazard> {
        // A dual-write server takes the bit first, and keeps it when the IPAddress is refused.
        let keeps_bit = again == AllocatorMode::DualWrite && !self.bit_left && self.ip_address_left;
        [
            (self.bit_left && self.refused, Hazard::StaleBit),
            (self.ip_address_left && self.refused, Hazard::OrphanIpAddress),
            (keeps_bit, Hazard::RefusedCreateKeepsBit),
        ]
        .into_iter()
        .filter_map(|(shows, hazard)| shows.then_some(hazard))
        .collect()
    }
}

/// Create, delete elsewhere, create again: so many rounds, each compared with its prediction.
///
/// # Errors
/// A server does not run, or nobody lists the IPAddresses.
pub async fn release_elsewhere(case: &mut Case, rounds: usize) -> anyhow::Result<Observed> {
    let (mut clients, modes) = (case.clients()?, case.running_modes()?);
    let servers = clients.len();
    let objects_made = modes.iter().any(|mode| mode.writes_ip_addresses());
    let mut observed = Observed::default();
    let hazards = [Hazard::StaleBit, Hazard::OrphanIpAddress, Hazard::RefusedCreateKeepsBit];
    let mut predicted: BTreeMap<Hazard, u64> = hazards.into_iter().map(|hazard| (hazard, 0)).collect();
    let mut maybe_orphans = 0;
    let mut refused_on: BTreeMap<String, u64> = BTreeMap::new();
    let mut operations: Vec<Operation> = Vec::new();
    let addresses = race::free_addresses(case, rounds).await?;
    let rounds = addresses.len();
    if rounds < servers.pow(2) {
        let why = format!("{rounds} free addresses in the static band, too few for every way through the servers");
        observed.inconclusive.push(why);
    }
    for (round, ip) in addresses.into_iter().enumerate() {
        let (creator, deleter, again) = (round % servers, (round + 1) % servers, (round / servers) % servers);
        let path = list([creator, deleter, again].map(|it| format!("{} ({})", clients[it].server(), modes[it])));
        let name = format!("first-{round}");
        let first = clients[creator].create(&name, &[ip]).await;
        if objects_made {
            let key = clients[creator].key(&name);
            let made = wait::until("the IPAddress of a Service", IP_ADDRESS_TIMEOUT, async || {
                match case.parent_of(ip).await {
                    Ok(Some(parent)) if parent == key => Ok(()),
                    Ok(_) => Err(NotYet::new(format!("the IPAddress of {ip}"))),
                    Err(error) => Err(NotYet::new(error.to_string())),
                }
            });
            if let Err(timeout) = made.await {
                observed.wrong.push(format!("round {round} on {path}: {timeout}"));
            }
        }
        let deleted = clients[deleter].delete(&name).await;
        for (operation, what) in [(&first, "the first create"), (&deleted, "the delete")] {
            if !matches!(operation.outcome, Outcome::Ok { .. }) {
                let said = answer(&operation.outcome);
                observed.wrong.push(format!("round {round} on {path}: {what} of {ip} was {said}"));
            }
        }
        let second = clients[again].create(&format!("second-{round}"), &[ip]).await;
        let release = Release::predict(modes[creator], modes[deleter], modes[again], objects_made);
        let refused = matches!(second.outcome, Outcome::Refused { .. });
        if refused != release.refused && !matches!(second.outcome, Outcome::Unknown { .. }) {
            let wanted = if release.refused { "refused" } else { "granted" };
            let said = answer(&second.outcome);
            observed.wrong.push(format!("round {round} on {path}: {ip} must be {wanted}, and was {said}"));
        }
        // Granted by a bitmap server, the address has an IPAddress of the wrong Service: of two servers that repair it the
        // second may delete what the first has put right.
        let repairing = modes.iter().filter(|mode| mode.writes_ip_addresses()).count();
        maybe_orphans += u64::from(release.ip_address_left && !release.refused && repairing > 1);
        for hazard in release.hazards(modes[again]) {
            *predicted.entry(hazard).or_default() += 1;
        }
        if refused {
            *refused_on.entry(path).or_default() += 1;
        }
        operations.push(second);
    }
    let refusals = count_refusals(&operations, &mut observed);
    require_only(&[Refusal::StaticTaken], &operations, &mut observed);
    observed.predicted = predicted.into_iter().map(|(hazard, count)| (hazard, (count, count))).collect();
    if let Some((_, most)) = observed.predicted.get_mut(&Hazard::OrphanIpAddress) {
        *most += maybe_orphans;
    }
    observed.summary = format!(
        "{} of {rounds} released addresses refused; {}",
        refusals.values().sum::<u64>(),
        list(refused_on.iter().map(|(path, count)| format!("{count} x on {path}")))
    );
    Ok(observed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use AllocatorMode::{Bitmap, DualWrite, IpAddress};
    use Hazard::{OrphanIpAddress, RefusedCreateKeepsBit, StaleBit};

    #[test]
    fn what_a_delete_leaves_is_refused_by_those_who_read_it() {
        #[track_caller]
        fn is(creator: AllocatorMode, deleter: AllocatorMode, again: AllocatorMode, refused: bool, hazards: &[Hazard]) {
            let release = Release::predict(creator, deleter, again, true);
            assert_eq!((release.refused, release.hazards(again).as_slice()), (refused, hazards));
        }
        is(Bitmap, IpAddress, Bitmap, true, &[StaleBit]);
        is(DualWrite, IpAddress, DualWrite, true, &[StaleBit]);
        is(DualWrite, IpAddress, IpAddress, false, &[]);
        is(IpAddress, Bitmap, IpAddress, true, &[OrphanIpAddress]);
        is(IpAddress, Bitmap, Bitmap, false, &[]);
        is(Bitmap, Bitmap, DualWrite, true, &[OrphanIpAddress, RefusedCreateKeepsBit]);
        is(IpAddress, DualWrite, DualWrite, false, &[]);
    }

    #[test]
    fn of_all_ways_only_a_deleter_that_does_not_know_a_lock_makes_a_refusal() {
        let modes = [Bitmap, DualWrite, IpAddress];
        let mut refused = 0;
        for creator in modes {
            for deleter in modes {
                for again in modes {
                    let release = Release::predict(creator, deleter, again, true);
                    assert!(!(release.bit_left && release.ip_address_left), "a deleter knows at least one lock");
                    assert_eq!(release.refused, !release.hazards(again).is_empty());
                    assert!(!release.refused || deleter != DualWrite);
                    refused += usize::from(release.refused);
                }
            }
        }
        // A bitmap deleter before 2 of 3 readers for each creator, an IPAddress-only one for two creators.
        assert_eq!(refused, 3 * 2 + 2 * 2);
        let alone = Release::predict(Bitmap, Bitmap, Bitmap, false);
        assert!(!alone.refused && alone.hazards(Bitmap).is_empty());
    }
}
