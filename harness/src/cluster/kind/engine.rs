//! The container engine by its command line, and every way it can fail.

use crate::process;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// Names the engine, as kind reads it.
const ENGINE_VARIABLE: &str = "KIND_EXPERIMENTAL_PROVIDER";
/// Longest time of one command that only asks or changes a little; an image import takes a few seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// How much of a command's last output an error shows, in lines.
const TOLD_LINES: usize = 12;

/// A program that is run from its command line: a container engine, or kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program(pub PathBuf);

/// The container engine that kind uses: what `KIND_EXPERIMENTAL_PROVIDER` says, else Docker.
pub fn engine() -> Program {
    let said = std::env::var_os(ENGINE_VARIABLE).filter(|value| !value.is_empty());
    Program(said.map_or_else(|| "docker".into(), PathBuf::from))
}

/// The images that the engine has, as `repository:tag`.
///
/// # Errors
/// The engine does not answer.
pub async fn images(engine: &Program) -> Result<Vec<String>, CommandError> {
    let text = engine.output(&["images", "--format", "{{.Repository}}:{{.Tag}}"]).await?;
    Ok(text.lines().map(str::to_string).collect())
}

/// Removes the containers with a label, `key=value`, and their volumes. None, or one that is gone already, is no error.
///
/// # Errors
/// The engine does not remove them.
pub async fn remove_labelled(engine: &Program, label: &str) -> Result<(), CommandError> {
    let listed = engine.output(&labelled(&format!("label={label}"))).await?;
    match removal(&listed) {
        Some(args) => unless_gone(engine.output(&args).await),
        None => Ok(()),
    }
}

/// The same without a runtime, for the way out of a failure.
///
/// # Errors
/// The engine does not remove them.
pub fn remove_labelled_blocking(engine: &Program, label: &str) -> Result<(), CommandError> {
    let listed = engine.output_blocking(&labelled(&format!("label={label}")))?;
    match removal(&listed) {
        Some(args) => unless_gone(engine.output_blocking(&args)),
        None => Ok(()),
    }
}

fn labelled(filter: &str) -> [&str; 5] {
    ["ps", "--all", "--quiet", "--filter", filter]
}

/// The command that removes the listed containers; `None` without any.
fn removal(listed: &str) -> Option<Vec<&str>> {
    let args: Vec<&str> = ["rm", "--force", "--volumes"].into_iter().chain(listed.lines()).collect();
    (args.len() > 3).then_some(args)
}

/// What is not there any more need not be removed.
///
/// # Errors
/// Any other failure.
pub fn unless_gone(removed: Result<String, CommandError>) -> Result<(), CommandError> {
    match removed {
        Err(error) if error.says_not_found() => Ok(()),
        removed => removed.map(|_| ()),
    }
}

impl Program {
    /// Runs it and returns what it printed.
    ///
    /// # Errors
    /// It cannot be run, fails, or does not end in time.
    pub async fn output(&self, args: &[&str]) -> Result<String, CommandError> {
        self.piped(args, &[], COMMAND_TIMEOUT).await
    }

