//! The steps against directories, a loopback port and a fake `go`.

use super::*;
use crate::version::KubeVersion;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use tempfile::TempDir;

const VERSION: KubeVersion = KubeVersion::new(33, 13);
const APISERVER: Wanted = Wanted::Kube(KubeComponent::Apiserver, VERSION);
const CONTROLLER_MANAGER: Wanted = Wanted::Kube(KubeComponent::ControllerManager, VERSION);
const ETCD: Wanted = Wanted::Etcd(ToolVersion::ETCD);

/// A `go` that keeps a log of its builds and of its build cache, and builds scripts that answer `--version`.
const FAKE_GO: &str = r#"#!/bin/sh
here=$(dirname "$0")
case "$1" in
env) echo go1.26.8 ;;
mod) echo "go 1.24.0" > "$here/theirs.mod"; echo "{\"GoMod\": \"$here/theirs.mod\"}" ;;
list) printf 'fmt\nnet\n' ;;
build)
  for argument; do
    [ "$previous" = -o ] && out=$argument
    previous=$argument
  done
  echo "$out" >> "$here/builds"
  echo "$GOCACHE" >> "$here/gocaches"
  echo fmt >&2
  FINISH
esac
"#;
const FINISH_BUILD: &str = r#"case "$out" in *etcd) answer="etcd Version: 3.6.16" ;; *) answer="Kubernetes v1.33.13" ;; esac
  printf '#!/bin/sh\necho "%s"\n' "$answer" > "$out"; chmod 755 "$out" ;;"#;

/// A cache, a mirror and a bin directory of one test.
struct World {
    dir: TempDir,
}

impl World {
    fn new() -> World {
        World { dir: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Nothing but an empty cache and an empty mirror.
    fn sources(&self) -> Sources {
        let mirror = Mirror::Dir(self.path("mirror"));
        Sources { bin_dir: None, cache_dir: self.path("cache"), mirror, offline: false, go: None }
    }

    fn with_go(&self, finish: &str) -> Sources {
        Sources { go: Some(self.write_go(&FAKE_GO.replace("FINISH", finish))), ..self.sources() }
    }

    /// Returns when it runs: a child that another test is starting may still hold the file open for writing.
    fn write_go(&self, script: &str) -> PathBuf {
        let go = self.write("go/go", script.as_bytes());
        while Command::new(&go).arg("env").output().is_err_and(|error| error.kind() == ErrorKind::ExecutableFileBusy) {}
        go
    }

    fn write(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn builds(&self) -> usize {
        fs::read_to_string(self.path("go/builds")).map_or(0, |text| text.lines().count())
    }

    fn mirror_file(&self, wanted: Wanted, contents: &[u8]) -> PathBuf {
        let arch = download::go_arch();
        let os = download::go_os();
        let name = format!("release/{}/bin/{os}/{arch}/{}", wanted.version(), wanted.name());
        self.write(&format!("mirror/{name}.sha256"), sha256(contents).as_bytes());
        self.write(&format!("mirror/{name}"), contents)
    }

    /// Everything in the cache that is neither a lock nor a checksum.
    fn cached(&self) -> Vec<String> {
        let names = fs::read_dir(self.path("cache")).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> =
            names.filter(|name| !name.ends_with(".lock") && !name.ends_with(".sha256")).collect();
        names.sort();
        names
    }
}

fn script(answer: &str) -> Vec<u8> {
    format!("#!/bin/sh\necho '{answer}'\n").into_bytes()
}

fn sha256(contents: &[u8]) -> String {
    hex::encode(Sha256::digest(contents))
}

#[track_caller]
fn found(wanted: Wanted, sources: &Sources) -> Found {
    let obtained = obtain(&[wanted], sources, &Silent).unwrap();
    let found = obtained.iter().next().unwrap().clone();
    assert_eq!(obtained.path(wanted), Some(found.path.as_path()));
    found
}

#[track_caller]
fn error(wanted: &[Wanted], sources: &Sources) -> String {
    obtain(wanted, sources, &Silent).unwrap_err().to_string()
}

#[track_caller]
fn says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "`{message}` does not say `{word}`");
    }
}

#[test]
fn a_download_with_the_right_sha256_is_kept_in_the_cache() {
    let world = World::new();
    let in_mirror = world.mirror_file(APISERVER, &script("Kubernetes v1.33.13"));
    let first = found(APISERVER, &world.sources());
    assert_eq!((first.step, first.answers.len()), (Step::Download, 1));
    says(&first.to_string(), &["kube-apiserver v1.33.13: cache: not in", "; download: "]);
    fs::remove_file(in_mirror).unwrap();
    assert_eq!(found(APISERVER, &world.sources()).step, Step::Cache);
    assert_eq!(world.cached(), ["kube-apiserver-v1.33.13"]);
}

