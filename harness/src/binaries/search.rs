//! The steps one after the other, all binaries at each step before the next one begins.

use super::cache::{Cache, ReleaseLock};
use super::download::Downloads;
use super::error::StepError;
use super::gobuild::{Go, Module};
use super::table::Release;
use super::{
    Answer, BinaryError, Event, Found, Mirror, Missing, Obtained, Progress, Silent, Sources, Step, Wanted, probe,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) fn run(wanted: &[Wanted], sources: &Sources, progress: &dyn Progress) -> Result<Obtained, BinaryError> {
    let cache = Cache::open(&sources.cache_dir)?;
    cache.sweep()?;
    let missing = wanted.iter().map(|wanted| (*wanted, Vec::new())).collect();
    let mut search = Search { sources, progress, cache: &cache, missing, found: Obtained::default() };
    search.in_bin_dir()?;
    search.in_cache(SayNo::Yes)?;
    let mut locks = search.lock()?;
    search.in_cache(SayNo::No)?;
    search.download()?;
    locks.retain(|release, _| search.missing.keys().any(|wanted| wanted.release() == *release));
    search.build(locks)?;
    Ok(search.found)
}

/// What needs neither network nor `go`: binaries in the given directory, and whole ones in the cache.
pub(super) fn at_hand(wanted: &[Wanted], sources: &Sources) -> Result<Obtained, BinaryError> {
    let cache = Cache::open(&sources.cache_dir)?;
    let missing = wanted.iter().map(|wanted| (*wanted, Vec::new())).collect();
    let mut search = Search { sources, progress: &Silent, cache: &cache, missing, found: Obtained::default() };
    search.in_bin_dir()?;
    search.in_cache(SayNo::No)?;
    Ok(search.found)
}

/// Whether the cache's answer is told: the second look, with the lock in hand, only counts when it finds something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SayNo {
    Yes,
    No,
}

struct Search<'a> {
    sources: &'a Sources,
    progress: &'a dyn Progress,
    cache: &'a Cache,
    /// What is not found yet, with the answers so far.
    missing: BTreeMap<Wanted, Vec<Answer>>,
    found: Obtained,
}

impl<'a> Search<'a> {
    fn wanted(&self) -> Vec<Wanted> {
        self.missing.keys().copied().collect()
    }

    fn in_bin_dir(&mut self) -> Result<(), BinaryError> {
        let Some(dir) = &self.sources.bin_dir else { return Ok(()) };
        for wanted in self.wanted() {
            let began = Instant::now();
            self.settle(wanted, Step::BinDir, began, probe::in_dir(dir, wanted))?;
        }
        Ok(())
    }

    fn in_cache(&mut self, say_no: SayNo) -> Result<(), BinaryError> {
        for wanted in self.wanted() {
            let began = Instant::now();
            let outcome = self.cache.look_up(wanted);
            if outcome.is_ok() || say_no == SayNo::Yes {
                self.settle(wanted, Step::Cache, began, outcome)?;
            }
        }
        Ok(())
    }

    /// Locks every release that something is missing of. All callers lock in the same order, so that two of them never
    /// wait for each other.
    fn lock(&self) -> Result<BTreeMap<Release, ReleaseLock>, BinaryError> {
        let mut locks = BTreeMap::new();
        let releases: BTreeSet<Release> = self.missing.keys().map(|wanted| wanted.release()).collect();
        for release in releases {
            let of_release = self.missing.keys().filter(|wanted| wanted.release() == release);
            let waiting = |lock: &Path| {
                of_release.for_each(|wanted| self.progress.event(*wanted, Event::Waiting { lock }));
            };
            locks.insert(release, self.cache.lock(release, waiting)?);
        }
        Ok(locks)
    }

    fn download(&mut self) -> Result<(), BinaryError> {
        let mirror = &self.sources.mirror;
        let may_ask = match mirror {
            Mirror::Public | Mirror::Http(_) => !self.sources.offline,
            Mirror::Dir(_) => true,
        };
        let mut downloads = Downloads::new(self.cache, mirror);
        for wanted in self.wanted() {
            let began = Instant::now();
            let outcome = match may_ask {
                true => downloads.fetch(wanted, self.progress),
                false => Err(StepError::No(format!("offline, not asked: {mirror}"))),
            };
            self.settle(wanted, Step::Download, began, outcome)?;
        }
        Ok(())
    }

