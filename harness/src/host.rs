//! Finds out the facts of this host that `preflight` judges. Nothing is installed or waited for long; all that it leaves
//! is the directory of the cache.

use crate::binaries::{self, BinaryError, Mirror, Sources, Wanted};
use crate::preflight::kind::{self, Cgroups, Engine, Inotify};
use crate::preflight::local::{self, Disk};
use crate::version::KubeVersion;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;
use ureq::tls::{RootCerts, TlsConfig};

/// How long a tool or a host may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection to this host itself may take.
const LOOPBACK_PATIENCE: Duration = Duration::from_secs(1);
/// The bit of CAP_SYS_RESOURCE (`linux/capability.h`).
const CAP_SYS_RESOURCE: u32 = 24;
/// The environment variable by which a user chooses kind's engine, and what kind takes for one.
const ENGINE_VARIABLE: &str = "KIND_EXPERIMENTAL_PROVIDER";
const CHOICES: [&str; 5] = ["docker", "podman", "nerdctl", "finch", "nerdctl.lima"];
/// The engines in the order in which kind looks for them when none is chosen (`DetectNodeProvider`).
const ENGINES: [&str; 3] = ["docker", "nerdctl", "podman"];

/// The facts for runs of processes. Without a network nobody is asked that is not on this host.
///
/// # Errors
/// A cache directory that cannot be used.
pub async fn local(
    wanted: &[Wanted],
    sources: &Sources,
    results: &Path,
    ports: usize,
) -> Result<local::Facts, BinaryError> {
    let at_hand = binaries::at_hand(wanted, sources)?;
    let missing: Vec<Wanted> = wanted.iter().copied().filter(|wanted| at_hand.path(*wanted).is_none()).collect();
    Ok(local::Facts {
        cargo: answer("cargo", &["--version"]).await,
        go: answer("go", &["env", "GOVERSION"]).await,
        binaries: local::Binaries {
            dir: sources.cache_dir.clone(),
            there: wanted.len() - missing.len(),
            disk_to_download: binaries::disk_to_download(&missing),
            disk_to_build: binaries::disk_to_build(&missing),
            missing,
        },
        download_host: download_host(sources),
        results_disk: disk(results),
        cache_disk: disk(&sources.cache_dir),
        memory: memory(),
        ports: self::ports(ports),
    })
}

/// The facts for runs on kind whose oldest server is this one.
pub async fn kind(oldest: KubeVersion, sources: &Sources) -> kind::Facts {
    kind::Facts {
        engine: engine().await,
        cgroups: cgroups(),
        sys_resource: sys_resource(),
        inotify: inotify(),
        kind: kind_version(&sources.cache_dir).await,
        kind_can_be_installed: sources.go.is_some() && !sources.offline,
        images_can_be_obtained: !sources.offline,
        oldest,
    }
}

/// Free disk of a directory, or of the nearest one above it that exists.
pub fn disk(dir: &Path) -> Disk {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    let dir = dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(&dir).to_path_buf();
    let stat = nix::sys::statvfs::statvfs(&dir);
    let free = stat.map(|stat| stat.blocks_available() * stat.fragment_size()).map_err(|errno| errno.to_string());
    Disk { dir, free }
}

/// Memory that new processes can have, in bytes.
pub fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// The first line of what a tool prints, or why there is none.
async fn answer(tool: &str, args: &[&str]) -> Result<String, String> {
    let text = output(tool, args).await?;
    text.lines().next().map(str::to_string).ok_or_else(|| format!("{tool} {} prints nothing", args.join(" ")))
}

async fn output(tool: &str, args: &[&str]) -> Result<String, String> {
    let what = format!("{tool} {}", args.join(" "));
    let mut command = Command::new(tool);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = match timeout(PATIENCE, command.output()).await {
        Err(_) => return Err(format!("`{what}` does not end within {} s", PATIENCE.as_secs())),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => return Err(format!("{tool} is not on PATH")),
        Ok(Err(error)) => return Err(format!("`{what}` does not run: {error}")),
        Ok(Ok(output)) => output,
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("`{what}` ends with {}: {}", output.status, last.trim()))
}

