//! `cargo xtask matrix`: the legs of continuous integration, each a run of `cargo xtask e2e` in a job of its own.

use crate::cli::{Event, MatrixArgs, MatrixFormat};
use crate::e2e;
use crate::existing;
use crate::exit::{Ended, PlanError};
use crate::select::{self, Listed, Servers, Wishes};
use comfy_table::{Table, presets};
use harness::binaries;
use harness::gates::GateSet;
use harness::provider::Provider;
use harness::record::CaseId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Which cases run together in a leg.
struct Row {
    name: &'static str,
    event: Event,
    provider: Provider,
    suites: &'static [&'static str],
    /// Patterns of combo ids; empty is all.
    combos: &'static [&'static str],
}

impl Row {
    const fn local(
        event: Event,
        name: &'static str,
        suites: &'static [&'static str],
        combos: &'static [&'static str],
    ) -> Row {
        Row { name, event, provider: Provider::Local, suites, combos }
    }

    const fn kind(name: &'static str, suites: &'static [&'static str], combos: &'static [&'static str]) -> Row {
        Row { name, event: Event::Nightly, provider: Provider::Kind, suites, combos }
    }
}

/// Every leg. The local ones of the night have each case exactly once, which `cargo xtask matrix` checks.
const ROWS: [Row; 10] = [
    // `.ci/run` has the gate matrix and the paths around 1.33 already: here are both ends of the supported minors.
    Row::local(
        Event::PullRequest,
        "ends",
        &["upgrade"],
        &["v1_31_bitmap__v1_32_bitmap", "v1_36_ip_address__v1_37_ip_address"],
    ),
    // The skew that Kubernetes supports and that is not safe: a control that duplicates are still found.
    Row::local(Event::PullRequest, "opted-out", &["upgrade"], &["v1_33_bitmap__v1_34_ip_address"]),
    Row::local(Event::Nightly, "gates", &["conformance", "recording", "skew"], &[]),
    // A leg per minor to start from, so that none needs the binaries of all of them but the one with the chain.
    Row::local(Event::Nightly, "upgrade-from-1.31-1.32", &["upgrade", "flags"], &["v1_31_*", "v1_32_*"]),
    Row::local(Event::Nightly, "upgrade-from-1.33", &["upgrade", "flags"], &["v1_33_*"]),
    Row::local(Event::Nightly, "upgrade-from-1.34-1.36", &["upgrade", "flags"], &["v1_34_*", "v1_35_*", "v1_36_*"]),
    // The same on kind, where a case takes longer.
    Row::kind("kind-gates", &["recording", "skew"], &[]),
    Row::kind("kind-upgrade-from-1.31-1.32", &["upgrade", "flags"], &["v1_31_*", "v1_32_*"]),
    Row::kind("kind-upgrade-from-1.33", &["upgrade", "flags"], &["v1_33_*"]),
    Row::kind("kind-upgrade-from-1.34-1.36", &["upgrade", "flags"], &["v1_34_*", "v1_35_*", "v1_36_*"]),
];

/// Longest time of the run of a leg, in minutes; beyond it something hangs that the bounds of its cases do not catch.
fn minutes(provider: Provider) -> u32 {
    match provider {
        Provider::Local | Provider::Containers | Provider::Existing => 60,
        Provider::Kind => 240,
    }
}

/// What a leg runs, from the table or from a person.
struct Selection {
    name: String,
    provider: Provider,
    suites: Vec<String>,
    combos: Vec<String>,
    gates: Vec<GateSet>,
}

impl Selection {
    /// The arguments of `cargo xtask e2e`.
    fn arguments(&self) -> Vec<String> {
        let provider = match self.provider {
            // The default, left out so that the command is the one a person would type.
            Provider::Local => None,
            Provider::Kind | Provider::Containers | Provider::Existing => {
                Some(("--provider", self.provider.to_string()))
            }
        };
        let suites = self.suites.iter().map(|suite| ("--suite", suite.clone()));
        let combos = self.combos.iter().map(|combo| ("--combo", combo.clone()));
        let gates = self.gates.iter().map(|gates| ("--gates", gates.to_string()));
        let pairs = provider.into_iter().chain(suites).chain(combos).chain(gates);
        pairs.flat_map(|(flag, value)| [flag.to_string(), value]).collect()
    }
}

/// A job.
#[derive(Debug)]
struct Leg {
    name: String,
    provider: Provider,
    arguments: Vec<String>,
    cases: Vec<CaseId>,
    /// The versions of the binaries that its servers need: the key of their cache.
    versions: BTreeSet<String>,
}

impl Leg {
    fn new(selection: &Selection, listed: &[Listed]) -> Result<Leg, PlanError> {
        // The command of the leg would run these.
        let default_suites: Vec<String> = Servers::OfTable.default_suites().iter().map(ToString::to_string).collect();
        let suites = if selection.suites.is_empty() { &default_suites } else { &selection.suites };
        let (combos, gates) = (&selection.combos, &selection.gates);
        let wishes = Wishes { suites, scenarios: &[], combos, gates };
        let (cases, combos) = select::select(listed.to_vec(), &wishes)
            .map_err(|PlanError(why)| PlanError(format!("leg {}: {why}", selection.name)))?;
        let controller_managers = cases.iter().any(|case| case.scenario.needs_controller_manager());
        let wanted = binaries::needed_by(combos.values(), controller_managers);
        Ok(Leg {
            name: selection.name.clone(),
            provider: selection.provider,
            arguments: selection.arguments(),
            cases: cases.into_iter().map(|case| case.id).collect(),
            versions: wanted.iter().map(|wanted| wanted.version()).collect(),
        })
    }

    /// The command for a shell.
    fn command(&self) -> String {
        let quoted = self.arguments.iter().map(|argument| shell_word(argument));
        ["cargo xtask e2e".to_string()].into_iter().chain(quoted).collect::<Vec<_>>().join(" ")
    }
}

/// The entry of a leg in the matrix of the workflow.
#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    provider: String,
    /// One per line: no value has a line break, and a job can read them without `eval`.
    arguments: String,
    versions: String,
    minutes: u32,
}

