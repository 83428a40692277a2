//! A violation in words.

use super::finish::clock;
use super::violation::{Claim, Detail, Duplicate, Lock, Owner, Violation};
use crate::gates::AllocatorMode;
use crate::history::ServiceKey;
use crate::refusal::Refusal;
use ipnet::IpNet;
use std::fmt::Display;

/// What happened, in one or more plain sentences: who, when, through which server, and for a duplicate what the server
/// that gave the address out again could have known.
pub fn explain(violation: &Violation) -> String {
    let when = match violation.revision {
        0 => format!("at {}", clock(violation.at)),
        revision => format!("at revision {revision} ({})", clock(violation.at)),
    };
    match &violation.detail {
        Detail::Duplicate(duplicate) => explain_duplicate(duplicate),
        Detail::AddressChanged { service, uid, from, to } => {
            let to = to.map_or("no address".to_string(), |to| to.to_string());
            format!("{when} the first ClusterIP of Service {service} (uid {uid}) changed from {from} to {to}")
        }
        Detail::OutsideRanges { owner, ip, ready } => {
            format!("{when} {} got {ip}, which none of the ready ranges can grant ({})", named(owner), list(ready))
        }
        Detail::LowerBand { owner, ip, range, room_since } => format!(
            "{when} {} got {ip} without having asked for it; that is in the lower band of {range}, although the upper band had had room since {}",
            named(owner),
            clock(*room_since)
        ),
        Detail::LostWrite { owner, answered_revision, granted, stored } => {
            let granted = list(granted);
            let stored = stored.as_ref().map_or("no such Service is stored by then".to_string(), |ips| {
                format!("what is stored has {}, or was stored later", list(ips))
            });
            format!("{} was granted {granted} as of revision {answered_revision}, but {stored}", named(owner))
        }
        Detail::Overwritten { service, lost_uid, uid } => {
            format!("{when} Service {service} (uid {lost_uid}) was replaced by one with uid {uid} without a deletion")
        }
        Detail::RefusedButStored { owner, refusal, code } => {
            format!("{} was refused ({}), but is stored {when}", named(owner), reason(*refusal, *code))
        }
        Detail::WrongAddress { owner, wanted, granted } => {
            format!("{} asked for {} and was granted {}", named(owner), list(wanted), list(granted))
        }
        Detail::LockGivenUp { lock, ip, service, uid } => {
            let lock = match lock {
                Lock::Bit => format!("the bit of {ip} was cleared"),
                Lock::IpAddress => format!("the IPAddress {ip} was removed or passed on"),
            };
            format!("{when} {lock} while Service {service} (uid {uid}) was holding the address")
        }
        Detail::ManyBits { key, flips, sample } => format!(
            "{when} one write changed {flips} bits of the {key:?} bitmap (such as {}), with no bitmap server there to repair it",
            list(sample)
        ),
        Detail::RangeReplaced { key, from, to, server } => {
            let to = to.map_or("none".to_string(), |to: IpNet| to.to_string());
            format!("{when} the range of the {key:?} bitmap changed from {from} to {to} while {server} ran with {from}")
        }
        Detail::BitmapInvalid { key, why } => format!("{when} the {key:?} bitmap became invalid: {why}"),
        Detail::HalfDualWrite { owner, ip, bit, ip_address } => {
            let missing = match (bit, ip_address) {
                (false, false) => "neither its bit nor its IPAddress was",
                (true, false) => "its IPAddress was not",
                (false, true) | (true, true) => "its bit was not",
            };
            format!("{when} {} became visible with {ip} while {missing} written", named(owner))
        }
        Detail::Fight { key, alternations } => {
            format!("{key} went back and forth {alternations} times in one quiet phase, the last time {when}")
        }
        Detail::MissingIpAddress { ip, services, since } => {
            format!("{ip} of {} had had no IPAddress of its own since {}, still {when}", list(services), clock(*since))
        }
        Detail::MissingBit { ip, services, since } => {
            format!("the bit of {ip} of {} had been clear since {}, still {when}", list(services), clock(*since))
        }
        Detail::OrphanIpAddress { ip, parent, since } => {
            let parent = parent.as_ref().map_or("no Service".to_string(), ServiceKey::to_string);
            format!("IPAddress {ip} of {parent}, which did not hold it since {}, still existed {when}", clock(*since))
        }
        Detail::LeakedBit { ip, since } => {
            format!("the bit of {ip} had been set without a Service since {}, still {when}", clock(*since))
        }
        Detail::Unreported { ip, services, since } => format!(
            "{ip} had belonged to {} since {}, and no Event ClusterIPAlreadyAllocated said so until {}",
            list(services),
            clock(*since),
            clock(violation.at)
        ),
        Detail::NotReady { server, started } => {
            format!("{server}, started at {}, was not ready and not gone {when}", clock(*started))
        }
        Detail::RefusedThoughFree { owner, refusal, code, range, room_since } => format!(
            "{when} {} was refused an address ({}), although {range} had had a free one since {}",
            named(owner),
            reason(*refusal, *code),
            clock(*room_since)
        ),
        Detail::ExitedAtStart { server, started, log } => {
            let log =
                if log.is_empty() { "its log names no reason that is known".to_string() } else { log.join(" | ") };
            format!("{server}, started at {}, ended by itself {when} before it was ready: {log}", clock(*started))
        }
        Detail::RefusedWithoutOwner { owner, ip, code, bit, ip_address } => {
            let locks = match (bit, ip_address) {
                (true, true) => "its bit was set and it had an IPAddress",
                (true, false) => "its bit was set",
                (false, true) => "it had an IPAddress",
                (false, false) => "neither its bit was set nor had it an IPAddress",
            };
            format!("{when} {} was refused {ip} as taken (status {code}), which no Service held; {locks}", named(owner))
        }
        Detail::Vanished { service, uid } => {
            format!("{when} Service {service} (uid {uid}) was removed, and no recorded call deletes it")
        }
        Detail::DeletedButStored { service, uid, server } => {
            format!("{server} answered the deletion of Service {service} (uid {uid}) with success {when}, and it stays")
        }
        Detail::LockOrder { owner, ip, bit_revision, ip_address_revision, first } => {
            let first = match first {
                Lock::Bit => "the bit",
                Lock::IpAddress => "the IPAddress",
            };
            format!(
                "{when} {} got {ip} by bit at revision {bit_revision} and IPAddress at revision {ip_address_revision}, while this version takes {first} first",
                named(owner)
            )
        }
        Detail::Slow { owner, took } => format!("{} took {}", named(owner), clock(*took)),
    }
}

