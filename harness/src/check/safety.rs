//! Safety rules that one revision decides: S1, S2, S4 (overwritten), S7, S8, S10, and the state they need.

use super::address::{AddressId, IpAddressObject};
use super::attribution::{Around, AroundLock, LeftBy};
use super::eventual::OpenDuplicate;
use super::occupancy::View;
use super::violation::{Detail, Lock};
use super::world::{self, Bitmap, Held, Life, LifeId, Parent, address_of_bit, differing_bits};
use super::{BrokenAssumption, Departure, DraftDetail, Judge, Rule, Sometimes};
use crate::history::{
    Change, Micros, RangeKey, ServiceKey, ServiceType, StoredIpAddress, StoredRange, StoredService, StoredServiceCidr,
};
use crate::net::ServiceRange;
use ipnet::IpNet;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;

/// The API version that 1.32 and older cannot read.
const V1: &str = "networking.k8s.io/v1";
/// How many addresses a violation about a bitmap names.
const SAMPLE: usize = 8;

impl Judge<'_> {
    pub(super) fn put_service(&mut self, revision: i64, at: Micros, service: StoredService) {
        let live = self.lives.live(&service.key);
        match live.and_then(|id| Some((id, self.lives.get(id)?))) {
            Some((id, life)) if life.uid == service.uid => self.update_service(id, revision, at, service),
            Some((id, life)) => {
                let lost_uid = life.uid.clone();
                let (key, uid) = (service.key.clone(), service.uid.clone());
                self.violated(Rule::S4, revision, at, Detail::Overwritten { service: key, lost_uid, uid });
                self.end_life(id, revision, at);
                // That nobody deleted it is said by S4.
                self.departures.remove(&service.key);
                self.create_service(revision, at, service);
            }
            None => self.create_service(revision, at, service),
        }
    }

    fn create_service(&mut self, revision: i64, at: Micros, service: StoredService) {
        let holds = (self.definitions.holds)(&service);
        let StoredService { key, uid, service_type, ips, deleting } = service;
        let id = self.lives.insert(Life {
            key: Rc::new(key),
            uid,
            service_type,
            ips: Vec::new(),
            written: revision,
            deleting,
            created_revision: revision,
            created: at,
            held: SmallVec::new(),
            gone: false,
            made_by: None,
            pins: 0,
        });
        if holds {
            for ip in &ips {
                self.take_address(id, *ip, revision, at);
            }
        }
        if let Some(life) = self.lives.get_mut(id) {
            life.ips = ips;
        }
        self.join_undecided(id);
    }

    fn update_service(&mut self, id: LifeId, revision: i64, at: Micros, service: StoredService) {
        let Some(life) = self.lives.get(id) else { return };
        self.judged.add(Rule::S2, 1);
        let named = life.service_type == ServiceType::ExternalName || service.service_type == ServiceType::ExternalName;
        if let Some((from, to)) = changed_address(&life.ips, &service.ips).filter(|_| !named) {
            let (service, uid) = (service.key.clone(), service.uid.clone());
            self.violated(Rule::S2, revision, at, Detail::AddressChanged { service, uid, from, to });
        }
        let held: &[IpAddr] = if (self.definitions.holds)(&service) { &service.ips } else { &[] };
        let current = |ip: &IpAddr, life: &Life| life.held.iter().any(|it| it.current && it.ip == *ip);
        let Some(life) = self.lives.get(id) else { return };
        let taken: Vec<IpAddr> = held.iter().filter(|ip| !current(ip, life)).copied().collect();
        let left: Vec<IpAddr> =
            life.held.iter().filter(|it| it.current && !held.contains(&it.ip)).map(|it| it.ip).collect();
        if !left.is_empty() {
            let key = life.key.clone();
            let addresses = left.iter().map(|ip| self.addresses.id(*ip)).collect();
            self.departures.entry(key).or_default().push(Departure { at, revision, ended: None, addresses });
        }
        for ip in left {
            self.leave_address(id, ip, revision, at);
        }
        for ip in taken {
            self.take_address(id, ip, revision, at);
        }
        if let Some(life) = self.lives.get_mut(id) {
            life.ips = service.ips;
            life.service_type = service.service_type;
            life.written = revision;
            life.deleting = service.deleting;
        }
    }

    pub(super) fn delete_service(&mut self, revision: i64, at: Micros, key: &ServiceKey) {
        match self.lives.live(key) {
            Some(id) => self.end_life(id, revision, at),
            None => self.removed_unstored(revision, format!("Service {key}")),
        }
    }

    fn removed_unstored(&mut self, revision: i64, key: String) {
        self.assumptions.break_one(BrokenAssumption::RemovedUnstored { revision, key });
    }

    fn end_life(&mut self, id: LifeId, revision: i64, at: Micros) {
        let Some(life) = self.lives.get_mut(id) else { return };
        life.gone = true;
        let settled = life.made_by.is_some();
        let addresses = life.held.iter().filter(|held| held.current).map(|held| held.ip);
        let addresses: SmallVec<[IpAddr; 2]> = addresses.collect();
        let (key, ended) = (life.key.clone(), Some(life.uid.clone()));
        let addresses = addresses.into_iter().map(|ip| self.addresses.id(ip)).collect();
        self.departures.entry(key).or_default().push(Departure { at, revision, ended, addresses });
        let count = life.held.len();
        for index in 0..count {
            let held = self.lives.get(id).and_then(|life| life.held.get(index)).filter(|held| held.current);
            if let Some(ip) = held.map(|held| held.ip) {
                self.leave_address(id, ip, revision, at);
            }
        }
        if settled {
            self.lives.forget(id);
        } else {
            self.over.push_back((at, id));
        }
    }

    /// S1, and the locks as the new owner finds them.
    fn take_address(&mut self, id: LifeId, ip: IpAddr, revision: i64, at: Micros) {
        self.judged(Rule::S1, 1);
        let (bitmap_revision, bitmap_full) =
            self.bitmap_of(ip).map_or((0, None), |bitmap| (bitmap.revision, bitmap.full(at)));
        let Some(life) = self.lives.get_mut(id) else { return };
        let place = self.addresses.id(ip);
        let address = &mut self.addresses[place];
        let parent = match &address.ip_address {
            None => Parent::NoIpAddress,
            Some(object) if object.parent.as_ref() == Some(life.key.as_ref()) => Parent::ThisService,
            Some(object) => Parent::Other(object.parent.clone()),
        };
        life.held.push(Held {
            ip,
            revision,
            at,
            current: true,
            taken_by: None,
            bit: address.bit,
            bit_revision: address.bit_revision,
            bit_at: address.bit_at,
            bitmap_full,
            bitmap_revision,
            parent,
            ip_address_revision: address.ip_address_revision,
            object_at: address.object_at,
            object_since: address.object_since,
        });
        address.owners.push(id);
        address.taken_at = at;
        address.bit_was_held |= address.bit;
        address.object_was_held |= address.ip_address.is_some();
        if address.owners.len() > self.definitions.owners_allowed {
            self.doubled(id, place, revision, at);
        }
        self.reconsider(place, at);
    }

    fn doubled(&mut self, second: LifeId, place: AddressId, revision: i64, at: Micros) {
        let address = &mut self.addresses[place];
        let ip = address.ip;
        let firsts: Vec<LifeId> = address.owners.iter().copied().filter(|owner| *owner != second).collect();
        if !address.doubled {
            address.doubled = true;
            self.statistics.duplicates += 1;
        }
        let open: Vec<usize> =
            self.open_duplicates.get(&ip).into_iter().flatten().map(|duplicate| duplicate.draft).collect();
        for first in firsts {
            self.met(Sometimes::Duplicate);
            let draft = DraftDetail::Duplicate { ip, first, second, ended: None };
            if self.draft(Rule::S1, revision, at, draft, Around::Nothing, open.clone()) {
                for id in [first, second] {
                    if let Some(life) = self.lives.get_mut(id) {
                        life.pins += 1;
                    }
                }
                let reported = self.is_just_reported(first, second, at);
                if reported {
                    self.met(Sometimes::DuplicateReported);
                }
                let open = OpenDuplicate::new(self.drafts.len() - 1, first, second, at, reported);
                self.open_duplicates.entry(ip).or_default().push(open);
            }
        }
    }

    fn leave_address(&mut self, id: LifeId, ip: IpAddr, revision: i64, at: Micros) {
        let release_until = Micros(at.0 + self.definitions.bounds.release.0);
        if let Some(life) = self.lives.get_mut(id) {
            for held in life.held.iter_mut().filter(|held| held.ip == ip) {
                held.current = false;
            }
        }
        let place = self.addresses.id(ip);
        let address = &mut self.addresses[place];
        address.owners.retain(|owner| *owner != id);
        (address.left_at, address.left_by) = (Some(at), LeftBy::Nothing);
        if address.bit {
            address.bit_release_until = release_until;
        }
        if address.ip_address.is_some() {
            address.ip_address_release_until = release_until;
        }
        if address.doubled {
            address.doubled = !address.owners.is_empty();
            self.end_duplicates(ip, id, revision);
        }
        self.reconsider(place, at);
    }

    fn end_duplicates(&mut self, ip: IpAddr, gone: LifeId, revision: i64) {
        let Some(open) = self.open_duplicates.get_mut(&ip) else { return };
        let drafts = &mut self.drafts;
        open.retain(|duplicate| {
            if !duplicate.is_about(gone) {
                return true;
            }
            if let Some(DraftDetail::Duplicate { ended, .. }) =
                drafts.get_mut(duplicate.draft).map(|draft| &mut draft.detail)
            {
                *ended = Some(revision);
            }
            false
        });
        if open.is_empty() {
            self.open_duplicates.remove(&ip);
        }
    }

    pub(super) fn put_ip_address(&mut self, revision: i64, at: Micros, object: StoredIpAddress) {
        let place = self.addresses.id(object.ip);
        self.ip_address_given_up(revision, at, place, object.parent.as_ref());
        self.v1_stored |= object.api_version == V1;
        let address = &mut self.addresses[place];
        let fresh = address.ip_address.is_none();
        address.ip_address = Some(IpAddressObject { parent: object.parent, managed: object.managed });
        address.ip_address_revision = revision;
        if fresh {
            address.ip_address_release_until = Micros(0);
            (address.object_at, address.object_since) = (at, revision);
            address.object_was_held = !address.owners.is_empty();
            self.occupancy.set(&mut self.addresses, place, View::IpAddresses, true, at);
        }
        self.reconsider(place, at);
    }

    pub(super) fn delete_ip_address(&mut self, revision: i64, at: Micros, ip: IpAddr) {
        let place = self.addresses.id(ip);
        self.ip_address_given_up(revision, at, place, None);
        let address = &mut self.addresses[place];
        if address.ip_address.take().is_none() {
            self.removed_unstored(revision, format!("IPAddress {ip}"));
            return;
        }
        address.ip_address_release_until = Micros(0);
        address.ip_address_revision = revision;
        (address.object_at, address.object_since) = (at, revision);
        address.object_removed = Some(at);
        self.occupancy.set(&mut self.addresses, place, View::IpAddresses, false, at);
        self.reconsider(place, at);
    }

    /// S7 for the IPAddress: it named a live owner and names it no more.
    fn ip_address_given_up(&mut self, revision: i64, at: Micros, place: AddressId, to: Option<&ServiceKey>) {
        self.judged(Rule::S7, 1);
        let address = &self.addresses[place];
        let ip = address.ip;
        let Some(object) = address.ip_address.as_ref().filter(|object| object.managed) else { return };
        if object.parent.as_ref() == to {
            return;
        }
        let lives = address.owners.iter().filter_map(|id| Some((*id, self.lives.get(*id)?)));
        let owner = lives.into_iter().find(|(_, life)| object.parent.as_ref() == Some(life.key.as_ref()));
        let Some((id, life)) = owner else {
            if !address.owners.is_empty() {
                self.addresses[place].wrong_parent_until = Some(at);
            }
            return;
        };
        if at <= address.ip_address_release_until {
            return;
        }
        let lag = self.definitions.bounds.informer_lag.0;
        let lately_wrong = address.wrong_parent_until.is_some_and(|until| until.0 + lag >= at.0);
        let repairs = self.definitions.repairs_ip_addresses;
        let repairing = self.servers.lives().iter().filter(|life| life.mode.is_some_and(repairs) && life.up_since(at));
        let repaired_twice = lately_wrong && repairing.count() > 1;
        let (service, uid) = (life.key.as_ref().clone(), life.uid.clone());
        let detail = DraftDetail::Ready(Detail::LockGivenUp { lock: Lock::IpAddress, ip, service, uid });
        let around = Around::Lock(AroundLock { repaired_twice, ..AroundLock::default() });
        let open = self.duplicates_of(ip, id);
        self.draft(Rule::S7, revision, at, detail, around, open);
    }

    fn bitmap_of(&self, ip: IpAddr) -> Option<&Bitmap> {
        self.bitmaps.iter().find(|bitmap| bitmap.range.is_some_and(|range| range.contains(ip)))
    }

    fn set_bit(&mut self, revision: i64, at: Micros, ip: IpAddr, set: bool) {
        let place = self.addresses.id(ip);
        let address = &mut self.addresses[place];
        let given_up = match address.owners.as_slice() {
            [owner] if !set && !address.doubled && at > address.bit_release_until => Some(*owner),
            _ => None,
        };
        address.bit = set;
        address.bit_revision = revision;
        address.bit_at = at;
        address.bit_release_until = Micros(0);
        self.judged.add(Rule::S7, u64::from(!set));
        if set {
            address.bit_was_held = !address.owners.is_empty();
        } else {
            address.bit_cleared = Some(at);
        }
        self.occupancy.set(&mut self.addresses, place, View::Bits, set, at);
        // S7 for the bit: only for an owner that became visible with its bit set. Another's bit was never its lock.
        let owner = given_up.and_then(|id| self.lives.get(id));
        let secured = owner.filter(|life| life.held.iter().any(|held| held.current && held.ip == ip && held.bit));
        if let Some(life) = secured {
            let (service, uid) = (life.key.as_ref().clone(), life.uid.clone());
            let detail = DraftDetail::Ready(Detail::LockGivenUp { lock: Lock::Bit, ip, service, uid });
            let around = Around::Lock(AroundLock { range_replaced: self.range_written, ..AroundLock::default() });
            self.draft(Rule::S7, revision, at, detail, around, Vec::new());
        }
        self.reconsider(place, at);
    }

    /// S8.
    pub(super) fn put_range(&mut self, revision: i64, at: Micros, stored: StoredRange) {
        self.judged(Rule::S8, 1);
        let StoredRange { key, range, data } = stored;
        let range = match range.map(ServiceRange::new).transpose() {
            Ok(range) => range,
            Err(error) => {
                self.violated(Rule::S8, revision, at, Detail::BitmapInvalid { key, why: error.to_string() });
                return;
            }
        };
        let old = std::mem::take(&mut self.bitmaps[world::index(key)]);
        let same_range = old.range == range || old.range.is_none();
        let mut flips = std::mem::take(&mut self.flips);
        let mut beyond = None;
        let mut flip = |of: &Option<ServiceRange>, bit: u64, set: bool| {
            match of.as_ref().and_then(|range| address_of_bit(range, bit)) {
                Some(ip) => flips.push((ip, set)),
                // Bits that were invalid before are not reported again.
                None => beyond = beyond.max(set.then_some(bit)),
            }
        };
        if same_range {
            differing_bits(&old.data, &data, |bit, set| flip(&range, bit, set));
        } else {
            differing_bits(&old.data, &[], |bit, _| flip(&old.range, bit, false));
            differing_bits(&[], &data, |bit, set| flip(&range, bit, set));
            let from = old.range.map(|range| range.net());
            self.range_replaced(revision, at, key, from, range.map(|range| range.net()));
        }
        if let Some(bit) = beyond {
            let bits = range.map_or("no range and so no".to_string(), |it| it.usable_in_bitmap().len().to_string());
            let why = format!("bit {bit} is set, but the bitmap has {bits} bits");
            self.violated(Rule::S8, revision, at, Detail::BitmapInvalid { key, why });
        }
        let before = if same_range { old.set } else { 0 };
        let counted = flips.iter().filter(|(ip, _)| range.is_some_and(|range| range.contains(*ip)));
        let set = counted.fold(before, |count, (_, set)| if *set { count + 1 } else { count.saturating_sub(1) });
        let full_until = old.full(at).filter(|_| same_range);
        self.bitmaps[world::index(key)] = Bitmap { exists: true, range, data, revision, set, full_until };
        self.range_written = !same_range && self.writes_range_of(range.map(|range| range.net()), key);
        if same_range {
            self.many_bits(revision, at, key, &flips);
        }
        for (ip, set) in flips.drain(..) {
            self.set_bit(revision, at, ip, set);
        }
        self.range_written = false;
        self.flips = flips;
    }

    pub(super) fn delete_range(&mut self, revision: i64, at: Micros, key: RangeKey) {
        let old = std::mem::take(&mut self.bitmaps[world::index(key)]);
        if !old.exists {
            self.removed_unstored(revision, format!("bitmap {key:?}"));
        }
        let mut flips = Vec::new();
        differing_bits(&old.data, &[], |bit, set| {
            flips.extend(old.range.and_then(|range| address_of_bit(&range, bit)).map(|ip| (ip, set)));
        });
        self.many_bits(revision, at, key, &flips);
        for (ip, set) in flips {
            self.set_bit(revision, at, ip, set);
        }
    }

    fn many_bits(&mut self, revision: i64, at: Micros, key: RangeKey, flips: &[(IpAddr, bool)]) {
        if flips.len() <= self.definitions.bits_per_allocation as usize {
            return;
        }
        // The first pass of a bitmap server comes before it is ready, and its last write may be delivered after its end.
        let from = Micros(at.0.saturating_sub(self.definitions.bounds.recorder_lag.0));
        let repairs = self.definitions.repairs_bitmap;
        if !self.servers.lives().iter().any(|life| life.mode.is_some_and(repairs) && life.up_since(from)) {
            let sample = flips.iter().take(SAMPLE).map(|(ip, _)| *ip).collect();
            let detail = Detail::ManyBits { key, flips: flips.len() as u32, sample };
            self.violated(Rule::S8, revision, at, detail);
        }
    }

    fn range_replaced(&mut self, revision: i64, at: Micros, key: RangeKey, from: Option<IpNet>, to: Option<IpNet>) {
        let Some(from) = from else { return };
        let holder = self.servers.lives().iter().find(|life| {
            let range = life.ranges.get(world::index(key));
            let writes = life.mode.is_some_and(|mode| mode.writes_bitmap());
            life.gone.is_none() && writes && range.is_some_and(|range| range.net() == from)
        });
        if let Some(server) = holder.map(|life| life.server) {
            let of_running_server = self.writes_range_of(to, key);
            let detail = DraftDetail::Ready(Detail::RangeReplaced { key, from, to, server });
            self.draft(Rule::S8, revision, at, detail, Around::Range { of_running_server }, Vec::new());
        }
    }

    /// Whether a running server that writes the bitmap has this range in its flag.
    fn writes_range_of(&self, range: Option<IpNet>, key: RangeKey) -> bool {
        self.servers.lives().iter().any(|life| {
            let flag = life.ranges.get(world::index(key)).map(ServiceRange::net);
            life.gone.is_none() && life.mode.is_some_and(|mode| mode.writes_bitmap()) && flag.is_some() && flag == range
        })
    }

    /// The open duplicates of an address that a Service is part of, by their drafts.
    fn duplicates_of(&self, ip: IpAddr, id: LifeId) -> Vec<usize> {
        let open = self.open_duplicates.get(&ip).into_iter().flatten();
        open.filter(|duplicate| duplicate.is_about(id)).map(|duplicate| duplicate.draft).collect()
    }

    pub(super) fn put_service_cidr(&mut self, at: Micros, cidr: &StoredServiceCidr) {
        let usable = (self.definitions.usable)(cidr);
        for range in self.cidrs.put(cidr, usable, at) {
            self.occupancy.track(range, (self.definitions.upper_band)(&range), &self.addresses);
        }
        self.rearm();
    }

    pub(super) fn delete_service_cidr(&mut self, revision: i64, at: Micros, name: &str) {
        if !self.cidrs.delete(name, at) {
            self.removed_unstored(revision, format!("ServiceCIDR {name}"));
        }
        self.rearm();
    }

    /// S10. Called in quiet phases only.
    pub(super) fn watch_fights(&mut self, revision: i64, at: Micros, change: &Change) {
        self.judged(Rule::S10, 1);
        let (key, value) = match change {
            Change::PutServiceCidr(cidr) => (format!("ServiceCIDR {}", cidr.name), hash(&format!("{cidr:?}"))),
            Change::DeleteServiceCidr(name) => (format!("ServiceCIDR {name}"), 0),
            Change::PutRange(range) => (format!("bitmap {:?}", range.key), hash(&(&range.range, &range.data))),
            Change::DeleteRange(key) => (format!("bitmap {key:?}"), 0),
            Change::PutIpAddress(object) => {
                (format!("IPAddress {}", object.ip), hash(&(&object.parent, object.managed)))
            }
            Change::DeleteIpAddress(ip) => (format!("IPAddress {ip}"), 0),
            Change::PutService(service) => (format!("Service {}", service.key), hash(&(&service.uid, &service.ips))),
            Change::DeleteService(key) => (format!("Service {key}"), 0),
        };
        if let Some(alternations) = self.fights.write(&key, value, self.definitions.bounds.rewrites) {
            self.violated(Rule::S10, revision, at, Detail::Fight { key, alternations });
        }
    }
}

