//! The life of a cluster: created uniformly at its oldest version, its servers then taken to what is planned, deleted.

use super::config::{self, ClusterConfig};
use super::engine::{Program, engine};
use super::manifest::Manifest;
use super::node::{Node, StaticPod};
use super::node_image::{has_image, image_name};
use super::owner::{CLUSTER_LABEL, Owner, Stale};
use super::{KindError, owner, releases};
use crate::binaries::ToolVersion;
use crate::client;
use crate::cluster::live::{AbortOnDrop, Readyz, Unlike, compare_with_plan};
use crate::cluster::{Binaries, ClusterError, Layout, write_command_line};
use crate::combo::Combo;
use crate::etcd::{ClientCertificate, Etcd};
use crate::files::{write_atomically, write_private};
use crate::history::{ServerId, TopologyEvent};
use crate::journal::Journal;
use crate::server::ServerSpec;
use crate::version::KubeVersion;
use crate::wait::{self, NotYet};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const APISERVER: &str = "kube-apiserver";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";
/// Two nodes take 50 s on two idle cores.
const CREATE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// From the process to ready: the start hook of the repair loops gives up after 60 s, then the process ends.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two looks whether a server that starts is still there.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// A controller manager is healthy some seconds after its start.
const HEALTHY_TIMEOUT: Duration = Duration::from_secs(90);
/// The kubelet without its API: while its own apiserver is away it would wait for it, for half a minute at a time, and
/// static pods need none.
const KUBELET_ALONE: &str = "if [ -f /etc/default/kubelet ]; then . /etc/default/kubelet; fi; echo \"KUBELET_EXTRA_ARGS=\\\"$KUBELET_EXTRA_ARGS \
    --kubeconfig= --bootstrap-kubeconfig= --authorization-mode=AlwaysAllow --authentication-token-webhook=false\\\"\" \
    >/etc/default/kubelet && systemctl restart kubelet";
const PKI: &str = "/etc/kubernetes/pki";

/// A running cluster; dropping it deletes it.
pub struct Cluster {
    life: Life,
    nodes: Vec<ControlPlaneNode>,
    etcd_endpoint: String,
    etcd_certificate: ClientCertificate,
    /// Counts manifests: each is a pod of its own.
    generation: AtomicU64,
}

struct ControlPlaneNode {
    node: Node,
    /// Where its kube-apiserver is published.
    url: String,
    apiserver: Manifest,
    controller_manager: Manifest,
}

/// A running and ready kube-apiserver.
pub struct Server {
    /// Its pod.
    pub pod: StaticPod,
    /// A client of it, and of no other.
    pub client: kube::Client,
    _readyz: AbortOnDrop,
}

/// The containers of a cluster, from before they are made until they are gone.
struct Life {
    engine: Program,
    kind: Program,
    name: String,
}

impl Drop for Life {
    fn drop(&mut self) {
        let Ok(containers) = self.containers() else { return };
        let mut args = vec!["rm", "--force", "--volumes"];
        args.extend(containers.lines());
        if args.len() > 3 {
            // One that somebody else has deleted is no loss, and `cargo xtask gc` finds what could not be deleted.
            let _ = self.engine.output_blocking(&args);
        }
    }
}

impl Life {
    fn containers(&self) -> Result<String, super::engine::CommandError> {
        let filter = format!("label={CLUSTER_LABEL}={}", self.name);
        self.engine.output_blocking(&["ps", "--all", "--quiet", "--filter", &filter])
    }

    /// What nodes and load balancer have logged, for the eyes of a person: what cannot be had is left out.
    async fn export_logs(&self, dir: &Path) {
        let nodes = dir.join("nodes");
        let _ = self.kind.output(&["export", "logs", &nodes.to_string_lossy(), "--name", &self.name]).await;
        let balancer = format!("{}-external-load-balancer", self.name);
        if let Ok(text) = self.engine.output(&["logs", &balancer]).await {
            let _ = write_atomically(&nodes.join("load-balancer.log"), text.as_bytes());
        }
    }
}

