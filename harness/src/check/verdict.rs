//! The verdict on one recording. Serialized, it is the same bytes for the same recording.

use super::assumptions::BrokenAssumption;
use super::attribution::{LeftBy, hazard_of_left};
use super::rules::Rule;
use super::sometimes::Sometimes;
use super::violation::{Lock, Violation};
use crate::hazard::Hazard;
use crate::history::Micros;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// The version of the serialized verdict.
pub const VERDICT_FORMAT: u32 = 3;

/// How a recording fares against the rules. Which violations a scenario expects is not decided here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Every assumption holds and no rule is broken.
    Clean,
    /// Every assumption holds and a rule is broken.
    Violated,
    /// An assumption does not hold, or something required never happened: nothing follows.
    Inconclusive,
}

/// What a recording shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// [`VERDICT_FORMAT`].
    pub format: u32,
    /// The summary.
    pub judgement: Judgement,
    /// Assumptions that do not hold, sorted.
    pub assumptions: Vec<BrokenAssumption>,
    /// Required conditions that were not met often enough.
    pub unmet: Vec<Unmet>,
    /// Violations, sorted; at most [`super::LISTED_PER_RULE`] of a rule.
    pub violations: Vec<Violation>,
    /// What of the rules was not judged because the recording does not have what it rests on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_judged: BTreeMap<Rule, String>,
    /// How often each hazard showed: distinct addresses where it is about addresses, else violations.
    pub hazards: BTreeMap<Hazard, u64>,
    /// Locks without a Service when the scenario was over.
    pub left: Vec<Left>,
    /// How much was seen.
    pub evidence: Evidence,
    /// How often each rule was due.
    pub rules: BTreeMap<Rule, Judged>,
    /// How often each rule was broken, also beyond those listed; rules that hold are absent.
    pub broken: BTreeMap<Rule, u64>,
    /// Obligations of eventual rules that were open, but not yet due, when the recording ended.
    pub pending: BTreeMap<Rule, u64>,
    /// How often each condition was met; those never met are absent.
    pub sometimes: BTreeMap<Sometimes, u64>,
    /// Everything counted.
    pub statistics: Statistics,
}

impl Verdict {
    /// The violations of one rule.
    pub fn of(&self, rule: Rule) -> impl Iterator<Item = &Violation> {
        self.violations.iter().filter(move |violation| violation.rule == rule)
    }

    /// The violations that nothing explains, but for the duplicates planted at these revisions.
    pub fn unexplained<'a>(&'a self, planted: &'a [i64]) -> impl Iterator<Item = &'a Violation> {
        let is_planted =
            move |violation: &Violation| violation.rule == Rule::S1 && planted.contains(&violation.revision);
        self.violations.iter().filter(move |violation| violation.causes.is_empty() && !is_planted(violation))
    }

    /// The rules that were broken, in order.
    pub fn rules(&self) -> Vec<Rule> {
        self.broken.keys().copied().collect()
    }

    /// How often a condition was met.
    pub fn met(&self, condition: Sometimes) -> u64 {
        self.sometimes.get(&condition).copied().unwrap_or(0)
    }
}

/// A lock that no Service holds, at the end of the scenario.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Left {
    /// The address.
    pub ip: IpAddr,
    /// Which lock.
    pub lock: Lock,
    /// Through whom it was left.
    pub left_by: LeftBy,
}

impl Left {
    /// The hazard that explains it.
    pub fn hazard(&self) -> Option<Hazard> {
        hazard_of_left(self.lock, self.left_by)
    }
}

/// How much a recording has seen: a verdict without trials says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Creations that were granted.
    pub granted: u64,
    /// Addresses that two servers were asked for at the same time.
    pub static_races: u64,
    /// Creations through different servers that were in flight at once.
    pub overlapped: u64,
}

impl Evidence {
    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Evidence) -> Evidence {
        Evidence {
            granted: self.granted + other.granted,
            static_races: self.static_races + other.static_races,
            overlapped: self.overlapped + other.overlapped,
        }
    }

    /// The upper bound, at 95 %, of the share of contested static addresses that are granted twice, if none was: the rule
    /// of three, 3/n. `None` without a trial.
    pub fn upper_bound(self) -> Option<f64> {
        (self.static_races > 0).then(|| (3.0 / self.static_races as f64).min(1.0))
    }
}

/// How often a rule was due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Decided, for or against.
    pub judged: u64,
    /// Due later than the scenario was over.
    pub open: u64,
    /// Never due, because no server ran that must act.
    pub off: u64,
}

