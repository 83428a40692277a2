//! Shows how binaries are found: bars on a terminal, plain lines elsewhere.

use harness::binaries::{Event, Progress, Wanted};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a plain line tells that a download or build goes on.
const PLAIN_EVERY: Duration = Duration::from_secs(15);

/// What a bar is like: an unknown end, bytes, or steps.
const SPINNER: &str = "{spinner} {prefix}: {wide_msg} {elapsed}";
const BYTES: &str = "{spinner} {prefix}: {msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {elapsed}";
const STEPS: &str = "{spinner} {prefix}: [{bar:30}] {pos}/{len} {elapsed} {wide_msg}";

/// Standard error as the place where progress is shown.
pub struct Terminal {
    bars: MultiProgress,
    plain: bool,
    shown: Mutex<BTreeMap<Wanted, Shown>>,
}

/// What is shown of one binary.
struct Shown {
    bar: ProgressBar,
    template: &'static str,
    /// When the last plain line came.
    told: Option<Instant>,
    /// The beginning of what the last plain line told, for telling a new activity from one that goes on.
    activity: &'static str,
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
    fn goes_on(
        &self,
        wanted: Wanted,
        activity: &'static str,
        template: &'static str,
        at: (u64, Option<u64>),
        what: &str,
    ) {
        let mut shown = self.shown();
        let entry = shown.entry(wanted).or_insert_with(|| {
            let bar = self.bars.add(ProgressBar::no_length().with_prefix(wanted.to_string()));
            bar.enable_steady_tick(Duration::from_millis(200));
            Shown { bar, template: "", told: None, activity: "" }
        });
        let (done, total) = at;
        if self.plain {
            if entry.activity == activity && entry.told.is_some_and(|told| told.elapsed() < PLAIN_EVERY) {
                return;
            }
            (entry.activity, entry.told) = (activity, Some(Instant::now()));
            let amount = match total {
                Some(total) if total > 0 => format!(" ({} %)", done * 100 / total),
                Some(_) | None => String::new(),
            };
            self.line(&format!("{wanted}: {activity} {what}{amount}"));
            return;
        }
        if entry.template != template {
            entry.template = template;
            entry.bar.set_style(ProgressStyle::with_template(template).expect("the template must be valid"));
            entry.bar.reset_elapsed();
        }
        if let Some(total) = total {
            entry.bar.set_length(total);
        }
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
                self.goes_on(
                    wanted,
                    "waiting for another skewlab that makes it, lock",
                    SPINNER,
                    (0, None),
                    &lock.display().to_string(),
                );
            }
            Event::Downloading { from } => self.goes_on(wanted, "downloading", SPINNER, (0, None), from),
            Event::Bytes { done, total } => {
                let template = if total.is_some() { BYTES } else { SPINNER };
                let what = format!("{:.1} MB", done as f64 / 1e6);
                self.goes_on(wanted, "downloaded", template, (done, total), &what);
            }
            Event::Resolving { go, line } => {
                self.goes_on(
                    wanted,
                    "go build:",
                    SPINNER,
                    (0, None),
                    &format!("{go}, {}", line.trim_start_matches("go: ")),
                );
            }
            Event::Building { go, package, done, total } => {
                // Nothing is heard of the linker.
                let what = if done < total { package } else { "last packages and linking" };
                let at = (done as u64, Some(total as u64));
                self.goes_on(wanted, "compiling", STEPS, at, &format!("with {go}, package {done} of {total}: {what}"));
            }
            Event::Found(found) => {
                self.remove_bar(wanted);
                self.line(&found.to_string());
            }
        }
    }
}
