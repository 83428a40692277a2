//! What is remembered about each address. Every write concerns one, so it is looked up once, by a hash that costs next
//! to nothing, and known by its place from then on.

use super::attribution::LeftBy;
use super::occupancy::Use;
use super::world::LifeId;
use crate::history::{Micros, ServiceKey};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;
use std::ops::{Index, IndexMut};

/// The IPAddress of an address.
#[derive(Debug, Clone)]
pub(super) struct IpAddressObject {
    pub parent: Option<ServiceKey>,
    pub managed: bool,
}

/// What an address is waiting for, by eventual rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    MissingIpAddress,
    MissingBit,
    OrphanIpAddress,
    LeakedBit,
}

impl Wait {
    pub const ALL: [Wait; 4] = [Wait::MissingIpAddress, Wait::MissingBit, Wait::OrphanIpAddress, Wait::LeakedBit];
}

/// Not waiting.
pub(super) const NEVER: Micros = Micros(u64::MAX);

/// Everything remembered about one address.
#[derive(Debug)]
pub(super) struct Address {
    pub ip: IpAddr,
    pub owners: Vec<LifeId>,
    /// Its use as band room is counted.
    pub usage: Use,
    pub bit: bool,
    pub bit_revision: i64,
    /// When the bit last changed.
    pub bit_at: Micros,
    /// When the bit was last cleared.
    pub bit_cleared: Option<Micros>,
    /// Whether a Service has held the address since the bit was set.
    pub bit_was_held: bool,
    pub ip_address: Option<IpAddressObject>,
    pub ip_address_revision: i64,
    /// When the IPAddress last came into being or was removed, and the revision.
    pub object_at: Micros,
    pub object_since: i64,
    /// When the IPAddress was last removed.
    pub object_removed: Option<Micros>,
    /// Whether a Service has held the address since the IPAddress came into being.
    pub object_was_held: bool,
    /// When the IPAddress last stopped to name a Service that does not hold the held address.
    pub wrong_parent_until: Option<Micros>,
    /// When a Service last took the address, and when one last left it.
    pub taken_at: Micros,
    pub left_at: Option<Micros>,
    /// Through whom it was left.
    pub left_by: LeftBy,
    /// Since when the address is taken by its IPAddress and free by its bit.
    pub half_since: Option<Micros>,
    /// Until when the release of the bit by a Service that is gone may come.
    pub bit_release_until: Micros,
    /// The same for the IPAddress.
    pub ip_address_release_until: Micros,
    /// Whether two Services have held it since it was last free.
    pub doubled: bool,
    /// Since when it waits, by [`Wait`]; [`NEVER`] when it does not.
    pub since: [Micros; 4],
    /// Whether the missed deadline is already a violation, by [`Wait`].
    pub reported: [bool; 4],
}

impl Address {
    fn new(ip: IpAddr) -> Self {
        Address {
            ip,
            owners: Vec::new(),
            usage: Use::default(),
            bit: false,
            bit_revision: 0,
            bit_at: Micros(0),
            bit_cleared: None,
            bit_was_held: false,
            ip_address: None,
            ip_address_revision: 0,
            object_at: Micros(0),
            object_since: 0,
            object_removed: None,
            object_was_held: false,
            wrong_parent_until: None,
            taken_at: Micros(0),
            left_at: None,
            left_by: LeftBy::Nothing,
            half_since: None,
            bit_release_until: Micros(0),
            ip_address_release_until: Micros(0),
            doubled: false,
            since: [NEVER; 4],
            reported: [false; 4],
        }
    }
}

/// The place of an address in [`Addresses`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AddressId(u32);

/// Every address seen so far. None is ever forgotten: a Service range is finite.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    places: HashMap<IpAddr, AddressId, BuildHasherDefault<AddressHasher>>,
    all: Vec<Address>,
}

impl Addresses {
    /// The place of an address, from now on if it had none.
    pub fn id(&mut self, ip: IpAddr) -> AddressId {
        *self.places.entry(ip).or_insert_with(|| {
            self.all.push(Address::new(ip));
            AddressId((self.all.len() - 1) as u32)
        })
    }

    /// What is remembered about an address, if it was seen.
    pub fn get(&self, ip: IpAddr) -> Option<&Address> {
        self.places.get(&ip).map(|id| &self[*id])
    }

    /// Every address, in the order in which they were first seen.
    pub fn iter(&self) -> impl Iterator<Item = (AddressId, &Address)> {
        (0..).map(AddressId).zip(&self.all)
    }
}

impl Index<AddressId> for Addresses {
    type Output = Address;

    fn index(&self, id: AddressId) -> &Address {
        &self.all[id.0 as usize]
    }
}

impl IndexMut<AddressId> for Addresses {
    fn index_mut(&mut self, id: AddressId) -> &mut Address {
        &mut self.all[id.0 as usize]
    }
}

/// Multiplies the octets of an address once per eight. Family and length, which `IpAddr` hashes as well, say nothing
/// that the octets do not, but for addresses nobody chooses to our harm.
#[derive(Debug, Default, Clone, Copy)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, octets: &[u8]) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        for chunk in octets.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0.rotate_left(29) ^ u64::from_be_bytes(word)).wrapping_mul(ODD);
        }
    }

    fn write_isize(&mut self, _family: isize) {}

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        // The map takes its place from the lowest bits, and a product is best mixed in its highest.
        self.0.rotate_left(26)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{from_bits, to_bits};
    use std::collections::BTreeSet;
    use std::hash::BuildHasher;

    #[test]
    fn neighbouring_addresses_spread_over_the_places_of_a_map() {
        let build = BuildHasherDefault::<AddressHasher>::default();
        for (base, ipv4) in [("10.96.0.0", true), ("fd00:10:96::", false)] {
            let base = to_bits(base.parse().unwrap());
            let places: BTreeSet<u64> =
                (0..4096u128).map(|offset| build.hash_one(from_bits(base + offset, ipv4)) % 4096).collect();
            // Random places would fill 63 of 100.
            assert!(places.len() > 2_300, "{} places", places.len());
        }
    }
}