#[test]
fn a_download_with_another_sha256_is_never_used() {
    let world = World::new();
    let file = world.mirror_file(APISERVER, &script("Kubernetes v1.33.13"));
    fs::write(file, script("Kubernetes v1.33.13 and more")).unwrap();
    says(&error(&[APISERVER], &world.sources()), &["has sha256", "not used", "no `go` on PATH", "SKEWLAB_MIRROR"]);
    assert!(world.cached().is_empty());
}

#[test]
fn a_download_of_another_version_is_never_used() {
    let world = World::new();
    world.mirror_file(APISERVER, &script("Kubernetes v1.33.6"));
    says(&error(&[APISERVER], &world.sources()), &["answers --version with `Kubernetes v1.33.6`"]);
    assert!(world.cached().is_empty());
}

#[test]
fn etcd_comes_out_of_its_release_archive() {
    let world = World::new();
    let folder = format!("etcd-v3.6.16-{}-{}", download::go_os(), download::go_arch());
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    for (name, contents) in [("README.md", b"x".to_vec()), ("etcd", script("etcd Version: 3.6.16"))] {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o755);
        tar.append_data(&mut header, format!("{folder}/{name}"), contents.as_slice()).unwrap();
    }
    let archive = tar.into_inner().unwrap().finish().unwrap();
    world.write(&format!("mirror/etcd/v3.6.16/{folder}.tar.gz"), &archive);
    let sums = |sum: String| format!("{}  other.tar.gz\n{sum}  {folder}.tar.gz\n", "0".repeat(64));
    world.write("mirror/etcd/v3.6.16/SHA256SUMS", sums("1".repeat(64)).as_bytes());
    says(&error(&[ETCD], &world.sources()), &["etcd v3.6.16 cannot be had", "has sha256"]);
    world.write("mirror/etcd/v3.6.16/SHA256SUMS", sums(sha256(&archive)).as_bytes());
    assert_eq!(found(ETCD, &world.sources()).step, Step::Download);
}

#[test]
fn a_damaged_file_in_the_cache_is_never_used() {
    let world = World::new();
    world.mirror_file(APISERVER, &script("Kubernetes v1.33.13"));
    let path = found(APISERVER, &world.sources()).path;
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[20] ^= 1;
    for damaged in [&whole[..whole.len() - 3], &[], &flipped[..]] {
        fs::write(&path, damaged).unwrap();
        let again = found(APISERVER, &world.sources());
        assert_eq!(again.step, Step::Download);
        says(&again.answers[0].to_string(), &["damaged"]);
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn what_a_killed_process_leaves_is_neither_used_nor_kept() {
    let world = World::new();
    world.write("cache/kube-apiserver-v1.33.13", &script("Kubernetes v1.33.13"));
    world.write("cache/etcd-v3.6.16.lock", b"");
    world.write("cache/etcd-v3.6.16.scratch.abc/gocache/00/x", b"half");
    says(&error(&[APISERVER], &world.sources()), &["has no checksum beside it, not used"]);
    assert_eq!(world.cached(), ["kube-apiserver-v1.33.13"]);
}

#[test]
fn a_given_directory_is_taken_at_its_word_only_after_asking_the_binary() {
    let world = World::new();
    let sources = Sources { bin_dir: Some(world.path("bin")), ..world.sources() };
    world.write("bin/kube-apiserver", &script("Kubernetes v1.33.6"));
    world.write("bin/kube-apiserver-v1.33.13", b"\x7fELF of another machine");
    says(
        &error(&[APISERVER, ETCD], &sources),
        &[
            "`Kubernetes v1.33.6`, not `Kubernetes v1.33.13`",
            "v1.33.13 does not run",
            "etcd v3.6.16 cannot be had: given",
        ],
    );
    world.mirror_file(APISERVER, &script("Kubernetes v1.33.13"));
    assert_eq!(found(APISERVER, &sources).step, Step::Download);
    let nested = world.write("bin/v1.33.13/kube-apiserver", &script("Kubernetes v1.33.13"));
    let from_bin_dir = found(APISERVER, &sources);
    assert_eq!((from_bin_dir.step, from_bin_dir.path), (Step::BinDir, nested));
}

#[test]
fn an_unreachable_host_is_asked_once_and_then_go_builds() {
    let world = World::new();
    let mirror = Mirror::Http("http://127.0.0.1:1".to_string());
    let sources = Sources { mirror, ..world.with_go(FINISH_BUILD) };
    let obtained = obtain(&[APISERVER, CONTROLLER_MANAGER], &sources, &Silent).unwrap();
    let answers: Vec<_> = obtained.iter().map(|found| found.answers[1].to_string()).collect();
    says(&answers[0], &["download: 127.0.0.1:1 is unreachable"]);
    says(&answers[1], &["not asked again"]);
    assert!(obtained.iter().all(|found| found.step == Step::GoBuild));
    assert_eq!(world.cached(), ["kube-apiserver-v1.33.13", "kube-controller-manager-v1.33.13"]);
}

#[test]
fn a_download_that_breaks_off_is_never_used() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mirror = Mirror::Http(format!("http://{}", listener.local_addr().unwrap()));
    let whole = script("Kubernetes v1.33.13");
    let sum = sha256(&whole);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 1000];
            let count = stream.read(&mut request).unwrap();
            let wants_sum = String::from_utf8_lossy(&request[..count]).contains(".sha256 ");
            let (length, body) = if wants_sum { (sum.len(), sum.as_bytes()) } else { (whole.len(), &whole[..9]) };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        }
    });
    let message = error(&[APISERVER], &Sources { mirror, ..world.sources() });
    says(&message, &["breaks off"]);
    assert!(world.cached().is_empty());
}

