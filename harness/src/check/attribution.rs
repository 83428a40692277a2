//! Which hazard explains a violation, decided from the violation and what the recording shows around it. A hazard whose
//! own conditions did not hold explains nothing; a violation that none explains stays unexplained and fails its case.

use super::violation::{Detail, Duplicate, Lock};
use crate::gates::AllocatorMode;
use crate::hazard::Hazard;
use crate::refusal::Refusal;
use crate::startup::{self, StartFailure};
use crate::version::Minor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// From this minor on a failed create of an IPAddress ends the search for an address instead of going on with the next
/// one (k/k PR 135499).
const STOPS_AT_ERRORS: Minor = Minor(35);
/// The last minor that knows IPAddresses only as `networking.k8s.io/v1beta1`.
const LAST_WITHOUT_V1: Minor = Minor(32);

/// Why a lock is there although no Service holds its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftBy {
    /// The Service went through a server of this mode.
    Release(AllocatorMode),
    /// A call took the lock and was refused after that.
    RefusedCall,
    /// A server was killed or stopped in the middle of the call.
    CutOffCall,
    /// Nothing in the recording says so.
    Nothing,
}

impl fmt::Display for LeftBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeftBy::Release(mode) => write!(f, "its Service went through a server that is {mode}"),
            LeftBy::RefusedCall => f.write_str("taken by a call that was refused"),
            LeftBy::CutOffCall => f.write_str("taken or left by a call that was cut off"),
            LeftBy::Nothing => f.write_str("no recorded call took or left it"),
        }
    }
}

/// The hazard of a lock that was left behind; `None` if it should not have been.
pub fn hazard_of_left(lock: Lock, left_by: LeftBy) -> Option<Hazard> {
    match (lock, left_by) {
        (_, LeftBy::CutOffCall) => Some(Hazard::CrashKeepsLock),
        (Lock::Bit, LeftBy::Release(AllocatorMode::IpAddress)) => Some(Hazard::StaleBit),
        (Lock::Bit, LeftBy::RefusedCall) => Some(Hazard::RefusedCreateKeepsBit),
        (Lock::IpAddress, LeftBy::Release(AllocatorMode::Bitmap) | LeftBy::RefusedCall) => {
            Some(Hazard::OrphanIpAddress)
        }
        (Lock::Bit, LeftBy::Release(AllocatorMode::Bitmap | AllocatorMode::DualWrite) | LeftBy::Nothing)
        | (Lock::IpAddress, LeftBy::Release(AllocatorMode::DualWrite | AllocatorMode::IpAddress) | LeftBy::Nothing) => {
            None
        }
    }
}

/// An address that is taken by its IPAddress and free by its bit, as a dual-write server may pick it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum HalfTaken {
    /// A Service of an IPAddress-only server holds it.
    ByIpAddressOnly,
    /// A Service of a dual-write server with another range holds it.
    ByOtherRange,
    /// No Service holds it: its Service went through a bitmap server.
    Orphan,
    /// An allocation or a release is between its two writes.
    InFlight,
}

/// What the recording shows around a violation.
#[derive(Debug, Clone, Default)]
pub(super) enum Around {
    /// Nothing that could explain it.
    #[default]
    Nothing,
    /// Around a duplicate.
    Duplicate(AroundDuplicate),
    /// Around a lock that was given up.
    Lock(AroundLock),
    /// Around a bitmap whose range was replaced: whether a server with the new range wrote it.
    Range { of_running_server: bool },
    /// Around a refused dynamic create.
    Refusal(AroundRefusal),
    /// Around a refused static create: the mode of the server, and who left each lock that was there.
    Static { mode: AllocatorMode, bit: Option<LeftBy>, ip_address: Option<LeftBy> },
    /// Around a failed start.
    Start(AroundStart),
}

/// Around a duplicate.
#[derive(Debug, Clone, Default)]
pub(super) struct AroundDuplicate {
    /// The bitmap was full at some moment of the second call.
    pub bitmap_full: bool,
    /// The first owner's address was granted so shortly before the second call that its IPAddress may be on its way.
    pub first_is_recent: bool,
    /// The IPAddress came into being after the first owner's bit: until then there was none.
    pub object_after_first: bool,
    /// The hazards of the explained duplicates of this address that were open.
    pub open: BTreeSet<Hazard>,
    /// The IPAddress was absent at some moment since the first of those began.
    pub object_was_absent: bool,
}