/// Asks the download host, unless that is forbidden. Any answer is one: a mirror need not have a page at its root.
fn download_host(sources: &Sources) -> Option<Result<String, String>> {
    let url = match (&sources.mirror, sources.offline) {
        (Mirror::Dir(dir), _) if dir.is_dir() => return Some(Ok(dir.display().to_string())),
        (Mirror::Dir(dir), _) => return Some(Err(format!("{} is no directory", dir.display()))),
        (Mirror::Public | Mirror::Http(_), true) => return None,
        (Mirror::Public, false) => "https://dl.k8s.io/release/stable.txt".to_string(),
        (Mirror::Http(url), false) => url.clone(),
    };
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
    let agent: ureq::Agent =
        ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).tls_config(tls).build().into();
    Some(match agent.get(&url).call() {
        Ok(_) | Err(ureq::Error::StatusCode(..500)) => Ok(url),
        Err(error) => Err(format!("{url}: {error}")),
    })
}

/// How many of so many ports of 127.0.0.1 can be bound at the same time, and one of them reached; all are let go.
pub fn ports(count: usize) -> Result<usize, String> {
    let mut held = Vec::new();
    while held.len() < count {
        match TcpListener::bind(("127.0.0.1", 0)) {
            Ok(listener) => held.push(listener),
            Err(error) if held.is_empty() => return Err(error.to_string()),
            Err(_) => break,
        }
    }
    // Binding works also while the loopback interface is down.
    if let Some(address) = held.first().and_then(|listener| listener.local_addr().ok()) {
        TcpStream::connect_timeout(&address, LOOPBACK_PATIENCE).map_err(|error| format!("cannot connect: {error}"))?;
    }
    Ok(held.len())
}

/// The container engine, if it answers.
///
/// # Errors
/// There is none, or why it does not.
pub async fn engine() -> Result<Engine, String> {
    let chosen = std::env::var(ENGINE_VARIABLE).ok().filter(|name| CHOICES.contains(&name.as_str()));
    let command = match chosen {
        Some(name) => name,
        None => first_engine().await.ok_or_else(|| format!("none of {} is on PATH", ENGINES.join(", ")))?,
    };
    let text = output(&command, &["info", "--format", "{{json .}}"]).await?;
    let info: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("`{command} info` is not JSON: {error}"))?;
    let said = |pointer: &str| info.pointer(pointer).and_then(|value| value.as_str()).filter(|text| !text.is_empty());
    // The client of Docker prints what it knows also when no engine answers; podman has fields of its own.
    let version = said("/ServerVersion").or_else(|| said("/version/Version"));
    let version = version.ok_or_else(|| format!("{command} is there, but no engine answers"))?.to_string();
    let images = output(&command, &["images", "--format", "{{.Repository}}:{{.Tag}}"]).await?;
    let root = said("/DockerRootDir").or_else(|| said("/store/graphRoot")).map(Path::new);
    Ok(Engine {
        version,
        runtime: said("/DefaultRuntime").map(str::to_string),
        disk: root.filter(|root| root.is_dir()).map(disk),
        images: images.lines().map(str::to_string).collect(),
        command,
    })
}

async fn first_engine() -> Option<String> {
    for name in ENGINES {
        if answer(name, &["--version"]).await.is_ok() {
            return Some(name.to_string());
        }
    }
    None
}

/// The test that the kubelet makes: a hybrid host has the file of version 2 only below `unified`.
fn cgroups() -> Cgroups {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        Cgroups::V2
    } else if root.join("unified").exists() {
        Cgroups::Hybrid
    } else if root.exists() {
        Cgroups::V1
    } else {
        Cgroups::Elsewhere
    }
}

fn sys_resource() -> Option<bool> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("CapBnd:"))?;
    let bits = u64::from_str_radix(line.trim(), 16).ok()?;
    Some(bits >> CAP_SYS_RESOURCE & 1 == 1)
}

/// Processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The limits of inotify; `None` where the system has none.
pub fn inotify() -> Option<Inotify> {
    let number = |name: &str| fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).ok()?.trim().parse().ok();
    Some(Inotify { instances: number("max_user_instances")?, watches: number("max_user_watches")? })
}

/// kind on PATH, else the one that is kept with the other binaries.
async fn kind_version(cache: &Path) -> Result<String, String> {
    let on_path = answer("kind", &["version"]).await;
    let is_kind = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("kind-v") && !name.ends_with(".sha256") && !name.ends_with(".lock")
    };
    let kept = fs::read_dir(cache).into_iter().flatten().flatten().map(|entry| entry.path()).find(is_kind);
    match (on_path, kept) {
        (Err(_), Some(kept)) => answer(&kept.to_string_lossy(), &["version"]).await,
        (on_path, _) => on_path,
    }
}
