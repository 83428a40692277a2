//! Eventual rules E1 to E5 as deadlines. A deadline counts while a server that must act works undisturbed: it is due
//! when one such server has worked for the whole bound since the need arose. Without such a server nothing is due.

use super::address::{Address, AddressId, NEVER, Wait};
use super::attribution::{Around, AroundStart};
use super::topology::ServerLife;
use super::violation::Detail;
use super::world::{LifeId, Lives};
use super::{DraftDetail, Judge, Rule, Sometimes};
use crate::gates::AllocatorMode;
use crate::history::{Micros, ServerId, ServiceKey, Topology, TopologyEvent};
use crate::net::ServiceRange;
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

/// Addresses that wait, by [`Wait`], in the order in which the need arose. An entry is stale when the address no longer
/// waits since that time.
#[derive(Debug, Default)]
pub(super) struct Waits {
    queues: [VecDeque<(Micros, AddressId)>; 4],
    waiting: [usize; 4],
    /// Whether any server that must act works undisturbed; without one nothing is queued.
    acting: [bool; 4],
}

/// A duplicate that has not ended.
#[derive(Debug)]
pub(super) struct OpenDuplicate {
    pub draft: usize,
    first: LifeId,
    second: LifeId,
    since: Micros,
    /// Reported by an Event, or by rule E4.
    settled: bool,
}

impl OpenDuplicate {
    pub fn new(draft: usize, first: LifeId, second: LifeId, since: Micros, settled: bool) -> Self {
        OpenDuplicate { draft, first, second, since, settled }
    }

    pub fn is_about(&self, id: LifeId) -> bool {
        self.first == id || self.second == id
    }
}

fn rule_of(wait: Wait) -> Rule {
    match wait {
        Wait::MissingIpAddress => Rule::E1,
        Wait::MissingBit => Rule::E2,
        Wait::OrphanIpAddress | Wait::LeakedBit => Rule::E3,
    }
}

/// Whether each wait applies to an address as it is now.
fn waits_now(address: &Address, lives: &Lives) -> [bool; 4] {
    let held = !address.owners.is_empty();
    let object = address.ip_address.as_ref().filter(|object| object.managed);
    let parent_holds = object.is_some_and(|object| {
        let owners = address.owners.iter().filter_map(|id| lives.get(*id));
        owners.into_iter().any(|life| object.parent.as_ref() == Some(life.key.as_ref()))
    });
    Wait::ALL.map(|wait| match wait {
        Wait::MissingIpAddress => held && !parent_holds,
        Wait::MissingBit => held && !address.bit,
        Wait::OrphanIpAddress => object.is_some() && !parent_holds,
        Wait::LeakedBit => !held && address.bit,
    })
}