fn explain_duplicate(duplicate: &Duplicate) -> String {
    let Duplicate { ip, first, second, ended } = duplicate;
    let ended = ended.map_or("to the end of the recording".to_string(), |at| format!("until revision {at}"));
    format!(
        "{ip} belonged to two Services from revision {} {ended}. {}. {}. {}.",
        second.revision,
        took(first),
        took(second),
        relied_on(duplicate)
    )
}

fn took(claim: &Claim) -> String {
    let asked = match claim.owner.made_by {
        Some(made_by) if made_by.dynamic => ", the server having chosen it",
        Some(_) => ", having asked for it",
        None => "",
    };
    format!("{} took it at revision {} ({}){asked}", named(&claim.owner), claim.revision, clock(claim.at))
}

/// What the lock that the second server relies on said when it gave the address out.
fn relied_on(duplicate: &Duplicate) -> String {
    let (first, locks) = (&duplicate.first, &duplicate.second.locks);
    let Some((server, mode)) = duplicate.second.owner.made_by.and_then(|it| Some((it.server, it.mode?))) else {
        return "No recorded call stored the second one, so it passed by every lock".to_string();
    };
    let bit = match (locks.bitmap_revision, locks.bit_revision, locks.bit) {
        (0, _, _) => "no bitmap with a bit for this address was ever written".to_string(),
        (written, 0, _) => format!("the bitmap, last written at revision {written}, had never had that bit"),
        (written, changed, true) if changed > first.revision => {
            format!(
                "its bit was set only at revision {changed}, after the first Service (bitmap of revision {written})"
            )
        }
        (written, changed, true) => {
            format!("its bit had been set since revision {changed} all the same (bitmap of revision {written})")
        }
        (written, changed, false) => {
            format!("its bit had been clear since revision {changed} (bitmap of revision {written})")
        }
    };
    let object = match (locks.ip_address_revision, locks.ip_address, &locks.parent) {
        (0, _, _) => "no IPAddress of that name was ever written".to_string(),
        (written, true, Some(parent)) => {
            format!("the IPAddress of that name was last written at revision {written} and names {parent}")
        }
        (written, true, None) => {
            format!("the IPAddress of that name was last written at revision {written} and names no Service")
        }
        (removed, false, _) => format!("the IPAddress of that name was removed at revision {removed}"),
    };
    match mode {
        AllocatorMode::Bitmap => {
            format!("{server} ({mode}) relies on the bitmap: {bit}. It does not read IPAddresses, where {object}")
        }
        AllocatorMode::IpAddress => {
            format!("{server} ({mode}) relies on the IPAddress: {object}. It does not read the bitmap, where {bit}")
        }
        AllocatorMode::DualWrite => format!("{server} ({mode}) relies on both: {bit}; {object}"),
    }
}

fn reason(refusal: Option<Refusal>, code: u16) -> String {
    refusal.map_or_else(|| format!("status {code}"), |refusal| refusal.to_string())
}

fn named(owner: &Owner) -> String {
    let service = format!("Service {}", owner.service);
    match owner.made_by {
        None => format!("{service} (no recorded call)"),
        Some(made_by) => {
            let mode = made_by.mode.map_or("mode unknown".to_string(), |mode| mode.to_string());
            format!("{service} (client {} through {}, {mode})", made_by.client, made_by.server)
        }
    }
}

fn list<T: Display>(items: &[T]) -> String {
    match items {
        [] => "none".to_string(),
        [_, ..] => items.iter().map(T::to_string).collect::<Vec<_>>().join(", "),
    }
}
