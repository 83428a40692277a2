//! Measures the judge: `cargo run --release -p harness --example judge_synthetic -- [REVISIONS] [SEED]`.

use harness::check::{CaseContext, judge, synthetic::synthetic};
use std::time::Instant;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("REVISIONS and SEED are numbers"));
    let (revisions, seed) = (numbers.next().unwrap_or(10_000_000), numbers.next().unwrap_or(1));
    let begun = Instant::now();
    let made = synthetic(revisions, seed).count();
    let making = begun.elapsed();
    let begun = Instant::now();
    let verdict = judge(&CaseContext::default(), synthetic(revisions, seed));
    let both = begun.elapsed();
    println!("{made} entries, {} revisions, {:?}", verdict.statistics.revisions, verdict.judgement);
    println!("making {:.2} s, making and judging {:.2} s", making.as_secs_f64(), both.as_secs_f64());
    println!("judging {:.2} s", both.as_secs_f64() - making.as_secs_f64());
}
