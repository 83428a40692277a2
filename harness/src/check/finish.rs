//! From everything collected to the verdict.

use super::violation::{Claim, Detail, Duplicate};
use super::world::LifeId;
use super::{
    Draft, DraftDetail, Judge, Judgement, NOT_JUDGED_WITHOUT_BITMAPS, Rule, Unmet, VERDICT_FORMAT, Verdict, Violation,
};
use crate::history::Micros;
use std::collections::BTreeMap;
use std::net::IpAddr;

impl Judge<'_> {
    pub(super) fn finish(mut self) -> Verdict {
        self.settle_all();
        self.deadlines();
        self.count_pending();
        self.count_state();
        self.planted.sort_unstable();
        let mut violations = Vec::new();
        for draft in std::mem::take(&mut self.drafts) {
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
            violations.extend(self.violation(draft));
        }
        violations.sort();
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

    fn violation(&self, draft: Draft) -> Option<Violation> {
        let filled = self.refused_but_stored(&draft);
        let Draft { rule, revision, at, detail } = draft;
        let detail = match detail {
            DraftDetail::Ready(detail) => detail,
            DraftDetail::RefusedButStored { .. } => filled?,
            DraftDetail::Duplicate { ip, first, second, ended } => {
                let (first, second) = (self.claim(first, ip, revision)?, self.claim(second, ip, revision)?);
                Detail::Duplicate(Box::new(Duplicate { ip, first, second, ended }))
            }
        };
        Some(Violation { rule, revision, at, detail })
    }

    /// How a Service came to hold an address, as of a revision.
    fn claim(&self, id: LifeId, ip: IpAddr, as_of: i64) -> Option<Claim> {
        let life = self.lives.get(id)?;
        let held = life.held.iter().rfind(|held| held.ip == ip && held.revision <= as_of)?;
        let owner = self.owner(id)?;
        Some(Claim { owner, revision: held.revision, at: held.at, locks: held.locks(&life.key) })
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

/// The clock of a recording in seconds, for prose.
pub(super) fn clock(at: Micros) -> String {
    format!("{:.3} s", at.seconds())
}
