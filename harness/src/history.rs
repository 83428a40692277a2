//! The recorded history of one case: every etcd revision that concerns ClusterIPs, every client operation, and what the
//! servers went through meanwhile. Values only; who records is `recorder`, who judges is `check`.

use crate::server::ServerSpec;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

pub mod file;
pub mod replay;

/// Microseconds on the one monotonic clock of a case, 0 at its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Micros(pub u64);

impl Micros {
    /// The instant in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

/// Which server of the case, by its place in the plan, starting at 0. A replaced server keeps its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServerId(pub u8);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server-{}", self.0 + 1)
    }
}

/// Namespace and name of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One thing that was recorded. The entries of a case are in the order in which they were written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A write in etcd.
    Revision(Revision),
    /// A finished client call.
    Operation(Box<Operation>),
    /// Something that happened to a server, or a phase of the scenario.
    Topology(Topology),
    /// A side observation: Kubernetes Event, metric, readyz transition.
    Side(Side),
    /// The end of the recording; without it the recording was cut off.
    End(End),
}

impl Entry {
    /// When it was recorded: receipt of the write, return of the call.
    pub fn at(&self) -> Micros {
        match self {
            Entry::Revision(revision) => revision.at,
            Entry::Operation(operation) => operation.returned,
            Entry::Topology(topology) => topology.at,
            Entry::Side(side) => side.at,
            Entry::End(end) => end.at,
        }
    }
}

/// One write of one key in etcd. A transaction that writes several keys gives several of these with one revision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    /// The etcd revision (mod revision of the key).
    pub revision: i64,
    /// When the watch delivered it.
    pub at: Micros,
    /// What was written.
    pub change: Change,
}

/// What a write did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A Service was stored.
    PutService(StoredService),
    /// A Service was removed.
    DeleteService(ServiceKey),
    /// An IPAddress was stored.
    PutIpAddress(StoredIpAddress),
    /// An IPAddress was removed.
    DeleteIpAddress(IpAddr),
    /// A ServiceCIDR was stored.
    PutServiceCidr(StoredServiceCidr),
    /// A ServiceCIDR was removed.
    DeleteServiceCidr(String),
    /// A bitmap was stored.
    PutRange(StoredRange),
    /// A bitmap was removed.
    DeleteRange(RangeKey),
}

/// What a stored Service says about ClusterIPs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredService {
    /// Namespace and name.
    pub key: ServiceKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `spec.type`.
    pub service_type: ServiceType,
    /// `spec.clusterIPs` without `None` and empty entries, in order.
    pub ips: Vec<IpAddr>,
    /// Whether a deletion timestamp is set (the Service waits for finalizers and still owns its addresses).
    pub deleting: bool,
}

/// `spec.type` of a Service. Only `ExternalName` has no ClusterIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ServiceType {
    /// Reached through its ClusterIP alone.
    #[serde(rename = "ClusterIP")]
    ClusterIp,
    /// Reached through a port of every node as well.
    NodePort,
    /// Reached through a load balancer as well.
    LoadBalancer,
    /// A name only.
    ExternalName,
    /// Anything else, which validation lets no apiserver store.
    #[serde(other)]
    Other,
}

impl ServiceType {
    /// Reads the text of the API.
    pub fn parse(text: &str) -> Self {
        match text {
            "ClusterIP" => ServiceType::ClusterIp,
            "NodePort" => ServiceType::NodePort,
            "LoadBalancer" => ServiceType::LoadBalancer,
            "ExternalName" => ServiceType::ExternalName,
            _ => ServiceType::Other,
        }
    }
}

/// What a stored IPAddress says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredIpAddress {
    /// The address, its name.
    pub ip: IpAddr,
    /// The Service in `spec.parentRef`; `None` for a reference to anything else.
    pub parent: Option<ServiceKey>,
    /// Whether the allocator owns it (`ipaddress.kubernetes.io/managed-by: ipallocator.k8s.io`).
    pub managed: bool,
    /// The stored API version, such as `networking.k8s.io/v1beta1`.
    pub api_version: String,
}

/// What a stored ServiceCIDR says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredServiceCidr {
    /// Its name; `kubernetes` is the default one.
    pub name: String,
    /// `spec.cidrs`.
    pub cidrs: Vec<IpNet>,
    /// The `Ready` condition; `None` when absent, which the allocator takes as ready.
    pub ready: Option<bool>,
    /// Whether a deletion timestamp is set.
    pub deleting: bool,
    /// The stored API version.
    pub api_version: String,
}

/// Which of the two bitmaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RangeKey {
    /// `/registry/ranges/serviceips`, the first range of the flag.
    Primary,
    /// `/registry/ranges/secondaryserviceips`, the second.
    Secondary,
}

/// A stored bitmap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRange {
    /// Which one.
    pub key: RangeKey,
    /// `range`, the CIDR the bits belong to; `None` before the first allocation.
    pub range: Option<IpNet>,
    /// `data`, as in [`crate::bitmap`], hexadecimal on disk.
    #[serde(with = "hex::serde")]
    pub data: Vec<u8>,
}

/// One client call, written when it returned. A client has one call in flight at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Which client.
    pub client: u16,
    /// Which server was asked.
    pub server: ServerId,
    /// What was asked.
    pub kind: OperationKind,
    /// When the call was made.
    pub invoked: Micros,
    /// When it returned.
    pub returned: Micros,
    /// How it ended.
    pub outcome: Outcome,
}

