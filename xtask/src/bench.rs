//! `cargo xtask bench`: the project's own figures, as medians with their spread.

use crate::cli::{BenchArgs, Figures};
use crate::exit::Ended;
use crate::progress::Terminal;
use comfy_table::{Table, presets};
use harness::binaries::{self, Sources};
use harness::cluster::{Binaries, ControlPlane, Purpose, Site};
use harness::combo::{Combo, v1_33};
use harness::gates::AllocatorMode;
use harness::journal::Journal;
use std::time::Instant;
use xshell::{Shell, cmd};

/// The example of harness that runs the judge.
const CHECKER: &str = "judge_synthetic";

/// Runs the command.
///
/// # Errors
/// Binaries that cannot be had, or servers that do not start.
pub fn run(args: BenchArgs) -> anyhow::Result<Ended> {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(["figure", "unit", "median", "least", "most", "runs"]);
    let wanted = |figures| args.figures.is_empty() || args.figures.contains(&figures);
    if wanted(Figures::Servers) {
        servers(&args, &mut table)?;
    }
    if wanted(Figures::Checker) {
        checker(&args, &mut table)?;
    }
    println!("{table}");
    Ok(Ended::AsExpected)
}

fn servers(args: &BenchArgs, table: &mut Table) -> anyhow::Result<()> {
    let modes = [AllocatorMode::Bitmap, AllocatorMode::DualWrite, AllocatorMode::IpAddress];
    let combos = [Combo::new([v1_33(modes[0]), v1_33(modes[1])]), Combo::new(modes.map(v1_33))];
    let wanted = binaries::needed_by(&combos, false);
    let obtained = binaries::obtain(&wanted, &Sources::from_env(args.bin_dir.clone())?, &Terminal::new())?;
    let binaries = Binaries::from(&obtained);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for (name, combo) in ["mixed pair", "three servers"].into_iter().zip(&combos) {
        let mut figures: [Vec<f64>; 3] = Default::default();
        for run in 0..args.runs {
            eprintln!("{name}: run {} of {}", run + 1, args.runs);
            let measured = runtime.block_on(measure(combo, &binaries))?;
            for (values, value) in figures.iter_mut().zip(measured) {
                values.push(value);
            }
        }
        let names = [("nothing to all ready", "s"), ("resident memory when ready", "MiB"), ("ordered stop", "s")];
        for ((what, unit), values) in names.into_iter().zip(figures) {
            add(table, &format!("{name}: {what}"), unit, values);
        }
    }
    Ok(())
}

/// What the example prints.
#[derive(serde::Deserialize)]
struct Judged {
    revisions: u64,
    judging_seconds: f64,
    peak_mib: f64,
}

/// The judge as it is compiled for speed: xtask itself is not.
fn checker(args: &BenchArgs, table: &mut Table) -> anyhow::Result<()> {
    let shell = Shell::new()?;
    cmd!(shell, "cargo build --quiet --release --package harness --example {CHECKER}").run()?;
    let (mut seconds, mut memory, mut revisions) = (Vec::new(), Vec::new(), 0);
    for run in 0..args.runs {
        eprintln!("checker: run {} of {}", run + 1, args.runs);
        let text = cmd!(shell, "cargo run --quiet --release --package harness --example {CHECKER}").quiet().read()?;
        let judged: Judged = serde_json::from_str(&text)?;
        seconds.push(judged.judging_seconds);
        memory.push(judged.peak_mib);
        revisions = judged.revisions;
    }
    add(table, &format!("judge: {revisions} revisions"), "s", seconds);
    add(table, "judge: most memory", "MiB", memory);
    Ok(())
}

fn add(table: &mut Table, figure: &str, unit: &str, mut values: Vec<f64>) {
    let [median, least, most] = spread(&mut values).map(|value| format!("{value:.2}"));
    table.add_row([figure, unit, &median, &least, &most, &values.len().to_string()]);
}

/// Seconds to ready, memory in MiB, seconds to stop.
async fn measure(combo: &Combo, binaries: &Binaries) -> anyhow::Result<[f64; 3]> {
    let dir = tempfile::tempdir()?;
    let (sender, _receiver) = std::sync::mpsc::channel();
    let begin = Instant::now();
    let mut plane = ControlPlane::start_etcd(
        &Site::Local,
        dir.path(),
        binaries,
        &Journal::new(sender),
        Purpose { first: combo, combo },
    )
    .await?;
    plane.start_servers().await?;
    let ready = begin.elapsed().as_secs_f64();
    let memory = (plane.resident_memory().await >> 20) as f64;
    let begin = Instant::now();
    plane.stop().await?;
    Ok([ready, memory, begin.elapsed().as_secs_f64()])
}

/// Median, least and most.
fn spread(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[0], values[values.len() - 1]]
}
