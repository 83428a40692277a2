//! Which addresses are in use, seen through the bitmap, through IPAddress objects, or through either; and for every
//! band of every range since when it has had room without interruption.

use super::address::{Address, AddressId, Addresses};
use crate::history::Micros;
use crate::net::{Band, ServiceRange};
use std::collections::VecDeque;

/// Whose eyes an address is free or taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// Taken = its bit is set.
    Bits,
    /// Taken = an IPAddress exists.
    IpAddresses,
    /// Taken = one of both.
    Either,
}

impl View {
    pub const ALL: [View; 3] = [View::Bits, View::IpAddresses, View::Either];
}

/// Use of one address in the three views.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Use {
    taken: [bool; 3],
    ever: [bool; 3],
    freed: [Micros; 3],
}

impl Use {
    fn set(&mut self, view: View, taken: bool, at: Micros) {
        let index = view as usize;
        if self.taken[index] && !taken {
            self.freed[index] = at;
        }
        self.taken[index] = taken;
        self.ever[index] |= taken;
    }

    fn is_free_since(&self, view: View, at: Micros) -> bool {
        !self.taken[view as usize] && self.freed[view as usize] == at
    }
}

/// One band of one range in one view.
#[derive(Debug)]
struct BandRoom {
    view: View,
    band: Band,
    size: u128,
    /// Addresses that were in use at least once.
    ever: u128,
    used: u128,
    /// Addresses in the order in which they became free; stale when taken again since.
    freed: VecDeque<(Micros, AddressId)>,
}

impl BandRoom {
    fn taken(&mut self, usage: &Use) {
        self.used += 1;
        self.ever += u128::from(!usage.ever[self.view as usize]);
    }

    fn freed(&mut self, id: AddressId, at: Micros, addresses: &Addresses) {
        self.used -= 1;
        self.freed.push_back((at, id));
        // Keeps the queue in proportion to what is free in it, at constant cost per entry.
        if self.freed.len() as u128 > 64 + 2 * (self.ever - self.used) {
            let view = self.view;
            self.freed.retain(|(at, id)| addresses[*id].usage.is_free_since(view, *at));
        }
    }

    fn room_since(&mut self, addresses: &Addresses) -> Option<Micros> {
        if self.ever < self.size {
            return Some(Micros(0));
        }
        while let Some((at, id)) = self.freed.front() {
            if addresses[*id].usage.is_free_since(self.view, *at) {
                return Some(*at);
            }
            self.freed.pop_front();
        }
        None
    }
}

/// Both bands of a range in every view.
#[derive(Debug)]
struct RangeRoom {
    range: ServiceRange,
    upper_band: Band,
    upper: Vec<BandRoom>,
    lower: Vec<BandRoom>,
}

/// Room of all ranges that are tracked.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    ranges: Vec<RangeRoom>,
}

impl Occupancy {
    /// Starts to track a range, taking into account what is in use already.
    pub fn track(&mut self, range: ServiceRange, upper: Band, addresses: &Addresses) {
        if self.ranges.iter().any(|it| it.range == range) {
            return;
        }
        let clip = |band: Band, view: View| match view {
            View::Bits => {
                let last = range.usable_in_bitmap().last;
                (band.first <= last).then(|| Band { first: band.first, last: band.last.min(last) })
            }
            View::IpAddresses | View::Either => Some(band),
        };
        let room = |band: Option<Band>| -> Vec<BandRoom> {
            let bands = View::ALL.into_iter().filter_map(|view| Some((view, clip(band?, view)?)));
            bands
                .map(|(view, band)| BandRoom { view, band, size: band.len(), ever: 0, used: 0, freed: VecDeque::new() })
                .collect()
        };
        let mut new =
            RangeRoom { range, upper_band: upper, upper: room(Some(upper)), lower: room(range.static_band()) };
        for room in new.upper.iter_mut().chain(&mut new.lower) {
            let view = room.view as usize;
            let mut freed = Vec::new();
            for (id, Address { ip, usage, .. }) in addresses.iter().filter(|(_, it)| room.band.contains(it.ip)) {
                room.ever += u128::from(usage.ever[view]);
                room.used += u128::from(usage.taken[view]);
                if usage.ever[view] && !usage.taken[view] {
                    freed.push((usage.freed[view], *ip, id));
                }
            }
            freed.sort_unstable_by_key(|(at, ip, _)| (*at, *ip));
            room.freed = freed.into_iter().map(|(at, _, id)| (at, id)).collect();
        }
        self.ranges.push(new);
    }

