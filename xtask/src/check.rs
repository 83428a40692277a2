//! `cargo xtask check`: saved runs, judged again.

use crate::cli::{CheckArgs, Format};
use crate::exit::{Ended, PlanError};
use harness::check::Verdict;
use harness::judged::{self, VERDICT_FILE};
use harness::recorder::RECORDING_FILE;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Runs the command. A verdict that differs from the one of the run itself, or a recording that cannot be judged, is
/// reported and makes the command end without a verdict.
///
/// # Errors
/// A directory without recordings.
pub fn run(args: CheckArgs) -> anyhow::Result<Ended> {
    let mut verdicts: BTreeMap<String, Verdict> = BTreeMap::new();
    let mut trouble = false;
    for case in case_dirs(&args.dirs)? {
        let name = case.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let verdict = match judged::judge(&case) {
            Ok(verdict) => verdict,
            Err(error) => {
                eprintln!("{name}: {error}");
                trouble = true;
                continue;
            }
        };
        if std::fs::read(case.join(VERDICT_FILE)).is_ok_and(|before| before != judged::to_json(&verdict)) {
            eprintln!("{name}: judged differently than in the run itself; {VERDICT_FILE} has the earlier verdict");
            trouble = true;
        }
        match args.format {
            Format::Text => println!("{name}: {}", judged::to_text(&verdict)),
            Format::Json => drop(verdicts.insert(name, verdict)),
        }
    }
    match args.format {
        Format::Text => {}
        Format::Json => println!("{}", serde_json::to_string_pretty(&verdicts)?),
    }
    Ok(if trouble { Ended::NoVerdict } else { Ended::AsExpected })
}

/// The case directories that are given or lie in the given run directories, sorted.
fn case_dirs(dirs: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let is_case = |dir: &Path| dir.join(RECORDING_FILE).is_file();
    let mut cases = Vec::new();
    for dir in dirs {
        let before = cases.len();
        if is_case(dir) {
            cases.push(dir.clone());
        } else if let Ok(entries) = std::fs::read_dir(dir.join("cases")) {
            cases.extend(entries.flatten().map(|entry| entry.path()).filter(|path| is_case(path)));
        }
        if cases.len() == before {
            return Err(PlanError(format!(
                "{} has no recordings; give a run directory or one of its cases",
                dir.display()
            ))
            .into());
        }
    }
    cases.sort();
    Ok(cases)
}
