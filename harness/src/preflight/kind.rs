//! What runs on kind need of their host besides what runs of processes need: a container engine, its cgroups and
//! limits, kind, node images.

use super::Line;
use super::local::{Disk, disk};
use crate::binaries::ToolVersion;
use crate::cluster::kind::nodes::choose;
use crate::cluster::kind::releases::{self, LoadBalancer, Release};
use crate::version::KubeVersion;

/// inotify instances and watches that kind's documentation asks for.
const INOTIFY_ADVISED: Inotify = Inotify { instances: 512, watches: 524_288 };
/// The defaults of Linux on a small machine; three nodes were seen to run with so few instances.
const INOTIFY_LEAST: Inotify = Inotify { instances: 128, watches: 8_192 };

/// inotify instances of one control-plane node: 15 idle and 19 with a kube-apiserver were counted (systemd 5, kubelet 8,
/// containerd and dbus 1 each, kube-apiserver 4).
const INOTIFY_OF_NODE: u64 = 20;
/// inotify instances that the host itself needs.
const INOTIFY_OF_HOST: u64 = 8;
/// Nodes for each processor: an idle one keeps some hundredths of it busy.
const NODES_PER_PROCESSOR: usize = 5;

/// Free disk that clusters take, in bytes: a node image, and for each node a copy of its `/var`.
const DISK_OF_CLUSTERS: u64 = 10_000_000_000;

/// What was found out about the host.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The container engine that kind will use.
    pub engine: Result<Engine, String>,
    /// The control groups of the host.
    pub cgroups: Cgroups,
    /// Whether processes can be given CAP_SYS_RESOURCE; `None` where the system does not tell.
    pub sys_resource: Option<bool>,
    /// The limits of inotify; `None` where the system has none.
    pub inotify: Option<Inotify>,
    /// The first line of `kind version`.
    pub kind: Result<String, String>,
    /// Whether a kind that is missing can be installed: go is there, and the network may be used.
    pub kind_can_be_installed: bool,
    /// Whether images that are missing can be pulled or built: the network may be used.
    pub images_can_be_obtained: bool,
    /// The oldest server of the runs, which their nodes should not be newer than.
    pub oldest: KubeVersion,
}

/// A container engine that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// `docker`, `podman` or `nerdctl`.
    pub command: String,
    /// Its version.
    pub version: String,
    /// The runtime that containers get, where the engine tells.
    pub runtime: Option<String>,
    /// Free disk where it keeps images and containers; `None` if that is not on this host.
    pub disk: Option<Disk>,
    /// The images it has, as `repository:tag`.
    pub images: Vec<String>,
}

/// The control groups of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cgroups {
    /// Version 2 alone.
    V2,
    /// The controllers are those of version 1, with version 2 beside them: for a kubelet that is version 1.
    Hybrid,
    /// Version 1.
    V1,
    /// Not Linux: the engine has a machine of its own.
    Elsewhere,
}

/// Limits of inotify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inotify {
    /// `fs.inotify.max_user_instances`.
    pub instances: u64,
    /// `fs.inotify.max_user_watches`.
    pub watches: u64,
}

/// How many nodes a run should have at the same time, at least those of its largest cluster.
pub fn most_nodes(inotify: Option<Inotify>, processors: usize) -> usize {
    let by_inotify =
        inotify.map_or(u64::MAX, |limits| limits.instances.saturating_sub(INOTIFY_OF_HOST) / INOTIFY_OF_NODE);
    usize::try_from(by_inotify).unwrap_or(usize::MAX).min(processors * NODES_PER_PROCESSOR)
}

/// A line per fact.
pub fn judge(facts: &Facts) -> Vec<Line> {
    let mut lines = vec![engine(&facts.engine), cgroups(facts.cgroups)];
    if let (Some(has), Ok(engine)) = (facts.sys_resource, &facts.engine) {
        lines.push(sys_resource(has, engine.runtime.as_deref()));
    }
    lines.extend(facts.inotify.map(inotify));
    lines.push(kind(facts));
    let engine_disk = facts.engine.as_ref().ok().and_then(|engine| engine.disk.as_ref());
    let advice = "free some, for example with `docker image prune`";
    lines.extend(engine_disk.map(|it| disk("engine disk", it, DISK_OF_CLUSTERS, "clusters", advice)));
    if let (Ok(engine), Some(release)) = (&facts.engine, release_to_use(facts)) {
        lines.push(node_image(&engine.images, facts, release));
        lines.push(load_balancer(&engine.images, facts, release));
    }
    lines
}

