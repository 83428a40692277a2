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
    let config = without_retries(config.map_err(|error| failed(error.to_string()))?);
    kube::Client::try_from(config).map_err(|error| failed(error.to_string()))
}

/// The same configuration with retries off and bounded times.
pub fn without_retries(mut config: kube::Config) -> kube::Config {
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(REQUEST_TIMEOUT);
    config.write_timeout = Some(REQUEST_TIMEOUT);
    config
}

/// What a server says to `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Ready.
    Ready,
    /// It answers, and these checks fail.
    Failing(Vec<String>),
    /// It does not answer, for this reason.
    Silent(String),
}

impl Readiness {
    /// Content if ready, else what is missing.
    ///
    /// # Errors
    /// Not ready.
    pub fn required(self) -> Result<(), NotYet> {
        match self {
            Readiness::Ready => Ok(()),
            Readiness::Failing(checks) => Err(NotYet::new(format!("readyz: {}", checks.join(", ")))),
            Readiness::Silent(why) => Err(NotYet::new(format!("an answer of /readyz ({why})"))),
        }
    }
}

/// Asks a server whether it is ready.
pub async fn readyz(client: &kube::Client) -> Readiness {
    match get_text(client, "/readyz?verbose").await {
        Ok(_) => Readiness::Ready,
        Err(kube::Error::Api(status)) => {
            let failing = failing_checks(&status.message);
            let unnamed = || vec![format!("HTTP {}", status.code)];
            Readiness::Failing(if failing.is_empty() { unnamed() } else { failing })
        }
        Err(error) => Readiness::Silent(root_cause(&error)),
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

/// The metrics of a server about ClusterIPs, name and labels with their value: how full its allocators think the
/// ranges are, what they granted and refused, and what the bitmap repair found. Histogram buckets are left out.
///
/// # Errors
/// The server does not answer.
pub async fn allocator_metrics(client: &kube::Client) -> Result<Vec<(String, f64)>, kube::Error> {
    Ok(parse_allocator_metrics(&get_text(client, "/metrics").await?))
}

fn parse_allocator_metrics(metrics: &str) -> Vec<(String, f64)> {
    const PREFIXES: [&str; 2] = ["kube_apiserver_clusterip_allocator_", "apiserver_clusterip_repair_"];
    let chosen = metrics.lines().filter(|line| {
        PREFIXES.iter().any(|prefix| line.starts_with(prefix)) && !line.contains("_bucket{") && !line.starts_with('#')
    });
    let pairs = chosen.filter_map(|line| line.rsplit_once(' '));
    pairs.filter_map(|(name, value)| Some((name.trim().to_string(), value.parse().ok()?))).collect()
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
    fn the_metrics_about_cluster_ips_are_picked() {
        let metrics = "# TYPE kube_apiserver_clusterip_allocator_allocated_ips gauge\n\
            kube_apiserver_clusterip_allocator_allocated_ips{cidr=\"10.0.0.0/24\"} 12\n\
            kube_apiserver_clusterip_allocator_allocation_duration_seconds_bucket{cidr=\"10.0.0.0/24\",le=\"1\"} 3\n\
            apiserver_clusterip_repair_ip_errors_total{type=\"leak\"} 2\n\
            apiserver_request_total{code=\"200\"} 7\n";
        let seen = parse_allocator_metrics(metrics);
        let named = |name: &str, value| (name.to_string(), value);
        assert_eq!(
            seen,
            [
                named("kube_apiserver_clusterip_allocator_allocated_ips{cidr=\"10.0.0.0/24\"}", 12.0),
                named("apiserver_clusterip_repair_ip_errors_total{type=\"leak\"}", 2.0),
            ]
        );
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
