//! What the releases of kind differ in, as far as it matters here.

use crate::binaries::ToolVersion;
use crate::version::{KubeVersion, Minor};

/// The minors of kind that are supported, `0.x`.
const RELEASES: [Release; 7] = [
    Release { minor: 27, node: KubeVersion::new(32, 2), balancer: HAPROXY_2023, newest: Minor(36), beta4_from: None },
    Release { minor: 28, node: KubeVersion::new(33, 1), balancer: HAPROXY_2023, newest: Minor(36), beta4_from: None },
    Release { minor: 29, node: KubeVersion::new(33, 1), balancer: HAPROXY_2023, newest: Minor(36), beta4_from: None },
    Release { minor: 30, node: KubeVersion::new(34, 0), balancer: HAPROXY_2023, newest: Minor(36), beta4_from: None },
    Release { minor: 31, node: KubeVersion::new(35, 0), balancer: HAPROXY_2025, newest: Minor(36), beta4_from: None },
    Release {
        minor: 32,
        node: KubeVersion::new(36, 1),
        balancer: ENVOY,
        newest: Minor(37),
        beta4_from: Some(Minor(36)),
    },
    Release {
        minor: 33,
        node: KubeVersion::new(37, 0),
        balancer: ENVOY,
        newest: Minor(37),
        beta4_from: Some(Minor(36)),
    },
];

const HAPROXY_2023: LoadBalancer = LoadBalancer::Haproxy("kindest/haproxy:v20230606-42a2262b");
const HAPROXY_2025: LoadBalancer = LoadBalancer::Haproxy("kindest/haproxy:v20251211-v0.29.0-alpha-100-g82a92c5d");
const ENVOY: LoadBalancer = LoadBalancer::Envoy("envoyproxy/envoy:v1.36.2");

/// One minor of kind (`pkg/apis/config/defaults/image.go`, `pkg/cluster/internal/loadbalancer`, and
/// `pkg/cluster/internal/kubeadm/config.go` of each).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The `30` of `0.30`.
    pub minor: u16,
    /// The Kubernetes of its default node image, `kindest/node:VERSION`.
    pub node: KubeVersion,
    /// What it puts before several control planes.
    pub balancer: LoadBalancer,
    /// The newest Kubernetes it can create: kubeadm 1.37 no longer reads the v1beta3 that kind up to 0.31 writes.
    pub newest: Minor,
    /// From this minor on it writes kubeadm's v1beta4, before it v1beta3.
    pub beta4_from: Option<Minor>,
}

/// The container before several control planes, by the image that kind asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadBalancer {
    /// HAProxy, with a configuration that kind writes and a hangup.
    Haproxy(&'static str),
    /// Envoy, with files that kind writes and Envoy watches.
    Envoy(&'static str),
}

impl LoadBalancer {
    /// The image.
    pub fn image(self) -> &'static str {
        match self {
            LoadBalancer::Haproxy(image) | LoadBalancer::Envoy(image) => image,
        }
    }
}

/// The version of kubeadm's configuration that a node is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeadmApi {
    /// Extra arguments are a map.
    V1Beta3,
    /// Extra arguments are a list of names and values.
    V1Beta4,
}

impl KubeadmApi {
    /// As `apiVersion` has it.
    pub fn api_version(self) -> &'static str {
        match self {
            KubeadmApi::V1Beta3 => "kubeadm.k8s.io/v1beta3",
            KubeadmApi::V1Beta4 => "kubeadm.k8s.io/v1beta4",
        }
    }
}

/// The row of a version of kind.
///
/// # Errors
/// A minor that is not in the table.
pub fn release(kind: ToolVersion) -> Result<Release, ReleaseError> {
    let row = RELEASES.iter().find(|row| kind.major == 0 && row.minor == kind.minor);
    row.copied().ok_or(ReleaseError::UnknownKind { kind })
}

/// The images of the HAProxy load balancers of all releases.
pub fn haproxy_images() -> Vec<&'static str> {
    let mut images: Vec<&str> = RELEASES
        .iter()
        .filter_map(|row| match row.balancer {
            LoadBalancer::Haproxy(image) => Some(image),
            LoadBalancer::Envoy(_) => None,
        })
        .collect();
    images.dedup();
    images
}

impl Release {
    /// The version of kubeadm's configuration that it writes for a node.
    ///
    /// # Errors
    /// It cannot create this Kubernetes.
    pub fn kubeadm_api(&self, kubernetes: Minor) -> Result<KubeadmApi, ReleaseError> {
        if kubernetes > self.newest {
            return Err(ReleaseError::TooNew { kind: self.minor, kubernetes });
        }
        Ok(match self.beta4_from {
            Some(first) if kubernetes >= first => KubeadmApi::V1Beta4,
            Some(_) | None => KubeadmApi::V1Beta3,
        })
    }
}

/// A kind that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// Not in the table.
    #[error("kind {kind} is not supported; supported are v0.{} to v0.{}", RELEASES[0].minor, RELEASES[RELEASES.len() - 1].minor)]
    UnknownKind {
        /// Its version.
        kind: ToolVersion,
    },
    /// It writes a configuration that this Kubernetes does not read.
    #[error(
        "kind v0.{kind} cannot create nodes of Kubernetes {kubernetes}: it writes kubeadm.k8s.io/v1beta3, which kubeadm \
         1.37 does not read; use kind v0.32 or newer"
    )]
    TooNew {
        /// The minor of kind.
        kind: u16,
        /// The minor of Kubernetes.
        kubernetes: Minor,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_release_has_its_own_row_and_creates_its_default_node() {
        for row in RELEASES {
            assert_eq!(release(ToolVersion::new(0, row.minor, 0)), Ok(row));
            row.kubeadm_api(row.node.minor).unwrap();
        }
        let message = release(ToolVersion::new(0, 26, 0)).unwrap_err().to_string();
        assert!(message.contains("v0.27 to v0.33"), "{message}");
    }

    #[test]
    fn the_version_of_the_configuration_follows_kind_and_kubernetes() {
        let api = |kind, kubernetes| release(ToolVersion::new(0, kind, 0)).unwrap().kubeadm_api(Minor(kubernetes));
        assert_eq!(api(30, 33), Ok(KubeadmApi::V1Beta3));
        assert_eq!(api(31, 36), Ok(KubeadmApi::V1Beta3));
        assert_eq!(api(32, 35), Ok(KubeadmApi::V1Beta3));
        assert_eq!(api(32, 36), Ok(KubeadmApi::V1Beta4));
        assert!(api(31, 37).unwrap_err().to_string().contains("use kind v0.32 or newer"));
    }

    #[test]
    fn both_generations_of_haproxy_are_known() {
        assert_eq!(haproxy_images().len(), 2);
    }
}
