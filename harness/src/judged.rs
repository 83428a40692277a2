//! The verdict of a case directory: made from its recording at the end of the case, and again whenever somebody asks.

use crate::check::{self, CaseContext, Rule, Verdict};
use crate::files::{FileError, write_atomically};
use crate::history::Entry;
use crate::history::file::{ReadError, Reader};
use crate::recorder::RECORDING_FILE;
use std::fmt::Write;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// What the judge must know beside the recording.
const CONTEXT_FILE: &str = "context.json";
/// The verdict for programs.
pub const VERDICT_FILE: &str = "verdict.json";
/// The verdict for people.
const TEXT_FILE: &str = "verdict.txt";
/// How many duplicates get a chart, and how many violations of a rule are explained: more of them say nothing new.
const EXPLAINED: usize = 5;

/// Keeps what the judge must know, so that the case can be judged again.
///
/// # Errors
/// The file cannot be written.
pub fn write_context(dir: &Path, context: &CaseContext) -> Result<(), FileError> {
    write_atomically(&dir.join(CONTEXT_FILE), &serde_json::to_vec_pretty(context).expect("a context must serialize"))
}

/// Judges the recording of a case directory.
///
/// # Errors
/// No or no readable context or recording. A recording that was cut off is judged, and inconclusive.
pub fn judge(dir: &Path) -> Result<Verdict, JudgeError> {
    let path = dir.join(CONTEXT_FILE);
    let text = std::fs::read(&path).map_err(|source| FileError::new("read", &path, source))?;
    let context: CaseContext = serde_json::from_slice(&text)
        .map_err(|error| JudgeError::Context { path: path.clone(), why: error.to_string() })?;
    let path = dir.join(RECORDING_FILE);
    let file = File::open(&path).map_err(|source| FileError::new("read", &path, source))?;
    let failed = |source| JudgeError::Recording { path: path.clone(), source };
    let mut failure = None;
    let entries = Reader::new(BufReader::new(file)).map_err(failed)?;
    let verdict = check::judge(&context, until_error(entries, &mut failure));
    failure.map_or(Ok(verdict), |source| Err(failed(source)))
}

/// The entries up to the first that cannot be read.
fn until_error<'a>(
    entries: impl Iterator<Item = Result<Entry, ReadError>> + 'a,
    failure: &'a mut Option<ReadError>,
) -> impl Iterator<Item = Entry> + 'a {
    entries.map_while(|entry| entry.map_err(|error| *failure = Some(error)).ok())
}

/// The verdict as `verdict.json` has it: the same bytes for the same recording.
pub fn to_json(verdict: &Verdict) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(verdict).expect("a verdict must serialize");
    text.push(b'\n');
    text
}

/// The verdict in words.
pub fn to_text(verdict: &Verdict) -> String {
    let mut text = format!("{:?}\n", verdict.judgement).to_lowercase();
    for broken in &verdict.assumptions {
        let _ = writeln!(text, "assumption broken: {broken}");
    }
    for unmet in &verdict.unmet {
        let _ = writeln!(text, "{unmet}");
    }
    for (rule, what) in &verdict.not_judged {
        let _ = writeln!(text, "not judged, because bitmaps were not recorded: {} {what}", rule.id());
    }
    for (rule, count) in &verdict.broken {
        let _ = writeln!(text, "\n{} broken {count} times: {}", rule.id(), rule.sentence());
        for violation in verdict.of(*rule).take(EXPLAINED) {
            let _ = writeln!(text, "- {}", check::explain(violation));
        }
    }
    text
}

/// Writes the verdict in both forms, and a chart for each of the first duplicates.
///
/// # Errors
/// A file cannot be written.
pub fn write(dir: &Path, verdict: &Verdict) -> Result<(), FileError> {
    write_atomically(&dir.join(VERDICT_FILE), &to_json(verdict))?;
    write_atomically(&dir.join(TEXT_FILE), to_text(verdict).as_bytes())?;
    let charts = verdict.of(Rule::S1).filter_map(check::chart).take(EXPLAINED);
    for (index, chart) in charts.enumerate() {
        write_atomically(&dir.join(format!("duplicate-{}.svg", index + 1)), chart.as_bytes())?;
    }
    Ok(())
}

/// A case that cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The context.
    #[error("{} is not a context: {why}", path.display())]
    Context {
        /// Which file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The recording.
    #[error("{} cannot be judged: {source}", path.display())]
    Recording {
        /// Which file.
        path: PathBuf,
        /// Why, with the offset.
        source: ReadError,
    },
}
