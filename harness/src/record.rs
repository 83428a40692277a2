//! What is kept of a run: its plan, and per case what was expected, what was observed and how it came out.
//!
//! The test process of a case writes its record; the command line reads all of them and reports.

use crate::check::Evidence;
use crate::cluster::{Binaries, Site};
use crate::combo::Combo;
use crate::expect::Expectation;
use crate::files::{FileError, write_atomically};
use crate::hazard::Hazard;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// Environment variable that hands the run directory to the test process of a case.
pub const RUN_DIR_VARIABLE: &str = "SKEWLAB_RUN_DIR";

/// Environment variable that hands the test process of a case the name of the kind cluster it may use.
pub const CLUSTER_VARIABLE: &str = "SKEWLAB_KIND_CLUSTER";

/// The name of the plan in a run directory.
pub const PLAN_FILE: &str = "plan.json";

/// Scenario and combo: the stable name of a case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CaseId {
    /// The suite, a module of the test binary.
    pub suite: String,
    /// The scenario, a test function.
    pub scenario: String,
    /// The combo.
    pub combo: String,
}

impl CaseId {
    /// The directory of the case in its run.
    pub fn dir(&self, run: &Path) -> PathBuf {
        run.join("cases").join(format!("{}.{}.{}", self.suite, self.scenario, self.combo))
    }
}

impl fmt::Display for CaseId {
    /// `scenario[combo]`, the name in reports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.scenario, self.combo)
    }
}

/// The plan of a run, read by every test process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPlan {
    /// The id of the run.
    pub run: String,
    /// Where the servers run.
    #[serde(default)]
    pub site: Site,
    /// Executables.
    pub binaries: Binaries,
    /// Whether a failed case keeps its data.
    pub keep: bool,
    /// The combos of the run by id.
    pub combos: BTreeMap<String, Combo>,
    /// The combo that is not in the table, run by the cases called `from_to` or `existing`.
    #[serde(default, alias = "from_to")]
    pub named: Option<String>,
    /// The cases in the order in which they start.
    pub cases: Vec<CaseId>,
}

/// What a scenario saw.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// How often each hazard showed: duplicates, refusals.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hazards: BTreeMap<Hazard, u64>,
    /// How often each hazard had to show, as far as the scenario can compute it: least and most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub predicted: BTreeMap<Hazard, (u64, u64)>,
    /// One sentence of counts for tables.
    pub summary: String,
    /// Measured figures by name; the name ends in its unit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measured: BTreeMap<String, f64>,
    /// How much was seen; `None` until the recording is judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// What the system did wrong, whatever was expected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<String>,
    /// Why the run says nothing: too few overlaps, a broken assumption.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inconclusive: Vec<String>,
}

/// How a case came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaseOutcome {
    /// As expected, be it safe or the expected hazard.
    Passed,
    /// The system misbehaved.
    Failed,
    /// The environment failed, the run says nothing, or there is no result.
    Error,
    /// Not run, for a reason.
    Skipped,
}

/// The record of one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseRecord {
    /// Which case.
    #[serde(flatten)]
    pub id: CaseId,
    /// How it came out.
    pub outcome: CaseOutcome,
    /// How long it took.
    pub seconds: f64,
    /// What was expected.
    pub expectation: Option<Expectation>,
    /// What was seen.
    pub observed: Observed,
    /// Why it came out so, empty for a plain pass.
    pub detail: String,
}

/// The name of the record in the directory of a case.
const RECORD_FILE: &str = "case.json";

impl CaseRecord {
    /// Writes the record into the directory of the case.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), FileError> {
        let text = serde_json::to_vec_pretty(self).expect("a case record must serialize");
        write_atomically(&dir.join(RECORD_FILE), &text)
    }

    /// Reads the record of a case; `None` if it has none or an unreadable one.
    pub fn read(dir: &Path) -> Option<CaseRecord> {
        serde_json::from_slice(&std::fs::read(dir.join(RECORD_FILE)).ok()?).ok()
    }
}

