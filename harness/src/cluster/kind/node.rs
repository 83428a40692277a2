//! What is done in a node: static pods put in and taken away, their processes looked at, their logs kept.

use super::archive::{OneBinary, image_archive};
use super::engine::{CommandError, Program};
use super::{KindError, manifest};
use crate::files::FileError;
use crate::version::KubeVersion;
use crate::wait::{self, NotYet};
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
/// How much of a log's end an error shows, in lines.
const TOLD_LINES: usize = 12;
/// How much of the name of a program the kernel keeps, which is what `pgrep -x` compares, in bytes.
const COMM_LENGTH: usize = 15;

const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// Where manifests wait that must not run: on the file system of those that run, so that a move is one step.
const ASIDE: &str = "/etc/kubernetes/skewlab";
/// Says that a node is ready for servers.
const PREPARED: &str = "/etc/kubernetes/skewlab/prepared";
/// Adds to the arguments of the kubelet that it runs alone.
const KUBELET_ALONE: &str = "if [ -f /etc/default/kubelet ]; then . /etc/default/kubelet; fi; \
    echo \"KUBELET_EXTRA_ARGS=\\\"$KUBELET_EXTRA_ARGS --kubeconfig= --bootstrap-kubeconfig= \
    --authorization-mode=AlwaysAllow --authentication-token-webhook=false\\\"\" >/etc/default/kubelet";
/// Second names of logs, because the kubelet removes the first ones with their pods.
const LOGS: &str = "/var/log/skewlab";

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The container engine.
    pub engine: Program,
    /// The name of its container.
    pub name: String,
}

/// A process in a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeProcess {
    /// Its id in the node.
    pub pid: u32,
    /// Its command line.
    pub command: Vec<String>,
}

/// What there is of a static pod.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Nothing,
    Runs(NodeProcess),
    /// Its container has exited.
    Ended,
}

