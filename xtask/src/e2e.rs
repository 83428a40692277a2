//! `cargo xtask e2e`: select, plan, run, report.

use crate::cli::E2eArgs;
use crate::existing;
use crate::exit::{Ended, PlanError};
use crate::fetch::Version;
use crate::schedule::{self, OUTPUT_FILE};
use crate::select::{self, Listed, Servers, Wishes};
use crate::site;
use anyhow::Context;
use comfy_table::{Table, presets};
use harness::binaries::{self, KubeComponent, Wanted};
use harness::cluster::{Binaries, Site};
use harness::combo::Combo;
use harness::expect::expectation;
use harness::files::write_atomically;
use harness::gates::{Gate, GateSet};
use harness::host;
use harness::preflight;
use harness::provider::{Need, Provider};
use harness::record::{CaseOutcome, CaseRecord, PLAN_FILE, RunPlan};
use harness::report::{self, CaseSummary, Summary, Totals, junit, markdown};
use harness::server::ServerSpec;
use harness::version::Minor;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use xshell::{Shell, cmd};

/// Busy cases at the same time by default: a starting server keeps a processor busy, then it waits for clients.
const LOCAL_JOBS_PER_PROCESSOR: usize = 2;
/// Kubelets, containerd and members of etcd want their share as well.
const KIND_JOBS_PER_PROCESSOR: usize = 1;
/// Most busy cases at the same time by default: each has two or three servers of some 300 MB.
const MOST_JOBS: usize = 8;

