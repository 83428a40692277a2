//! The configuration of a cluster, from the templates in `kind-configs`.

use super::nodes::NodeImage;
use super::releases::KubeadmApi;
use ipnet::IpNet;

const CLUSTER: &str = include_str!("../../../../kind-configs/cluster.yaml");
const NODE: &str = include_str!("../../../../kind-configs/node.yaml");

/// A cluster of equal nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Control-plane nodes.
    pub nodes: usize,
    /// The image of every node.
    pub image: NodeImage,
    /// The families of its Services.
    pub families: Families,
    /// The configuration that this kind writes for the Kubernetes of the image.
    pub kubeadm: KubeadmApi,
}

/// The address families of the services of a cluster, the primary one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Both, IPv4 first.
    DualV4,
    /// Both, IPv6 first.
    DualV6,
}

impl Families {
    /// All of them.
    pub const ALL: [Families; 4] = [Families::V4, Families::V6, Families::DualV4, Families::DualV6];

    /// Those of service ranges.
    pub fn of(ranges: &[IpNet]) -> Families {
        match ranges {
            [IpNet::V6(_)] => Families::V6,
            [IpNet::V4(_), _, ..] => Families::DualV4,
            [IpNet::V6(_), _, ..] => Families::DualV6,
            [] | [IpNet::V4(_)] => Families::V4,
        }
    }

    /// The last part of the name of a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Families::V4 => "v4",
            Families::V6 => "v6",
            Families::DualV4 => "v4-v6",
            Families::DualV6 => "v6-v4",
        }
    }

    /// Service ranges of a cluster that needs no particular ones.
    pub fn ranges(self) -> Vec<IpNet> {
        let (v4, v6) = ("10.0.0.0/16", "fd00:10::/112");
        let texts = match self {
            Families::V4 => vec![v4],
            Families::V6 => vec![v6],
            Families::DualV4 => vec![v4, v6],
            Families::DualV6 => vec![v6, v4],
        };
        texts.into_iter().map(|text| text.parse().expect("a range of the table must be a CIDR")).collect()
    }

    fn kind_name(self) -> &'static str {
        match self {
            Families::V4 => "ipv4",
            Families::V6 => "ipv6",
            Families::DualV4 | Families::DualV6 => "dual",
        }
    }

    fn is_v6_first(self) -> bool {
        match self {
            Families::V6 | Families::DualV6 => true,
            Families::V4 | Families::DualV4 => false,
        }
    }
}

/// Every configuration with a name: number of control planes and families, such as `2-v4` or `3-v6-v4`.
pub fn names() -> Vec<(String, usize, Families)> {
    let shapes = (1..=3).flat_map(|nodes| Families::ALL.map(|families| (nodes, families)));
    shapes.map(|(nodes, families)| (format!("{nodes}-{}", families.name()), nodes, families)).collect()
}

/// The text that `kind create cluster --config` reads.
pub fn render(config: &ClusterConfig) -> String {
    let ClusterConfig { nodes, image, families, kubeadm } = config;
    // The recording needs every revision.
    let apiserver = [("etcd-compaction-interval", "0".to_string())];
    let mut etcd = vec![("unsafe-no-fsync", "true".to_string())];
    if families.is_v6_first() {
        // Published ports lead to the IPv4 address of a node, on which kubeadm would not let etcd listen.
        etcd.push(("listen-client-urls", "https://[::]:2379".into()));
    }
    let ranges: Vec<String> = families.ranges().iter().map(ToString::to_string).collect();
    let node = NODE.replace("@IMAGE@", &image.name);
    let text = CLUSTER
        .replace("@IP_FAMILY@", families.kind_name())
        .replace("@SERVICE_SUBNET@", &ranges.join(","))
        .replace("@NODES@", vec![node.trim_end(); *nodes].join("\n").as_str())
        .replace("@KUBEADM_API@", kubeadm.api_version())
        .replace("@APISERVER_ARGS@", &extra_args(*kubeadm, 6, &apiserver))
        .replace("@ETCD_ARGS@", &extra_args(*kubeadm, 8, &etcd));
    let (_, body) = text.split_once('\n').expect("the template must have lines");
    body.to_string()
}

fn extra_args(api: KubeadmApi, indent: usize, args: &[(&str, String)]) -> String {
    let space = " ".repeat(indent);
    let lines = args.iter().map(|(name, value)| match api {
        KubeadmApi::V1Beta3 => format!("{space}{name}: \"{value}\""),
        KubeadmApi::V1Beta4 => format!("{space}- name: {name}\n{space}  value: \"{value}\""),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::KubeVersion;
    use serde_json::Value;

    fn rendered(nodes: usize, families: Families, kubeadm: KubeadmApi) -> Value {
        let image = NodeImage::built_here(KubeVersion::new(33, 13));
        let text = render(&ClusterConfig { nodes, image, families, kubeadm });
        assert!(!text.contains('@'), "{text}");
        serde_saphyr::from_str(&text).unwrap()
    }

    fn patches(config: &Value) -> Vec<Value> {
        let patches = config["kubeadmConfigPatches"].as_array().unwrap();
        patches.iter().map(|patch| serde_saphyr::from_str(patch.as_str().unwrap()).unwrap()).collect()
    }

    #[test]
    fn every_named_configuration_has_its_nodes_and_families() {
        assert_eq!(names().len(), 12);
        for (name, nodes, families) in names() {
            let config = rendered(nodes, families, KubeadmApi::V1Beta3);
            assert_eq!(config["nodes"].as_array().unwrap().len(), nodes, "{name}");
            let subnet = config["networking"]["serviceSubnet"].as_str().unwrap();
            assert_eq!(subnet.contains(','), config["networking"]["ipFamily"] == "dual", "{name}");
            assert_eq!(Families::of(&families.ranges()), families);
        }
    }

    #[test]
    fn extra_arguments_have_the_form_of_the_kubeadm_version() {
        let old = patches(&rendered(2, Families::V4, KubeadmApi::V1Beta3));
        assert_eq!(old[0]["apiServer"]["extraArgs"]["etcd-compaction-interval"], "0");
        let new = patches(&rendered(2, Families::V4, KubeadmApi::V1Beta4));
        assert_eq!(new[0]["apiVersion"], "kubeadm.k8s.io/v1beta4");
        assert_eq!(new[0]["etcd"]["local"]["extraArgs"][0]["name"], "unsafe-no-fsync");
    }

    #[test]
    fn etcd_of_a_cluster_with_ipv6_first_listens_where_its_port_leads() {
        let etcd = |families| patches(&rendered(1, families, KubeadmApi::V1Beta3))[0]["etcd"]["local"].clone();
        assert_eq!(etcd(Families::DualV6)["extraArgs"]["listen-client-urls"], "https://[::]:2379");
        assert!(etcd(Families::DualV4)["extraArgs"].get("listen-client-urls").is_none());
    }
}