/// What a cluster is made for.
#[derive(Debug, Clone, Copy)]
pub struct Purpose<'a> {
    /// The servers to begin with.
    pub first: &'a Combo,
    /// All that will run in it.
    pub combo: &'a Combo,
}

impl Cluster {
    /// Creates a cluster whose servers all run as the oldest of the combo, and returns them.
    ///
    /// # Errors
    /// kind, the engine or a node fails; what they have logged lies in the directory of the case, and nothing is left.
    pub async fn create(
        purpose: Purpose<'_>,
        binaries: &Binaries,
        layout: &Layout,
        journal: &Journal,
    ) -> Result<(Cluster, ServerSpec, Vec<Server>), ClusterError> {
        let (kind_version, kind) = kind_of(binaries)?;
        let base = base(purpose.first).ok_or(KindError::NoServer)?.clone();
        let release = releases::release(kind_version).map_err(KindError::Release)?;
        let kubeadm = release.kubeadm_api(base.version.minor).map_err(KindError::Release)?;
        let engine = engine();
        let image = node_image(&engine, base.version).await?;
        let config = ClusterConfig { nodes: purpose.first.servers.len(), image, spec: base.clone(), kubeadm };
        let file = layout.dir.join("kind.yaml");
        write_atomically(&file, config::render(&config)?.as_bytes())?;
        let life = Life { engine, kind, name: Owner::this().next_name() };
        match Self::build(&life, &file, &base, purpose, binaries, layout, journal).await {
            Ok((nodes, etcd_endpoint, etcd_certificate, servers)) => {
                let generation = AtomicU64::new(0);
                Ok((Cluster { life, nodes, etcd_endpoint, etcd_certificate, generation }, base, servers))
            }
            Err(error) => {
                life.export_logs(&layout.dir).await;
                Err(error)
            }
        }
    }

    async fn build(
        life: &Life,
        file: &Path,
        base: &ServerSpec,
        purpose: Purpose<'_>,
        binaries: &Binaries,
        layout: &Layout,
        journal: &Journal,
    ) -> Result<(Vec<ControlPlaneNode>, String, ClientCertificate, Vec<Server>), ClusterError> {
        let kubeconfig = layout.dir.join("kind.kubeconfig");
        let (file, kubeconfig) = (file.to_string_lossy(), kubeconfig.to_string_lossy());
        let args = ["create", "cluster", "--name", &life.name, "--config", &file, "--kubeconfig", &kubeconfig];
        let args = [&args[..], &["--wait", "0s", "--retain"]].concat();
        life.kind.logged(&args, &layout.log("kind-create"), CREATE_TIMEOUT).await.map_err(KindError::Command)?;

        let count = purpose.first.servers.len();
        let nodes: Vec<Node> = (1..=count)
            .map(|number| Node { engine: life.engine.clone(), name: node_name(&life.name, number) })
            .collect();
        let versions: BTreeSet<KubeVersion> = purpose.combo.servers.iter().map(|server| server.version).collect();
        let prepared = join_all(nodes.into_iter().map(|node| prepare(node, &versions, binaries))).await;
        let nodes: Vec<ControlPlaneNode> = prepared.into_iter().collect::<Result<_, _>>()?;

        let first = &nodes.first().ok_or(KindError::NoServer)?.node;
        let user = admin(first).await?;
        let read = async |path: &str| first.shell(&format!("cat {PKI}/etcd/{path}")).await.map_err(KindError::Command);
        let certificate = ClientCertificate {
            authority: read("ca.crt").await?,
            certificate: read("healthcheck-client.crt").await?,
            key: read("healthcheck-client.key").await?,
        };
        let etcd = format!("https://{}", first.published(2379).await.map_err(KindError::Command)?);
        let mut servers = Vec::new();
        for (id, node) in (0..).map(ServerId).zip(&nodes) {
            let kubeconfig = kubeconfig_text(&user, &node.url, &id.to_string());
            write_private(&layout.kubeconfig(id), kubeconfig.as_bytes())?;
            let pod = node.node.adopt(APISERVER, APISERVER, &layout.log(&id.to_string())).await?;
            // kind drops patches that match nothing without a word.
            if let Some(missing) = config::missing_flag(base, &pod.process.command) {
                let seen = pod.process.command.join(" ");
                return Err(ClusterError::NotAsPlanned { server: id, what: "command line", planned: missing, seen });
            }
            servers.push(node.ready(id, base, pod, layout, journal).await?);
            // What ran since the cluster was made ran as this.
            journal.topology(TopologyEvent::Ready { server: id });
        }
        Ok((nodes, etcd, certificate, servers))
    }

