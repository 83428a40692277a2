//! The flags of etcd, kube-apiserver and kube-controller-manager, from where they lie and listen.

use crate::gates::Gate;
use crate::history::ServerId;
use crate::pki::Pki;
use crate::server::{ServerSpec, SpecError};
use crate::version::{KubeVersion, Minor};
use serde_json::{Value, json};
use std::net::SocketAddrV4;
use std::path::Path;

/// Where an etcd lies and listens.
#[derive(Debug, Clone, Copy)]
pub(super) struct EtcdPlace<'a> {
    /// The directory of its data.
    pub data: &'a Path,
    /// Where it listens for clients.
    pub clients: SocketAddrV4,
    /// Where it listens for members that there are none of.
    pub peers: SocketAddrV4,
    /// The URL at which clients reach it.
    pub url: &'a str,
}

/// The flags of an etcd of one member on scratch data.
pub(super) fn etcd_flags(place: &EtcdPlace<'_>) -> Vec<String> {
    let EtcdPlace { data, clients, peers, url } = place;
    vec![
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls=http://{clients}"),
        format!("--advertise-client-urls={url}"),
        format!("--listen-peer-urls=http://{peers}"),
        format!("--initial-advertise-peer-urls=http://{peers}"),
        format!("--initial-cluster=default=http://{peers}"),
        // One member on scratch data: no fsync, and an election that costs 0.1 s instead of 1 s.
        "--unsafe-no-fsync".into(),
        "--heartbeat-interval=10".into(),
        "--election-timeout=100".into(),
    ]
}

/// Where a kube-apiserver listens and finds what it needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerPlace<'a> {
    /// Where it listens.
    pub listen: SocketAddrV4,
    /// The URL of etcd.
    pub etcd: &'a str,
    /// The directory of its keys.
    pub keys: &'a Path,
}

/// The smallest set of flags that works from 1.31 to 1.37.
pub(super) fn apiserver_flags(id: ServerId, spec: &ServerSpec, place: &ServerPlace<'_>) -> Vec<String> {
    let ServerPlace { listen, etcd, keys } = place;
    let pki = Pki::at(keys);
    let mut flags = vec![
        format!("--etcd-servers={etcd}"),
        // The recording needs every revision from 1 on.
        "--etcd-compaction-interval=0".into(),
        format!("--secure-port={}", listen.port()),
        format!("--bind-address={}", listen.ip()),
        // Never used, but must be set (a host without a default route has none), of the primary family and its own.
        format!("--advertise-address={}", advertise_address(id, spec)),
        format!("--cert-dir={}", keys.display()),
        format!("--tls-cert-file={}", pki.serving.certificate.display()),
        format!("--tls-private-key-file={}", pki.serving.key.display()),
        format!("--client-ca-file={}", pki.ca.display()),
        "--service-account-issuer=https://skewlab.invalid".into(),
        format!("--service-account-key-file={}", pki.service_account_public_key.display()),
        format!("--service-account-signing-key-file={}", pki.service_account_key.display()),
        "--authorization-mode=RBAC".into(),
        "--disable-admission-plugins=ServiceAccount".into(),
        // Servers of one host would fight over the endpoints of the Service `kubernetes`; it is created all the same.
        "--endpoint-reconciler-type=none".into(),
        "--allow-privileged=true".into(),
    ];
    flags.extend(spec_flags(spec));
    flags
}

/// The flags that a specification decides.
pub(super) const SPEC_FLAGS: [&str; 4] =
    ["emulated-version", "feature-gates", "runtime-config", "service-cluster-ip-range"];

/// The flags that make a kube-apiserver what its specification says.
pub(super) fn spec_flags(spec: &ServerSpec) -> Vec<String> {
    let mut flags = Vec::new();
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
    flags.push(format!("--service-cluster-ip-range={}", spec.ranges_flag()));
    flags
}

fn advertise_address(id: ServerId, spec: &ServerSpec) -> String {
    let ipv4 = spec.service_ranges.first().is_none_or(|net| net.addr().is_ipv4());
    let number = u16::from(id.0) + 1;
    if ipv4 { format!("10.1.0.{number}") } else { format!("fd00:1::{number:x}") }
}

/// Where a kube-controller-manager listens and finds what it needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct ManagerPlace<'a> {
    /// Where it listens.
    pub listen: SocketAddrV4,
    /// Its kubeconfig.
    pub kubeconfig: &'a Path,
    /// The directory of its keys.
    pub keys: &'a Path,
}

