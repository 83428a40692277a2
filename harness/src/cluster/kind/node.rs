//! What is done in a node: static pods put in and taken away, their processes looked at, their logs kept.

use super::archive::{OneBinary, image_archive};
use super::engine::{CommandError, Program};
use super::script::{self, NodeProcess, Pod, Seen};
use super::{KindError, manifest};
use crate::files::FileError;
use crate::version::KubeVersion;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// From the removal of a manifest to the end of the process: the grace of a pod is 30 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// From a manifest to its process: a second or two; a busy host takes longer.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(120);
/// An image of a hundred megabytes takes a few seconds.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(180);
/// A script that waits in a node for so long takes longer by its looks.
const SLACK: u32 = 2;
/// How much of a log's end an error shows, in lines.
const TOLD_LINES: usize = 12;

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The container engine.
    pub engine: Program,
    /// The name of its container.
    pub name: String,
}

/// A running static pod of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticPod {
    node: Node,
    component: &'static str,
    /// The name of the pod, without that of the node.
    name: String,
    /// Where its log goes when it ends.
    log: PathBuf,
    /// Its process.
    pub process: NodeProcess,
}

impl Node {
    /// Runs a script in the node and returns what it printed.
    async fn shell(&self, script: &str) -> Result<String, CommandError> {
        self.engine.output(&["exec", &self.name, "sh", "-c", script]).await
    }

    /// The same for one that waits in the node, with this on its standard input.
    async fn waiting(&self, script: &str, input: &[u8], limit: Duration) -> Result<String, CommandError> {
        self.engine.piped(&["exec", "-i", &self.name, "sh", "-c", script], input, limit * SLACK).await
    }

    /// The address on this host at which a port of the node is published.
    ///
    /// # Errors
    /// It is not published.
    pub async fn published(&self, port: u16) -> Result<String, CommandError> {
        let text = self.engine.output(&["port", &self.name, &port.to_string()]).await?;
        Ok(text.lines().next().unwrap_or_default().trim().to_string())
    }

    /// The images that the node knows.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn images(&self) -> Result<BTreeSet<String>, CommandError> {
        Ok(self.shell("ctr -n k8s.io images list -q").await?.lines().map(str::to_string).collect())
    }

    /// Makes an image of one binary known to the node.
    ///
    /// # Errors
    /// The binary cannot be read, or the node does not take it.
    pub async fn import(&self, component: &str, version: KubeVersion, binary: &Path) -> Result<(), KindError> {
        let image = manifest::image(component, version);
        let archive = image_archive(&OneBinary { image: &image, name: component, entrypoint: &[component] }, binary)?;
        let args = ["exec", "-i", &self.name, "ctr", "-n", "k8s.io", "images", "import", "--no-unpack", "-"];
        self.engine.piped(&args, &archive, IMPORT_TIMEOUT).await?;
        Ok(())
    }

    /// Takes static pods of kubeadm out of the node for good, and lets the kubelet go on without its API.
    ///
    /// # Errors
    /// The node does not take it.
    pub async fn prepare(&self, components: &[&str]) -> Result<(), KindError> {
        self.shell(&script::prepare(components)).await?;
        Ok(())
    }

    /// Whether [`Node::prepare`] has ended here.
    pub async fn is_prepared(&self) -> bool {
        self.shell(&script::is_prepared()).await.is_ok()
    }

    /// Files of the node, in the order of their paths.
    ///
    /// # Errors
    /// One is not there.
    pub async fn read(&self, files: &[String]) -> Result<Vec<String>, CommandError> {
        Ok(script::files_in(&self.shell(&script::read(files)).await?))
    }

    /// Ends what a case that was cut off has left running.
    ///
    /// # Errors
    /// It does not end.
    pub async fn clear(&self, components: &[&str]) -> Result<(), KindError> {
        let script = script::clear(components, STOP_TIMEOUT.as_secs());
        match self.waiting(&script, &[], STOP_TIMEOUT).await?.is_empty() {
            true => Ok(()),
            false => Err(self.stays(&components.join(" and "))),
        }
    }

    /// Puts a manifest into the node in one step and waits for its process.
    ///
    /// # Errors
    /// The process does not start, or ends at once. Nothing of it is left.
    pub async fn start(
        &self,
        component: &'static str,
        name: String,
        manifest: &str,
        log: &Path,
    ) -> Result<StaticPod, KindError> {
        let script = script::start(Pod { node: &self.name, component, name: &name }, PROCESS_TIMEOUT.as_secs());
        let seen = script::seen_in(&self.waiting(&script, manifest.as_bytes(), PROCESS_TIMEOUT).await?);
        let (node, log) = (self.clone(), log.to_path_buf());
        let pod = |process| StaticPod { node, component, name, log, process };
        let none = NodeProcess { pid: 0, command: Vec::new() };
        match seen {
            Seen::Runs(process) => Ok(pod(process)),
            Seen::Ended => Err(pod(none).ended().await),
            Seen::Nothing => {
                let told = pod(none).taken_away().await?;
                Err(KindError::NotReady {
                    what: format!("{component} on {}", self.name),
                    waited: PROCESS_TIMEOUT,
                    missing: "its process".into(),
                    log: told,
                })
            }
        }
    }

    /// Waits until something in the node answers on a URL, for so long.
    ///
    /// # Errors
    /// It does not.
    pub async fn await_answer(&self, url: &str, limit: Duration) -> Result<(), CommandError> {
        self.waiting(&script::await_answer(url, limit.as_secs()), &[], limit).await.map(|_| ())
    }

    fn stays(&self, components: &str) -> KindError {
        KindError::NotReady {
            what: format!("the end of {components} on {}", self.name),
            waited: STOP_TIMEOUT,
            missing: "the end of the process".into(),
            log: String::new(),
        }
    }
}