#[test]
fn offline_asks_neither_host_nor_module_proxy() {
    let world = World::new();
    let sources = Sources { offline: true, mirror: Mirror::Public, ..world.with_go(FINISH_BUILD) };
    says(&error(&[APISERVER], &sources), &["download: offline, not asked: dl.k8s.io", "go build: offline"]);
    assert_eq!(world.builds(), 0);
}

#[test]
fn components_of_a_release_share_a_go_build_cache_that_is_gone_afterwards() {
    let world = World::new();
    obtain(&[ETCD, CONTROLLER_MANAGER, APISERVER], &world.with_go(FINISH_BUILD), &Silent).unwrap();
    let used = fs::read_to_string(world.path("go/gocaches")).unwrap();
    let used: Vec<&str> = used.lines().collect();
    assert_eq!(used.len(), 3);
    assert_eq!(used[1], used[2]);
    assert!(used.iter().all(|dir| Path::new(dir).starts_with(world.path("cache")) && !Path::new(dir).exists()));
    assert_eq!(world.cached().len(), 3);
}

#[test]
fn threads_that_want_the_same_binary_build_it_once() {
    let world = World::new();
    let sources = world.with_go(&format!("sleep 0.2; {FINISH_BUILD}"));
    thread::scope(|scope| {
        let callers: Vec<_> = (0..4).map(|_| scope.spawn(|| found(APISERVER, &sources).path)).collect();
        let paths: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        assert!(paths.iter().all(|path| *path == paths[0]));
    });
    assert_eq!(world.builds(), 1);
}

#[test]
fn what_the_module_proxy_lacks_is_named_with_a_version_that_builds_and_before_anything_is_built() {
    let world = World::new();
    let refusal = r#"list) case "$3" in
  *controller-manager) echo "k8s.io/kubelet@v0.32.13: reading https://proxy/x.zip: 403 Forbidden" >&2; exit 1 ;;
  *) echo fmt ;; esac ;;
  unused)"#;
    let sources = world.with_go(FINISH_BUILD);
    let go = fs::read_to_string(world.path("go/go")).unwrap().replace("list)", refusal);
    world.write_go(&go);
    let of = |component| Wanted::Kube(component, KubeVersion::new(32, 13));
    let message = error(&KubeComponent::SERVERS.map(of), &sources);
    says(&message, &["kube-controller-manager v1.32.13 cannot be had", "k8s.io/kubelet@v0.32.13 (403 Forbidden)"]);
    says(&message, &["kube-controller-manager v1.32.2 can be built"]);
    assert!(!message.contains("kube-apiserver v1.32.13 cannot"));
    assert_eq!(world.builds(), 0);
    assert!(world.cached().is_empty());
}

#[test]
fn a_build_that_is_killed_leaves_nothing() {
    let world = World::new();
    let sources = world.with_go(r#"echo half > "$out"; echo "no space left" >&2; kill -9 $$ ;;"#);
    says(&error(&[APISERVER], &sources), &["go fails (signal: 9", "no space left"]);
    assert!(world.cached().is_empty());
}

#[test]
fn too_little_disk_is_told_before_anything_is_written() {
    let world = World::new();
    let cache = cache::Cache::open(&world.path("cache")).unwrap();
    let message = cache.require_free(u64::MAX, "go build of kubernetes-v1.33.13").unwrap_err().to_string();
    says(&message, &["go build of kubernetes-v1.33.13 needs", "free in"]);
}
