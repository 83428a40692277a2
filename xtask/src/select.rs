//! From the list of the test binary and the user's wishes to the cases of a run.

use crate::exit::PlanError;
use glob::Pattern;
use harness::combo::{self, Combo};
use harness::expect::Scenario;
use harness::gates::GateSet;
use harness::record::CaseId;
use std::collections::{BTreeMap, BTreeSet};

/// A case and the name libtest knows it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The case.
    pub id: CaseId,
    /// Its row in the expectation table.
    pub scenario: Scenario,
    /// Its servers.
    pub combo: Combo,
    /// Whether it mostly waits for a repair loop.
    pub waits: bool,
    /// The test's name, `skew::x::case_1_combo`.
    pub test: String,
}

/// Which servers a run has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Servers {
    /// The combos of the table.
    OfTable,
    /// The path that the user names with `--from` and `--to`.
    FromTo(Combo),
    /// Those that run already.
    Existing(Combo),
}

impl Servers {
    /// The combo that is not in the table.
    pub fn combo(&self) -> Option<&Combo> {
        match self {
            Servers::OfTable => None,
            Servers::FromTo(combo) | Servers::Existing(combo) => Some(combo),
        }
    }

    /// The suites of a run that names none.
    pub fn default_suites(&self) -> &'static [&'static str] {
        match self {
            // Upgrade paths need the binaries of seven minors and are asked for by name.
            Servers::OfTable => &["conformance", "recording", "skew"],
            // A path that a user names is one of upgrades.
            Servers::FromTo(_) => &["upgrade"],
            Servers::Existing(_) => &["conformance", "skew"],
        }
    }
}

/// Reads `--list --format terse` of the test binary.
///
/// The cases of `from_to` and of `existing` belong to the combo that is not in the table; without one they are left out.
///
/// # Errors
/// A test that is not a scenario with a combo of the table: it would run without an expectation.
pub fn parse_list(list: &str, servers: &Servers) -> anyhow::Result<Vec<Listed>> {
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let is = |test: &str, name: &str| test.ends_with(&format!("_{name}"));
    let names = names.filter(|test| match servers {
        Servers::OfTable => !is(test, combo::FROM_TO) && !is(test, combo::EXISTING),
        Servers::FromTo(_) => is(test, combo::FROM_TO),
        Servers::Existing(_) => is(test, combo::EXISTING),
    });
    let cases = names.map(|test| {
        parse_test(test, servers.combo()).ok_or_else(|| {
            anyhow::anyhow!("the test `{test}` has no scenario in harness::expect or no combo in harness::combo")
        })
    });
    cases.collect()
}

fn parse_test(test: &str, named: Option<&Combo>) -> Option<Listed> {
    let mut parts = test.split("::");
    let (suite, name, case) = (parts.next()?, parts.next()?, parts.next()?);
    let (_, combo) = case.strip_prefix("case_")?.split_once('_')?;
    let scenario = Scenario::find(suite, name)?;
    let combo = match named {
        Some(combo) => combo.clone(),
        None => combo::find(combo)?,
    };
    let id = CaseId { suite: suite.into(), scenario: name.into(), combo: combo.id().ok()? };
    // A combo that cannot run is refused by the plan.
    let waits = scenario.mostly_waits(&combo).unwrap_or(false);
    Some(Listed { id, scenario, combo, waits, test: test.into() })
}

/// What the user wants of all cases. An empty list wants everything.
#[derive(Debug, Default)]
pub struct Wishes<'a> {
    /// Suites by name.
    pub suites: &'a [String],
    /// Patterns of scenarios, names of test functions.
    pub scenarios: &'a [String],
    /// Patterns of combo ids.
    pub combos: &'a [String],
    /// Gate lists, to be met by different servers.
    pub gates: &'a [GateSet],
}