/// A running static pod of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticPod {
    node: Node,
    /// The component, which is also the name of its manifest and container.
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
    ///
    /// # Errors
    /// It fails.
    pub async fn shell(&self, script: &str) -> Result<String, CommandError> {
        self.engine.output(&["exec", &self.name, "sh", "-c", script]).await
    }

    /// The address on this host at which a port of the node is published.
    ///
    /// # Errors
    /// It is not published.
    pub async fn published(&self, port: u16) -> Result<String, CommandError> {
        let text = self.engine.output(&["port", &self.name, &port.to_string()]).await?;
        Ok(text.lines().next().unwrap_or_default().trim().to_string())
    }

    /// Makes an image of one binary known to the node, if it is not yet.
    ///
    /// # Errors
    /// The binary cannot be read, or the node does not take it.
    pub async fn import(&self, component: &str, version: KubeVersion, binary: &Path) -> Result<(), KindError> {
        let image = manifest::image(component, version);
        if !self.shell(&format!("ctr -n k8s.io images list -q name=={image}")).await?.trim().is_empty() {
            return Ok(());
        }
        let archive = image_archive(&OneBinary { image: &image, name: component, entrypoint: &[component] }, binary)?;
        let args = ["exec", "-i", &self.name, "ctr", "-n", "k8s.io", "images", "import", "--no-unpack", "-"];
        self.engine.piped(&args, &archive, IMPORT_TIMEOUT).await?;
        Ok(())
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
        let script =
            format!("mkdir -p {ASIDE} && cat >{ASIDE}/{component}.yaml && mv {ASIDE}/{component}.yaml {MANIFESTS}/");
        let args = ["exec", "-i", &self.name, "sh", "-c", &script];
        self.engine.piped(&args, manifest.as_bytes(), PROCESS_TIMEOUT).await?;
        let process = wait::until(format!("{component} on {}", self.name), PROCESS_TIMEOUT, async || {
            match self.look(component, &name).await {
                Ok(Seen::Runs(process)) => Ok(Some(process)),
                Ok(Seen::Ended) => Ok(None),
                Ok(Seen::Nothing) => Err(NotYet::new("its process")),
                Err(error) => Err(NotYet::new(error.to_string())),
            }
        });
        let process = process.await;
        let (node, log) = (self.clone(), log.to_path_buf());
        let pod = |process| StaticPod { node, component, name, log, process };
        let none = NodeProcess { pid: 0, command: Vec::new() };
        match process {
            Ok(Some(process)) => Ok(pod(process)),
            Ok(None) => Err(pod(none).ended().await),
            Err(timeout) => {
                let told = pod(none).taken_away().await?;
                Err(KindError::NotReady {
                    what: timeout.what,
                    waited: timeout.waited,
                    missing: timeout.missing,
                    log: told,
                })
            }
        }
    }

    async fn look(&self, component: &str, name: &str) -> Result<Seen, CommandError> {
        let (comm, node) = (comm(component), &self.name);
        // A log is no sign of an end: on a busy host it is there seconds before the process.
        let script = format!(
            "if pid=$(pgrep -x -o {comm}); then echo $pid; tr '\\000' '\\n' </proc/$pid/cmdline; \
             elif crictl ps --all --state exited --label io.kubernetes.pod.name={name}-{node} --quiet | grep -q .; \
             then echo ended; fi"
        );
        Ok(seen_in(&self.shell(&script).await?))
    }

    /// Where the kubelet keeps the log of a static pod.
    fn log_pattern(&self, component: &str, pod: &str) -> String {
        format!("/var/log/pods/kube-system_{pod}-{}_*/{component}/0.log", self.name)
    }

    /// Takes static pods of kubeadm out of the node for good, and lets the kubelet go on without its API: while the
    /// apiserver of its node is away it would wait for it, for half a minute at a time, and static pods need none.
    ///
    /// # Errors
    /// The node does not take it.
    pub async fn prepare(&self, components: &[&'static str]) -> Result<(), KindError> {
        let moved = components
            .iter()
            .map(|it| format!("mv {MANIFESTS}/{it}.yaml {ASIDE}/{it}.stock; pkill -9 -x {}; ", comm(it)));
        let moved: String = moved.collect();
        // What was killed stays dead: the kubelet, which would start it again, does not find its manifest.
        self.shell(&format!(
            "systemctl stop kubelet && mkdir -p {ASIDE} && {moved} {KUBELET_ALONE} && systemctl start kubelet && touch {PREPARED}"
        ))
        .await?;
        Ok(())
    }

    /// Whether [`Node::prepare`] has ended here.
    pub async fn is_prepared(&self) -> bool {
        self.shell(&format!("test -f {PREPARED}")).await.is_ok()
    }

    /// The manifest that kubeadm wrote for a component that was taken out.
    ///
    /// # Errors
    /// There is none.
    pub async fn stock(&self, component: &str) -> Result<String, CommandError> {
        self.shell(&format!("cat {ASIDE}/{component}.stock")).await
    }

    /// Ends what a case that was cut off has left running.
    ///
    /// # Errors
    /// It does not end.
    pub async fn clear(&self, components: &[&'static str]) -> Result<(), KindError> {
        let manifests: Vec<String> = components.iter().map(|it| format!("{MANIFESTS}/{it}.yaml")).collect();
        self.shell(&format!("rm -rf {} {LOGS}", manifests.join(" "))).await?;
        for component in components {
            self.await_gone(component).await?;
        }
        Ok(())
    }

    async fn await_gone(&self, component: &str) -> Result<(), KindError> {
        let script = format!("pgrep -x {} || true", comm(component));
        let what = format!("the end of {component} on {}", self.name);
        let gone = wait::until(what, STOP_TIMEOUT, async || match self.shell(&script).await {
            Ok(pids) if pids.trim().is_empty() => Ok(()),
            Ok(pids) => Err(NotYet::new(format!("the end of process {}", pids.trim()))),
            Err(error) => Err(NotYet::new(error.to_string())),
        });
        gone.await.map_err(|timeout| KindError::NotReady {
            what: timeout.what,
            waited: timeout.waited,
            missing: timeout.missing,
            log: String::new(),
        })
    }
}

impl StaticPod {
    /// An error if its process is gone.
    ///
    /// # Errors
    /// It is, and the end of its log says why.
    pub async fn check_running(&self) -> Result<(), KindError> {
        match self.node.look(self.component, &self.name).await? {
            Seen::Runs(process) if process.pid == self.process.pid => Ok(()),
            Seen::Runs(_) | Seen::Nothing | Seen::Ended => Err(self.ended().await),
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
        let script = format!("date +%s%N && kill -9 {} && {}", self.process.pid, self.away_script());
        let text = self.node.shell(&script).await?;
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

    /// Takes it away and returns the end of its log.
    pub(super) async fn taken_away(&self) -> Result<String, KindError> {
        self.node.shell(&self.away_script()).await?;
        self.node.await_gone(self.component).await?;
        self.keep_log().await
    }

    /// What is left of one that ended by itself: an error with the end of its log.
    async fn ended(&self) -> KindError {
        match self.taken_away().await {
            Ok(log) => KindError::Exited { component: self.component, node: self.node.name.clone(), log },
            Err(error) => error,
        }
    }

    /// The log gets a second name before the pod goes.
    fn away_script(&self) -> String {
        let StaticPod { component, name, .. } = self;
        let log = self.node.log_pattern(component, name);
        format!(
            "mkdir -p {LOGS} {ASIDE}; ln -f {log} {LOGS}/{name}.log 2>/dev/null; \
             mv -f {MANIFESTS}/{component}.yaml {ASIDE}/{component}.gone 2>/dev/null || true"
        )
    }

    /// Appends the log of a pod that is gone to the one of the case, and returns its end.
    async fn keep_log(&self) -> Result<String, KindError> {
        let kept = format!("{LOGS}/{}.log", self.name);
        let text = self.node.shell(&format!("if [ -f {kept} ]; then cat {kept}; rm {kept}; fi")).await?;
        let lines: Vec<&str> = text.lines().map(without_cri_prefix).collect();
        let failed = |source| FileError::new("write", &self.log, source);
        let mut file = File::options().create(true).append(true).open(&self.log).map_err(failed)?;
        file.write_all((lines.join("\n") + "\n").as_bytes()).map_err(failed)?;
        Ok(lines[lines.len().saturating_sub(TOLD_LINES)..].join("\n"))
    }
}

/// What [`Node::look`] has printed: a process id with the command line after it, or that the container has ended.
fn seen_in(text: &str) -> Seen {
    let mut lines = text.lines();
    let first = lines.next();
    let command: Vec<String> = lines.map(str::to_string).collect();
    match (first, first.and_then(|line| line.parse().ok())) {
        (None, _) => Seen::Nothing,
        // Between fork and exec, and after its end, a process has no command line: it is not there yet, or no longer.
        (Some(_), Some(_)) if command.is_empty() => Seen::Nothing,
        (Some(_), Some(pid)) => Seen::Runs(NodeProcess { pid, command }),
        (Some(_), None) => Seen::Ended,
    }
}

/// The name of a program as the kernel keeps it.
fn comm(component: &str) -> &str {
    &component[..component.len().min(COMM_LENGTH)]
}

/// A line of output without what the container runtime puts before it: time, stream and whether the line is whole.
fn without_cri_prefix(line: &str) -> &str {
    line.splitn(4, ' ').nth(3).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_log_is_what_the_server_wrote() {
        let line = "2026-12-02T11:23:26.952624715Z stderr F I1202 11:23:26.952 1 main.go:1] ready";
        assert_eq!(without_cri_prefix(line), "I1202 11:23:26.952 1 main.go:1] ready");
        assert_eq!(without_cri_prefix("odd"), "odd");
    }

    #[test]
    fn a_process_without_a_command_line_is_not_there_yet() {
        let runs = |pid| Seen::Runs(NodeProcess { pid, command: vec!["kube-apiserver".into(), "--x=1".into()] });
        assert_eq!(seen_in("12\nkube-apiserver\n--x=1\n"), runs(12));
        assert_eq!(seen_in("12\n"), Seen::Nothing);
        assert_eq!(seen_in(""), Seen::Nothing);
        assert_eq!(seen_in("ended\n"), Seen::Ended);
    }

    #[test]
    fn long_names_of_programs_are_compared_as_the_kernel_keeps_them() {
        assert_eq!(comm("kube-controller-manager"), "kube-controller");
        assert_eq!(comm("kube-apiserver"), "kube-apiserver");
    }
}
