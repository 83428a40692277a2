//! From the plan of a run and the records of its cases to what people and CI read.

use crate::cluster::Site;
use crate::combo::Combo;
use crate::expect::Expectation;
use crate::hazard::Hazard;
use crate::record::{CaseId, CaseOutcome, CaseRecord, Observed, RunPlan};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub mod comparison;
pub mod junit;
pub mod markdown;

/// Everything a report says about a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The id of the run.
    pub run: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// What a reader must know: what was assumed of servers that run already, and what cannot be seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Counts.
    pub totals: Totals,
    /// One entry per combo.
    pub combos: Vec<ComboSummary>,
    /// One entry per planned case, in the order of the plan.
    pub cases: Vec<CaseSummary>,
}

/// Counts of cases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Planned.
    pub cases: usize,
    /// As expected.
    pub passed: usize,
    /// The system misbehaved.
    pub failed: usize,
    /// No verdict.
    pub errors: usize,
    /// Not run.
    pub skipped: usize,
    /// Cases in which a hazard showed, expected or not.
    pub hazards: usize,
}

/// What the cases of a combo amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing went wrong, and nothing was expected to.
    Safe,
    /// The expected hazards showed, and no other.
    Hazard,
    /// Some case did not come out as expected.
    Unexpected,
    /// Some case gave no verdict.
    Inconclusive,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Safe => "safe",
            Verdict::Hazard => "hazard",
            Verdict::Unexpected => "unexpected",
            Verdict::Inconclusive => "inconclusive",
        })
    }
}

/// One combo in a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComboSummary {
    /// Its id.
    pub name: String,
    /// The first server.
    pub old: ServerSummary,
    /// The last server.
    pub new: ServerSummary,
    /// All servers in order.
    pub servers: Vec<ServerSummary>,
    /// The verdict.
    pub verdict: Verdict,
    /// The hazards that showed in any case, with the largest count of one case.
    pub hazards: BTreeMap<Hazard, u64>,
}

/// One server in a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerSummary {
    /// Its version.
    pub version: String,
    /// The version it emulates, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulated: Option<String>,
    /// Its allocator mode.
    pub mode: String,
    /// The value of every gate.
    pub gates: String,
}

/// One case in a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CaseSummary {
    /// `scenario[combo]`.
    pub name: String,
    /// The suite.
    pub suite: String,
    /// The combo.
    pub combo: String,
    /// How it came out.
    pub outcome: CaseOutcome,
    /// How long it took.
    pub seconds: f64,
    /// What was expected, in words.
    pub expectation: String,
    /// What was seen, in words.
    pub observed: String,
    /// Why it came out so.
    pub detail: String,
    /// How often each hazard showed.
    pub hazards: BTreeMap<Hazard, u64>,
    /// Measured figures; names end in their unit.
    pub measured: BTreeMap<String, f64>,
}

/// A planned case with its record, or with the reason why there is none.
pub type Result = std::result::Result<CaseRecord, String>;

/// Sums up a run. Every planned case appears; one without a record is an error.
pub fn summarize(plan: &RunPlan, seconds: f64, mut result_of: impl FnMut(&CaseId) -> Result) -> Summary {
    let cases: Vec<CaseSummary> = plan.cases.iter().map(|id| case_summary(id, result_of(id))).collect();
    let count = |outcome| cases.iter().filter(|case| case.outcome == outcome).count();
    let totals = Totals {
        cases: cases.len(),
        passed: count(CaseOutcome::Passed),
        failed: count(CaseOutcome::Failed),
        errors: count(CaseOutcome::Error),
        skipped: count(CaseOutcome::Skipped),
        hazards: cases.iter().filter(|case| !case.hazards.is_empty()).count(),
    };
    let used: BTreeSet<&str> = plan.cases.iter().map(|id| id.combo.as_str()).collect();
    let combos = plan.combos.iter().filter(|(name, _)| used.contains(name.as_str()));
    let combos = combos.map(|(name, combo)| combo_summary(name, combo, &cases)).collect();
    let notes = match &plan.site {
        Site::Local | Site::Kind(_) | Site::Containers(_) => Vec::new(),
        Site::Existing(existing) => existing.notes.clone(),
    };
    Summary { run: plan.run.clone(), seconds, notes, totals, combos, cases }
}

fn case_summary(id: &CaseId, result: Result) -> CaseSummary {
    let record = result.unwrap_or_else(|why| CaseRecord {
        id: id.clone(),
        outcome: CaseOutcome::Error,
        seconds: 0.0,
        expectation: None,
        observed: Observed::default(),
        detail: why,
    });
    CaseSummary {
        name: id.to_string(),
        suite: id.suite.clone(),
        combo: id.combo.clone(),
        outcome: record.outcome,
        seconds: record.seconds,
        expectation: record.expectation.as_ref().map_or("unknown".to_string(), Expectation::to_string),
        observed: record.observed.summary,
        detail: record.detail,
        hazards: record.observed.hazards.into_iter().filter(|(_, count)| *count > 0).collect(),
        measured: record.observed.measured,
    }
}

