//! A control plane under test: etcd and several kube-apiservers on it, each of its own version and gates.
//!
//! Scenarios use a [`ControlPlane`] through the operations below and never see whether a server is a process of this
//! host or a static pod of a kind node.

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

mod error;
mod existing;
pub mod kind;
mod live;
mod local;

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
}

impl Running {
    fn client(&self) -> &kube::Client {
        match self {
            Running::Local(server) => &server.client,
            Running::Kind(server) => &server.client,
            Running::Existing(server) => &server.client,
        }
    }

    async fn stop(self) -> Result<(), ClusterError> {
        match self {
            Running::Local(server) => server.process.stop(STOP_GRACE).await.map(|_| ()).map_err(ClusterError::from),
            Running::Kind(server) => server.pod.stop().await.map_err(ClusterError::from),
            Running::Existing(_) => Err(Lacking { provider: Provider::Existing, need: Need::Control }.into()),
        }
    }

    async fn kill(self) -> Result<(), ClusterError> {
        match self {
            Running::Local(server) => server.process.kill().await.map(|_| ()).map_err(ClusterError::from),
            Running::Kind(server) => server.pod.kill().await.map_err(ClusterError::from),
            Running::Existing(_) => Err(Lacking { provider: Provider::Existing, need: Need::Control }.into()),
        }
    }

    async fn check_running(&mut self) -> Result<(), ClusterError> {
        match self {
            Running::Local(server) => server.process.check_running().map_err(ClusterError::from),
            Running::Kind(server) => server.pod.check_running().await.map_err(ClusterError::from),
            // Nobody here would know.
            Running::Existing(_) => Ok(()),
        }
    }

    async fn resident_memory(&self) -> u64 {
        match self {
            Running::Local(server) => server.process.pid().and_then(local::resident_memory).unwrap_or_default(),
            Running::Kind(server) => server.pod.resident_memory().await,
            Running::Existing(_) => 0,
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
}

impl Site {
    /// Who runs the servers there.
    pub fn provider(&self) -> Provider {
        match self {
            Site::Local => Provider::Local,
            Site::Kind(_) => Provider::Kind,
            Site::Existing(_) => Provider::Existing,
        }
    }
}

/// What the servers run on.
enum Ground {
    Local { pki: Pki, etcd: Box<EtcdServer> },
    Kind(kind::Cluster),
    Existing(Existing),
}

/// A running kube-controller-manager.
enum Manager {
    Local(local::ControllerManager),
    Kind(kind::node::StaticPod),
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
    /// Nodes of kind: a cluster with an empty etcd.
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
                let pki = Pki::create(&layout.pki())?;
                let etcd = EtcdServer::start(&layout, &binaries.etcd()?).await?;
                Ground::Local { pki, etcd: Box::new(etcd) }
            }
            Site::Kind(nodes) => Ground::Kind(kind::Cluster::open(nodes, purpose, binaries, &layout).await?),
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
        self.pause_etcd()?;
        let paused = async {
            tokio::time::sleep(pause).await;
            self.resume_etcd()
        };
        let (resumed, started) = tokio::join!(paused, self.launch(id));
        resumed?;
        self.seat(id, started)
    }

    async fn launch(&self, id: ServerId) -> Result<Running, ClusterError> {
        let spec = &self.slot(id)?.spec;
        spec.validate()?;
        let started = match &self.ground {
            Ground::Local { pki, etcd } => {
                let program = self.binaries.path("kube-apiserver", &spec.version.to_string())?;
                let (layout, journal) = (&self.layout, &self.journal);
                local::Apiserver::start(id, spec, &program, layout, pki, etcd.endpoint(), journal)
                    .await
                    .map(|server| Running::Local(Box::new(server)))
            }
            Ground::Kind(cluster) => cluster
                .start_server(id, spec, &self.binaries, &self.layout, &self.journal)
                .await
                .map(|server| Running::Kind(Box::new(server))),
            Ground::Existing(servers) => existing::join(servers, id, spec, &self.journal).await,
        };
        // Whatever went wrong, its process is gone with the error.
        started.inspect_err(|_| self.journal.topology(TopologyEvent::Stopped { server: id }))
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
        self.take(id)?.stop().await?;
        self.journal.topology(TopologyEvent::Stopped { server: id });
        Ok(())
    }

