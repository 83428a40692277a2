//! Builds the node image of a Kubernetes release, and the load balancer image, for hosts that reach no image registry.
//! The recipe lies in `kind-configs/node-image`; its inputs are a Debian mirror and the binaries of the release.

use super::archive::{OneBinary, image_archive};
use super::engine::{CommandError, Program, engine};
use super::nodes::NodeImage;
use super::releases;
use crate::binaries::{KubeComponent, Obtained, ToolVersion, Wanted};
use crate::files::FileError;
use crate::version::KubeVersion;
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// The Debian release of the base.
const SUITE: &str = "trixie";
/// A bootstrap or build takes about a minute; a slow mirror takes longer.
const BUILD_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// The process of the pause image: it waits, and reaps what it inherits.
const PAUSE: &str = "catatonit";

const PACKAGES: &str = include_str!("../../../../kind-configs/node-image/packages.txt");
/// The files of the node image by path in the build context.
const NODE_FILES: [(&str, &str); 10] = [
    ("Dockerfile", include_str!("../../../../kind-configs/node-image/Dockerfile")),
    ("import-images", include_str!("../../../../kind-configs/node-image/import-images")),
    ("entrypoint", include_str!("../../../../kind-configs/node-image/entrypoint")),
    ("kubelet-cgroups", include_str!("../../../../kind-configs/node-image/kubelet-cgroups")),
    ("etc/containerd/config.toml", include_str!("../../../../kind-configs/node-image/etc/containerd/config.toml")),
    ("etc/crictl.yaml", include_str!("../../../../kind-configs/node-image/etc/crictl.yaml")),
    (
        "etc/systemd/journald.conf.d/node.conf",
        include_str!("../../../../kind-configs/node-image/etc/systemd/journald.conf.d/node.conf"),
    ),
    (
        "etc/systemd/system/kubelet.slice",
        include_str!("../../../../kind-configs/node-image/etc/systemd/system/kubelet.slice"),
    ),
    (
        "etc/systemd/system/kubelet.service",
        include_str!("../../../../kind-configs/node-image/etc/systemd/system/kubelet.service"),
    ),
    (
        "etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
        include_str!("../../../../kind-configs/node-image/etc/systemd/system/kubelet.service.d/10-kubeadm.conf"),
    ),
];
/// The files of the load balancer image.
const BALANCER_FILES: [(&str, &str); 3] = [
    ("Dockerfile", include_str!("../../../../kind-configs/node-image/load-balancer/Dockerfile")),
    ("haproxy.cfg", include_str!("../../../../kind-configs/node-image/load-balancer/haproxy.cfg")),
    ("limits.cfg", include_str!("../../../../kind-configs/node-image/load-balancer/limits.cfg")),
];

/// The binaries that a node image needs.
pub fn wanted(version: KubeVersion) -> Vec<Wanted> {
    let components = KubeComponent::ALL.map(|component| Wanted::Kube(component, version));
    [Wanted::Etcd(ToolVersion::ETCD), Wanted::Crictl(ToolVersion::CRICTL)].into_iter().chain(components).collect()
}

