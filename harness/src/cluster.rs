//! A control plane under test: etcd and several kube-apiservers on it, each of its own version and gates.
//!
//! Scenarios use a [`ControlPlane`] through the operations below and never see whether a server is a process of this
//! host, a static pod of a kind node or a container.

use crate::binaries::Obtained;
use crate::etcd::Etcd;
use crate::existing::Existing;
use crate::files::{FileError, write_atomically};
use crate::history::{ServerId, TopologyEvent};
use crate::journal::Journal;
use crate::pki::Pki;
use crate::process::Process;
use crate::provider::{Lacking, Need, Provider};
use crate::server::ServerSpec;
use crate::version::KubeVersion;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub mod containers;
mod error;
mod existing;
mod flags;
pub mod kind;
mod live;
mod local;

use containers::{Container, Containers};
pub use error::ClusterError;
pub use kind::cluster::Purpose;
use live::record_metrics;
use local::EtcdServer;

/// Longest time from the start of a server to ready. The start hook of the repair loops gives up after 60 s; beyond
/// that the process is gone by itself.
const READY_TIMEOUT: Duration = Duration::from_secs(90);
/// Grace of an ordered stop before SIGKILL.
const STOP_GRACE: Duration = Duration::from_secs(20);

/// The executables of a run by file name: `etcd-v3.6.16`, `kube-apiserver-v1.33.13`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binaries(pub BTreeMap<String, PathBuf>);

impl From<&Obtained> for Binaries {
    fn from(obtained: &Obtained) -> Self {
        Binaries(obtained.iter().map(|found| (found.wanted.file_name(), found.path.clone())).collect())
    }
}

impl Binaries {
    fn path(&self, component: &str, version: &str) -> Result<PathBuf, ClusterError> {
        let name = format!("{component}-{version}");
        self.0.get(&name).cloned().ok_or(ClusterError::NoBinary { name })
    }

    /// The one etcd of a run.
    fn etcd(&self) -> Result<PathBuf, ClusterError> {
        let found = self.0.iter().find(|(name, _)| name.starts_with("etcd-"));
        found.map(|(_, path)| path.clone()).ok_or_else(|| ClusterError::NoBinary { name: "etcd".into() })
    }
}

/// Files of one control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The directory of the case: logs, command lines, kubeconfigs.
    pub dir: PathBuf,
}

impl Layout {
    /// etcd's data, the only thing a restart on the same data needs besides the keys.
    pub fn data(&self) -> PathBuf {
        self.dir.join("etcd-data")
    }

    /// Keys and certificates.
    pub fn pki(&self) -> PathBuf {
        self.dir.join("pki")
    }

    /// The kubeconfig for a server.
    pub fn kubeconfig(&self, server: ServerId) -> PathBuf {
        self.dir.join(format!("{server}.kubeconfig"))
    }

    /// The log of a server, `etcd` or `controller-manager`.
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    /// Removes what only a running or kept control plane needs: data, private keys, kubeconfigs.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove_data(&self) -> Result<(), FileError> {
        for dir in [self.data(), self.pki()].into_iter().filter(|dir| dir.exists()) {
            std::fs::remove_dir_all(&dir).map_err(|source| FileError::new("remove", &dir, source))?;
        }
        let entries = std::fs::read_dir(&self.dir).map_err(|source| FileError::new("read", &self.dir, source))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|it| it == "kubeconfig") {
                std::fs::remove_file(&path).map_err(|source| FileError::new("remove", &path, source))?;
            }
        }
        Ok(())
    }
}

/// A place in the control plane: what runs there now, or nothing.
struct Slot {
    spec: ServerSpec,
    running: Option<Running>,
}

/// A running and ready kube-apiserver.
enum Running {
    Local(Box<local::Apiserver>),
    Kind(Box<kind::Server>),
    Existing(existing::Server),
    Container(Box<containers::Server>),
}

impl Running {
    fn client(&self) -> &kube::Client {
        match self {
            Running::Local(server) => &server.client,
            Running::Kind(server) => &server.client,
            Running::Existing(server) => &server.client,
            Running::Container(server) => &server.client,
        }
    }

