//! One container by testcontainers, and what testcontainers leaves to the client below it: labels of a network, SIGKILL,
//! and a log that is known to be complete.

use super::stale::CASE_LABEL;
use super::{Blueprint, ContainerError};
use crate::files::FileError;
use crate::process::{GARBAGE_COLLECTION, tail};
use crate::wait::{self, NotYet, TimedOut, Unmet};
use futures_util::StreamExt;
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;
use testcontainers::bollard::Docker;
use testcontainers::bollard::models::{
    HostConfig, NetworkCreateRequest, PortBinding, RestartPolicy, RestartPolicyNameEnum,
};
use testcontainers::bollard::query_parameters::{KillContainerOptionsBuilder, LogsOptionsBuilder, TopOptionsBuilder};
use testcontainers::core::IntoContainerPort;
use testcontainers::core::client::docker_client_instance;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, CopyTargetOptions, GenericImage, ImageExt};
use tokio::task::JoinHandle;

/// The log of a container ends with it; the engine delivers the rest at once.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);

/// A started container. Dropping it removes it.
pub struct Container {
    name: String,
    docker: Docker,
    inner: ContainerAsync<GenericImage>,
    address: SocketAddrV4,
    log: PathBuf,
    /// Where in the log the output of this container begins.
    log_start: u64,
    /// Writes the log, and ends with the container.
    follower: JoinHandle<()>,
}

/// Makes the network of a case.
///
/// # Errors
/// The engine does not make it.
pub async fn create_network(case: &str) -> Result<(), ContainerError> {
    let labels = [(CASE_LABEL.to_string(), case.to_string())].into();
    let request = NetworkCreateRequest { name: case.into(), labels: Some(labels), ..Default::default() };
    let docker = docker_client_instance().await.map_err(|error| cannot("be reached", error))?;
    docker.create_network(request).await.map(|_| ()).map_err(|error| cannot("make a network", error))
}