/// Builds the node image of a release and the load balancer images, and returns their names. `report` is told each step.
///
/// # Errors
/// A tool is missing, the mirror does not answer, or a build fails.
pub async fn build(
    version: KubeVersion,
    binaries: &Obtained,
    mirror: &str,
    report: impl Fn(&str),
) -> Result<Vec<String>, NodeImageError> {
    let engine = engine();
    let scratch =
        tempfile::tempdir().map_err(|source| FileError::new("make a folder in", &std::env::temp_dir(), source))?;
    let base = base(&engine, mirror, scratch.path(), &report).await?;
    let path = |component| required(binaries, Wanted::Kube(component, version));

    report("writing the images of the components");
    let listed = Program(path(KubeComponent::Kubeadm)?.to_path_buf())
        .output(&["config", "images", "list", "--kubernetes-version", &version.to_string()])
        .await?;
    let context = scratch.path().join("node");
    write_files(&context, &NODE_FILES)?;
    let pause = scratch.path().join(PAUSE);
    copy_from_image(&engine, &base, &format!("/usr/bin/{PAUSE}"), &pause).await?;
    let images = context.join("images");
    make_dir(&images)?;
    for (image, part) in parts(&listed) {
        let (name, binary, entrypoint) = match part {
            Part::Kube(component) => (component.name(), path(component)?.to_path_buf(), vec![component.name()]),
            Part::Etcd => ("etcd", required(binaries, Wanted::Etcd(ToolVersion::ETCD))?.to_path_buf(), vec!["etcd"]),
            Part::Pause => {
                // Its own manifest never says what to run, so the whole path stands here.
                let config = context.join("etc/containerd/config.toml");
                let text = NODE_FILES.iter().find(|(path, _)| *path == "etc/containerd/config.toml");
                let text = text.map(|(_, text)| text.replace("@PAUSE_IMAGE@", image)).unwrap_or_default();
                fs::write(&config, text).map_err(|source| FileError::new("write", &config, source))?;
                (PAUSE, pause.clone(), vec!["/usr/local/bin/catatonit", "-P"])
            }
        };
        let archive = image_archive(&OneBinary { image, name, entrypoint: &entrypoint }, &binary)?;
        let file = images.join(format!("{name}.tar"));
        fs::write(&file, archive).map_err(|source| FileError::new("write", &file, source))?;
    }
    let bin = context.join("bin");
    make_dir(&bin)?;
    for component in [KubeComponent::Kubelet, KubeComponent::Kubeadm, KubeComponent::Kubectl] {
        copy(path(component)?, &bin.join(component.name()))?;
    }
    copy(required(binaries, Wanted::Crictl(ToolVersion::CRICTL))?, &bin.join("crictl"))?;
    make_dir(&context.join("kind"))?;
    let version_file = context.join("kind/version");
    fs::write(&version_file, version.to_string()).map_err(|source| FileError::new("write", &version_file, source))?;

    let NodeImage { name: node, .. } = NodeImage::built_here(version);
    report(&format!("building {node}"));
    docker_build(&engine, &context, &base, &[&node]).await?;

    let balancer = scratch.path().join("load-balancer");
    write_files(&balancer, &BALANCER_FILES)?;
    let balancers = releases::haproxy_images();
    report(&format!("building {}", balancers.join(" and ")));
    docker_build(&engine, &balancer, &base, &balancers).await?;
    Ok([node].into_iter().chain(balancers.into_iter().map(ToString::to_string)).collect())
}

/// The base of both images. It is named after its recipe, so that it is made once.
async fn base(
    engine: &Program,
    mirror: &str,
    scratch: &Path,
    report: &impl Fn(&str),
) -> Result<String, NodeImageError> {
    let packages: Vec<&str> = packages(PACKAGES).collect();
    let recipe = hex::encode(Sha256::digest(format!("{SUITE} {}", packages.join(" "))));
    let name = format!("skewlab/node-base:{}", &recipe[..12]);
    if has_image(engine, &name).await? {
        return Ok(name);
    }
    report(&format!("bootstrapping Debian {SUITE} from {mirror}"));
    let archive = scratch.join("base.tar");
    let include = format!("--include={}", packages.join(","));
    let args = ["--variant=minbase", &include, SUITE, &archive.to_string_lossy(), mirror];
    Program("mmdebstrap".into()).piped(&args, &[], BUILD_TIMEOUT).await?;
    engine.piped(&["import", &archive.to_string_lossy(), &name], &[], BUILD_TIMEOUT).await?;
    Ok(name)
}

/// Whether the engine has an image.
///
/// # Errors
/// The engine does not answer.
pub async fn has_image(engine: &Program, name: &str) -> Result<bool, CommandError> {
    match engine.output(&["image", "inspect", "--format", "{{.Id}}", name]).await {
        Ok(_) => Ok(true),
        Err(error) if error.says_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

fn packages(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace)
}

/// A part of a control plane that has an image of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Kube(KubeComponent),
    Etcd,
    Pause,
}