    async fn stop(self) -> Result<(), ClusterError> {
        match self {
            Running::Local(server) => server.process.stop(STOP_GRACE).await.map(|_| ()).map_err(ClusterError::from),
            Running::Kind(server) => server.pod.stop().await.map_err(ClusterError::from),
            Running::Existing(_) => Err(Lacking { provider: Provider::Existing, need: Need::Control }.into()),
            Running::Container(server) => server.container.stop(STOP_GRACE).await.map_err(ClusterError::from),
        }
    }

    /// Kills it, and records when it died.
    async fn kill(self, id: ServerId, journal: &Journal) -> Result<(), ClusterError> {
        let killed = TopologyEvent::Killed { server: id };
        match self {
            Running::Local(server) => {
                server.process.kill().await?;
                journal.topology(killed);
            }
            Running::Kind(server) => {
                journal.topology_at(server.pod.kill().await?, killed);
                server.pod.stop().await?;
            }
            Running::Container(server) => {
                server.container.kill().await?;
                journal.topology(killed);
                server.container.remove().await?;
            }
            Running::Existing(_) => {
                return Err(Lacking { provider: Provider::Existing, need: Need::Control }.into());
            }
        }
        Ok(())
    }

    async fn check_running(&mut self) -> Result<(), ClusterError> {
        match self {
            Running::Local(server) => server.process.check_running().map_err(ClusterError::from),
            Running::Kind(server) => server.pod.check_running().await.map_err(ClusterError::from),
            // Nobody here would know.
            Running::Existing(_) => Ok(()),
            Running::Container(server) => server.container.check_running().await.map_err(ClusterError::from),
        }
    }

    async fn resident_memory(&self) -> u64 {
        match self {
            Running::Local(server) => server.process.pid().and_then(local::resident_memory).unwrap_or_default(),
            Running::Kind(server) => server.pod.resident_memory().await,
            Running::Existing(_) => 0,
            Running::Container(server) => server.container.resident_memory().await,
        }
    }
}

/// Where a control plane is to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Site {
    /// Processes of this host.
    #[default]
    Local,
    /// A kind cluster.
    Kind(kind::Nodes),
    /// Servers that run already.
    Existing(Existing),
    /// A container per server.
    Containers(containers::Images),
}

impl Site {
    /// Who runs the servers there.
    pub fn provider(&self) -> Provider {
        match self {
            Site::Local => Provider::Local,
            Site::Kind(_) => Provider::Kind,
            Site::Existing(_) => Provider::Existing,
            Site::Containers(_) => Provider::Containers,
        }
    }
}

/// What the servers run on.
enum Ground {
    Local { etcd: Box<EtcdServer> },
    Kind(Box<kind::Cluster>),
    Containers(Box<Containers>),
    Existing(Existing),
}

/// A running kube-controller-manager.
enum Manager {
    Local(local::ControllerManager),
    Kind(kind::node::StaticPod),
    Container(Box<Container>),
}

/// What can be paused: it stops running without ending.
enum Pausable<'a> {
    Process(&'a Process),
    Container(&'a Container),
}

impl Pausable<'_> {
    async fn pause(&self) -> Result<(), ClusterError> {
        match self {
            Pausable::Process(process) => process.pause(),
            Pausable::Container(container) => container.pause().await?,
        }
        Ok(())
    }

    async fn resume(&self) -> Result<(), ClusterError> {
        match self {
            Pausable::Process(process) => process.resume(),
            Pausable::Container(container) => container.resume().await?,
        }
        Ok(())
    }
}

/// etcd and its apiservers. Stop it with [`ControlPlane::stop`]; dropping it kills everything.
pub struct ControlPlane {
    layout: Layout,
    binaries: Binaries,
    journal: Journal,
    ground: Ground,
    first: Vec<ServerSpec>,
    slots: Vec<Slot>,
    controller_manager: Option<Manager>,
}

