//! Small recordings, each with the rules it breaks: what the rules and their mutants are measured with.

use super::{CaseContext, Rule};
use crate::bitmap::AllocationBitmap;
use crate::gates::{AllocatorMode, Gate};
use crate::history::{
    Change, Completeness, End, Entry, Micros, Observation, Operation, OperationKind, Outcome, RangeKey, Revision,
    ServerId, ServiceKey, Side, StoredIpAddress, StoredRange, StoredService, StoredServiceCidr, Topology,
    TopologyEvent,
};
use crate::net::ServiceRange;
use crate::server::ServerSpec;
use crate::version::KubeVersion;
use ipnet::IpNet;
use std::net::IpAddr;

/// A server with one range in the given mode: 1.33, where all three are possible.
pub(super) fn spec(mode: AllocatorMode, range: &str) -> ServerSpec {
    let spec = ServerSpec::new(KubeVersion::new(33, 13)).ranges(&[net(range)]);
    match mode {
        AllocatorMode::Bitmap => spec.gate(Gate::MultiCidrServiceAllocator, false),
        AllocatorMode::DualWrite => spec,
        AllocatorMode::IpAddress => spec.gate(Gate::DisableAllocatorDualWrite, true),
    }
}

pub(super) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn key(name: &str) -> ServiceKey {
    ServiceKey { namespace: "default".into(), name: name.into() }
}

/// Builds a recording step by step; a step takes 10 ms unless `wait` says more.
pub(super) struct Recording {
    pub entries: Vec<Entry>,
    pub at: u64,
    pub revision: i64,
    range: IpNet,
    bitmap: AllocationBitmap,
    uids: u32,
}

pub(super) const RANGE: &str = "10.0.0.0/27";
pub(super) const A: ServerId = ServerId(0);
pub(super) const B: ServerId = ServerId(1);

impl Recording {
    /// Servers A, B and so on in these modes with [`RANGE`], ready, and the default ServiceCIDR.
    pub fn of(modes: &[AllocatorMode]) -> Self {
        Recording::with(RANGE, modes)
    }

    pub fn with(range: &str, modes: &[AllocatorMode]) -> Self {
        let bitmap = AllocationBitmap::empty(ServiceRange::new(net(range)).unwrap());
        let mut it = Recording { entries: Vec::new(), at: 0, revision: 1, range: net(range), bitmap, uids: 0 };
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
        self.service_with(name, &format!("uid-{name}"), "ClusterIP", &[address], false)
    }

    pub fn service_with(self, name: &str, uid: &str, service_type: &str, ips: &[&str], deleting: bool) -> Self {
        let ips = ips.iter().map(|it| ip(it)).collect();
        let (key, uid, service_type) = (key(name), uid.to_string(), service_type.to_string());
        self.change(Change::PutService(StoredService { key, uid, service_type, ips, deleting }))
    }

    pub fn no_service(self, name: &str) -> Self {
        self.change(Change::DeleteService(key(name)))
    }

    /// A creation that took the last second.
    pub fn call(mut self, server: ServerId, name: &str, wanted: &[&str], outcome: Outcome) -> Self {
        let returned = self.tick();
        let kind =
            OperationKind::CreateService { service: key(name), wanted: wanted.iter().map(|it| ip(it)).collect() };
        self.uids += 1;
        self.entries.push(Entry::Operation(Operation {
            client: self.uids as u16,
            server,
            kind,
            invoked: Micros(returned.0.saturating_sub(1_000_000)),
            returned,
            outcome,
        }));
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
        self.entries.push(Entry::Operation(Operation {
            client: self.uids as u16,
            server,
            kind: OperationKind::ChangeType { service: key(name), service_type: "ExternalName".into() },
            invoked: Micros(returned.0.saturating_sub(1_000_000)),
            returned,
            outcome,
        }));
        self
    }

    pub fn ok(self, server: ServerId, name: &str, wanted: &[&str], granted: &str) -> Self {
        let (uid, revision) = (format!("uid-{name}"), self.revision);
        self.call(server, name, wanted, Outcome::Ok { granted: vec![ip(granted)], uid, revision })
    }

    pub fn refused(self, server: ServerId, name: &str, wanted: &[&str], message: &str) -> Self {
        let reason = "InternalError".to_string();
        self.call(server, name, wanted, Outcome::Refused { code: 500, reason, message: message.into() })
    }

