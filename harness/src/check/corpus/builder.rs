//! Recordings written by hand, step by step.

use crate::bitmap::AllocationBitmap;
use crate::check::{CaseContext, Rule};
use crate::gates::{AllocatorMode, Gate};
use crate::history::{
    Change, Completeness, End, Entry, Micros, Observation, Operation, OperationKind, Outcome, RangeKey, Revision,
    ServerId, ServiceKey, ServiceType, Side, StoredIpAddress, StoredRange, StoredService, StoredServiceCidr, Topology,
    TopologyEvent,
};
use crate::net::ServiceRange;
use crate::server::ServerSpec;
use crate::version::KubeVersion;
use ipnet::IpNet;
use std::net::IpAddr;

/// A server with one range in the given mode: 1.33, where all three are possible.
pub(in crate::check) fn spec(mode: AllocatorMode, range: &str) -> ServerSpec {
    let spec = ServerSpec::new(KubeVersion::new(33, 13)).ranges(&[net(range)]);
    match mode {
        AllocatorMode::Bitmap => spec.gate(Gate::MultiCidrServiceAllocator, false),
        AllocatorMode::DualWrite => spec,
        AllocatorMode::IpAddress => spec.gate(Gate::DisableAllocatorDualWrite, true),
    }
}

pub(in crate::check) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub(in crate::check) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(in crate::check) fn key(name: &str) -> ServiceKey {
    ServiceKey { namespace: "default".into(), name: name.into() }
}

/// Builds a recording step by step; a step takes 10 ms unless `wait` says more.
pub(in crate::check) struct Recording {
    pub entries: Vec<Entry>,
    pub at: u64,
    pub revision: i64,
    pub range: IpNet,
    pub bitmap: AllocationBitmap,
    uids: u32,
    /// How long the next call takes, in microseconds.
    taking: u64,
}

pub(in crate::check) const RANGE: &str = "10.0.0.0/27";
pub(in crate::check) const A: ServerId = ServerId(0);
pub(in crate::check) const B: ServerId = ServerId(1);

impl Recording {
    /// Servers A, B and so on in these modes with [`RANGE`], ready, and the default ServiceCIDR.
    pub fn of(modes: &[AllocatorMode]) -> Self {
        Recording::with(RANGE, modes)
    }

    pub fn with(range: &str, modes: &[AllocatorMode]) -> Self {
        let bitmap = AllocationBitmap::empty(ServiceRange::new(net(range)).unwrap());
        let mut it = Recording {
            entries: Vec::new(),
            at: 0,
            revision: 1,
            range: net(range),
            bitmap,
            uids: 0,
            taking: 1_000_000,
        };
        for (index, mode) in modes.iter().enumerate() {
            let server = ServerId(index as u8);
            it.start(server, spec(*mode, range)).topology(TopologyEvent::Ready { server });
        }
        it.cidr("kubernetes", range, None).wait(20)
    }

    pub fn tick(&mut self) -> Micros {
        self.at += 10_000;
        Micros(self.at)
    }

    pub fn wait(mut self, seconds: u64) -> Self {
        self.at += seconds * 1_000_000;
        self
    }

    fn topology(&mut self, event: TopologyEvent) -> &mut Self {
        let at = self.tick();
        self.entries.push(Entry::Topology(Topology { at, event }));
        self
    }

    pub fn start(&mut self, server: ServerId, spec: ServerSpec) -> &mut Self {
        self.topology(TopologyEvent::Started { server, spec, command: Vec::new() })
    }

    pub fn event(mut self, event: TopologyEvent) -> Self {
        self.topology(event);
        self
    }

    pub fn started(mut self, server: ServerId, mode: AllocatorMode) -> Self {
        self.start(server, spec(mode, RANGE));
        self
    }

    pub fn ready(self, server: ServerId) -> Self {
        self.event(TopologyEvent::Ready { server })
    }

    pub fn killed(self, server: ServerId) -> Self {
        self.event(TopologyEvent::Killed { server })
    }

    pub fn change(mut self, change: Change) -> Self {
        let at = self.tick();
        self.revision += 1;
        self.entries.push(Entry::Revision(Revision { revision: self.revision, at, change }));
        self
    }

    pub fn cidr(self, name: &str, range: &str, ready: Option<bool>) -> Self {
        self.cidr_with(name, range, ready, false)
    }

    pub fn cidr_with(self, name: &str, range: &str, ready: Option<bool>, deleting: bool) -> Self {
        let (cidrs, api_version) = (vec![net(range)], "networking.k8s.io/v1".to_string());
        self.change(Change::PutServiceCidr(StoredServiceCidr {
            name: name.into(),
            cidrs,
            ready,
            deleting,
            api_version,
        }))
    }

