//! Addresses that are taken by one lock and free by the other: what a dual-write server may pick, and then find taken.

use super::address::AddressId;
use super::attribution::{HalfTaken, LeftBy};
use super::topology::ServerLife;
use super::{Judge, Lock};
use crate::gates::AllocatorMode;
use crate::history::{Micros, Operation};
use crate::refusal::Refusal;
use std::collections::{BTreeSet, VecDeque};

/// Such addresses, kept only once a dual-write server was seen.
#[derive(Debug, Default)]
pub(super) struct Halves {
    pub wanted: bool,
    /// Those that are so no more, with since when and until when they were, and what they were.
    recent: VecDeque<(Micros, Micros, HalfTaken)>,
    /// Those that are so now.
    open: BTreeSet<AddressId>,
}

impl Judge<'_> {
    /// Begins to keep them: a dual-write server has come.
    pub(super) fn want_halves(&mut self, at: Micros) {
        if self.halves.wanted {
            return;
        }
        self.halves.wanted = true;
        let ids: Vec<AddressId> = self.addresses.iter().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.note_half(id, at));
    }

    /// Called after every change of an address.
    pub(super) fn note_half(&mut self, id: AddressId, at: Micros) {
        if !self.halves.wanted {
            return;
        }
        let address = &self.addresses[id];
        let is_half = address.bit != address.ip_address.is_some();
        match (address.half_since, is_half) {
            (None, true) => {
                self.addresses[id].half_since = Some(at);
                self.halves.open.insert(id);
            }
            (Some(since), false) => {
                let kind = self.kind_of_half(id);
                self.halves.recent.push_back((since, at, kind));
                self.addresses[id].half_since = None;
                self.halves.open.remove(&id);
            }
            (None, false) | (Some(_), true) => {}
        }
        let late = self.definitions.bounds.late_effect.0;
        while self.halves.recent.front().is_some_and(|(_, until, _)| until.0 + late < at.0) {
            self.halves.recent.pop_front();
        }
    }

    fn kind_of_half(&self, id: AddressId) -> HalfTaken {
        let address = &self.addresses[id];
        let mut taken_by = address
            .owners
            .iter()
            .filter_map(|owner| self.lives.get(*owner)?.held.iter().rfind(|held| held.ip == address.ip)?.taken_by);
        match taken_by.next_back() {
            Some(taken_by) => {
                let other_range = self.servers.life_at(taken_by.server, taken_by.invoked).is_some_and(|life| {
                    let range = self.bitmaps[0].range;
                    range.is_some() && life.ranges.first() != range.as_ref()
                });
                match taken_by.mode {
                    Some(AllocatorMode::IpAddress) => HalfTaken::ByIpAddressOnly,
                    Some(AllocatorMode::DualWrite) if other_range => HalfTaken::ByOtherRange,
                    Some(AllocatorMode::Bitmap | AllocatorMode::DualWrite) | None => HalfTaken::InFlight,
                }
            }
            None => match self.left_by(address.ip, Lock::IpAddress) {
                LeftBy::Release(AllocatorMode::Bitmap) | LeftBy::RefusedCall => HalfTaken::Orphan,
                LeftBy::Release(AllocatorMode::DualWrite | AllocatorMode::IpAddress)
                | LeftBy::CutOffCall
                | LeftBy::Nothing => HalfTaken::InFlight,
            },
        }
    }

    /// What a dual-write server may have picked during a call that was refused as taken. From 1.33 on it takes the bit
    /// first, and finds an IPAddress where the bit was clear; before, it takes the IPAddress first, and finds the bit set.
    pub(super) fn half_taken(
        &self,
        server: &ServerLife,
        operation: &Operation,
        refusal: Option<Refusal>,
    ) -> BTreeSet<HalfTaken> {
        if server.mode != Some(AllocatorMode::DualWrite) || refusal.is_none_or(|refusal| !refusal.is_taken()) {
            return BTreeSet::new();
        }
        let lag = self.definitions.bounds.recorder_lag.0;
        let (invoked, returned) = (Micros(operation.invoked.0.saturating_sub(lag)), operation.returned);
        let recent = self.halves.recent.iter().filter(|(since, until, _)| *since <= returned && *until >= invoked);
        let mut kinds: BTreeSet<HalfTaken> = recent.map(|(.., kind)| *kind).collect();
        for id in &self.halves.open {
            let address = &self.addresses[*id];
            let in_range = server.bitmap_range(address.ip).is_some();
            if in_range && address.half_since.is_some_and(|since| since <= returned) {
                kinds.insert(self.kind_of_half(*id));
            }
        }
        kinds
    }
}