/// The flags of a kube-controller-manager with the ServiceCIDR and namespace controllers only, beside this server.
///
/// # Errors
/// A server that no release would start.
pub(super) fn controller_manager_flags(
    version: KubeVersion,
    server: &ServerSpec,
    place: &ManagerPlace<'_>,
) -> Result<Vec<String>, SpecError> {
    let ManagerPlace { listen, kubeconfig, keys } = place;
    let pki = Pki::at(keys);
    let mut flags = vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--secure-port={}", listen.port()),
        format!("--bind-address={}", listen.ip()),
        format!("--tls-cert-file={}", pki.serving.certificate.display()),
        format!("--tls-private-key-file={}", pki.serving.key.display()),
        "--authorization-always-allow-paths=/healthz".into(),
    ];
    flags.extend(role_flags(version, server)?);
    Ok(flags)
}

/// The flags that the role of a kube-controller-manager decides.
pub(super) const ROLE_FLAGS: [&str; 3] = ["controllers", "feature-gates", "leader-elect"];

/// The flags that make a kube-controller-manager one with two controllers, alone beside this server.
///
/// # Errors
/// A server that no release would start.
pub(super) fn role_flags(version: KubeVersion, server: &ServerSpec) -> Result<Vec<String>, SpecError> {
    let mut flags =
        vec!["--controllers=service-cidr-controller,namespace-controller".into(), "--leader-elect=false".into()];
    // From 1.34 on the gate is locked; before it the controller must follow its apiserver.
    if version.minor < Minor(34) {
        let gate = Gate::MultiCidrServiceAllocator;
        flags.push(format!("--feature-gates={gate}={}", server.effective_gates()?[&gate]));
    }
    Ok(flags)
}

/// How one server is reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entrance<'a> {
    /// Its URL.
    pub url: &'a str,
    /// The name in its certificate, where that is not the host of the URL.
    pub certified_as: Option<&'a str>,
}

/// A kubeconfig for one server, as the administrator: without service account tokens nobody else has a role.
pub(super) fn kubeconfig_text(entrance: &Entrance<'_>, name: &str, keys: &Path) -> String {
    let pki = Pki::at(keys);
    let mut cluster = json!({"server": entrance.url, "certificate-authority": pki.ca});
    if let Some(certified) = entrance.certified_as {
        cluster["tls-server-name"] = certified.into();
    }
    kubeconfig_of(name, &cluster, &json!({"client-certificate": pki.admin.certificate, "client-key": pki.admin.key}))
}

/// A kubeconfig with one context of this name.
pub(super) fn kubeconfig_of(name: &str, cluster: &Value, user: &Value) -> String {
    // JSON is YAML, and every reader of kubeconfigs takes it.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    });
    format!("{config:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::combo;
    use crate::gates::AllocatorMode;
    use std::net::Ipv4Addr;

    fn place(keys: &Path) -> ServerPlace<'_> {
        ServerPlace { listen: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 6443), etcd: "http://etcd:2379", keys }
    }

    #[test]
    fn a_server_listens_where_it_is_told_and_finds_its_keys_in_the_given_directory() {
        let flags = apiserver_flags(ServerId(1), &combo::v1_33(AllocatorMode::Bitmap), &place(Path::new("/keys")));
        for flag in [
            "--etcd-servers=http://etcd:2379",
            "--secure-port=6443",
            "--bind-address=0.0.0.0",
            "--advertise-address=10.1.0.2",
            "--tls-cert-file=/keys/serving.crt",
            "--client-ca-file=/keys/ca.crt",
            "--feature-gates=MultiCIDRServiceAllocator=false",
        ] {
            assert!(flags.iter().any(|it| it == flag), "{flag} is not in {flags:?}");
        }
    }

    #[test]
    fn a_controller_manager_follows_the_gate_of_its_server_until_it_is_locked() {
        let listen = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 10257);
        let place = ManagerPlace { listen, kubeconfig: Path::new("/kubeconfig"), keys: Path::new("/keys") };
        let gate = |mode, minor| {
            let version = KubeVersion::new(minor, 0);
            let flags = controller_manager_flags(version, &combo::v1_33(mode), &place).unwrap();
            flags.into_iter().find_map(|flag| flag.strip_prefix("--feature-gates=").map(str::to_string))
        };
        assert_eq!(gate(AllocatorMode::Bitmap, 33).as_deref(), Some("MultiCIDRServiceAllocator=false"));
        assert_eq!(gate(AllocatorMode::DualWrite, 33).as_deref(), Some("MultiCIDRServiceAllocator=true"));
        assert_eq!(gate(AllocatorMode::DualWrite, 34), None);
    }

    #[test]
    fn a_kubeconfig_names_the_certificate_only_where_the_url_does_not() {
        let text = |certified_as| kubeconfig_text(&Entrance { url: "https://a:1", certified_as }, "a", Path::new("/k"));
        assert!(text(Some("localhost")).contains(r#""tls-server-name": "localhost""#));
        assert!(!text(None).contains("tls-server-name"));
        assert!(text(None).contains("/k/admin.key"));
    }
}
