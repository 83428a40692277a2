//! etcd, kube-apiserver and kube-controller-manager as processes of this host.

use super::live::{AbortOnDrop, Readyz, Unlike, compare_with_plan};
use super::{ClusterError, Layout, READY_TIMEOUT, write_command_line};
use crate::client;
use crate::etcd::Etcd;
use crate::files::write_private;
use crate::gates::Gate;
use crate::history::{ServerId, TopologyEvent};
use crate::journal::Journal;
use crate::pki::{KeyFiles, Pki};
use crate::process::{Blueprint, Process};
use crate::server::ServerSpec;
use crate::version::{KubeVersion, Minor};
use crate::wait::NotYet;
use serde_json::json;
use std::net::TcpListener;
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
            let (endpoint, peer) = (format!("http://127.0.0.1:{client_port}"), format!("http://127.0.0.1:{peer_port}"));
            let blueprint = Blueprint {
                name: "etcd".into(),
                program: program.to_path_buf(),
                args: vec![
                    format!("--data-dir={}", layout.data().display()),
                    format!("--listen-client-urls={endpoint}"),
                    format!("--advertise-client-urls={endpoint}"),
                    format!("--listen-peer-urls={peer}"),
                    format!("--initial-advertise-peer-urls={peer}"),
                    format!("--initial-cluster=default={peer}"),
                    // One member on scratch data: no fsync, and an election that costs 0.1 s instead of 1 s.
                    "--unsafe-no-fsync".into(),
                    "--heartbeat-interval=10".into(),
                    "--election-timeout=100".into(),
                ],
                log: layout.log("etcd"),
            };
            write_command_line(layout, "etcd", &blueprint.command_line())?;
            let mut process = blueprint.start()?;
            let etcd = Etcd::new(&endpoint)?;
            process
                .ready(ETCD_TIMEOUT, async || {
                    let answer = etcd.get("skewlab").await;
                    answer.map(|_| ()).map_err(|error| NotYet::new(error.to_string()))
                })
                .await?;
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
        pki: &Pki,
        etcd: &str,
        journal: &Journal,
    ) -> Result<Self, ClusterError> {
        with_free_ports(async |[port]| {
            let blueprint = Blueprint {
                name: id.to_string(),
                program: program.to_path_buf(),
                args: apiserver_flags(id, spec, port, layout, pki, etcd),
                log: layout.log(&id.to_string()),
            };
            let command = blueprint.command_line();
            write_command_line(layout, &id.to_string(), &command)?;
            let url = format!("https://127.0.0.1:{port}");
            let kubeconfig = layout.kubeconfig(id);
            write_private(&kubeconfig, kubeconfig_text(&url, &id.to_string(), &pki.ca, &pki.admin).as_bytes())?;
            let client = client::from_kubeconfig(&kubeconfig).await?;
            journal.topology(TopologyEvent::Started { server: id, spec: spec.clone(), command });
            let mut process = blueprint.start()?;
            let mut unlike = None;
            let mut readyz = Readyz::new(id, journal);
            process
                .ready(READY_TIMEOUT, async || {
                    readyz.ask(&client).await.required()?;
                    match compare_with_plan(&client, id, spec).await {
                        Ok(()) => Ok(()),
                        Err(Unlike::NotYet(missing)) => Err(missing),
                        Err(Unlike::Plan(error)) => {
                            unlike = Some(error);
                            Ok(())
                        }
                    }
                })
                .await?;
            unlike.map_or(Ok(()), Err)?;
            let readyz = readyz.watch(client.clone());
            Ok(Apiserver { process, client, spec: spec.clone(), url, _readyz: readyz })
        })
        .await
    }
}

