//! Runs the cases of a plan, each in a test process of its own, a few at a time.

use crate::clusters::{Clusters, Lease};
use crate::select::Listed;
use harness::cluster::Site;
use harness::cluster::kind::cluster::Shape;
use harness::host;
use harness::preflight;
use harness::record::{CLUSTER_VARIABLE, CaseOutcome, CaseRecord, RUN_DIR_VARIABLE, RunPlan};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::IsTerminal;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

/// Longest time of a case. Beyond it something hangs that should have had a bound of its own.
const CASE_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// The output of a test process, in the folder of its case.
pub const OUTPUT_FILE: &str = "test.log";

/// Why a case has no record.
pub type Missing = BTreeMap<String, String>;

/// Runs every case, `jobs` busy ones at a time and as many that mostly wait, and returns, by test name, why a case left no record.
///
/// # Errors
/// The signal handlers cannot be installed, or a folder cannot be written.
pub async fn run(binary: &Path, cases: &[Listed], plan: &RunPlan, run: &Path, jobs: usize) -> anyhow::Result<Missing> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut terminations = signal(SignalKind::terminate())?;
    let mut board = Board::new(cases.len());
    let mut queue: Vec<usize> = (0..cases.len()).collect();
    let mut room = Room { busy: jobs, waiting: jobs };
    let mut running: JoinSet<(usize, Option<Lease>, Result<ExitStatus, String>)> = JoinSet::new();
    let mut clusters = match &plan.site {
        Site::Local | Site::Containers(_) | Site::Existing(_) => None,
        Site::Kind(_) => Some(Clusters::new(preflight::kind::most_nodes(host::inotify(), host::processors()))),
    };
    let mut missing = Missing::new();
    let mut interrupted = false;
    loop {
        while !interrupted && let Some(at) = next(&queue, cases, room, clusters.as_ref()) {
            let index = queue.remove(at);
            let case = &cases[index];
            *room.of(case) -= 1;
            let lease = match (&mut clusters, shape(case)) {
                (Some(clusters), Some(shape)) => Some(clusters.lend(shape).await?),
                (Some(_), None) | (None, _) => None,
            };
            let child = start(binary, case, run, lease.as_ref())?;
            board.started(case);
            running.spawn(async move { (index, lease, finish(child).await) });
        }
        tokio::select! {
            joined = running.join_next() => {
                let Some(joined) = joined else { break };
                let (index, lease, result) = joined?;
                if let (Some(clusters), Some(lease)) = (&mut clusters, lease) {
                    clusters.take_back(lease);
                }
                let case = &cases[index];
                *room.of(case) += 1;
                let record = CaseRecord::read(&case.id.dir(run));
                if record.is_none() {
                    missing.insert(case.test.clone(), no_record(&result));
                }
                board.finished(case, record.as_ref());
            }
            () = board.tick() => {}
            _ = interrupts.recv() => interrupted = true,
            _ = terminations.recv() => interrupted = true,
        }
        if interrupted {
            board.say("interrupted: ending what runs, then writing the report");
            // Dropping a task drops its child, which is killed, and its servers die with it.
            running.abort_all();
            while running.join_next().await.is_some() {}
            break;
        }
    }
    board.clear();
    for case in cases {
        if CaseRecord::read(&case.id.dir(run)).is_none() {
            missing.entry(case.test.clone()).or_insert_with(|| "interrupted before it had a result".into());
        }
    }
    Ok(missing)
}

/// The place in the queue of the first case that there is room for, rather one whose cluster is there and idle.
fn next(queue: &[usize], cases: &[Listed], room: Room, clusters: Option<&Clusters>) -> Option<usize> {
    let fits = |case: &Listed| {
        let cluster = clusters.zip(shape(case));
        room.has(case) && cluster.is_none_or(|(clusters, shape)| clusters.has_room(shape))
    };
    let has_cluster = |case: &Listed| clusters.zip(shape(case)).is_some_and(|(it, shape)| it.has_idle(shape));
    let at_once = queue.iter().position(|index| fits(&cases[*index]) && has_cluster(&cases[*index]));
    at_once.or_else(|| queue.iter().position(|index| fits(&cases[*index])))
}

/// The cluster that a case needs on kind.
fn shape(case: &Listed) -> Option<Shape> {
    Shape::of(&case.scenario.first(&case.combo))
}

/// The most cases that run at the same time.
pub fn most_at_a_time(cases: &[Listed], jobs: usize) -> usize {
    let waiting = cases.iter().filter(|case| case.waits).count();
    waiting.min(jobs) + (cases.len() - waiting).min(jobs)
}

/// How many more cases may start. Cases that mostly wait for a repair loop run beside the busy ones: with more busy cases
/// than processors can carry every start and every call takes longer, and so does the whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    busy: usize,
    waiting: usize,
}

impl Room {
    fn of(&mut self, case: &Listed) -> &mut usize {
        if case.waits { &mut self.waiting } else { &mut self.busy }
    }

    fn has(mut self, case: &Listed) -> bool {
        *self.of(case) > 0
    }
}