/// Around a lock that was given up under a live Service.
#[derive(Debug, Clone, Default)]
pub(super) struct AroundLock {
    /// The hazards of the explained duplicates that this Service was part of.
    pub open: BTreeSet<Hazard>,
    /// A change of type of this Service was cut off by the end of its server.
    pub change_cut_off: bool,
    /// The IPAddress named another Service a moment ago, and two servers repair IPAddresses.
    pub repaired_twice: bool,
    /// The write replaced the range of the bitmap by that of a running server.
    pub range_replaced: bool,
}

/// Around a refused dynamic create.
#[derive(Debug, Clone)]
pub(super) struct AroundRefusal {
    pub mode: AllocatorMode,
    pub minor: Minor,
    /// The server was asked to stop before the answer.
    pub stopping: bool,
    /// The bitmap has another range than the flag of this server.
    pub bitmap_of_other_range: bool,
    /// No ready ServiceCIDR has the range of the flag.
    pub default_range_going: bool,
    /// What a dual-write server may have picked.
    pub half_taken: BTreeSet<HalfTaken>,
}

/// Around a failed start.
#[derive(Debug, Clone, Copy)]
pub(super) struct AroundStart {
    pub minor: Minor,
    /// Another server answered calls meanwhile.
    pub traffic_elsewhere: bool,
    /// Something was stored as `networking.k8s.io/v1`.
    pub v1_stored: bool,
}

/// The hazards that explain a violation; none if nothing does.
pub(super) fn attribute(detail: &Detail, around: &Around) -> BTreeSet<Hazard> {
    match (detail, around) {
        (Detail::Duplicate(duplicate), Around::Duplicate(around)) => of_duplicate(duplicate, around),
        (Detail::LockGivenUp { lock, .. }, Around::Lock(around)) => of_lock(*lock, around),
        (Detail::RangeReplaced { .. }, Around::Range { of_running_server: true }) => [Hazard::DifferingRanges].into(),
        (Detail::RefusedThoughFree { refusal, .. }, Around::Refusal(around)) => of_refusal(*refusal, around),
        (Detail::RefusedWithoutOwner { .. }, Around::Static { mode, bit, ip_address }) => {
            let bit = bit.filter(|_| mode.writes_bitmap()).and_then(|left| hazard_of_left(Lock::Bit, left));
            let object = ip_address.filter(|_| mode.writes_ip_addresses());
            let object = object.and_then(|left| hazard_of_left(Lock::IpAddress, left));
            bit.into_iter().chain(object).collect()
        }
        (Detail::ExitedAtStart { log, .. }, Around::Start(around)) => of_start(log, around).into_iter().collect(),
        (
            Detail::Duplicate(_)
            | Detail::LockGivenUp { .. }
            | Detail::RangeReplaced { .. }
            | Detail::RefusedThoughFree { .. }
            | Detail::RefusedWithoutOwner { .. }
            | Detail::ExitedAtStart { .. }
            | Detail::AddressChanged { .. }
            | Detail::OutsideRanges { .. }
            | Detail::LowerBand { .. }
            | Detail::LostWrite { .. }
            | Detail::Overwritten { .. }
            | Detail::RefusedButStored { .. }
            | Detail::WrongAddress { .. }
            | Detail::ManyBits { .. }
            | Detail::BitmapInvalid { .. }
            | Detail::HalfDualWrite { .. }
            | Detail::Fight { .. }
            | Detail::MissingIpAddress { .. }
            | Detail::MissingBit { .. }
            | Detail::OrphanIpAddress { .. }
            | Detail::LeakedBit { .. }
            | Detail::Unreported { .. }
            | Detail::NotReady { .. }
            | Detail::Vanished { .. }
            | Detail::DeletedButStored { .. }
            | Detail::LockOrder { .. }
            | Detail::Slow { .. },
            _,
        ) => BTreeSet::new(),
    }
}

