//! Downloads with a checksum, from the public hosts or a mirror.

use super::cache::Cache;
use super::error::{BinaryError, StepError};
use super::table::Release;
use super::{Event, Mirror, Progress, Wanted};
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::env::consts;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::tls::{RootCerts, TlsConfig};

/// Name lookup, then connecting with TLS, then the first byte of an answer: together the cost of a host that is not
/// there. A transfer that runs has no limit, only its pauses have.
const RESOLVE: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(3);
const ANSWER: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(10);

/// Free disk that one download needs, in bytes: the file, and for etcd its archive.
pub(super) const FREE_DISK: u64 = 300_000_000;

/// A checksum file is a few lines; more is an error page.
const CHECKSUM_LIMIT: u64 = 100_000;

/// How many bytes lie between two reports of progress.
const REPORT_EVERY: u64 = 1 << 20;

/// Downloads of one call. A host that does not answer is asked once.
pub(super) struct Downloads<'a> {
    cache: &'a Cache,
    mirror: &'a Mirror,
    agent: ureq::Agent,
    unreachable: BTreeMap<String, String>,
}

impl<'a> Downloads<'a> {
    pub(super) fn new(cache: &'a Cache, mirror: &'a Mirror) -> Self {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = ureq::Agent::config_builder()
            .timeout_resolve(Some(RESOLVE))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(ANSWER))
            .timeout_per_read(Some(PAUSE))
            // What is hashed must be what the server stores.
            .accept_encoding("identity")
            .tls_config(tls)
            .build();
        Downloads { cache, mirror, agent: config.into(), unreachable: BTreeMap::new() }
    }

    /// Downloads one binary into the cache. The lock of its release is held by the caller.
    pub(super) fn fetch(&mut self, wanted: Wanted, progress: &dyn Progress) -> Result<PathBuf, StepError> {
        self.cache.require_free(FREE_DISK, &format!("the download of {wanted}"))?;
        let remote = Remote::of(wanted, self.mirror);
        progress.event(wanted, Event::Downloading { from: &remote.file });
        let sums = self.text(&remote.sums)?;
        let expected = remote.checksum_in(&sums)?;
        let scratch = self.cache.scratch(wanted.release())?;
        let downloaded = scratch.path().join("download");
        let actual = self.file(&remote.file, &downloaded, |done, total| {
            progress.event(wanted, Event::Bytes { done, total });
        })?;
        if actual != expected {
            return Err(StepError::No(format!("{} has sha256 {actual}, not {expected}: not used", remote.file)));
        }
        let binary = match &remote.member {
            None => downloaded,
            Some(member) => {
                let binary = scratch.path().join(wanted.name());
                unpack(&downloaded, member, &binary)?;
                binary
            }
        };
        self.cache.put(wanted, &binary)
    }

    fn text(&mut self, location: &str) -> Result<String, StepError> {
        let (reader, _) = self.open(location)?;
        let mut text = String::new();
        reader.take(CHECKSUM_LIMIT).read_to_string(&mut text).map_err(|error| broken(location, &error))?;
        Ok(text)
    }

    /// Copies a file and returns its sha256 in hex.
    fn file(&mut self, location: &str, to: &Path, report: impl Fn(u64, Option<u64>)) -> Result<String, StepError> {
        let (mut reader, total) = self.open(location)?;
        let mut file = File::create(to).map_err(BinaryError::io("create", to))?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 16];
        let (mut done, mut reported) = (0, 0);
        loop {
            let count = reader.read(&mut buffer).map_err(|error| broken(location, &error))?;
            if count == 0 {
                break;
            }
            file.write_all(&buffer[..count]).map_err(BinaryError::io("write", to))?;
            hash.update(&buffer[..count]);
            done += count as u64;
            if done - reported >= REPORT_EVERY {
                reported = done;
                report(done, total);
            }
        }
        report(done, total);
        Ok(hex::encode(hash.finalize()))
    }

    /// A reader, and how many bytes it will give where that is known.
    fn open(&mut self, location: &str) -> Result<(Box<dyn Read>, Option<u64>), StepError> {
        let Some((_, rest)) = location.split_once("://") else {
            let path = Path::new(location);
            let file = File::open(path).map_err(|error| StepError::No(format!("{location}: {error}")))?;
            let size = file.metadata().map_err(BinaryError::io("read", path))?.len();
            return Ok((Box::new(file), Some(size)));
        };
        let host = rest.split('/').next().unwrap_or_default();
        if let Some(why) = self.unreachable.get(host) {
            return Err(StepError::No(format!("{host} is unreachable, not asked again ({why})")));
        }
        match self.agent.get(location).call() {
            Ok(answer) => {
                let body = answer.into_body();
                let size = body.content_length();
                Ok((Box::new(body.into_reader()), size))
            }
            Err(ureq::Error::StatusCode(code)) if code < 500 => {
                Err(StepError::No(format!("{location} answers HTTP {code}")))
            }
            Err(error) => {
                self.unreachable.insert(host.to_string(), error.to_string());
                Err(StepError::No(format!("{host} is unreachable: {error}")))
            }
        }
    }
}