pub(super) fn engine(engine: &Result<Engine, String>) -> Line {
    match engine {
        Ok(Engine { command, version, .. }) => Line::fine("engine", format!("{command} {version} answers")),
        Err(why) => Line::fails(
            "engine",
            why,
            "install and start Docker (or podman or nerdctl) and let this user use it, or run with --provider local",
        ),
    }
}

/// Kubelets from 1.35 on refuse version 1 by default (k/k PR 134298); those of skewlab are told not to.
fn cgroups(cgroups: Cgroups) -> Line {
    let seen = match cgroups {
        Cgroups::V2 => "version 2",
        Cgroups::Elsewhere => "those of the engine's own machine",
        Cgroups::Hybrid => "version 1 (hybrid); the clusters set failCgroupV1: false",
        Cgroups::V1 => "version 1; the clusters set failCgroupV1: false",
    };
    Line::fine("cgroups", seen)
}

/// runc cannot hand on what it does not have, and a kind node is a privileged container, which asks for everything.
fn sys_resource(has: bool, runtime: Option<&str>) -> Line {
    let fact = "CAP_SYS_RESOURCE";
    match (has, runtime) {
        (true, _) => Line::fine(fact, "in the bounding set"),
        (false, Some(runtime)) if runtime != "runc" => {
            Line::fine(fact, format!("not in the bounding set; containers get the runtime {runtime}"))
        }
        (false, Some(_) | None) => Line::fails(
            fact,
            "not in the bounding set: a privileged container does not start (`unable to apply caps`)",
            "make a runtime that drops it from the container's configuration the engine's default",
        ),
    }
}

fn inotify(limits: Inotify) -> Line {
    let Inotify { instances, watches } = limits;
    let below = |bound: Inotify| instances < bound.instances || watches < bound.watches;
    let seen = format!("{instances} instances, {watches} watches");
    let advice = format!(
        "sysctl fs.inotify.max_user_instances={} fs.inotify.max_user_watches={}, else few nodes run at a time: more fail \
         with `too many open files`",
        INOTIFY_ADVISED.instances, INOTIFY_ADVISED.watches
    );
    if below(INOTIFY_LEAST) {
        Line::fails("inotify", seen, advice)
    } else if below(INOTIFY_ADVISED) {
        Line::doubtful("inotify", seen, advice)
    } else {
        Line::fine("inotify", seen)
    }
}

fn kind(facts: &Facts) -> Line {
    let line = match &facts.kind {
        Ok(line) => line,
        Err(why) if facts.kind_can_be_installed => return Line::fine("kind", format!("{why}; go installs it")),
        Err(why) => return Line::fails("kind", why, "put a supported kind on PATH, or install Go"),
    };
    let Some(version) = kind_version(line) else {
        return Line::doubtful("kind", format!("`{line}` has no version"), "put a release of kind on PATH");
    };
    match releases::release(version) {
        Ok(_) => Line::fine("kind", line),
        Err(error) => Line::fails("kind", line, format!("{error}; put another one on PATH")),
    }
}

/// The release that runs will use: the one that is there, else the one that is installed.
fn release_to_use(facts: &Facts) -> Option<Release> {
    let version = facts.kind.as_ref().map_or(Some(ToolVersion::KIND), |line| kind_version(line))?;
    releases::release(version).ok()
}

