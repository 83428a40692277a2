//! Which addresses are in use, seen through the bitmap, through IPAddress objects, or through either; and for every
//! band of every range since when it has had room without interruption.

use crate::history::Micros;
use crate::net::{Band, ServiceRange};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::net::IpAddr;

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
    freed: VecDeque<(Micros, IpAddr)>,
}

impl BandRoom {
    fn taken(&mut self, usage: &Use) {
        self.used += 1;
        self.ever += u128::from(!usage.ever[self.view as usize]);
    }

    fn freed(&mut self, ip: IpAddr, at: Micros, usage: &Usage) {
        self.used -= 1;
        self.freed.push_back((at, ip));
        // Keeps the queue in proportion to what is free in it, at constant cost per entry.
        if self.freed.len() as u128 > 64 + 2 * (self.ever - self.used) {
            let view = self.view;
            self.freed.retain(|(at, ip)| usage.is_free_since(*ip, view, *at));
        }
    }

    fn room_since(&mut self, usage: &Usage) -> Option<Micros> {
        if self.ever < self.size {
            return Some(Micros(0));
        }
        while let Some((at, ip)) = self.freed.front() {
            if usage.is_free_since(*ip, self.view, *at) {
                return Some(*at);
            }
            self.freed.pop_front();
        }
        None
    }
}

/// Use of every address seen so far.
#[derive(Debug, Default)]
struct Usage(FxHashMap<IpAddr, Use>);

impl Usage {
    fn is_free_since(&self, ip: IpAddr, view: View, at: Micros) -> bool {
        self.0.get(&ip).is_some_and(|it| !it.taken[view as usize] && it.freed[view as usize] == at)
    }
}

/// Both bands of a range in every view.
#[derive(Debug)]
struct RangeRoom {
    range: ServiceRange,
    upper: Vec<BandRoom>,
    lower: Vec<BandRoom>,
}

/// Use of all addresses and room of all ranges that are tracked.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    usage: Usage,
    ranges: Vec<RangeRoom>,
}

impl Occupancy {
    /// Starts to track a range, taking into account what is in use already.
    pub fn track(&mut self, range: ServiceRange, upper: Band) {
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
        let mut new = RangeRoom { range, upper: room(Some(upper)), lower: room(range.static_band()) };
        for room in new.upper.iter_mut().chain(&mut new.lower) {
            let view = room.view as usize;
            let mut freed = Vec::new();
            for (ip, usage) in self.usage.0.iter().filter(|(ip, _)| room.band.contains(**ip)) {
                room.ever += u128::from(usage.ever[view]);
                room.used += u128::from(usage.taken[view]);
                if usage.ever[view] && !usage.taken[view] {
                    freed.push((usage.freed[view], *ip));
                }
            }
            freed.sort_unstable();
            room.freed = freed.into();
        }
        self.ranges.push(new);
    }

    /// Notes that an address has, or no longer has, a bit or an IPAddress.
    pub fn set(&mut self, ip: IpAddr, view: View, taken: bool, at: Micros) {
        let usage = self.usage.0.entry(ip).or_default();
        let before = *usage;
        usage.set(view, taken, at);
        usage.set(View::Either, usage.taken[View::Bits as usize] || usage.taken[View::IpAddresses as usize], at);
        let after = *usage;
        for range in self.ranges.iter_mut().filter(|it| it.range.contains(ip)) {
            for room in range.upper.iter_mut().chain(&mut range.lower) {
                let index = room.view as usize;
                if before.taken[index] == after.taken[index] || !room.band.contains(ip) {
                    continue;
                }
                if after.taken[index] { room.taken(&before) } else { room.freed(ip, at, &self.usage) }
            }
        }
    }

    /// Since when the upper band of a range has had one and the same address free; `None` when it is full.
    pub fn upper_room_since(&mut self, range: ServiceRange, view: View) -> Option<Micros> {
        let usage = &self.usage;
        let range = self.ranges.iter_mut().find(|it| it.range == range)?;
        range.upper.iter_mut().find(|room| room.view == view)?.room_since(usage)
    }

    /// The same for the whole range.
    pub fn room_since(&mut self, range: ServiceRange, view: View) -> Option<Micros> {
        let usage = &self.usage;
        let range = self.ranges.iter_mut().find(|it| it.range == range)?;
        let rooms = range.upper.iter_mut().chain(&mut range.lower).filter(|room| room.view == view);
        rooms.filter_map(|room| room.room_since(usage)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::from_bits;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a list of everything that happened.
        #[test]
        fn room_is_counted_from_when_the_longest_free_address_became_free(
            steps in proptest::collection::vec((0u128..16, any::<bool>(), any::<bool>()), 0..200), late in 0usize..200,
        ) {
            let range = ServiceRange::new("10.0.0.0/29".parse().unwrap()).unwrap();
            let mut occupancy = Occupancy::default();
            let mut held: BTreeMap<(IpAddr, bool), bool> = BTreeMap::new();
            let mut free_since: BTreeMap<IpAddr, Micros> = range.usable().addresses().map(|ip| (ip, Micros(0))).collect();
            for (index, (offset, bits, taken)) in steps.into_iter().enumerate() {
                if index == late {
                    occupancy.track(range, range.dynamic_band());
                }
                let ip = from_bits(u128::from(0x0a00_0000u32) + offset, true);
                let at = Micros(index as u64 + 1);
                occupancy.set(ip, if bits { View::Bits } else { View::IpAddresses }, taken, at);
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
            occupancy.track(range, range.dynamic_band());
            prop_assert_eq!(occupancy.room_since(range, View::Either), free_since.values().min().copied());
        }
    }
}