impl ControlPlane {
    /// Starts etcd; no apiserver runs yet. Processes: in a directory that may hold the data of an earlier control plane.
    /// Nodes of kind: a cluster with an empty etcd. Containers: an etcd without data.
    ///
    /// # Errors
    /// A binary or image is missing, or etcd does not get ready.
    pub async fn start_etcd(
        site: &Site,
        dir: &Path,
        binaries: &Binaries,
        journal: &Journal,
        purpose: Purpose<'_>,
    ) -> Result<Self, ClusterError> {
        let layout = Layout { dir: dir.to_path_buf() };
        std::fs::create_dir_all(dir).map_err(|source| FileError::new("create", dir, source))?;
        let ground = match site {
            Site::Local => {
                Pki::create(&layout.pki())?;
                let etcd = EtcdServer::start(&layout, &binaries.etcd()?).await?;
                Ground::Local { etcd: Box::new(etcd) }
            }
            Site::Kind(nodes) => Ground::Kind(Box::new(kind::Cluster::open(nodes, purpose, binaries, &layout).await?)),
            Site::Containers(images) => {
                Pki::create(&layout.pki())?;
                Ground::Containers(Box::new(Containers::open(images, &layout).await?))
            }
            Site::Existing(existing) => Ground::Existing(existing.clone()),
        };
        Ok(ControlPlane {
            layout,
            binaries: binaries.clone(),
            journal: journal.clone(),
            ground,
            first: purpose.first.servers.clone(),
            slots: Vec::new(),
            controller_manager: None,
        })
    }

    /// Starts the servers that are planned to begin with, one after the other: a simultaneous first start is a race of its
    /// own.
    ///
    /// # Errors
    /// A server does not get ready as planned.
    pub async fn start_servers(&mut self) -> Result<(), ClusterError> {
        for spec in self.first.clone() {
            self.start_one_more(spec).await?;
        }
        Ok(())
    }

    /// Starts one more server.
    ///
    /// # Errors
    /// The server does not get ready as planned, or the provider cannot add one.
    pub async fn add_server(&mut self, spec: ServerSpec) -> Result<ServerId, ClusterError> {
        self.require(Need::AddServer)?;
        self.start_one_more(spec).await
    }

    async fn start_one_more(&mut self, spec: ServerSpec) -> Result<ServerId, ClusterError> {
        let index = u8::try_from(self.slots.len()).map_err(|_| ClusterError::TooManyServers)?;
        self.slots.push(Slot { spec, running: None });
        self.start(ServerId(index)).await?;
        Ok(ServerId(index))
    }

