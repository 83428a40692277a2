//! The life of a cluster: created or taken over, emptied, its servers put in as planned, left for the next case or deleted.

use super::config::{self, ClusterConfig, Families};
use super::engine::{Program, engine};
use super::manifest::{self, Manifest};
use super::node::{Node, StaticPod};
use super::nodes::NodeImage;
use super::owner::Owner;
use super::{KindError, owner, releases, script};
use crate::binaries::ToolVersion;
use crate::client;
use crate::cluster::flags::kubeconfig_of;
use crate::cluster::live::{AbortOnDrop, Readyz, as_planned};
use crate::cluster::{Binaries, ClusterError, Layout, write_command_line};
use crate::combo::Combo;
use crate::etcd::{ClientCertificate, Etcd};
use crate::files::{write_atomically, write_private};
use crate::history::{ServerId, TopologyEvent};
use crate::journal::Journal;
use crate::server::ServerSpec;
use crate::version::KubeVersion;
use crate::wait;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const APISERVER: &str = "kube-apiserver";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";
/// Two nodes take 50 s on two idle cores.
const CREATE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// From the process to ready: the start hook of the repair loops gives up after 60 s, then the process ends.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// A controller manager is healthy some seconds after its start.
const HEALTHY_TIMEOUT: Duration = Duration::from_secs(90);
const HEALTHY: &str = "https://127.0.0.1:10257/healthz";
/// What etcd trusts and what its clients show, and the kubeconfig that no role has to exist for; kubeadm leaves them on the
/// first node.
const SECRETS: [&str; 4] = [
    "/etc/kubernetes/pki/etcd/ca.crt",
    "/etc/kubernetes/pki/etcd/healthcheck-client.crt",
    "/etc/kubernetes/pki/etcd/healthcheck-client.key",
    "/etc/kubernetes/super-admin.conf",
];

/// What the cluster of a case is made of, and which one it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// The image of every node.
    pub image: NodeImage,
    /// The name of a cluster that outlives the case: taken over if it is there, created if not, and left empty. Without
    /// one the case has a cluster of its own.
    pub lease: Option<String>,
}

/// A running cluster. Dropping it deletes it: only one that was ended in order can be left to another case.
pub struct Cluster {
    life: Life,
    leased: bool,
    nodes: Vec<ControlPlaneNode>,
    etcd_endpoint: String,
    etcd_certificate: ClientCertificate,
    /// Counts manifests: each is a pod of its own, also beside those of the cases before.
    generation: AtomicU64,
}

struct ControlPlaneNode {
    node: Node,
    /// The images it knows.
    images: Mutex<BTreeSet<String>>,
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

/// The containers of a cluster, from before they are made until they are gone or left to the next case.
struct Life {
    engine: Program,
    kind: Program,
    name: String,
    left: bool,
}

impl Drop for Life {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        // One that somebody else has deleted is no loss, and `cargo xtask gc` finds what could not be deleted.
        let _ = owner::remove_blocking(&self.engine, &self.name);
    }
}