/// The smallest set of flags that works from 1.31 to 1.37.
fn apiserver_flags(id: ServerId, spec: &ServerSpec, port: u16, layout: &Layout, pki: &Pki, etcd: &str) -> Vec<String> {
    let mut flags = vec![
        format!("--etcd-servers={etcd}"),
        // The recording needs every revision from 1 on.
        "--etcd-compaction-interval=0".into(),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".into(),
        // Never used, but must be set (a host without a default route has none), of the primary family and its own.
        format!("--advertise-address={}", advertise_address(id, spec)),
        format!("--cert-dir={}", layout.pki().display()),
        format!("--tls-cert-file={}", pki.serving.certificate.display()),
        format!("--tls-private-key-file={}", pki.serving.key.display()),
        format!("--client-ca-file={}", pki.ca.display()),
        format!("--service-cluster-ip-range={}", spec.ranges_flag()),
        "--service-account-issuer=https://skewlab.invalid".into(),
        format!("--service-account-key-file={}", pki.service_account_public_key.display()),
        format!("--service-account-signing-key-file={}", pki.service_account_key.display()),
        "--authorization-mode=RBAC".into(),
        "--disable-admission-plugins=ServiceAccount".into(),
        // Servers of one host would fight over the endpoints of the Service `kubernetes`; it is created all the same.
        "--endpoint-reconciler-type=none".into(),
        "--allow-privileged=true".into(),
    ];
    if let Some(minor) = spec.emulated {
        flags.push(format!("--emulated-version={minor}"));
    }
    if !spec.gates.is_empty() {
        flags.push(format!("--feature-gates={}", spec.gates));
    }
    if !spec.runtime_config.is_empty() {
        let entries: Vec<String> = spec.runtime_config.iter().map(|(api, value)| format!("{api}={value}")).collect();
        flags.push(format!("--runtime-config={}", entries.join(",")));
    }
    flags
}

fn advertise_address(id: ServerId, spec: &ServerSpec) -> String {
    let ipv4 = spec.service_ranges.first().is_none_or(|net| net.addr().is_ipv4());
    let number = u16::from(id.0) + 1;
    if ipv4 { format!("10.1.0.{number}") } else { format!("fd00:1::{number:x}") }
}

/// A kubeconfig for one server.
fn kubeconfig_text(url: &str, name: &str, ca: &Path, user: &KeyFiles) -> String {
    // JSON is YAML, and every reader of kubeconfigs takes it.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority": ca}}],
        "users": [{"name": name, "user": {"client-certificate": user.certificate, "client-key": user.key}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    });
    format!("{config:#}\n")
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
        pki: &Pki,
    ) -> Result<Self, ClusterError> {
        let name = "controller-manager";
        let kubeconfig = layout.dir.join(format!("{name}.kubeconfig"));
        // As administrator: without service account tokens its controllers have no roles of their own.
        write_private(&kubeconfig, kubeconfig_text(&server.url, name, &pki.ca, &pki.admin).as_bytes())?;
        let gates = server.spec.effective_gates().map_err(|error| ClusterError::Spec(error.into()))?;
        with_free_ports(async |[port]| {
            let mut args = vec![
                format!("--kubeconfig={}", kubeconfig.display()),
                "--controllers=service-cidr-controller,namespace-controller".into(),
                "--leader-elect=false".into(),
                format!("--secure-port={port}"),
                "--bind-address=127.0.0.1".into(),
                format!("--tls-cert-file={}", pki.serving.certificate.display()),
                format!("--tls-private-key-file={}", pki.serving.key.display()),
                "--authorization-always-allow-paths=/healthz".into(),
            ];
            // From 1.34 on the gate is locked; before it the controller must follow its apiserver.
            if version.minor < Minor(34) {
                let gate = Gate::MultiCidrServiceAllocator;
                args.push(format!("--feature-gates={gate}={}", gates[&gate]));
            }
            let blueprint =
                Blueprint { name: name.into(), program: program.to_path_buf(), args, log: layout.log(name) };
            write_command_line(layout, name, &blueprint.command_line())?;
            let health = layout.dir.join(format!("{name}-health.kubeconfig"));
            let url = format!("https://127.0.0.1:{port}");
            write_private(&health, kubeconfig_text(&url, name, &pki.ca, &pki.admin).as_bytes())?;
            let client = client::from_kubeconfig(&health).await?;
            let mut process = blueprint.start()?;
            process
                .ready(READY_TIMEOUT, async || {
                    let answer = client::get_text(&client, "/healthz").await;
                    answer
                        .map(|_| ())
                        .map_err(|error| NotYet::new(format!("/healthz ({})", client::root_cause(&error))))
                })
                .await?;
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
