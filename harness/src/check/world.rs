//! The state of etcd at the revision reached, with what the rules need to remember about each Service and address.

use super::violation::{Locks, MadeBy};
use crate::history::{Micros, RangeKey, ServiceKey, ServiceType, StoredServiceCidr};
use crate::net::{ServiceRange, from_bits, to_bits};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::rc::Rc;

/// A Service from creation to deletion, by place and generation in [`Lives`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LifeId {
    index: u32,
    generation: u32,
}

/// What the locks said when a Service got an address.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub ip: IpAddr,
    /// The revision that stored the Service with the address.
    pub revision: i64,
    pub at: Micros,
    pub current: bool,
    /// The call that took it, once known.
    pub taken_by: Option<MadeBy>,
    pub bit: bool,
    pub bit_revision: i64,
    pub bit_at: Micros,
    /// The last moment up to now at which the bitmap was full.
    pub bitmap_full: Option<Micros>,
    pub bitmap_revision: i64,
    pub parent: Parent,
    pub ip_address_revision: i64,
    /// When the IPAddress came into being, and the revision.
    pub object_at: Micros,
    pub object_since: i64,
}

/// Whom the IPAddress named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Parent {
    NoIpAddress,
    ThisService,
    Other(Option<ServiceKey>),
}

impl Held {
    /// The locks, for a violation about this Service.
    pub fn locks(&self, service: &ServiceKey) -> Locks {
        Locks {
            bit: self.bit,
            bit_revision: self.bit_revision,
            bitmap_revision: self.bitmap_revision,
            ip_address: self.parent != Parent::NoIpAddress,
            parent: match &self.parent {
                Parent::NoIpAddress => None,
                Parent::ThisService => Some(service.clone()),
                Parent::Other(parent) => parent.clone(),
            },
            ip_address_revision: self.ip_address_revision,
        }
    }
}

/// A Service from creation to deletion.
#[derive(Debug)]
pub(super) struct Life {
    pub key: Rc<ServiceKey>,
    pub uid: String,
    pub service_type: ServiceType,
    /// `spec.clusterIPs` as stored last.
    pub ips: Vec<IpAddr>,
    /// The last revision that wrote it.
    pub written: i64,
    /// Whether it waits for finalizers.
    pub deleting: bool,
    pub created_revision: i64,
    pub created: Micros,
    /// Every address it has or had.
    pub held: SmallVec<[Held; 1]>,
    pub gone: bool,
    /// The creating call, once known.
    pub made_by: Option<MadeBy>,
    /// How many violations still need this record.
    pub pins: u32,
}

impl Life {
    /// The addresses it was created with.
    pub fn created_with(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(|held| held.revision == self.created_revision)
    }
}

/// The lives that are still kept under one key. As a rule it is one.
#[derive(Debug)]
struct SameKey {
    newest: LifeId,
    /// Oldest first.
    older: Vec<LifeId>,
}

/// Service lives by id; places are reused, so that memory follows what lives.
#[derive(Debug, Default)]
pub(super) struct Lives {
    slots: Vec<(u32, Option<Life>)>,
    free: Vec<u32>,
    by_key: FxHashMap<Rc<ServiceKey>, SameKey>,
}

impl Lives {
    #[inline]
    pub fn insert(&mut self, life: Life) -> LifeId {
        let key = life.key.clone();
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.1 = Some(life);
        let id = LifeId { index, generation: slot.0 };
        match self.by_key.entry(key) {
            Entry::Occupied(mut same) => {
                let same = same.get_mut();
                same.older.push(std::mem::replace(&mut same.newest, id));
            }
            Entry::Vacant(none) => drop(none.insert(SameKey { newest: id, older: Vec::new() })),
        }
        id
    }

    pub fn get(&self, id: LifeId) -> Option<&Life> {
        let (generation, life) = self.slots.get(id.index as usize)?;
        life.as_ref().filter(|_| *generation == id.generation)
    }

    pub fn get_mut(&mut self, id: LifeId) -> Option<&mut Life> {
        let (generation, life) = self.slots.get_mut(id.index as usize)?;
        life.as_mut().filter(|_| *generation == id.generation)
    }

