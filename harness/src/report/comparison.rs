//! Runs of different providers beside each other: does a combo get the same verdict wherever its servers run?
//!
//! Only cases that both sides have are compared. A hazard that is only possible, because it needs a race of milliseconds,
//! makes no difference.

use super::markdown::counts;
use super::{Verdict, add_largest};
use crate::combo::Combo;
use crate::hazard::Hazard;
use crate::provider::Provider;
use crate::record::{CaseOutcome, CaseRecord, RunPlan};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

/// What one provider has shown, in one run or in several parts of one.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    provider: Provider,
    combos: BTreeMap<String, Combo>,
    records: BTreeMap<(String, String), CaseRecord>,
}

/// Runs put together by provider, in the order of their first appearance.
///
/// # Errors
/// A case that two runs of one provider have.
pub fn sides(
    runs: impl IntoIterator<Item = (RunPlan, Vec<CaseRecord>)>,
) -> std::result::Result<Vec<Side>, ComparisonError> {
    let mut sides: Vec<Side> = Vec::new();
    for (plan, records) in runs {
        let provider = plan.site.provider();
        let at = sides.iter().position(|side| side.provider == provider).unwrap_or_else(|| {
            sides.push(Side { provider, combos: BTreeMap::new(), records: BTreeMap::new() });
            sides.len() - 1
        });
        sides[at].combos.extend(plan.combos);
        for record in records {
            let case = (record.id.combo.clone(), format!("{}::{}", record.id.suite, record.id));
            if sides[at].records.insert(case.clone(), record).is_some() {
                return Err(ComparisonError::Twice { provider, case: case.1 });
            }
        }
    }
    match sides.len() {
        0 | 1 => Err(ComparisonError::OneSide),
        _ => Ok(sides),
    }
}

/// The comparison of all sides with each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    providers: Vec<Provider>,
    rows: Vec<Row>,
    /// Cases that not every side has: skipped there, or not part of its runs.
    pub left_out: usize,
}

/// A combo.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    combo: String,
    cases: usize,
    cells: Vec<Cell>,
}

/// A combo as one side has seen it.
#[derive(Debug, Clone, PartialEq)]
struct Cell {
    verdict: Verdict,
    /// With the largest count of one case.
    expected: BTreeMap<Hazard, u64>,
    possible: BTreeMap<Hazard, u64>,
}

/// How two or more sides agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Agreement {
    /// The same verdict with the same expected hazards.
    Equal,
    /// A side gave no verdict.
    Inconclusive,
    /// The verdicts differ.
    Differs,
}

impl Row {
    fn agreement(&self) -> Agreement {
        let hazards = |cell: &Cell| cell.expected.keys().copied().collect::<BTreeSet<_>>();
        let equal = |pair: &[Cell]| pair[0].verdict == pair[1].verdict && hazards(&pair[0]) == hazards(&pair[1]);
        if self.cells.iter().any(|cell| cell.verdict == Verdict::Inconclusive) {
            Agreement::Inconclusive
        } else if self.cells.windows(2).all(equal) {
            Agreement::Equal
        } else {
            Agreement::Differs
        }
    }
}

/// Compares what all sides have.
pub fn compare(sides: &[Side]) -> Comparison {
    let ran = |side: &Side, case: &(String, String)| {
        side.records.get(case).is_some_and(|record| record.outcome != CaseOutcome::Skipped)
    };
    let all: BTreeSet<&(String, String)> = sides.iter().flat_map(|side| side.records.keys()).collect();
    let (common, left_out): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|case| sides.iter().all(|side| ran(side, case)));
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for case in &common {
        let row = rows.entry(&case.0).or_insert_with(|| Row { combo: case.0.clone(), cases: 0, cells: Vec::new() });
        row.cases += 1;
    }
    for row in rows.values_mut() {
        let cell = |side: &Side| {
            cell(common.iter().filter(|case| case.0 == row.combo).filter_map(|case| side.records.get(*case)))
        };
        row.cells = sides.iter().map(cell).collect();
    }
    Comparison {
        providers: sides.iter().map(|side| side.provider).collect(),
        rows: rows.into_values().collect(),
        left_out: left_out.len(),
    }
}

fn cell<'a>(records: impl Iterator<Item = &'a CaseRecord>) -> Cell {
    let mut cell = Cell { verdict: Verdict::Safe, expected: BTreeMap::new(), possible: BTreeMap::new() };
    for record in records {
        for (hazard, count) in record.observed.hazards.iter().filter(|(_, count)| **count > 0) {
            let only_possible = record.expectation.as_ref().is_some_and(|it| it.possible.contains(hazard));
            let hazards = if only_possible { &mut cell.possible } else { &mut cell.expected };
            add_largest(hazards, *hazard, *count);
        }
        cell.verdict = cell.verdict.max(match record.outcome {
            CaseOutcome::Passed | CaseOutcome::Skipped => Verdict::Safe,
            CaseOutcome::Failed => Verdict::Unexpected,
            CaseOutcome::Error => Verdict::Inconclusive,
        });
    }
    if cell.verdict == Verdict::Safe && !cell.expected.is_empty() {
        cell.verdict = Verdict::Hazard;
    }
    cell
}

impl Comparison {
    /// The worst of all combos; nothing in common says nothing.
    pub fn agreement(&self) -> Agreement {
        self.rows.iter().map(Row::agreement).max().unwrap_or(Agreement::Inconclusive)
    }

