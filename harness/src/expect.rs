//! The expectation table: what a scenario must show on a combo. Scenarios ask it and contain no version rules.

use crate::check::Rule;
use crate::combo::Combo;
use crate::gates::AllocatorMode;
use crate::server::{ServerSpec, SpecError};
use crate::version::Minor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

mod scenario;

pub use scenario::Scenario;

/// A way in which a combo is not safe. Each has a stable id for reports and documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hazard {
    /// Two servers that share neither the bitmap nor the IPAddress key grant one address twice.
    NoSharedLock,
    /// A Service created by a server that sets a bit and deleted by one that does not clear it leaves the bit: the
    /// address is refused from then on.
    StaleBit,
    /// A Service whose address has an IPAddress, deleted by a bitmap server: the IPAddress stays for up to four minutes
    /// and the address is refused meanwhile.
    OrphanIpAddress,
    /// A dual-write server that finds the bitmap full looks among the IPAddresses alone, and grants the address of a
    /// Service that a bitmap server has just made and whose IPAddress is not there yet.
    DualWriteFallback,
    /// A dual-write server after a downgrade trusts a bitmap that an IPAddress-only server did not keep.
    StaleBitmapAfterDowngrade,
    /// Under dual write every dynamic address comes from the range of the flag, also when its ServiceCIDR is going.
    DefaultRangePinnedByDualWrite,
    /// A server whose `--service-cluster-ip-range` differs from that of the cluster.
    DifferingRanges,
    /// A starting server loses the race of its first repair pass against live traffic, and exits after a minute.
    FirstRepairPassLost,
    /// A change of type gives up the lock of an address before the Service is stored without it; a server that is killed
    /// or stopped in between leaves a live Service without that lock.
    ReleasedBeforeStored,
    /// An older server cannot decode objects that a newer one stored as `networking.k8s.io/v1`.
    UnreadableAfterDowngrade,
}

/// What is known about a hazard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HazardFacts {
    /// The id in reports.
    pub id: &'static str,
    /// The releases and gates it holds for.
    pub versions: &'static str,
    /// The upstream report, or "not reported".
    pub upstream: &'static str,
    /// What an admin sees and does.
    pub sentence: &'static str,
}

impl Hazard {
    /// Every hazard.
    pub const ALL: [Hazard; 10] = [
        Hazard::NoSharedLock,
        Hazard::StaleBit,
        Hazard::OrphanIpAddress,
        Hazard::DualWriteFallback,
        Hazard::StaleBitmapAfterDowngrade,
        Hazard::DefaultRangePinnedByDualWrite,
        Hazard::DifferingRanges,
        Hazard::FirstRepairPassLost,
        Hazard::ReleasedBeforeStored,
        Hazard::UnreadableAfterDowngrade,
    ];