impl Judge<'_> {
    fn bound(&self, wait: Wait) -> Micros {
        let bounds = &self.definitions.bounds;
        match wait {
            Wait::MissingIpAddress => bounds.missing_ip_address,
            Wait::MissingBit => bounds.missing_bit,
            Wait::OrphanIpAddress => bounds.orphan_ip_address,
            Wait::LeakedBit => bounds.leaked_bit,
        }
    }

    /// Whether a server must act on this wait of this address.
    fn must_act(&self, life: &ServerLife, wait: Wait, ip: IpAddr) -> bool {
        let Some(mode) = life.mode else { return false };
        match wait {
            Wait::MissingIpAddress => (self.definitions.repairs_ip_addresses)(mode) && self.cidrs.contain(ip),
            Wait::OrphanIpAddress => (self.definitions.repairs_ip_addresses)(mode),
            Wait::MissingBit | Wait::LeakedBit => {
                self.context.bitmaps_recorded
                    && (self.definitions.repairs_bitmap)(mode)
                    && life.bitmap_range(ip).is_some()
            }
        }
    }

    /// When the wait is due; `None` while nobody must act.
    fn due(&self, wait: Wait, ip: IpAddr, since: Micros) -> Option<Micros> {
        let acting = self.servers.steady().filter(|(life, _)| self.must_act(life, wait, ip));
        let from = acting.map(|(_, steady_since)| steady_since.max(since)).min()?;
        Some(Micros(from.0 + self.bound(wait).0))
    }

    /// Called after every change of an address.
    pub(super) fn reconsider(&mut self, id: AddressId, at: Micros) {
        self.note_half(id, at);
        let address = &mut self.addresses[id];
        let now = waits_now(address, &self.lives);
        let before = address.since;
        for (index, now) in now.into_iter().enumerate() {
            if now != (before[index] != NEVER) {
                address.since[index] = if now { at } else { NEVER };
                address.reported[index] = false;
            }
        }
        if address.since == before {
            return;
        }
        let (held, bit, object) = (!address.owners.is_empty(), address.bit, address.ip_address.is_some());
        for wait in Wait::ALL {
            let index = wait as usize;
            match (before[index] != NEVER, now[index]) {
                (false, true) => self.queue(wait, id, at),
                (true, false) => self.wait_is_over(wait, before[index], at, held, bit, object),
                (true, true) | (false, false) => {}
            }
        }
    }

    fn wait_is_over(&mut self, wait: Wait, since: Micros, at: Micros, held: bool, bit: bool, object: bool) {
        let index = wait as usize;
        if self.waits.acting[index] {
            self.judged(rule_of(wait), 1);
        }
        self.waits.waiting[index] = self.waits.waiting[index].saturating_sub(1);
        // What a release in progress looks like is no repair.
        let age = at.0.saturating_sub(since.0);
        let old = age + 10_000_000 >= self.definitions.bounds.release.0;
        match wait {
            Wait::MissingIpAddress if held && object => self.met(Sometimes::IpAddressRepaired),
            Wait::MissingBit if held && bit => self.met(Sometimes::BitRepaired),
            Wait::OrphanIpAddress if old && !object => self.met(Sometimes::OrphanRepaired),
            Wait::LeakedBit if old && !bit => self.met(Sometimes::LeakRepaired),
            Wait::MissingIpAddress | Wait::MissingBit | Wait::OrphanIpAddress | Wait::LeakedBit => {}
        }
    }

    fn queue(&mut self, wait: Wait, id: AddressId, since: Micros) {
        let index = wait as usize;
        // Orphans are anybody's duty; the other waits depend on the address.
        let concerned = || wait == Wait::OrphanIpAddress || self.due(wait, self.addresses[id].ip, since).is_some();
        if !self.waits.acting[index] || !concerned() {
            return;
        }
        self.waits.waiting[index] += 1;
        self.waits.queues[index].push_back((since, id));
        if self.waits.queues[index].len() > 1024 + 4 * self.waits.waiting[index] {
            let addresses = &self.addresses;
            self.waits.queues[index].retain(|(since, id)| addresses[*id].since[index] == *since);
        }
    }

    /// Queues everything anew: who must act has changed.
    pub(super) fn rearm(&mut self) {
        let mut waiting: Vec<(Micros, IpAddr, AddressId, Wait)> = Vec::new();
        for wait in Wait::ALL {
            let acts = |mode: AllocatorMode| match wait {
                Wait::MissingIpAddress | Wait::OrphanIpAddress => (self.definitions.repairs_ip_addresses)(mode),
                Wait::MissingBit | Wait::LeakedBit => (self.definitions.repairs_bitmap)(mode),
            };
            let acting = self.servers.steady().any(|(life, _)| life.mode.is_some_and(acts));
            let index = wait as usize;
            self.waits.acting[index] = acting;
            self.waits.queues[index].clear();
            self.waits.waiting[index] = 0;
            if acting {
                let open = self.addresses.iter().filter(|(_, it)| it.since[index] != NEVER && !it.reported[index]);
                waiting.extend(open.map(|(id, address)| (address.since[index], address.ip, id, wait)));
            }
        }
        waiting.sort_by_key(|(since, ip, ..)| (*since, *ip));
        for (since, _, id, wait) in waiting {
            self.queue(wait, id, since);
        }
    }

    pub(super) fn topology(&mut self, topology: &Topology) {
        match &topology.event {
            TopologyEvent::Planted { revision } => self.planted.push(*revision),
            TopologyEvent::QuietBegin => self.fights.clear(),
            TopologyEvent::Teardown => {
                if self.left_at_teardown.is_none() {
                    self.deadlines();
                    self.count_pending();
                    self.count_left();
                }
            }
            TopologyEvent::Exited { server, log } => self.exited(*server, log, topology.at),
            TopologyEvent::Started { .. }
            | TopologyEvent::Ready { .. }
            | TopologyEvent::Stopped { .. }
            | TopologyEvent::Killed { .. }
            | TopologyEvent::Paused { .. }
            | TopologyEvent::Resumed { .. }
            | TopologyEvent::FaultBegin { .. }
            | TopologyEvent::FaultEnd { .. }
            | TopologyEvent::QuietEnd
            | TopologyEvent::Stopping { .. } => {}
        }
        if let TopologyEvent::Started { spec, .. } = &topology.event {
            for range in spec.service_ranges.iter().filter_map(|net| ServiceRange::new(*net).ok()) {
                self.occupancy.track(range, (self.definitions.upper_band)(&range), &self.addresses);
            }
        }
        if let TopologyEvent::Started { spec, .. } = &topology.event
            && (self.definitions.mode)(spec) == Some(AllocatorMode::DualWrite)
        {
            self.want_halves(topology.at);
        }
        // What was due before the change is judged under the assumptions of before.
        self.deadlines();
        if self.servers.record(topology, self.definitions) {
            self.rearm();
        }
    }

    /// Judges every deadline that has passed.
    pub(super) fn deadlines(&mut self) {
        for wait in Wait::ALL {
            let index = wait as usize;
            while let Some((since, id)) = self.waits.queues[index].front().copied() {
                let address = &self.addresses[id];
                let waits = address.since[index] == since && !address.reported[index];
                let due = if waits { self.due(wait, address.ip, since) } else { None };
                if due.is_some_and(|due| due > self.now) {
                    break;
                }
                self.waits.queues[index].pop_front();
                if let Some(due) = due {
                    self.missed(wait, id, since, due);
                }
            }
        }
        self.unreported_duplicates();
        self.slow_starts();
    }

    fn missed(&mut self, wait: Wait, id: AddressId, since: Micros, due: Micros) {
        self.judged(rule_of(wait), 1);
        let address = &mut self.addresses[id];
        let ip = address.ip;
        address.reported[wait as usize] = true;
        let parent = address.ip_address.as_ref().and_then(|object| object.parent.clone());
        let owners = address.owners.clone();
        let services = self.keys_of(&owners);
        let detail = match wait {
            Wait::MissingIpAddress => Detail::MissingIpAddress { ip, services, since },
            Wait::MissingBit => Detail::MissingBit { ip, services, since },
            Wait::OrphanIpAddress => Detail::OrphanIpAddress { ip, parent, since },
            Wait::LeakedBit => Detail::LeakedBit { ip, since },
        };
        self.violated(rule_of(wait), 0, due, detail);
    }

    fn keys_of(&self, ids: &[LifeId]) -> Vec<ServiceKey> {
        let mut keys: Vec<_> =
            ids.iter().filter_map(|id| self.lives.get(*id)).map(|life| life.key.as_ref().clone()).collect();
        keys.sort();
        keys
    }

    /// Whether a server reports duplicates of this address: one outside its ranges it reports as out of range instead.
    fn reports_duplicate(&self, life: &ServerLife, ip: IpAddr) -> bool {
        match life.mode {
            Some(AllocatorMode::Bitmap) => life.bitmap_range(ip).is_some(),
            Some(AllocatorMode::DualWrite | AllocatorMode::IpAddress) => self.cidrs.contain(ip),
            None => false,
        }
    }

    /// E4.
    fn unreported_duplicates(&mut self) {
        if !self.context.events_recorded || self.open_duplicates.is_empty() {
            return;
        }
        let mut missed = Vec::new();
        for (ip, open) in &self.open_duplicates {
            for duplicate in open.iter().filter(|it| !it.settled) {
                if let Some(due) = self.duplicate_due(*ip, duplicate).filter(|due| *due <= self.now) {
                    missed.push((due, *ip, duplicate.first, duplicate.second, duplicate.since));
                }
            }
        }
        missed.sort_unstable_by_key(|(due, ip, ..)| (*due, *ip));
        for (due, ip, first, second, since) in missed {
            let services = self.keys_of(&[first, second]);
            self.judged(Rule::E4, 1);
            self.violated(Rule::E4, 0, due, Detail::Unreported { ip, services, since });
            let open = self.open_duplicates.get_mut(&ip).into_iter().flatten();
            open.filter(|it| it.first == first && it.second == second).for_each(|it| it.settled = true);
        }
    }

    fn duplicate_due(&self, ip: IpAddr, duplicate: &OpenDuplicate) -> Option<Micros> {
        let reporting = self.servers.steady().filter(|(life, _)| self.reports_duplicate(life, ip));
        let from = reporting.map(|(_, steady_since)| steady_since.max(duplicate.since)).min()?;
        Some(Micros(from.0 + self.definitions.bounds.unreported_duplicate.0))
    }

    /// Whether an Event about one of two Services was recorded a moment before their duplicate was.
    pub(super) fn is_just_reported(&self, first: LifeId, second: LifeId, at: Micros) -> bool {
        let lives = [first, second].into_iter().filter_map(|id| self.lives.get(id));
        lives.into_iter().any(|life| {
            let seen = self.duplicate_events.get(&format!("Service/{}", life.key));
            seen.is_some_and(|seen| seen.0 + self.definitions.bounds.recorder_lag.0 >= at.0)
        })
    }

    /// An Event `ClusterIPAlreadyAllocated` about `Service/namespace/name`.
    pub(super) fn duplicate_reported(&mut self, regarding: &str, at: Micros) {
        self.duplicate_events.insert(regarding.to_string(), at);
        let mut reported = 0;
        for duplicate in self.open_duplicates.values_mut().flatten().filter(|it| !it.settled) {
            let about = [duplicate.first, duplicate.second].into_iter().filter_map(|id| self.lives.get(id));
            if about.into_iter().any(|life| regarding.strip_prefix("Service/") == Some(&life.key.to_string())) {
                duplicate.settled = true;
                reported += 1;
            }
        }
        self.judged(Rule::E4, reported);
        (0..reported).for_each(|_| self.met(Sometimes::DuplicateReported));
    }

    /// E5.
    fn slow_starts(&mut self) {
        let (now, bound) = (self.now, self.definitions.bounds.start);
        let mut slow = Vec::new();
        for index in 0..self.servers.lives().len() {
            let life = &self.servers.lives()[index];
            let due = Micros(life.started.0 + bound.0);
            if life.start_judged || due > now && life.ready.is_none() && life.gone.is_none() {
                continue;
            }
            let in_time = [life.ready, life.gone].into_iter().flatten().any(|at| at <= due);
            // A paused server or etcd cannot become ready.
            if !in_time && self.servers.start_undisturbed(life, due) {
                slow.push((due, life.server, life.started));
            }
            self.servers.start_is_judged(index);
            self.judged(Rule::E5, 1);
        }
        for (due, server, started) in slow {
            self.violated(Rule::E5, 0, due, Detail::NotReady { server, started });
        }
    }

    /// E5 for a server that ended by itself before it was ready.
    fn exited(&mut self, server: ServerId, log: &[String], at: Micros) {
        let Some(life) = self.servers.life_at(server, at).cloned() else { return };
        if life.ready.is_some() || !self.servers.start_undisturbed(&life, at) {
            return;
        }
        let detail = DraftDetail::Ready(Detail::ExitedAtStart { server, started: life.started, log: log.to_vec() });
        let traffic_elsewhere = self.race.answered_elsewhere(server, life.started);
        let around = AroundStart { minor: life.minor, traffic_elsewhere, v1_stored: self.v1_stored };
        self.draft(Rule::E5, 0, at, detail, Around::Start(around), Vec::new());
    }

    /// Counts what is open, but not due, at the end.
    pub(super) fn count_pending(&mut self) {
        for wait in Wait::ALL {
            let index = wait as usize;
            let queued = self.waits.queues[index].iter().map(|(since, id)| (*since, &self.addresses[*id]));
            let open: BTreeSet<IpAddr> = queued
                .filter(|(since, address)| address.since[index] == *since && !address.reported[index])
                .map(|(_, address)| address.ip)
                .collect();
            let waiting = self.addresses.iter().filter(|(_, it)| it.since[index] != NEVER && !it.reported[index]);
            let off = waiting.count().saturating_sub(open.len()) as u64;
            *self.off.entry(rule_of(wait)).or_default() += off;
            if !open.is_empty() {
                *self.pending.entry(rule_of(wait)).or_default() += open.len() as u64;
            }
        }
        if self.context.events_recorded {
            let open = self.open_duplicates.iter().flat_map(|(ip, open)| open.iter().map(move |it| (*ip, it)));
            let count = open.filter(|(ip, it)| !it.settled && self.duplicate_due(*ip, it).is_some()).count() as u64;
            if count > 0 {
                self.pending.insert(Rule::E4, count);
            }
        }
        let starting = self.servers.lives().iter().filter(|life| !life.start_judged).count() as u64;
        if starting > 0 {
            self.pending.insert(Rule::E5, starting);
        }
    }
}