/// Runs the command.
///
/// # Errors
/// A plan that cannot work, or an environment that fails before any case ran.
pub fn run(args: E2eArgs) -> anyhow::Result<Ended> {
    existing::check_flags(&args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = match args.provider {
        Provider::Local | Provider::Kind | Provider::Containers => None,
        Provider::Existing => Some(runtime.block_on(existing::find_out(&args))?),
    };
    let servers = match (&found, from_to(&args)?) {
        (Some((_, combo)), _) => Servers::Existing(combo.clone()),
        (None, Some(combo)) => Servers::FromTo(combo),
        (None, None) => Servers::OfTable,
    };
    let binary = build_test_binary(args.provider)?;
    let listed = select::parse_list(&list_tests(&binary)?, &servers)?;
    let suites = match args.suites.as_slice() {
        [] => servers.default_suites().iter().map(ToString::to_string).collect(),
        given => given.to_vec(),
    };
    let wishes = Wishes { suites: &suites, scenarios: &args.scenarios, combos: &args.combos, gates: &args.gates };
    let (cases, combos) = select::select(listed, &wishes)?;
    for (id, combo) in &combos {
        combo.modes().map_err(|error| PlanError(format!("combo {id} is impossible: {error}")))?;
    }
    let controller_managers = cases.iter().any(|case| case.scenario.needs_controller_manager());
    let wanted = binaries::needed_by(combos.values(), controller_managers);
    let wanted = site::wanted_of(wanted, args.provider);
    let jobs = args.jobs.map_or_else(|| default_jobs(args.provider), usize::from);
    if let Some((existing, combo)) = &found {
        existing::print(existing, combo)?;
    }
    if args.plan {
        print_plan(&cases, &combos, &wanted, jobs, args.provider)?;
        return Ok(Ended::AsExpected);
    }
    // Servers that run already need no ports of this host.
    let own_servers = if found.is_some() { 0 } else { schedule::most_at_a_time(&cases, jobs) };
    check_host(args.out.as_deref().unwrap_or(&target_dir()), own_servers)?;
    let all: Vec<&Combo> = combos.values().collect();
    let (binaries, site) = match &found {
        Some((existing, _)) => (Binaries::default(), Site::Existing(existing.clone())),
        None => site::prepare(args.provider, &wanted, &all, args.bin_dir.clone(), &runtime)?,
    };
    let run = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string() + &format!("-{}", std::process::id());
    let out = args.out.clone().unwrap_or_else(|| target_dir().join(&run));
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let out = out.canonicalize()?;
    let plan = RunPlan {
        run,
        site,
        binaries,
        keep: args.keep,
        combos,
        named: servers.combo().and_then(|combo| combo.id().ok()),
        cases: cases.iter().map(|case| case.id.clone()).collect(),
    };
    if plan.cases.iter().any(|id| CaseRecord::read(&id.dir(&out)).is_some()) {
        return Err(PlanError(format!("{} already has results; choose another --out", out.display())).into());
    }
    write_atomically(&out.join(PLAN_FILE), &serde_json::to_vec_pretty(&plan)?)?;
    eprintln!(
        "{} cases on {} combos, {jobs} busy ones at a time; results in {}",
        cases.len(),
        plan.combos.len(),
        out.display()
    );

    let begin = Instant::now();
    let missing = runtime.block_on(async {
        let missing = schedule::run(&binary, &cases, &plan, &out, jobs).await;
        site::end(&plan).await?;
        missing
    })?;
    let reasons: BTreeMap<String, &String> = cases
        .iter()
        .filter_map(|case| Some((format!("{}::{}", case.id.suite, case.id), missing.get(&case.test)?)))
        .collect();
    let summary = report::summarize(&plan, begin.elapsed().as_secs_f64(), |id| {
        CaseRecord::read(&id.dir(&out)).ok_or_else(|| {
            reasons.get(&format!("{}::{id}", id.suite)).map_or("not run".to_string(), |why| (*why).clone())
        })
    });
    write_reports(&summary, &plan, &out)?;
    print_result(&summary, &plan, &out);
    Ok(ended(&summary, args.fail_on_hazard))
}

/// The combo of `--from` and `--to`.
fn from_to(args: &E2eArgs) -> anyhow::Result<Option<Combo>> {
    let (Some(from), Some(to)) = (args.from, args.to) else { return Ok(None) };
    let server = |version: Version, gates: &Option<GateSet>, emulated: Option<Minor>| -> anyhow::Result<ServerSpec> {
        let mut spec = ServerSpec::new(version.of(KubeComponent::Apiserver)?);
        spec.gates = gates.clone().unwrap_or_default();
        spec.emulated = emulated;
        // Before 1.33 the allocator needs an API that is off by default; nobody would want the gate without it.
        let wants_allocator = spec.gates.get(Gate::MultiCidrServiceAllocator) == Some(true);
        Ok(if wants_allocator && spec.version.minor < Minor(33) { spec.with_beta_api() } else { spec })
    };
    let old = server(from, &args.from_gates, args.from_emulated)?;
    let new = server(to, &args.to_gates, args.to_emulated)?;
    let (low, high) = (old.version.minor.0.min(new.version.minor.0), old.version.minor.0.max(new.version.minor.0));
    if high - low > 1 && !args.allow_unsupported_skew {
        let why = format!(
            "{} beside {} is {} minors apart; apiservers of a cluster may be one apart (version skew policy). \
             --allow-unsupported-skew runs it all the same",
            old.version,
            new.version,
            high - low
        );
        return Err(PlanError(why).into());
    }
    let combo = Combo::new([old, new]);
    combo.modes().map_err(|error| PlanError(error.to_string()))?;
    Ok(Some(combo))
}

/// Refuses a host on which so many cases at a time would only end without a verdict.
fn check_host(out: &Path, jobs: usize) -> anyhow::Result<()> {
    let ports = host::ports(preflight::local::ports_needed(jobs));
    let lines = preflight::local::judge_run(&host::disk(out), host::memory(), &ports, jobs);
    let failures: Vec<String> = lines.iter().filter(|line| line.is_failure()).map(ToString::to_string).collect();
    anyhow::ensure!(failures.is_empty(), "this host does not carry the run:\n{}", failures.join("\n"));
    Ok(())
}

/// Whether every case was skipped: such a run says nothing.
fn nothing_ran(totals: &Totals) -> bool {
    totals.skipped == totals.cases
}

fn ended(summary: &Summary, fail_on_hazard: bool) -> Ended {
    let totals = summary.totals;
    if totals.failed > 0 || (fail_on_hazard && totals.hazards > 0) {
        Ended::Misbehaved
    } else if totals.errors > 0 || nothing_ran(&totals) {
        Ended::NoVerdict
    } else {
        Ended::AsExpected
    }
}

/// Builds the test binary with the same cargo, and with what a provider needs that others do without; returns its path.
pub fn build_test_binary(provider: Provider) -> anyhow::Result<PathBuf> {
    let sh = Shell::new()?;
    sh.change_dir(workspace());
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let features: &[&str] = match provider {
        Provider::Local | Provider::Kind | Provider::Existing => &[],
        Provider::Containers => &["--features", "containers"],
    };
    let messages =
        cmd!(sh, "{cargo} test --quiet --package suites --test e2e {features...} --no-run --message-format=json-render-diagnostics")
            .quiet()
            .read()
            .context("the test binary does not build")?;
    let mut executables = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_test = message["target"]["name"] == "e2e" && message["profile"]["test"] == true;
        is_test.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    });
    executables.next_back().context("cargo did not say where the test binary is")
}

/// The list of its tests, as `select::parse_list` reads it.
pub fn list_tests(binary: &Path) -> anyhow::Result<String> {
    let sh = Shell::new()?;
    Ok(cmd!(sh, "{binary} --list --format terse").quiet().ignore_stderr().read()?)
}