    /// The live Service under a key.
    pub fn live(&self, key: &ServiceKey) -> Option<LifeId> {
        let id = self.by_key.get(key)?.newest;
        self.get(id).filter(|life| !life.gone).map(|_| id)
    }

    /// Every life still kept under a key, oldest first.
    pub fn of(&self, key: &ServiceKey) -> impl Iterator<Item = LifeId> + '_ {
        let same = self.by_key.get(key);
        same.into_iter().flat_map(|same| same.older.iter().copied().chain([same.newest]))
    }

    /// Forgets a life that is over, unless a violation needs it.
    pub fn forget(&mut self, id: LifeId) {
        if self.get(id).is_none_or(|life| !life.gone || life.pins > 0) {
            return;
        }
        let slot = &mut self.slots[id.index as usize];
        if let Some(life) = &slot.1
            && let Entry::Occupied(mut same) = self.by_key.entry(life.key.clone())
        {
            let (newest, older) = (same.get().newest, &mut same.get_mut().older);
            if newest != id {
                older.retain(|it| *it != id);
            } else if let Some(before) = older.pop() {
                same.get_mut().newest = before;
            } else {
                same.remove();
            }
        }
        *slot = (slot.0.wrapping_add(1), None);
        self.free.push(id.index);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Life> {
        self.slots.iter().filter_map(|(_, life)| life.as_ref())
    }
}

/// A bitmap as stored.
#[derive(Debug, Default)]
pub(super) struct Bitmap {
    pub exists: bool,
    pub range: Option<ServiceRange>,
    pub data: Vec<u8>,
    pub revision: i64,
    /// How many bits are set.
    pub set: u64,
    /// The last moment at which every bit was set, while that is over.
    pub full_until: Option<Micros>,
}

impl Bitmap {
    /// The last moment up to now at which every bit was set.
    pub fn full(&self, now: Micros) -> Option<Micros> {
        let is_full = self.range.is_some_and(|range| u128::from(self.set) >= range.usable_in_bitmap().len());
        if is_full { Some(now) } else { self.full_until }
    }
}

/// A ServiceCIDR and when it could be granted from.
#[derive(Debug)]
pub(super) struct Cidr {
    pub ranges: Vec<ServiceRange>,
    pub usable_since: Option<Micros>,
    pub usable_until: Option<Micros>,
}

/// ServiceCIDRs now and in the past.
#[derive(Debug, Default)]
pub(super) struct Cidrs {
    now: BTreeMap<String, Cidr>,
    past: Vec<(ServiceRange, Micros)>,
}

impl Cidrs {
    pub fn put(&mut self, stored: &StoredServiceCidr, usable: bool, at: Micros) -> Vec<ServiceRange> {
        let ranges: Vec<_> = stored.cidrs.iter().filter_map(|net| ServiceRange::new(*net).ok()).collect();
        let cidr = self.now.entry(stored.name.clone()).or_insert(Cidr {
            ranges: Vec::new(),
            usable_since: None,
            usable_until: None,
        });
        cidr.ranges.clone_from(&ranges);
        match (usable, cidr.usable_since) {
            (true, None) => cidr.usable_since = Some(at),
            (false, Some(_)) => (cidr.usable_since, cidr.usable_until) = (None, Some(at)),
            (true, Some(_)) | (false, None) => {}
        }
        ranges
    }

    /// False when there was none of that name.
    pub fn delete(&mut self, name: &str, at: Micros) -> bool {
        let Some(cidr) = self.now.remove(name) else { return false };
        let until = if cidr.usable_since.is_some() { Some(at) } else { cidr.usable_until };
        if let Some(until) = until {
            self.past.extend(cidr.ranges.into_iter().map(|range| (range, until)));
        }
        true
    }

    /// Whether some ServiceCIDR, ready or not, contains the address.
    pub fn contain(&self, ip: IpAddr) -> bool {
        self.now.values().flat_map(|cidr| &cidr.ranges).any(|range| range.contains(ip))
    }

