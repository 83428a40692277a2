//! What a broken rule looks like: the rule and the data that show it.

use super::rules::Rule;
use crate::gates::AllocatorMode;
use crate::hazard::Hazard;
use crate::history::{Micros, RangeKey, ServerId, ServiceKey};
use crate::refusal::Refusal;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Violation {
    /// Which rule.
    pub rule: Rule,
    /// The revision that broke it; 0 where no single revision did.
    pub revision: i64,
    /// When it was broken: receipt of the revision, return of the call, or the missed deadline.
    pub at: Micros,
    /// What shows it.
    pub detail: Detail,
    /// The hazards whose own conditions held around it, see `check::attribution`; empty if nothing explains it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub causes: BTreeSet<Hazard>,
}

/// The data of a violation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    /// S1: two live Services hold one address.
    Duplicate(Box<Duplicate>),
    /// S2: the first ClusterIP changed.
    AddressChanged {
        /// Which Service.
        service: ServiceKey,
        /// Its uid.
        uid: String,
        /// The address before.
        from: IpAddr,
        /// The address after, `None` when it was taken away.
        to: Option<IpAddr>,
    },
    /// S3: an address no ready range can grant.
    OutsideRanges {
        /// Who got it.
        owner: Owner,
        /// The address.
        ip: IpAddr,
        /// The ranges the server could grant from at that time.
        ready: Vec<IpNet>,
    },
    /// S3: a dynamic address from the lower band although the upper one had room.
    LowerBand {
        /// Who got it.
        owner: Owner,
        /// The address.
        ip: IpAddr,
        /// The range.
        range: IpNet,
        /// Since when the upper band had a free address without interruption.
        room_since: Micros,
    },
    /// S4: answered with success, but not stored like that.
    LostWrite {
        /// The Service, as answered.
        owner: Owner,
        /// `metadata.resourceVersion` of the answer.
        answered_revision: i64,
        /// The addresses of the answer.
        granted: Vec<IpAddr>,
        /// What is stored instead; `None` when nothing is.
        stored: Option<Vec<IpAddr>>,
    },
    /// S4: a Service was replaced by one with another uid without being deleted.
    Overwritten {
        /// Which Service.
        service: ServiceKey,
        /// The uid that vanished.
        lost_uid: String,
        /// The uid stored now.
        uid: String,
    },
    /// S5: refused, but stored.
    RefusedButStored {
        /// The Service that is stored.
        owner: Owner,
        /// Why it was refused.
        refusal: Option<Refusal>,
        /// HTTP status.
        code: u16,
    },
    /// S6: another address than asked for.
    WrongAddress {
        /// Who got it.
        owner: Owner,
        /// Asked for.
        wanted: Vec<IpAddr>,
        /// Granted.
        granted: Vec<IpAddr>,
    },
    /// S7: bit or IPAddress removed or passed on under a live Service.
    LockGivenUp {
        /// Which lock.
        lock: Lock,
        /// The address.
        ip: IpAddr,
        /// Who holds the address.
        service: ServiceKey,
        /// Its uid.
        uid: String,
    },
    /// S8: one write changed several bits while no bitmap server was there to repair.
    ManyBits {
        /// Which bitmap.
        key: RangeKey,
        /// How many bits.
        flips: u32,
        /// The first few addresses.
        sample: Vec<IpAddr>,
    },
    /// S8: the range of the bitmap was replaced while a server with the old range runs.
    RangeReplaced {
        /// Which bitmap.
        key: RangeKey,
        /// The range before.
        from: IpNet,
        /// The range after.
        to: Option<IpNet>,
        /// The server that still has the range before in its flag.
        server: ServerId,
    },
    /// S8: bytes that are no bitmap of their range.
    BitmapInvalid {
        /// Which bitmap.
        key: RangeKey,
        /// Why.
        why: String,
    },
    /// S9: a Service became visible with one of its two locks missing.
    HalfDualWrite {
        /// Who got the address.
        owner: Owner,
        /// The address.
        ip: IpAddr,
        /// Whether the bit was set.
        bit: bool,
        /// Whether an IPAddress with this Service as parent was there.
        ip_address: bool,
    },
    /// S10: a key goes back and forth.
    Fight {
        /// What is rewritten.
        key: String,
        /// How often it went back to the value before the last.
        alternations: u32,
    },
    /// E1: no IPAddress, or one with another parent.
    MissingIpAddress {
        /// The address.
        ip: IpAddr,
        /// Its owners.
        services: Vec<ServiceKey>,
        /// Since when.
        since: Micros,
    },
    /// E2: the bit of a held address is clear.
    MissingBit {
        /// The address.
        ip: IpAddr,
        /// Its owners.
        services: Vec<ServiceKey>,
        /// Since when.
        since: Micros,
    },
    /// E3: an IPAddress whose parent does not hold the address.
    OrphanIpAddress {
        /// The address.
        ip: IpAddr,
        /// Its parent.
        parent: Option<ServiceKey>,
        /// Since when.
        since: Micros,
    },
    /// E3: a bit without a Service.
    LeakedBit {
        /// The address.
        ip: IpAddr,
        /// Since when.
        since: Micros,
    },
    /// E4: nobody reported a duplicate.
    Unreported {
        /// The address.
        ip: IpAddr,
        /// Its owners.
        services: Vec<ServiceKey>,
        /// Since when.
        since: Micros,
    },
    /// E5: a server that neither became ready nor went away.
    NotReady {
        /// Which.
        server: ServerId,
        /// When it was started.
        started: Micros,
    },
    /// E6: a dynamic creation failed although an address was free as far as this server could know.
    RefusedThoughFree {
        /// The Service that was not created; its uid is empty.
        owner: Owner,
        /// Why it was refused.
        refusal: Option<Refusal>,
        /// HTTP status.
        code: u16,
        /// A range with a free address of every family the server has.
        range: IpNet,
        /// Since when that range had room without interruption.
        room_since: Micros,
    },
    /// E5: a server ended by itself before it was ready.
    ExitedAtStart {
        /// Which.
        server: ServerId,
        /// When it was started.
        started: Micros,
        /// What its log says about the reason.
        log: Vec<String>,
    },
    /// E8: an address that was asked for and refused as taken, although no Service held it from call to answer.
    RefusedWithoutOwner {
        /// The Service that was refused.
        owner: Owner,
        /// The address.
        ip: IpAddr,
        /// HTTP status.
        code: u16,
        /// Whether its bit was set at some moment of the call.
        bit: bool,
        /// Whether it had an IPAddress at some moment of the call.
        ip_address: bool,
    },
    /// S11: a Service is gone without a call that deletes it.
    Vanished {
        /// Which.
        service: ServiceKey,
        /// Its uid.
        uid: String,
    },
    /// S11: a deletion was answered with success, and the Service is stored all the same.
    DeletedButStored {
        /// Which.
        service: ServiceKey,
        /// Its uid.
        uid: String,
        /// The server that answered.
        server: ServerId,
    },
    /// S12: the locks of an address were taken in the other order.
    LockOrder {
        /// Who got the address.
        owner: Owner,
        /// The address.
        ip: IpAddr,
        /// The revision that set the bit.
        bit_revision: i64,
        /// The revision that made the IPAddress.
        ip_address_revision: i64,
        /// Which lock this version takes first.
        first: Lock,
    },
    /// E7: slower than the scenario allows.
    Slow {
        /// The Service.
        owner: Owner,
        /// How long the call took.
        took: Micros,
    },
}