    /// What is known about it.
    pub fn facts(self) -> HazardFacts {
        match self {
            Hazard::NoSharedLock => HazardFacts {
                id: "no-shared-lock",
                versions: "a bitmap server (1.31, 1.32, 1.33 with the gate off, or newer ones emulating that) \
                           beside 1.34 or later, or beside 1.33 with DisableAllocatorDualWrite=true",
                upstream: "kubernetes/enhancements PR 4645",
                sentence: "One ClusterIP belongs to two Services; traffic reaches either. Never run a bitmap server \
                           beside an IPAddress-only server: go through dual write.",
            },
            Hazard::StaleBit => HazardFacts {
                id: "stale-bit",
                versions: "a server that sets bits (all up to 1.33) before or beside 1.34 or later, or beside 1.33 \
                           with DisableAllocatorDualWrite=true",
                upstream: "kubernetes/kubernetes issue 136475, PR 138943",
                sentence: "A free static ClusterIP is refused with `provided IP is already allocated` by every server \
                           that reads the bitmap; a bitmap server frees it after three repair passes (6 to 9 minutes), \
                           dual-write servers alone never do.",
            },
            Hazard::OrphanIpAddress => HazardFacts {
                id: "orphan-ip-address",
                versions: "1.33 or later (1.31, 1.32 with the beta gate) beside or before a bitmap server",
                upstream: "not reported",
                sentence: "A Service deleted through a bitmap server leaves its IPAddress: servers of the new allocator \
                           refuse the address with `provided IP is already allocated`, and a dual-write server may pick \
                           it and fail, for a minute after the create if the Service went at once, else until the next \
                           resync of the repair loop, up to four minutes. Wait that long before an address is used \
                           again while versions are mixed.",
            },
            Hazard::DualWriteFallback => HazardFacts {
                id: "dual-write-fallback",
                versions: "1.31 to 1.33 with the gate on, or 1.34 with DisableAllocatorDualWrite=false, beside a \
                           bitmap server",
                upstream: "not reported",
                sentence: "When the last address of the range goes to a Service of a bitmap server, a dual-write server \
                           may grant it again within milliseconds: with the bitmap full it trusts the IPAddresses \
                           alone, and that of the new Service is only made by repair. Do not fill the range while \
                           bitmap servers and dual-write servers run together.",
            },
            Hazard::StaleBitmapAfterDowngrade => HazardFacts {
                id: "stale-bitmap-after-downgrade",
                versions: "1.34 back to 1.33; DisableAllocatorDualWrite from true back to false",
                upstream: "not reported",
                sentence: "After 1.34 (or DisableAllocatorDualWrite=true) a dual-write server finds a bitmap that misses \
                           every change since: creates fail with `provided IP is already allocated`, the more the \
                           fuller the range, and static addresses freed meanwhile are refused for ever. Before the \
                           downgrade, run a server with MultiCIDRServiceAllocator=false alone: its first repair pass \
                           makes creates work again, its third (6 to 9 minutes) frees the static addresses.",
            },
            Hazard::DefaultRangePinnedByDualWrite => HazardFacts {
                id: "default-range-pinned-by-dual-write",
                versions: "1.33, and 1.31 and 1.32 with the beta gate; not with DisableAllocatorDualWrite=true, nor \
                           1.34 and later",
                upstream: "kubernetes/website issue 51807",
                sentence: "While the ServiceCIDR `kubernetes` is being deleted, every create without an address fails \
                           with `the provided network does not match the current range` and burns a bit. Replace the \
                           default range on 1.34 or later, or with DisableAllocatorDualWrite=true.",
            },
            Hazard::DifferingRanges => HazardFacts {
                id: "differing-ranges",
                versions: "up to 1.33: bitmap servers and dual-write servers; not 1.34 and later among themselves",
                upstream: "kubernetes/kubernetes issue 114743; k3s issues 12877, 12329, 14500",
                sentence: "A server whose --service-cluster-ip-range is not that of the cluster: bitmap servers overwrite \
                           each other's range, so that creates through the others fail with `the provided network does \
                           not match the current range` until their next repair pass (3 minutes), and an upgrade from \
                           a bitmap server with a wrong flag makes the wrong range the default ServiceCIDR for good. \
                           A dual-write server grants from the cluster's range but sets no bit, so that creates \
                           through the other dual-write servers fail with `provided IP is already allocated` now and \
                           then, also after it is gone. Compare the flag of every server with the ServiceCIDR \
                           `kubernetes` before and after.",
            },
            Hazard::ReleasedBeforeStored => HazardFacts {
                id: "released-before-stored",
                versions: "1.31 to 1.37, every allocator",
                upstream: "not reported",
                sentence: "A server died while a Service was becoming ExternalName: the Service still has its address, \
                           but its bit or IPAddress is gone, and the address can be granted again until repair.",
            },
            Hazard::UnreadableAfterDowngrade => HazardFacts {
                id: "unreadable-after-downgrade",
                versions: "1.34 or later back to 1.32 by way of 1.33, where 1.32 has MultiCIDRServiceAllocator=true",
                upstream: "not reported",
                sentence: "1.34 and later store IPAddresses and ServiceCIDRs as networking.k8s.io/v1, which 1.32 does not \
                           know, and an object stays as it is stored: after 1.34 -> 1.33 -> 1.32 a 1.32 server with \
                           MultiCIDRServiceAllocator=true never gets ready (`no kind \"IPAddress\" is registered`) and \
                           exits after 60 s, again and again. On 1.33, write every IPAddress and ServiceCIDR back \
                           unchanged (a storage migration) before 1.32, or start 1.32 with the gate off.",
            },
            Hazard::FirstRepairPassLost => HazardFacts {
                id: "first-repair-pass-lost",
                versions: "1.31 to 1.37, every allocator",
                upstream: "kubernetes/kubernetes issues 130377 (bitmap), 141220; k0s issue 8246 (IPAddress)",
                sentence: "An apiserver that starts while Services come and go on another one can lose a race in its \
                           first repair pass (`already exists` for an IPAddress, `the provided resource version does \
                           not match` for the bitmap). It gives up, stays unready and exits after 60 s; its next start \
                           may succeed. Expect restarts in a rolling upgrade of a busy cluster, and give probes time.",
            },
        }
    }
}