fn combo_summary(name: &str, combo: &Combo, cases: &[CaseSummary]) -> ComboSummary {
    let of_combo: Vec<&CaseSummary> = cases.iter().filter(|case| case.combo == name).collect();
    let has = |outcome| of_combo.iter().any(|case| case.outcome == outcome);
    let mut hazards: BTreeMap<Hazard, u64> = BTreeMap::new();
    for (hazard, count) in of_combo.iter().flat_map(|case| &case.hazards) {
        add_largest(&mut hazards, *hazard, *count);
    }
    let verdict = if has(CaseOutcome::Failed) {
        Verdict::Unexpected
    } else if has(CaseOutcome::Error) || !has(CaseOutcome::Passed) {
        Verdict::Inconclusive
    } else if hazards.is_empty() {
        Verdict::Safe
    } else {
        Verdict::Hazard
    };
    let servers: Vec<ServerSummary> = combo.servers.iter().map(server_summary).collect();
    let end = |server: Option<&ServerSummary>| server.cloned().expect("a combo must have servers");
    ComboSummary { name: name.into(), old: end(servers.first()), new: end(servers.last()), servers, verdict, hazards }
}

/// Of each hazard the largest count of one case is kept.
fn add_largest(hazards: &mut BTreeMap<Hazard, u64>, hazard: Hazard, count: u64) {
    let largest = hazards.entry(hazard).or_default();
    *largest = (*largest).max(count);
}

fn server_summary(server: &crate::server::ServerSpec) -> ServerSummary {
    let gates = server.effective_gates().unwrap_or_default();
    ServerSummary {
        version: server.version.to_string(),
        emulated: server.emulated.map(|minor| minor.to_string()),
        mode: server.mode().map_or("impossible".to_string(), |mode| mode.to_string()),
        gates: gates.iter().map(|(gate, value)| format!("{gate}={value}")).collect::<Vec<_>>().join(","),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cluster::Binaries;
    use crate::cluster::Site;
    use crate::combo::gate_matrix;

    pub(crate) fn plan() -> RunPlan {
        let combos: BTreeMap<String, Combo> =
            gate_matrix().into_iter().map(|combo| (combo.id().unwrap(), combo)).collect();
        let id = |combo: &str| CaseId { suite: "skew".into(), scenario: "one".into(), combo: combo.into() };
        let cases = vec![id("v1_33_bitmap__v1_33_bitmap"), id("v1_33_bitmap__v1_33_ip_address")];
        RunPlan {
            run: "r1".into(),
            site: Site::Local,
            binaries: Binaries::default(),
            keep: false,
            combos,
            named: None,
            cases,
        }
    }

    pub(crate) fn record(id: &CaseId, outcome: CaseOutcome, hazards: &[(Hazard, u64)]) -> CaseRecord {
        CaseRecord {
            id: id.clone(),
            outcome,
            seconds: 1.5,
            expectation: Some(Expectation::holds()),
            observed: Observed {
                hazards: hazards.iter().copied().collect(),
                summary: "seen".into(),
                ..Default::default()
            },
            detail: String::new(),
        }
    }

    #[test]
    fn a_planned_case_without_a_record_is_an_error_everywhere() {
        let summary = summarize(&plan(), 9.0, |id| match id.combo.as_str() {
            "v1_33_bitmap__v1_33_bitmap" => Ok(record(id, CaseOutcome::Passed, &[(Hazard::StaleBit, 0)])),
            _ => Err("the test process died".into()),
        });
        assert_eq!(summary.totals, Totals { cases: 2, passed: 1, errors: 1, ..Default::default() });
        let verdicts: Vec<_> = summary.combos.iter().map(|combo| (combo.name.as_str(), combo.verdict)).collect();
        let expected =
            [("v1_33_bitmap__v1_33_bitmap", Verdict::Safe), ("v1_33_bitmap__v1_33_ip_address", Verdict::Inconclusive)];
        assert_eq!(verdicts, expected);
        assert_eq!(summary.cases[1].detail, "the test process died");
    }

    #[test]
    fn a_combo_is_a_hazard_only_if_it_showed_as_expected() {
        let verdict = |outcome| {
            let summary = summarize(&plan(), 9.0, |id| Ok(record(id, outcome, &[(Hazard::NoSharedLock, 7)])));
            (summary.combos[1].verdict, summary.totals.hazards)
        };
        assert_eq!(verdict(CaseOutcome::Passed), (Verdict::Hazard, 2));
        assert_eq!(verdict(CaseOutcome::Failed), (Verdict::Unexpected, 2));
    }
}