/// The last two values of every key written in this quiet phase.
#[derive(Debug, Default)]
pub(super) struct Fights(FxHashMap<String, Fight>);

#[derive(Debug, Default)]
struct Fight {
    last: Option<u64>,
    before: Option<u64>,
    alternations: u32,
    reported: bool,
}

impl Fights {
    /// A new quiet phase begins.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// How often the key went back to the value before, the first time that is more often than allowed.
    fn write(&mut self, key: &str, value: u64, allowed: u32) -> Option<u32> {
        let fight = self.0.entry(key.to_string()).or_default();
        // Writing the same again is not going back.
        if fight.last == Some(value) {
            return None;
        }
        fight.alternations += u32::from(fight.before == Some(value));
        (fight.before, fight.last) = (fight.last, Some(value));
        if fight.reported || fight.alternations <= allowed {
            return None;
        }
        fight.reported = true;
        Some(fight.alternations)
    }
}

/// The first address that another one of its family has replaced, or the primary one that was taken away.
fn changed_address(was: &[IpAddr], now: &[IpAddr]) -> Option<(IpAddr, Option<IpAddr>)> {
    if let (Some(from), Some(to)) = (was.first(), now.first())
        && from != to
    {
        return Some((*from, Some(*to)));
    }
    was.iter().enumerate().find_map(|(index, from)| {
        let to = now.iter().find(|to| to.is_ipv4() == from.is_ipv4()).copied();
        match to {
            Some(to) if to == *from => None,
            Some(to) => Some((*from, Some(to))),
            // A second family may be given back.
            None => (index == 0).then_some((*from, now.first().copied())),
        }
    })
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