/// Judges what was seen by what was expected. The first of these that applies: the system did something wrong in any
/// case; the run says nothing; a hazard showed that was not expected; an expected hazard did not show.
pub fn judge(expectation: &Expectation, observed: &Observed) -> (CaseOutcome, String) {
    if !observed.wrong.is_empty() {
        return (CaseOutcome::Failed, observed.wrong.join("\n"));
    }
    if !observed.inconclusive.is_empty() {
        return (CaseOutcome::Error, format!("inconclusive: {}", observed.inconclusive.join("; ")));
    }
    let shown: BTreeSet<Hazard> =
        observed.hazards.iter().filter(|(_, count)| **count > 0).map(|(hazard, _)| *hazard).collect();
    let unexpected: Vec<String> = shown
        .difference(&expectation.hazards)
        .filter(|hazard| !expectation.possible.contains(hazard))
        .map(|hazard| format!("hazard {hazard} showed {} times: {}", observed.hazards[hazard], hazard.facts().sentence))
        .collect();
    if !unexpected.is_empty() {
        return (CaseOutcome::Failed, format!("expected: {expectation}, but {}", unexpected.join("; ")));
    }
    let missed: Vec<String> = observed
        .predicted
        .iter()
        .map(|(hazard, bounds)| (hazard, bounds, observed.hazards.get(hazard).copied().unwrap_or(0)))
        .filter(|(_, (least, most), count)| count < least || count > most)
        .map(|(hazard, (least, most), count)| match least == most {
            true => format!("{hazard} was predicted to show {least} times and showed {count} times"),
            false => format!("{hazard} was predicted to show {least} to {most} times and showed {count} times"),
        })
        .collect();
    if !missed.is_empty() {
        return (CaseOutcome::Failed, format!("{} ({})", missed.join("; "), observed.summary));
    }
    let absent: Vec<&str> = expectation.hazards.difference(&shown).map(|hazard| hazard.facts().id).collect();
    if !absent.is_empty() {
        let why = format!("expected: {expectation}, but {} did not show ({})", absent.join(", "), observed.summary);
        return (CaseOutcome::Failed, why);
    }
    (CaseOutcome::Passed, String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(hazards: &[(Hazard, u64)]) -> Observed {
        Observed { hazards: hazards.iter().copied().collect(), ..Default::default() }
    }

    #[test]
    fn a_hazard_must_show_exactly_where_it_is_expected() {
        let hazard = Expectation::hazards([Hazard::NoSharedLock]);
        let holds = Expectation::holds();
        let outcome = |expectation: &Expectation, hazards: &[_]| judge(expectation, &observed(hazards)).0;
        assert_eq!(outcome(&holds, &[]), CaseOutcome::Passed);
        assert_eq!(outcome(&holds, &[(Hazard::NoSharedLock, 0)]), CaseOutcome::Passed);
        assert_eq!(outcome(&holds, &[(Hazard::NoSharedLock, 1)]), CaseOutcome::Failed);
        assert_eq!(outcome(&hazard, &[(Hazard::NoSharedLock, 9)]), CaseOutcome::Passed);
        assert_eq!(outcome(&hazard, &[(Hazard::NoSharedLock, 0)]), CaseOutcome::Failed);
        assert_eq!(outcome(&hazard, &[]), CaseOutcome::Failed);
        assert_eq!(outcome(&hazard, &[(Hazard::NoSharedLock, 9), (Hazard::StaleBit, 1)]), CaseOutcome::Failed);
    }

    #[test]
    fn a_prediction_is_met_inside_its_bounds_and_nowhere_else() {
        let outcome = |count: u64| {
            let mut seen = observed(&[(Hazard::StaleBit, count)]);
            seen.predicted.insert(Hazard::StaleBit, (3, 5));
            judge(&Expectation::hazards([Hazard::StaleBit]), &seen).0
        };
        assert_eq!([2, 3, 5, 6].map(outcome), {
            use CaseOutcome::{Failed, Passed};
            [Failed, Passed, Passed, Failed]
        });
    }

    #[test]
    fn what_is_wrong_counts_more_than_what_is_inconclusive_and_both_more_than_the_expectation() {
        let mut seen = observed(&[]);
        seen.inconclusive.push("3 of 100 overlapped".into());
        assert_eq!(judge(&Expectation::holds(), &seen).0, CaseOutcome::Error);
        seen.wrong.push("unclassified answer".into());
        assert_eq!(judge(&Expectation::holds(), &seen).0, CaseOutcome::Failed);
    }
}
