//! Shows how binaries are found: bars on a terminal, plain lines elsewhere.

use harness::binaries::{Event, Progress, Wanted};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a plain line tells that a download or build goes on.
const PLAIN_EVERY: Duration = Duration::from_secs(15);

/// What a bar is like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Nobody knows when it ends.
    Spinner,
    /// Bytes of bytes.
    Bytes,
    /// Packages of packages.
    Packages,
}

impl Shape {
    fn style(self) -> ProgressStyle {
        let template = match self {
            Shape::Spinner => "{spinner} {prefix}: {wide_msg} {elapsed}",
            Shape::Bytes => "{spinner} {prefix}: [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {elapsed} {wide_msg}",
            Shape::Packages => "{spinner} {prefix}: [{bar:30}] {pos}/{len} packages {elapsed} {wide_msg}",
        };
        ProgressStyle::with_template(template).expect("the template must be valid")
    }

    /// How far it is, for a plain line.
    fn amount(self, done: u64, total: u64) -> String {
        match self {
            Shape::Spinner => String::new(),
            Shape::Bytes => format!(" ({:.1} of {:.1} MB)", done as f64 / 1e6, total as f64 / 1e6),
            Shape::Packages => format!(" ({done} of {total} packages)"),
        }
    }
}

/// Standard error as the place where progress is shown.
pub struct Terminal {
    bars: MultiProgress,
    plain: bool,
    shown: Mutex<BTreeMap<Wanted, Shown>>,
}

/// What is shown of one binary.
struct Shown {
    bar: ProgressBar,
    shape: Option<Shape>,
    /// The activity of the last plain line, and when it came.
    told: Option<(&'static str, Instant)>,
}

impl Terminal {
    /// Bars if standard error is a terminal.
    pub fn new() -> Self {
        let plain = !io::stderr().is_terminal();
        let target = if plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        Terminal { bars: MultiProgress::with_draw_target(target), plain, shown: Mutex::default() }
    }

    fn shown(&self) -> MutexGuard<'_, BTreeMap<Wanted, Shown>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line that stays. That standard error is closed is no reason to stop a build.
    fn line(&self, text: &str) {
        let _ = match self.plain {
            true => writeln!(io::stderr(), "{text}"),
            false => self.bars.println(text),
        };
    }

    /// Something goes on: moves the bar, or tells so once in a while.
    fn goes_on(&self, wanted: Wanted, activity: &'static str, what: &str, shape: Shape, done: u64, total: u64) {
        let mut shown = self.shown();
        let entry = shown.entry(wanted).or_insert_with(|| {
            let bar = self.bars.add(ProgressBar::no_length().with_prefix(wanted.to_string()));
            bar.enable_steady_tick(Duration::from_millis(200));
            Shown { bar, shape: None, told: None }
        });
        if self.plain {
            let just_told = |(told, at): (&str, Instant)| told == activity && at.elapsed() < PLAIN_EVERY;
            if !entry.told.is_some_and(just_told) {
                entry.told = Some((activity, Instant::now()));
                self.line(&format!("{wanted}: {activity} {what}{}", shape.amount(done, total)));
            }
            return;
        }
        if entry.shape != Some(shape) {
            entry.shape = Some(shape);
            entry.bar.set_style(shape.style());
            entry.bar.reset_elapsed();
        }
        entry.bar.set_length(total);
        entry.bar.set_position(done);
        entry.bar.set_message(format!("{activity} {what}"));
    }

    fn remove_bar(&self, wanted: Wanted) {
        if let Some(shown) = self.shown().remove(&wanted) {
            shown.bar.finish_and_clear();
        }
    }
}

impl Progress for Terminal {
    fn event(&self, wanted: Wanted, event: Event<'_>) {
        match event {
            Event::Answered(answer) => self.line(&format!("{wanted}: {answer}")),
            Event::Waiting { lock } => {
                let what = format!("for another process that makes it, {}", lock.display());
                self.goes_on(wanted, "waiting", &what, Shape::Spinner, 0, 0);
            }
            Event::Downloading { from } => self.goes_on(wanted, "downloading", from, Shape::Spinner, 0, 0),
            Event::Bytes { done, total: Some(total) } => {
                self.goes_on(wanted, "downloading", "", Shape::Bytes, done, total);
            }
            Event::Bytes { done, total: None } => {
                let what = format!("{:.1} MB, size unknown", done as f64 / 1e6);
                self.goes_on(wanted, "downloading", &what, Shape::Spinner, 0, 0);
            }
            Event::Resolving { go, line } => {
                let what = format!("with {go}, {}", line.trim_start_matches("go: "));
                self.goes_on(wanted, "go build:", &what, Shape::Spinner, 0, 0);
            }
            Event::Building { go, package, done, total } => {
                // Nothing is heard of the linker.
                let what = if done < total { package } else { "the last packages, then linking" };
                let what = format!("{what} with {go}");
                self.goes_on(wanted, "compiling", &what, Shape::Packages, done as u64, total as u64);
            }
            Event::Found(found) => {
                self.remove_bar(wanted);
                self.line(&found.to_string());
            }
        }
    }
}