    pub fn bits(mut self, set: &[&str], clear: &[&str]) -> Self {
        set.iter().for_each(|it| drop(self.bitmap.insert(ip(it))));
        clear.iter().for_each(|it| assert!(self.bitmap.remove(ip(it)), "{it} must be set"));
        let (key, range) = (RangeKey::Primary, Some(self.range));
        let data = self.bitmap.encode();
        self.change(Change::PutRange(StoredRange { key, range, data }))
    }

    pub fn bit(self, address: &str) -> Self {
        self.bits(&[address], &[])
    }

    pub fn clear(self, address: &str) -> Self {
        self.bits(&[], &[address])
    }

    pub fn object(self, address: &str, parent: &str) -> Self {
        self.object_with(address, parent, true)
    }

    pub fn object_with(self, address: &str, parent: &str, managed: bool) -> Self {
        let (parent, api_version) = (Some(key(parent)), "networking.k8s.io/v1".to_string());
        self.change(Change::PutIpAddress(StoredIpAddress { ip: ip(address), parent, managed, api_version }))
    }

    pub fn no_object(self, address: &str) -> Self {
        self.change(Change::DeleteIpAddress(ip(address)))
    }

    pub fn service(self, name: &str, address: &str) -> Self {
        self.service_with(name, &format!("uid-{name}"), ServiceType::ClusterIp, &[address], false)
    }

    pub fn service_with(self, name: &str, uid: &str, service_type: ServiceType, ips: &[&str], deleting: bool) -> Self {
        let ips = ips.iter().map(|it| ip(it)).collect();
        let (key, uid) = (key(name), uid.to_string());
        self.change(Change::PutService(StoredService { key, uid, service_type, ips, deleting }))
    }

    /// A deletion through server A that was answered with success.
    pub fn no_service(self, name: &str) -> Self {
        self.no_service_through(A, name)
    }

    pub fn no_service_through(self, server: ServerId, name: &str) -> Self {
        self.vanished(name).deletion(server, name, 20_000)
    }

    /// A deletion that was answered with success and changes nothing.
    pub fn deleted_in_vain(self, server: ServerId, name: &str) -> Self {
        self.deletion(server, name, 5_000)
    }

    fn deletion(self, server: ServerId, name: &str, took: u64) -> Self {
        let outcome = Outcome::Ok { granted: Vec::new(), uid: format!("uid-{name}"), revision: self.revision };
        self.operation(server, OperationKind::DeleteService { service: key(name) }, took, outcome)
    }

    /// A call of a client of its own that returns now, after this many microseconds.
    fn operation(mut self, server: ServerId, kind: OperationKind, took: u64, outcome: Outcome) -> Self {
        let returned = self.tick();
        self.uids += 1;
        let (client, invoked) = (self.uids as u16, Micros(returned.0.saturating_sub(took)));
        let operation = Operation { client, server, kind, invoked, returned, outcome };
        self.entries.push(Entry::Operation(Box::new(operation)));
        self
    }

    /// A Service is removed, and nobody asked for it.
    pub fn vanished(self, name: &str) -> Self {
        self.change(Change::DeleteService(key(name)))
    }

    /// Makes the next call take this long; otherwise it is a second.
    pub fn taking(mut self, millis: u64) -> Self {
        self.taking = millis * 1_000;
        self
    }

    /// A creation that took the last second, or as long as [`Recording::taking`] says.
    pub fn call(mut self, server: ServerId, name: &str, wanted: &[&str], outcome: Outcome) -> Self {
        let returned = self.tick();
        let kind =
            OperationKind::CreateService { service: key(name), wanted: wanted.iter().map(|it| ip(it)).collect() };
        self.uids += 1;
        self.entries.push(Entry::Operation(Box::new(Operation {
            client: self.uids as u16,
            server,
            kind,
            invoked: Micros(returned.0.saturating_sub(std::mem::replace(&mut self.taking, 1_000_000))),
            returned,
            outcome,
        })));
        self
    }

    /// A change of type to ExternalName that took the last second.
    pub fn type_changed(mut self, server: ServerId, name: &str, ok: bool) -> Self {
        let returned = self.tick();
        self.uids += 1;
        let outcome = if ok {
            Outcome::Ok { granted: Vec::new(), uid: format!("uid-{name}"), revision: self.revision }
        } else {
            Outcome::Refused { code: 409, reason: "Conflict".into(), message: "changed meanwhile".into() }
        };
        self.entries.push(Entry::Operation(Box::new(Operation {
            client: self.uids as u16,
            server,
            kind: OperationKind::ChangeType { service: key(name), service_type: ServiceType::ExternalName },
            invoked: Micros(returned.0.saturating_sub(1_000_000)),
            returned,
            outcome,
        })));
        self
    }

