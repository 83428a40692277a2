//! `cargo xtask compare`: runs of different providers in one table.

use crate::exit::{Ended, PlanError};
use harness::record::{CaseRecord, PLAN_FILE, RunPlan};
use harness::report::comparison::{self, Agreement};
use std::path::{Path, PathBuf};

/// Puts runs of different providers beside each other, by combo.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run directories; those of one provider count as parts of one run
    #[arg(required = true, value_name = "RUN_DIR")]
    pub dirs: Vec<PathBuf>,
}

/// Runs the command. Verdicts that differ are a misbehavior of the system under test.
///
/// # Errors
/// A directory that is no run, or runs that cannot be compared.
pub fn run(args: &Args) -> anyhow::Result<Ended> {
    let runs: Vec<(RunPlan, Vec<CaseRecord>)> = args.dirs.iter().map(|dir| read(dir)).collect::<Result<_, _>>()?;
    let sides = comparison::sides(runs).map_err(|error| PlanError(error.to_string()))?;
    let comparison = comparison::compare(&sides);
    print!("{}", comparison.table());
    println!("\n{}", comparison.sentence());
    Ok(match comparison.agreement() {
        Agreement::Equal => Ended::AsExpected,
        Agreement::Differs => Ended::Misbehaved,
        Agreement::Inconclusive => Ended::NoVerdict,
    })
}

fn read(dir: &Path) -> Result<(RunPlan, Vec<CaseRecord>), PlanError> {
    let path = dir.join(PLAN_FILE);
    let text = std::fs::read(&path).map_err(|error| {
        PlanError(format!("{} is no run directory: cannot read {PLAN_FILE}: {error}", dir.display()))
    })?;
    let plan: RunPlan =
        serde_json::from_slice(&text).map_err(|error| PlanError(format!("{} is no plan: {error}", path.display())))?;
    let records = plan.cases.iter().filter_map(|id| CaseRecord::read(&id.dir(dir))).collect();
    Ok((plan, records))
}