    /// Puts a kube-apiserver into the node of a server that is down, and waits until it is ready and as planned.
    ///
    /// # Errors
    /// It does not start as planned; nothing of it is left running.
    pub async fn start_server(
        &self,
        id: ServerId,
        spec: &ServerSpec,
        binaries: &Binaries,
        layout: &Layout,
        journal: &Journal,
    ) -> Result<Server, ClusterError> {
        let node = self.node(id)?;
        node.node.import(APISERVER, spec.version, &binaries.path(APISERVER, &spec.version.to_string())?).await?;
        let generation = self.next_generation();
        let rendered = node.apiserver.apiserver(spec, generation);
        let name = format!("{APISERVER}-{generation}");
        let pod = node.node.start(APISERVER, name, &rendered.text, &layout.log(&id.to_string())).await?;
        if pod.process.command != rendered.command {
            pod.stop().await?;
            return Err(ClusterError::NotAsPlanned {
                server: id,
                what: "command line",
                planned: rendered.command.join(" "),
                seen: pod.process.command.join(" "),
            });
        }
        node.ready(id, spec, pod, layout, journal).await
    }

    /// Starts the controller manager of the node of a server.
    ///
    /// # Errors
    /// It does not get healthy.
    pub async fn start_controller_manager(
        &self,
        id: ServerId,
        version: KubeVersion,
        server: &ServerSpec,
        binaries: &Binaries,
        layout: &Layout,
    ) -> Result<StaticPod, ClusterError> {
        let node = self.node(id)?;
        node.node
            .import(CONTROLLER_MANAGER, version, &binaries.path(CONTROLLER_MANAGER, &version.to_string())?)
            .await?;
        let generation = self.next_generation();
        let rendered = node.controller_manager.controller_manager(version, server, generation)?;
        write_command_line(layout, "controller-manager", &rendered.command)?;
        let (name, log) = (format!("{CONTROLLER_MANAGER}-{generation}"), layout.log("controller-manager"));
        let pod = node.node.start(CONTROLLER_MANAGER, name, &rendered.text, &log).await?;
        let what = format!("{CONTROLLER_MANAGER} on {}", node.node.name);
        let healthy = wait::until(what, HEALTHY_TIMEOUT, async || {
            let answer = node.node.shell("curl --silent --fail --insecure https://127.0.0.1:10257/healthz").await;
            answer.map(|_| ()).map_err(|_| NotYet::new("an answer of /healthz"))
        });
        match healthy.await {
            Ok(()) => Ok(pod),
            Err(timeout) => {
                let log = pod.taken_away().await?;
                let wait::TimedOut { what, waited, missing } = timeout;
                Err(KindError::NotReady { what, waited, missing, log }.into())
            }
        }
    }

    /// Raw access to etcd.
    ///
    /// # Errors
    /// The certificates are none.
    pub fn etcd(&self) -> Result<Etcd, ClusterError> {
        Ok(Etcd::with_tls(&self.etcd_endpoint, &self.etcd_certificate)?)
    }

