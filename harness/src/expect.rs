//! The expectation table: what a scenario must show on a combo. Scenarios ask it and contain no version rules.

use crate::combo::Combo;
use crate::gates::AllocatorMode;
use crate::hazard::Hazard;
use crate::server::{ServerSpec, SpecError};
use crate::version::Minor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

mod scenario;

pub use scenario::Scenario;

/// What a scenario must show: each of `hazards` at least once, and no other but those that are `possible`. Without any,
/// everything holds. A hazard that does not show is a failure as much as one that was not expected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation {
    /// The hazards that must show.
    pub hazards: BTreeSet<Hazard>,
    /// The hazards that need a race of a few milliseconds, so that a run without them says nothing.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub possible: BTreeSet<Hazard>,
}

impl Expectation {
    /// Nothing goes wrong.
    pub fn holds() -> Self {
        Expectation::default()
    }

    /// These hazards show.
    pub fn hazards(hazards: impl IntoIterator<Item = Hazard>) -> Self {
        Expectation { hazards: hazards.into_iter().collect(), possible: BTreeSet::new() }
    }

    /// The same, and these may show as well.
    #[must_use]
    pub fn or_possibly(mut self, hazards: impl IntoIterator<Item = Hazard>) -> Self {
        self.possible.extend(hazards);
        self
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |hazards: &BTreeSet<Hazard>| hazards.iter().map(|it| it.facts().id).collect::<Vec<_>>().join(", ");
        match (self.hazards.is_empty(), self.possible.is_empty()) {
            (true, true) => f.write_str("holds"),
            (true, false) => write!(f, "holds, or hazard {}", names(&self.possible)),
            (false, true) => write!(f, "hazard {}", names(&self.hazards)),
            (false, false) => write!(f, "hazard {}, possibly {}", names(&self.hazards), names(&self.possible)),
        }
    }
}

/// The hazard behind a dynamic create that is refused because its address is taken. A dual-write server picks a free bit
/// and finds an IPAddress: one that a bitmap server's delete left behind, or one that the bitmap never heard of.
pub fn hazard_of_dynamic_taken(modes: &[AllocatorMode]) -> Hazard {
    if modes.contains(&AllocatorMode::Bitmap) { Hazard::OrphanIpAddress } else { Hazard::StaleBitmapAfterDowngrade }
}