impl Container {
    /// Starts a container from an image that the engine has.
    ///
    /// # Errors
    /// The engine does not start it, or its log cannot be written.
    pub async fn start(blueprint: Blueprint<'_>) -> Result<Container, ContainerError> {
        let container_name = blueprint.container_name();
        let Blueprint { name, case, image, program, args, port, files, log } = blueprint;
        let cannot_log = |source| FileError::new("write", &log, source);
        let file = File::options().create(true).append(true).open(&log).map_err(cannot_log)?;
        let log_start = file.metadata().map_err(cannot_log)?.len();
        let docker = docker_client_instance().await.map_err(|error| cannot("be reached", error))?;
        let (repository, tag) = image.rsplit_once(':').unwrap_or((image, "latest"));
        let mut request = GenericImage::new(repository, tag)
            .with_entrypoint(program)
            .with_cmd(args)
            .with_container_name(container_name)
            .with_network(case)
            .with_label(CASE_LABEL, case)
            .with_env_var(GARBAGE_COLLECTION.0, GARBAGE_COLLECTION.1)
            .with_host_config_modifier(move |config| only_publish(config, port));
        for file in files {
            let target = CopyTargetOptions::new(file.path.display().to_string()).with_mode(0o600);
            request = request.with_copy_to(target, file.content);
        }
        let inner = request.start().await.map_err(|error| cannot(&format!("start {name} from {image}"), error))?;
        let follower = follow(docker.clone(), inner.id().to_string(), file);
        let published = inner.get_host_port_ipv4(port.tcp()).await;
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, *published.as_ref().unwrap_or(&0));
        let mut container = Container { name, docker, inner, address, log, log_start, follower };
        if let Err(error) = published {
            // One that has ended already publishes nothing; its own words say more.
            container.await_log().await;
            container.check_running().await?;
            return Err(cannot(&format!("publish a port of {}", container.name), error));
        }
        Ok(container)
    }

    /// Where its port is published.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// An error if it is gone.
    ///
    /// # Errors
    /// It has exited, with the end of its log.
    pub async fn check_running(&mut self) -> Result<(), ContainerError> {
        // Its log ends with it: as long as that goes on the engine need not be asked.
        if !self.follower.is_finished() {
            return Ok(());
        }
        match self.inner.exit_code().await {
            Ok(None) => Ok(()),
            Ok(Some(code)) => Err(ContainerError::Exited { name: self.name.clone(), code, log: self.log_tail() }),
            Err(error) => Err(cannot(&format!("say whether {} runs", self.name), error)),
        }
    }

    /// Looks until `probe` is content; ends at once when the container exits.
    ///
    /// # Errors
    /// It exited, or the probe was not content in time.
    pub async fn ready<T>(
        &mut self,
        longest: Duration,
        probe: impl AsyncFnMut() -> Result<T, NotYet>,
    ) -> Result<T, ContainerError> {
        let name = self.name.clone();
        let waited = wait::until_or_gone(name.clone(), longest, async || self.check_running().await, probe).await;
        waited.map_err(|unmet| match unmet {
            Unmet::Gone(error) => error,
            Unmet::TimedOut(TimedOut { waited, missing, .. }) => {
                ContainerError::NotReady { name, waited, missing, log: self.log_tail() }
            }
        })
    }

    /// Stops it in order: SIGTERM, then SIGKILL when the grace is over. It is removed.
    ///
    /// # Errors
    /// The engine does not stop or remove it.
    pub async fn stop(self, grace: Duration) -> Result<(), ContainerError> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let stopped = self.inner.stop_with_timeout(Some(seconds)).await;
        self.ended(stopped.map_err(|error| cannot(&format!("stop {}", self.name), error))).await?;
        self.remove().await
    }

    /// Kills it (SIGKILL): it is gone when this returns, and still there to be removed.
    ///
    /// # Errors
    /// The engine does not kill it.
    pub async fn kill(&self) -> Result<(), ContainerError> {
        let options = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
        let killed = self.docker.kill_container(self.inner.id(), Some(options)).await;
        self.ended(killed.map_err(|error| cannot(&format!("kill {}", self.name), error))).await
    }

    /// One that had ended by itself can be neither stopped nor killed, and is gone all the same.
    async fn ended(&self, answer: Result<(), ContainerError>) -> Result<(), ContainerError> {
        match (answer, self.inner.exit_code().await) {
            (Err(error), Ok(None) | Err(_)) => Err(error),
            (Err(_), Ok(Some(_))) | (Ok(()), _) => Ok(()),
        }
    }

    /// Removes what has ended, after its log is complete.
    ///
    /// # Errors
    /// The engine does not remove it.
    pub async fn remove(mut self) -> Result<(), ContainerError> {
        self.await_log().await;
        self.inner.rm().await.map_err(|error| cannot(&format!("remove {}", self.name), error))
    }

    /// Stops it from running without ending it.
    ///
    /// # Errors
    /// The engine does not pause it.
    pub async fn pause(&self) -> Result<(), ContainerError> {
        self.inner.pause().await.map_err(|error| cannot(&format!("pause {}", self.name), error))
    }

    /// Lets a paused one go on.
    ///
    /// # Errors
    /// The engine does not resume it.
    pub async fn resume(&self) -> Result<(), ContainerError> {
        self.inner.unpause().await.map_err(|error| cannot(&format!("resume {}", self.name), error))
    }

    /// Resident memory in bytes; 0 where the engine does not tell.
    pub async fn resident_memory(&self) -> u64 {
        let options = TopOptionsBuilder::new().ps_args("-o pid,rss").build();
        let Ok(listed) = self.docker.top_processes(self.inner.id(), Some(options)).await else { return 0 };
        let rows = listed.processes.unwrap_or_default();
        let kib: u64 = rows.iter().filter_map(|row| row.last()?.parse::<u64>().ok()).sum();
        kib * 1024
    }

    async fn await_log(&mut self) {
        if !self.follower.is_finished() {
            // A log that is late by that much is read as far as it is there.
            let _ = tokio::time::timeout(LOG_TIMEOUT, &mut self.follower).await;
        }
    }

    fn log_tail(&self) -> String {
        tail(&self.log, self.log_start).unwrap_or_else(|error| format!("(no log: {error})"))
    }
}

/// One port, at loopback only: testcontainers would publish every port of the image to the network of the host.
fn only_publish(config: &mut HostConfig, port: u16) {
    let binding = PortBinding { host_ip: Some(Ipv4Addr::LOCALHOST.to_string()), host_port: None };
    config.publish_all_ports = Some(false);
    config.port_bindings = Some([(format!("{port}/tcp"), Some(vec![binding]))].into());
    config.restart_policy = Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None });
}

fn follow(docker: Docker, id: String, mut log: File) -> JoinHandle<()> {
    tokio::spawn(async move {
        let options = LogsOptionsBuilder::new().follow(true).stdout(true).stderr(true).build();
        let mut frames = pin!(docker.logs(&id, Some(options)));
        while let Some(frame) = frames.next().await {
            let written = match frame {
                Ok(output) => log.write_all(&output.into_bytes()),
                Err(error) => writeln!(log, "(no more of this log: {error})"),
            };
            if written.is_err() {
                return;
            }
        }
    })
}

/// The error of the engine with all its causes.
fn cannot(what: &str, error: impl std::error::Error) -> ContainerError {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !why.contains(&text) {
            why = format!("{why}: {text}");
        }
        source = cause.source();
    }
    ContainerError::Engine { what: what.into(), why }
}