    /// A change of type to ExternalName whose answer was cut off.
    pub fn change_cut_off(self, server: ServerId, name: &str) -> Self {
        let outcome = Outcome::Unknown { detail: "connection reset".into() };
        self.type_call(server, name, ServiceType::ExternalName, outcome)
    }

    /// A change of type to ClusterIP that was granted this address.
    pub fn type_changed_to_cluster_ip(self, server: ServerId, name: &str, address: &str) -> Self {
        let (uid, revision) = (format!("uid-{name}"), self.revision);
        let outcome = Outcome::Ok { granted: vec![ip(address)], uid, revision };
        self.type_call(server, name, ServiceType::ClusterIp, outcome)
    }

    fn type_call(self, server: ServerId, name: &str, service_type: ServiceType, outcome: Outcome) -> Self {
        self.operation(server, OperationKind::ChangeType { service: key(name), service_type }, 1_000_000, outcome)
    }

    /// A creation of a Service without addresses.
    pub fn granted_nothing(self, server: ServerId, name: &str) -> Self {
        let (uid, revision) = (format!("uid-{name}"), self.revision);
        self.call(server, name, &[], Outcome::Ok { granted: Vec::new(), uid, revision })
    }

    /// A creation that asked for an address and was refused it as taken.
    pub fn refused_static(self, server: ServerId, name: &str, address: &str) -> Self {
        let message = "failed to allocate IP: provided IP is already allocated".to_string();
        self.call(server, name, &[address], Outcome::Refused { code: 422, reason: "Invalid".into(), message })
    }

    pub fn ok(self, server: ServerId, name: &str, wanted: &[&str], granted: &str) -> Self {
        let (uid, revision) = (format!("uid-{name}"), self.revision);
        self.call(server, name, wanted, Outcome::Ok { granted: vec![ip(granted)], uid, revision })
    }

    pub fn refused(self, server: ServerId, name: &str, wanted: &[&str], message: &str) -> Self {
        let reason = "InternalError".to_string();
        self.call(server, name, wanted, Outcome::Refused { code: 500, reason, message: message.into() })
    }

    /// A creation whose answer was cut off by the stop of its server.
    pub fn unknown(mut self, server: ServerId, name: &str, wanted: &[&str]) -> Self {
        self.topology(TopologyEvent::Stopping { server });
        self.call(server, name, wanted, Outcome::Unknown { detail: "time-out".into() })
    }

    /// A static creation as a server in this mode does it: every lock, the Service, the answer.
    pub fn create(self, server: ServerId, mode: AllocatorMode, name: &str, address: &str) -> Self {
        self.locked(mode, name, address).service(name, address).ok(server, name, &[address], address)
    }

    /// The same with the address left to the server.
    pub fn pick(self, server: ServerId, mode: AllocatorMode, name: &str, address: &str) -> Self {
        self.locked(mode, name, address).service(name, address).ok(server, name, &[], address)
    }

    pub fn locked(self, mode: AllocatorMode, name: &str, address: &str) -> Self {
        let it = if mode.writes_bitmap() { self.bit(address) } else { self };
        if mode.writes_ip_addresses() { it.object(address, name) } else { it }
    }

    /// A deletion as a server in this mode does it.
    pub fn delete(self, mode: AllocatorMode, name: &str, address: &str) -> Self {
        let it = self.no_service(name);
        let it = if mode.writes_bitmap() { it.clear(address) } else { it };
        if mode.writes_ip_addresses() { it.no_object(address) } else { it }
    }

    pub fn duplicate_event(mut self, name: &str) -> Self {
        let at = self.tick();
        let observation = Observation::Event {
            reason: "ClusterIPAlreadyAllocated".into(),
            regarding: format!("Service/{}", key(name)),
            note: String::new(),
            reporter: "ipallocator-repair-controller".into(),
            count: 1,
        };
        self.entries.push(Entry::Side(Side { at, observation }));
        self
    }

    pub fn end(mut self) -> Vec<Entry> {
        let at = self.tick();
        let (last_revision, completeness) = (self.revision, Completeness::Complete);
        self.entries.push(Entry::End(End { at, last_revision, completeness }));
        self.entries
    }
}

/// A recording and what it must be judged as.
pub(in crate::check) struct Case {
    pub name: &'static str,
    pub context: CaseContext,
    pub entries: Vec<Entry>,
    pub broken: Vec<Rule>,
}