impl Detail {
    /// The one address that a violation is about, if it is.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Detail::Duplicate(duplicate) => Some(duplicate.ip),
            Detail::OutsideRanges { ip, .. }
            | Detail::LowerBand { ip, .. }
            | Detail::LockGivenUp { ip, .. }
            | Detail::HalfDualWrite { ip, .. }
            | Detail::MissingIpAddress { ip, .. }
            | Detail::MissingBit { ip, .. }
            | Detail::OrphanIpAddress { ip, .. }
            | Detail::LeakedBit { ip, .. }
            | Detail::Unreported { ip, .. }
            | Detail::LockOrder { ip, .. }
            | Detail::RefusedWithoutOwner { ip, .. } => Some(*ip),
            Detail::AddressChanged { .. }
            | Detail::LostWrite { .. }
            | Detail::Overwritten { .. }
            | Detail::RefusedButStored { .. }
            | Detail::WrongAddress { .. }
            | Detail::ManyBits { .. }
            | Detail::RangeReplaced { .. }
            | Detail::BitmapInvalid { .. }
            | Detail::Fight { .. }
            | Detail::NotReady { .. }
            | Detail::ExitedAtStart { .. }
            | Detail::Vanished { .. }
            | Detail::DeletedButStored { .. }
            | Detail::RefusedThoughFree { .. }
            | Detail::Slow { .. } => None,
        }
    }
}

/// A Service with who created it through which server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// Namespace and name.
    pub service: ServiceKey,
    /// `metadata.uid`.
    pub uid: String,
    /// The creating call; `None` when no recorded call made the Service (it was planted, or is the apiserver's own).
    pub made_by: Option<MadeBy>,
}

/// The call that made a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MadeBy {
    /// Which client.
    pub client: u16,
    /// Which server.
    pub server: ServerId,
    /// How that server allocated; `None` when it was never recorded as started.
    pub mode: Option<AllocatorMode>,
    /// Whether the choice of address was left to the server.
    pub dynamic: bool,
    /// When the call was made.
    pub invoked: Micros,
    /// When it returned.
    pub returned: Micros,
}

/// One of the two things that keep an address from being given out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lock {
    /// The bit in the bitmap.
    Bit,
    /// The IPAddress object.
    IpAddress,
}

/// S1: who holds the address, since when, and what the locks said.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Duplicate {
    /// The address.
    pub ip: IpAddr,
    /// Who had it first.
    pub first: Claim,
    /// Who got it as well.
    pub second: Claim,
    /// The revision at which one of the two gave it up; `None` while both live.
    pub ended: Option<i64>,
}

/// One Service's hold on an address, and the state of both locks when it became visible.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    /// Who.
    pub owner: Owner,
    /// The call that took the address: the creation, or a later change of type or update; `None` when no recorded call
    /// did.
    #[serde(default)]
    pub taken_by: Option<MadeBy>,
    /// The revision at which the Service with the address was stored.
    pub revision: i64,
    /// When that was received.
    pub at: Micros,
    /// The locks at that revision.
    pub locks: Locks,
}

/// What bitmap and IPAddress said about an address at some revision.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Locks {
    /// Whether the bit was set.
    pub bit: bool,
    /// The revision that last changed the bit; 0 for never.
    pub bit_revision: i64,
    /// The last write of the bitmap the address belongs to; 0 when there is none.
    pub bitmap_revision: i64,
    /// Whether an IPAddress was there.
    pub ip_address: bool,
    /// The Service it named.
    pub parent: Option<ServiceKey>,
    /// The revision that last wrote or removed it; 0 for never.
    pub ip_address_revision: i64,
}
