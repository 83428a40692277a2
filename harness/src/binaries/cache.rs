//! The directory that binaries are kept in: `<component>-<version>` with its `.sha256` beside it, a lock for every
//! release, and scratch folders that exist while something is made.

use super::Wanted;
use super::error::{BinaryError, StepError};
use super::probe;
use super::table::Release;
use sha2::{Digest, Sha256};
use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, TempDir};

const LOCK: &str = "lock";
const SCRATCH: &str = "scratch";

/// The cache. A file counts only while its contents have the checksum written beside it when it was put there, and that
/// is computed at every use: size and time of a file survive damage that its contents do not, and 100 MB are hashed in
/// a tenth of a second. Neither half of a pair that was interrupted counts, so files are put in without a lock on
/// readers.
pub(super) struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// Opens the cache, creating its directory if need be.
    pub(super) fn open(dir: &Path) -> Result<Cache, BinaryError> {
        fs::create_dir_all(dir).map_err(BinaryError::io("create the cache directory", dir))?;
        let dir = std::path::absolute(dir).map_err(BinaryError::io("resolve", dir))?;
        Ok(Cache { dir })
    }

    /// The cached binary, if it is whole.
    pub(super) fn look_up(&self, wanted: Wanted) -> Result<PathBuf, StepError> {
        let file = self.dir.join(wanted.file_name());
        if !file.exists() {
            return Err(StepError::No(format!("not in {}", self.dir.display())));
        }
        let Ok(beside) = fs::read_to_string(self.checksum_file(wanted)) else {
            return Err(StepError::No(format!("{} has no checksum beside it, not used", file.display())));
        };
        let expected = beside.split_whitespace().next().unwrap_or_default();
        match sha256_of(&file) {
            Ok(actual) if actual == expected => Ok(file),
            Ok(_) => Err(StepError::No(format!("{} is damaged (sha256 differs), not used", file.display()))),
            Err(error) => Err(StepError::No(format!("cannot read {}: {error}", file.display()))),
        }
    }

    /// Moves a finished file into the cache. It becomes visible whole or not at all: it is flushed first, and the
    /// checksum, without which it does not count, comes last.
    pub(super) fn put(&self, wanted: Wanted, file: &Path) -> Result<PathBuf, StepError> {
        fs::set_permissions(file, Permissions::from_mode(0o755)).map_err(BinaryError::io("make executable", file))?;
        probe::answers_as(file, wanted).map_err(StepError::No)?;
        let sum = sha256_of(file).map_err(BinaryError::io("read", file))?;
        File::open(file).and_then(|it| it.sync_all()).map_err(BinaryError::io("flush", file))?;
        let target = self.dir.join(wanted.file_name());
        fs::rename(file, &target).map_err(BinaryError::io("move into the cache as", &target))?;
        let beside = self.checksum_file(wanted);
        self.write_whole(&beside, &format!("{sum}  {}\n", wanted.file_name()))
            .map_err(BinaryError::io("write", &beside))?;
        Ok(target)
    }

    fn write_whole(&self, path: &Path, text: &str) -> io::Result<()> {
        let mut file = NamedTempFile::new_in(&self.dir)?;
        file.write_all(text.as_bytes())?;
        file.as_file().set_permissions(Permissions::from_mode(0o644))?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        File::open(&self.dir)?.sync_all()
    }

    fn checksum_file(&self, wanted: Wanted) -> PathBuf {
        self.dir.join(format!("{}.sha256", wanted.file_name()))
    }

    /// Takes the lock of a release, which is held while anything of it is downloaded or built. `waiting` is called if
    /// another process or thread holds it.
    pub(super) fn lock(&self, release: Release, waiting: impl FnOnce(&Path)) -> Result<ReleaseLock, BinaryError> {
        let path = self.dir.join(format!("{}.{LOCK}", release.stem()));
        let file = File::options().create(true).write(true).truncate(false).open(&path);
        let file = file.map_err(BinaryError::io("open the lock", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting(&path);
                file.lock().map_err(BinaryError::io("lock", &path))?;
            }
            Err(TryLockError::Error(source)) => return Err(BinaryError::io("lock", &path)(source)),
        }
        Ok(ReleaseLock { _file: file })
    }

    /// A folder on the disk of the cache for what is being made; gone when it is dropped.
    pub(super) fn scratch(&self, release: Release) -> Result<TempDir, BinaryError> {
        let prefix = format!("{}.{SCRATCH}.", release.stem());
        let made = tempfile::Builder::new().prefix(&prefix).tempdir_in(&self.dir);
        made.map_err(BinaryError::io("create a scratch folder in", &self.dir))
    }

    /// Removes the scratch folders of processes that were killed, a Go build cache of gigabytes among them. A folder
    /// belongs to nobody when the lock of its release is free.
    pub(super) fn sweep(&self) -> Result<(), BinaryError> {
        let entries = fs::read_dir(&self.dir).map_err(BinaryError::io("list", &self.dir))?;
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((stem, _)) = name.split_once(&format!(".{SCRATCH}.")) else { continue };
            let lock = File::options().write(true).open(self.dir.join(format!("{stem}.{LOCK}")));
            if let Ok(lock) = lock
                && lock.try_lock().is_ok()
            {
                // What fails, because a `go` that outlived its parent still writes there, is left to the next sweep.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(())
    }

    /// Refuses to begin what would fill the disk.
    pub(super) fn require_free(&self, needed: u64, purpose: &str) -> Result<(), BinaryError> {
        let stat = nix::sys::statvfs::statvfs(&self.dir)
            .map_err(|errno| BinaryError::io("ask for the free disk of", &self.dir)(errno.into()))?;
        let free = stat.blocks_available() * stat.fragment_size();
        if free < needed {
            let (purpose, dir) = (purpose.to_string(), self.dir.clone());
            return Err(BinaryError::DiskFull { purpose, dir, needed, free });
        }
        Ok(())
    }
}

/// The lock of a release; dropped, it is free again.
pub(super) struct ReleaseLock {
    _file: File,
}

/// The sha256 of a file, in hex.
fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex::encode(hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}
