//! Supervised child processes: own process group, dead when the parent dies, output to a file, exit noticed at once.
//!
//! Three states: a [`Blueprint`] can be printed, a started [`Process`] can be waited for, and what is ready is wrapped
//! by its owner (see `cluster::local`). Ending it is an explicit call; dropping it is the failure path and kills it.

use crate::startup;
use crate::wait::{self, NotYet, TimedOut, Unmet};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

/// How much of a log's end an error shows, in bytes.
const LOG_TAIL: u64 = 4096;
/// Variables a child inherits; everything else of the caller's environment could change results unseen.
const INHERITED: [&str; 3] = ["PATH", "HOME", "TMPDIR"];
/// What a Go program is told: with half as many garbage collections the first 12 s of a kube-apiserver cost 1.30 instead
/// of 1.66 processor seconds, and 40 MB more.
pub(crate) const GARBAGE_COLLECTION: (&str, &str) = ("GOGC", "200");

/// A process that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blueprint {
    /// What errors call it, such as `server-1`.
    pub name: String,
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where standard output and error go; an existing log is continued.
    pub log: PathBuf,
}

impl Blueprint {
    /// Program and arguments as one list.
    pub fn command_line(&self) -> Vec<String> {
        [self.program.display().to_string()].into_iter().chain(self.args.iter().cloned()).collect()
    }

    /// Starts the process. Call it from a thread that lives as long as the process should: the parent-death signal is
    /// tied to the thread that forks.
    ///
    /// # Errors
    /// The log cannot be opened or the program cannot be run.
    pub fn start(self) -> Result<Process, ProcessError> {
        let cannot = |what: &'static str, source| ProcessError::CannotStart { name: self.name.clone(), what, source };
        let log =
            File::options().create(true).append(true).open(&self.log).map_err(|error| cannot("open its log", error))?;
        let log_start = log.metadata().map_err(|error| cannot("read its log", error))?.len();
        let second = log.try_clone().map_err(|error| cannot("open its log", error))?;
        let mut command = command(&self.program);
        command.args(&self.args).stdin(Stdio::null()).stdout(log).stderr(second);
        command.env_clear().envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.env(GARBAGE_COLLECTION.0, GARBAGE_COLLECTION.1);
        let mut command = tokio::process::Command::from(command);
        let child = command.kill_on_drop(true).spawn().map_err(|error| cannot("run it", error))?;
        Ok(Process { blueprint: self, child, log_start })
    }
}

/// A command whose process is killed when the thread that starts it, and so the whole parent, dies. It leads a process
/// group of its own, so that Ctrl-C on a terminal does not overtake an ordered stop.
#[expect(unsafe_code, reason = "pre_exec is the only way to arm the parent-death signal; reviewed below")]
pub fn command(program: &Path) -> std::process::Command {
    use std::os::unix::process::CommandExt;
    let parent = nix::unistd::getpid();
    let mut command = std::process::Command::new(program);
    command.process_group(0);
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system calls (prctl, getppid);
    // it neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || {
            #[cfg(target_os = "linux")]
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The parent may have died before the signal was armed.
            if nix::unistd::getppid() != parent {
                return Err(std::io::Error::from_raw_os_error(nix::libc::ESRCH));
            }
            Ok(())
        });
    }
    command
}

/// A started process.
#[derive(Debug)]
pub struct Process {
    blueprint: Blueprint,
    child: tokio::process::Child,
    /// Where in the log the output of this process begins.
    log_start: u64,
}

impl Process {
    /// What it was started as.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// The process id; `None` once it is gone.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The end of its own output.
    pub fn log_tail(&self) -> String {
        tail(&self.blueprint.log, self.log_start).unwrap_or_else(|error| format!("(no log: {error})"))
    }