impl StaticPod {
    /// An error if its process is gone.
    ///
    /// # Errors
    /// It is, and the end of its log says why.
    pub async fn check_running(&self) -> Result<(), KindError> {
        match script::seen_in(&self.node.shell(&script::look(self.pod())).await?) {
            Seen::Runs(process) if process.pid == self.process.pid => Ok(()),
            Seen::Runs(_) | Seen::Nothing | Seen::Ended => Err(self.ended().await),
        }
    }

    /// Waits until its process is gone by itself, for so long. One that cannot be watched is not gone.
    pub async fn gone(&self, limit: Duration) {
        let script = script::await_end(self.process.pid, limit.as_secs());
        if self.node.waiting(&script, &[], limit).await.is_err() {
            std::future::pending().await
        }
    }

    /// Stops it in order: the kubelet sends SIGTERM when the manifest is gone.
    ///
    /// # Errors
    /// It does not end.
    pub async fn stop(&self) -> Result<(), KindError> {
        self.taken_away().await.map(|_| ())
    }

    /// Kills its process (SIGKILL) and takes its manifest away before the kubelet notices. Returns when that was: a call
    /// into a node takes longer than many a request that the death may have cut off.
    ///
    /// # Errors
    /// It is not there, or the node's clock is none.
    pub async fn kill(&self) -> Result<SystemTime, KindError> {
        let text = self.node.shell(&script::kill(self.pod(), self.process.pid)).await?;
        // Containers have the clock of their host.
        let nanoseconds: u64 = text.trim().parse().map_err(|_| KindError::Clock { node: self.node.name.clone() })?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds))
    }

    /// Resident memory in bytes; 0 for a process that is gone.
    pub async fn resident_memory(&self) -> u64 {
        let script = format!("awk '/^VmRSS:/ {{print $2}}' /proc/{}/status", self.process.pid);
        let text = self.node.shell(&script).await.unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or_default() * 1024
    }

    /// Takes it away, appends its log to the one of the case, and returns the end of it.
    pub(super) async fn taken_away(&self) -> Result<String, KindError> {
        let script = script::take_away(self.pod(), STOP_TIMEOUT.as_secs());
        let text = self.node.waiting(&script, &[], STOP_TIMEOUT).await?;
        let lines = script::log_in(&text).ok_or_else(|| self.node.stays(self.component))?;
        let failed = |source| FileError::new("write", &self.log, source);
        let mut file = File::options().create(true).append(true).open(&self.log).map_err(failed)?;
        file.write_all((lines.join("\n") + "\n").as_bytes()).map_err(failed)?;
        Ok(lines[lines.len().saturating_sub(TOLD_LINES)..].join("\n"))
    }

    /// What is left of one that ended by itself: an error with the end of its log.
    pub(super) async fn ended(&self) -> KindError {
        match self.taken_away().await {
            Ok(log) => KindError::Exited { component: self.component, node: self.node.name.clone(), log },
            Err(error) => error,
        }
    }

    fn pod(&self) -> Pod<'_> {
        Pod { node: &self.node.name, component: self.component, name: &self.name }
    }
}