    /// Starts a server that is down, as the specification of its place says.
    ///
    /// # Errors
    /// The server does not get ready as planned.
    pub async fn start_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        self.require(Need::Control)?;
        self.start(id).await
    }

    async fn start(&mut self, id: ServerId) -> Result<(), ClusterError> {
        let started = self.launch(id).await;
        self.seat(id, started)
    }

    /// The same with etcd paused from the start of the server on, for this long (field report: kubernetes/kubernetes
    /// issue 141220).
    ///
    /// # Errors
    /// The server does not get ready as planned; etcd goes on all the same. Or the provider cannot pause etcd.
    pub async fn start_server_while_etcd_is_paused(
        &mut self,
        id: ServerId,
        pause: Duration,
    ) -> Result<(), ClusterError> {
        self.pause_etcd().await?;
        let paused = async {
            tokio::time::sleep(pause).await;
            self.resume_etcd().await
        };
        let (resumed, started) = tokio::join!(paused, self.launch(id));
        resumed?;
        self.seat(id, started)
    }

    async fn launch(&self, id: ServerId) -> Result<Running, ClusterError> {
        let spec = &self.slot(id)?.spec;
        spec.validate()?;
        let started = match &self.ground {
            Ground::Local { etcd } => {
                let program = self.binaries.path("kube-apiserver", &spec.version.to_string())?;
                let (layout, journal) = (&self.layout, &self.journal);
                local::Apiserver::start(id, spec, &program, layout, etcd.endpoint(), journal)
                    .await
                    .map(|server| Running::Local(Box::new(server)))
            }
            Ground::Kind(cluster) => cluster
                .start_server(id, spec, &self.binaries, &self.layout, &self.journal)
                .await
                .map(|server| Running::Kind(Box::new(server))),
            Ground::Existing(servers) => existing::join(servers, id, spec, &self.journal).await,
            Ground::Containers(containers) => containers
                .start_server(id, spec, &self.layout, &self.journal)
                .await
                .map(|server| Running::Container(Box::new(server))),
        };
        // Whatever went wrong, its process is gone with the error.
        started.inspect_err(|error| {
            self.journal.topology(match error.reasons_of_exit() {
                Some(log) => TopologyEvent::Exited { server: id, log },
                None => TopologyEvent::Stopped { server: id },
            });
        })
    }

    fn seat(&mut self, id: ServerId, started: Result<Running, ClusterError>) -> Result<(), ClusterError> {
        self.slot_mut(id)?.running = Some(started?);
        self.journal.topology(TopologyEvent::Ready { server: id });
        Ok(())
    }

    /// Stops a server in order (SIGTERM).
    ///
    /// # Errors
    /// It does not run.
    pub async fn stop_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        self.require(Need::Control)?;
        record_metrics(id, self.client(id)?, &self.journal).await;
        let server = self.take(id)?;
        self.journal.topology(TopologyEvent::Stopping { server: id });
        server.stop().await?;
        self.journal.topology(TopologyEvent::Stopped { server: id });
        Ok(())
    }

    /// Kills a server (SIGKILL).
    ///
    /// # Errors
    /// It does not run.
    pub async fn kill_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        self.require(Need::Control)?;
        self.take(id)?.kill(id, &self.journal).await
    }

    /// Gives the place of a server that is down another specification; it is not started.
    ///
    /// # Errors
    /// There is no such server.
    pub fn respecify_server(&mut self, id: ServerId, spec: ServerSpec) -> Result<(), ClusterError> {
        self.slot_mut(id)?.spec = spec;
        Ok(())
    }

    /// Stops a server and starts another specification in its place, on the same etcd.
    ///
    /// # Errors
    /// The new server does not get ready as planned.
    pub async fn replace_server(&mut self, id: ServerId, spec: ServerSpec) -> Result<(), ClusterError> {
        self.stop_server(id).await?;
        self.respecify_server(id, spec)?;
        self.start_server(id).await
    }

    /// Pauses a server (SIGSTOP).
    ///
    /// # Errors
    /// It does not run, or the provider cannot pause one.
    pub async fn pause_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        self.server_to_pause(id)?.pause().await?;
        self.journal.topology(TopologyEvent::Paused { server: id });
        Ok(())
    }

    /// Lets a paused server go on (SIGCONT).
    ///
    /// # Errors
    /// It does not run, or the provider cannot pause one.
    pub async fn resume_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        self.server_to_pause(id)?.resume().await?;
        self.journal.topology(TopologyEvent::Resumed { server: id });
        Ok(())
    }

    /// Starts kube-controller-manager against a server, with the ServiceCIDR and namespace controllers only. It must
    /// not be newer than any apiserver it may talk to.
    ///
    /// # Errors
    /// It does not start, or one runs already.
    pub async fn start_controller_manager(
        &mut self,
        server: ServerId,
        version: KubeVersion,
    ) -> Result<(), ClusterError> {
        if self.controller_manager.is_some() {
            return Err(ClusterError::TwoControllerManagers);
        }
        let started = match (&self.ground, self.running(server)?) {
            (Ground::Local { .. }, Running::Local(running)) => {
                let program = self.binaries.path("kube-controller-manager", &version.to_string())?;
                let started = local::ControllerManager::start(&program, version, running, &self.layout);
                Manager::Local(started.await?)
            }
            (Ground::Kind(cluster), Running::Kind(_)) => {
                let spec = self.spec(server)?;
                let (binaries, layout) = (&self.binaries, &self.layout);
                Manager::Kind(cluster.start_controller_manager(server, version, spec, binaries, layout).await?)
            }
            (Ground::Containers(containers), Running::Container(running)) => {
                let started =
                    containers.start_controller_manager(version, running, self.spec(server)?, &self.layout).await?;
                Manager::Container(Box::new(started))
            }
            (Ground::Existing(_), _) => {
                return Err(Lacking { provider: Provider::Existing, need: Need::Control }.into());
            }
            (Ground::Local { .. }, Running::Kind(_) | Running::Container(_) | Running::Existing(_))
            | (Ground::Kind(_), Running::Local(_) | Running::Container(_) | Running::Existing(_))
            | (Ground::Containers(_), Running::Local(_) | Running::Kind(_) | Running::Existing(_)) => {
                unreachable!("the servers of a control plane must be those of its provider")
            }
        };
        self.controller_manager = Some(started);
        Ok(())
    }

    /// Stops kube-controller-manager if it runs.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub async fn stop_controller_manager(&mut self) -> Result<(), ClusterError> {
        match self.controller_manager.take() {
            None => {}
            Some(Manager::Local(running)) => running.process.stop(STOP_GRACE).await.map(|_| ())?,
            Some(Manager::Kind(pod)) => pod.stop().await?,
            Some(Manager::Container(container)) => container.stop(STOP_GRACE).await?,
        }
        Ok(())
    }

    /// Pauses etcd (SIGSTOP).
    ///
    /// # Errors
    /// The provider cannot.
    pub async fn pause_etcd(&self) -> Result<(), ClusterError> {
        let etcd = self.etcd_to_pause()?;
        self.journal.topology(TopologyEvent::FaultBegin { fault: "etcd paused".into() });
        etcd.pause().await
    }

    /// Lets a paused etcd go on (SIGCONT).
    ///
    /// # Errors
    /// The provider cannot.
    pub async fn resume_etcd(&self) -> Result<(), ClusterError> {
        self.etcd_to_pause()?.resume().await?;
        self.journal.topology(TopologyEvent::FaultEnd { fault: "etcd paused".into() });
        Ok(())
    }

    /// The servers that run, in order.
    pub fn server_ids(&self) -> Vec<ServerId> {
        let running = self.slots.iter().enumerate().filter(|(_, slot)| slot.running.is_some());
        running.map(|(index, _)| ServerId(index as u8)).collect()
    }

    /// What a server runs as, or will when it is started again.
    ///
    /// # Errors
    /// There is no such server.
    pub fn spec(&self, id: ServerId) -> Result<&ServerSpec, ClusterError> {
        Ok(&self.slot(id)?.spec)
    }

    /// A client of one server.
    ///
    /// # Errors
    /// It does not run.
    pub fn client(&self, id: ServerId) -> Result<kube::Client, ClusterError> {
        Ok(self.running(id)?.client().clone())
    }

    /// Raw access to etcd.
    ///
    /// # Errors
    /// Never for a running control plane.
    pub fn etcd(&self) -> Result<Etcd, ClusterError> {
        match &self.ground {
            Ground::Local { etcd, .. } => Ok(Etcd::new(etcd.endpoint())?),
            Ground::Kind(cluster) => cluster.etcd(),
            Ground::Existing(_) => Err(Lacking { provider: Provider::Existing, need: Need::RawEtcd }.into()),
            Ground::Containers(containers) => containers.etcd(),
        }
    }

    /// The files.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// An error if a process that should run is gone.
    ///
    /// # Errors
    /// The exit of the first process that is gone, with the end of its log.
    pub async fn check_running(&mut self) -> Result<(), ClusterError> {
        match &mut self.ground {
            Ground::Local { etcd, .. } => etcd.process.check_running()?,
            Ground::Kind(_) | Ground::Existing(_) => {}
            Ground::Containers(containers) => containers.check_etcd().await?,
        }
        for server in self.slots.iter_mut().filter_map(|slot| slot.running.as_mut()) {
            server.check_running().await?;
        }
        Ok(())
    }

    /// Resident memory of the servers now, in bytes; but on nodes with that of etcd.
    pub async fn resident_memory(&self) -> u64 {
        let mut sum = match &self.ground {
            Ground::Local { etcd, .. } => etcd.process.pid().and_then(local::resident_memory).unwrap_or_default(),
            Ground::Kind(_) | Ground::Existing(_) => 0,
            Ground::Containers(containers) => containers.etcd_container().resident_memory().await,
        };
        for server in self.slots.iter().filter_map(|slot| slot.running.as_ref()) {
            sum += server.resident_memory().await;
        }
        sum
    }

    /// After a failure: what only the nodes have logged goes into the directory of the case. Processes and containers log there
    /// anyway.
    pub async fn export_logs(&self) {
        match &self.ground {
            Ground::Local { .. } | Ground::Containers(_) | Ground::Existing(_) => {}
            Ground::Kind(cluster) => cluster.export_logs(&self.layout).await,
        }
    }

    /// Stops everything but etcd, in order: the state stays as it is from here on.
    ///
    /// # Errors
    /// A process cannot be waited for.
    pub async fn stop_servers(&mut self) -> Result<(), ClusterError> {
        if self.slots.iter().any(|slot| slot.running.is_some()) {
            self.journal.topology(TopologyEvent::Teardown);
        }
        self.stop_controller_manager().await?;
        // Together: a graceful stop of an apiserver takes most of a second.
        let running: Vec<(ServerId, Running)> = self
            .slots
            .iter_mut()
            .enumerate()
            .filter_map(|(index, slot)| Some((ServerId(index as u8), slot.running.take()?)))
            .collect();
        let stops = running.into_iter().map(async |(id, server)| {
            record_metrics(id, server.client().clone(), &self.journal).await;
            if let Running::Existing(_) = server {
                // It goes on without us.
                return Ok(());
            }
            self.journal.topology(TopologyEvent::Stopping { server: id });
            let stopped = server.stop().await;
            self.journal.topology(TopologyEvent::Stopped { server: id });
            stopped
        });
        join_all(stops).await.into_iter().collect()
    }

    /// Stops everything in order.
    ///
    /// # Errors
    /// A process cannot be waited for; everything is gone all the same.
    pub async fn stop(mut self) -> Result<(), ClusterError> {
        self.stop_servers().await?;
        match self.ground {
            Ground::Local { etcd, .. } => etcd.process.stop(STOP_GRACE).await.map(|_| ()).map_err(ClusterError::from),
            Ground::Kind(cluster) => cluster.end().await,
            Ground::Existing(_) => Ok(()),
            Ground::Containers(containers) => containers.delete().await,
        }
    }

    /// Who runs the servers.
    pub fn provider(&self) -> Provider {
        match self.ground {
            Ground::Local { .. } => Provider::Local,
            Ground::Kind(_) => Provider::Kind,
            Ground::Existing(_) => Provider::Existing,
            Ground::Containers(_) => Provider::Containers,
        }
    }

    fn require(&self, need: Need) -> Result<(), Lacking> {
        self.provider().lacking(&[need]).map_or(Ok(()), Err)
    }

    fn server_to_pause(&self, id: ServerId) -> Result<Pausable<'_>, ClusterError> {
        match self.running(id)? {
            Running::Local(server) => Ok(Pausable::Process(&server.process)),
            Running::Kind(_) | Running::Existing(_) => {
                Err(Lacking { provider: self.provider(), need: Need::PauseServer }.into())
            }
            Running::Container(server) => Ok(Pausable::Container(&server.container)),
        }
    }

    fn etcd_to_pause(&self) -> Result<Pausable<'_>, ClusterError> {
        match &self.ground {
            Ground::Local { etcd, .. } => Ok(Pausable::Process(&etcd.process)),
            Ground::Kind(_) | Ground::Existing(_) => {
                Err(Lacking { provider: self.provider(), need: Need::PauseEtcd }.into())
            }
            Ground::Containers(containers) => Ok(Pausable::Container(containers.etcd_container())),
        }
    }

    fn slot(&self, id: ServerId) -> Result<&Slot, ClusterError> {
        self.slots.get(usize::from(id.0)).ok_or(ClusterError::NoSuchServer { server: id })
    }

    fn slot_mut(&mut self, id: ServerId) -> Result<&mut Slot, ClusterError> {
        self.slots.get_mut(usize::from(id.0)).ok_or(ClusterError::NoSuchServer { server: id })
    }

    fn running(&self, id: ServerId) -> Result<&Running, ClusterError> {
        self.slot(id)?.running.as_ref().ok_or(ClusterError::NotRunning { server: id })
    }

    fn take(&mut self, id: ServerId) -> Result<Running, ClusterError> {
        self.slot_mut(id)?.running.take().ok_or(ClusterError::NotRunning { server: id })
    }
}

/// Writes a command line where a person can copy it.
fn write_command_line(layout: &Layout, name: &str, command: &[String]) -> Result<(), FileError> {
    let quoted: Vec<String> = command.iter().map(|arg| shell_quoted(arg)).collect();
    let path = layout.dir.join(format!("{name}.cmd"));
    write_atomically(&path, format!("{}\n", quoted.join(" \\\n  ")).as_bytes())
}

fn shell_quoted(arg: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=/.,:@%+".contains(&byte);
    if !arg.is_empty() && arg.bytes().all(plain) {
        arg.to_string()
    } else {
        format!("'{}'", arg.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        assert_eq!(shell_quoted("--a=b,c"), "--a=b,c");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
        assert_eq!(shell_quoted(""), "''");
    }
}