impl Life {
    /// Whether all nodes of the cluster are there and were made ready for servers. One that was cut off while it was made
    /// is not.
    async fn is_prepared(&self, nodes: &[Node]) -> bool {
        join_all(nodes.iter().map(Node::is_prepared)).await.into_iter().all(|prepared| prepared)
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
    /// An empty cluster with a node per server and nothing in it but etcd: a new one, or the leased one.
    ///
    /// # Errors
    /// kind, the engine or a node fails; what they have logged lies in the directory of the case, and nothing is left.
    pub async fn open(
        nodes: &Nodes,
        purpose: Purpose<'_>,
        binaries: &Binaries,
        layout: &Layout,
    ) -> Result<Cluster, ClusterError> {
        let (kind_version, kind) = kind_of(binaries)?;
        let leased = nodes.lease.is_some();
        let name = nodes.lease.clone().unwrap_or_else(|| Owner::this().next_name());
        let life = Life { engine: engine(), kind, name, left: false };
        let shape = Shape::of(purpose.first).ok_or(KindError::NoServer)?;
        let release = releases::release(kind_version).map_err(KindError::Release)?;
        let kubeadm = release.kubeadm_api(nodes.image.version.minor).map_err(KindError::Release)?;
        let config =
            ClusterConfig { nodes: shape.nodes, image: nodes.image.clone(), families: shape.families, kubeadm };
        match Self::build(&life, &config, purpose.combo, binaries, layout).await {
            Ok((nodes, etcd_endpoint, etcd_certificate)) => {
                // The names of pods must not come again in a cluster that other cases have used.
                let generation = AtomicU64::new(u64::from(std::process::id()) * 1000);
                Ok(Cluster { life, leased, nodes, etcd_endpoint, etcd_certificate, generation })
            }
            Err(error) => {
                life.export_logs(&layout.dir).await;
                Err(error)
            }
        }
    }

    async fn build(
        life: &Life,
        config: &ClusterConfig,
        combo: &Combo,
        binaries: &Binaries,
        layout: &Layout,
    ) -> Result<(Vec<ControlPlaneNode>, String, ClientCertificate), ClusterError> {
        let nodes: Vec<Node> = (1..=config.nodes)
            .map(|number| Node { engine: life.engine.clone(), name: node_name(&life.name, number) })
            .collect();
        if !life.is_prepared(&nodes).await {
            owner::remove(&life.engine, &life.name).await.map_err(KindError::Command)?;
            create(life, config, layout).await?;
            let prepared = join_all(nodes.iter().map(|node| node.prepare(&[APISERVER, CONTROLLER_MANAGER, SCHEDULER])));
            prepared.await.into_iter().collect::<Result<(), KindError>>()?;
        }
        let versions: BTreeSet<KubeVersion> = combo.servers.iter().map(|server| server.version).collect();
        let taken = join_all(nodes.into_iter().map(|node| take(node, &versions, binaries))).await;
        let nodes: Vec<ControlPlaneNode> = taken.into_iter().collect::<Result<_, _>>()?;

        let first = &nodes.first().ok_or(KindError::NoServer)?.node;
        let secrets = first.read(&SECRETS.map(str::to_string)).await.map_err(KindError::Command)?;
        let secrets: [String; SECRETS.len()] =
            secrets.try_into().map_err(|_| unreadable(first, "a file is missing"))?;
        let [authority, certificate, key, admin] = secrets;
        let certificate = ClientCertificate { authority, certificate, key };
        let admin: Value = serde_saphyr::from_str(&admin).map_err(|error| unreadable(first, &error.to_string()))?;
        let endpoint = format!("https://{}", first.published(2379).await.map_err(KindError::Command)?);
        Etcd::with_tls(&endpoint, &certificate)?.remove_everything().await?;
        for (id, node) in (0..).map(ServerId).zip(&nodes) {
            let kubeconfig = kubeconfig_text(&admin, &node.url, &id.to_string());
            write_private(&layout.kubeconfig(id), kubeconfig.as_bytes())?;
        }
        Ok((nodes, endpoint, certificate))
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
        node.import(APISERVER, spec.version, binaries).await?;
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
        node.import(CONTROLLER_MANAGER, version, binaries).await?;
        let generation = self.next_generation();
        let rendered = node.controller_manager.controller_manager(version, server, generation)?;
        write_command_line(layout, "controller-manager", &rendered.command)?;
        let (name, log) = (format!("{CONTROLLER_MANAGER}-{generation}"), layout.log("controller-manager"));
        let pod = node.node.start(CONTROLLER_MANAGER, name, &rendered.text, &log).await?;
        if node.node.await_answer(HEALTHY, HEALTHY_TIMEOUT).await.is_ok() {
            return Ok(pod);
        }
        Err(KindError::NotReady {
            what: format!("{CONTROLLER_MANAGER} on {}", node.node.name),
            waited: HEALTHY_TIMEOUT,
            missing: format!("an answer of {HEALTHY}"),
            log: pod.taken_away().await?,
        }
        .into())
    }

    /// Raw access to etcd.
    ///
    /// # Errors
    /// The certificates are none.
    pub fn etcd(&self) -> Result<Etcd, ClusterError> {
        Ok(Etcd::with_tls(&self.etcd_endpoint, &self.etcd_certificate)?)
    }

    /// Writes what nodes have logged into the directory of the case.
    pub async fn export_logs(&self, layout: &Layout) {
        self.life.export_logs(&layout.dir).await;
    }

    /// Leaves it to the next case if it is leased, else deletes it. Its servers must be stopped. One that is deleted
    /// already is no error.
    ///
    /// # Errors
    /// The engine does not delete it.
    pub async fn end(mut self) -> Result<(), ClusterError> {
        if self.leased {
            self.life.left = true;
            return Ok(());
        }
        Ok(owner::remove(&self.life.engine, &self.life.name).await.map_err(KindError::Command)?)
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
        let ready = wait::until(format!("{id} on {}", self.node.name), READY_TIMEOUT, async || {
            as_planned(&mut readyz, &client, id, spec).await
        });
        let ready = tokio::select! {
            ready = ready => ready,
            () = pod.gone(READY_TIMEOUT * 2) => return Err(pod.ended().await.into()),
        };
        match ready {
            Ok(Ok(())) => Ok(Server { pod, _readyz: readyz.watch(client.clone()), client }),
            Ok(Err(unlike)) => {
                pod.stop().await?;
                Err(unlike)
            }
            Err(wait::TimedOut { what, waited, missing }) => {
                let log = pod.taken_away().await?;
                Err(KindError::NotReady { what, waited, missing, log }.into())
            }
        }
    }

    /// Makes an image of one binary known, if it is not yet.
    async fn import(&self, component: &str, version: KubeVersion, binaries: &Binaries) -> Result<(), ClusterError> {
        let image = manifest::image(component, version);
        if self.images.lock().is_ok_and(|images| images.contains(&image)) {
            return Ok(());
        }
        self.node.import(component, version, &binaries.path(component, &version.to_string())?).await?;
        if let Ok(mut images) = self.images.lock() {
            images.insert(image);
        }
        Ok(())
    }
}

/// What tells clusters apart that can stand in for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Control-plane nodes.
    pub nodes: usize,
    /// The families of Services, which those of the nodes follow.
    pub families: Families,
}