/// The images that kubeadm names, as far as a node without pods of users needs them.
fn parts(listed: &str) -> Vec<(&str, Part)> {
    let part = |image: &str| {
        let name = image.rsplit('/').next()?.split(':').next()?;
        match name {
            "kube-apiserver" => Some(Part::Kube(KubeComponent::Apiserver)),
            "kube-controller-manager" => Some(Part::Kube(KubeComponent::ControllerManager)),
            "kube-scheduler" => Some(Part::Kube(KubeComponent::Scheduler)),
            "etcd" => Some(Part::Etcd),
            "pause" => Some(Part::Pause),
            _ => None,
        }
    };
    listed.lines().map(str::trim).filter_map(|image| Some((image, part(image)?))).collect()
}

fn required(binaries: &Obtained, wanted: Wanted) -> Result<&Path, NodeImageError> {
    binaries.path(wanted).ok_or(NodeImageError::NoBinary { wanted })
}

async fn copy_from_image(engine: &Program, image: &str, from: &str, to: &Path) -> Result<(), NodeImageError> {
    let container = engine.output(&["create", image, "true"]).await?;
    let copied = engine.output(&["cp", &format!("{}:{from}", container.trim()), &to.to_string_lossy()]).await;
    engine.output(&["rm", container.trim()]).await?;
    copied?;
    Ok(())
}

async fn docker_build(engine: &Program, context: &Path, base: &str, names: &[&str]) -> Result<(), NodeImageError> {
    let base = format!("BASE={base}");
    let context = context.to_string_lossy();
    let mut args = vec!["build", "--quiet", "--build-arg", &base];
    args.extend(names.iter().flat_map(|name| ["--tag", name]));
    args.push(&context);
    engine.piped(&args, &[], BUILD_TIMEOUT).await?;
    Ok(())
}

/// Writes the files of a build context. A file without an ending is a script.
fn write_files(context: &Path, files: &[(&str, &str)]) -> Result<(), FileError> {
    for (path, text) in files {
        let file = context.join(path);
        make_dir(file.parent().unwrap_or(context))?;
        fs::write(&file, text).map_err(|source| FileError::new("write", &file, source))?;
        let mode = if file.extension().is_none() { 0o755 } else { 0o644 };
        let mode = fs::set_permissions(&file, fs::Permissions::from_mode(mode));
        mode.map_err(|source| FileError::new("set the mode of", &file, source))?;
    }
    Ok(())
}

fn make_dir(dir: &Path) -> Result<(), FileError> {
    fs::create_dir_all(dir).map_err(|source| FileError::new("create", dir, source))
}

/// A hard link where the file system allows one: binaries are large.
fn copy(from: &Path, to: &Path) -> Result<(), FileError> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to).map(|_| ()).map_err(|source| FileError::new("copy", from, source))
}

/// A node image that cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum NodeImageError {
    /// A command of the engine, or the bootstrap of Debian.
    #[error("{0}\n(needed: a running container engine, mmdebstrap, and a Debian mirror)")]
    Command(#[from] CommandError),
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A binary that was not obtained.
    #[error("the node image needs {wanted}, which was not obtained")]
    NoBinary {
        /// Which.
        wanted: Wanted,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_a_node_needs_are_picked_from_what_kubeadm_lists() {
        let listed = "registry.k8s.io/kube-apiserver:v1.33.13\nregistry.k8s.io/kube-proxy:v1.33.13\n\
                      registry.k8s.io/coredns/coredns:v1.12.0\nregistry.k8s.io/pause:3.10\nregistry.k8s.io/etcd:3.5.24-0\n";
        assert_eq!(
            parts(listed),
            [
                ("registry.k8s.io/kube-apiserver:v1.33.13", Part::Kube(KubeComponent::Apiserver)),
                ("registry.k8s.io/pause:3.10", Part::Pause),
                ("registry.k8s.io/etcd:3.5.24-0", Part::Etcd),
            ]
        );
    }

    #[test]
    fn the_list_of_packages_has_comments_and_no_package_twice() {
        let all: Vec<&str> = packages(PACKAGES).collect();
        assert!(all.contains(&"systemd") && all.contains(&"haproxy") && all.contains(&PAUSE));
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn every_file_that_the_recipe_copies_is_written() {
        let dockerfile = NODE_FILES[0].1;
        for source in ["import-images", "entrypoint", "kubelet-cgroups"] {
            assert!(dockerfile.contains(source) && NODE_FILES.iter().any(|(path, _)| *path == source));
        }
    }
}
