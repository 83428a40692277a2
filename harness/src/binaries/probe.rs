//! The user's own directory, and the question every binary from outside must answer: which version are you.

use super::Wanted;
use super::error::StepError;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a binary may take to print its version. The first read of 100 MB from a slow disk is most of it.
const VERSION_PATIENCE: Duration = Duration::from_secs(20);

/// Finds a binary in a directory, as `<component>-<version>`, `<version>/<component>` or `<component>`, and asks it for
/// its version whatever its name says.
pub(super) fn in_dir(dir: &Path, wanted: Wanted) -> Result<PathBuf, StepError> {
    let dir = std::path::absolute(dir).map_err(|error| StepError::No(format!("{}: {error}", dir.display())))?;
    let names = [
        PathBuf::from(wanted.file_name()),
        Path::new(&wanted.version()).join(wanted.name()),
        PathBuf::from(wanted.name()),
    ];
    let mut refused = Vec::new();
    for file in names.iter().map(|name| dir.join(name)).filter(|file| file.is_file()) {
        match answers_as(&file, wanted) {
            Ok(()) => return Ok(file),
            Err(why) => refused.push(why),
        }
    }
    if refused.is_empty() {
        return Err(StepError::No(format!("not in {}", dir.display())));
    }
    Err(StepError::No(refused.join(", ")))
}

/// Whether the binary, asked for its version, says that it is what is wanted; else why not.
pub(super) fn answers_as(file: &Path, wanted: Wanted) -> Result<(), String> {
    let (question, expected) = wanted.version_question();
    let said = version_line(file, question).map_err(|error| format!("{} does not run: {error}", file.display()))?;
    if said == expected {
        return Ok(());
    }
    Err(format!("{} answers {} with `{said}`, not `{expected}`", file.display(), question.join(" ")))
}

fn version_line(file: &Path, question: &[&str]) -> io::Result<String> {
    let mut child = spawn(file, question)?;
    let deadline = Instant::now() + VERSION_PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no version after {VERSION_PATIENCE:?}")));
        }
        thread::sleep(Duration::from_millis(5));
    };
    if !status.success() {
        return Err(io::Error::other(format!("{} ends with {status}", question.join(" "))));
    }
    let mut said = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut said)?;
    }
    Ok(String::from_utf8_lossy(&said).lines().next().unwrap_or_default().trim_end().to_string())
}

/// A file that was just written cannot be executed while a child that another thread is starting still holds a copy of
/// the writing descriptor, which lasts from its fork to its exec.
fn spawn(file: &Path, question: &[&str]) -> io::Result<Child> {
    let mut command = Command::new(file);
    command.args(question).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    for _ in 0..100 {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => thread::sleep(Duration::from_millis(10)),
            outcome => return outcome,
        }
    }
    command.spawn()
}
