//! Which image the nodes of a run get. Nodes of one version serve every combo: their kubelets run alone and never talk to
//! an apiserver, so that the servers in them may be of any version.

use super::releases::Release;
use crate::version::KubeVersion;
use serde::{Deserialize, Serialize};

/// Where images lie that [`super::node_image`] has built.
const BUILT_HERE: &str = "skewlab/node";
/// Where the images of kind's releases lie.
const STOCK: &str = "kindest/node";

/// The image of every node of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeImage {
    /// Its name for the engine.
    pub name: String,
    /// The Kubernetes in it.
    pub version: KubeVersion,
}

impl NodeImage {
    /// The image that is built here for hosts that reach no registry.
    pub fn built_here(version: KubeVersion) -> NodeImage {
        NodeImage { name: format!("{BUILT_HERE}:{version}"), version }
    }

    /// The default image of a release of kind.
    pub fn stock(release: Release) -> NodeImage {
        NodeImage { name: format!("{STOCK}:{}", release.node), version: release.node }
    }

    /// An image by its name; `None` for one of something else. Engines put a registry before the name.
    pub fn parse(name: &str) -> Option<NodeImage> {
        let (repository, tag) = name.rsplit_once(':')?;
        let is_node = [BUILT_HERE, STOCK]
            .into_iter()
            .any(|known| repository.strip_suffix(known).is_some_and(|host| host.is_empty() || host.ends_with('/')));
        let version = tag.parse().ok().filter(|_| is_node)?;
        Some(NodeImage { name: name.into(), version })
    }
}

/// The image for the nodes of a run, out of those that the engine has: the newest that is not newer than the oldest server
/// of the run, as a kubelet should be; else the oldest there is. Without any it is the default of kind, to be pulled.
pub fn choose(images: &[String], oldest: KubeVersion, release: Release) -> NodeImage {
    let mut there: Vec<NodeImage> = images.iter().filter_map(|name| NodeImage::parse(name)).collect();
    there.retain(|image| release.kubeadm_api(image.version.minor).is_ok());
    // Of one version the one that was built here: what kind publishes does not start on every host.
    there.sort_by_key(|image| (image.version, image.name.contains(BUILT_HERE)));
    let not_newer = there.iter().rfind(|image| image.version <= oldest);
    not_newer.or(there.first()).cloned().unwrap_or_else(|| NodeImage::stock(release))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binaries::ToolVersion;
    use crate::cluster::kind::releases::release;

    fn chosen(images: &[&str], oldest: (u16, u16)) -> String {
        let images: Vec<String> = images.iter().map(ToString::to_string).collect();
        choose(&images, KubeVersion::new(oldest.0, oldest.1), release(ToolVersion::KIND).unwrap()).name
    }

    #[test]
    fn a_node_is_not_newer_than_its_servers_where_there_is_such_an_image() {
        let images = ["skewlab/node:v1.32.13", "kindest/node:v1.33.4", "skewlab/node:v1.34.4", "debian:13"];
        assert_eq!(chosen(&images, (33, 13)), "kindest/node:v1.33.4");
        assert_eq!(chosen(&images, (31, 14)), "skewlab/node:v1.32.13");
        assert_eq!(chosen(&images, (36, 3)), "skewlab/node:v1.34.4");
    }

    #[test]
    fn without_an_image_it_is_the_one_that_kind_would_take() {
        assert_eq!(chosen(&["debian:13", "somebody/node:v1.33.1"], (33, 13)), "kindest/node:v1.34.0");
    }

    #[test]
    fn an_image_that_this_kind_cannot_create_nodes_of_is_passed_over() {
        assert_eq!(chosen(&["skewlab/node:v1.37.2"], (37, 2)), "kindest/node:v1.34.0");
    }

    #[test]
    fn engines_that_name_a_registry_mean_the_same_images() {
        for name in ["docker.io/kindest/node:v1.33.1", "localhost/skewlab/node:v1.33.1", "kindest/node:v1.33.1"] {
            assert_eq!(NodeImage::parse(name).unwrap().version, KubeVersion::new(33, 1), "{name}");
        }
        assert_eq!(NodeImage::parse("notkindest/node:v1.33.1"), None);
        assert_eq!(NodeImage::parse("kindest/node:latest"), None);
    }
}