    /// The same with this on its standard input, and a limit of its own.
    ///
    /// # Errors
    /// As [`Program::output`].
    pub async fn piped(&self, args: &[&str], input: &[u8], limit: Duration) -> Result<String, CommandError> {
        let mut command = tokio::process::Command::from(self.command(args));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|source| self.cannot_run(source))?;
        let mut stdin = child.stdin.take();
        let feed = async {
            if let Some(pipe) = &mut stdin {
                // A command that ends early closes the pipe; its status says why.
                let _ = pipe.write_all(input).await;
            }
            drop(stdin);
        };
        let both = async { tokio::join!(feed, child.wait_with_output()).1 };
        match tokio::time::timeout(limit, both).await {
            Ok(output) => self.told(args, output.map_err(|source| self.cannot_run(source))?),
            Err(_) => Err(CommandError::TooSlow { command: self.line(args), limit }),
        }
    }

    /// Runs it with all its output in a file. An error shows the lines that call themselves errors.
    ///
    /// # Errors
    /// As [`Program::output`], or the file cannot be written.
    pub async fn logged(&self, args: &[&str], log: &Path, limit: Duration) -> Result<(), CommandError> {
        let file = File::create(log).map_err(|source| self.cannot_run(source))?;
        let second = file.try_clone().map_err(|source| self.cannot_run(source))?;
        let mut command = tokio::process::Command::from(self.command(args));
        command.stdin(Stdio::null()).stdout(file).stderr(second).kill_on_drop(true);
        let mut child = command.spawn().map_err(|source| self.cannot_run(source))?;
        let Ok(waited) = tokio::time::timeout(limit, child.wait()).await else {
            return Err(CommandError::TooSlow { command: self.line(args), limit });
        };
        let status = waited.map_err(|source| self.cannot_run(source))?;
        if status.success() {
            return Ok(());
        }
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let told = format!("{}\n(all of it: {})", errors_of(&text), log.display());
        Err(CommandError::Failed { command: self.line(args), status: status.to_string(), told })
    }

    /// The same without a runtime, for the way out of a failure.
    ///
    /// # Errors
    /// It cannot be run or fails.
    pub fn output_blocking(&self, args: &[&str]) -> Result<String, CommandError> {
        let output = self.command(args).stdin(Stdio::null()).output();
        self.told(args, output.map_err(|source| self.cannot_run(source))?)
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = process::command(&self.0);
        command.args(args);
        command
    }

    fn told(&self, args: &[&str], output: Output) -> Result<String, CommandError> {
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let mut told = String::from_utf8_lossy(&output.stderr).into_owned();
        told.push_str(&String::from_utf8_lossy(&output.stdout));
        let told = last_lines(told.lines().filter(|line| !line.trim().is_empty()));
        Err(CommandError::Failed { command: self.line(args), status: output.status.to_string(), told })
    }

    fn cannot_run(&self, source: std::io::Error) -> CommandError {
        CommandError::CannotRun { program: self.0.display().to_string(), source }
    }

    fn line(&self, args: &[&str]) -> String {
        format!("{} {}", self.0.display(), args.join(" "))
    }
}

/// The lines that call themselves errors: what comes last may be the stack of the one that gave up.
fn errors_of(text: &str) -> String {
    let is_error = |line: &&str| line.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("error"));
    let errors = last_lines(text.lines().filter(is_error));
    if errors.is_empty() { last_lines(text.lines().filter(|line| !line.trim().is_empty())) } else { errors }
}

fn last_lines<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<&str> = lines.collect();
    lines[lines.len().saturating_sub(TOLD_LINES)..].join("\n")
}

/// A command that did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Not there, or not executable.
    #[error("cannot run {program}: {source}; the providers kind and containers need it on PATH")]
    CannotRun {
        /// Which.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// It failed.
    #[error("`{command}` ends with {status}:\n{told}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// Its last words.
        told: String,
    },
    /// It did not end.
    #[error("`{command}` did not end within {} s", limit.as_secs())]
    TooSlow {
        /// The command line.
        command: String,
        /// How long it had.
        limit: Duration,
    },
}

impl CommandError {
    /// Whether the engine or a shell in a node says that what was named does not exist (any more).
    pub fn says_not_found(&self) -> bool {
        match self {
            CommandError::Failed { told, .. } => {
                ["No such container", "No such object", "No such file", "no such image", "No such image"]
                    .iter()
                    .any(|words| told.contains(words))
                    || told.lines().any(|line| line.contains("network ") && line.ends_with("not found"))
            }
            CommandError::CannotRun { .. } | CommandError::TooSlow { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_a_failure_is_told_before_the_stack_of_the_one_that_gave_up() {
        let text = "Joining more nodes\nERROR: failed to join node\nerror execution phase etcd: timed out\n\
                    main.main\n\truntime/proc.go:290\n";
        assert_eq!(errors_of(text), "ERROR: failed to join node\nerror execution phase etcd: timed out");
        assert_eq!(errors_of("no space left\n\n"), "no space left");
    }

    #[test]
    fn nothing_is_removed_where_nothing_is_listed() {
        assert_eq!(removal(""), None);
        assert_eq!(removal("a\nb\n"), Some(vec!["rm", "--force", "--volumes", "a", "b"]));
    }
}
