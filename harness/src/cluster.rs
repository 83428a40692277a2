//! A control plane under test: etcd and several kube-apiservers on it, each of its own version and gates.
//!
//! [`ControlPlane`] is the local provider: every server is a process of this host. Scenarios use it through the
//! operations below and never see a process.

use crate::binaries::Obtained;
use crate::client::{self, ClientError};
use crate::combo::Combo;
use crate::etcd::{Etcd, EtcdError};
use crate::files::{FileError, write_atomically};
use crate::history::{Observation, ServerId, TopologyEvent};
use crate::journal::Journal;
use crate::pki::{Pki, PkiError};
use crate::process::ProcessError;
use crate::server::{ServerSpec, SpecError};
use crate::wait::NotYet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub mod kind;
mod local;

use local::{Apiserver, ControllerManager, EtcdServer};

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
    running: Option<Apiserver>,
}

/// etcd and its apiservers. Stop it with [`ControlPlane::stop`]; dropping it kills everything.
pub struct ControlPlane {
    layout: Layout,
    binaries: Binaries,
    pki: Pki,
    journal: Journal,
    etcd: EtcdServer,
    slots: Vec<Slot>,
    controller_manager: Option<ControllerManager>,
}

impl ControlPlane {
    /// Starts etcd in a directory that may hold the data of an earlier control plane. No apiserver runs yet.
    ///
    /// # Errors
    /// A binary is missing, or etcd does not get ready.
    pub async fn start_etcd(dir: &Path, binaries: &Binaries, journal: &Journal) -> Result<Self, ClusterError> {
        let layout = Layout { dir: dir.to_path_buf() };
        std::fs::create_dir_all(dir).map_err(|source| FileError::new("create", dir, source))?;
        let pki = Pki::create(&layout.pki())?;
        let etcd = EtcdServer::start(&layout, &binaries.etcd()?).await?;
        Ok(ControlPlane {
            layout,
            binaries: binaries.clone(),
            pki,
            journal: journal.clone(),
            etcd,
            slots: Vec::new(),
            controller_manager: None,
        })
    }

    /// Starts the servers of a combo, one after the other: a simultaneous first start is a race of its own.
    ///
    /// # Errors
    /// A server does not get ready as planned.
    pub async fn start_servers(&mut self, combo: &Combo) -> Result<(), ClusterError> {
        for spec in &combo.servers {
            self.add_server(spec.clone()).await?;
        }
        Ok(())
    }

    /// Starts one more server.
    ///
    /// # Errors
    /// The server does not get ready as planned.
    pub async fn add_server(&mut self, spec: ServerSpec) -> Result<ServerId, ClusterError> {
        let index = u8::try_from(self.slots.len()).map_err(|_| ClusterError::TooManyServers)?;
        self.slots.push(Slot { spec, running: None });
        self.start_server(ServerId(index)).await?;
        Ok(ServerId(index))
    }

