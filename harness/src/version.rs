//! Kubernetes versions: the exact patch of a binary and the minor that decides its behavior.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A Kubernetes minor, the `33` of `1.33`. The major is always 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Minor(pub u16);

impl Minor {
    /// The oldest minor whose gates and allocators skewlab knows: 1.31 brought dual write (k/k PR 122047).
    pub const OLDEST: Minor = Minor(31);
    /// The newest minor whose gates and allocators skewlab knows.
    pub const NEWEST: Minor = Minor(37);

    /// Whether skewlab knows the feature gates of this minor.
    pub fn is_known(self) -> bool {
        (Self::OLDEST..=Self::NEWEST).contains(&self)
    }

    /// The oldest minor a binary of this minor may emulate, by KEP-4330: three minors back, never below 1.31, and a
    /// 1.31 binary emulates only itself (`ValidateKubeEffectiveVersion`).
    pub fn oldest_emulated(self) -> Minor {
        Minor(self.0.saturating_sub(3).max(Self::OLDEST.0).min(self.0))
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

impl From<Minor> for String {
    fn from(minor: Minor) -> String {
        minor.to_string()
    }
}

impl TryFrom<String> for Minor {
    type Error = VersionError;
    fn try_from(text: String) -> Result<Self, VersionError> {
        text.parse()
    }
}

impl FromStr for Minor {
    type Err = VersionError;
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let bad = || VersionError { text: text.to_string(), wanted: "a minor such as 1.33" };
        let rest = text.strip_prefix('v').unwrap_or(text).strip_prefix("1.").ok_or_else(bad)?;
        Ok(Minor(number(rest).ok_or_else(bad)?))
    }
}

/// The exact version of a Kubernetes binary, such as `v1.33.13`. Pre-releases are not modelled: what runs here are
/// releases, because a pre-release's gate table is not fixed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct KubeVersion {
    /// The minor.
    pub minor: Minor,
    /// The patch, the `13` of `1.33.13`.
    pub patch: u16,
}

impl KubeVersion {
    /// `v1.<minor>.<patch>`.
    pub const fn new(minor: u16, patch: u16) -> Self {
        KubeVersion { minor: Minor(minor), patch }
    }
}

impl fmt::Display for KubeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}", self.minor, self.patch)
    }
}

impl From<KubeVersion> for String {
    fn from(version: KubeVersion) -> String {
        version.to_string()
    }
}

impl TryFrom<String> for KubeVersion {
    type Error = VersionError;
    fn try_from(text: String) -> Result<Self, VersionError> {
        text.parse()
    }
}

impl FromStr for KubeVersion {
    type Err = VersionError;
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let bad = || VersionError { text: text.to_string(), wanted: "an exact version such as v1.33.13" };
        let rest = text.strip_prefix('v').unwrap_or(text).strip_prefix("1.").ok_or_else(bad)?;
        let (minor, patch) = rest.split_once('.').ok_or_else(bad)?;
        Ok(KubeVersion { minor: Minor(number(minor).ok_or_else(bad)?), patch: number(patch).ok_or_else(bad)? })
    }
}

/// Digits only: `u16::from_str` alone would take a leading plus sign.
fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Text that is not a Kubernetes version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {wanted}")]
pub struct VersionError {
    /// What was given.
    pub text: String,
    /// What was wanted, with an example.
    pub wanted: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_version_survives_printing_and_parsing(minor: u16, patch: u16) {
            let version = KubeVersion::new(minor, patch);
            prop_assert_eq!(version.to_string().parse::<KubeVersion>().unwrap(), version);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text: String) {
            let _ = text.parse::<KubeVersion>();
            let _ = text.parse::<Minor>();
        }
    }

    #[test]
    fn versions_order_by_number_not_by_text() {
        assert!(KubeVersion::new(33, 9) < KubeVersion::new(33, 13));
        assert!(KubeVersion::new(33, 13) < KubeVersion::new(34, 0));
    }

    #[test]
    fn a_version_that_is_not_exact_is_refused_with_an_example() {
        for text in ["", "1", "1.33", "v2.33.1", "1.33.x", "1.33.1-rc.1", "1.+3.1", "1.99999999.1"] {
            let error = text.parse::<KubeVersion>().unwrap_err();
            assert!(error.to_string().contains("v1.33.13"), "{error}");
        }
    }

    #[test]
    fn emulation_reaches_three_minors_back_and_stops_at_1_31() {
        let floor = |minor| Minor(minor).oldest_emulated().0;
        assert_eq!([31, 32, 33, 34, 35, 36, 37].map(floor), [31, 31, 31, 31, 32, 33, 34]);
    }
}
