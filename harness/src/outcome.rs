//! From the verdict on a recording to what a case has observed: pure, and the same at the end of a case and when a saved
//! run is judged again.

use crate::check::{Evidence, Lock, Rule, Verdict, explain};
use crate::record::Observed;

/// How many unexplained violations, and locks left behind, are told in words; all are counted.
const TOLD: usize = 5;

/// Takes what the judge found into what the scenario saw. Violations and locks left behind count for the hazard that
/// explains them; what nothing explains is wrong. A recording that breaks an assumption makes the case inconclusive.
///
/// A duplicate that the scenario planted at one of these revisions is a control of the judge: it must be found.
pub fn add_verdict(verdict: &Verdict, planted: &[i64], observed: &mut Observed) {
    observed.inconclusive.extend(verdict.assumptions.iter().map(ToString::to_string));
    observed.inconclusive.extend(verdict.unmet.iter().map(ToString::to_string));
    for revision in planted.iter().filter(|revision| verdict.of(Rule::S1).all(|found| found.revision != **revision)) {
        observed.wrong.push(format!("the duplicate planted at revision {revision} was not found"));
    }
    for (hazard, count) in &verdict.hazards {
        *observed.hazards.entry(*hazard).or_default() += count;
    }
    for rule in Rule::ALL {
        let unexplained: Vec<_> = verdict.unexplained(planted).filter(|it| it.rule == rule).collect();
        let unlisted = verdict.broken.get(&rule).copied().unwrap_or(0) - verdict.of(rule).count() as u64;
        let words: Vec<String> = unexplained.iter().take(TOLD).map(|violation| explain(violation)).collect();
        if !words.is_empty() {
            let count = unexplained.len();
            observed.wrong.push(format!("{rule} broken {count} times without an explanation: {}", words.join("; ")));
        }
        if unlisted > 0 {
            observed.wrong.push(format!("{rule} broken {unlisted} times more than are listed"));
        }
    }
    let unexplained: Vec<_> = verdict.left.iter().filter(|left| left.hazard().is_none()).collect();
    if !unexplained.is_empty() {
        let words = unexplained.iter().take(TOLD).map(|left| {
            let what = match left.lock {
                Lock::Bit => "the bit",
                Lock::IpAddress => "the IPAddress",
            };
            format!("{what} of {} ({})", left.ip, left.left_by)
        });
        let words: Vec<String> = words.collect();
        observed.wrong.push(format!(
            "{} locks without a Service were left at the end, which no hazard explains: {}",
            unexplained.len(),
            words.join(", ")
        ));
    }
    observed.evidence = Some(verdict.evidence);
}

/// How much was seen, for tables: `1,000 races, <= 0.3 %` where no address was granted twice.
pub fn evidence_text(evidence: Evidence, duplicates: bool) -> String {
    match evidence.upper_bound() {
        Some(bound) if !duplicates => format!("{} races, <= {:.1} %", evidence.static_races, bound * 100.0),
        Some(_) => format!("{} races", evidence.static_races),
        None if evidence.overlapped > 0 => format!("{} overlapping creates", evidence.overlapped),
        None => format!("{} creates", evidence.granted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_the_rule_of_three_and_says_nothing_of_a_bound_where_addresses_were_granted_twice() {
        let seen = |static_races| Evidence { granted: 9, static_races, overlapped: 7 };
        assert_eq!(evidence_text(seen(1000), false), "1000 races, <= 0.3 %");
        assert_eq!(evidence_text(seen(100), false), "100 races, <= 3.0 %");
        assert_eq!(evidence_text(seen(1), false), "1 races, <= 100.0 %");
        assert_eq!(evidence_text(seen(100), true), "100 races");
        assert_eq!(evidence_text(seen(0), false), "7 overlapping creates");
    }
}