/// The table.
///
/// # Errors
/// A combo with a server that no release would start.
pub fn expectation(scenario: Scenario, combo: &Combo) -> Result<Expectation, SpecError> {
    let modes = combo.modes()?;
    let when = |hazard, shows: bool| shows.then_some(hazard);
    Ok(match scenario {
        Scenario::SameStaticIp | Scenario::HalfWay => {
            Expectation::hazards(when(Hazard::NoSharedLock, combo.lacks_shared_lock()?))
        }
        Scenario::DynamicPressure => {
            let falls_back = modes.contains(&AllocatorMode::Bitmap) && modes.contains(&AllocatorMode::DualWrite);
            Expectation::hazards(when(Hazard::NoSharedLock, combo.lacks_shared_lock()?))
                .or_possibly(when(Hazard::DualWriteFallback, falls_back))
        }
        // The planted duplicate itself is checked by name, so that it cannot excuse another one.
        Scenario::Propagation | Scenario::PlantedDuplicate | Scenario::UntouchedServices | Scenario::NoTrace => {
            Expectation::holds()
        }
        // Few Services in a wide range: servers that are blind to each other seldom choose the same address.
        Scenario::ChosenAddresses => Expectation::holds()
            .or_possibly(when(Hazard::NoSharedLock, combo.lacks_shared_lock()?))
            .or_possibly(when(hazard_of_dynamic_taken(&modes), dynamic_may_be_taken(&modes))),
        Scenario::Crash => {
            Expectation::holds().or_possibly([Hazard::FirstRepairPassLost, Hazard::ReleasedBeforeStored])
        }
        Scenario::EtcdPausedAtStart => Expectation::holds().or_possibly([Hazard::FirstRepairPassLost]),
        Scenario::ManyNamespaces | Scenario::LeakedBit | Scenario::LeakedBitRestart | Scenario::SecondFamily => {
            Expectation::holds()
        }
        Scenario::StoredVersions => {
            let unreadable = |server: &ServerSpec| server.version.minor >= Minor(34);
            let reads_back = |server: &ServerSpec| server.version.minor >= Minor(33);
            let (first, last) = (combo.servers.first(), combo.servers.last());
            let shows = last.is_some_and(unreadable) && !first.is_some_and(reads_back);
            Expectation::hazards(when(Hazard::UnreadableAfterDowngrade, shows))
        }
        // Where a ServiceCIDR `kubernetes` is there, it wins over the flag; but a dual-write server with another flag has
        // no bitmap of that range, and sets no bit.
        Scenario::DifferingRanges | Scenario::ShortLivedWrongRange => {
            Expectation::hazards(when(Hazard::DifferingRanges, modes.iter().all(|it| it.writes_bitmap())))
        }
        Scenario::LostRange => {
            Expectation::hazards(when(Hazard::DifferingRanges, modes.first() == Some(&AllocatorMode::Bitmap)))
        }
        // Few Services in a wide range: what the stale bitmap and the missing lock do is possible, but rare.
        Scenario::RollingUpgrade | Scenario::RollingOfThree => Expectation::holds()
            .or_possibly(when(hazard_of_dynamic_taken(&modes), dynamic_may_be_taken(&modes)))
            .or_possibly(when(Hazard::NoSharedLock, combo.lacks_shared_lock()?))
            .or_possibly([Hazard::FirstRepairPassLost, Hazard::ReleasedBeforeStored]),
        // One server at a time: only the bitmap can be stale.
        Scenario::Switching | Scenario::Chain => {
            Expectation::holds().or_possibly(when(hazard_of_dynamic_taken(&modes), dynamic_may_be_taken(&modes)))
        }
        Scenario::BitmapAfterDowngrade => {
            Expectation::hazards(when(Hazard::StaleBitmapAfterDowngrade, bitmap_goes_stale(&modes)))
        }
        // Its first pass sets the bits that are missing; the leaked ones it clears only on the third.
        Scenario::BitmapRebuilt => Expectation::hazards([Hazard::StaleBit]),
        Scenario::ReplacedRange => {
            Expectation::hazards(when(Hazard::DefaultRangePinnedByDualWrite, modes.contains(&AllocatorMode::DualWrite)))
        }
        // What one server claims, another deletes without giving it back, because it does not know that kind of claim.
        Scenario::ReleaseElsewhere => {
            let leaves_bits = modes.contains(&AllocatorMode::IpAddress) && modes.iter().any(|it| it.writes_bitmap());
            let leaves_objects =
                modes.contains(&AllocatorMode::Bitmap) && modes.iter().any(|it| it.writes_ip_addresses());
            Expectation::hazards(
                [
                    when(Hazard::StaleBit, leaves_bits),
                    when(Hazard::OrphanIpAddress, leaves_objects),
                    when(Hazard::RefusedCreateKeepsBit, leaves_objects && modes.contains(&AllocatorMode::DualWrite)),
                ]
                .into_iter()
                .flatten(),
            )
        }
    })
}

/// Whether the bitmap misses what happened while the new server ran: the old one reads it, the new one does not write
/// it, and the old one has no repair loop that rebuilds it (only bitmap servers have).
fn bitmap_goes_stale(modes: &[AllocatorMode]) -> bool {
    modes.first() == Some(&AllocatorMode::DualWrite) && modes.last() == Some(&AllocatorMode::IpAddress)
}

/// Whether a server that checks both locks runs beside or after one that knows only one of them.
fn dynamic_may_be_taken(modes: &[AllocatorMode]) -> bool {
    modes.contains(&AllocatorMode::DualWrite) && modes.iter().any(|mode| *mode != AllocatorMode::DualWrite)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::combo::{Combo, gate_matrix, v1_33};

    #[test]
    fn duplicates_are_expected_exactly_where_there_is_no_shared_lock() {
        for combo in gate_matrix() {
            for scenario in [Scenario::SameStaticIp, Scenario::DynamicPressure] {
                let expected = expectation(scenario, &combo).unwrap().hazards.contains(&Hazard::NoSharedLock);
                assert_eq!(expected, combo.lacks_shared_lock().unwrap());
            }
        }
    }

    #[test]
    fn a_claim_is_left_behind_where_one_server_makes_it_and_another_does_not_know_it() {
        use AllocatorMode::{Bitmap, DualWrite, IpAddress};
        use Hazard::{OrphanIpAddress, RefusedCreateKeepsBit, StaleBit};
        #[track_caller]
        fn is(modes: &[AllocatorMode], hazards: &[Hazard]) {
            let combo = Combo::new(modes.iter().map(|mode| v1_33(*mode)));
            let expected = Expectation::hazards(hazards.iter().copied());
            assert_eq!(expectation(Scenario::ReleaseElsewhere, &combo).unwrap(), expected);
        }
        is(&[Bitmap, Bitmap], &[]);
        is(&[IpAddress, IpAddress], &[]);
        is(&[DualWrite, DualWrite], &[]);
        is(&[Bitmap, DualWrite], &[OrphanIpAddress, RefusedCreateKeepsBit]);
        is(&[DualWrite, IpAddress], &[StaleBit]);
        is(&[IpAddress, Bitmap], &[StaleBit, OrphanIpAddress]);
    }
}
