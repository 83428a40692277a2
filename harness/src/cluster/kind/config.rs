//! The configuration of a cluster, from the templates in `kind-configs`.

use super::releases::KubeadmApi;
use crate::gates::Gate;
use crate::server::{ServerSpec, SpecError};
use crate::version::Minor;
use ipnet::IpNet;

const CLUSTER: &str = include_str!("../../../../kind-configs/cluster.yaml");
const NODE: &str = include_str!("../../../../kind-configs/node.yaml");

/// A cluster of equal nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Control-plane nodes.
    pub nodes: usize,
    /// The image of every node.
    pub image: String,
    /// What every kube-apiserver starts as; its version is that of the image.
    pub spec: ServerSpec,
    /// The configuration that this kind writes for this Kubernetes.
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
///
/// # Errors
/// A specification that no release would start.
pub fn render(config: &ClusterConfig) -> Result<String, SpecError> {
    let families = Families::of(&config.spec.service_ranges);
    let mut etcd = vec![("unsafe-no-fsync", "true".to_string())];
    if families.is_v6_first() {
        // Published ports lead to the IPv4 address of a node, on which kubeadm would not let etcd listen.
        etcd.push(("listen-client-urls", "https://[::]:2379".into()));
    }
    let node = NODE.replace("@IMAGE@", &config.image);
    let text = CLUSTER
        .replace("@IP_FAMILY@", families.kind_name())
        .replace("@SERVICE_SUBNET@", &config.spec.ranges_flag())
        .replace("@NODES@", vec![node.trim_end(); config.nodes].join("\n").as_str())
        .replace("@KUBEADM_API@", config.kubeadm.api_version())
        .replace("@APISERVER_ARGS@", &extra_args(config.kubeadm, 6, &apiserver_args(&config.spec)))
        .replace("@CONTROLLER_MANAGER_ARGS@", &extra_args(config.kubeadm, 6, &controller_manager_args(&config.spec)?))
        .replace("@ETCD_ARGS@", &extra_args(config.kubeadm, 8, &etcd));
    let (_, body) = text.split_once('\n').expect("the template must have lines");
    Ok(body.to_string())
}

/// The flags of a specification that kubeadm does not write itself.
fn apiserver_args(spec: &ServerSpec) -> Vec<(&'static str, String)> {
    // The recording needs every revision from 1 on.
    let mut args = vec![("etcd-compaction-interval", "0".to_string())];
    args.extend(spec_flags(spec).into_iter().filter(|(name, _)| *name != "service-cluster-ip-range"));
    args
}

/// The flags that make a kube-apiserver what its specification says, without the dashes.
pub(super) fn spec_flags(spec: &ServerSpec) -> Vec<(&'static str, String)> {
    let mut flags = Vec::new();
    if let Some(minor) = spec.emulated {
        flags.push(("emulated-version", minor.to_string()));
    }
    if !spec.gates.is_empty() {
        flags.push(("feature-gates", spec.gates.to_string()));
    }
    if !spec.runtime_config.is_empty() {
        let entries: Vec<String> = spec.runtime_config.iter().map(|(api, value)| format!("{api}={value}")).collect();
        flags.push(("runtime-config", entries.join(",")));
    }
    flags.push(("service-cluster-ip-range", spec.ranges_flag()));
    flags
}

/// A flag of a specification that a command line does not have, or has twice.
pub(super) fn missing_flag(spec: &ServerSpec, command: &[String]) -> Option<String> {
    spec_flags(spec).into_iter().find_map(|(name, value)| {
        let (start, planned) = (format!("--{name}="), format!("--{name}={value}"));
        let said: Vec<&String> = command.iter().filter(|arg| arg.starts_with(&start)).collect();
        (said != [&planned]).then_some(planned)
    })
}

/// While the cluster is made its controller manager signs certificates and tokens; it keeps away from ServiceCIDRs, which
/// only the one that a scenario starts may touch.
fn controller_manager_args(spec: &ServerSpec) -> Result<Vec<(&'static str, String)>, SpecError> {
    let mut args = vec![("controllers", "*,bootstrapsigner,tokencleaner,-service-cidr-controller".to_string())];
    args.extend(controller_manager_gates(spec)?.map(|gates| ("feature-gates", gates)));
    Ok(args)
}

/// Up to 1.33 the controller manager must follow its apiserver; from 1.34 on the gate is locked.
pub(super) fn controller_manager_gates(spec: &ServerSpec) -> Result<Option<String>, SpecError> {
    let gate = Gate::MultiCidrServiceAllocator;
    let value = spec.effective_gates()?[&gate];
    Ok((spec.version.minor < Minor(34)).then(|| format!("{gate}={value}")))
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
    use crate::combo;
    use crate::gates::AllocatorMode;
    use serde_json::Value;

    fn rendered(nodes: usize, families: Families, kubeadm: KubeadmApi) -> Value {
        let spec = combo::v1_33(AllocatorMode::Bitmap).ranges(&families.ranges());
        let config = ClusterConfig { nodes, image: "skewlab/node:v1.33.13".into(), spec, kubeadm };
        let text = render(&config).unwrap();
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
        assert_eq!(old[0]["apiServer"]["extraArgs"]["feature-gates"], "MultiCIDRServiceAllocator=false");
        assert_eq!(old[0]["apiServer"]["extraArgs"]["etcd-compaction-interval"], "0");
        let new = patches(&rendered(2, Families::V4, KubeadmApi::V1Beta4));
        assert_eq!(new[0]["apiVersion"], "kubeadm.k8s.io/v1beta4");
        assert_eq!(new[0]["etcd"]["local"]["extraArgs"][0]["name"], "unsafe-no-fsync");
    }

    #[test]
    fn a_flag_that_a_server_was_not_given_is_missing() {
        let spec = combo::v1_33(AllocatorMode::Bitmap);
        let command = |flags: &[&str]| flags.iter().map(|flag| flag.to_string()).collect::<Vec<_>>();
        let (gates, range) =
            ("--feature-gates=MultiCIDRServiceAllocator=false", "--service-cluster-ip-range=10.0.0.0/16");
        assert_eq!(missing_flag(&spec, &command(&["kube-apiserver", range, gates, "--runtime-config="])), None);
        assert_eq!(missing_flag(&spec, &command(&[range])), Some(gates.to_string()));
        assert_eq!(missing_flag(&spec, &command(&[range, gates, "--feature-gates=A=true"])), Some(gates.to_string()));
    }

    #[test]
    fn etcd_of_a_cluster_with_ipv6_first_listens_where_its_port_leads() {
        let etcd = |families| patches(&rendered(1, families, KubeadmApi::V1Beta3))[0]["etcd"]["local"].clone();
        assert_eq!(etcd(Families::DualV6)["extraArgs"]["listen-client-urls"], "https://[::]:2379");
        assert!(etcd(Families::DualV4)["extraArgs"].get("listen-client-urls").is_none());
    }
}