    /// The table in Markdown.
    pub fn table(&self) -> String {
        let names: Vec<String> = self.providers.iter().map(ToString::to_string).collect();
        let mut text = format!("| combo | cases | {} | |\n", names.join(" | "));
        text += &format!("| --- | ---: |{} --- |\n", " --- |".repeat(names.len()));
        for row in &self.rows {
            let cells: Vec<String> = row.cells.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "| `{}` | {} | {} | {} |", row.combo, row.cases, cells.join(" | "), row.agreement());
        }
        text
    }

    /// How many combos and cases were compared, and what came of it.
    pub fn sentence(&self) -> String {
        let of = |agreement| self.rows.iter().filter(|row| row.agreement() == agreement).count();
        let cases: usize = self.rows.iter().map(|row| row.cases).sum();
        format!(
            "{} combos, {cases} cases that every side has: {} equal, {} differ, {} without a verdict; {} cases only \
             some sides have",
            self.rows.len(),
            of(Agreement::Equal),
            of(Agreement::Differs),
            of(Agreement::Inconclusive),
            self.left_out
        )
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.verdict)?;
        if !self.expected.is_empty() {
            write!(f, ": {}", counts(&self.expected))?;
        }
        if !self.possible.is_empty() {
            write!(f, "; by chance {}", counts(&self.possible))?;
        }
        Ok(())
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Agreement::Equal => "equal",
            Agreement::Inconclusive => "no verdict",
            Agreement::Differs => "DIFFERS",
        })
    }
}

/// Runs that cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComparisonError {
    /// All of one provider.
    #[error("all runs are of one provider; give runs of at least two, for example of local and kind")]
    OneSide,
    /// A case that cannot count twice.
    #[error("two runs of {provider} have {case}; give parts that have nothing in common")]
    Twice {
        /// Of whom.
        provider: Provider,
        /// Which.
        case: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Site;
    use crate::cluster::kind::Nodes;
    use crate::cluster::kind::nodes::NodeImage;
    use crate::expect::Expectation;
    use crate::report::tests::{plan, record};
    use crate::version::KubeVersion;

    fn on_kind(plan: &RunPlan) -> RunPlan {
        let image = NodeImage::built_here(KubeVersion::new(33, 13));
        RunPlan { site: Site::Kind(Nodes { image, lease: None }), ..plan.clone() }
    }

    fn compared(local: &[CaseRecord], kind: &[CaseRecord]) -> Comparison {
        let plan = plan();
        let runs = [(plan.clone(), local.to_vec()), (on_kind(&plan), kind.to_vec())];
        compare(&sides(runs).unwrap())
    }

    fn passed(case: usize, hazards: &[(Hazard, u64)], expectation: Expectation) -> CaseRecord {
        CaseRecord { expectation: Some(expectation), ..record(&plan().cases[case], CaseOutcome::Passed, hazards) }
    }

    #[test]
    fn a_hazard_that_needs_luck_makes_no_difference_and_an_expected_one_does() {
        let possibly = || Expectation::holds().or_possibly([Hazard::OrphanIpAddress]);
        let lucky = compared(&[passed(0, &[(Hazard::OrphanIpAddress, 2)], possibly())], &[passed(0, &[], possibly())]);
        assert_eq!(lucky.agreement(), Agreement::Equal);
        assert!(lucky.table().contains("safe; by chance orphan-ip-address (2) | safe | equal"), "{}", lucky.table());
        let expected = Expectation::hazards([Hazard::NoSharedLock]);
        let hazard = passed(0, &[(Hazard::NoSharedLock, 9)], expected.clone());
        let both = compared(std::slice::from_ref(&hazard), &[passed(0, &[(Hazard::NoSharedLock, 50)], expected)]);
        assert_eq!(both.agreement(), Agreement::Equal);
        assert_eq!(compared(&[hazard], &[passed(0, &[], Expectation::holds())]).agreement(), Agreement::Differs);
    }

    #[test]
    fn what_failed_on_one_side_differs_and_what_gave_no_verdict_says_nothing() {
        let fine = passed(0, &[], Expectation::holds());
        let with =
            |outcome| compared(std::slice::from_ref(&fine), &[CaseRecord { outcome, ..fine.clone() }]).agreement();
        assert_eq!(with(CaseOutcome::Failed), Agreement::Differs);
        assert_eq!(with(CaseOutcome::Error), Agreement::Inconclusive);
        assert_eq!(with(CaseOutcome::Passed), Agreement::Equal);
    }

    #[test]
    fn only_cases_that_ran_on_every_side_are_compared() {
        let (one, two) =
            (passed(0, &[], Expectation::holds()), passed(1, &[(Hazard::StaleBit, 3)], Expectation::holds()));
        let skipped = CaseRecord { outcome: CaseOutcome::Skipped, ..two.clone() };
        let comparison = compared(&[one.clone(), two], &[one, skipped]);
        assert_eq!((comparison.rows.len(), comparison.left_out), (1, 1));
        assert_eq!(comparison.agreement(), Agreement::Equal);
        assert_eq!(compared(&[], &[]).agreement(), Agreement::Inconclusive);
    }

    #[test]
    fn parts_of_a_run_are_put_together_and_nothing_counts_twice() {
        let plan = plan();
        let (one, two) = (passed(0, &[], Expectation::holds()), passed(1, &[], Expectation::holds()));
        let parts = [(plan.clone(), vec![one.clone()]), (plan.clone(), vec![two]), (on_kind(&plan), vec![one.clone()])];
        assert_eq!(sides(parts).unwrap().iter().map(|side| side.records.len()).collect::<Vec<_>>(), [2, 1]);
        let twice = [(plan.clone(), vec![one.clone()]), (plan.clone(), vec![one.clone()])];
        assert!(matches!(sides(twice), Err(ComparisonError::Twice { .. })));
        assert_eq!(sides([(plan, vec![one])]), Err(ComparisonError::OneSide));
    }
}