    pub fn unknown(self, server: ServerId, name: &str, wanted: &[&str]) -> Self {
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
pub(super) struct Case {
    pub name: &'static str,
    pub context: CaseContext,
    pub entries: Vec<Entry>,
    pub broken: Vec<Rule>,
}

fn case(name: &'static str, broken: &[Rule], recording: Recording) -> Case {
    let context = CaseContext { events_recorded: true, ..CaseContext::default() };
    Case { name, context, entries: recording.end(), broken: broken.to_vec() }
}

/// The corpus.
pub(super) fn corpus() -> Vec<Case> {
    [allocation(), locks(), bitmaps(), repair(), refusals()].into_iter().flatten().collect()
}

use AllocatorMode::{Bitmap, DualWrite, IpAddress};

/// Addresses of the upper band of [`RANGE`], .17 to .30; the lower one is .1 to .16.
fn upper() -> Vec<String> {
    (17..=30).map(|last| format!("10.0.0.{last}")).collect()
}

/// A recording whose upper band is full with Services made by server A.
fn upper_full(mode: AllocatorMode) -> Recording {
    let fill =
        |it: Recording, (index, address): (usize, &String)| it.create(A, mode, &format!("fill-{index}"), address);
    upper().iter().enumerate().fold(Recording::of(&[mode]), fill)
}

/// The same with the lower band full as well.
fn full(mode: AllocatorMode) -> Recording {
    (1..=16).fold(upper_full(mode), |it, last| it.create(A, mode, &format!("low-{last}"), &format!("10.0.0.{last}")))
}

fn allocation() -> Vec<Case> {
    let pair = || Recording::of(&[Bitmap, IpAddress]);
    vec![
        case("a creation in each mode is clean", &[], {
            Recording::of(&[Bitmap]).create(A, Bitmap, "a", "10.0.0.9").wait(300)
        }),
        case("dual write, created and deleted", &[], {
            Recording::of(&[DualWrite])
                .create(A, DualWrite, "a", "10.0.0.9")
                .delete(DualWrite, "a", "10.0.0.9")
                .create(A, DualWrite, "b", "10.0.0.9")
                .wait(300)
        }),
        case("IPAddress only, created and deleted", &[], {
            Recording::of(&[IpAddress])
                .create(A, IpAddress, "a", "10.0.0.9")
                .delete(IpAddress, "a", "10.0.0.9")
                .wait(300)
        }),
        case("one address granted by bitmap and by IPAddress", &[Rule::S1], {
            pair().create(A, Bitmap, "a", "10.0.0.9").create(B, IpAddress, "b", "10.0.0.9")
        }),
        case("a duplicate that lasts one revision", &[Rule::S1], {
            pair().create(A, Bitmap, "a", "10.0.0.9").create(B, IpAddress, "b", "10.0.0.9").no_service("b")
        }),
        case("the address of a Service that waits for finalizers is granted again", &[Rule::S1], {
            pair()
                .create(A, Bitmap, "a", "10.0.0.9")
                .service_with("a", "uid-a", "ClusterIP", &["10.0.0.9"], true)
                .create(B, IpAddress, "b", "10.0.0.9")
        }),
        case("an address is granted again after its Service is gone", &[], {
            pair()
                .create(A, Bitmap, "a", "10.0.0.9")
                .no_service("a")
                .create(B, IpAddress, "b", "10.0.0.9")
                .clear("10.0.0.9")
        }),
        case("the first ClusterIP changes", &[Rule::S2], {
            Recording::of(&[IpAddress])
                .create(A, IpAddress, "a", "10.0.0.9")
                .object("10.0.0.10", "a")
                .service_with("a", "uid-a", "ClusterIP", &["10.0.0.10"], false)
                .no_object("10.0.0.9")
        }),
        case("ExternalName gives its address up and gets another", &[], {
            Recording::of(&[IpAddress])
                .create(A, IpAddress, "a", "10.0.0.9")
                .service_with("a", "uid-a", "ExternalName", &[], false)
                .no_object("10.0.0.9")
                .object("10.0.0.10", "a")
                .service_with("a", "uid-a", "ClusterIP", &["10.0.0.10"], false)
        }),
        case("a second address is added", &[], {
            Recording::of(&[IpAddress]).create(A, IpAddress, "a", "10.0.0.9").object("10.0.0.10", "a").service_with(
                "a",
                "uid-a",
                "ClusterIP",
                &["10.0.0.9", "10.0.0.10"],
                false,
            )
        }),
        case("an address outside the flag of a bitmap server", &[Rule::S3], {
            Recording::of(&[Bitmap]).service("a", "10.9.0.9").ok(A, "a", &["10.9.0.9"], "10.9.0.9")
        }),
        case("the broadcast address", &[Rule::S3], {
            Recording::of(&[IpAddress]).create(A, IpAddress, "a", "10.0.0.31")
        }),
        case("the network address", &[Rule::S3], Recording::of(&[IpAddress]).create(A, IpAddress, "a", "10.0.0.0")),
        case("the last usable address", &[], Recording::of(&[IpAddress]).create(A, IpAddress, "a", "10.0.0.30")),
        case("an address of a ServiceCIDR that has been terminating for a minute", &[Rule::S3], {
            Recording::of(&[IpAddress])
                .cidr("more", "10.1.0.0/24", Some(true))
                .cidr_with("more", "10.1.0.0/24", Some(true), true)
                .wait(60)
                .create(A, IpAddress, "a", "10.1.0.99")
        }),
        case("an address of a ServiceCIDR that is not ready", &[Rule::S3], {
            Recording::of(&[IpAddress]).cidr("more", "10.1.0.0/24", Some(false)).wait(60).create(
                A,
                IpAddress,
                "a",
                "10.1.0.99",
            )
        }),
        case("an address of a ServiceCIDR that has just become terminating", &[], {
            Recording::of(&[IpAddress])
                .cidr("more", "10.1.0.0/24", Some(true))
                .wait(60)
                .cidr_with("more", "10.1.0.0/24", Some(true), true)
                .wait(3)
                .create(A, IpAddress, "a", "10.1.0.99")
        }),
        case(
            "a dynamic address from the upper band",
            &[],
            Recording::of(&[IpAddress]).pick(A, IpAddress, "a", "10.0.0.17"),
        ),
        case("a dynamic address from the lower band of an empty range", &[Rule::S3], {
            Recording::of(&[IpAddress]).pick(A, IpAddress, "a", "10.0.0.16")
        }),
        case("a dynamic address from the lower band when the upper one is full", &[], {
            upper_full(IpAddress).wait(20).pick(A, IpAddress, "a", "10.0.0.16")
        }),
        case("the upper band was full until a moment ago", &[], {
            upper_full(IpAddress).wait(20).delete(IpAddress, "fill-3", "10.0.0.20").pick(A, IpAddress, "a", "10.0.0.16")
        }),
        case("the upper band was full until a minute ago", &[Rule::S3], {
            upper_full(IpAddress).wait(20).delete(IpAddress, "fill-3", "10.0.0.20").wait(60).pick(
                A,
                IpAddress,
                "a",
                "10.0.0.16",
            )
        }),
        case("a bitmap server knows at once that the upper band has room again", &[Rule::S3], {
            upper_full(Bitmap).wait(20).delete(Bitmap, "fill-3", "10.0.0.20").wait(3).pick(A, Bitmap, "a", "10.0.0.16")
        }),
        case(
            "success without a Service",
            &[Rule::S4],
            Recording::of(&[IpAddress]).ok(A, "a", &["10.0.0.9"], "10.0.0.9"),
        ),
        case("success with other addresses than stored", &[Rule::S4], {
            Recording::of(&[IpAddress])
                .object("10.0.0.9", "a")
                .service("a", "10.0.0.9")
                .ok(A, "a", &[], "10.0.0.20")
                .wait(1)
        })
        .also(Rule::S3),
        case("a Service replaced without a deletion", &[Rule::S4], {
            Recording::of(&[IpAddress]).create(A, IpAddress, "a", "10.0.0.9").service_with(
                "a",
                "uid-other",
                "ClusterIP",
                &["10.0.0.9"],
                false,
            )
        }),
        case("refused, but stored", &[Rule::S5], {
            Recording::of(&[IpAddress])
                .object("10.0.0.9", "a")
                .refused(A, "a", &["10.0.0.9"], "denied")
                .service("a", "10.0.0.9")
        }),
        case("refused, and stored half a minute later", &[Rule::S5], {
            Recording::of(&[IpAddress])
                .refused(A, "a", &["10.0.0.9"], "denied")
                .wait(15)
                .event(TopologyEvent::QuietBegin)
                .wait(15)
                .object("10.0.0.9", "a")
                .service("a", "10.0.0.9")
        }),
        case("refused, and stored before the answer", &[Rule::S5], {
            Recording::of(&[IpAddress]).object("10.0.0.9", "a").service("a", "10.0.0.9").refused(
                A,
                "a",
                &["10.0.0.9"],
                "denied",
            )
        }),
        case("refused because the name is taken", &[], {
            Recording::of(&[IpAddress])
                .create(A, IpAddress, "a", "10.0.0.9")
                .call(
                    A,
                    "b",
                    &["10.0.0.10"],
                    Outcome::Refused {
                        code: 409,
                        reason: "AlreadyExists".into(),
                        message: "services \"b\" already exists".into(),
                    },
                )
                .object("10.0.0.10", "b")
                .service("b", "10.0.0.10")
        }),
        case("unknown, and stored", &[], {
            Recording::of(&[IpAddress])
                .object("10.0.0.9", "a")
                .unknown(A, "a", &["10.0.0.9"])
                .wait(40)
                .service("a", "10.0.0.9")
        }),
        case("unknown, stored, and a dynamic address from the lower band", &[Rule::S3], {
            Recording::of(&[IpAddress]).object("10.0.0.9", "a").unknown(A, "a", &[]).service("a", "10.0.0.9")
        }),
        case("another address than asked for", &[Rule::S6], {
            Recording::of(&[IpAddress]).object("10.0.0.20", "a").service("a", "10.0.0.20").ok(
                A,
                "a",
                &["10.0.0.21"],
                "10.0.0.20",
            )
        }),
    ]
}

impl Case {
    fn also(mut self, rule: Rule) -> Self {
        self.broken.push(rule);
        self.broken.sort();
        self
    }
}

fn locks() -> Vec<Case> {
    let held = |mode| Recording::of(&[mode]).create(A, mode, "a", "10.0.0.9").wait(200);
    vec![
        case("the IPAddress of a live Service is removed", &[Rule::S7], held(IpAddress).no_object("10.0.0.9")),
        case("the IPAddress of a live Service is passed on", &[Rule::S7], held(IpAddress).object("10.0.0.9", "other")),
        case("the bit of a live Service is cleared", &[Rule::S7], held(Bitmap).clear("10.0.0.9")),
        case("the bit of a Service is cleared by the change of type that takes its address away", &[], {
            held(Bitmap)
                .clear("10.0.0.9")
                .service_with("a", "uid-a", "ExternalName", &[], false)
                .type_changed(A, "a", true)
        }),
        case("the bit of a Service is cleared by a change of type that was refused", &[Rule::S7], {
            held(Bitmap).clear("10.0.0.9").type_changed(A, "a", false)
        }),
        case("the IPAddress of a Service of the same name that is gone is removed", &[], {
            Recording::of(&[Bitmap, IpAddress])
                .create(B, IpAddress, "a", "10.0.0.9")
                .no_service("a")
                .bit("10.0.0.9")
                .service_with("a", "uid-2", "ClusterIP", &["10.0.0.9"], false)
                .no_object("10.0.0.9")
        }),
        case("the IPAddress of a live Service is removed when every release is long over", &[Rule::S7], {
            Recording::of(&[IpAddress])
                .create(A, IpAddress, "a", "10.0.0.9")
                .no_service("a")
                .service_with("a", "uid-2", "ClusterIP", &["10.0.0.9"], false)
                .wait(90)
                .no_object("10.0.0.9")
        }),
        case("the scenario itself removes an IPAddress", &[], {
            let it = held(IpAddress).no_object("10.0.0.9");
            let revision = it.revision;
            it.event(TopologyEvent::Planted { revision }).object("10.0.0.9", "a")
        }),
        case("dual write without the bit", &[Rule::S9], {
            Recording::of(&[DualWrite]).object("10.0.0.9", "a").bits(&[], &[]).service("a", "10.0.0.9").ok(
                A,
                "a",
                &["10.0.0.9"],
                "10.0.0.9",
            )
        }),
        case("dual write without the IPAddress", &[Rule::S9], {
            Recording::of(&[DualWrite])
                .bit("10.0.0.9")
                .service("a", "10.0.0.9")
                .ok(A, "a", &["10.0.0.9"], "10.0.0.9")
                .object("10.0.0.9", "a")
        }),
        case("dual write with the IPAddress of another Service", &[Rule::S9], {
            Recording::of(&[DualWrite])
                .bit("10.0.0.9")
                .object("10.0.0.9", "other")
                .service("a", "10.0.0.9")
                .ok(A, "a", &["10.0.0.9"], "10.0.0.9")
                .object("10.0.0.9", "a")
        }),
        case("dual write from another ServiceCIDR has no bit", &[], {
            Recording::of(&[DualWrite])
                .bits(&[], &[])
                .cidr("more", "10.1.0.0/24", Some(true))
                .object("10.1.0.99", "a")
                .service("a", "10.1.0.99")
                .ok(A, "a", &["10.1.0.99"], "10.1.0.99")
        }),
        case("dual write whose bitmap has another range has no bit", &[], {
            let mut it = Recording::of(&[DualWrite]);
            it.range = net("10.5.0.0/27");
            it.bitmap = AllocationBitmap::empty(ServiceRange::new(it.range).unwrap());
            it.bits(&[], &[]).object("10.0.0.20", "a").service("a", "10.0.0.20").ok(A, "a", &[], "10.0.0.20")
        }),
    ]
}

fn bitmaps() -> Vec<Case> {
    let put_raw = |it: Recording, range: Option<&str>, data: &[u8]| {
        let (key, range, data) = (RangeKey::Primary, range.map(net), data.to_vec());
        it.change(Change::PutRange(StoredRange { key, range, data }))
    };
    vec![
        case("two bits at once without a bitmap server", &[Rule::S8], {
            Recording::of(&[DualWrite]).bits(&["10.0.0.9", "10.0.0.10"], &[])
        }),
        case("two bits at once by a bitmap server", &[], {
            Recording::of(&[Bitmap]).bits(&["10.0.0.9", "10.0.0.10"], &[])
        }),
        case("two bits at once by a bitmap server that is not ready yet", &[], {
            Recording::of(&[DualWrite]).started(B, Bitmap).bits(&["10.0.0.9", "10.0.0.10"], &[])
        }),
        case("two bits at once long after the bitmap server", &[Rule::S8], {
            Recording::of(&[DualWrite, Bitmap]).killed(B).wait(30).bits(&["10.0.0.9", "10.0.0.10"], &[])
        }),
        case("a bit beyond the range", &[Rule::S8], put_raw(Recording::of(&[Bitmap]), Some(RANGE), &[0x40, 0, 0, 0])),
        case("the last bit of the range", &[], put_raw(Recording::of(&[Bitmap]), Some(RANGE), &[0x20, 0, 0, 0])),
        case("another range while a server with the first runs", &[Rule::S8], {
            put_raw(Recording::of(&[Bitmap]).bits(&[], &[]), Some("10.7.0.0/24"), &[])
        }),
        case("another range after the server with the first is gone", &[], {
            put_raw(Recording::of(&[Bitmap]).bits(&[], &[]).killed(A), Some("10.7.0.0/24"), &[])
        }),
        case("a ServiceCIDR goes back and forth in a quiet phase", &[Rule::S10], {
            (0..5).fold(Recording::of(&[IpAddress]).event(TopologyEvent::QuietBegin), |it, _| {
                it.cidr("kubernetes", RANGE, Some(false)).cidr("kubernetes", RANGE, Some(true))
            })
        }),
        case("a ServiceCIDR goes back and forth three times", &[], {
            (0..2)
                .fold(Recording::of(&[IpAddress]).event(TopologyEvent::QuietBegin), |it, _| {
                    it.cidr("kubernetes", RANGE, Some(false)).cidr("kubernetes", RANGE, Some(true))
                })
                .cidr("kubernetes", RANGE, Some(false))
        }),
    ]
}

fn repair() -> Vec<Case> {
    vec![
        case("an IPAddress never follows a Service", &[Rule::E1], {
            Recording::of(&[Bitmap, IpAddress]).create(A, Bitmap, "a", "10.0.0.9").wait(500)
        }),
        case("an IPAddress follows a Service of a bitmap server", &[], {
            Recording::of(&[Bitmap, IpAddress])
                .create(A, Bitmap, "a", "10.0.0.9")
                .wait(200)
                .object("10.0.0.9", "a")
                .wait(500)
        }),
        case("no IPAddress is due for an address outside every ServiceCIDR", &[], {
            Recording::of(&[IpAddress]).service("a", "10.9.0.9").wait(900)
        }),
        case("no IPAddress is due without a server that repairs them", &[], {
            Recording::of(&[Bitmap]).create(A, Bitmap, "a", "10.0.0.9").wait(900)
        }),
        case("an IPAddress is due once a server that repairs them has come", &[Rule::E1], {
            Recording::of(&[Bitmap])
                .create(A, Bitmap, "a", "10.0.0.9")
                .wait(900)
                .started(B, IpAddress)
                .ready(B)
                .wait(500)
        }),
        case("a server that is paused is not due", &[], {
            Recording::of(&[Bitmap, IpAddress])
                .create(A, Bitmap, "a", "10.0.0.9")
                .event(TopologyEvent::Paused { server: B })
                .wait(900)
                .event(TopologyEvent::Resumed { server: B })
                .wait(100)
        }),
        case("nothing is due during a fault", &[], {
            Recording::of(&[Bitmap, IpAddress])
                .create(A, Bitmap, "a", "10.0.0.9")
                .event(TopologyEvent::FaultBegin { fault: "etcd paused".into() })
                .wait(900)
        }),
        case("a bit never follows a Service", &[Rule::E2], {
            Recording::of(&[Bitmap, IpAddress]).create(B, IpAddress, "a", "10.0.0.9").wait(300)
        }),
        case("a bit follows a Service", &[], {
            Recording::of(&[Bitmap, IpAddress])
                .create(B, IpAddress, "a", "10.0.0.9")
                .wait(170)
                .bit("10.0.0.9")
                .wait(300)
        }),
        case("no bit is due with dual-write servers only", &[], {
            Recording::of(&[DualWrite]).bits(&[], &[]).object("10.0.0.9", "a").service("a", "10.0.0.9").wait(900)
        }),
        case("an orphan stays", &[Rule::E3], {
            Recording::of(&[IpAddress]).create(A, IpAddress, "a", "10.0.0.9").no_service("a").wait(100)
        }),
        case("an orphan is removed after its minute", &[], {
            Recording::of(&[IpAddress])
                .create(A, IpAddress, "a", "10.0.0.9")
                .no_service("a")
                .wait(62)
                .no_object("10.0.0.9")
                .wait(100)
        }),
        case("an IPAddress outside the allocator stays", &[], {
            Recording::of(&[IpAddress]).object_with("255.255.255.255", "a", false).wait(500)
        }),
        case("a leaked bit stays", &[Rule::E3], {
            Recording::of(&[Bitmap]).create(A, Bitmap, "a", "10.0.0.9").no_service("a").wait(700)
        }),
        case("a leaked bit is cleared by the third pass", &[], {
            Recording::of(&[Bitmap])
                .create(A, Bitmap, "a", "10.0.0.9")
                .no_service("a")
                .wait(530)
                .clear("10.0.0.9")
                .wait(100)
        }),
        case("restarts begin the count of passes anew", &[], {
            (0..3).fold(Recording::of(&[Bitmap]).create(A, Bitmap, "a", "10.0.0.9").no_service("a"), |it, _| {
                it.wait(400).killed(A).started(A, Bitmap).ready(A)
            })
        }),
        case("a leaked bit is nobody's duty under dual write", &[], {
            Recording::of(&[DualWrite]).bit("10.0.0.9").wait(900)
        }),
        case("a duplicate that nobody reports", &[Rule::S1, Rule::E4], {
            Recording::of(&[Bitmap, IpAddress])
                .create(A, Bitmap, "a", "10.0.0.9")
                .create(B, IpAddress, "b", "10.0.0.9")
                .wait(300)
        }),
        case("a duplicate that is reported", &[Rule::S1], {
            Recording::of(&[Bitmap, IpAddress])
                .create(A, Bitmap, "a", "10.0.0.9")
                .create(B, IpAddress, "b", "10.0.0.9")
                .wait(170)
                .duplicate_event("b")
                .wait(300)
        }),
        case("a duplicate whose Event is recorded first", &[Rule::S1], {
            Recording::of(&[Bitmap, IpAddress])
                .create(A, Bitmap, "a", "10.0.0.9")
                .locked(IpAddress, "b", "10.0.0.9")
                .duplicate_event("b")
                .service("b", "10.0.0.9")
                .ok(B, "b", &["10.0.0.9"], "10.0.0.9")
                .wait(300)
        }),
        case("a server that never becomes ready", &[Rule::E5], {
            Recording::of(&[IpAddress]).started(B, IpAddress).wait(100)
        }),
        case("a server that becomes ready too late", &[Rule::E5], {
            Recording::of(&[IpAddress]).started(B, IpAddress).wait(90).ready(B)
        }),
        case("a server that exits at its start", &[], {
            Recording::of(&[IpAddress])
                .started(B, IpAddress)
                .wait(20)
                .event(TopologyEvent::Stopped { server: B })
                .wait(90)
        }),
    ]
}

fn refusals() -> Vec<Case> {
    const FULL: &str = "Internal error occurred: failed to allocate a serviceIP: range is full";
    const TAKEN: &str = "Internal error occurred: failed to allocate a serviceIP: provided IP is already allocated";
    const MISMATCH: &str = "failed to allocate a serviceIP: the provided network does not match the current range";
    vec![
        case("range is full with a free range", &[Rule::E6], Recording::of(&[IpAddress]).refused(A, "a", &[], FULL)),
        case("range is full, and it is", &[], full(IpAddress).wait(20).refused(A, "a", &[], FULL)),
        case("range is full, and the watch delivers the last allocation after the answer", &[], {
            (2..=16)
                .fold(upper_full(IpAddress), |it, last| {
                    it.create(A, IpAddress, &format!("low-{last}"), &format!("10.0.0.{last}"))
                })
                .wait(20)
                .refused(A, "a", &[], FULL)
                .create(A, IpAddress, "low-1", "10.0.0.1")
        }),
        case("range is full just after a deletion", &[], {
            full(IpAddress).wait(20).delete(IpAddress, "low-3", "10.0.0.3").refused(A, "a", &[], FULL)
        }),
        case("range is full a minute after a deletion", &[Rule::E6], {
            full(IpAddress).wait(20).delete(IpAddress, "low-3", "10.0.0.3").wait(60).refused(A, "a", &[], FULL)
        }),
        case("a leaked bit is no room for a bitmap server", &[], {
            full(Bitmap).wait(20).no_service("low-3").wait(60).refused(A, "a", &[], FULL)
        }),
        case("an orphan is no room for an IPAddress server", &[], {
            full(IpAddress).wait(20).no_service("low-3").wait(60).refused(A, "a", &[], FULL)
        }),
        case("a second ServiceCIDR is room", &[Rule::E6], {
            full(IpAddress).cidr("more", "10.1.0.0/24", None).wait(20).refused(A, "a", &[], FULL)
        }),
        case("a second ServiceCIDR that is not ready is no room", &[], {
            full(IpAddress).cidr("more", "10.1.0.0/24", Some(false)).wait(20).refused(A, "a", &[], FULL)
        }),
        case("dual write cannot leave its deleted default range", &[Rule::E6], {
            Recording::of(&[DualWrite])
                .cidr("more", "10.1.0.0/24", Some(true))
                .cidr_with("kubernetes", RANGE, Some(false), true)
                .wait(60)
                .refused(A, "a", &[], MISMATCH)
        }),
        case("a stale bitmap makes dynamic creations fail", &[Rule::E6], {
            Recording::of(&[DualWrite]).object("10.0.0.20", "b").service("b", "10.0.0.20").wait(60).refused(
                A,
                "a",
                &[],
                TAKEN,
            )
        }),
        case("a release in progress takes an address away between the locks", &[], {
            Recording::of(&[DualWrite])
                .create(A, DualWrite, "b", "10.0.0.20")
                .no_service("b")
                .clear("10.0.0.20")
                .bit("10.0.0.20")
                .refused(A, "a", &[], TAKEN)
                .no_object("10.0.0.20")
        }),
        case("a refused static address says nothing about room", &[], {
            Recording::of(&[IpAddress]).refused(A, "a", &["10.0.0.9"], TAKEN)
        }),
        case("a paused server is excused", &[], {
            Recording::of(&[IpAddress])
                .event(TopologyEvent::Paused { server: A })
                .event(TopologyEvent::Resumed { server: A })
                .refused(A, "a", &[], FULL)
        }),
    ]
}
