//! Rules about calls: S3, S4, S5, S6, S9, S11, S12, E6, E7, E8. Each call is joined to the Service it stored, by key and uid; a call
//! with unknown outcome is decided by what the recording shows.

use super::attribution::{Around, AroundRefusal, HalfTaken, LeftBy};
use super::topology::ServerLife;
use super::verdict::ServerStatistics;
use super::violation::{Detail, Lock, MadeBy, Owner};
use super::world::{LifeId, Parent};
use super::{BrokenAssumption, Draft, DraftDetail, Judge, Rule, Sometimes, Undecided, View};
use crate::gates::AllocatorMode;
use crate::history::{Micros, Operation, OperationKind, Outcome, ServerId, ServiceKey};
use crate::net::ServiceRange;
use crate::refusal::Refusal;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Until when each server was last busy with a creation, and with which address: overlaps show from returns alone,
/// because calls are recorded in the order of return.
#[derive(Debug, Default)]
pub(super) struct Race {
    busy_until: BTreeMap<ServerId, Micros>,
    /// By address: who was asked for it last, until when, and whether this meeting of calls was counted.
    asked_until: FxHashMap<IpAddr, (ServerId, Micros, bool)>,
    /// Until when each server last answered any call.
    answered: BTreeMap<ServerId, Micros>,
}

impl Race {
    /// Whether the last calls that asked for this address met at two servers.
    pub fn was_contested(&self, ip: IpAddr) -> bool {
        self.asked_until.get(&ip).is_some_and(|(.., counted)| *counted)
    }

    /// Whether a server other than this one has answered since.
    pub fn answered_elsewhere(&self, server: ServerId, since: Micros) -> bool {
        self.answered.iter().any(|(other, at)| *other != server && *at >= since)
    }
}

/// A call that may have left a lock: refused after it may have taken one, or cut off by the end of its server.
#[derive(Debug)]
pub(super) struct FailedCall {
    /// Empty for a create that left the choice to the server.
    wanted: Vec<IpAddr>,
    invoked: Micros,
    until: Micros,
    cut_off: bool,
}

/// What the creations of each server life wrote, by server and start of its life.
pub(super) type ModesSeen = BTreeMap<(ServerId, Micros), BTreeMap<Option<AllocatorMode>, u64>>;

/// So many creations must show another mode than the planned one before the plan is doubted: a single one can meet a
/// write of another server.
const CREATIONS_TO_DOUBT: u64 = 10;

