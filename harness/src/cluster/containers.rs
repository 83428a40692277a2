//! etcd and every kube-apiserver in a container of its own, on a network of the case: where the binaries cannot run.
//!
//! What talks to the engine is in `docker`, which is built with the cargo feature `containers` only; without it
//! `unbuilt` stands in its place and starts nothing.

use super::flags::{
    Entrance, EtcdPlace, ManagerPlace, ServerPlace, apiserver_flags, controller_manager_flags, etcd_flags,
    kubeconfig_text,
};
use super::kind::engine::{Program, engine};
use super::kind::owner::Owner;
use super::live::{AbortOnDrop, Readyz, as_planned, etcd_answers, is_healthy};
use super::{ClusterError, Layout, READY_TIMEOUT, STOP_GRACE, write_command_line};
use crate::client;
use crate::etcd::Etcd;
use crate::files::{FileError, write_private};
use crate::history::{ServerId, TopologyEvent};
use crate::journal::Journal;
use crate::pki::Pki;
use crate::server::ServerSpec;
use crate::version::KubeVersion;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(feature = "containers")]
mod docker;
mod error;
pub mod images;
pub mod stale;
#[cfg(not(feature = "containers"))]
mod unbuilt;

#[cfg(feature = "containers")]
pub use docker::Container;
#[cfg(feature = "containers")]
use docker::create_network;
pub use error::ContainerError;
pub use images::Images;
#[cfg(not(feature = "containers"))]
pub use unbuilt::Container;
#[cfg(not(feature = "containers"))]
use unbuilt::create_network;

/// etcd answers within a second of its start.
const ETCD_TIMEOUT: Duration = Duration::from_secs(30);

const ETCD_CLIENTS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 2379);
const ETCD_PEERS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 2380);
const APISERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 6443);
const MANAGER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 10257);

/// Where keys lie in a container.
const KEYS: &str = "/skewlab/pki";
/// Where etcd's data lie in its container; they go with it.
const DATA: &str = "/skewlab/etcd-data";
/// Where the kubeconfig of a controller manager lies in its container.
const KUBECONFIG: &str = "/skewlab/kubeconfig";
/// A name in the certificate of every server, for those who reach it by the name of its container.
const CERTIFIED_AS: &str = "localhost";

/// A container that can be started. It is never started again by itself.
#[derive(Debug)]
pub struct Blueprint<'a> {
    /// What errors call it, such as `server-1`.
    pub name: String,
    /// The case, which is also the name of its network.
    pub case: &'a str,
    /// The image, which the engine has.
    pub image: &'a str,
    /// The program, on the PATH of the image.
    pub program: &'static str,
    /// Its arguments.
    pub args: Vec<String>,
    /// The port that is published at a free one of 127.0.0.1.
    pub port: u16,
    /// Files that only root of the container can read.
    pub files: Vec<Copied>,
    /// Where standard output and error go; an existing log is continued.
    pub log: PathBuf,
}

/// A file that is put into a container.
pub struct Copied {
    /// Its path there.
    pub path: PathBuf,
    /// What is in it.
    pub content: Vec<u8>,
}

impl std::fmt::Debug for Copied {
    /// Keys are secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.path.display(), self.content.len())
    }
}

impl Blueprint<'_> {
    /// The name of the container, which is its name in the network too.
    pub fn container_name(&self) -> String {
        container_name(self.case, &self.name)
    }

    /// Program and arguments as one list.
    fn command_line(&self) -> Vec<String> {
        [self.program.to_string()].into_iter().chain(self.args.iter().cloned()).collect()
    }
}

fn container_name(case: &str, name: &str) -> String {
    format!("{case}-{name}")
}

/// The containers of a case and their network, from before they are made until they are gone.
struct Life {
    engine: Program,
    case: String,
    deleted: bool,
}

impl Drop for Life {
    fn drop(&mut self) {
        if !self.deleted {
            // What cannot be removed `cargo xtask gc` finds.
            let _ = stale::remove_blocking(&self.engine, &self.case);
        }
    }
}

/// The containers of a case; dropping it removes them all.
pub struct Containers {
    life: Life,
    images: Images,
    etcd: Container,
}

