//! From everything collected to the verdict.

use super::attribution::{Around, AroundDuplicate, LeftBy, attribute};
use super::verdict::{Evidence, Judged, Left};
use super::violation::{Claim, Detail, Duplicate, Lock};
use super::world::LifeId;
use super::{
    BrokenAssumption, Draft, DraftDetail, Judge, Judgement, NOT_JUDGED_WITHOUT_BITMAPS, Rule, Sometimes, Unmet,
    VERDICT_FORMAT, Verdict, Violation,
};
use crate::hazard::Hazard;
use crate::history::Micros;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

impl Judge<'_> {
    pub(super) fn finish(mut self) -> Verdict {
        self.settle_all();
        self.deadlines();
        self.vanished();
        self.doubt_modes();
        for fault in self.servers.still_open() {
            self.assumptions.break_one(BrokenAssumption::FaultOpen { fault });
        }
        if self.left_at_teardown.is_none() {
            self.count_pending();
            self.count_left();
        }
        self.count_state();
        let left = self.left();
        self.planted.sort_unstable();
        let mut violations = Vec::new();
        // What explained each duplicate, by its draft: other violations refer to it.
        let mut explained: BTreeMap<usize, (BTreeSet<Hazard>, i64)> = BTreeMap::new();
        for (index, draft) in std::mem::take(&mut self.drafts).into_iter().enumerate() {
            if (1..=self.context.found_until).contains(&draft.revision) {
                self.take_back(draft.rule);
                continue;
            }
            // What the scenario itself wrote was not an apiserver's doing.
            let by_apiserver = matches!(draft.rule, Rule::S7 | Rule::S8 | Rule::S10);
            if by_apiserver && self.planted.binary_search(&draft.revision).is_ok() {
                self.take_back(draft.rule);
                continue;
            }
            if self.given_up_by_its_service(&draft.detail, draft.at) {
                self.take_back(draft.rule);
                self.statistics.released_before_stored += 1;
                continue;
            }
            let found = self.violation(draft, &explained);
            if let Some(violation) = found.as_ref().filter(|violation| violation.rule == Rule::S1) {
                explained.insert(index, (violation.causes.clone(), violation.revision));
            }
            violations.extend(found);
        }
        violations.sort();
        let hazards = count_hazards(&violations, &left);
        for (server, (mut statistics, latency)) in std::mem::take(&mut self.answers) {
            statistics.latency = latency.quantiles();
            self.statistics.servers.insert(server.to_string(), statistics);
        }
        self.statistics.last_revision = self.last_revision;
        self.statistics.ended = self.now;
        let unmet: Vec<Unmet> = (self.context.required.iter())
            .map(|(condition, required)| Unmet {
                condition: *condition,
                required: *required,
                met: self.sometimes.get(condition).copied().unwrap_or(0),
            })
            .filter(|it| it.met < it.required)
            .collect();
        let assumptions = self.assumptions.finish();
        let judgement = if !assumptions.is_empty() || !unmet.is_empty() {
            Judgement::Inconclusive
        } else if self.broken.is_empty() {
            Judgement::Clean
        } else {
            Judgement::Violated
        };
        Verdict {
            format: VERDICT_FORMAT,
            judgement,
            assumptions,
            unmet,
            violations,
            not_judged: match self.context.bitmaps_recorded {
                true => BTreeMap::new(),
                false => NOT_JUDGED_WITHOUT_BITMAPS.map(|(rule, what)| (rule, what.to_string())).into(),
            },
            hazards,
            left,
            evidence: Evidence {
                granted: self.sometimes.get(&Sometimes::Granted).copied().unwrap_or(0),
                static_races: self.sometimes.get(&Sometimes::SameAddressOverlapped).copied().unwrap_or(0),
                overlapped: self.sometimes.get(&Sometimes::CreationsOverlapped).copied().unwrap_or(0),
            },
            rules: Rule::ALL
                .into_iter()
                .map(|rule| {
                    (
                        rule,
                        Judged {
                            judged: self.judged.0[rule as usize],
                            open: self.pending.get(&rule).copied().unwrap_or(0),
                            off: self.off.get(&rule).copied().unwrap_or(0),
                        },
                    )
                })
                .collect(),
            broken: self.broken,
            pending: self.pending,
            sometimes: self.sometimes,
            statistics: self.statistics,
        }
    }

    fn take_back(&mut self, rule: Rule) {
        if let Some(count) = self.broken.get_mut(&rule) {
            *count -= 1;
            if *count == 0 {
                self.broken.remove(&rule);
            }
        }
    }

    fn violation(&self, draft: Draft, explained: &BTreeMap<usize, (BTreeSet<Hazard>, i64)>) -> Option<Violation> {
        let filled = self.refused_but_stored(&draft);
        let Draft { rule, revision, at, detail, mut around, open } = draft;
        let open: Vec<&(BTreeSet<Hazard>, i64)> = open.iter().filter_map(|index| explained.get(index)).collect();
        let hazards: BTreeSet<Hazard> = open.iter().flat_map(|(causes, _)| causes).copied().collect();
        let detail = match detail {
            DraftDetail::Ready(detail) => detail,
            DraftDetail::RefusedButStored { .. } => filled?,
            DraftDetail::Duplicate { ip, first, second, ended } => {
                let (first_id, second_id) = (first, second);
                let (first, second) = (self.claim(first, ip, revision)?, self.claim(second, ip, revision)?);
                let since = open.iter().filter(|(causes, _)| !causes.is_empty()).map(|(_, revision)| *revision).min();
                around =
                    Around::Duplicate(self.around_duplicate(first_id, second_id, ip, revision, hazards.clone(), since));
                Detail::Duplicate(Box::new(Duplicate { ip, first, second, ended }))
            }
        };
        if let (Around::Lock(around), Detail::LockGivenUp { service, .. }) = (&mut around, &detail) {
            around.open = hazards;
            around.change_cut_off = self.change_was_cut_off(service, at);
        }
        // A call that left the lock may have returned after the refused one.
        if let (Around::Static { bit, ip_address, .. }, Detail::RefusedWithoutOwner { ip, .. }) = (&mut around, &detail)
        {
            for (lock, left_by) in [(Lock::Bit, bit), (Lock::IpAddress, ip_address)] {
                if *left_by == Some(LeftBy::Nothing) {
                    *left_by = Some(self.left_by(*ip, lock));
                }
            }
        }
        let causes = attribute(&detail, &around);
        Some(Violation { rule, revision, at, detail, causes })
    }

    /// How a Service came to hold an address, as of a revision.
    fn claim(&self, id: LifeId, ip: IpAddr, as_of: i64) -> Option<Claim> {
        let life = self.lives.get(id)?;
        let held = life.held.iter().rfind(|held| held.ip == ip && held.revision <= as_of)?;
        let owner = self.owner(id)?;
        let taken_by = held.taken_by;
        Some(Claim { owner, taken_by, revision: held.revision, at: held.at, locks: held.locks(&life.key) })
    }

    /// What the recording shows around a duplicate.
    fn around_duplicate(
        &self,
        first: LifeId,
        second: LifeId,
        ip: IpAddr,
        as_of: i64,
        open: BTreeSet<Hazard>,
        since: Option<i64>,
    ) -> AroundDuplicate {
        let held = |id: LifeId| self.lives.get(id)?.held.iter().rfind(|held| held.ip == ip && held.revision <= as_of);
        let (Some(first), Some(second)) = (held(first), held(second)) else { return AroundDuplicate::default() };
        let asked = second.taken_by.map_or(second.at, |call| call.invoked);
        let server = second.taken_by.and_then(|call| self.servers.life_at(call.server, call.invoked));
        let lag = self.definitions.bounds.informer_lag;
        let picture = server.map_or(asked, |server| self.servers.picture_since(server, asked, lag));
        AroundDuplicate {
            bitmap_full: second.bitmap_full.is_some_and(|full| full >= asked),
            first_is_recent: first.bit_at >= picture,
            object_after_first: second.object_since > first.bit_revision,
            open,
            object_was_absent: since.is_some_and(|since| second.object_since > since),
        }
    }

    /// Notes the locks that no Service holds now.
    pub(super) fn count_left(&mut self) {
        let mut left = Vec::new();
        for (id, address) in self.addresses.iter().filter(|(_, address)| address.owners.is_empty()) {
            if address.bit {
                left.push((id, Lock::Bit, address.bit_at));
            }
            if address.ip_address.as_ref().is_some_and(|object| object.managed) {
                left.push((id, Lock::IpAddress, address.object_at));
            }
        }
        self.left_at_teardown = Some(left);
    }

    /// The locks without a Service when the teardown began that were there to the end, sorted.
    fn left(&self) -> Vec<Left> {
        let mut left = Vec::new();
        for (id, lock, taken_at) in self.left_at_teardown.iter().flatten() {
            let address = &self.addresses[*id];
            let (still, at) = match lock {
                Lock::Bit => (address.bit, address.bit_at),
                Lock::IpAddress => (address.ip_address.is_some(), address.object_at),
            };
            if still && at == *taken_at && address.owners.is_empty() {
                let (ip, left_by) = (address.ip, self.left_by(address.ip, *lock));
                left.push(Left { ip, lock: *lock, left_by });
            }
        }
        left.sort();
        left
    }

    fn count_state(&mut self) {
        let live = self.lives.iter().filter(|life| !life.gone).count();
        self.statistics.services_at_end = live as u64;
        for (_, address) in self.addresses.iter() {
            let held = !address.owners.is_empty();
            let managed = address.ip_address.as_ref().is_some_and(|object| object.managed);
            self.statistics.duplicates_at_end += u64::from(address.owners.len() > 1);
            let drift = &mut self.statistics.ip_address_drift;
            drift.missing += u64::from(held && !managed);
            drift.leaked += u64::from(!held && managed);
            let bitmap = self.bitmaps.iter().filter_map(|bitmap| bitmap.range);
            let range = bitmap.into_iter().find(|range| range.usable_in_bitmap().contains(address.ip));
            if let Some(range) = range {
                let drift = self.statistics.drift.entry(range.to_string()).or_default();
                drift.missing += u64::from(held && !address.bit);
                drift.leaked += u64::from(!held && address.bit);
            }
        }
    }
}

/// How often each hazard showed: addresses where it is about addresses, else violations.
fn count_hazards(violations: &[Violation], left: &[Left]) -> BTreeMap<Hazard, u64> {
    let mut addresses: BTreeMap<Hazard, BTreeSet<IpAddr>> = BTreeMap::new();
    let mut others: BTreeMap<Hazard, u64> = BTreeMap::new();
    for violation in violations {
        for hazard in &violation.causes {
            match violation.detail.address() {
                Some(ip) => drop(addresses.entry(*hazard).or_default().insert(ip)),
                None => *others.entry(*hazard).or_default() += 1,
            }
        }
    }
    for lock in left {
        if let Some(hazard) = lock.hazard() {
            addresses.entry(hazard).or_default().insert(lock.ip);
        }
    }
    for (hazard, ips) in addresses {
        *others.entry(hazard).or_default() += ips.len() as u64;
    }
    others
}

/// The clock of a recording in seconds, for prose.
pub(super) fn clock(at: Micros) -> String {
    format!("{:.3} s", at.seconds())
}