    /// Where etcd answers.
    pub fn etcd_endpoint(&self) -> &str {
        &self.etcd_endpoint
    }

    /// Writes what nodes have logged into the directory of the case.
    pub async fn export_logs(&self, layout: &Layout) {
        self.life.export_logs(&layout.dir).await;
    }

    /// Deletes it. One that is deleted already is no error.
    ///
    /// # Errors
    /// The engine does not delete it.
    pub async fn delete(self) -> Result<(), ClusterError> {
        let containers = self.life.containers().map_err(KindError::Command)?;
        let containers: Vec<String> = containers.lines().map(str::to_string).collect();
        if !containers.is_empty() {
            let cluster = Stale { name: self.life.name.clone(), containers };
            owner::remove(&self.life.engine, &cluster).await.map_err(KindError::Command)?;
        }
        Ok(())
    }

    fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn node(&self, id: ServerId) -> Result<&ControlPlaneNode, ClusterError> {
        self.nodes.get(usize::from(id.0)).ok_or(ClusterError::NoSuchServer { server: id })
    }
}

impl ControlPlaneNode {
    /// Records the start of a server and waits until it is ready and what the plan says.
    async fn ready(
        &self,
        id: ServerId,
        spec: &ServerSpec,
        pod: StaticPod,
        layout: &Layout,
        journal: &Journal,
    ) -> Result<Server, ClusterError> {
        let command = pod.process.command.clone();
        write_command_line(layout, &id.to_string(), &command)?;
        journal.topology(TopologyEvent::Started { server: id, spec: spec.clone(), command });
        let client = client::from_kubeconfig(&layout.kubeconfig(id)).await?;
        let mut readyz = Readyz::new(id, journal);
        let mut failure = None;
        let mut looked = tokio::time::Instant::now();
        let ready = wait::until(format!("{id} on {}", self.node.name), READY_TIMEOUT, async || {
            if looked.elapsed() >= LOOK_PERIOD {
                looked = tokio::time::Instant::now();
                if let Err(error) = pod.check_running().await {
                    failure = Some(ClusterError::from(error));
                    return Ok(());
                }
            }
            readyz.ask(&client).await.required()?;
            match compare_with_plan(&client, id, spec).await {
                Ok(()) => Ok(()),
                Err(Unlike::NotYet(missing)) => Err(missing),
                Err(Unlike::Plan(error)) => {
                    failure = Some(error);
                    Ok(())
                }
            }
        });
        let ready = ready.await;
        if let Some(error) = failure {
            pod.stop().await?;
            return Err(error);
        }
        match ready {
            Ok(()) => Ok(Server { pod, _readyz: readyz.watch(client.clone()), client }),
            Err(wait::TimedOut { what, waited, missing }) => {
                let log = pod.taken_away().await?;
                Err(KindError::NotReady { what, waited, missing, log }.into())
            }
        }
    }
}

/// Takes everything out of a node that a scenario has not asked for, and makes the versions known that will run in it.
async fn prepare(
    node: Node,
    versions: &BTreeSet<KubeVersion>,
    binaries: &Binaries,
) -> Result<ControlPlaneNode, ClusterError> {
    let manifest = async |component: &str| {
        let text = node.shell(&format!("cat /etc/kubernetes/manifests/{component}.yaml")).await?;
        Ok::<Manifest, KindError>(Manifest::parse(&text)?)
    };
    let (apiserver, controller_manager) = (manifest(APISERVER).await?, manifest(CONTROLLER_MANAGER).await?);
    node.set_aside(&[CONTROLLER_MANAGER, SCHEDULER]).await?;
    node.shell(KUBELET_ALONE).await.map_err(KindError::Command)?;
    for version in versions {
        node.import(APISERVER, *version, &binaries.path(APISERVER, &version.to_string())?).await?;
    }
    let url = format!("https://{}", node.published(6443).await.map_err(KindError::Command)?);
    Ok(ControlPlaneNode { node, url, apiserver, controller_manager })
}