/// kind lets the engine pull the image of the load balancer when it makes the first cluster of several control planes.
fn load_balancer(images: &[String], facts: &Facts, release: Release) -> Line {
    let (fact, image) = ("load balancer image", release.balancer.image());
    if images.iter().any(|there| there == image || there.ends_with(&format!("/{image}"))) {
        return Line::fine(fact, image);
    }
    let seen = format!("no {image}");
    match (facts.images_can_be_obtained, release.balancer) {
        (true, LoadBalancer::Haproxy(_)) => {
            Line::doubtful(fact, seen, "it is pulled; where no registry answers, `cargo xtask node-image` builds it")
        }
        (true, LoadBalancer::Envoy(_)) => Line::doubtful(
            fact,
            seen,
            "it is pulled; where no registry answers, use kind v0.30, whose one can be built",
        ),
        (false, LoadBalancer::Haproxy(_) | LoadBalancer::Envoy(_)) => {
            Line::fails(fact, seen, "load it with `docker load`; without it clusters have one control plane only")
        }
    }
}

/// The version in `kind v0.30.0 go1.24.6 linux/amd64`.
fn kind_version(line: &str) -> Option<ToolVersion> {
    let rest = line.strip_prefix("kind v").or_else(|| line.strip_prefix("kind version "))?;
    rest.split([' ', '-', '+']).next()?.parse().ok()
}