/// A running and ready kube-apiserver.
pub struct Server {
    /// Its container.
    pub container: Container,
    /// A client of it, and of no other.
    pub client: kube::Client,
    id: ServerId,
    _readyz: AbortOnDrop,
}

impl Containers {
    /// Makes the network of a case and starts etcd in it, on no data.
    ///
    /// # Errors
    /// The engine fails, or etcd does not answer. Nothing is left.
    pub async fn open(images: &Images, layout: &Layout) -> Result<Containers, ClusterError> {
        let case = Owner::this().next_name();
        let life = Life { engine: engine(), case: case.clone(), deleted: false };
        create_network(&case).await?;
        let (name, url) = ("etcd", format!("http://{}:{}", container_name(&case, "etcd"), ETCD_CLIENTS.port()));
        let place = EtcdPlace { data: Path::new(DATA), clients: ETCD_CLIENTS, peers: ETCD_PEERS, url: &url };
        let blueprint = Blueprint {
            name: name.into(),
            case: &case,
            image: images.etcd()?,
            program: "etcd",
            args: etcd_flags(&place),
            port: ETCD_CLIENTS.port(),
            files: Vec::new(),
            log: layout.log(name),
        };
        write_command_line(layout, name, &blueprint.command_line())?;
        let mut etcd = Container::start(blueprint).await?;
        let client = Etcd::new(&format!("http://{}", etcd.address()))?;
        etcd.ready(ETCD_TIMEOUT, async || etcd_answers(&client).await).await?;
        Ok(Containers { life, images: images.clone(), etcd })
    }

    /// The container of etcd.
    pub fn etcd_container(&self) -> &Container {
        &self.etcd
    }

    /// An error if etcd is gone.
    ///
    /// # Errors
    /// Its exit, with the end of its log.
    pub async fn check_etcd(&mut self) -> Result<(), ContainerError> {
        self.etcd.check_running().await
    }

    /// Raw access to etcd.
    ///
    /// # Errors
    /// Never for a running one.
    pub fn etcd(&self) -> Result<Etcd, ClusterError> {
        Ok(Etcd::new(&format!("http://{}", self.etcd.address()))?)
    }

    /// Starts a kube-apiserver and waits until it is ready and is what the plan says.
    ///
    /// # Errors
    /// It does not start as planned; nothing of it is left.
    pub async fn start_server(
        &self,
        id: ServerId,
        spec: &ServerSpec,
        layout: &Layout,
        journal: &Journal,
    ) -> Result<Server, ClusterError> {
        let case = self.life.case.as_str();
        let etcd = format!("http://{}:{}", container_name(case, "etcd"), ETCD_CLIENTS.port());
        let place = ServerPlace { listen: APISERVER, etcd: &etcd, keys: Path::new(KEYS) };
        let blueprint = Blueprint {
            name: id.to_string(),
            case,
            image: self.images.of("kube-apiserver", spec.version)?,
            program: "kube-apiserver",
            args: apiserver_flags(id, spec, &place),
            port: APISERVER.port(),
            files: keys(layout, |pki| {
                let serving = &pki.serving;
                let accounts = [&pki.service_account_key, &pki.service_account_public_key];
                [vec![&pki.ca, &serving.certificate, &serving.key], accounts.to_vec()].concat()
            })?,
            log: layout.log(&id.to_string()),
        };
        let command = blueprint.command_line();
        write_command_line(layout, &id.to_string(), &command)?;
        journal.topology(TopologyEvent::Started { server: id, spec: spec.clone(), command });
        let mut container = Container::start(blueprint).await?;
        let client = client_of(&container, &layout.kubeconfig(id), &id.to_string(), layout).await?;
        let mut readyz = Readyz::new(id, journal);
        container.ready(READY_TIMEOUT, async || as_planned(&mut readyz, &client, id, spec).await).await??;
        Ok(Server { container, id, _readyz: readyz.watch(client.clone()), client })
    }