/// What a cluster is created as: the oldest of its servers, the first of several.
pub fn base(first: &Combo) -> Option<&ServerSpec> {
    first.servers.iter().min_by_key(|server| server.version)
}

/// As kind names its nodes.
fn node_name(cluster: &str, number: usize) -> String {
    if number == 1 { format!("{cluster}-control-plane") } else { format!("{cluster}-control-plane{number}") }
}

/// The kind of a run, by the name under which the plan has it.
fn kind_of(binaries: &Binaries) -> Result<(ToolVersion, Program), KindError> {
    let found = binaries.0.iter().find_map(|(name, path)| {
        let version = name.strip_prefix("kind-")?.parse().ok()?;
        Some((version, Program(path.clone())))
    });
    found.ok_or(KindError::NoKind)
}

/// The image of a node that the engine has: one that skewlab has built before one of kind.
///
/// # Errors
/// It has none.
pub async fn node_image(engine: &Program, version: KubeVersion) -> Result<String, KindError> {
    for image in [image_name(version), format!("kindest/node:{version}")] {
        if has_image(engine, &image).await? {
            return Ok(image);
        }
    }
    Err(KindError::NoNodeImage { version })
}

/// The cluster and the user of the strongest kubeconfig of a node: the one that no role has to exist for.
async fn admin(node: &Node) -> Result<Value, KindError> {
    let text = node.shell("cd /etc/kubernetes && cat super-admin.conf 2>/dev/null || cat admin.conf").await?;
    serde_saphyr::from_str(&text)
        .map_err(|error| KindError::Kubeconfig { node: node.name.clone(), why: error.to_string() })
}

/// The same kubeconfig for one server.
fn kubeconfig_text(admin: &Value, url: &str, name: &str) -> String {
    let authority = admin.pointer("/clusters/0/cluster/certificate-authority-data");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": admin.pointer("/users/0/user")}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    });
    format!("{config:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::combo;
    use crate::gates::AllocatorMode;

    #[test]
    fn a_cluster_begins_as_the_oldest_of_its_servers() {
        let bitmap = combo::v1_33(AllocatorMode::Bitmap);
        let dual_write = combo::v1_33(AllocatorMode::DualWrite);
        assert_eq!(base(&Combo::new([bitmap.clone(), dual_write.clone()])), Some(&bitmap));
        assert_eq!(base(&Combo::new([combo::release(34), dual_write.clone()])), Some(&dual_write));
        assert_eq!(base(&Combo::new([])), None);
    }

    #[test]
    fn the_kind_of_a_plan_is_known_with_its_version() {
        let binaries = Binaries([("kind-v0.30.0".to_string(), "bin/kind".into())].into());
        let (version, program) = kind_of(&binaries).unwrap();
        assert_eq!((version, program), (ToolVersion::KIND, Program("bin/kind".into())));
        assert!(matches!(kind_of(&Binaries::default()), Err(KindError::NoKind)));
    }

    #[test]
    fn a_kubeconfig_leads_to_one_server_as_the_administrator() {
        let admin = json!({
            "clusters": [{"cluster": {"certificate-authority-data": "Q0E=", "server": "https://balancer:6443"}}],
            "users": [{"user": {"client-certificate-data": "QQ==", "client-key-data": "QQ=="}}],
        });
        let text = kubeconfig_text(&admin, "https://127.0.0.1:1", "server-0");
        let config: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:1");
        assert_eq!(config["clusters"][0]["cluster"]["certificate-authority-data"], "Q0E=");
        assert_eq!(config["users"][0]["user"]["client-key-data"], "QQ==");
    }

    #[test]
    fn nodes_have_the_names_that_kind_gives_them() {
        assert_eq!(node_name("x", 1), "x-control-plane");
        assert_eq!(node_name("x", 3), "x-control-plane3");
    }
}
