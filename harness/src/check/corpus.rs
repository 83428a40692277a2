//! Small recordings, each with the rules it breaks: what the rules and their mutants are measured with.

mod builder;

pub(super) use builder::*;

use super::{CaseContext, Rule};
use crate::bitmap::AllocationBitmap;
use crate::gates::AllocatorMode;
use crate::history::{Change, Micros, Outcome, RangeKey, ServiceType, StoredRange, TopologyEvent};
use crate::net::ServiceRange;
fn case(name: &'static str, broken: &[Rule], recording: Recording) -> Case {
    let context = CaseContext { events_recorded: true, ..CaseContext::default() };
    Case { name, context, entries: recording.end(), broken: broken.to_vec() }
}

/// The corpus.
pub(super) fn corpus() -> Vec<Case> {
    [allocation(), locks(), bitmaps(), repair(), refusals(), latencies()].into_iter().flatten().collect()
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
                .service_with("a", "uid-a", ServiceType::ClusterIp, &["10.0.0.9"], true)
                .create(B, IpAddress, "b", "10.0.0.9")
        }),
        case("an address is granted again after its Service is gone", &[], {
            pair()
                .create(A, Bitmap, "a", "10.0.0.9")
                .no_service("a")
                .create(B, IpAddress, "b", "10.0.0.9")
                .clear("10.0.0.9")
        }),
        case("a Service vanishes", &[Rule::S11], {
            Recording::of(&[IpAddress]).create(A, IpAddress, "a", "10.0.0.9").vanished("a").no_object("10.0.0.9")
        }),
        case("a deletion that does nothing", &[Rule::S11], {
            let it = Recording::of(&[IpAddress]).create(A, IpAddress, "a", "10.0.0.9").wait(5).no_service("a");
            it.service("a", "10.0.0.9").wait(30).deleted_in_vain(A, "a")
        }),
        case("the second family of a Service changes", &[Rule::S2], {
            let both = |it: Recording, second| {
                it.service_with("a", "uid-a", ServiceType::ClusterIp, &["10.0.0.9", second], false)
            };
            both(both(Recording::of(&[IpAddress]).object("10.0.0.9", "a"), "fd00::9"), "fd00::a")
        }),
        case("dual write takes the IPAddress of a static address first", &[Rule::S12], {
            Recording::of(&[DualWrite])
                .bits(&[], &[])
                .object("10.0.0.9", "a")
                .bit("10.0.0.9")
                .service("a", "10.0.0.9")
                .ok(A, "a", &["10.0.0.9"], "10.0.0.9")
        }),
        case("the first ClusterIP changes", &[Rule::S2], {
            Recording::of(&[IpAddress])
                .create(A, IpAddress, "a", "10.0.0.9")
                .object("10.0.0.10", "a")
                .service_with("a", "uid-a", ServiceType::ClusterIp, &["10.0.0.10"], false)
                .no_object("10.0.0.9")
        }),
        case("ExternalName gives its address up and gets another", &[], {
            Recording::of(&[IpAddress])
                .create(A, IpAddress, "a", "10.0.0.9")
                .service_with("a", "uid-a", ServiceType::ExternalName, &[], false)
                .no_object("10.0.0.9")
                .object("10.0.0.10", "a")
                .service_with("a", "uid-a", ServiceType::ClusterIp, &["10.0.0.10"], false)
        }),
        case("a second address is added", &[], {
            Recording::of(&[IpAddress]).create(A, IpAddress, "a", "10.0.0.9").object("10.0.0.10", "a").service_with(
                "a",
                "uid-a",
                ServiceType::ClusterIp,
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
                ServiceType::ClusterIp,
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
                .service_with("a", "uid-a", ServiceType::ExternalName, &[], false)
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
                .service_with("a", "uid-2", ServiceType::ClusterIp, &["10.0.0.9"], false)
                .no_object("10.0.0.9")
        }),
        case("the IPAddress of a live Service is removed when every release is long over", &[Rule::S7], {
            Recording::of(&[IpAddress])
                .create(A, IpAddress, "a", "10.0.0.9")
                .no_service("a")
                .service_with("a", "uid-2", ServiceType::ClusterIp, &["10.0.0.9"], false)
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
                .event(TopologyEvent::FaultEnd { fault: "etcd paused".into() })
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
            Recording::of(&[IpAddress]).create(A, IpAddress, "a", "10.0.0.9").no_service("a").wait(300)
        }),
        case("an orphan is removed after its minute", &[], {
            Recording::of(&[IpAddress])
                .create(A, IpAddress, "a", "10.0.0.9")
                .no_service("a")
                .wait(62)
                .no_object("10.0.0.9")
                .wait(100)
        }),
        case("an orphan is removed a minute after the resync that saw it too young", &[], {
            Recording::of(&[IpAddress])
                .create(A, IpAddress, "a", "10.0.0.9")
                .no_service("a")
                .wait(238)
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
        case("a server that ends by itself at its start", &[Rule::E5], {
            let log = vec!["panic".to_string()];
            Recording::of(&[IpAddress]).started(B, IpAddress).event(TopologyEvent::Exited { server: B, log })
        }),
        case("a server that is stopped at its start", &[], {
            Recording::of(&[IpAddress])
                .started(B, IpAddress)
                .wait(20)
                .event(TopologyEvent::Stopped { server: B })
                .wait(90)
        }),
    ]
}

/// A recording that is judged with the latency bound of KEP-1880, 500 ms.
fn timed(name: &'static str, broken: &[Rule], recording: Recording) -> Case {
    let mut case = case(name, broken, recording);
    case.context.latency_bound = Some(Micros(500_000));
    case
}

fn latencies() -> Vec<Case> {
    let create = |millis: u64| {
        let it = Recording::of(&[IpAddress]).locked(IpAddress, "a", "10.0.0.20").service("a", "10.0.0.20");
        it.taking(millis).ok(A, "a", &[], "10.0.0.20")
    };
    vec![
        timed("a creation that takes 501 ms", &[Rule::E7], create(501)),
        timed("a creation that takes 500 ms", &[], create(500)),
        case("a creation that takes ten seconds and no bound", &[], create(10_000)),
        timed("a refusal that takes 501 ms is none of a granted creation", &[], {
            Recording::of(&[IpAddress]).taking(501).refused(A, "a", &["10.0.0.20"], "denied by policy")
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
            Recording::of(&[DualWrite, IpAddress]).create(B, IpAddress, "b", "10.0.0.20").wait(60).refused(
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
        case("an address that a Service holds is refused", &[], {
            Recording::of(&[IpAddress]).create(A, IpAddress, "b", "10.0.0.9").refused(A, "a", &["10.0.0.9"], TAKEN)
        }),
        case("an address is refused that neither Service nor lock holds", &[Rule::E8], {
            Recording::of(&[IpAddress]).refused(A, "a", &["10.0.0.9"], TAKEN)
        }),
        case("an address is refused whose Service is deleted meanwhile", &[], {
            let it = Recording::of(&[IpAddress]).create(A, IpAddress, "b", "10.0.0.9");
            it.delete(IpAddress, "b", "10.0.0.9").refused(A, "a", &["10.0.0.9"], TAKEN)
        }),
        case("an address is refused whose Service went a minute ago, with its lock", &[Rule::E8], {
            let it = Recording::of(&[IpAddress]).create(A, IpAddress, "b", "10.0.0.9");
            it.delete(IpAddress, "b", "10.0.0.9").wait(60).refused(A, "a", &["10.0.0.9"], TAKEN)
        }),
        case("a paused server is excused", &[], {
            Recording::of(&[IpAddress])
                .event(TopologyEvent::Paused { server: A })
                .event(TopologyEvent::Resumed { server: A })
                .refused(A, "a", &[], FULL)
        }),
    ]
}
