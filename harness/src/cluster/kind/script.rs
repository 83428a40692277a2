//! The shell scripts that run in nodes, and how their output is read.
//!
//! A call into a node costs a tenth of a second of a processor and more, a look from inside it a hundredth of that. So
//! whoever waits for something waits inside the node, in one call.

/// Where the kubelet looks for static pods.
const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// Where manifests wait that must not run: on the file system of those that run, so that a move is one step.
const ASIDE: &str = "/etc/kubernetes/skewlab";
/// Says that a node is ready for servers.
const PREPARED: &str = "/etc/kubernetes/skewlab/prepared";
/// Second names of logs, because the kubelet removes the first ones with their pods.
const LOGS: &str = "/var/log/skewlab";
/// Adds to the arguments of the kubelet that it runs alone.
const KUBELET_ALONE: &str = "if [ -f /etc/default/kubelet ]; then . /etc/default/kubelet; fi; \
    echo \"KUBELET_EXTRA_ARGS=\\\"$KUBELET_EXTRA_ARGS --kubeconfig= --bootstrap-kubeconfig= \
    --authorization-mode=AlwaysAllow --authentication-token-webhook=false\\\"\" >/etc/default/kubelet";
/// How much of the name of a program the kernel keeps, which is what `pgrep -x` compares, in bytes.
const COMM_LENGTH: usize = 15;
/// Looks a second.
const LOOKS: u64 = 20;
/// Between files that one script reads: no text has it.
const SEPARATOR: char = '\u{1e}';

/// A static pod, by what scripts must know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pod<'a> {
    /// The node, whose name is part of that of the pod.
    pub node: &'a str,
    /// The component, which is also the name of its manifest and container.
    pub component: &'a str,
    /// The name of the pod without that of the node.
    pub name: &'a str,
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
pub enum Seen {
    /// Nothing.
    Nothing,
    /// Its process.
    Runs(NodeProcess),
    /// Its container has exited.
    Ended,
}

/// Takes static pods of kubeadm out for good and lets the kubelet go on without its API. While the apiserver of its node is
/// away it would wait for it, for half a minute at a time, and static pods need none.
pub fn prepare(components: &[&str]) -> String {
    let moved: String = components
        .iter()
        .map(|it| format!("mv {MANIFESTS}/{it}.yaml {ASIDE}/{it}.stock && pkill -9 -x {} || true; ", comm(it)))
        .collect();
    // What was killed stays dead: the kubelet, which would start it again, does not find its manifest.
    format!(
        "systemctl stop kubelet && mkdir -p {ASIDE} && {{ {moved} {KUBELET_ALONE}; }} && systemctl start kubelet && \
         touch {PREPARED}"
    )
}

/// Succeeds where [`prepare`] has ended.
pub fn is_prepared() -> String {
    format!("test -f {PREPARED}")
}

/// The manifest that kubeadm wrote for a component that was taken out.
pub fn stock(component: &str) -> String {
    format!("{ASIDE}/{component}.stock")
}

/// Prints files, for [`files_in`].
pub fn read(files: &[String]) -> String {
    let reads: Vec<String> = files.iter().map(|file| format!("cat {file} && printf '\\036'")).collect();
    reads.join(" && ")
}

/// The files that [`read`] has printed.
pub fn files_in(text: &str) -> Vec<String> {
    let mut files: Vec<String> = text.split(SEPARATOR).map(str::to_string).collect();
    files.pop();
    files
}

/// Ends what a case that was cut off has left running; prints what stays.
pub fn clear(components: &[&str], seconds: u64) -> String {
    let manifests: Vec<String> = components.iter().map(|it| format!("{MANIFESTS}/{it}.yaml")).collect();
    let names: Vec<&str> = components.iter().map(|it| comm(it)).collect();
    let gone = format!("pgrep -x '{}' >/dev/null || exit 0; ", names.join("|"));
    format!("rm -rf {} {LOGS}; {} echo stays", manifests.join(" "), repeat(seconds, &gone))
}

/// Puts a manifest from standard input in place in one step and prints what comes of it, for [`seen_in`].
pub fn start(pod: Pod<'_>, seconds: u64) -> String {
    let component = pod.component;
    let looks = format!(
        "{} if [ $((i % {LOOKS})) = 0 ] && {}; then echo ended; exit 0; fi; ",
        print_process(component),
        has_ended(pod)
    );
    format!(
        "mkdir -p {ASIDE} && cat >{ASIDE}/{component}.yaml && mv {ASIDE}/{component}.yaml {MANIFESTS}/ || exit 1; {}",
        repeat(seconds, &looks)
    )
}

/// Prints what there is of a pod, for [`seen_in`].
pub fn look(pod: Pod<'_>) -> String {
    format!("{} if {}; then echo ended; fi", print_process(pod.component), has_ended(pod))
}

/// Takes the manifest of a pod away, waits until its process is gone, and prints `gone` and its log, or `stays`.
pub fn take_away(pod: Pod<'_>, seconds: u64) -> String {
    let log = format!("{LOGS}/{}.log", pod.name);
    let gone = format!(
        "if ! pgrep -x {} >/dev/null; then echo gone; if [ -f {log} ]; then cat {log}; rm {log}; fi; exit 0; fi; ",
        comm(pod.component)
    );
    format!("{}; {} echo stays", away(pod), repeat(seconds, &gone))
}

/// The log that [`take_away`] has printed; `None` if the process stays.
pub fn log_in(text: &str) -> Option<Vec<&str>> {
    let log = text.strip_prefix("gone\n")?;
    Some(log.lines().map(without_cri_prefix).collect())
}

