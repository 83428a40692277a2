//! `go build` from the module proxy, with a build cache of its own that goes away with the work.

use super::cache::Cache;
use super::download::{go_arch, go_os};
use super::error::{BinaryError, StepError};
use super::gomodule;
use super::table::Release;
use super::{Event, Progress, Wanted};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use tempfile::TempDir;

/// Free disk that a build needs, in bytes: build cache, linker and sources (measured: 2.5 GB of build cache for
/// kube-apiserver and kube-controller-manager).
pub(super) fn free_disk(release: Release) -> u64 {
    match release {
        Release::Etcd(_) | Release::CriTools(_) | Release::Kind(_) => 1_000_000_000,
        Release::Kubernetes(_) => 6_000_000_000,
    }
}

/// A `go` command that runs.
pub(super) struct Go<'a> {
    command: &'a Path,
    cache: &'a Cache,
    /// `go1.26.8`.
    version: String,
}

impl<'a> Go<'a> {
    /// Asks the command for its version.
    pub(super) fn find(command: Option<&'a Path>, cache: &'a Cache) -> Result<Go<'a>, StepError> {
        let command = command.ok_or_else(|| StepError::No("no `go` on PATH".to_string()))?;
        let output = Command::new(command).args(["env", "GOVERSION"]).output();
        let output = output.map_err(|error| StepError::No(format!("{} does not run: {error}", command.display())))?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_string();
        if !output.status.success() || version.is_empty() {
            return Err(StepError::No(format!("{} env GOVERSION: {}", command.display(), output.status)));
        }
        Ok(Go { command, cache, version })
    }

    /// `go1.26.8`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Makes the throw-away module of a release. The lock of the release is held by the caller.
    pub(super) fn module(&self, release: Release, report: impl FnMut(&str)) -> Result<Module<'_>, StepError> {
        self.cache.require_free(free_disk(release), &format!("go build of {}", release.stem()))?;
        let scratch = self.cache.scratch(release)?;
        for dir in ["gocache", "gotmp"] {
            let dir = scratch.path().join(dir);
            fs::create_dir(&dir).map_err(BinaryError::io("create", &dir))?;
        }
        let module = Module { go: self, scratch, release, packages: BTreeMap::new(), built: BTreeSet::new() };
        let what = format!("{}@{}", release.go_module(), release.version());
        let ran = module.run(&["mod", "download", "-json", &what], report)?;
        let answer: Downloaded = serde_json::from_str(&ran.stdout).unwrap_or_default();
        let (Some(theirs), None) = (&answer.go_mod, &answer.error) else {
            let told = answer.error.unwrap_or_else(|| ran.stderr.join("\n"));
            return Err(no_module(&told, &ran.status));
        };
        let theirs = fs::read_to_string(theirs).map_err(BinaryError::io("read", theirs))?;
        let ours = module.scratch.path().join("go.mod");
        fs::write(&ours, gomodule::go_mod(release, &theirs)).map_err(BinaryError::io("write", &ours))?;
        Ok(module)
    }
}

/// The part of `go mod download -json` that is read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Downloaded {
    error: Option<String>,
    go_mod: Option<PathBuf>,
}

/// The throw-away module of a release, with the build cache that its components share.
pub(super) struct Module<'a> {
    go: &'a Go<'a>,
    scratch: TempDir,
    release: Release,
    /// The packages of each component that was resolved.
    packages: BTreeMap<Wanted, BTreeSet<String>>,
    /// The packages that are in the build cache.
    built: BTreeSet<String>,
}

impl Module<'_> {
    /// Fetches the sources of a component. What the module proxy does not have is known after this, long before
    /// anything is compiled.
    pub(super) fn resolve(&mut self, wanted: Wanted, report: impl FnMut(&str)) -> Result<(), StepError> {
        let ran = self.run(&["list", "-deps", &wanted.go_package()], report)?;
        if !ran.status.success() {
            return Err(no_module(&ran.stderr.join("\n"), &ran.status));
        }
        self.packages.insert(wanted, ran.stdout.lines().map(ToString::to_string).collect());
        Ok(())
    }

    /// Builds a component that was resolved, into the cache.
    pub(super) fn build(&mut self, wanted: Wanted, progress: &dyn Progress) -> Result<PathBuf, StepError> {
        let packages = self.packages.get(&wanted).cloned().unwrap_or_default();
        // `go build -v` names what it compiles, and not what the component before it left in the build cache.
        let total = packages.difference(&self.built).filter(|name| *name != "unsafe").count();
        let output = self.scratch.path().join(wanted.name());
        let flags = gomodule::ldflags(self.release);
        let (out, package) = (output.to_string_lossy(), wanted.go_package());
        let mut done = 0;
        let ran = self.run(&["build", "-v", "-trimpath", "-ldflags", &flags, "-o", &out, &package], |line| {
            if packages.contains(line) {
                done += 1;
                progress.event(wanted, Event::Building { go: &self.go.version, package: line, done, total });
            }
        })?;
        if !ran.status.success() {
            let errors: Vec<String> = ran.stderr.into_iter().filter(|line| !packages.contains(line)).collect();
            return Err(no_module(&errors.join("\n"), &ran.status));
        }
        self.built.extend(packages);
        self.go.cache.put(wanted, &output)
    }

    /// Runs `go` in the module. The caller's settings stay, GOPROXY among them, except for what decides which binary
    /// comes out. Temporary files go to the scratch folder, which is on the disk whose free space was checked.
    fn run(&self, arguments: &[&str], mut report: impl FnMut(&str)) -> Result<Ran, StepError> {
        let dir = self.scratch.path();
        let mut child = Command::new(self.go.command)
            .args(arguments)
            .current_dir(dir)
            .env("GOFLAGS", "-mod=mod")
            .env("GOWORK", "off")
            .env("GOOS", go_os())
            .env("GOARCH", go_arch())
            .env("CGO_ENABLED", "0")
            .env("GOCACHE", dir.join("gocache"))
            .env("GOTMPDIR", dir.join("gotmp"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(BinaryError::io("run", self.go.command))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr) = thread::scope(|scope| {
            let stdout = scope.spawn(|| {
                let mut text = Vec::new();
                stdout.map(|mut pipe| pipe.read_to_end(&mut text));
                String::from_utf8_lossy(&text).into_owned()
            });
            let lines = stderr.into_iter().flat_map(|pipe| BufReader::new(pipe).lines().map_while(Result::ok));
            let stderr = lines.inspect(|line| report(line)).collect::<Vec<_>>();
            (stdout.join().unwrap_or_default(), stderr)
        });
        let status = child.wait().map_err(BinaryError::io("wait for", self.go.command))?;
        Ok(Ran { status, stdout, stderr })
    }
}

/// What one `go` command left.
struct Ran {
    status: ExitStatus,
    stdout: String,
    stderr: Vec<String>,
}

fn no_module(told: &str, status: &ExitStatus) -> StepError {
    if let Some(modules) = gomodule::not_on_proxy(told) {
        return StepError::NoSuchVersion(format!("the module proxy does not have {modules}"));
    }
    let told: Vec<String> = told.lines().map(ToString::to_string).collect();
    StepError::No(format!("go fails ({status}): {}", gomodule::complaint(&told)))
}
