//! etcd, kube-apiserver and kube-controller-manager as processes of this host.

use super::flags::{
    Entrance, EtcdPlace, ManagerPlace, ServerPlace, apiserver_flags, controller_manager_flags, etcd_flags,
    kubeconfig_text,
};
use super::live::{AbortOnDrop, Readyz, as_planned, etcd_answers, is_healthy};
use super::{ClusterError, Layout, READY_TIMEOUT, write_command_line};
use crate::client;
use crate::etcd::Etcd;
use crate::files::write_private;
use crate::history::{ServerId, TopologyEvent};
use crate::journal::Journal;
use crate::process::{Blueprint, Process};
use crate::server::ServerSpec;
use crate::version::KubeVersion;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::Path;
use std::time::Duration;

/// How often a start is tried again with other ports when one was taken between looking and binding.
const PORT_TRIES: usize = 5;
/// etcd answers within a tenth of a second on an idle machine.
const ETCD_TIMEOUT: Duration = Duration::from_secs(30);

/// A port that was free a moment ago.
fn free_port() -> Result<u16, ClusterError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|source| ClusterError::NoPort { source })
}

/// Starts a process with fresh ports until none of them is taken.
async fn with_free_ports<T, const N: usize>(
    mut start: impl AsyncFnMut([u16; N]) -> Result<T, ClusterError>,
) -> Result<T, ClusterError> {
    let mut tries = 0;
    loop {
        let mut ports = [0; N];
        for port in &mut ports {
            *port = free_port()?;
        }
        tries += 1;
        match start(ports).await {
            Err(ClusterError::Process(error)) if error.is_address_in_use() && tries < PORT_TRIES => {}
            result => return result,
        }
    }
}

fn loopback(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

/// The certificate of every server is valid for the loopback address.
fn entrance(url: &str) -> Entrance<'_> {
    Entrance { url, certified_as: None }
}

/// A running etcd.
#[derive(Debug)]
pub struct EtcdServer {
    /// Its process.
    pub process: Process,
    endpoint: String,
}

impl EtcdServer {
    /// Starts etcd on the data of the layout and waits until it answers.
    pub async fn start(layout: &Layout, program: &Path) -> Result<Self, ClusterError> {
        with_free_ports(async |[client_port, peer_port]| {
            let (clients, peers) = (loopback(client_port), loopback(peer_port));
            let endpoint = format!("http://{clients}");
            let blueprint = Blueprint {
                name: "etcd".into(),
                program: program.to_path_buf(),
                args: etcd_flags(&EtcdPlace { data: &layout.data(), clients, peers, url: &endpoint }),
                log: layout.log("etcd"),
            };
            write_command_line(layout, "etcd", &blueprint.command_line())?;
            let mut process = blueprint.start()?;
            let etcd = Etcd::new(&endpoint)?;
            process.ready(ETCD_TIMEOUT, async || etcd_answers(&etcd).await).await?;
            Ok(EtcdServer { process, endpoint })
        })
        .await
    }

    /// Its client URL.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

/// A running and ready kube-apiserver.
pub struct Apiserver {
    /// Its process.
    pub process: Process,
    /// A client of it.
    pub client: kube::Client,
    /// Its specification.
    pub spec: ServerSpec,
    url: String,
    _readyz: AbortOnDrop,
}

impl Apiserver {
    /// Starts a server and waits until it is ready and is what the plan says.
    pub async fn start(
        id: ServerId,
        spec: &ServerSpec,
        program: &Path,
        layout: &Layout,
        etcd: &str,
        journal: &Journal,
    ) -> Result<Self, ClusterError> {
        let keys = layout.pki();
        with_free_ports(async |[port]| {
            let listen = loopback(port);
            let blueprint = Blueprint {
                name: id.to_string(),
                program: program.to_path_buf(),
                args: apiserver_flags(id, spec, &ServerPlace { listen, etcd, keys: &keys }),
                log: layout.log(&id.to_string()),
            };
            let command = blueprint.command_line();
            write_command_line(layout, &id.to_string(), &command)?;
            let url = format!("https://{listen}");
            let kubeconfig = layout.kubeconfig(id);
            write_private(&kubeconfig, kubeconfig_text(&entrance(&url), &id.to_string(), &keys).as_bytes())?;
            let client = client::from_kubeconfig(&kubeconfig).await?;
            journal.topology(TopologyEvent::Started { server: id, spec: spec.clone(), command });
            let mut process = blueprint.start()?;
            let mut readyz = Readyz::new(id, journal);
            process.ready(READY_TIMEOUT, async || as_planned(&mut readyz, &client, id, spec).await).await??;
            let readyz = readyz.watch(client.clone());
            Ok(Apiserver { process, client, spec: spec.clone(), url, _readyz: readyz })
        })
        .await
    }
}

/// A running kube-controller-manager.
#[derive(Debug)]
pub struct ControllerManager {
    /// Its process.
    pub process: Process,
}

impl ControllerManager {
    /// Starts the ServiceCIDR and namespace controllers against one server and waits until it is healthy.
    pub async fn start(
        program: &Path,
        version: KubeVersion,
        server: &Apiserver,
        layout: &Layout,
    ) -> Result<Self, ClusterError> {
        let name = "controller-manager";
        let kubeconfig = layout.dir.join(format!("{name}.kubeconfig"));
        let keys = layout.pki();
        write_private(&kubeconfig, kubeconfig_text(&entrance(&server.url), name, &keys).as_bytes())?;
        with_free_ports(async |[port]| {
            let listen = loopback(port);
            let place = ManagerPlace { listen, kubeconfig: &kubeconfig, keys: &keys };
            let args = controller_manager_flags(version, &server.spec, &place)?;
            let blueprint =
                Blueprint { name: name.into(), program: program.to_path_buf(), args, log: layout.log(name) };
            write_command_line(layout, name, &blueprint.command_line())?;
            let health = layout.dir.join(format!("{name}-health.kubeconfig"));
            let url = format!("https://{listen}");
            write_private(&health, kubeconfig_text(&entrance(&url), name, &keys).as_bytes())?;
            let client = client::from_kubeconfig(&health).await?;
            let mut process = blueprint.start()?;
            process.ready(READY_TIMEOUT, async || is_healthy(&client).await).await?;
            Ok(ControllerManager { process })
        })
        .await
    }
}

/// Resident memory of a process in bytes; `None` where the system does not tell.
pub fn resident_memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
