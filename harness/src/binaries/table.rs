//! Which binaries there are, and which patch of each minor is taken when none is named.

use crate::version::{KubeVersion, Minor};
use std::fmt;
use std::str::FromStr;

/// A component of Kubernetes that is a binary of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KubeComponent {
    /// kube-apiserver.
    Apiserver,
    /// kube-controller-manager.
    ControllerManager,
}

impl KubeComponent {
    /// Every component skewlab runs.
    pub const ALL: [KubeComponent; 2] = [KubeComponent::Apiserver, KubeComponent::ControllerManager];

    /// The name of the binary, of its folder under `cmd/` and of its file on dl.k8s.io.
    pub fn name(self) -> &'static str {
        match self {
            KubeComponent::Apiserver => "kube-apiserver",
            KubeComponent::ControllerManager => "kube-controller-manager",
        }
    }
}

impl fmt::Display for KubeComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The exact version of etcd, such as `v3.6.16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtcdVersion {
    /// The `3`.
    pub major: u16,
    /// The `6`.
    pub minor: u16,
    /// The `16`.
    pub patch: u16,
}

impl EtcdVersion {
    /// The version taken when none is named.
    pub const DEFAULT: EtcdVersion = EtcdVersion { major: 3, minor: 6, patch: 16 };
}

impl fmt::Display for EtcdVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for EtcdVersion {
    type Err = EtcdVersionError;
    fn from_str(text: &str) -> Result<Self, EtcdVersionError> {
        let bad = || EtcdVersionError { text: text.to_string() };
        let number = |part: &str| -> Result<u16, EtcdVersionError> {
            let digits = part.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| part.parse().ok()).flatten().ok_or_else(bad)
        };
        let parts: Vec<&str> = text.strip_prefix('v').unwrap_or(text).split('.').collect();
        let [major, minor, patch] = parts.as_slice() else { return Err(bad()) };
        Ok(EtcdVersion { major: number(major)?, minor: number(minor)?, patch: number(patch)? })
    }
}

/// Text that is not an etcd version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an exact etcd version such as {}", EtcdVersion::DEFAULT)]
pub struct EtcdVersionError {
    /// What was given.
    pub text: String,
}

/// One binary that is wanted: what and which version exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wanted {
    /// etcd.
    Etcd(EtcdVersion),
    /// A component of Kubernetes.
    Kube(KubeComponent, KubeVersion),
}

impl Wanted {
    /// The name of the binary, without a version.
    pub fn name(self) -> &'static str {
        match self {
            Wanted::Etcd(_) => "etcd",
            Wanted::Kube(component, _) => component.name(),
        }
    }

    /// The version with its `v`.
    pub fn version(self) -> String {
        self.release().version()
    }

    /// The name of the file in the cache: `kube-apiserver-v1.33.13`.
    pub fn file_name(self) -> String {
        format!("{}-{}", self.name(), self.version())
    }

    /// What the binary is published and built together with.
    pub(super) fn release(self) -> Release {
        match self {
            Wanted::Etcd(version) => Release::Etcd(version),
            Wanted::Kube(_, version) => Release::Kubernetes(version),
        }
    }

    /// The first line that the binary prints for `--version`.
    pub(super) fn version_line(self) -> String {
        match self {
            Wanted::Etcd(version) => format!("etcd Version: {}", version.to_string().trim_start_matches('v')),
            Wanted::Kube(KubeComponent::Apiserver | KubeComponent::ControllerManager, version) => {
                format!("Kubernetes {version}")
            }
        }
    }

    /// The Go package of its `main`.
    pub(super) fn go_package(self) -> String {
        match self {
            Wanted::Etcd(_) => "go.etcd.io/etcd/server/v3".to_string(),
            Wanted::Kube(component, _) => format!("k8s.io/kubernetes/cmd/{component}"),
        }
    }

    /// Whether the module proxy is known to build it. What is not known may build all the same: another proxy has other
    /// modules.
    pub(super) fn is_known_to_build(self) -> bool {
        match self {
            Wanted::Etcd(version) => version == EtcdVersion::DEFAULT,
            Wanted::Kube(component, version) => {
                KNOWN.iter().any(|row| row.version == version && row.components.contains(&component))
            }
        }
    }

    /// The same binary in a version that the module proxy is known to build, the same minor before any other.
    pub fn buildable_instead(self) -> Option<Wanted> {
        match self {
            Wanted::Etcd(version) => (version != EtcdVersion::DEFAULT).then_some(Wanted::Etcd(EtcdVersion::DEFAULT)),
            Wanted::Kube(component, version) => {
                let others = KNOWN.iter().filter(|row| row.components.contains(&component) && row.version != version);
                let nearest = others.min_by_key(|row| row.version.minor.0.abs_diff(version.minor.0));
                nearest.map(|row| Wanted::Kube(component, row.version))
            }
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.version())
    }
}

/// What is published, locked and built together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Release {
    /// A release of etcd.
    Etcd(EtcdVersion),
    /// A release of Kubernetes, all its components.
    Kubernetes(KubeVersion),
}

impl Release {
    /// The version with its `v`.
    pub(super) fn version(self) -> String {
        match self {
            Release::Etcd(version) => version.to_string(),
            Release::Kubernetes(version) => version.to_string(),
        }
    }

    /// The Go module that the release is built from.
    pub(super) fn go_module(self) -> &'static str {
        match self {
            Release::Etcd(_) => "go.etcd.io/etcd/server/v3",
            Release::Kubernetes(_) => "k8s.io/kubernetes",
        }
    }

    /// `kubernetes-v1.33.13`: the stem of its lock and scratch folders.
    pub(super) fn stem(self) -> String {
        let project = match self {
            Release::Etcd(_) => "etcd",
            Release::Kubernetes(_) => "kubernetes",
        };
        format!("{project}-{}", self.version())
    }
}

/// A patch release that is known to build from the Go module proxy, and the components that do.
struct Known {
    version: KubeVersion,
    components: &'static [KubeComponent],
}

impl Known {
    const fn new(minor: u16, patch: u16, components: &'static [KubeComponent]) -> Self {
        Known { version: KubeVersion::new(minor, patch), components }
    }
}

/// Tried with Go 1.26; the first row of a minor that has a component is that component's default. The proxy lacks some
/// of the staging modules of many other patches: of 1.31.14 it has those of kube-apiserver only, of 1.32.13 all but
/// those of kube-controller-manager.
const KNOWN: [Known; 9] = [
    Known::new(31, 14, &[KubeComponent::Apiserver]),
    Known::new(31, 0, &KubeComponent::ALL),
    Known::new(32, 13, &[KubeComponent::Apiserver]),
    Known::new(32, 2, &KubeComponent::ALL),
    Known::new(33, 13, &KubeComponent::ALL),
    Known::new(34, 4, &KubeComponent::ALL),
    Known::new(35, 4, &KubeComponent::ALL),
    Known::new(36, 3, &KubeComponent::ALL),
    Known::new(37, 2, &KubeComponent::ALL),
];

/// The patch of a minor that is taken when only the minor is named; `None` for a minor skewlab does not know.
pub fn default_version(component: KubeComponent, minor: Minor) -> Option<KubeVersion> {
    let of_minor = KNOWN.iter().filter(|row| row.version.minor == minor);
    of_minor.filter(|row| row.components.contains(&component)).map(|row| row.version).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_minor_has_a_default_patch_of_every_component() {
        let patches = |component| {
            let minors = (Minor::OLDEST.0..=Minor::NEWEST.0).map(Minor);
            minors.map(|minor| default_version(component, minor).unwrap().patch).collect::<Vec<_>>()
        };
        assert_eq!(patches(KubeComponent::Apiserver), [14, 13, 13, 4, 4, 3, 2]);
        assert_eq!(patches(KubeComponent::ControllerManager), [0, 2, 13, 4, 4, 3, 2]);
        assert_eq!(default_version(KubeComponent::Apiserver, Minor(30)), None);
    }

    #[test]
    fn a_version_that_cannot_be_built_has_the_nearest_one_that_can() {
        let instead = |component, minor, patch| {
            let wanted = Wanted::Kube(component, KubeVersion::new(minor, patch));
            wanted.buildable_instead().unwrap().version()
        };
        assert_eq!(instead(KubeComponent::Apiserver, 33, 6), "v1.33.13");
        assert_eq!(instead(KubeComponent::ControllerManager, 31, 14), "v1.31.0");
        assert_eq!(instead(KubeComponent::ControllerManager, 32, 13), "v1.32.2");
        assert_eq!(instead(KubeComponent::Apiserver, 29, 6), "v1.31.14");
        let etcd = Wanted::Etcd(EtcdVersion { major: 3, minor: 4, patch: 1 });
        assert_eq!(etcd.buildable_instead(), Some(Wanted::Etcd(EtcdVersion::DEFAULT)));
        assert_eq!(Wanted::Etcd(EtcdVersion::DEFAULT).buildable_instead(), None);
    }

    #[test]
    fn an_etcd_version_survives_printing_and_parsing() {
        assert_eq!("v3.6.16".parse(), Ok(EtcdVersion::DEFAULT));
        assert_eq!(EtcdVersion::DEFAULT.to_string().parse(), Ok(EtcdVersion::DEFAULT));
        for text in ["", "3.6", "3.6.x", "3.6.+1", "3.6.1.2", "3.6.1-rc.1"] {
            assert!(text.parse::<EtcdVersion>().unwrap_err().to_string().contains("v3.6.16"));
        }
    }
}