    /// The ranges that could be granted from at some time since `from`.
    pub fn usable_at_some_time_since(&self, from: Micros) -> impl Iterator<Item = ServiceRange> {
        let now = self
            .now
            .values()
            .filter(move |it| it.usable_since.is_some() || it.usable_until.is_some_and(|until| until >= from));
        let past = self.past.iter().filter(move |(_, until)| *until >= from).map(|(range, _)| *range);
        now.flat_map(|cidr| cidr.ranges.iter().copied()).chain(past)
    }

    /// The ranges that could be granted from without interruption since `from`.
    pub fn usable_throughout(&self, from: Micros) -> Vec<ServiceRange> {
        let now = self.now.values().filter(|it| it.usable_since.is_some_and(|since| since <= from));
        now.flat_map(|cidr| cidr.ranges.iter().copied()).collect()
    }
}

/// Index of a bitmap in an array of two.
pub(super) fn index(key: RangeKey) -> usize {
    match key {
        RangeKey::Primary => 0,
        RangeKey::Secondary => 1,
    }
}

/// The bits by which two big-endian numbers of any length differ: number of the bit, and whether it is set in `new`.
pub(super) fn differing_bits(old: &[u8], new: &[u8], mut each: impl FnMut(u64, bool)) {
    const WORD: usize = 8;
    const BLOCK: usize = 64;
    let (mut old, mut new, mut first_bit) = (old, new, 0);
    while !old.is_empty() || !new.is_empty() {
        // One write as a rule changes one bit, so most blocks are the same.
        let same = match (old.last_chunk::<BLOCK>(), new.last_chunk::<BLOCK>()) {
            (Some(old), Some(new)) => is_same(old, new),
            (Some(_) | None, _) => false,
        };
        if !same {
            for word in 0..BLOCK / WORD {
                let (old, new) = (low_word(old, word * WORD), low_word(new, word * WORD));
                let mut differing = old ^ new;
                while differing != 0 {
                    let bit = differing.trailing_zeros();
                    each(first_bit + (word * WORD * 8) as u64 + u64::from(bit), new >> bit & 1 == 1);
                    differing &= differing - 1;
                }
            }
        }
        old = &old[..old.len().saturating_sub(BLOCK)];
        new = &new[..new.len().saturating_sub(BLOCK)];
        first_bit += BLOCK as u64 * 8;
    }
}

/// Equality in a form that compiles to a few vector instructions instead of a call.
fn is_same(a: &[u8; 64], b: &[u8; 64]) -> bool {
    a.iter().zip(b).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

/// 64 bits of a big-endian number, `skip` bytes from its low end.
fn low_word(data: &[u8], skip: usize) -> u64 {
    let data = &data[..data.len().saturating_sub(skip)];
    match data.last_chunk() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => data.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// The address of a bit; `None` beyond what the bitmap of the range can hold.
pub(super) fn address_of_bit(range: &ServiceRange, bit: u64) -> Option<IpAddr> {
    let usable = range.usable_in_bitmap();
    (u128::from(bit) < usable.len()).then(|| from_bits(to_bits(usable.first) + u128::from(bit), range.is_ipv4()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn differing_bits_are_those_that_one_number_has_and_the_other_has_not(
            old in proptest::collection::btree_set(0u64..1500, 0..40),
            new in proptest::collection::btree_set(0u64..1500, 0..40),
            pad in 0usize..3,
        ) {
            let bytes = |bits: &BTreeSet<u64>, pad| {
                let len = bits.last().map_or(0, |top| top / 8 + 1) as usize;
                let mut data = vec![0u8; len];
                for bit in bits {
                    data[len - 1 - (bit / 8) as usize] |= 1 << (bit % 8);
                }
                [vec![0; pad], data].concat()
            };
            let mut seen = BTreeSet::new();
            differing_bits(&bytes(&old, pad), &bytes(&new, 0), |bit, set| {
                assert_eq!(set, new.contains(&bit));
                assert!(seen.insert(bit));
            });
            prop_assert_eq!(seen, old.symmetric_difference(&new).copied().collect::<BTreeSet<_>>());
        }
    }
}