impl Shape {
    /// The shape for these servers; `None` without servers.
    pub fn of(servers: &Combo) -> Option<Shape> {
        let first = servers.servers.first()?;
        Some(Shape { nodes: servers.servers.len(), families: Families::of(&first.service_ranges) })
    }
}

async fn create(life: &Life, config: &ClusterConfig, layout: &Layout) -> Result<(), ClusterError> {
    let file = layout.dir.join("kind.yaml");
    write_atomically(&file, config::render(config).as_bytes())?;
    let kubeconfig = layout.dir.join("kind.kubeconfig");
    let (file, kubeconfig) = (file.to_string_lossy(), kubeconfig.to_string_lossy());
    let args = ["create", "cluster", "--name", &life.name, "--config", &file, "--kubeconfig", &kubeconfig];
    let args = [&args[..], &["--wait", "0s", "--retain"]].concat();
    let log = layout.log("kind-create");
    Ok(life.kind.logged(&args, &log, CREATE_TIMEOUT).await.map_err(KindError::Command)?)
}

/// Takes over a node that was made ready, and makes the versions known that will run in it.
async fn take(
    node: Node,
    versions: &BTreeSet<KubeVersion>,
    binaries: &Binaries,
) -> Result<ControlPlaneNode, ClusterError> {
    node.clear(&[APISERVER, CONTROLLER_MANAGER]).await?;
    let stock = [APISERVER, CONTROLLER_MANAGER].map(script::stock);
    let manifests = node.read(&stock).await.map_err(KindError::Command)?;
    let [apiserver, controller_manager] = manifests.as_slice() else {
        return Err(unreadable(&node, "a manifest is missing").into());
    };
    let apiserver = Manifest::parse(apiserver).map_err(KindError::Manifest)?;
    let controller_manager = Manifest::parse(controller_manager).map_err(KindError::Manifest)?;
    let images = Mutex::new(node.images().await.map_err(KindError::Command)?);
    let url = format!("https://{}", node.published(6443).await.map_err(KindError::Command)?);
    let taken = ControlPlaneNode { node, images, url, apiserver, controller_manager };
    for version in versions {
        taken.import(APISERVER, *version, binaries).await?;
    }
    Ok(taken)
}

/// As kind names its nodes.
fn node_name(cluster: &str, number: usize) -> String {
    if number == 1 { format!("{cluster}-control-plane") } else { format!("{cluster}-control-plane{number}") }
}

/// The kind of a run, by the name under which the plan has it.
///
/// # Errors
/// The run has none.
pub fn kind_of(binaries: &Binaries) -> Result<(ToolVersion, Program), KindError> {
    let found = binaries.0.iter().find_map(|(name, path)| {
        let version = name.strip_prefix("kind-")?.parse().ok()?;
        Some((version, Program(path.clone())))
    });
    found.ok_or(KindError::NoKind)
}

fn unreadable(node: &Node, why: &str) -> KindError {
    KindError::Secrets { node: node.name.clone(), why: why.into() }
}

/// The kubeconfig of the administrator for one server.
fn kubeconfig_text(admin: &Value, url: &str, name: &str) -> String {
    let authority = admin.pointer("/clusters/0/cluster/certificate-authority-data");
    let user = admin.pointer("/users/0/user").unwrap_or(&Value::Null);
    kubeconfig_of(name, &json!({"server": url, "certificate-authority-data": authority}), user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::combo;

    #[test]
    fn clusters_of_equal_shape_serve_servers_of_any_version() {
        let of = |servers: Vec<ServerSpec>| Shape::of(&Combo::new(servers));
        assert_eq!(of(vec![combo::release(31), combo::release(32)]), of(vec![combo::release(36), combo::release(37)]));
        assert_ne!(of(vec![combo::release(33)]), of(vec![combo::release(33), combo::release(33)]));
        let v6 = combo::release(33).ranges(&Families::V6.ranges());
        assert_eq!(of(vec![v6]), Some(Shape { nodes: 1, families: Families::V6 }));
        assert_eq!(of(vec![]), None);
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