    /// Resolves everything before it compiles anything, and what is not known to build before the rest: what cannot be
    /// built is named in seconds.
    fn build(&mut self, mut locks: BTreeMap<Release, ReleaseLock>) -> Result<(), BinaryError> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let go = match self.sources.offline {
            true => Err(StepError::No("offline, not asked: the module proxy".to_string())),
            false => Go::find(self.sources.go.as_deref(), self.cache),
        };
        let go = match go {
            Ok(go) => go,
            Err(error) => return Err(self.give_up_all(error)),
        };
        let mut modules = BTreeMap::new();
        let (known, doubtful): (Vec<_>, Vec<_>) =
            self.wanted().into_iter().partition(|wanted| wanted.is_known_to_build());
        for group in [doubtful, known] {
            self.resolve(&go, &mut modules, group)?;
        }
        for (release, mut module) in modules {
            for wanted in self.wanted().into_iter().filter(|wanted| wanted.release() == release) {
                let began = Instant::now();
                match module.build(wanted, self.progress) {
                    Ok(path) => self.settle(wanted, Step::GoBuild, began, Ok(path))?,
                    Err(error) => {
                        let missing = vec![self.give_up(wanted, began.elapsed(), error)?];
                        return Err(BinaryError::Unavailable { missing });
                    }
                }
            }
            // The build cache of gigabytes goes before the next release is built, and others need not wait for it.
            drop(module);
            locks.remove(&release);
        }
        Ok(())
    }

    fn resolve<'g>(
        &mut self,
        go: &'g Go<'g>,
        modules: &mut BTreeMap<Release, Module<'g>>,
        group: Vec<Wanted>,
    ) -> Result<(), BinaryError> {
        let mut impossible = Vec::new();
        for wanted in group {
            let began = Instant::now();
            if let Err(error) = resolve(go, modules, wanted, self.progress) {
                let next_may_differ = matches!(error, StepError::NoSuchVersion(_));
                impossible.push(self.give_up(wanted, began.elapsed(), error)?);
                if !next_may_differ {
                    // A proxy that is away would be waited for again, for every binary.
                    break;
                }
            }
        }
        match impossible.is_empty() {
            true => Ok(()),
            false => Err(BinaryError::Unavailable { missing: impossible }),
        }
    }

    /// Notes what a step answered.
    fn settle(
        &mut self,
        wanted: Wanted,
        step: Step,
        began: Instant,
        outcome: Result<PathBuf, StepError>,
    ) -> Result<(), BinaryError> {
        let took = began.elapsed();
        match outcome {
            Ok(path) => {
                let size = fs::metadata(&path).map_err(BinaryError::io("read", &path))?.len();
                let answers = self.missing.remove(&wanted).unwrap_or_default();
                let found = Found { wanted, path, size, step, took, answers };
                self.progress.event(wanted, Event::Found(&found));
                self.found.0.insert(wanted, found);
            }
            Err(StepError::Fatal(error)) => return Err(error),
            Err(StepError::No(why) | StepError::NoSuchVersion(why)) => {
                let answer = Answer { step, why, took };
                self.progress.event(wanted, Event::Answered(&answer));
                self.missing.entry(wanted).or_default().push(answer);
            }
        }
        Ok(())
    }

    /// After the last step: what was answered all in all.
    fn give_up(&mut self, wanted: Wanted, took: Duration, error: StepError) -> Result<Missing, BinaryError> {
        let (why, instead) = match error {
            StepError::Fatal(error) => return Err(error),
            StepError::No(why) => (why, None),
            StepError::NoSuchVersion(why) => (why, wanted.buildable_instead()),
        };
        let mut answers = self.missing.remove(&wanted).unwrap_or_default();
        answers.push(Answer { step: Step::GoBuild, why, took });
        Ok(Missing { wanted, answers, instead })
    }

    fn give_up_all(&mut self, error: StepError) -> BinaryError {
        let why = match error {
            StepError::Fatal(error) => return error,
            StepError::No(why) | StepError::NoSuchVersion(why) => why,
        };
        let missing = self.wanted().into_iter().map(|wanted| {
            let mut answers = self.missing.remove(&wanted).unwrap_or_default();
            answers.push(Answer { step: Step::GoBuild, why: why.clone(), took: Duration::ZERO });
            Missing { wanted, answers, instead: None }
        });
        BinaryError::Unavailable { missing: missing.collect() }
    }
}

/// Makes the module of the binary's release, unless another component made it, and resolves the binary in it.
fn resolve<'g>(
    go: &'g Go<'g>,
    modules: &mut BTreeMap<Release, Module<'g>>,
    wanted: Wanted,
    progress: &dyn Progress,
) -> Result<(), StepError> {
    let report = |line: &str| progress.event(wanted, Event::Resolving { go: go.version(), line });
    report("resolving modules");
    let release = wanted.release();
    let mut module = match modules.remove(&release) {
        Some(module) => module,
        None => go.module(release, report)?,
    };
    let outcome = module.resolve(wanted, report);
    modules.insert(release, module);
    outcome
}
