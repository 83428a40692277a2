//! The hazards: the known ways in which a combination of apiservers is not safe, each with its reference.

use serde::{Deserialize, Serialize};
use std::fmt;

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
    /// A create that takes the bit and is then refused leaves its bit: the address is refused from then on.
    RefusedCreateKeepsBit,
    /// A server that is killed between a lock and the Service, or between the Service and a lock, leaves the lock.
    CrashKeepsLock,
    /// A server that has stopped listening cannot reach itself, and walks the whole range for one create.
    StopWalksTheRange,
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
    pub const ALL: [Hazard; 13] = [
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
        Hazard::RefusedCreateKeepsBit,
        Hazard::CrashKeepsLock,
        Hazard::StopWalksTheRange,
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
            Hazard::RefusedCreateKeepsBit => HazardFacts {
                id: "refused-create-keeps-bit",
                versions: "1.31 to 1.33 with the gate on, or 1.34 with DisableAllocatorDualWrite=false",
                upstream: "kubernetes/kubernetes issue 136475, PR 138943",
                sentence: "A dual-write server takes the bit first and does not give it back when the IPAddress is refused: \
                           the address is refused with `provided IP is already allocated` on every server that reads the \
                           bitmap, although no Service and no IPAddress has it. Dual-write servers never repair it; a \
                           bitmap server frees it after three repair passes (6 to 9 minutes).",
            },
            Hazard::CrashKeepsLock => HazardFacts {
                id: "crash-keeps-lock",
                versions: "1.31 to 1.37, every allocator",
                upstream: "not reported",
                sentence: "A server that was killed between the lock and the Service left the lock: the address cannot be \
                           used until repair removes the IPAddress (up to 4.5 minutes) or a bitmap server clears the bit \
                           (6 to 9 minutes); beside dual-write servers alone the bit stays for good.",
            },
            Hazard::StopWalksTheRange => HazardFacts {
                id: "stop-walks-the-range",
                versions: "1.31 to 1.34 with the gate on, wherever the IPAddress is created first or alone",
                upstream: "kubernetes/kubernetes issue 135333 (the swallowed error); the stop is not reported",
                sentence: "A server that is stopped with a create in flight has stopped listening, cannot reach itself, and \
                           tries every address of the range: the stop takes many seconds, the log grows by megabytes, and \
                           the client is told `range is full`. Ask another server again; expect slow stops in wide ranges.",
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

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