/// The wanted cases, those that take longest first, and their combos.
///
/// # Errors
/// A suite that does not exist, a pattern that is none or matches nothing, gates that no combo meets.
pub fn select(listed: Vec<Listed>, wishes: &Wishes<'_>) -> Result<(Vec<Listed>, BTreeMap<String, Combo>), PlanError> {
    let suites: BTreeSet<&str> = listed.iter().map(|case| case.id.suite.as_str()).collect();
    if let Some(unknown) = wishes.suites.iter().find(|suite| !suites.contains(suite.as_str())) {
        return Err(PlanError(format!("no suite `{unknown}`; there are: {}", joined(&suites))));
    }
    let wanted_suites = wishes.suites;
    let listed: Vec<Listed> =
        listed.into_iter().filter(|case| wanted_suites.is_empty() || wanted_suites.contains(&case.id.suite)).collect();
    let scenarios: BTreeSet<String> = listed.iter().map(|case| case.id.scenario.clone()).collect();
    let wanted_scenarios =
        patterns(wishes.scenarios, &scenarios, &format!("scenario of suite {}", wanted_suites.join(", ")))?;
    let listed: Vec<Listed> =
        listed.into_iter().filter(|case| wanted_by(&wanted_scenarios, &case.id.scenario)).collect();
    let all: BTreeMap<String, Combo> = listed.iter().map(|case| (case.id.combo.clone(), case.combo.clone())).collect();
    let ids: BTreeSet<String> = all.keys().cloned().collect();
    let wanted_combos = patterns(wishes.combos, &ids, &format!("combo of suite {}", wanted_suites.join(", ")))?;
    let wanted = |id: &str, combo: &Combo| -> bool {
        wanted_by(&wanted_combos, id) && combo.meets(wishes.gates).unwrap_or(false)
    };
    let combos: BTreeMap<String, Combo> =
        all.iter().filter(|(id, combo)| wanted(id, combo)).map(|(id, combo)| (id.clone(), combo.clone())).collect();
    if combos.is_empty() {
        let gates: Vec<String> = wishes.gates.iter().map(ToString::to_string).collect();
        let gates = gates.join(" on one server and ");
        return Err(PlanError(format!("no combo has {gates}; there are:\n  {}", list(all.keys()))));
    }
    let mut cases: Vec<Listed> = listed.into_iter().filter(|case| combos.contains_key(&case.id.combo)).collect();
    cases.sort_by_key(|case| std::cmp::Reverse(case.scenario.typical_seconds()));
    Ok((cases, combos))
}

/// The patterns of a list, each of which must match one of the names.
fn patterns(texts: &[String], names: &BTreeSet<String>, what: &str) -> Result<Vec<Pattern>, PlanError> {
    let parsed = texts.iter().map(|text| {
        let pattern = Pattern::new(text).map_err(|error| PlanError(format!("`{text}` is not a pattern: {error}")))?;
        if names.iter().any(|name| pattern.matches(name)) {
            return Ok(pattern);
        }
        Err(PlanError(format!("no {what} matches `{text}`; there are:\n  {}", list(names.iter()))))
    });
    parsed.collect()
}

