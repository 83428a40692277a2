//! Where binaries are looked for.

use super::BinaryError;
use std::env;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where binaries are looked for, and where they are kept.
#[derive(Debug, Clone)]
pub struct Sources {
    /// A directory of the user's with binaries in it; nothing is written to it.
    pub bin_dir: Option<PathBuf>,
    /// The directory that binaries are kept in. It is created if need be.
    pub cache_dir: PathBuf,
    /// What is downloaded from.
    pub mirror: Mirror,
    /// Neither hosts nor the module proxy are asked; a mirror that is a directory still is.
    pub offline: bool,
    /// The `go` command, if there is one.
    pub go: Option<PathBuf>,
}

impl Sources {
    /// Reads `SKEWLAB_BIN_DIR`, `SKEWLAB_MIRROR`, `XDG_CACHE_HOME`, `HOME` and `PATH`. A directory given on the command
    /// line goes before the one of the environment.
    ///
    /// # Errors
    /// No home directory, or a mirror that is no URL.
    pub fn from_env(bin_dir: Option<PathBuf>) -> Result<Sources, BinaryError> {
        let said = |name| env::var_os(name).filter(|value| !value.is_empty());
        let user_cache = match said("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute()) {
            Some(dir) => dir,
            None => PathBuf::from(said("HOME").ok_or(BinaryError::NoCacheDir)?).join(".cache"),
        };
        let mirror = match said("SKEWLAB_MIRROR") {
            Some(text) => text.to_string_lossy().parse()?,
            None => Mirror::Public,
        };
        let path = said("PATH").unwrap_or_default();
        Ok(Sources {
            bin_dir: bin_dir.or_else(|| said("SKEWLAB_BIN_DIR").map(PathBuf::from)),
            cache_dir: user_cache.join("skewlab/bin"),
            mirror,
            offline: false,
            go: env::split_paths(&path).map(|dir| dir.join("go")).find(|file| file.is_absolute() && file.is_file()),
        })
    }
}

/// What is downloaded from. A mirror holds `release/<version>/bin/<os>/<arch>/<component>` with a `.sha256` beside it,
/// the layout of dl.k8s.io, and `etcd/<version>/etcd-<version>-<os>-<arch>.tar.gz` with a `SHA256SUMS` beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mirror {
    /// dl.k8s.io, and the release page of etcd.
    Public,
    /// An `http://` or `https://` URL without a slash at its end.
    Http(String),
    /// A directory, given as a `file://` URL. The path is taken as it stands: `%20` is not a space.
    Dir(PathBuf),
}

impl FromStr for Mirror {
    type Err = BinaryError;
    fn from_str(text: &str) -> Result<Self, BinaryError> {
        let trimmed = text.trim_end_matches('/');
        let has_host = |rest: &str| !rest.is_empty() && !rest.starts_with('/');
        let http = trimmed.strip_prefix("https://").or_else(|| trimmed.strip_prefix("http://"));
        match (http, trimmed.strip_prefix("file://").map(PathBuf::from)) {
            (Some(rest), _) if has_host(rest) => Ok(Mirror::Http(trimmed.to_string())),
            (None, Some(dir)) if dir.is_absolute() => Ok(Mirror::Dir(dir)),
            (Some(_) | None, Some(_) | None) => Err(BinaryError::BadMirror { text: text.to_string() }),
        }
    }
}

impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mirror::Public => f.write_str("dl.k8s.io and github.com/etcd-io/etcd"),
            Mirror::Http(url) => f.write_str(url),
            Mirror::Dir(dir) => write!(f, "{}", dir.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_a_url_or_an_absolute_path_as_a_url() {
        let parse = |text: &str| text.parse::<Mirror>();
        assert_eq!(
            parse("https://mirror.example/k8s/").unwrap(),
            Mirror::Http("https://mirror.example/k8s".to_string())
        );
        assert_eq!(parse("file:///srv/k8s").unwrap(), Mirror::Dir(PathBuf::from("/srv/k8s")));
        for text in ["", "/srv/k8s", "file://srv/k8s", "http://", "http:///x", "ftp://mirror.example"] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains("file:///"), "`{text}`: {message}");
        }
    }
}