/// What `$GITHUB_OUTPUT` takes.
#[derive(Serialize)]
struct Include<'a> {
    include: Vec<Entry<'a>>,
}

/// Runs the command.
///
/// # Errors
/// A selection that matches nothing, or a case that no leg of the night has.
pub fn run(args: MatrixArgs) -> anyhow::Result<Ended> {
    args.provider.map_or(Ok(()), existing::require_own_servers)?;
    let listed = select::parse_list(&e2e::list_tests(&e2e::build_test_binary(Provider::Local)?)?, &Servers::OfTable)?;
    check_partition(&listed)?;
    let legs = legs(&args, &listed)?;
    match args.format {
        MatrixFormat::Text => print!("{}", text(&legs)),
        MatrixFormat::Github => println!("{}", github(&legs)?),
    }
    Ok(Ended::AsExpected)
}

fn legs(args: &MatrixArgs, listed: &[Listed]) -> Result<Vec<Leg>, PlanError> {
    let of_provider = |provider| args.provider.is_none_or(|wanted| wanted == provider);
    let by_hand = !(args.suites.is_empty() && args.combos.is_empty() && args.gates.is_empty());
    let selections: Vec<Selection> = if by_hand {
        // Who names none means those that have legs of their own.
        let has_legs = |provider| ROWS.iter().any(|row| row.provider == provider);
        let meant = |provider: &Provider| of_provider(*provider) && (args.provider.is_some() || has_legs(*provider));
        let providers = Provider::ALL.into_iter().filter(meant);
        providers.map(|provider| chosen(args, provider)).collect()
    } else {
        let rows = ROWS.iter().filter(|row| row.event == args.event && of_provider(row.provider));
        rows.map(from_table).collect()
    };
    if selections.is_empty() {
        let provider = args.provider.map_or(String::new(), |provider| format!(" with provider {provider}"));
        return Err(PlanError(format!("no leg runs on this event{provider}")));
    }
    selections.iter().map(|selection| Leg::new(selection, listed)).collect()
}

fn from_table(row: &Row) -> Selection {
    let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    Selection {
        name: row.name.into(),
        provider: row.provider,
        suites: owned(row.suites),
        combos: owned(row.combos),
        gates: Vec::new(),
    }
}

fn chosen(args: &MatrixArgs, provider: Provider) -> Selection {
    Selection {
        name: format!("chosen-{provider}"),
        provider,
        suites: args.suites.clone(),
        combos: args.combos.clone(),
        gates: args.gates.clone(),
    }
}

/// Every case belongs to exactly one local leg of the night.
fn check_partition(listed: &[Listed]) -> Result<(), PlanError> {
    let mut legs_of: BTreeMap<CaseId, Vec<&str>> = listed.iter().map(|case| (case.id.clone(), Vec::new())).collect();
    for row in ROWS.iter().filter(|row| row.event == Event::Nightly && row.provider == Provider::Local) {
        for id in Leg::new(&from_table(row), listed)?.cases {
            legs_of.entry(id).or_default().push(row.name);
        }
    }
    match legs_of.into_iter().find(|(_, legs)| legs.len() != 1) {
        None => Ok(()),
        Some((id, legs)) => {
            let suite = &id.suite;
            let which = if legs.is_empty() { "none".to_string() } else { legs.join(", ") };
            Err(PlanError(format!("{suite}::{id} belongs to one leg of the night; xtask/src/matrix.rs has: {which}")))
        }
    }
}

/// The table for people.
fn text(legs: &[Leg]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(["leg", "cases", "versions", "command"]);
    for leg in legs {
        let versions: Vec<&str> = leg.versions.iter().map(String::as_str).collect();
        table.add_row([&leg.name, &leg.cases.len().to_string(), &versions.join(" "), &leg.command()]);
    }
    format!("{table}\n")
}