/// A required condition that was not met often enough.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unmet {
    /// Which.
    pub condition: Sometimes,
    /// How often it was required.
    pub required: u64,
    /// How often it was met.
    pub met: u64,
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} times, {} required", self.condition, self.met, self.required)
    }
}

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// Entries read.
    pub entries: u64,
    /// Writes in etcd.
    pub revisions: u64,
    /// The last revision.
    pub last_revision: i64,
    /// When the last entry was recorded.
    pub ended: Micros,
    /// Creations of Services by server, keyed `server-1` and so on.
    pub servers: BTreeMap<String, ServerStatistics>,
    /// Addresses that two live Services held at some time.
    pub duplicates: u64,
    /// Of these, the ones at the end.
    pub duplicates_at_end: u64,
    /// Static creations that were refused as taken although no Service held the address from call to answer: the stale
    /// bits and orphans users run into.
    pub refused_without_owner: u64,
    /// Dynamic creations under dual write that lost their address to another server, or to a release in progress,
    /// between the first and the second lock. Not a broken E6: the order of the two writes makes this possible.
    pub lost_between_locks: u64,
    /// Locks that a change of type to ExternalName gave up a moment before the Service was stored without its address.
    /// Not a broken S7: the answer of the call covers both. In between the address can be granted to somebody else.
    pub released_before_stored: u64,
    /// How bitmap and Services differ at the end, by range.
    pub drift: BTreeMap<String, Drift>,
    /// How IPAddresses and Services differ at the end.
    pub ip_address_drift: Drift,
    /// Live Services at the end.
    pub services_at_end: u64,
}

/// The difference between a lock and the live Services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// Addresses of live Services without the lock.
    pub missing: u64,
    /// Locks without a live Service.
    pub leaked: u64,
}

/// What one server answered to creations of Services.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerStatistics {
    /// Granted.
    pub ok: u64,
    /// Refused, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Refused for a reason that is not the allocator's.
    pub refused_otherwise: u64,
    /// Unknown, and stored.
    pub unknown_stored: u64,
    /// Unknown, and not stored.
    pub unknown_not_stored: u64,
    /// How long granted creations took.
    pub latency: Latency,
}

/// Quantiles of a latency, each rounded up by less than 7 %.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of the calls were not slower.
    pub median: Micros,
    /// 99 of 100 were not slower.
    pub p99: Micros,
    /// 999 of 1,000 were not slower: what rule E7 is about (KEP-1880: below 500 ms).
    pub p999: Micros,
    /// The slowest.
    pub max: Micros,
}

/// Counts durations in buckets of 16 per power of two.
#[derive(Debug, Clone, Default)]
pub(super) struct LatencyCounts {
    buckets: Vec<u64>,
    max: u64,
}

impl LatencyCounts {
    pub fn add(&mut self, took: Micros) {
        let bucket = bucket(took.0);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.max = self.max.max(took.0);
    }

    pub fn quantiles(&self) -> Latency {
        let total: u64 = self.buckets.iter().sum();
        let at = |per_mille: u64| {
            let rank = (total * per_mille).div_ceil(1000);
            let mut seen = 0;
            let bucket = self.buckets.iter().position(|count| {
                seen += count;
                seen >= rank && seen > 0
            });
            Micros(bucket.map_or(0, upper_end).min(self.max))
        };
        Latency { median: at(500), p99: at(990), p999: at(999), max: Micros(self.max) }
    }
}

fn bucket(value: u64) -> usize {
    if value < 16 {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - 4;
    (u64::from(shift + 1) * 16 + (value >> shift) - 16) as usize
}

fn upper_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 16 {
        return bucket;
    }
    let shift = bucket / 16 - 1;
    ((bucket % 16 + 16) << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_ends_less_than_seven_percent_above_its_values(value in 0u64..1 << 50) {
            let end = upper_end(bucket(value));
            prop_assert!(end >= value && end - value <= value / 15, "{value} {end}");
        }
    }

    #[test]
    fn quantiles_of_a_thousand_calls_are_the_sorted_ones() {
        let mut counts = LatencyCounts::default();
        (1..=1000).for_each(|value| counts.add(Micros(value)));
        let seen = counts.quantiles();
        assert_eq!(
            (seen.median, seen.p99, seen.p999, seen.max),
            (Micros(511), Micros(991), Micros(1000), Micros(1000))
        );
        assert_eq!(LatencyCounts::default().quantiles(), Latency::default());
    }
}
