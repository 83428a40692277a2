//! Measures the judge on a synthetic recording and prints one JSON object; `cargo xtask bench checker` runs it.
//! By hand: `cargo run --release -p harness --example judge_synthetic -- [REVISIONS] [SEED]`.

use harness::check::{CaseContext, Judgement, judge, synthetic::synthetic};
use std::time::Instant;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("REVISIONS and SEED are numbers"));
    let (revisions, seed) = (numbers.next().unwrap_or(10_000_000), numbers.next().unwrap_or(1));
    let begun = Instant::now();
    let entries = synthetic(revisions, seed).count();
    let making = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let verdict = judge(&CaseContext::default(), synthetic(revisions, seed));
    let both = begun.elapsed().as_secs_f64();
    assert_eq!(verdict.judgement, Judgement::Clean, "the synthetic recording must be clean");
    println!(
        r#"{{"revisions":{},"entries":{entries},"judging_seconds":{:.3},"making_seconds":{making:.3},"peak_mib":{:.1}}}"#,
        verdict.statistics.revisions,
        both - making,
        peak_memory_mib()
    );
}

/// The most memory this process ever had, in MiB; 0 where the system does not tell.
fn peak_memory_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
