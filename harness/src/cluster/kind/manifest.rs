//! Static pods: the manifests that kubeadm writes, changed into those of the servers that are planned.

use crate::cluster::flags::{ROLE_FLAGS, SPEC_FLAGS, role_flags, spec_flags};
use crate::server::{ServerSpec, SpecError};
use crate::version::KubeVersion;
use serde_json::{Value, json};

/// Says in a manifest which one of its place it is.
const ANNOTATION: &str = "skewlab.invalid/generation";

/// A manifest as kubeadm wrote it.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest(Value);

/// A manifest to be put into a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// The command line in it.
    pub command: Vec<String>,
}

impl Manifest {
    /// Reads one.
    ///
    /// # Errors
    /// Text that is no manifest of a pod with a command.
    pub fn parse(text: &str) -> Result<Manifest, ManifestError> {
        let value: Value = serde_saphyr::from_str(text).map_err(|error| ManifestError { why: error.to_string() })?;
        let manifest = Manifest(value);
        match manifest.command().is_empty() {
            false => Ok(manifest),
            true => Err(ManifestError { why: "its first container has no command".into() }),
        }
    }

    /// The command line of its container.
    pub fn command(&self) -> Vec<String> {
        let parts = self.0.pointer("/spec/containers/0/command").and_then(Value::as_array);
        parts.into_iter().flatten().filter_map(|part| part.as_str().map(str::to_string)).collect()
    }

    /// The manifest of a kube-apiserver as specified, the `generation`th in its place.
    pub fn apiserver(&self, spec: &ServerSpec, generation: u64) -> Rendered {
        // Every other flag stays as kubeadm wrote it.
        let kept = self.command().into_iter().filter(|arg| !is_flag_of(arg, &SPEC_FLAGS));
        self.rendered("kube-apiserver", spec.version, kept.chain(spec_flags(spec)).collect(), generation)
    }

    /// The manifest of a kube-controller-manager with the ServiceCIDR and namespace controllers only, for the server of
    /// its node.
    ///
    /// # Errors
    /// A server that no release would start.
    pub fn controller_manager(
        &self,
        version: KubeVersion,
        server: &ServerSpec,
        generation: u64,
    ) -> Result<Rendered, SpecError> {
        let kept = self.command().into_iter().filter(|arg| !is_flag_of(arg, &ROLE_FLAGS));
        let command = kept.chain(role_flags(version, server)?).collect();
        Ok(self.rendered("kube-controller-manager", version, command, generation))
    }

    fn rendered(&self, component: &str, version: KubeVersion, command: Vec<String>, generation: u64) -> Rendered {
        let mut pod = self.0.clone();
        let named = json!({
            // A pod of a new name: the kubelet lets one of the old name wait until the old one is cleaned up, and tries
            // again only after 10 s and more.
            "name": format!("{component}-{generation}"),
            "annotations": {ANNOTATION: generation.to_string()},
        });
        merge(&mut pod["metadata"], named);
        // A server that exits has exited: whether it starts again is for the scenario to say.
        pod["spec"]["restartPolicy"] = json!("Never");
        pod["spec"]["containers"][0]["image"] = json!(image(component, version));
        pod["spec"]["containers"][0]["command"] = json!(command);
        Rendered { text: format!("{pod:#}\n"), command }
    }
}

/// The image of a component.
pub fn image(component: &str, version: KubeVersion) -> String {
    format!("registry.k8s.io/{component}:{version}")
}

fn is_flag_of(arg: &str, names: &[&str]) -> bool {
    let name = arg.trim_start_matches('-').split('=').next().unwrap_or_default();
    arg.starts_with("--") && names.contains(&name)
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// A manifest that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a manifest of the node is none that kubeadm writes: {why}")]
pub struct ManifestError {
    /// What is wrong.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::combo;
    use crate::gates::AllocatorMode;

    const STOCK: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  annotations:\n    kubeadm.kubernetes.io/x: kept\n  \
        name: kube-apiserver\n  namespace: kube-system\nspec:\n  containers:\n  - command:\n    - kube-apiserver\n    \
        - --advertise-address=172.18.0.4\n    - --feature-gates=MultiCIDRServiceAllocator=false\n    \
        - --service-cluster-ip-range=10.0.0.0/16\n    - --runtime-config=\n    - --feature-gates=A=true\n    \
        image: registry.k8s.io/kube-apiserver:v1.33.13\n    name: kube-apiserver\n  hostNetwork: true\n";

    fn pod(rendered: &Rendered) -> Value {
        serde_json::from_str(&rendered.text).unwrap()
    }

    #[test]
    fn every_flag_of_the_specification_is_there_once_and_the_others_stay() {
        let stock = Manifest::parse(STOCK).unwrap();
        let spec = combo::release(34).emulating(33);
        let spec = spec.gate(crate::gates::Gate::MultiCidrServiceAllocator, false).with_beta_api();
        let rendered = stock.apiserver(&spec, 7);
        assert_eq!(
            rendered.command,
            [
                "kube-apiserver",
                "--advertise-address=172.18.0.4",
                "--emulated-version=1.33",
                "--feature-gates=MultiCIDRServiceAllocator=false",
                "--runtime-config=networking.k8s.io/v1beta1=true",
                "--service-cluster-ip-range=10.0.0.0/16",
            ]
        );
        let container = &pod(&rendered)["spec"]["containers"][0];
        assert_eq!(container["image"], image("kube-apiserver", spec.version));
        assert_eq!(container["name"], "kube-apiserver");
    }

    #[test]
    fn flags_that_a_specification_does_not_say_are_gone() {
        let rendered = Manifest::parse(STOCK).unwrap().apiserver(&combo::v1_33(AllocatorMode::DualWrite), 1);
        assert!(!rendered.command.iter().any(|arg| arg.contains("feature-gates") || arg.contains("runtime-config")));
    }

    #[test]
    fn every_generation_is_a_pod_of_its_own() {
        let stock = Manifest::parse(STOCK).unwrap();
        let spec = combo::v1_33(AllocatorMode::DualWrite);
        let metadata = |generation| pod(&stock.apiserver(&spec, generation))["metadata"].clone();
        assert_eq!(metadata(1)["name"], "kube-apiserver-1");
        assert_ne!(metadata(1), metadata(2));
        assert_eq!(metadata(2)["annotations"]["kubeadm.kubernetes.io/x"], "kept");
        assert_eq!(metadata(2)["annotations"][ANNOTATION], "2");
    }

    #[test]
    fn the_controller_manager_follows_the_gate_of_its_server_up_to_1_33() {
        let stock = Manifest::parse(&STOCK.replace("kube-apiserver", "kube-controller-manager")).unwrap();
        let flags = |version: KubeVersion| {
            stock.controller_manager(version, &combo::v1_33(AllocatorMode::Bitmap), 1).unwrap().command
        };
        let gates = "--feature-gates=MultiCIDRServiceAllocator=false".to_string();
        assert!(flags(KubeVersion::new(33, 13)).contains(&gates));
        assert!(flags(KubeVersion::new(33, 13)).contains(&"--leader-elect=false".to_string()));
        assert!(!flags(KubeVersion::new(34, 4)).contains(&gates));
    }

    #[test]
    fn text_without_a_container_is_refused() {
        assert!(Manifest::parse("kind: Pod\n").is_err());
    }
}
