//! Supervision of child processes, tried on fakes: no Kubernetes here.

use harness::process::{Blueprint, Process, ProcessError};
use harness::wait::{self, NotYet};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::time::Duration;

/// Set in the process that plays the parent which is killed.
const PARENT_DIR: &str = "SKEWLAB_TEST_PARENT_DIR";
/// Far longer than anything here takes; a wait that runs out is a failure.
const LONG: Duration = Duration::from_secs(20);

fn shell(dir: &Path, script: &str) -> Blueprint {
    Blueprint {
        name: "fake".into(),
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        log: dir.join("fake.log"),
    }
}

async fn never_ready(process: &mut Process, longest: Duration) -> ProcessError {
    process.ready(longest, async || Err::<(), _>(NotYet::new("a miracle"))).await.unwrap_err()
}

async fn await_gone(pid: u32) {
    let gone = wait::until(format!("the end of process {pid}"), LONG, async || {
        // A zombie still answers signals, so its state is read.
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let alive =
            state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'));
        if alive { Err(NotYet::new(state)) } else { Ok(()) }
    });
    gone.await.unwrap();
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let blueprint = Blueprint { program: "/no/such/program".into(), ..shell(dir.path(), "") };
    let text = blueprint.start().unwrap_err().to_string();
    assert!(text.contains("cannot start fake") && text.contains("No such file"), "{text}");
}

#[tokio::test]
async fn a_child_that_exits_is_reported_at_once_with_its_last_lines() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = shell(dir.path(), "echo first; echo the reason >&2; exit 7").start().unwrap();
    let error = never_ready(&mut process, LONG).await;
    let ProcessError::Exited { status, log, .. } = &error else { panic!("must be Exited: {error}") };
    assert_eq!((status.code(), log.as_str()), (Some(7), "first\nthe reason"));
}

#[tokio::test]
async fn a_reason_far_from_the_end_of_the_log_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        "echo etcdserver: request timed out; i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; exit 1";
    let mut process = shell(dir.path(), script).start().unwrap();
    let error = never_ready(&mut process, LONG).await;
    let ProcessError::Exited { log, reasons, .. } = &error else { panic!("must be Exited: {error}") };
    assert!(!log.contains("etcdserver"), "{log}");
    assert_eq!(reasons.as_slice(), ["etcdserver: request timed out"]);
}

#[tokio::test]
async fn output_of_an_earlier_run_in_the_same_log_is_not_reported() {
    let dir = tempfile::tempdir().unwrap();
    for word in ["earlier", "later"] {
        let mut process = shell(dir.path(), &format!("echo {word}; exit 1")).start().unwrap();
        let text = never_ready(&mut process, LONG).await.to_string();
        assert!(text.contains(word), "{text}");
        assert!(word == "earlier" || !text.contains("earlier"), "{text}");
    }
}

#[tokio::test]
async fn a_child_that_never_gets_ready_says_what_was_missing() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = shell(dir.path(), "echo busy; exec sleep 60").start().unwrap();
    let text = never_ready(&mut process, Duration::from_millis(200)).await.to_string();
    assert!(text.contains("a miracle") && text.contains("not ready"), "{text}");
}

#[tokio::test]
async fn a_child_that_ignores_sigterm_is_killed_when_its_grace_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = shell(dir.path(), "trap '' TERM; echo trapped; while :; do sleep 1; done").start().unwrap();
    let log = dir.path().join("fake.log");
    let trapped = async || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.contains("trapped") { Ok(()) } else { Err(NotYet::new("the trap")) }
    };
    process.ready(LONG, trapped).await.unwrap();
    let pid = process.pid().unwrap();
    let status = process.stop(Duration::from_millis(100)).await.unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::SIGKILL as i32));
    await_gone(pid).await;
}

#[tokio::test]
async fn a_dropped_process_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let process = shell(dir.path(), "exec sleep 60").start().unwrap();
    let pid = process.pid().unwrap();
    drop(process);
    await_gone(pid).await;
}

#[tokio::test]
async fn a_paused_child_does_nothing_until_it_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let process = shell(dir.path(), "exec sleep 60").start().unwrap();
    let stat = format!("/proc/{}/stat", process.pid().unwrap());
    let state = |wanted: char| {
        let stat = stat.clone();
        wait::until(format!("state {wanted}"), LONG, async move || {
            let text = std::fs::read_to_string(&stat).unwrap_or_default();
            let now = text.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
            if now == Some(wanted) { Ok(()) } else { Err(NotYet::new(text)) }
        })
    };
    process.pause();
    state('T').await.unwrap();
    process.resume();
    state('S').await.unwrap();
    process.kill().await.unwrap();
}

/// Plays the parent: starts a child, writes down its id and waits to be killed. Does nothing in an ordinary run.
#[tokio::test]
async fn plays_the_parent_that_is_killed() {
    let Ok(dir) = std::env::var(PARENT_DIR) else { return };
    let dir = Path::new(&dir);
    let mut process = shell(dir, "exec sleep 600").start().unwrap();
    std::fs::write(dir.join("pid.part"), process.pid().unwrap().to_string()).unwrap();
    std::fs::rename(dir.join("pid.part"), dir.join("pid")).unwrap();
    never_ready(&mut process, Duration::from_secs(600)).await;
}

#[tokio::test]
async fn a_child_dies_with_its_parent_even_when_the_parent_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut parent = std::process::Command::new(std::env::current_exe().unwrap());
    parent.args(["--exact", "plays_the_parent_that_is_killed"]).env(PARENT_DIR, dir.path());
    let mut parent = parent.stdout(std::process::Stdio::null()).spawn().unwrap();
    let file = dir.path().join("pid");
    let child = wait::until("the child of the parent", LONG, async || {
        let text = std::fs::read_to_string(&file).map_err(|error| NotYet::new(error.to_string()))?;
        text.parse::<u32>().map_err(|error| NotYet::new(error.to_string()))
    });
    let child = child.await.unwrap();
    kill(Pid::from_raw(parent.id() as i32), Signal::SIGKILL).unwrap();
    parent.wait().unwrap();
    await_gone(child).await;
}