    /// Kills a server (SIGKILL).
    ///
    /// # Errors
    /// It does not run.
    pub async fn kill_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        self.require(Need::Control)?;
        self.take(id)?.kill().await?;
        self.journal.topology(TopologyEvent::Killed { server: id });
        Ok(())
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
    pub fn pause_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        self.process(id)?.pause();
        self.journal.topology(TopologyEvent::Paused { server: id });
        Ok(())
    }

    /// Lets a paused server go on (SIGCONT).
    ///
    /// # Errors
    /// It does not run, or the provider cannot pause one.
    pub fn resume_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        self.process(id)?.resume();
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
            (Ground::Local { pki, .. }, Running::Local(running)) => {
                let program = self.binaries.path("kube-controller-manager", &version.to_string())?;
                let started = local::ControllerManager::start(&program, version, running, &self.layout, pki);
                Manager::Local(started.await?)
            }
            (Ground::Kind(cluster), Running::Kind(_)) => {
                let spec = self.spec(server)?;
                let (binaries, layout) = (&self.binaries, &self.layout);
                Manager::Kind(cluster.start_controller_manager(server, version, spec, binaries, layout).await?)
            }
            (Ground::Existing(_), _) => {
                return Err(Lacking { provider: Provider::Existing, need: Need::Control }.into());
            }
            (Ground::Local { .. }, Running::Kind(_) | Running::Existing(_))
            | (Ground::Kind(_), Running::Local(_) | Running::Existing(_)) => {
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
        }
        Ok(())
    }

    /// Pauses etcd (SIGSTOP).
    ///
    /// # Errors
    /// The provider cannot.
    pub fn pause_etcd(&self) -> Result<(), ClusterError> {
        let etcd = self.etcd_process()?;
        self.journal.topology(TopologyEvent::FaultBegin { fault: "etcd paused".into() });
        etcd.pause();
        Ok(())
    }

    /// Lets a paused etcd go on (SIGCONT).
    ///
    /// # Errors
    /// The provider cannot.
    pub fn resume_etcd(&self) -> Result<(), ClusterError> {
        self.etcd_process()?.resume();
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
        }
        for server in self.slots.iter_mut().filter_map(|slot| slot.running.as_mut()) {
            server.check_running().await?;
        }
        Ok(())
    }

    /// Resident memory of the servers now, in bytes; of processes with that of etcd.
    pub async fn resident_memory(&self) -> u64 {
        let mut sum = match &self.ground {
            Ground::Local { etcd, .. } => etcd.process.pid().and_then(local::resident_memory).unwrap_or_default(),
            Ground::Kind(_) | Ground::Existing(_) => 0,
        };
        for server in self.slots.iter().filter_map(|slot| slot.running.as_ref()) {
            sum += server.resident_memory().await;
        }
        sum
    }

    /// After a failure: what only the nodes have logged goes into the directory of the case. Processes log there anyway.
    pub async fn export_logs(&self) {
        match &self.ground {
            Ground::Local { .. } | Ground::Existing(_) => {}
            Ground::Kind(cluster) => cluster.export_logs(&self.layout).await,
        }
    }

    /// Stops everything but etcd, in order: the state stays as it is from here on.
    ///
    /// # Errors
    /// A process cannot be waited for.
    pub async fn stop_servers(&mut self) -> Result<(), ClusterError> {
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
        }
    }

    /// Who runs the servers.
    pub fn provider(&self) -> Provider {
        match self.ground {
            Ground::Local { .. } => Provider::Local,
            Ground::Kind(_) => Provider::Kind,
            Ground::Existing(_) => Provider::Existing,
        }
    }

    fn require(&self, need: Need) -> Result<(), Lacking> {
        let provider = self.provider();
        if provider.has(need) { Ok(()) } else { Err(Lacking { provider, need }) }
    }

    /// The process of a server, to be paused.
    fn process(&self, id: ServerId) -> Result<&Process, ClusterError> {
        match self.running(id)? {
            Running::Local(server) => Ok(&server.process),
            Running::Kind(_) | Running::Existing(_) => {
                Err(Lacking { provider: self.provider(), need: Need::PauseServer }.into())
            }
        }
    }

    fn etcd_process(&self) -> Result<&Process, ClusterError> {
        match &self.ground {
            Ground::Local { etcd, .. } => Ok(&etcd.process),
            Ground::Kind(_) | Ground::Existing(_) => {
                Err(Lacking { provider: self.provider(), need: Need::PauseEtcd }.into())
            }
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