    /// Notes that an address has, or no longer has, a bit or an IPAddress.
    pub fn set(&mut self, addresses: &mut Addresses, id: AddressId, view: View, taken: bool, at: Micros) {
        let Address { ip, usage, .. } = &mut addresses[id];
        let ip = *ip;
        let before = *usage;
        usage.set(view, taken, at);
        usage.set(View::Either, usage.taken[View::Bits as usize] || usage.taken[View::IpAddresses as usize], at);
        let after = *usage;
        if before.taken == after.taken {
            return;
        }
        for range in &mut self.ranges {
            let band = if range.upper_band.contains(ip) { &mut range.upper } else { &mut range.lower };
            for room in band.iter_mut().filter(|room| room.band.contains(ip)) {
                let index = room.view as usize;
                match (before.taken[index], after.taken[index]) {
                    (false, true) => room.taken(&before),
                    (true, false) => room.freed(id, at, addresses),
                    (true, true) | (false, false) => {}
                }
            }
        }
    }

    /// Since when the upper band of a range has had one and the same address free; `None` when it is full.
    pub fn upper_room_since(&mut self, addresses: &Addresses, range: ServiceRange, view: View) -> Option<Micros> {
        let range = self.ranges.iter_mut().find(|it| it.range == range)?;
        range.upper.iter_mut().find(|room| room.view == view)?.room_since(addresses)
    }

    /// The same for the whole range.
    pub fn room_since(&mut self, addresses: &Addresses, range: ServiceRange, view: View) -> Option<Micros> {
        let range = self.ranges.iter_mut().find(|it| it.range == range)?;
        let rooms = range.upper.iter_mut().chain(&mut range.lower).filter(|room| room.view == view);
        rooms.filter_map(|room| room.room_since(addresses)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::from_bits;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    proptest! {
        /// Against a list of everything that happened.
        #[test]
        fn room_is_counted_from_when_the_longest_free_address_became_free(
            steps in proptest::collection::vec((0u128..16, any::<bool>(), any::<bool>()), 0..200), late in 0usize..200,
        ) {
            let range = ServiceRange::new("10.0.0.0/29".parse().unwrap()).unwrap();
            let (mut occupancy, mut addresses) = (Occupancy::default(), Addresses::default());
            let mut held: BTreeMap<(IpAddr, bool), bool> = BTreeMap::new();
            let mut free_since: BTreeMap<IpAddr, Micros> = range.usable().addresses().map(|ip| (ip, Micros(0))).collect();
            for (index, (offset, bits, taken)) in steps.into_iter().enumerate() {
                if index == late {
                    occupancy.track(range, range.dynamic_band(), &addresses);
                }
                let ip = from_bits(u128::from(0x0a00_0000u32) + offset, true);
                let at = Micros(index as u64 + 1);
                let id = addresses.id(ip);
                occupancy.set(&mut addresses, id, if bits { View::Bits } else { View::IpAddresses }, taken, at);
                held.insert((ip, bits), taken);
                let in_use = [true, false].iter().any(|bits| held.get(&(ip, *bits)) == Some(&true));
                if !range.can_grant(ip) || !taken && in_use {
                    continue;
                }
                if in_use {
                    free_since.remove(&ip);
                } else {
                    free_since.entry(ip).or_insert(at);
                }
            }
            occupancy.track(range, range.dynamic_band(), &addresses);
            prop_assert_eq!(occupancy.room_since(&addresses, range, View::Either), free_since.values().min().copied());
        }
    }
}