/// What a client asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Create a Service; an empty `wanted` leaves the choice of addresses to the server.
    CreateService {
        /// The new Service, a name no other operation of the case creates unless the scenario says so.
        service: ServiceKey,
        /// The addresses asked for.
        wanted: Vec<IpAddr>,
    },
    /// Delete a Service.
    DeleteService {
        /// Which one.
        service: ServiceKey,
    },
    /// Change `spec.type` to this type.
    ChangeType {
        /// Which Service.
        service: ServiceKey,
        /// The new type.
        service_type: ServiceType,
    },
    /// Write a Service again (update, patch, apply) in a way that may change its addresses, but not its type.
    UpdateService {
        /// Which Service.
        service: ServiceKey,
        /// The addresses asked for, empty if the choice is left to the server.
        wanted: Vec<IpAddr>,
    },
    /// Create a ServiceCIDR.
    CreateServiceCidr {
        /// Its name.
        name: String,
        /// Its ranges.
        cidrs: Vec<IpNet>,
    },
    /// Delete a ServiceCIDR.
    DeleteServiceCidr {
        /// Which one.
        name: String,
    },
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Done.
    Ok {
        /// `spec.clusterIPs` of the answer.
        granted: Vec<IpAddr>,
        /// `metadata.uid` of the answer.
        uid: String,
        /// `metadata.resourceVersion` of the answer.
        revision: i64,
    },
    /// Refused by the server: it says that nothing was stored.
    Refused {
        /// HTTP status.
        code: u16,
        /// `reason` of the Status object.
        reason: String,
        /// `message` of the Status object.
        message: String,
    },
    /// Time-out, broken connection, or an answer that does not say whether the object was stored.
    Unknown {
        /// What was seen.
        detail: String,
    },
}

/// Something that happened to the servers or in the scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// When.
    pub at: Micros,
    /// What.
    pub event: TopologyEvent,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopologyEvent {
    /// A kube-apiserver process was started.
    Started {
        /// Which.
        server: ServerId,
        /// As what.
        spec: ServerSpec,
        /// Its command line.
        command: Vec<String>,
    },
    /// It answered /readyz with ok, and its version and gates were those of the plan.
    Ready {
        /// Which.
        server: ServerId,
    },
    /// It was asked to stop (SIGTERM). From here until it is gone its answers may be cut off.
    Stopping {
        /// Which.
        server: ServerId,
    },
    /// It ended by itself before it was ready.
    Exited {
        /// Which.
        server: ServerId,
        /// What its log of this start says about the reason: the lines that name one, in order.
        log: Vec<String>,
    },
    /// It was stopped in order (SIGTERM) and is gone.
    Stopped {
        /// Which.
        server: ServerId,
    },
    /// It was killed (SIGKILL) and is gone.
    Killed {
        /// Which.
        server: ServerId,
    },
    /// It was paused (SIGSTOP).
    Paused {
        /// Which.
        server: ServerId,
    },
    /// It goes on (SIGCONT).
    Resumed {
        /// Which.
        server: ServerId,
    },
    /// A fault that is not a server's begins, for example a paused etcd.
    FaultBegin {
        /// What.
        fault: String,
    },
    /// The fault ends.
    FaultEnd {
        /// What.
        fault: String,
    },
    /// The scenario itself wrote this etcd revision, past every apiserver: rules about what an apiserver may write do
    /// not hold for it.
    Planted {
        /// The revision etcd answered with.
        revision: i64,
    },
    /// Clients make no calls from here on until `QuietEnd`: eventual rules may be judged.
    QuietBegin,
    /// Clients may call again.
    QuietEnd,
    /// The scenario is over and the servers are about to be stopped: what is open now stays open.
    Teardown,
}

/// A side observation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// When it was seen.
    pub at: Micros,
    /// What was seen.
    pub observation: Observation,
}

/// What can be observed beside revisions and operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Observation {
    /// A Kubernetes Event.
    Event {
        /// Its reason, such as `ClusterIPAlreadyAllocated`.
        reason: String,
        /// Kind and name of the object it is about, `Service/ns/name` or `IPAddress/10.0.0.1`.
        regarding: String,
        /// Its note.
        note: String,
        /// Its reporting controller.
        reporter: String,
        /// How often it was seen.
        count: i32,
    },
    /// A metric of a server.
    Metric {
        /// Whose.
        server: ServerId,
        /// Name and labels as exposed.
        name: String,
        /// Its value; JSON has no word for one that is not finite, it comes back as NaN.
        #[serde(deserialize_with = "number_or_nan")]
        value: f64,
    },
    /// A server's readiness changed.
    Readyz {
        /// Whose.
        server: ServerId,
        /// The failing checks, empty when ready.
        failing: Vec<String>,
    },
}

fn number_or_nan<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// The closing entry of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// When recording ended.
    pub at: Micros,
    /// The etcd revision at which the state was read once more.
    pub last_revision: i64,
    /// Whether the watch had every revision and its replay equals the state at `last_revision`.
    pub completeness: Completeness,
}

/// Whether a recording may be judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Completeness {
    /// Nothing is missing.
    Complete,
    /// Something is missing: the recording says nothing.
    Void {
        /// Why.
        why: String,
    },
}