    /// An error if the process is gone.
    ///
    /// # Errors
    /// The process has exited; the error carries the end of its log.
    pub fn check_running(&mut self) -> Result<(), ProcessError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.exited(status)),
            Err(source) => Err(ProcessError::CannotWait { name: self.blueprint.name.clone(), source }),
        }
    }

    /// Looks until `probe` is content; ends at once when the process exits.
    ///
    /// # Errors
    /// The process exited, or the probe was not content in time.
    pub async fn ready<T>(
        &mut self,
        longest: Duration,
        probe: impl AsyncFnMut() -> Result<T, NotYet>,
    ) -> Result<T, ProcessError> {
        let name = self.blueprint.name.clone();
        let waited = wait::until_or_gone(name.clone(), longest, async || self.check_running(), probe).await;
        waited.map_err(|unmet| match unmet {
            Unmet::Gone(error) => error,
            Unmet::TimedOut(TimedOut { waited, missing, .. }) => {
                ProcessError::NotReady { name, waited, missing, log: self.log_tail() }
            }
        })
    }

    /// Stops the process in order: SIGTERM, then SIGKILL when the grace is over. Nothing is left running.
    ///
    /// # Errors
    /// The process could not be waited for.
    pub async fn stop(mut self, grace: Duration) -> Result<ExitStatus, ProcessError> {
        self.signal(Signal::SIGTERM);
        match tokio::time::timeout(grace, self.child.wait()).await {
            Ok(waited) => {
                waited.map_err(|source| ProcessError::CannotWait { name: self.blueprint.name.clone(), source })
            }
            Err(_) => self.kill().await,
        }
    }

    /// Kills the process (SIGKILL) and waits until it is gone.
    ///
    /// # Errors
    /// The process could not be waited for.
    pub async fn kill(mut self) -> Result<ExitStatus, ProcessError> {
        self.signal(Signal::SIGKILL);
        self.child.wait().await.map_err(|source| ProcessError::CannotWait { name: self.blueprint.name.clone(), source })
    }

    /// Stops the process from running without ending it (SIGSTOP).
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Signals the process group. A process that is gone already needs no signal.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = signal::killpg(Pid::from_raw(pid), signal);
        }
    }

    fn exited(&self, status: ExitStatus) -> ProcessError {
        let reasons = reasons(&self.blueprint.log, self.log_start).unwrap_or_default();
        ProcessError::Exited { name: self.blueprint.name.clone(), status, log: self.log_tail(), reasons }
    }
}

/// Longest piece of a line that is looked at, in bytes: a log without line ends must not fill the memory.
const LINE_PIECE: u64 = 64 << 10;

/// The lines of a log that name a reason for a failed start, of what was written after this many bytes.
fn reasons(path: &Path, begin: u64) -> std::io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(begin))?;
    let mut reader = BufReader::new(file);
    let mut found = Vec::new();
    let mut line = Vec::new();
    while found.len() < startup::MOST_LINES && reader.by_ref().take(LINE_PIECE).read_until(b'\n', &mut line)? > 0 {
        found.extend(startup::reasons(String::from_utf8_lossy(&line).lines()));
        line.clear();
    }
    Ok(found)
}

/// The last lines of a log, of what was written after this many bytes.
pub(crate) fn tail(path: &Path, begin: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(begin.max(length.saturating_sub(LOG_TAIL))))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().rev().take(8).collect();
    Ok(lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
}

/// A process that does not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It could not be started.
    #[error("cannot start {name}: cannot {what}: {source}")]
    CannotStart {
        /// Which.
        name: String,
        /// What failed.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// It ended although nobody ended it.
    #[error("{name} ended with {status}; its last output:\n{log}")]
    Exited {
        /// Which.
        name: String,
        /// How.
        status: ExitStatus,
        /// The end of its log.
        log: String,
        /// The lines of the whole log of this start that name a reason, as [`startup::reasons`] picks them.
        reasons: Vec<String>,
    },
    /// It runs but does not get ready.
    #[error("{name} not ready after {:.1} s; still missing: {missing}; its last output:\n{log}", waited.as_secs_f64())]
    NotReady {
        /// Which.
        name: String,
        /// How long.
        waited: Duration,
        /// What is missing.
        missing: String,
        /// The end of its log.
        log: String,
    },
    /// The operating system does not tell how it ended.
    #[error("cannot wait for {name}: {source}")]
    CannotWait {
        /// Which.
        name: String,
        /// Why.
        source: std::io::Error,
    },
}

impl ProcessError {
    /// Whether the process ended because its port was taken by somebody else.
    pub fn is_address_in_use(&self) -> bool {
        match self {
            ProcessError::Exited { log, .. } => log.contains("address already in use"),
            ProcessError::CannotStart { .. } | ProcessError::NotReady { .. } | ProcessError::CannotWait { .. } => false,
        }
    }
}
