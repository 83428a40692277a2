//! A Kubernetes client for one apiserver: no retries, bounded time, and the questions every start asks.

use crate::gates::Gate;
use crate::wait::NotYet;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Longest time of one request. A create that takes longer has an unknown outcome.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to connect; everything is on loopback or a published port of this host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client from a kubeconfig file. Retries are off: a repeated POST would hide a failed allocation (kube retries
/// 429, 503 and 504 by itself, POST included).
///
/// # Errors
/// The file cannot be read or names files that cannot.
pub async fn from_kubeconfig(path: &Path) -> Result<kube::Client, ClientError> {
    let failed = |why: String| ClientError::Kubeconfig { path: path.display().to_string(), why };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| failed(error.to_string()))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| failed(error.to_string()))?;
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(REQUEST_TIMEOUT);
    config.write_timeout = Some(REQUEST_TIMEOUT);
    kube::Client::try_from(config).map_err(|error| failed(error.to_string()))
}

/// Content if `/readyz` says ok, else the names of the failing checks.
///
/// # Errors
/// Not ready; `missing` names the failing checks or the transport's error.
pub async fn readyz(client: &kube::Client) -> Result<(), NotYet> {
    match get_text(client, "/readyz?verbose").await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => {
            let failing = failing_checks(&status.message);
            let text = if failing.is_empty() { format!("HTTP {}", status.code) } else { failing.join(", ") };
            Err(NotYet::new(format!("readyz: {text}")))
        }
        Err(error) => Err(NotYet::new(format!("an answer of /readyz ({})", root_cause(&error)))),
    }
}

/// The checks that `/readyz?verbose` marks as failing.
fn failing_checks(verbose: &str) -> Vec<String> {
    let marked = verbose.lines().filter_map(|line| line.trim().strip_prefix("[-]"));
    marked.filter_map(|line| line.split_whitespace().next()).map(str::to_string).collect()
}

/// `gitVersion` of `/version`, such as `v1.33.13`.
///
/// # Errors
/// The server does not answer.
pub async fn git_version(client: &kube::Client) -> Result<String, kube::Error> {
    Ok(client.apiserver_version().await?.git_version)
}

/// The gates as the server itself reports them in `kubernetes_feature_enabled`. A gate it does not know is absent.
///
/// # Errors
/// The server does not answer.
pub async fn feature_gates(client: &kube::Client) -> Result<BTreeMap<Gate, bool>, kube::Error> {
    Ok(parse_feature_gates(&get_text(client, "/metrics").await?))
}

fn parse_feature_gates(metrics: &str) -> BTreeMap<Gate, bool> {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("kubernetes_feature_enabled{"));
    let pairs = lines.filter_map(|line| {
        let (labels, value) = line.split_once('}')?;
        let name = labels.split(',').find_map(|label| label.strip_prefix("name=\""))?.strip_suffix('"')?;
        Some((name.parse().ok()?, value.trim() == "1"))
    });
    pairs.collect()
}

/// The body of a GET.
///
/// # Errors
/// The server does not answer with 2xx.
pub async fn get_text(client: &kube::Client, path: &str) -> Result<String, kube::Error> {
    let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await
}

/// The innermost message of an error: transport errors nest four deep and only the last says something.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// A client that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig is at fault.
    #[error("cannot make a client from {path}: {why}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failing_checks_of_readyz_are_named() {
        let verbose = "[+]ping ok\n[-]poststarthook/start-service-ip-repair-controllers failed: reason withheld\n\
                       [-]etcd failed: reason withheld\nreadyz check failed\n";
        assert_eq!(failing_checks(verbose), ["poststarthook/start-service-ip-repair-controllers", "etcd"]);
    }

    #[test]
    fn gates_are_read_from_the_feature_metric() {
        let metrics = "# HELP kubernetes_feature_enabled x\n\
            kubernetes_feature_enabled{name=\"AnyVolumeDataSource\",stage=\"\"} 1\n\
            kubernetes_feature_enabled{name=\"DisableAllocatorDualWrite\",stage=\"BETA\"} 0\n\
            kubernetes_feature_enabled{name=\"MultiCIDRServiceAllocator\",stage=\"\"} 1\n";
        let gates = parse_feature_gates(metrics);
        assert!(gates[&Gate::MultiCidrServiceAllocator]);
        assert!(!gates[&Gate::DisableAllocatorDualWrite]);
        assert_eq!(gates.len(), 2);
    }
}
