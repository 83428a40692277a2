//! Files that others may read while they are written, or must not read at all.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Replaces a file in one step: a reader sees the old or the new content, never a part.
///
/// # Errors
/// The directory does not exist or cannot be written.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let failed = |source| FileError::new("write", path, source);
    let dir = path.parent().unwrap_or(Path::new("."));
    // Results are for others to read; the default of temporary files is the owner only.
    let mut builder = tempfile::Builder::new();
    let mut temporary = builder.permissions(Permissions::from_mode(0o644)).tempfile_in(dir).map_err(failed)?;
    temporary.write_all(content).map_err(failed)?;
    temporary.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Writes a file that only the owner can read.
///
/// # Errors
/// The file cannot be written.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let failed = |source| FileError::new("write", path, source);
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(content).map_err(failed)
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {source}", path.display())]
pub struct FileError {
    /// What was tried.
    pub what: &'static str,
    /// Which file.
    pub path: PathBuf,
    /// Why it failed.
    pub source: std::io::Error,
}

impl FileError {
    /// An error about this file.
    pub fn new(what: &'static str, path: &Path, source: std::io::Error) -> Self {
        FileError { what, path: path.to_path_buf(), source }
    }
}