/// The line for `$GITHUB_OUTPUT`.
fn github(legs: &[Leg]) -> serde_json::Result<String> {
    let entries = legs.iter().map(|leg| Entry {
        name: &leg.name,
        provider: leg.provider.to_string(),
        arguments: leg.arguments.join("\n"),
        versions: leg.versions.iter().cloned().collect::<Vec<_>>().join("_"),
        minutes: minutes(leg.provider),
    });
    Ok(format!("matrix={}", serde_json::to_string(&Include { include: entries.collect() })?))
}

/// An argument as a shell reads it back.
fn shell_word(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=.,:/".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::combo;
    use harness::expect::Scenario;

    /// Every scenario on every combo: more than the test binary has, and nothing that it has is missing, because
    /// `parse_list` refuses a test that is not in these two tables.
    fn every_case() -> Vec<Listed> {
        let combos = combo::all();
        let pairs = Scenario::ALL.into_iter().flat_map(|scenario| combos.iter().map(move |combo| (scenario, combo)));
        let cases = pairs.map(|(scenario, combo)| {
            let (suite, name) = scenario.path();
            let id = CaseId { suite: suite.into(), scenario: name.into(), combo: combo.id().unwrap() };
            Listed { id, scenario, combo: combo.clone(), waits: false, test: String::new() }
        });
        cases.collect()
    }

    fn args(line: &[&str]) -> MatrixArgs {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            args: MatrixArgs,
        }
        <Command as clap::Parser>::try_parse_from([&["matrix"], line].concat()).unwrap().args
    }

    #[test]
    fn every_case_belongs_to_exactly_one_local_leg_of_the_night() {
        check_partition(&every_case()).unwrap();
    }

    #[test]
    fn a_case_that_no_leg_has_is_named() {
        let mut cases = every_case();
        cases[0].id.suite = "brand_new".into();
        let error = check_partition(&cases).unwrap_err().to_string();
        assert!(error.starts_with(&format!("brand_new::{} ", cases[0].id)), "{error}");
    }

    #[test]
    fn no_provider_runs_a_case_twice_on_one_event() {
        for (event, provider) in [("pull-request", "local"), ("nightly", "local"), ("nightly", "kind")] {
            let legs = legs(&args(&["--event", event, "--provider", provider]), &every_case()).unwrap();
            let cases: Vec<&CaseId> = legs.iter().flat_map(|leg| &leg.cases).collect();
            assert_eq!(cases.len(), cases.iter().collect::<BTreeSet<_>>().len(), "{event} {provider}");
        }
    }

    #[test]
    fn names_of_legs_are_unique_and_fit_for_artifacts() {
        let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
        for name in names {
            let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
            assert!(name.bytes().all(fits), "{name}");
        }
    }

    #[test]
    fn a_pull_request_runs_a_small_local_set() {
        let legs = legs(&args(&["--event", "pull-request"]), &every_case()).unwrap();
        assert!(legs.iter().all(|leg| leg.provider == Provider::Local));
        let combos: BTreeSet<&str> = legs.iter().flat_map(|leg| &leg.cases).map(|id| id.combo.as_str()).collect();
        assert_eq!(combos.len(), 3);
    }

    #[test]
    fn the_workflow_gets_one_line_and_people_the_same_arguments() {
        let legs = legs(&args(&["--suite", "upgrade", "--combo", "v1_3[12]_*"]), &every_case()).unwrap();
        assert_eq!(legs[0].command(), "cargo xtask e2e --suite upgrade --combo 'v1_3[12]_*'");
        assert_eq!(legs[1].command(), "cargo xtask e2e --provider kind --suite upgrade --combo 'v1_3[12]_*'");
        let line = github(&legs[..1]).unwrap();
        let json: serde_json::Value = serde_json::from_str(line.strip_prefix("matrix=").unwrap()).unwrap();
        assert_eq!(line.lines().count(), 1);
        let entry = &json["include"][0];
        assert_eq!(entry["name"], "chosen-local");
        assert_eq!(entry["arguments"], "--suite\nupgrade\n--combo\nv1_3[12]_*");
        assert!(entry["versions"].as_str().unwrap().starts_with("v1.31.0_v1.31.14_"), "{entry}");
    }

    #[test]
    fn a_choice_that_matches_nothing_says_what_there_is() {
        let error = legs(&args(&["--suite", "skwe"]), &every_case()).unwrap_err().to_string();
        assert!(
            error.contains("leg chosen-local") && error.contains("there are: conformance, flags, recording, skew"),
            "{error}"
        );
        let none = legs(&args(&["--event", "pull-request", "--provider", "kind"]), &every_case());
        assert!(none.unwrap_err().to_string().contains("provider kind"));
    }

    #[test]
    fn the_shell_reads_every_argument_back() {
        let words =
            [("v1_33_*", "'v1_33_*'"), ("a=true,b=false", "a=true,b=false"), ("", "''"), ("it's", r"'it'\''s'")];
        for (text, word) in words {
            assert_eq!(shell_word(text), word);
        }
    }
}