impl Hazard {
    /// The rules, beside S1 for duplicates, that a recording of this hazard breaks.
    pub fn breaks(self) -> &'static [Rule] {
        match self {
            // The repair loop of each new-allocator server passes the one IPAddress from the one Service to the other.
            Hazard::NoSharedLock | Hazard::DualWriteFallback => &[Rule::S7],
            Hazard::StaleBit | Hazard::UnreadableAfterDowngrade => &[],
            // A create fails although addresses are free; and where two servers repair, the second one removes the
            // IPAddress that the first has just put right.
            Hazard::OrphanIpAddress => &[Rule::E6, Rule::S7],
            Hazard::StaleBitmapAfterDowngrade | Hazard::DefaultRangePinnedByDualWrite => &[Rule::E6],
            // The bitmap is emptied and given another range, and creates fail although the range of their server is free.
            Hazard::DifferingRanges => &[Rule::S7, Rule::S8, Rule::E6],
            Hazard::FirstRepairPassLost => &[Rule::E5],
            Hazard::ReleasedBeforeStored => &[Rule::S7],
        }
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().id)
    }
}

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
                [when(Hazard::StaleBit, leaves_bits), when(Hazard::OrphanIpAddress, leaves_objects)]
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
        use Hazard::{OrphanIpAddress, StaleBit};
        #[track_caller]
        fn is(modes: &[AllocatorMode], hazards: &[Hazard]) {
            let combo = Combo::new(modes.iter().map(|mode| v1_33(*mode)));
            let expected = Expectation::hazards(hazards.iter().copied());
            assert_eq!(expectation(Scenario::ReleaseElsewhere, &combo).unwrap(), expected);
        }
        is(&[Bitmap, Bitmap], &[]);
        is(&[IpAddress, IpAddress], &[]);
        is(&[DualWrite, DualWrite], &[]);
        is(&[Bitmap, DualWrite], &[OrphanIpAddress]);
        is(&[DualWrite, IpAddress], &[StaleBit]);
        is(&[IpAddress, Bitmap], &[StaleBit, OrphanIpAddress]);
    }

    #[test]
    fn every_hazard_says_its_id_as_serde_writes_it_its_versions_its_source_and_what_to_do() {
        for hazard in Hazard::ALL {
            let facts = hazard.facts();
            assert_eq!(serde_json::to_value(hazard).unwrap(), facts.id);
            assert!(
                facts.versions.contains("1.3") && facts.sentence.ends_with('.') && facts.sentence.len() > 80,
                "{facts:?}"
            );
            assert!(facts.upstream == "not reported" || facts.upstream.contains(|it: char| it.is_ascii_digit()));
        }
    }
}