impl Judge<'_> {
    pub(super) fn see_race(&mut self, operation: &Operation) {
        let (server, invoked, returned) = (operation.server, operation.invoked, operation.returned);
        match &operation.outcome {
            Outcome::Ok { .. } | Outcome::Refused { .. } => drop(self.race.answered.insert(server, returned)),
            Outcome::Unknown { .. } => {}
        }
        let OperationKind::CreateService { wanted, .. } = &operation.kind else { return };
        if self.race.busy_until.iter().any(|(other, until)| *other != server && *until > invoked) {
            self.met(Sometimes::CreationsOverlapped);
        }
        self.race.busy_until.insert(server, returned);
        let mut same = false;
        for ip in wanted {
            let before = self.race.asked_until.get(ip).copied().filter(|(_, until, _)| *until > invoked);
            let meets = before.is_some_and(|(other, ..)| other != server);
            let counted = before.is_some_and(|(.., counted)| counted);
            same |= meets && !counted;
            self.race.asked_until.insert(*ip, (server, returned, counted || meets));
        }
        if same {
            self.met(Sometimes::SameAddressOverlapped);
        }
    }

    /// Judges a call whose effects the recorder has delivered.
    pub(super) fn settle(&mut self, operation: &Operation) {
        self.note_given_up(operation);
        self.note_open_outcome(operation);
        let (service, wanted) = match &operation.kind {
            OperationKind::CreateService { service, wanted } => (service, wanted),
            OperationKind::DeleteService { service } => return self.deleted(operation, service),
            OperationKind::ChangeType { service, .. } => return self.rewritten(operation, service, &[]),
            OperationKind::UpdateService { service, wanted } => return self.rewritten(operation, service, wanted),
            OperationKind::CreateServiceCidr { .. } | OperationKind::DeleteServiceCidr { .. } => return,
        };
        self.note_failed(operation, wanted);
        let killed = self.servers.life_at(operation.server, operation.invoked).and_then(|life| life.gone);
        if killed.is_some_and(|gone| operation.invoked <= gone && gone <= operation.returned) {
            self.met(Sometimes::KilledInFlight);
        }
        let refused = match &operation.outcome {
            Outcome::Ok { granted, uid, revision } => {
                self.granted(operation, service, wanted, granted, uid, *revision);
                return;
            }
            Outcome::Refused { code, reason, message } => {
                let refusal = (self.definitions.refusal)(*code, reason, message);
                self.refused(operation, service, wanted, refusal, *code);
                Some((refusal, *code))
            }
            Outcome::Unknown { .. } => None,
        };
        self.decide_later(service, operation, refused);
    }

    fn granted(
        &mut self,
        operation: &Operation,
        service: &ServiceKey,
        wanted: &[IpAddr],
        granted: &[IpAddr],
        uid: &str,
        answered: i64,
    ) {
        let made_by = self.made_by(operation);
        let owner = || Owner { service: service.clone(), uid: uid.to_string(), made_by: Some(made_by) };
        let took = (self.definitions.took)(operation);
        let (statistics, latency) = self.answers.entry(operation.server).or_default();
        statistics.ok += 1;
        latency.add(took);
        self.met(Sometimes::Granted);
        self.judged(Rule::S4, 1);
        let (asked, chosen) = if wanted.is_empty() { (Rule::E6, None) } else { (Rule::E8, Some(Rule::S6)) };
        self.judged(asked, 1);
        chosen.into_iter().for_each(|rule| self.judged(rule, 1));
        if self.context.latency_bound.is_some() {
            self.judged(Rule::E7, 1);
        }
        if self.context.latency_bound.is_some_and(|bound| took > bound) {
            self.violated(Rule::E7, answered, operation.returned, Detail::Slow { owner: owner(), took });
        }
        if !granted.starts_with(wanted) {
            let (wanted, granted) = (wanted.to_vec(), granted.to_vec());
            let detail = Detail::WrongAddress { owner: owner(), wanted, granted };
            self.violated(Rule::S6, answered, operation.returned, detail);
        }
        let found = self.lives.of(service).find(|id| self.lives.get(*id).is_some_and(|life| life.uid == uid));
        let stored = found.and_then(|id| self.lives.get(id));
        let as_answered = stored.is_some_and(|life| {
            life.created_revision <= answered && life.created_with().map(|held| held.ip).eq(granted.iter().copied())
        });
        if !as_answered {
            let detail = Detail::LostWrite {
                owner: owner(),
                answered_revision: answered,
                granted: granted.to_vec(),
                stored: stored.map(|life| life.created_with().map(|held| held.ip).collect()),
            };
            self.violated(Rule::S4, answered, operation.returned, detail);
        }
        if let Some(id) = found {
            self.join(id, made_by);
        }
    }

    /// A call with an open outcome says something only where its server or etcd was disturbed.
    fn note_open_outcome(&mut self, operation: &Operation) {
        let Outcome::Unknown { detail } = &operation.outcome else { return };
        let (server, invoked, returned) = (operation.server, operation.invoked, operation.returned);
        let lag = self.definitions.bounds.recorder_lag.0;
        let (from, until) = (Micros(invoked.0.saturating_sub(lag)), Micros(returned.0 + lag));
        if !self.servers.was_leaving(server, from, until) && !self.servers.was_disturbed(server, from, until) {
            let (client, detail) = (operation.client, detail.clone());
            self.assumptions.break_one(BrokenAssumption::OpenOutcome { client, server, invoked, detail });
        }
    }

    /// Keeps a creation that failed where it may have left a lock.
    fn note_failed(&mut self, operation: &Operation, wanted: &[IpAddr]) {
        let (cut_off, leaves) = match &operation.outcome {
            Outcome::Ok { .. } => (false, false),
            Outcome::Refused { code, reason, message } => {
                let refusal = (self.definitions.refusal)(*code, reason, message);
                let mode = self.servers.life_at(operation.server, operation.invoked).and_then(|life| life.mode);
                let one_lock = mode != Some(AllocatorMode::DualWrite) && refusal.is_some_and(Refusal::is_taken);
                (false, !one_lock && refusal != Some(Refusal::RangeFull))
            }
            Outcome::Unknown { .. } => (true, true),
        };
        if leaves {
            let until = Micros(operation.returned.0 + self.definitions.bounds.recorder_lag.0);
            let (wanted, invoked) = (wanted.to_vec(), operation.invoked);
            self.failed_calls.push(FailedCall { wanted, invoked, until, cut_off });
        }
    }

    /// The failed call during which a lock of this address was taken that no Service ever followed.
    fn kept_by(&self, ip: IpAddr, taken_at: Micros) -> LeftBy {
        let during = |call: &&FailedCall| call.invoked <= taken_at && taken_at <= call.until;
        let about = |call: &&FailedCall| call.wanted.is_empty() || call.wanted.contains(&ip);
        let calls = || self.failed_calls.iter().filter(during).filter(about);
        if calls().any(|call| call.wanted.contains(&ip) && !call.cut_off) {
            return LeftBy::RefusedCall;
        }
        match calls().map(|call| call.cut_off).max() {
            Some(true) => LeftBy::CutOffCall,
            Some(false) => LeftBy::RefusedCall,
            None => LeftBy::Nothing,
        }
    }

    /// Who left the bit, and who left the IPAddress, of an address that no Service holds.
    pub(super) fn left_by(&self, ip: IpAddr, lock: Lock) -> LeftBy {
        let Some(address) = self.addresses.get(ip) else { return LeftBy::Nothing };
        let (was_held, taken_at) = match lock {
            Lock::Bit => (address.bit_was_held, address.bit_at),
            Lock::IpAddress => (address.object_was_held, address.object_at),
        };
        if was_held { address.left_by } else { self.kept_by(ip, taken_at) }
    }

    /// S11, and through whom the addresses of a deleted Service were left.
    fn deleted(&mut self, operation: &Operation, service: &ServiceKey) {
        let by = match &operation.outcome {
            Outcome::Ok { .. } => self.left_through(operation, false),
            Outcome::Unknown { .. } => self.left_through(operation, true),
            Outcome::Refused { .. } => return,
        };
        let until = self.departure_until(operation);
        self.depart(service, operation.invoked, until, true, by);
        if let Outcome::Ok { .. } = operation.outcome {
            self.judged(Rule::S11, 1);
            let still = self.lives.live(service).and_then(|id| self.lives.get(id));
            let still = still.filter(|life| life.created < operation.invoked && !life.deleting);
            if let Some(uid) = still.map(|life| life.uid.clone()) {
                let (service, server) = (service.clone(), operation.server);
                self.violated(Rule::S11, 0, operation.returned, Detail::DeletedButStored { service, uid, server });
            }
        }
    }

    fn left_through(&self, operation: &Operation, unknown: bool) -> LeftBy {
        if unknown {
            return LeftBy::CutOffCall;
        }
        let mode = self.servers.life_at(operation.server, operation.invoked).and_then(|life| life.mode);
        mode.map_or(LeftBy::Nothing, LeftBy::Release)
    }

    /// Until when a call may still show in the recording.
    fn departure_until(&self, operation: &Operation) -> Micros {
        match operation.outcome {
            Outcome::Ok { .. } | Outcome::Refused { .. } => {
                Micros(operation.returned.0 + self.definitions.bounds.recorder_lag.0)
            }
            Outcome::Unknown { .. } => Micros(u64::MAX),
        }
    }

    /// Joins a call to what a Service gave up during it.
    fn depart(&mut self, service: &ServiceKey, from: Micros, until: Micros, ended: bool, by: LeftBy) {
        let Some(departures) = self.departures.get_mut(service) else { return };
        let addresses = &mut self.addresses;
        departures.retain(|departure| {
            let theirs = departure.ended.is_some() == ended && from <= departure.at && departure.at <= until;
            if theirs {
                for id in &departure.addresses {
                    if addresses[*id].left_at == Some(departure.at) {
                        addresses[*id].left_by = by;
                    }
                }
            }
            !theirs
        });
        if departures.is_empty() {
            self.departures.remove(service);
        }
    }

    /// S11 for what is left: Services that a call created and none deleted.
    pub(super) fn vanished(&mut self) {
        let until = self.servers.teardown.unwrap_or(Micros(u64::MAX));
        let mut gone = Vec::new();
        for (service, departures) in &self.departures {
            for departure in departures.iter().filter(|departure| departure.at < until) {
                if let Some(uid) = departure.ended.clone().filter(|_| self.assumptions.is_created_by_a_call(service)) {
                    gone.push((departure.revision, departure.at, service.as_ref().clone(), uid));
                }
            }
        }
        gone.sort();
        for (revision, at, service, uid) in gone {
            self.judged(Rule::S11, 1);
            self.violated(Rule::S11, revision, at, Detail::Vanished { service, uid });
        }
    }

    /// A change of type or an update: what a creation is judged by, for the addresses that it took.
    fn rewritten(&mut self, operation: &Operation, service: &ServiceKey, wanted: &[IpAddr]) {
        let (until, by) = match &operation.outcome {
            Outcome::Ok { .. } => (self.departure_until(operation), self.left_through(operation, false)),
            Outcome::Unknown { .. } => (self.departure_until(operation), self.left_through(operation, true)),
            Outcome::Refused { .. } => return,
        };
        self.depart(service, operation.invoked, until, false, by);
        let Outcome::Ok { granted, uid, revision: answered } = &operation.outcome else { return };
        let made_by = self.made_by(operation);
        let found = self.lives.of(service).find(|id| self.lives.get(*id).is_some_and(|life| life.uid == *uid));
        let Some((id, life)) = found.and_then(|id| Some((id, self.lives.get(id)?))) else { return };
        let stored = life.ips.clone();
        let lost = life.written <= *answered && stored != *granted;
        let taken: Vec<usize> = (life.held.iter().enumerate())
            .filter(|(_, held)| held.at >= operation.invoked && held.revision <= *answered && held.taken_by.is_none())
            .filter(|(_, held)| held.revision > life.created_revision)
            .map(|(index, _)| index)
            .collect();
        self.judged(Rule::S4, 1);
        let owner = || Owner { service: service.clone(), uid: uid.clone(), made_by: Some(made_by) };
        if lost {
            let (answered_revision, granted) = (*answered, granted.clone());
            let detail = Detail::LostWrite { owner: owner(), answered_revision, granted, stored: Some(stored) };
            self.violated(Rule::S4, *answered, operation.returned, detail);
        }
        if !wanted.is_empty() {
            self.judged(Rule::S6, 1);
            if !granted.starts_with(wanted) {
                let (wanted, granted) = (wanted.to_vec(), granted.clone());
                let detail = Detail::WrongAddress { owner: owner(), wanted, granted };
                self.violated(Rule::S6, *answered, operation.returned, detail);
            }
        }
        taken.into_iter().for_each(|index| self.judge_taken(id, index, made_by));
    }

    /// A change of type that took the addresses of a Service away, or was cut off.
    fn note_given_up(&mut self, operation: &Operation) {
        let OperationKind::ChangeType { service, .. } = &operation.kind else { return };
        match &operation.outcome {
            Outcome::Ok { granted, .. } if granted.is_empty() => {
                let until = Micros(operation.returned.0 + self.definitions.bounds.recorder_lag.0);
                self.given_up.entry(service.clone()).or_default().push((operation.invoked, until));
            }
            // Only the end of the server between call and answer leaves the Service without its lock.
            Outcome::Unknown { .. }
                if self.servers.was_leaving(operation.server, operation.invoked, operation.returned) =>
            {
                let until = Micros(operation.returned.0 + self.definitions.bounds.recorder_lag.0);
                self.cut_off_changes.entry(service.clone()).or_default().push((operation.invoked, until));
            }
            Outcome::Ok { .. } | Outcome::Refused { .. } | Outcome::Unknown { .. } => {}
        }
    }

    /// Whether a lock was given up by a change of type that was under way and took the address away as well. Real
    /// servers (1.31 to 1.37) release first and store the Service second; the answer covers both.
    pub(super) fn given_up_by_its_service(&self, detail: &DraftDetail, at: Micros) -> bool {
        let DraftDetail::Ready(Detail::LockGivenUp { service, .. }) = detail else { return false };
        let windows = self.given_up.get(service);
        windows.is_some_and(|windows| windows.iter().any(|(invoked, until)| *invoked <= at && at <= *until))
    }

    /// Whether a change of type of this Service was under way and was cut off by the end of its server.
    pub(super) fn change_was_cut_off(&self, service: &ServiceKey, at: Micros) -> bool {
        let windows = self.cut_off_changes.get(service);
        windows.is_some_and(|windows| windows.iter().any(|(invoked, until)| *invoked <= at && at <= *until))
    }

    fn made_by(&self, operation: &Operation) -> MadeBy {
        let dynamic = match &operation.kind {
            OperationKind::CreateService { wanted, .. } | OperationKind::UpdateService { wanted, .. } => {
                wanted.is_empty()
            }
            OperationKind::DeleteService { .. }
            | OperationKind::ChangeType { .. }
            | OperationKind::CreateServiceCidr { .. }
            | OperationKind::DeleteServiceCidr { .. } => false,
        };
        MadeBy {
            client: operation.client,
            server: operation.server,
            mode: self.servers.life_at(operation.server, operation.invoked).and_then(|life| life.mode),
            dynamic,
            invoked: operation.invoked,
            returned: operation.returned,
        }
    }

    /// Now that it is known who made a Service: S3 and S9.
    fn join(&mut self, id: LifeId, made_by: MadeBy) {
        let Some(life) = self.lives.get_mut(id) else { return };
        life.made_by = Some(made_by);
        let (created, count) = (life.created_revision, life.held.len());
        for index in 0..count {
            if self.lives.get(id).and_then(|life| life.held.get(index)).is_some_and(|held| held.revision == created) {
                self.judge_taken(id, index, made_by);
            }
        }
        self.lives.forget(id);
    }

    /// S3, S9 and S12 for one address, now that it is known which call took it.
    fn judge_taken(&mut self, id: LifeId, index: usize, made_by: MadeBy) {
        let Some(held) = self.lives.get_mut(id).and_then(|life| life.held.get_mut(index)) else { return };
        held.taken_by = Some(made_by);
        let (revision, at) = (held.revision, held.at);
        let Some(server) = self.servers.life_at(made_by.server, made_by.invoked).cloned() else { return };
        let Some(mode) = server.mode else { return };
        self.see_mode(&server, mode, id, index, made_by);
        if (self.definitions.holds_both_locks)(mode) {
            self.judged(Rule::S9, 1);
            if let Some(detail) = self.judge_locks(&server, id, index, made_by) {
                self.violated(Rule::S9, revision, at, detail);
            }
            if let Some(detail) = self.judge_order(&server, id, index, made_by) {
                self.violated(Rule::S12, revision, at, detail);
            }
        }
        self.judged(Rule::S3, 1);
        if let Some(detail) = self.judge_range(&server, mode, id, index, made_by) {
            self.violated(Rule::S3, revision, at, detail);
        }
    }

    /// Which locks a creation wrote itself says in which mode its server really is.
    fn see_mode(&mut self, server: &ServerLife, mode: AllocatorMode, id: LifeId, index: usize, made_by: MadeBy) {
        let Some(held) = self.lives.get(id).and_then(|life| life.held.get(index)) else { return };
        // Where two servers were asked for the address at once, the other one may have written a lock.
        let contested =
            self.race.was_contested(held.ip) || self.addresses.get(held.ip).is_none_or(|address| address.doubled);
        let has_bitmap = server
            .bitmap_range(held.ip)
            .is_some_and(|range| self.bitmaps.iter().any(|bitmap| bitmap.range == Some(*range)));
        let full = held.bitmap_full.is_some_and(|full| full >= made_by.invoked);
        if contested || !has_bitmap && mode.writes_bitmap() || full || !self.context.bitmaps_recorded {
            return;
        }
        let bit = held.bit && held.bit_at >= made_by.invoked;
        let object = held.parent == Parent::ThisService && held.object_at >= made_by.invoked;
        let seen = match (bit, object) {
            (true, false) => Some(AllocatorMode::Bitmap),
            (true, true) => Some(AllocatorMode::DualWrite),
            (false, true) => Some(AllocatorMode::IpAddress),
            (false, false) => None,
        };
        *self.modes_seen.entry((server.server, server.started)).or_default().entry(seen).or_default() += 1;
    }

    /// Compares the mode of every server with what most of its creations wrote.
    pub(super) fn doubt_modes(&mut self) {
        for ((server, started), counts) in std::mem::take(&mut self.modes_seen) {
            let planned = self.servers.life_at(server, started).and_then(|life| life.mode);
            let of: u64 = counts.values().sum();
            let most = counts.into_iter().max_by_key(|(_, count)| *count);
            if let (Some(planned), Some((seen, showing))) = (planned, most)
                && seen != Some(planned)
                && showing >= CREATIONS_TO_DOUBT
                && showing * 2 > of
            {
                self.assumptions.break_one(BrokenAssumption::ModeDiffers { server, planned, seen, showing, of });
            }
        }
    }

    /// S12 for one address: 1.33 turned the order of dynamic creations around (k/k PR 129798); a create that asks for an
    /// address takes the bit first in every version.
    fn judge_order(&mut self, server: &ServerLife, id: LifeId, index: usize, made_by: MadeBy) -> Option<Detail> {
        let held = self.lives.get(id)?.held.get(index)?;
        let both_by_this_call = held.bit
            && held.parent == Parent::ThisService
            && held.bit_at >= made_by.invoked
            && held.object_at >= made_by.invoked;
        // Somebody else cleared the bit of this address meanwhile, and who set it again is not known.
        let cleared = self.addresses.get(held.ip).and_then(|address| address.bit_cleared);
        let moved = cleared.is_some_and(|cleared| cleared >= made_by.invoked);
        if !both_by_this_call || moved || !self.context.bitmaps_recorded {
            return None;
        }
        let (ip, bit_revision, ip_address_revision) = (held.ip, held.bit_revision, held.object_since);
        let first = if made_by.dynamic && server.claims_ip_address_first() { Lock::IpAddress } else { Lock::Bit };
        self.judged(Rule::S12, 1);
        let as_it_must_be = match first {
            Lock::Bit => bit_revision < ip_address_revision,
            Lock::IpAddress => ip_address_revision < bit_revision,
        };
        if as_it_must_be {
            return None;
        }
        Some(Detail::LockOrder { owner: self.owner(id)?, ip, bit_revision, ip_address_revision, first })
    }

    /// Since when the picture may be that a server in this mode decided on. A bitmap server reads the bitmap itself,
    /// under its compare-and-swap.
    fn picture_since(&self, server: &ServerLife, mode: AllocatorMode, asked: Micros) -> Micros {
        match mode {
            AllocatorMode::Bitmap => asked,
            AllocatorMode::DualWrite | AllocatorMode::IpAddress => {
                self.servers.picture_since(server, asked, self.definitions.bounds.informer_lag)
            }
        }
    }

    /// S3 for one address of a new Service.
    fn judge_range(
        &mut self,
        server: &ServerLife,
        mode: AllocatorMode,
        id: LifeId,
        index: usize,
        made_by: MadeBy,
    ) -> Option<Detail> {
        let ip = self.lives.get(id)?.held.get(index)?.ip;
        let since = self.picture_since(server, mode, made_by.invoked);
        let can_grant = |range: &ServiceRange| (self.definitions.can_grant)(range, ip);
        let as_asked = |range: &ServiceRange| !made_by.dynamic || (self.definitions.upper_band)(range).contains(ip);
        let (flag, cidrs) = match mode {
            AllocatorMode::Bitmap => (server.ranges.as_slice(), None),
            AllocatorMode::DualWrite | AllocatorMode::IpAddress => (&[][..], Some(&self.cidrs)),
        };
        let ready = || {
            let cidrs = cidrs.into_iter().flat_map(|cidrs| cidrs.usable_at_some_time_since(since));
            flag.iter().copied().chain(cidrs)
        };
        if ready().any(|range| can_grant(&range) && as_asked(&range)) {
            return None;
        }
        let granting: Vec<ServiceRange> = ready().filter(can_grant).collect();
        if granting.is_empty() {
            let ready = ready().map(|range| range.net()).collect();
            return Some(Detail::OutsideRanges { owner: self.owner(id)?, ip, ready });
        }
        self.met(Sometimes::LowerBandUsed);
        let view = (self.definitions.view)(mode);
        if !self.is_seen(view) {
            return None;
        }
        let room: Vec<_> = granting
            .iter()
            .map(|range| (range.net(), self.occupancy.upper_room_since(&self.addresses, *range, view)))
            .collect();
        let had_room = |room_since: &Option<Micros>| room_since.is_some_and(|room_since| room_since < since);
        match room.first() {
            Some((range, Some(room_since))) if room.iter().all(|(_, room_since)| had_room(room_since)) => {
                let owner = self.owner(id)?;
                Some(Detail::LowerBand { owner, ip, range: *range, room_since: *room_since })
            }
            Some(_) | None => None,
        }
    }

    /// Whether the recording has what decides what is free in this view.
    fn is_seen(&self, view: View) -> bool {
        match view {
            View::Bits | View::Either => self.context.bitmaps_recorded,
            View::IpAddresses => true,
        }
    }

    /// S9 for one address of a new Service.
    fn judge_locks(&mut self, server: &ServerLife, id: LifeId, index: usize, made_by: MadeBy) -> Option<Detail> {
        let held = self.lives.get(id)?.held.get(index)?;
        let (ip, at, has_bit) = (held.ip, held.at, held.bit);
        let ip_address = held.parent == Parent::ThisService;
        if has_bit && ip_address {
            return None;
        }
        let range = *server.bitmap_range(ip)?;
        // With another range in the key the bitmap gives nothing, and dual write goes on without it.
        let same_range = self.bitmaps.iter().any(|bitmap| bitmap.range == Some(range));
        let undisturbed = self.servers.undisturbed(server, made_by.invoked, at);
        // A full bitmap makes a dynamic allocation go on without it as well.
        let full = made_by.dynamic
            && self
                .occupancy
                .room_since(&self.addresses, range, View::Bits)
                .is_none_or(|room_since| room_since >= made_by.invoked);
        let bit = has_bit || !same_range || full || !undisturbed || !self.context.bitmaps_recorded;
        if bit && ip_address {
            return None;
        }
        Some(Detail::HalfDualWrite { owner: self.owner(id)?, ip, bit: has_bit, ip_address })
    }

    fn refused(
        &mut self,
        operation: &Operation,
        service: &ServiceKey,
        wanted: &[IpAddr],
        refusal: Option<Refusal>,
        code: u16,
    ) {
        let statistics = self.server(operation.server);
        match refusal {
            Some(refusal) => *statistics.refused.entry(refusal).or_default() += 1,
            None => statistics.refused_otherwise += 1,
        }
        let taken = refusal.is_some_and(Refusal::is_taken);
        if refusal == Some(Refusal::RangeFull) {
            self.met(Sometimes::RangeFull);
        } else if taken {
            self.met(Sometimes::AddressTaken);
        }
        if wanted.is_empty() {
            self.judged(Rule::E6, 1);
        }
        let stopping = self.is_stopping(operation);
        let out_of_reach = refusal == Some(Refusal::Stopping) && !stopping;
        if !wanted.is_empty() && (taken || out_of_reach) {
            self.judged(Rule::E8, 1);
            self.refused_without_owner(operation, service, wanted, code);
        }
        if wanted.is_empty() && (refusal.is_some_and(Refusal::is_failed_allocation) || out_of_reach) {
            self.refused_though_free(operation, service, refusal, code);
        }
    }

    /// Whether a server was asked to stop before it answered.
    fn is_stopping(&self, operation: &Operation) -> bool {
        let life = self.servers.life_at(operation.server, operation.invoked);
        life.and_then(|life| life.stop_asked).is_some_and(|asked| asked <= operation.returned)
    }

    /// E8: each address that was asked for and refused, and that no Service held from call to answer.
    fn refused_without_owner(&mut self, operation: &Operation, service: &ServiceKey, wanted: &[IpAddr], code: u16) {
        let Some(life) = self.servers.life_at(operation.server, operation.invoked).cloned() else { return };
        let Some(mode) = life.mode else { return };
        if !self.is_seen((self.definitions.view)(mode)) {
            return;
        }
        let (invoked, returned) = (operation.invoked, operation.returned);
        if wanted.iter().any(|ip| self.was_held(*ip, invoked, returned)) {
            return;
        }
        let mut found = Vec::new();
        for ip in wanted {
            let address = self.addresses.get(*ip);
            // Taken before the call and kept to its end, or taken or given up meanwhile by a call of somebody else.
            let there = |is: bool, at: Micros, gone: Option<Micros>| {
                let moved = gone.is_some_and(|gone| gone >= invoked) || is && invoked <= at && at <= returned;
                (is && at < invoked, moved)
            };
            let (bit, bit_moved) = address.map_or((false, false), |it| there(it.bit, it.bit_at, it.bit_cleared));
            let (object, object_moved) =
                address.map_or((false, false), |it| there(it.ip_address.is_some(), it.object_at, it.object_removed));
            // Only the locks that this server reads can be the reason.
            let (reads_bit, reads_object) = (mode.writes_bitmap(), mode.writes_ip_addresses());
            let moved = reads_bit && bit_moved || reads_object && object_moved;
            if moved && !(reads_bit && bit || reads_object && object) {
                return;
            }
            let left_by = |lock, there: bool| there.then(|| self.left_by(*ip, lock));
            let around =
                Around::Static { mode, bit: left_by(Lock::Bit, bit), ip_address: left_by(Lock::IpAddress, object) };
            let owner = Owner { service: service.clone(), uid: String::new(), made_by: Some(self.made_by(operation)) };
            found.push((Detail::RefusedWithoutOwner { owner, ip: *ip, code, bit, ip_address: object }, around));
        }
        self.statistics.refused_without_owner += 1;
        for (detail, around) in found {
            self.draft(Rule::E8, 0, returned, DraftDetail::Ready(detail), around, Vec::new());
        }
    }

    /// Whether a Service held the address at some moment of a call, or got it from one that was under way then.
    fn was_held(&self, ip: IpAddr, invoked: Micros, returned: Micros) -> bool {
        let Some(address) = self.addresses.get(ip) else { return false };
        if address.owners.is_empty() {
            return address.left_at.is_some_and(|left| left >= invoked);
        }
        let from_the_call = |id: &LifeId| {
            let held = self.lives.get(*id).and_then(|life| life.held.iter().rfind(|held| held.ip == ip));
            held.and_then(|held| held.taken_by).is_none_or(|taken| taken.invoked <= returned)
        };
        address.taken_at <= returned
            || address.owners.len() > 1
            || address.left_at.is_some_and(|left| left >= invoked)
            || address.owners.iter().any(from_the_call)
    }

    /// E6.
    fn refused_though_free(
        &mut self,
        operation: &Operation,
        service: &ServiceKey,
        refusal: Option<Refusal>,
        code: u16,
    ) {
        let Some(server) = self.servers.life_at(operation.server, operation.invoked).cloned() else { return };
        let Some(mode) = server.mode else { return };
        let since = self.picture_since(&server, mode, operation.invoked);
        let stopping = self.is_stopping(operation);
        if !stopping && !self.servers.undisturbed(&server, operation.invoked, operation.returned) {
            return;
        }
        let candidates = match mode {
            AllocatorMode::Bitmap => server.ranges.clone(),
            AllocatorMode::DualWrite | AllocatorMode::IpAddress => self.cidrs.usable_throughout(since),
        };
        // `NewIPAllocator` takes no IPv6 prefix shorter than /64.
        let candidates: Vec<_> =
            candidates.into_iter().filter(|range| range.is_ipv4() || range.net().prefix_len() >= 64).collect();
        let view = (self.definitions.view)(mode);
        if !self.is_seen(view) {
            return;
        }
        // The call does not say which families it needs, so every family of the server must have had room.
        let mut shown = None;
        for flag in &server.ranges {
            let mut of_family = candidates.iter().filter(|range| range.is_ipv4() == flag.is_ipv4());
            let room = of_family.find_map(|range| {
                let room_since = self.occupancy.room_since(&self.addresses, *range, view)?;
                (room_since < since).then(|| (range.net(), room_since))
            });
            let Some(room) = room else { return };
            shown.get_or_insert(room);
        }
        let Some((range, room_since)) = shown else { return };
        let half_taken = self.half_taken(&server, operation, refusal);
        if !half_taken.is_empty() && half_taken.iter().all(|half| *half == HalfTaken::InFlight) {
            self.statistics.lost_between_locks += 1;
            return;
        }
        let owner = Owner { service: service.clone(), uid: String::new(), made_by: Some(self.made_by(operation)) };
        let detail = DraftDetail::Ready(Detail::RefusedThoughFree { owner, refusal, code, range, room_since });
        let flag = server.ranges.first().copied();
        let around = Around::Refusal(AroundRefusal {
            mode,
            minor: server.minor,
            stopping,
            bitmap_of_other_range: self.bitmaps[0].range.is_some() && self.bitmaps[0].range != flag,
            default_range_going: !self.cidrs.usable_throughout(since).iter().any(|range| Some(*range) == flag),
            half_taken,
        });
        self.draft(Rule::E6, 0, operation.returned, detail, around, Vec::new());
    }

    /// Keeps a refused call, or one with unknown outcome, until it can have no effect any more.
    fn decide_later(&mut self, service: &ServiceKey, operation: &Operation, refused: Option<(Option<Refusal>, u16)>) {
        let until = Micros(operation.returned.0 + self.definitions.bounds.late_effect.0);
        let invoked = operation.invoked;
        let undecided = Undecided { operation: operation.clone(), refused };
        let found = self
            .lives
            .of(service)
            .find(|id| self.lives.get(*id).is_some_and(|life| life.made_by.is_none() && life.created >= invoked));
        match found {
            Some(id) => self.decide(id, &undecided),
            None => {
                self.undecided_order.push_back((until, service.clone()));
                if let Some(earlier) = self.undecided.insert(service.clone(), undecided) {
                    self.not_stored(&earlier);
                }
            }
        }
    }

    /// A Service was stored: it may be that of a call whose outcome is open.
    pub(super) fn join_undecided(&mut self, id: LifeId) {
        if self.undecided.is_empty() {
            return;
        }
        let Some(life) = self.lives.get(id) else { return };
        if let Some(undecided) = self.undecided.remove(life.key.as_ref()) {
            self.decide(id, &undecided);
        }
    }

    fn decide(&mut self, id: LifeId, undecided: &Undecided) {
        let operation = &undecided.operation;
        match undecided.refused {
            None => {
                self.met(Sometimes::UnknownWasStored);
                self.server(operation.server).unknown_stored += 1;
                let made_by = self.made_by(operation);
                self.join(id, made_by);
            }
            Some((refusal, code)) => {
                if !self.context.names_are_unique || refusal == Some(Refusal::AlreadyExists) {
                    return;
                }
                let Some(life) = self.lives.get(id) else { return };
                let (revision, at) = (life.created_revision, life.created);
                let kept = self.draft(
                    Rule::S5,
                    revision,
                    at,
                    DraftDetail::RefusedButStored { life: id, refusal, code },
                    Around::Nothing,
                    Vec::new(),
                );
                let made_by = self.made_by(operation);
                if let Some(life) = self.lives.get_mut(id).filter(|_| kept) {
                    life.pins += 1;
                    life.made_by = Some(made_by);
                }
            }
        }
    }

    fn not_stored(&mut self, undecided: &Undecided) {
        self.judged(Rule::S5, u64::from(undecided.refused.is_some()));
        if undecided.refused.is_none() {
            self.met(Sometimes::UnknownWasNotStored);
            self.server(undecided.operation.server).unknown_not_stored += 1;
        }
    }

    /// Lets go of calls and Services that nothing can be joined to any more.
    pub(super) fn forget_old(&mut self) {
        while self.undecided_order.front().is_some_and(|(until, _)| *until <= self.now) {
            let Some((until, key)) = self.undecided_order.pop_front() else { break };
            let late_effect = self.definitions.bounds.late_effect.0;
            let same = |it: &Undecided| it.operation.returned.0 + late_effect == until.0;
            // An unknown outcome stays open to the end of the recording: etcd may have been paused meanwhile.
            let refused = self.undecided.get(&key).is_some_and(|it| same(it) && it.refused.is_some());
            if refused && let Some(undecided) = self.undecided.remove(&key) {
                self.not_stored(&undecided);
            }
        }
        let late_effect = self.definitions.bounds.late_effect.0;
        while self.over.front().is_some_and(|(at, _)| at.0 + late_effect <= self.now.0) {
            if let Some((_, id)) = self.over.pop_front() {
                self.lives.forget(id);
            }
        }
    }

    /// Decides what is still open at the end of the recording.
    pub(super) fn settle_all(&mut self) {
        while let Some((operation, _)) = self.calls.pop_front() {
            self.settle(&operation);
        }
        for undecided in std::mem::take(&mut self.undecided).into_values() {
            self.not_stored(&undecided);
        }
    }

    fn server(&mut self, server: ServerId) -> &mut ServerStatistics {
        &mut self.answers.entry(server).or_default().0
    }

    /// Fills in the Services of a draft.
    pub(super) fn refused_but_stored(&self, draft: &Draft) -> Option<Detail> {
        match &draft.detail {
            DraftDetail::RefusedButStored { life, refusal, code } => {
                Some(Detail::RefusedButStored { owner: self.owner(*life)?, refusal: *refusal, code: *code })
            }
            DraftDetail::Ready(_) | DraftDetail::Duplicate { .. } => None,
        }
    }
}