    /// Starts the ServiceCIDR and namespace controllers against one server and waits until they are healthy.
    ///
    /// # Errors
    /// They do not get healthy.
    pub async fn start_controller_manager(
        &self,
        version: KubeVersion,
        server: &Server,
        spec: &ServerSpec,
        layout: &Layout,
    ) -> Result<Container, ClusterError> {
        let (case, name, program) = (self.life.case.as_str(), "controller-manager", "kube-controller-manager");
        let url = format!("https://{}:{}", container_name(case, &server.id.to_string()), APISERVER.port());
        let entrance = Entrance { url: &url, certified_as: Some(CERTIFIED_AS) };
        let content = kubeconfig_text(&entrance, name, Path::new(KEYS)).into_bytes();
        let place = ManagerPlace { listen: MANAGER, kubeconfig: Path::new(KUBECONFIG), keys: Path::new(KEYS) };
        let mut files = keys(layout, |pki| {
            vec![&pki.ca, &pki.serving.certificate, &pki.serving.key, &pki.admin.certificate, &pki.admin.key]
        })?;
        files.push(Copied { path: KUBECONFIG.into(), content });
        let blueprint = Blueprint {
            name: name.into(),
            case,
            image: self.images.of(program, version)?,
            program,
            args: controller_manager_flags(version, spec, &place)?,
            port: MANAGER.port(),
            files,
            log: layout.log(name),
        };
        write_command_line(layout, name, &blueprint.command_line())?;
        let mut container = Container::start(blueprint).await?;
        let client = client_of(&container, &layout.dir.join(format!("{name}-health.kubeconfig")), name, layout).await?;
        container.ready(READY_TIMEOUT, async || is_healthy(&client).await).await?;
        Ok(container)
    }

    /// Stops etcd in order and removes what is left, the network too.
    ///
    /// # Errors
    /// The engine does not stop or remove it.
    pub async fn delete(self) -> Result<(), ClusterError> {
        let Containers { mut life, etcd, .. } = self;
        etcd.stop(STOP_GRACE).await?;
        stale::remove(&life.engine, &life.case).await.map_err(ContainerError::Command)?;
        life.deleted = true;
        Ok(())
    }
}

/// A client of the published port of a container, by a kubeconfig that is written for it.
async fn client_of(
    container: &Container,
    kubeconfig: &Path,
    name: &str,
    layout: &Layout,
) -> Result<kube::Client, ClusterError> {
    let url = format!("https://{}", container.address());
    let text = kubeconfig_text(&Entrance { url: &url, certified_as: None }, name, &layout.pki());
    write_private(kubeconfig, text.as_bytes())?;
    Ok(client::from_kubeconfig(kubeconfig).await?)
}

/// Keys of the case, as they are put into a container.
fn keys(layout: &Layout, chosen: impl Fn(&Pki) -> Vec<&PathBuf>) -> Result<Vec<Copied>, FileError> {
    let (here, there) = (Pki::at(&layout.pki()), Pki::at(Path::new(KEYS)));
    let copied = chosen(&here).into_iter().zip(chosen(&there)).map(|(from, to)| {
        let content = std::fs::read(from).map_err(|source| FileError::new("read", from, source))?;
        Ok(Copied { path: to.clone(), content })
    });
    copied.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_in_a_container_under_the_names_that_the_flags_say_and_are_not_printed() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { dir: dir.path().to_path_buf() };
        Pki::create(&layout.pki()).unwrap();
        let copied = keys(&layout, |pki| vec![&pki.ca, &pki.admin.key]).unwrap();
        let paths: Vec<&Path> = copied.iter().map(|file| file.path.as_path()).collect();
        assert_eq!(paths, [Path::new("/skewlab/pki/ca.crt"), Path::new("/skewlab/pki/admin.key")]);
        assert!(copied[1].content.starts_with(b"-----BEGIN PRIVATE KEY"));
        assert!(!format!("{copied:?}").contains("BEGIN"));
    }

    #[test]
    fn the_name_of_a_container_fits_into_a_name_of_the_network() {
        let longest = container_name("skewlab-1a2b3c4d-4194304-18446744073709551615-4294967295", "etcd");
        assert!(longest.len() <= 63, "{longest}");
    }
}