fn start(binary: &Path, case: &Listed, run: &Path, lease: Option<&Lease>) -> anyhow::Result<tokio::process::Child> {
    let dir = case.id.dir(run);
    std::fs::create_dir_all(&dir)?;
    let output = File::create(dir.join(OUTPUT_FILE))?;
    let mut command = harness::process::command(binary);
    command.args(["--exact", &case.test, "--nocapture"]).env(RUN_DIR_VARIABLE, run).env("RUST_BACKTRACE", "0");
    command.envs(lease.map(|lease| (CLUSTER_VARIABLE, &lease.name)));
    command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
    Ok(tokio::process::Command::from(command).kill_on_drop(true).spawn()?)
}

async fn finish(mut child: tokio::process::Child) -> Result<ExitStatus, String> {
    match tokio::time::timeout(CASE_TIMEOUT, child.wait()).await {
        Ok(Ok(status)) => Ok(status),
        Ok(Err(error)) => Err(format!("the test process cannot be waited for: {error}")),
        Err(_) => Err(format!("the case did not end within {} minutes and was killed", CASE_TIMEOUT.as_secs() / 60)),
    }
}

fn no_record(result: &Result<ExitStatus, String>) -> String {
    match result {
        Ok(status) => format!("the test process ended with {status} and left no result; see {OUTPUT_FILE}"),
        Err(why) => why.clone(),
    }
}

/// What a person sees while cases run: a line that changes on a terminal, a line per case elsewhere.
struct Board {
    bar: ProgressBar,
    terminal: bool,
    begin: Instant,
    planned: usize,
    done: usize,
    failed: usize,
    hazards: usize,
    current: Vec<String>,
}

impl Board {
    fn new(planned: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new(planned as u64) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {wide_msg}");
        bar.set_style(style.expect("the progress template must be valid"));
        Board { bar, terminal, begin: Instant::now(), planned, done: 0, failed: 0, hazards: 0, current: Vec::new() }
    }

    fn started(&mut self, case: &Listed) {
        self.current.push(case.id.to_string());
        self.show();
    }

    fn finished(&mut self, case: &Listed, record: Option<&CaseRecord>) {
        self.current.retain(|name| *name != case.id.to_string());
        self.done += 1;
        let outcome = record.map_or(CaseOutcome::Error, |record| record.outcome);
        let mark = match outcome {
            CaseOutcome::Passed => "ok   ",
            CaseOutcome::Failed => "FAIL ",
            CaseOutcome::Error => "ERROR",
            CaseOutcome::Skipped => "skip ",
        };
        self.failed += usize::from(matches!(outcome, CaseOutcome::Failed | CaseOutcome::Error));
        let observed = record.map(|record| &record.observed);
        self.hazards += usize::from(observed.is_some_and(|it| it.hazards.values().any(|count| *count > 0)));
        let seconds = record.map_or(0.0, |record| record.seconds);
        let text = match (outcome, record) {
            (CaseOutcome::Passed | CaseOutcome::Skipped, Some(record)) => record.observed.summary.clone(),
            (_, Some(record)) => record.detail.clone(),
            (_, None) => "no result".into(),
        };
        self.bar.inc(1);
        self.say(&format!("[{:>3}/{}] {mark} {} ({seconds:.1} s): {text}", self.done, self.planned, case.id));
        self.show();
    }

    fn say(&self, line: &str) {
        if self.terminal { self.bar.println(line) } else { eprintln!("{line}") }
    }

    fn show(&self) {
        let counts = format!("{} failed, {} with a hazard", self.failed, self.hazards);
        self.bar.set_message(format!("{counts}; running: {}", self.current.join(" ")));
    }

    /// Keeps the elapsed time on a terminal going.
    async fn tick(&self) {
        if self.terminal {
            tokio::time::sleep(Duration::from_millis(200)).await;
            self.bar.tick();
        } else {
            std::future::pending().await
        }
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
        self.say(&format!("{} of {} cases in {:.0} s", self.done, self.planned, self.begin.elapsed().as_secs_f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::{Servers, parse_list};

    #[test]
    fn a_case_that_waits_takes_no_room_from_busy_ones() {
        let list = "upgrade::a_leaked_bit_is_freed_on_the_third_pass::case_1_v1_33_bitmap__v1_33_ip_address: test\n\
            skew::a_service_of_one_server_is_known_to_the_others::case_03_v1_33_bitmap__v1_33_ip_address: test\n\
            skew::a_service_of_one_server_is_known_to_the_others::case_05_v1_33_dual_write__v1_33_dual_write: test\n\
            skew::same_static_ip_is_granted_once::case_05_v1_33_dual_write__v1_33_dual_write: test\n";
        let cases = parse_list(list, &Servers::OfTable).unwrap();
        let [leaked, waiting, known_at_once, busy] = &cases[..] else { panic!("{cases:?}") };
        let mut room = Room { busy: 1, waiting: 1 };
        *room.of(leaked) -= 1;
        assert!(room.has(busy) && room.has(known_at_once) && !room.has(waiting));
        *room.of(busy) -= 1;
        assert!(!room.has(known_at_once));
        assert_eq!(most_at_a_time(&cases, 3), 4);
        assert_eq!(most_at_a_time(&cases, 1), 2);
    }
}