    /// Starts a server that is down, as the specification of its place says.
    ///
    /// # Errors
    /// The server does not get ready as planned.
    pub async fn start_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        let started = self.launch(id).await;
        self.seat(id, started)
    }

    /// The same with etcd paused from the start of the server on, for this long (field report: kubernetes/kubernetes
    /// issue 141220).
    ///
    /// # Errors
    /// The server does not get ready as planned; etcd goes on all the same.
    pub async fn start_server_while_etcd_is_paused(
        &mut self,
        id: ServerId,
        pause: Duration,
    ) -> Result<(), ClusterError> {
        let paused = async {
            self.pause_etcd();
            tokio::time::sleep(pause).await;
            self.resume_etcd();
        };
        let ((), started) = tokio::join!(paused, self.launch(id));
        self.seat(id, started)
    }

    async fn launch(&self, id: ServerId) -> Result<Apiserver, ClusterError> {
        let spec = &self.slot(id)?.spec;
        spec.validate()?;
        let program = self.binaries.path("kube-apiserver", &spec.version.to_string())?;
        let endpoint = self.etcd.endpoint();
        let started = Apiserver::start(id, spec, &program, &self.layout, &self.pki, endpoint, &self.journal).await;
        // Whatever went wrong, its process is gone with the error.
        started.inspect_err(|_| self.journal.topology(TopologyEvent::Stopped { server: id }))
    }

    fn seat(&mut self, id: ServerId, started: Result<Apiserver, ClusterError>) -> Result<(), ClusterError> {
        self.slot_mut(id)?.running = Some(started?);
        self.journal.topology(TopologyEvent::Ready { server: id });
        Ok(())
    }

    /// Stops a server in order (SIGTERM).
    ///
    /// # Errors
    /// It does not run.
    pub async fn stop_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        record_metrics(id, self.client(id)?, &self.journal).await;
        self.take(id)?.process.stop(STOP_GRACE).await?;
        self.journal.topology(TopologyEvent::Stopped { server: id });
        Ok(())
    }

    /// Kills a server (SIGKILL).
    ///
    /// # Errors
    /// It does not run.
    pub async fn kill_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        self.take(id)?.process.kill().await?;
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
    /// It does not run.
    pub fn pause_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        self.running(id)?.process.pause();
        self.journal.topology(TopologyEvent::Paused { server: id });
        Ok(())
    }

    /// Lets a paused server go on (SIGCONT).
    ///
    /// # Errors
    /// It does not run.
    pub fn resume_server(&mut self, id: ServerId) -> Result<(), ClusterError> {
        self.running(id)?.process.resume();
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
        version: crate::version::KubeVersion,
    ) -> Result<(), ClusterError> {
        if self.controller_manager.is_some() {
            return Err(ClusterError::TwoControllerManagers);
        }
        let program = self.binaries.path("kube-controller-manager", &version.to_string())?;
        let running = self.running(server)?;
        let started = ControllerManager::start(&program, version, running, &self.layout, &self.pki).await?;
        self.controller_manager = Some(started);
        Ok(())
    }

    /// Stops kube-controller-manager if it runs.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub async fn stop_controller_manager(&mut self) -> Result<(), ClusterError> {
        if let Some(running) = self.controller_manager.take() {
            running.process.stop(STOP_GRACE).await?;
        }
        Ok(())
    }

    /// Pauses etcd (SIGSTOP).
    pub fn pause_etcd(&self) {
        self.journal.topology(TopologyEvent::FaultBegin { fault: "etcd paused".into() });
        self.etcd.process.pause();
    }

    /// Lets a paused etcd go on (SIGCONT).
    pub fn resume_etcd(&self) {
        self.etcd.process.resume();
        self.journal.topology(TopologyEvent::FaultEnd { fault: "etcd paused".into() });
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
        Ok(self.running(id)?.client.clone())
    }

    /// Raw access to etcd.
    ///
    /// # Errors
    /// Never for a running control plane.
    pub fn etcd(&self) -> Result<Etcd, ClusterError> {
        Ok(Etcd::new(self.etcd.endpoint())?)
    }

    /// The files.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// An error if a process that should run is gone.
    ///
    /// # Errors
    /// The exit of the first process that is gone, with the end of its log.
    pub fn check_running(&mut self) -> Result<(), ClusterError> {
        self.etcd.process.check_running()?;
        for server in self.slots.iter_mut().filter_map(|slot| slot.running.as_mut()) {
            server.process.check_running()?;
        }
        Ok(())
    }

    /// Resident memory of all processes now, in bytes.
    pub fn resident_memory(&self) -> u64 {
        let servers = self.slots.iter().filter_map(|slot| slot.running.as_ref()).filter_map(|it| it.process.pid());
        let all = servers.chain(self.etcd.process.pid());
        all.filter_map(local::resident_memory).sum()
    }

    /// Stops everything but etcd, in order: the state stays as it is from here on.
    ///
    /// # Errors
    /// A process cannot be waited for.
    pub async fn stop_servers(&mut self) -> Result<(), ClusterError> {
        self.stop_controller_manager().await?;
        // Together: a graceful stop of an apiserver takes most of a second.
        let running: Vec<(ServerId, Apiserver)> = self
            .slots
            .iter_mut()
            .enumerate()
            .filter_map(|(index, slot)| Some((ServerId(index as u8), slot.running.take()?)))
            .collect();
        let mut stops = tokio::task::JoinSet::new();
        for (id, server) in running {
            let journal = self.journal.clone();
            stops.spawn(async move {
                record_metrics(id, server.client.clone(), &journal).await;
                let result = server.process.stop(STOP_GRACE).await;
                journal.topology(TopologyEvent::Stopped { server: id });
                result
            });
        }
        while let Some(stopped) = stops.join_next().await {
            stopped.map_err(|error| ClusterError::Task { why: error.to_string() })??;
        }
        Ok(())
    }

    /// Stops everything in order.
    ///
    /// # Errors
    /// A process cannot be waited for; everything is gone all the same.
    pub async fn stop(mut self) -> Result<(), ClusterError> {
        self.stop_servers().await?;
        self.etcd.process.stop(STOP_GRACE).await?;
        Ok(())
    }

    fn slot(&self, id: ServerId) -> Result<&Slot, ClusterError> {
        self.slots.get(usize::from(id.0)).ok_or(ClusterError::NoSuchServer { server: id })
    }

    fn slot_mut(&mut self, id: ServerId) -> Result<&mut Slot, ClusterError> {
        self.slots.get_mut(usize::from(id.0)).ok_or(ClusterError::NoSuchServer { server: id })
    }

    fn running(&self, id: ServerId) -> Result<&Apiserver, ClusterError> {
        self.slot(id)?.running.as_ref().ok_or(ClusterError::NotRunning { server: id })
    }

    fn take(&mut self, id: ServerId) -> Result<Apiserver, ClusterError> {
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