/// The one that nodes of a run will be of.
fn node_image(images: &[String], facts: &Facts, release: Release) -> Line {
    let fact = "node image";
    let image = choose(images, facts.oldest, release).name;
    match (images.contains(&image), facts.images_can_be_obtained) {
        (true, _) => Line::fine(fact, image),
        (false, true) => Line::doubtful(
            fact,
            format!("none; {image} is pulled"),
            "where no registry answers, `cargo xtask node-image` builds one",
        ),
        (false, false) => Line::fails(fact, format!("none, and no {image}"), "load one with `docker load`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Facts {
        let images = vec![
            "kindest/node:v1.33.1".to_string(),
            "registry.example/kindest/node:v1.34.0".to_string(),
            "kindest/haproxy:v20230606-42a2262b".to_string(),
        ];
        let engine = Engine {
            command: "docker".into(),
            version: "29.0".into(),
            runtime: Some("runc".into()),
            disk: Some(Disk { dir: "/var/lib/docker".into(), free: Ok(50_000_000_000) }),
            images,
        };
        Facts {
            engine: Ok(engine),
            cgroups: Cgroups::V2,
            sys_resource: Some(true),
            inotify: Some(INOTIFY_ADVISED),
            kind: Ok("kind v0.30.0 go1.24.6 linux/amd64".into()),
            kind_can_be_installed: false,
            images_can_be_obtained: false,
            oldest: KubeVersion::new(33, 13),
        }
    }

    #[track_caller]
    fn is(facts: &Facts, fact: &str, beginning: &str, word: &str) {
        let line =
            judge(facts).into_iter().find(|line| line.fact == fact).expect("the fact must have a line").to_string();
        assert!(line.starts_with(beginning) && line.contains(word), "`{line}`");
    }

    #[test]
    fn a_healthy_host_has_a_line_per_fact_and_none_fails() {
        let lines = judge(&healthy());
        let facts: Vec<&str> = lines.iter().map(|line| line.fact).collect();
        assert_eq!(
            facts,
            [
                "engine",
                "cgroups",
                "CAP_SYS_RESOURCE",
                "inotify",
                "kind",
                "engine disk",
                "node image",
                "load balancer image"
            ]
        );
        assert!(lines.iter().all(|line| line.state == crate::preflight::State::Fine), "{lines:?}");
    }

    #[test]
    fn without_an_engine_there_are_no_nodes() {
        let facts = Facts { engine: Err("docker: cannot connect".into()), ..healthy() };
        is(&facts, "engine", "FAIL", "start Docker");
        // What only an engine can tell is not guessed.
        let facts: Vec<&str> = judge(&facts).iter().map(|line| line.fact).collect();
        assert_eq!(facts, ["engine", "cgroups", "inotify", "kind"]);
    }

    #[test]
    fn clusters_need_disk_where_the_engine_keeps_them() {
        let mut facts = healthy();
        facts.engine.as_mut().unwrap().disk = Some(Disk { dir: "/var/lib/docker".into(), free: Ok(4_000_000_000) });
        is(&facts, "engine disk", "FAIL", "10.0 GB needed for clusters; free some");
    }

    #[test]
    fn cgroup_v1_is_enough_because_kubelets_are_told_so() {
        for cgroups in [Cgroups::V1, Cgroups::Hybrid] {
            is(&Facts { cgroups, ..healthy() }, "cgroups", "ok", "failCgroupV1: false");
        }
        is(&Facts { cgroups: Cgroups::Elsewhere, ..healthy() }, "cgroups", "ok", "machine");
    }

    #[test]
    fn several_control_planes_need_the_load_balancer_of_their_kind() {
        let with =
            |kind: &str, images_can_be_obtained| Facts { kind: Ok(kind.into()), images_can_be_obtained, ..healthy() };
        is(&with("kind v0.30.0 go1.24", false), "load balancer image", "ok", "kindest/haproxy");
        is(&with("kind v0.32.0 go1.25", true), "load balancer image", "maybe", "use kind v0.30");
        is(&with("kind v0.32.0 go1.25", false), "load balancer image", "FAIL", "docker load");
    }

    #[test]
    fn a_missing_capability_needs_a_runtime_that_does_not_ask_for_it() {
        let lacking = |runtime: &str| {
            let mut facts = Facts { sys_resource: Some(false), ..healthy() };
            facts.engine.as_mut().unwrap().runtime = Some(runtime.into());
            facts
        };
        is(&lacking("runc"), "CAP_SYS_RESOURCE", "FAIL", "unable to apply caps");
        is(&lacking("trimmed"), "CAP_SYS_RESOURCE", "ok", "runtime trimmed");
    }

    #[test]
    fn few_inotify_instances_are_doubtful_and_too_few_fail() {
        let limits = |instances, watches| Facts { inotify: Some(Inotify { instances, watches }), ..healthy() };
        is(&limits(128, 192_536), "inotify", "maybe", "sysctl");
        is(&limits(64, 524_288), "inotify", "FAIL", "sysctl");
        is(&limits(512, 4_096), "inotify", "FAIL", "sysctl");
    }

    #[test]
    fn so_many_nodes_run_as_inotify_and_processors_carry() {
        let limits = |instances| Some(Inotify { instances, watches: 524_288 });
        assert_eq!(most_nodes(limits(128), 2), 6);
        assert_eq!(most_nodes(limits(512), 2), 10);
        assert_eq!(most_nodes(None, 8), 40);
        assert_eq!(most_nodes(limits(0), 8), 0);
    }

    #[test]
    fn kind_must_be_a_tried_release() {
        let version = |text: &str| Facts { kind: Ok(text.into()), ..healthy() };
        is(&version("kind v0.26.0 go1.23 linux/amd64"), "kind", "FAIL", "v0.27 to v0.33");
        is(&version("kind v0.32.0 go1.25 linux/amd64"), "kind", "ok", "v0.32.0");
        is(&version("kind v0.34.0 go1.27 linux/amd64"), "kind", "FAIL", "v0.27 to v0.33");
        is(&version("a fork"), "kind", "maybe", "no version");
    }

    #[test]
    fn a_missing_kind_is_installed_where_that_is_possible() {
        let missing = |kind_can_be_installed| Facts {
            kind: Err("kind is not on PATH".into()),
            kind_can_be_installed,
            ..healthy()
        };
        is(&missing(true), "kind", "ok", "go installs it");
        is(&missing(false), "kind", "FAIL", "install Go");
    }

    #[test]
    fn a_missing_node_image_is_pulled_or_built_but_not_offline() {
        is(&healthy(), "node image", "ok", "kindest/node:v1.33.1");
        let without = |images_can_be_obtained| {
            let mut facts = Facts { images_can_be_obtained, ..healthy() };
            facts.engine.as_mut().unwrap().images.retain(|image| !image.contains("/node:"));
            facts
        };
        is(&without(true), "node image", "maybe", "cargo xtask node-image");
        is(&without(false), "node image", "FAIL", "docker load");
    }
}
