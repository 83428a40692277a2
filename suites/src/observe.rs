//! Questions that several scenarios ask of what was recorded or stored.

use harness::check::{Claim, Detail, Duplicate, Rule, Verdict, explain};
use harness::expect::Expectation;
use harness::gates::AllocatorMode;
use harness::hazard::Hazard;
use harness::history::{Operation, Outcome};
use harness::record::Observed;
use harness::refusal::{Refusal, classify};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;

/// Whether two calls were under way at the same time.
pub fn overlap(a: &Operation, b: &Operation) -> bool {
    a.invoked < b.returned && b.invoked < a.returned
}

/// The refusals by kind. Unclassified ones go to `wrong`, unknown outcomes to `inconclusive`.
pub fn count_refusals(operations: &[Operation], observed: &mut Observed) -> BTreeMap<Refusal, u64> {
    let mut counts = BTreeMap::new();
    for operation in operations {
        match &operation.outcome {
            Outcome::Ok { .. } => {}
            Outcome::Refused { code, reason, message } => match classify(*code, reason, message) {
                Some(kind) => *counts.entry(kind).or_default() += 1,
                None => observed
                    .wrong
                    .push(format!("{} gave an unclassified answer: {code} {reason}: {message}", operation.server)),
            },
            Outcome::Unknown { detail } => {
                observed.inconclusive.push(format!("{} left an outcome open: {detail}", operation.server));
            }
        }
    }
    counts
}

/// A refusal of another kind than the scenario is about is wrong: the first of each kind, with all it takes to find it
/// in the recording.
pub fn require_only(allowed: &[Refusal], operations: &[Operation], observed: &mut Observed) {
    let mut foreign: BTreeMap<Refusal, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        if let Outcome::Refused { code, reason, message } = &operation.outcome
            && let Some(kind) = classify(*code, reason, message)
            && !allowed.contains(&kind)
        {
            foreign.entry(kind).or_default().push(operation);
        }
    }
    for (kind, refused) in foreign {
        let first = refused[0];
        observed.wrong.push(format!(
            "{} calls were refused with {kind}, which this scenario cannot cause; the first was {:?} at {} after {:.3} s: {:?}",
            refused.len(),
            first.kind,
            first.server,
            first.invoked.seconds(),
            first.outcome
        ));
    }
}

/// The addresses a call was answered with.
pub fn granted(operation: &Operation) -> &[IpAddr] {
    match &operation.outcome {
        Outcome::Ok { granted, .. } => granted,
        Outcome::Refused { .. } | Outcome::Unknown { .. } => &[],
    }
}

/// Counts as text: `93 x 422 already allocated, 7 x 500 range is full`.
pub fn counts_text<K: Display>(counts: &BTreeMap<K, u64>) -> String {
    if counts.is_empty() {
        return "none".into();
    }
    counts.iter().map(|(kind, count)| format!("{count} x {kind}")).collect::<Vec<_>>().join(", ")
}

/// Takes what the judge of the recording found into what the scenario saw. A broken rule that no expected hazard
/// explains is wrong; a recording that says nothing makes the case inconclusive.
///
/// A duplicate that the scenario planted at one of these revisions is a control of the judge: it must be found.
pub fn add_verdict(verdict: &Verdict, expectation: &Expectation, planted: &[i64], observed: &mut Observed) {
    let inconclusive = &mut observed.inconclusive;
    inconclusive.extend(verdict.assumptions.iter().map(|broken| broken.to_string()));
    inconclusive.extend(verdict.unmet.iter().map(ToString::to_string));
    let mut duplicates: BTreeMap<Hazard, BTreeSet<IpAddr>> = BTreeMap::new();
    for revision in planted.iter().filter(|revision| verdict.of(Rule::S1).all(|found| found.revision != **revision)) {
        observed.wrong.push(format!("the duplicate planted at revision {revision} was not found"));
    }
    let mut unexplained = Vec::new();
    for violation in verdict.of(Rule::S1).filter(|violation| !planted.contains(&violation.revision)) {
        if let Detail::Duplicate(duplicate) = &violation.detail {
            match hazard_of(duplicate) {
                Some(hazard) => drop(duplicates.entry(hazard).or_default().insert(duplicate.ip)),
                None => unexplained.push((violation, duplicate.ip)),
            }
        }
    }
    // While two repair loops pass the one IPAddress of a duplicate back and forth it is absent for moments, and a third
    // Service can get the address, also from a server that shares a lock with the second one's.
    for (violation, ip) in unexplained {
        if duplicates.values().all(|ips| !ips.contains(&ip)) {
            observed.wrong.push(explain(violation));
        }
    }
    observed.hazards.extend(duplicates.into_iter().map(|(hazard, ips)| (hazard, ips.len() as u64)));
    if let Some(count) =
        verdict.broken.get(&Rule::S7).filter(|_| expectation.possible.contains(&Hazard::ReleasedBeforeStored))
    {
        observed.hazards.insert(Hazard::ReleasedBeforeStored, *count);
    }
    // What a scenario predicts is counted from what the recording shows.
    for hazard in observed.predicted.keys() {
        let shown = verdict.hazards.get(hazard).copied().unwrap_or(0);
        observed.hazards.entry(*hazard).or_insert(shown);
    }
    observed.evidence = Some(verdict.evidence);
    let explained: BTreeSet<Rule> =
        expectation.hazards.iter().chain(&expectation.possible).flat_map(|hazard| breaks(*hazard)).copied().collect();
    // Rules that are judged and attributed, and not part of the outcome yet.
    let not_yet = [Rule::S11, Rule::S12, Rule::E8];
    let judged = |rule: &Rule| *rule != Rule::S1 && !explained.contains(rule) && !not_yet.contains(rule);
    for rule in verdict.rules().into_iter().filter(judged) {
        let first = verdict.of(rule).next().map_or(String::new(), explain);
        observed.wrong.push(format!("{rule} broken {} times: {first}", verdict.broken[&rule]));
    }
}

/// The rules, beside S1 for duplicates, that a recording of a hazard breaks.
fn breaks(hazard: Hazard) -> &'static [Rule] {
    match hazard {
        Hazard::NoSharedLock | Hazard::DualWriteFallback | Hazard::ReleasedBeforeStored => &[Rule::S7],
        Hazard::StaleBit | Hazard::RefusedCreateKeepsBit | Hazard::CrashKeepsLock | Hazard::StopWalksTheRange => &[],
        Hazard::OrphanIpAddress => &[Rule::E6, Rule::S7],
        Hazard::StaleBitmapAfterDowngrade | Hazard::DefaultRangePinnedByDualWrite => &[Rule::E6],
        Hazard::DifferingRanges => &[Rule::S7, Rule::S8, Rule::E6],
        Hazard::FirstRepairPassLost | Hazard::UnreadableAfterDowngrade => &[Rule::E5],
    }
}

/// The hazard that a duplicate belongs to; `None` for one that should be impossible.
fn hazard_of(duplicate: &Duplicate) -> Option<Hazard> {
    let mode = |claim: &Claim| claim.owner.made_by.and_then(|made| made.mode);
    match (mode(&duplicate.first)?, mode(&duplicate.second)?) {
        (a, b) if !a.shares_lock_with(b) => Some(Hazard::NoSharedLock),
        (AllocatorMode::Bitmap, AllocatorMode::DualWrite) => Some(Hazard::DualWriteFallback),
        (AllocatorMode::Bitmap | AllocatorMode::DualWrite | AllocatorMode::IpAddress, _) => None,
    }
}
