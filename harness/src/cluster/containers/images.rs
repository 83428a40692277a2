//! Names of the images that containers run from.

use super::ContainerError;
use crate::binaries::{ToolVersion, Wanted};
use crate::version::KubeVersion;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where Kubernetes publishes its images.
pub const PUBLIC: &str = "registry.k8s.io";
/// The environment variable that names another registry, with a path before the component if there is one.
pub const PREFIX_VARIABLE: &str = "SKEWLAB_IMAGES";
/// The tag of etcd 3.6 that kubeadm 1.36 takes (`DefaultEtcdVersion` in its constants): tags of etcd's image have a
/// revision of their own, and not every patch has one.
const PUBLISHED_ETCD: &str = "3.6.8-0";

/// The images of a run by component and version: `kube-apiserver-v1.33.13`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Images(pub BTreeMap<String, String>);

impl Images {
    /// The image of a component of Kubernetes.
    ///
    /// # Errors
    /// The run has none.
    pub fn of(&self, component: &str, version: KubeVersion) -> Result<&str, ContainerError> {
        self.named(&format!("{component}-{version}"))
    }

    /// The image of etcd.
    ///
    /// # Errors
    /// The run has none.
    pub fn etcd(&self) -> Result<&str, ContainerError> {
        self.named(&Wanted::Etcd(ToolVersion::ETCD).file_name())
    }

    fn named(&self, name: &str) -> Result<&str, ContainerError> {
        self.0.get(name).map(String::as_str).ok_or_else(|| ContainerError::NoImage { name: name.into() })
    }
}

/// The name under which a component is published below a prefix, in the same version; etcd in the same minor.
pub fn published(prefix: &str, wanted: Wanted) -> String {
    let tag = match wanted {
        Wanted::Etcd(_) => PUBLISHED_ETCD.to_string(),
        Wanted::Kube(..) | Wanted::Crictl(_) | Wanted::Kind(_) => wanted.version(),
    };
    format!("{}/{}:{tag}", prefix.trim_end_matches('/'), wanted.name())
}

/// The name of an image that is made here from a binary.
pub fn made_here(wanted: Wanted) -> String {
    format!("skewlab/{}:{}", wanted.name(), wanted.version())
}

/// The registry and path of the images, if the environment names one.
pub fn prefix() -> Option<String> {
    std::env::var(PREFIX_VARIABLE).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binaries::KubeComponent;

    const APISERVER: Wanted = Wanted::Kube(KubeComponent::Apiserver, KubeVersion::new(33, 13));

    #[test]
    fn images_have_the_names_that_kubernetes_publishes_below_any_prefix() {
        assert_eq!(published(PUBLIC, APISERVER), "registry.k8s.io/kube-apiserver:v1.33.13");
        assert_eq!(published("r.example:5000/k8s/", APISERVER), "r.example:5000/k8s/kube-apiserver:v1.33.13");
        assert_eq!(published(PUBLIC, Wanted::Etcd(ToolVersion::ETCD)), "registry.k8s.io/etcd:3.6.8-0");
        assert_eq!(made_here(APISERVER), "skewlab/kube-apiserver:v1.33.13");
    }

    #[test]
    fn the_published_etcd_is_of_the_minor_that_processes_run() {
        let ToolVersion { major, minor, .. } = ToolVersion::ETCD;
        assert!(PUBLISHED_ETCD.starts_with(&format!("{major}.{minor}.")));
    }

    #[test]
    fn an_image_that_the_plan_did_not_bring_is_named_in_the_error() {
        let images = Images([("kube-apiserver-v1.33.13".to_string(), made_here(APISERVER))].into());
        assert_eq!(images.of("kube-apiserver", KubeVersion::new(33, 13)).unwrap(), "skewlab/kube-apiserver:v1.33.13");
        assert_eq!(images.etcd().unwrap_err().to_string(), "no image of etcd-v3.6.16 in this run");
    }
}