/// Cases at the same time when nobody says how many.
pub fn default_jobs(provider: Provider) -> usize {
    let jobs_per_processor = match provider {
        Provider::Local | Provider::Containers => LOCAL_JOBS_PER_PROCESSOR,
        Provider::Kind => KIND_JOBS_PER_PROCESSOR,
        // Cases share one cluster, and would take each other's addresses.
        Provider::Existing => return 1,
    };
    (host::processors() * jobs_per_processor).min(MOST_JOBS)
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Where run directories go by default.
pub fn target_dir() -> PathBuf {
    workspace().join("target/skewlab")
}

fn print_plan(
    cases: &[Listed],
    combos: &BTreeMap<String, Combo>,
    wanted: &[Wanted],
    jobs: usize,
    provider: Provider,
) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(["suite", "scenario", "combo", "expected"]);
    for case in cases {
        let expected = match provider.lacking(case.scenario.needs()) {
            Some(lacking) => format!("skipped: {lacking}"),
            None => expectation(case.scenario, &combos[&case.id.combo])?.to_string(),
        };
        table.add_row([&case.id.suite, &case.id.scenario, &case.id.combo, &expected]);
    }
    println!("{table}");
    let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    println!(
        "{} cases on {} combos, {jobs} busy ones at a time; needs {}",
        cases.len(),
        combos.len(),
        if wanted.is_empty() { "no binaries".to_string() } else { wanted.join(", ") }
    );
    Ok(())
}

fn write_reports(summary: &Summary, plan: &RunPlan, out: &Path) -> anyhow::Result<()> {
    let output_of = |case: &CaseSummary| {
        let id = plan.cases.iter().find(|id| id.to_string() == case.name && id.suite == case.suite);
        let path = id.map(|id| id.dir(out).join(OUTPUT_FILE));
        let bytes = path.and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    write_atomically(&out.join("junit.xml"), junit::render(summary, output_of)?.as_bytes())?;
    write_atomically(&out.join("summary.json"), &serde_json::to_vec_pretty(summary)?)?;
    write_atomically(&out.join("summary.md"), markdown::render(summary).as_bytes())?;
    Ok(())
}

fn print_result(summary: &Summary, plan: &RunPlan, out: &Path) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(["combo", "modes", "verdict", "hazards (most in one case)"]);
    for combo in &summary.combos {
        table.add_row([&combo.name, &markdown::modes(combo), &combo.verdict.to_string(), &markdown::hazards(combo)]);
    }
    println!("{table}");
    summary.notes.iter().for_each(|note| println!("note: {note}"));
    for case in summary.cases.iter().filter(|case| matches!(case.outcome, CaseOutcome::Failed | CaseOutcome::Error)) {
        println!("\n{:?} {}::{}\n{}", case.outcome, case.suite, case.name, case.detail);
        if plan.keep
            && plan.site.provider().has(Need::ReuseData)
            && let Some(id) = plan.cases.iter().find(|id| id.to_string() == case.name && id.suite == case.suite)
        {
            println!("again on the same data: cargo xtask up {} --data {}", case.combo, id.dir(out).display());
        }
    }
    let totals = summary.totals;
    println!(
        "{} cases: {} as expected, {} failed, {} without a verdict, {} skipped; a hazard showed in {}",
        totals.cases, totals.passed, totals.failed, totals.errors, totals.skipped, totals.hazards
    );
    if nothing_ran(&totals) {
        println!("no verdict: every case was skipped, nothing ran");
    }
    println!("report: {}", out.join("summary.md").display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_tells_misbehavior_from_a_missing_verdict() {
        let end = |totals, fail_on_hazard| {
            let summary = Summary {
                run: String::new(),
                seconds: 0.0,
                notes: Vec::new(),
                totals,
                combos: Vec::new(),
                cases: Vec::new(),
            };
            ended(&summary, fail_on_hazard)
        };
        let hazard = Totals { cases: 1, passed: 1, hazards: 1, ..Default::default() };
        assert_eq!(end(hazard, false), Ended::AsExpected);
        assert_eq!(end(hazard, true), Ended::Misbehaved);
        assert_eq!(end(Totals { errors: 1, ..hazard }, false), Ended::NoVerdict);
        assert_eq!(end(Totals { errors: 1, failed: 1, ..hazard }, false), Ended::Misbehaved);
        let skipped = Totals { cases: 2, skipped: 2, ..Default::default() };
        assert_eq!(end(skipped, false), Ended::NoVerdict);
        assert_eq!(end(Totals { passed: 1, skipped: 1, ..skipped }, false), Ended::AsExpected);
    }
}
