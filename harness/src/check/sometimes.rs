//! What a run must have seen at least sometimes for its verdict to mean anything: a race that never overlapped proves
//! nothing.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Something worth having happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sometimes {
    /// Two creations through different servers were in flight at once.
    CreationsOverlapped,
    /// An address was asked for by two creations through different servers that were in flight at once; every address
    /// counts once.
    SameAddressOverlapped,
    /// A creation was refused because its address was taken.
    AddressTaken,
    /// A creation was refused because the range was full.
    RangeFull,
    /// A dynamic address came from the lower band.
    LowerBandUsed,
    /// Two live Services held one address.
    Duplicate,
    /// An Event reported a duplicate.
    DuplicateReported,
    /// An IPAddress without its Service, older than the release of an address takes, was removed.
    OrphanRepaired,
    /// A bit without a Service, older than the release of an address takes, was cleared.
    LeakRepaired,
    /// A missing bit was set by repair.
    BitRepaired,
    /// A missing IPAddress was made by repair.
    IpAddressRepaired,
    /// A creation with unknown outcome turned out to be stored.
    UnknownWasStored,
    /// A creation with unknown outcome turned out not to be stored.
    UnknownWasNotStored,
    /// A creation was granted.
    Granted,
    /// A server was killed while a call to it was in flight.
    KilledInFlight,
}

impl fmt::Display for Sometimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sometimes::CreationsOverlapped => "creations through two servers were in flight at once",
            Sometimes::SameAddressOverlapped => "two servers were asked for one address at once",
            Sometimes::AddressTaken => "a creation was refused because its address was taken",
            Sometimes::RangeFull => "a creation was refused because the range was full",
            Sometimes::LowerBandUsed => "a dynamic address came from the lower band",
            Sometimes::Duplicate => "two live Services held one address",
            Sometimes::DuplicateReported => "an Event reported a duplicate",
            Sometimes::OrphanRepaired => "an IPAddress without its Service was removed",
            Sometimes::LeakRepaired => "a bit without its Service was cleared",
            Sometimes::BitRepaired => "a missing bit was set by repair",
            Sometimes::IpAddressRepaired => "a missing IPAddress was made by repair",
            Sometimes::UnknownWasStored => "a creation with unknown outcome was stored",
            Sometimes::UnknownWasNotStored => "a creation with unknown outcome was not stored",
            Sometimes::Granted => "a creation was granted",
            Sometimes::KilledInFlight => "a server was killed with a call in flight",
        })
    }
}
