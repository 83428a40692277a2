//! What a run must have seen at least sometimes for its verdict to mean anything: a race that never overlapped proves
//! nothing.

use serde::{Deserialize, Serialize};

/// Something worth having happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sometimes {
    /// Two creations through different servers were in flight at once.
    CreationsOverlapped,
    /// Two creations through different servers that asked for the same address were in flight at once.
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
    /// A server was killed while a call to it was in flight.
    KilledInFlight,
}