fn of_duplicate(duplicate: &Duplicate, around: &AroundDuplicate) -> BTreeSet<Hazard> {
    let (first, second) = (&duplicate.first, &duplicate.second);
    let (Some(first_by), Some(second_by)) = (first.taken_by, second.taken_by) else { return BTreeSet::new() };
    let (Some(first_mode), Some(second_mode)) = (first_by.mode, second_by.mode) else { return BTreeSet::new() };
    if !first_mode.shares_lock_with(second_mode) {
        return [Hazard::NoSharedLock].into();
    }
    let is_parent = second.locks.parent.as_ref() == Some(&second.owner.service);
    let falls_back = (first_mode, second_mode) == (AllocatorMode::Bitmap, AllocatorMode::DualWrite)
        && second_by.dynamic
        && around.bitmap_full
        && around.first_is_recent
        && second.locks.bit
        && second.locks.bit_revision <= first.revision
        && is_parent
        && around.object_after_first;
    if falls_back {
        return [Hazard::DualWriteFallback].into();
    }
    // While two repair loops pass the one IPAddress of a duplicate back and forth it is absent for moments, and a third
    // Service can get the address, also from a server that shares a lock with those of the other two.
    if !is_parent || around.object_was_absent { around.open.clone() } else { BTreeSet::new() }
}

fn of_lock(lock: Lock, around: &AroundLock) -> BTreeSet<Hazard> {
    let mut causes = BTreeSet::new();
    if around.change_cut_off {
        causes.insert(Hazard::ReleasedBeforeStored);
    }
    match lock {
        Lock::IpAddress => {
            causes.extend(around.open.iter().copied());
            if around.repaired_twice {
                causes.insert(Hazard::OrphanIpAddress);
            }
        }
        Lock::Bit => {
            if around.range_replaced {
                causes.insert(Hazard::DifferingRanges);
            }
        }
    }
    causes
}

fn of_refusal(refusal: Option<Refusal>, around: &AroundRefusal) -> BTreeSet<Hazard> {
    match refusal {
        Some(Refusal::DynamicTaken) if around.mode == AllocatorMode::DualWrite => {
            let hazard = |half: &HalfTaken| match half {
                HalfTaken::ByIpAddressOnly => Some(Hazard::StaleBitmapAfterDowngrade),
                HalfTaken::ByOtherRange => Some(Hazard::DifferingRanges),
                HalfTaken::Orphan => Some(Hazard::OrphanIpAddress),
                HalfTaken::InFlight => None,
            };
            around.half_taken.iter().filter_map(hazard).collect()
        }
        Some(Refusal::DynamicOutOfRange) => {
            let differing = around.bitmap_of_other_range.then_some(Hazard::DifferingRanges);
            let pinned = around.mode == AllocatorMode::DualWrite && around.default_range_going;
            let pinned = pinned.then_some(Hazard::DefaultRangePinnedByDualWrite);
            differing.into_iter().chain(pinned).collect()
        }
        Some(Refusal::RangeFull) => {
            let walks = around.stopping && around.mode.writes_ip_addresses() && around.minor < STOPS_AT_ERRORS;
            walks.then_some(Hazard::StopWalksTheRange).into_iter().collect()
        }
        Some(
            Refusal::DynamicTaken
            | Refusal::StaticTaken
            | Refusal::StaticOutOfRange
            | Refusal::NotReady
            | Refusal::Stopping
            | Refusal::AlreadyExists
            | Refusal::Conflict
            | Refusal::NotFound
            | Refusal::Forbidden
            | Refusal::FamilyNotConfigured,
        )
        | None => BTreeSet::new(),
    }
}

fn of_start(log: &[String], around: &AroundStart) -> Option<Hazard> {
    let says = |failure: StartFailure| log.iter().any(|line| startup::classify(line) == Some(failure));
    if says(StartFailure::UnreadableStorage) {
        return (around.minor <= LAST_WITHOUT_V1 && around.v1_stored).then_some(Hazard::UnreadableAfterDowngrade);
    }
    (around.traffic_elsewhere && says(StartFailure::RaceLost)).then_some(Hazard::FirstRepairPassLost)
}