fn broken(location: &str, error: &io::Error) -> StepError {
    StepError::No(format!("{location} breaks off: {error}"))
}

/// Where one binary lies: URLs, or paths when the mirror is a directory.
struct Remote {
    file: String,
    sums: String,
    /// The path inside the file, if it is an archive.
    member: Option<String>,
}

impl Remote {
    fn of(wanted: Wanted, mirror: &Mirror) -> Remote {
        let (os, arch) = (go_os(), go_arch());
        let base = match mirror {
            Mirror::Public => None,
            Mirror::Http(url) => Some(url.clone()),
            Mirror::Dir(dir) => Some(dir.display().to_string()),
        };
        match wanted.release() {
            Release::Kubernetes(version) => {
                let base = base.unwrap_or_else(|| "https://dl.k8s.io".to_string());
                let file = format!("{base}/release/{version}/bin/{os}/{arch}/{}", wanted.name());
                Remote { sums: format!("{file}.sha256"), file, member: None }
            }
            Release::Etcd(version) => {
                let base = of_project(base, "etcd-io/etcd", "etcd");
                let folder = format!("etcd-{version}-{os}-{arch}");
                Remote {
                    file: format!("{base}/{version}/{folder}.tar.gz"),
                    sums: format!("{base}/{version}/SHA256SUMS"),
                    member: Some(format!("{folder}/etcd")),
                }
            }
            Release::CriTools(version) => {
                let base = of_project(base, "kubernetes-sigs/cri-tools", "cri-tools");
                let file = format!("{base}/{version}/crictl-{version}-{os}-{arch}.tar.gz");
                Remote { sums: format!("{file}.sha256"), file, member: Some("crictl".to_string()) }
            }
            Release::Kind(version) => {
                let base = of_project(base, "kubernetes-sigs/kind", "kind");
                let file = format!("{base}/{version}/kind-{os}-{arch}");
                Remote { sums: format!("{file}.sha256sum"), file, member: None }
            }
        }
    }

    /// The checksum of the file: the only word of a `.sha256`, or the line of a `SHA256SUMS` that names the file.
    fn checksum_in(&self, sums: &str) -> Result<String, StepError> {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        let line =
            sums.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|words| match &words[..] {
                [_] => true,
                [_, file] => file.trim_start_matches('*') == name,
                [] | [_, _, ..] => false,
            });
        let sum = line.map(|words| words[0].to_ascii_lowercase());
        sum.filter(|sum| sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .ok_or_else(|| StepError::No(format!("{} has no sha256 of {name}", self.sums)))
    }
}

/// Where the releases of a project lie: on GitHub, or in a folder of a mirror.
fn of_project(mirror: Option<String>, project: &str, folder: &str) -> String {
    match mirror {
        Some(base) => format!("{base}/{folder}"),
        None => format!("https://github.com/{project}/releases/download"),
    }
}

fn unpack(archive: &Path, member: &str, to: &Path) -> Result<(), StepError> {
    let unreadable = |error: io::Error| StepError::No(format!("{member} cannot be unpacked: {error}"));
    let file = File::open(archive).map_err(BinaryError::io("open", archive))?;
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        if entry.path().map_err(unreadable)? == Path::new(member) {
            let mut out = File::create(to).map_err(BinaryError::io("create", to))?;
            io::copy(&mut entry, &mut out).map_err(unreadable)?;
            return Ok(());
        }
    }
    Err(StepError::No(format!("the archive has no {member}")))
}

/// The operating system as Go and the release hosts spell it.
pub(super) fn go_os() -> &'static str {
    match consts::OS {
        "macos" => "darwin",
        other => other,
    }
}

/// The processor as Go and the release hosts spell it.
pub(super) fn go_arch() -> &'static str {
    match consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}