/// Whether one of the patterns matches; without any, everything is wanted.
fn wanted_by(patterns: &[Pattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
}

fn joined(names: &BTreeSet<&str>) -> String {
    names.iter().copied().collect::<Vec<_>>().join(", ")
}

fn list<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.cloned().collect::<Vec<_>>().join("\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "skew::same_static_ip_is_granted_once::case_03_v1_33_bitmap__v1_33_ip_address: test\n\
        skew::a_service_of_one_server_is_known_to_the_others::case_10_v1_33_bitmap__v1_33_dual_write__v1_33_ip_address: test\n\
        skew::same_static_ip_is_granted_once::case_05_v1_33_dual_write__v1_33_dual_write: test\n";

    fn selected(suites: &[&str], combos: &[&str], gates: &[&str]) -> Result<Vec<String>, String> {
        let suites: Vec<String> = suites.iter().map(ToString::to_string).collect();
        let combos: Vec<String> = combos.iter().map(ToString::to_string).collect();
        let gates: Vec<GateSet> = gates.iter().map(|text| text.parse().unwrap()).collect();
        let wishes = Wishes { suites: &suites, scenarios: &[], combos: &combos, gates: &gates };
        let selected =
            select(parse_list(LIST, &Servers::OfTable).unwrap(), &wishes).map_err(|error| error.to_string())?;
        Ok(selected.0.into_iter().map(|case| case.id.to_string()).collect())
    }

    #[test]
    fn the_case_that_waits_longest_starts_first() {
        let names = selected(&[], &[], &[]).unwrap();
        assert_eq!(names.len(), 3);
        assert!(names[0].starts_with("a_service_of_one_server_is_known_to_the_others["), "{names:?}");
    }

    #[test]
    fn suites_patterns_and_gates_narrow_the_run() {
        assert_eq!(selected(&["skew"], &["*dual_write__v1_33_dual_write"], &[]).unwrap().len(), 1);
        assert_eq!(selected(&[], &[], &["MultiCIDRServiceAllocator=false"]).unwrap().len(), 2);
        assert_eq!(
            selected(&[], &["*ip_address"], &["DisableAllocatorDualWrite=false,MultiCIDRServiceAllocator=true"])
                .unwrap()
                .len(),
            1
        );
    }

    #[test]
    fn a_scenario_is_selected_by_its_name_and_one_that_does_not_exist_is_refused() {
        let selected = |text: &str| {
            let scenarios = [text.to_string()];
            let wishes = Wishes { scenarios: &scenarios, ..Wishes::default() };
            select(parse_list(LIST, &Servers::OfTable).unwrap(), &wishes).map(|(cases, _)| cases.len())
        };
        assert_eq!(selected("same_static_ip_*").unwrap(), 2);
        assert!(selected("rolling").unwrap_err().to_string().contains("same_static_ip_is_granted_once"));
    }

    #[test]
    fn an_empty_selection_names_what_there_is() {
        assert!(selected(&["skwe"], &[], &[]).unwrap_err().contains("there are: skew"));
        assert!(selected(&[], &["v1_35*"], &[]).unwrap_err().contains("v1_33_dual_write__v1_33_dual_write"));
        assert!(selected(&[], &["["], &[]).unwrap_err().contains("not a pattern"));
        let both = ["MultiCIDRServiceAllocator=false", "MultiCIDRServiceAllocator=false"];
        assert!(selected(&[], &[], &both).unwrap_err().contains("on one server and"));
    }

    #[test]
    fn the_cases_of_from_to_run_the_combo_a_user_names_and_only_then() {
        let list = format!(
            "{LIST}upgrade::the_same_static_ip_is_granted_once_half_way::case_17_from_to: test\n\
            skew::same_static_ip_is_granted_once::case_11_existing: test\n"
        );
        assert_eq!(parse_list(&list, &Servers::OfTable).unwrap().len(), 3);
        let running = Combo::new([combo::release(34)]);
        let cases = parse_list(&list, &Servers::Existing(running)).unwrap();
        assert_eq!(
            cases.iter().map(|case| case.id.to_string()).collect::<Vec<_>>(),
            ["same_static_ip_is_granted_once[v1_34_ip_address]"]
        );
        let named = Combo::new([combo::release(34), combo::release(36)]);
        let cases = parse_list(&list, &Servers::FromTo(named)).unwrap();
        assert_eq!(
            cases.iter().map(|case| case.id.combo.as_str()).collect::<Vec<_>>(),
            ["v1_34_ip_address__v1_36_ip_address"]
        );
    }

    #[test]
    fn a_test_without_a_row_in_the_tables_is_an_error() {
        assert!(parse_list("skew::new_one::case_1_v1_33_bitmap__v1_33_bitmap: test\n", &Servers::OfTable).is_err());
        assert!(parse_list("skew::same_static_ip_is_granted_once::case_1_unknown: test\n", &Servers::OfTable).is_err());
        assert_eq!(parse_list("3 tests, 0 benchmarks\n", &Servers::OfTable).unwrap(), []);
    }
}