/// Prints the time in nanoseconds, kills a process, and takes its manifest away before the kubelet notices.
pub fn kill(pod: Pod<'_>, pid: u32) -> String {
    format!("date +%s%N && kill -9 {pid} && {{ {}; }}", away(pod))
}

/// Ends when a process does.
pub fn await_end(pid: u32, seconds: u64) -> String {
    format!("timeout {seconds} tail --pid={pid} --sleep-interval=0.3 -f /dev/null || true")
}

/// Ends when something answers on a URL, or fails.
pub fn await_answer(url: &str, seconds: u64) -> String {
    let answers = format!("curl --silent --fail --insecure {url} >/dev/null && exit 0; ");
    format!("{} exit 1", repeat(seconds, &answers))
}

/// What [`start`] or [`look`] has printed: a process id with the command line after it, or that the container has ended.
pub fn seen_in(text: &str) -> Seen {
    let mut lines = text.lines();
    match lines.next().map(str::parse) {
        None => Seen::Nothing,
        Some(Ok(pid)) => Seen::Runs(NodeProcess { pid, command: lines.map(str::to_string).collect() }),
        Some(Err(_)) => Seen::Ended,
    }
}

/// Between fork and exec, and after its end, a process has no command line: it is not there yet, or no longer.
fn print_process(component: &str) -> String {
    format!(
        "if pid=$(pgrep -x -o {}) && command=$(tr '\\000' '\\n' </proc/$pid/cmdline) && [ -n \"$command\" ]; \
         then echo $pid; echo \"$command\"; exit 0; fi; ",
        comm(component)
    )
}

/// A log is no sign of an end: on a busy host it is there seconds before the process.
fn has_ended(Pod { node, name, .. }: Pod<'_>) -> String {
    format!("crictl ps --all --state exited --label io.kubernetes.pod.name={name}-{node} --quiet | grep -q .")
}

/// The log gets a second name before the pod goes.
fn away(Pod { node, component, name }: Pod<'_>) -> String {
    format!(
        "mkdir -p {LOGS} {ASIDE}; \
         ln -f /var/log/pods/kube-system_{name}-{node}_*/{component}/0.log {LOGS}/{name}.log 2>/dev/null; \
         mv -f {MANIFESTS}/{component}.yaml {ASIDE}/{component}.gone 2>/dev/null || true"
    )
}

/// Looks again and again, for at least so many seconds, until a look ends the script.
fn repeat(seconds: u64, look: &str) -> String {
    format!("i=0; while [ $i -lt {} ]; do i=$((i + 1)); {look}sleep 0.05; done;", seconds * LOOKS)
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
    use std::process::Command;

    const POD: Pod<'_> = Pod { node: "n", component: "kube-controller-manager", name: "kube-controller-manager-7" };

    fn run(script: &str) -> String {
        let output = Command::new("sh").args(["-c", script]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn every_script_is_one_that_a_shell_reads() {
        let scripts = [
            prepare(&["kube-apiserver", "kube-scheduler"]),
            is_prepared(),
            read(&["/a".into(), "/b".into()]),
            clear(&["kube-apiserver", "kube-controller-manager"], 60),
            start(POD, 120),
            look(POD),
            take_away(POD, 60),
            kill(POD, 12),
            await_end(12, 60),
            await_answer("https://127.0.0.1:1/healthz", 60),
        ];
        for script in scripts {
            let status = Command::new("sh").args(["-n", "-c", &script]).status().unwrap();
            assert!(status.success(), "{script}");
        }
    }

    #[test]
    fn a_process_without_a_command_line_is_not_there_yet() {
        let runs = |pid| Seen::Runs(NodeProcess { pid, command: vec!["kube-apiserver".into(), "--x=1".into()] });
        assert_eq!(seen_in("12\nkube-apiserver\n--x=1\n"), runs(12));
        assert_eq!(seen_in(""), Seen::Nothing);
        assert_eq!(seen_in("ended\n"), Seen::Ended);
        assert!(print_process("kube-apiserver").contains("[ -n \"$command\" ]"));
    }

    #[test]
    fn files_are_read_whole_and_apart() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name).display().to_string());
        std::fs::write(&paths[0], "one\ntwo\n").unwrap();
        std::fs::write(&paths[1], "three").unwrap();
        assert_eq!(files_in(&run(&read(&paths))), ["one\ntwo\n", "three"]);
        assert_eq!(files_in(&run(&read(&[paths[0].clone(), "/none".into()]))).len(), 1);
    }

    #[test]
    fn a_wait_ends_with_its_condition_or_says_that_it_did_not_come() {
        assert_eq!(run(&format!("{} echo late", repeat(1, "[ $i = 3 ] && echo there && exit 0; "))), "there\n");
        assert_eq!(run(&format!("{} echo late", repeat(1, "false; "))), "late\n");
    }

    #[test]
    fn the_log_of_a_pod_comes_with_the_news_of_its_end() {
        let line = "2026-12-02T11:23:26.952624715Z stderr F I1202 11:23:26.952 1 main.go:1] ready";
        assert_eq!(log_in(&format!("gone\n{line}\nodd\n")), Some(vec!["I1202 11:23:26.952 1 main.go:1] ready", "odd"]));
        assert_eq!(log_in("gone\n"), Some(vec![]));
        assert_eq!(log_in("stays\n"), None);
    }

    #[test]
    fn long_names_of_programs_are_compared_as_the_kernel_keeps_them() {
        assert_eq!(comm("kube-controller-manager"), "kube-controller");
        assert_eq!(comm("kube-apiserver"), "kube-apiserver");
    }
}
