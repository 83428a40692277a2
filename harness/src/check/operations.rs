//! Rules about calls: S3, S4, S5, S6, S9, E6, E7. Each call is joined to the Service it stored, by key and uid; a call
//! with unknown outcome is decided by what the recording shows.

use super::topology::ServerLife;
use super::verdict::ServerStatistics;
use super::violation::{Detail, MadeBy, Owner};
use super::world::{LifeId, Parent};
use super::{Draft, DraftDetail, Judge, Rule, Sometimes, Undecided, View};
use crate::gates::AllocatorMode;
use crate::history::{Micros, Operation, OperationKind, Outcome, ServerId, ServiceKey};
use crate::net::ServiceRange;
use crate::refusal::Refusal;
use crate::version::Minor;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Until when each server was last busy with a creation, and with which address: overlaps show from returns alone,
/// because calls are recorded in the order of return.
#[derive(Debug, Default)]
pub(super) struct Race {
    busy_until: BTreeMap<ServerId, Micros>,
    asked_until: FxHashMap<IpAddr, (ServerId, Micros)>,
}

impl Judge<'_> {
    pub(super) fn see_race(&mut self, operation: &Operation) {
        let OperationKind::CreateService { wanted, .. } = &operation.kind else { return };
        let (server, invoked, returned) = (operation.server, operation.invoked, operation.returned);
        if self.race.busy_until.iter().any(|(other, until)| *other != server && *until > invoked) {
            self.met(Sometimes::CreationsOverlapped);
        }
        self.race.busy_until.insert(server, returned);
        let mut same = false;
        for ip in wanted {
            let before = self.race.asked_until.insert(*ip, (server, returned));
            same |= before.is_some_and(|(other, until)| other != server && until > invoked);
        }
        if same {
            self.met(Sometimes::SameAddressOverlapped);
        }
    }

    /// Judges a call whose effects the recorder has delivered.
    pub(super) fn settle(&mut self, operation: &Operation) {
        self.note_given_up(operation);
        let OperationKind::CreateService { service, wanted } = &operation.kind else { return };
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

    /// A change of type that took the addresses of a Service away.
    fn note_given_up(&mut self, operation: &Operation) {
        let OperationKind::ChangeType { service, .. } = &operation.kind else { return };
        match &operation.outcome {
            Outcome::Ok { granted, .. } if granted.is_empty() => {
                let until = Micros(operation.returned.0 + self.definitions.bounds.recorder_lag.0);
                self.given_up.entry(service.clone()).or_default().push((operation.invoked, until));
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
        if let Some(server) = self.servers.life_at(made_by.server, made_by.invoked).cloned()
            && let Some(mode) = server.mode
        {
            for index in 0..count {
                let Some(held) = self.lives.get(id).and_then(|life| life.held.get(index)) else { break };
                if held.revision != created {
                    continue;
                }
                let (revision, at) = (held.revision, held.at);
                let both_locks = (self.definitions.holds_both_locks)(mode);
                let half = if both_locks { self.judge_locks(&server, id, index, made_by) } else { None };
                if let Some(detail) = half {
                    self.violated(Rule::S9, revision, at, detail);
                }
                if let Some(detail) = self.judge_range(&server, mode, id, index, made_by) {
                    self.violated(Rule::S3, revision, at, detail);
                }
            }
        }
        self.lives.forget(id);
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
        if taken && !wanted.is_empty() {
            let unowned = |ip: &IpAddr| {
                self.addresses.get(*ip).is_none_or(|address| {
                    let left = address.bit_release_until.max(address.ip_address_release_until).0;
                    let recently = left > operation.invoked.0 + self.definitions.bounds.release.0;
                    address.owners.is_empty() && !recently
                })
            };
            if wanted.iter().all(unowned) {
                self.statistics.refused_without_owner += 1;
            }
        }
        if wanted.is_empty() && refusal.is_some_and(Refusal::is_failed_allocation) {
            self.refused_though_free(operation, service, refusal, code);
        }
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
        if !self.servers.undisturbed(&server, operation.invoked, operation.returned) {
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
        if self.may_have_lost_between_locks(&server, mode, operation, refusal) {
            self.statistics.lost_between_locks += 1;
            return;
        }
        let owner = Owner { service: service.clone(), uid: String::new(), made_by: Some(self.made_by(operation)) };
        let detail = Detail::RefusedThoughFree { owner, refusal, code, range, room_since };
        self.violated(Rule::E6, 0, operation.returned, detail);
    }

    /// Whether a dual-write server may have lost an address between its two locks. From 1.33 on it takes the bit first,
    /// and finds the IPAddress taken when the release of that address has only cleared the bit yet, or when a server
    /// that does not begin with the bit was faster. Before 1.33 it takes the IPAddress first, and finds the bit set.
    fn may_have_lost_between_locks(
        &self,
        server: &ServerLife,
        mode: AllocatorMode,
        operation: &Operation,
        refusal: Option<Refusal>,
    ) -> bool {
        if mode != AllocatorMode::DualWrite {
            return false;
        }
        let since = Micros(operation.invoked.0.saturating_sub(self.definitions.bounds.recorder_lag.0));
        let lately = |at: Option<Micros>| at.is_some_and(|at| at >= since);
        let others_begin_with_ip_address = self
            .servers
            .lives()
            .iter()
            .any(|life| life.server != server.server && life.claims_ip_address_first() && life.up_since(since));
        if server.minor < Minor(33) {
            return lately(self.bit_claimed) || lately(self.half_released);
        }
        refusal.is_some_and(Refusal::is_taken)
            && (lately(self.half_released) || others_begin_with_ip_address && lately(self.ip_address_claimed))
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
                let kept =
                    self.draft(Rule::S5, revision, at, DraftDetail::RefusedButStored { life: id, refusal, code });
                let made_by = self.made_by(operation);
                if let Some(life) = self.lives.get_mut(id).filter(|_| kept) {
                    life.pins += 1;
                    life.made_by = Some(made_by);
                }
            }
        }
    }

    fn not_stored(&mut self, undecided: &Undecided) {
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
            if refused {
                self.undecided.remove(&key);
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
