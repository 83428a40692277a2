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
    /// kube-scheduler.
    Scheduler,
    /// kubelet.
    Kubelet,
    /// kubeadm.
    Kubeadm,
    /// kubectl.
    Kubectl,
}

impl KubeComponent {
    /// What runs as processes of this host.
    pub const SERVERS: [KubeComponent; 2] = [KubeComponent::Apiserver, KubeComponent::ControllerManager];
    /// What a kind node needs of one release.
    pub const ALL: [KubeComponent; 6] = [
        KubeComponent::Apiserver,
        KubeComponent::ControllerManager,
        KubeComponent::Scheduler,
        KubeComponent::Kubelet,
        KubeComponent::Kubeadm,
        KubeComponent::Kubectl,
    ];

    /// The name of the binary, of its folder under `cmd/` and of its file on dl.k8s.io.
    pub fn name(self) -> &'static str {
        match self {
            KubeComponent::Apiserver => "kube-apiserver",
            KubeComponent::ControllerManager => "kube-controller-manager",
            KubeComponent::Scheduler => "kube-scheduler",
            KubeComponent::Kubelet => "kubelet",
            KubeComponent::Kubeadm => "kubeadm",
            KubeComponent::Kubectl => "kubectl",
        }
    }
}

impl fmt::Display for KubeComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The exact version of what is not a part of Kubernetes, such as etcd `v3.6.16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolVersion {
    /// The `3`.
    pub major: u16,
    /// The `6`.
    pub minor: u16,
    /// The `16`.
    pub patch: u16,
}

impl ToolVersion {
    /// The one etcd of all control planes.
    pub const ETCD: ToolVersion = ToolVersion::new(3, 6, 16);
    /// The crictl of node images.
    pub const CRICTL: ToolVersion = ToolVersion::new(1, 34, 0);
    /// The kind taken where none is on PATH.
    pub const KIND: ToolVersion = ToolVersion::new(0, 30, 0);

    /// `v<major>.<minor>.<patch>`.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        ToolVersion { major, minor, patch }
    }

    /// As the tools print it: without the `v`.
    fn bare(self) -> String {
        format!("{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl fmt::Display for ToolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.bare())
    }
}

impl FromStr for ToolVersion {
    type Err = ToolVersionError;
    fn from_str(text: &str) -> Result<Self, ToolVersionError> {
        let bad = || ToolVersionError { text: text.to_string() };
        let number = |part: &str| -> Result<u16, ToolVersionError> {
            let digits = part.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| part.parse().ok()).flatten().ok_or_else(bad)
        };
        let parts: Vec<&str> = text.strip_prefix('v').unwrap_or(text).split('.').collect();
        let [major, minor, patch] = parts.as_slice() else { return Err(bad()) };
        Ok(ToolVersion::new(number(major)?, number(minor)?, number(patch)?))
    }
}

/// Text that is not a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an exact version such as {}", ToolVersion::ETCD)]
pub struct ToolVersionError {
    /// What was given.
    pub text: String,
}

/// One binary that is wanted: what and which version exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wanted {
    /// etcd.
    Etcd(ToolVersion),
    /// A component of Kubernetes.
    Kube(KubeComponent, KubeVersion),
    /// crictl, the client of the container runtime in a node.
    Crictl(ToolVersion),
    /// kind.
    Kind(ToolVersion),
}

impl Wanted {
    /// The name of the binary, without a version.
    pub fn name(self) -> &'static str {
        match self {
            Wanted::Etcd(_) => "etcd",
            Wanted::Kube(component, _) => component.name(),
            Wanted::Crictl(_) => "crictl",
            Wanted::Kind(_) => "kind",
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
            Wanted::Crictl(version) => Release::CriTools(version),
            Wanted::Kind(version) => Release::Kind(version),
        }
    }

    /// The arguments that make the binary print its version, and the first line it prints then.
    pub(super) fn version_question(self) -> (&'static [&'static str], String) {
        const FLAG: &[&str] = &["--version"];
        match self {
            Wanted::Etcd(version) => (FLAG, format!("etcd Version: {}", version.bare())),
            Wanted::Crictl(version) => (FLAG, format!("crictl version {}", version.bare())),
            Wanted::Kind(version) => (FLAG, format!("kind version {}", version.bare())),
            Wanted::Kube(KubeComponent::Kubeadm, version) => (&["version", "-o", "short"], version.to_string()),
            Wanted::Kube(KubeComponent::Kubectl, version) => {
                (&["version", "--client"], format!("Client Version: {version}"))
            }
            Wanted::Kube(
                KubeComponent::Apiserver
                | KubeComponent::ControllerManager
                | KubeComponent::Scheduler
                | KubeComponent::Kubelet,
                version,
            ) => (FLAG, format!("Kubernetes {version}")),
        }
    }

    /// The Go package of its `main`.
    pub(super) fn go_package(self) -> String {
        match self {
            Wanted::Etcd(_) => "go.etcd.io/etcd/server/v3".to_string(),
            Wanted::Kube(component, _) => format!("k8s.io/kubernetes/cmd/{component}"),
            Wanted::Crictl(_) => "sigs.k8s.io/cri-tools/cmd/crictl".to_string(),
            Wanted::Kind(_) => "sigs.k8s.io/kind".to_string(),
        }
    }

    /// Whether the module proxy is known to build it. What is not known may build all the same: another proxy has other
    /// modules.
    pub(super) fn is_known_to_build(self) -> bool {
        match self {
            Wanted::Etcd(version) => version == ToolVersion::ETCD,
            Wanted::Crictl(version) => version == ToolVersion::CRICTL,
            Wanted::Kind(version) => version == ToolVersion::KIND,
            Wanted::Kube(component, version) => {
                KNOWN.iter().any(|row| row.version == version && row.components.contains(&component))
            }
        }
    }

    /// The same binary in a version that the module proxy is known to build, the same minor before any other.
    pub fn buildable_instead(self) -> Option<Wanted> {
        let default = match self {
            Wanted::Etcd(_) => Wanted::Etcd(ToolVersion::ETCD),
            Wanted::Crictl(_) => Wanted::Crictl(ToolVersion::CRICTL),
            Wanted::Kind(_) => Wanted::Kind(ToolVersion::KIND),
            Wanted::Kube(component, version) => {
                let others = KNOWN.iter().filter(|row| row.components.contains(&component) && row.version != version);
                let nearest = others.min_by_key(|row| row.version.minor.0.abs_diff(version.minor.0));
                return nearest.map(|row| Wanted::Kube(component, row.version));
            }
        };
        (self != default).then_some(default)
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
    Etcd(ToolVersion),
    /// A release of Kubernetes, all its components.
    Kubernetes(KubeVersion),
    /// A release of cri-tools.
    CriTools(ToolVersion),
    /// A release of kind.
    Kind(ToolVersion),
}

impl Release {
    /// The version with its `v`.
    pub(super) fn version(self) -> String {
        match self {
            Release::Etcd(version) | Release::CriTools(version) | Release::Kind(version) => version.to_string(),
            Release::Kubernetes(version) => version.to_string(),
        }
    }

    /// The Go module that the release is built from.
    pub(super) fn go_module(self) -> &'static str {
        match self {
            Release::Etcd(_) => "go.etcd.io/etcd/server/v3",
            Release::Kubernetes(_) => "k8s.io/kubernetes",
            Release::CriTools(_) => "sigs.k8s.io/cri-tools",
            Release::Kind(_) => "sigs.k8s.io/kind",
        }
    }

    /// `kubernetes-v1.33.13`: the stem of its lock and scratch folders.
    pub(super) fn stem(self) -> String {
        let project = match self {
            Release::Etcd(_) => "etcd",
            Release::Kubernetes(_) => "kubernetes",
            Release::CriTools(_) => "cri-tools",
            Release::Kind(_) => "kind",
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
        let etcd = Wanted::Etcd(ToolVersion::new(3, 4, 1));
        assert_eq!(etcd.buildable_instead(), Some(Wanted::Etcd(ToolVersion::ETCD)));
        assert_eq!(Wanted::Etcd(ToolVersion::ETCD).buildable_instead(), None);
    }

    #[test]
    fn a_version_survives_printing_and_parsing() {
        assert_eq!("v3.6.16".parse(), Ok(ToolVersion::ETCD));
        assert_eq!(ToolVersion::ETCD.to_string().parse(), Ok(ToolVersion::ETCD));
        for text in ["", "3.6", "3.6.x", "3.6.+1", "3.6.1.2", "3.6.1-rc.1"] {
            assert!(text.parse::<ToolVersion>().unwrap_err().to_string().contains("v3.6.16"));
        }
    }
}
