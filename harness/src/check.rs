//! Judges a recording: safety rules at every revision, eventual rules at their deadlines, assumptions before both.
//!
//! One pass over the entries in the order of recording. Memory follows what lives in etcd and what is still undecided,
//! not the length of the recording. Calls are judged a little after their return, when the recorder's watch has
//! delivered what was written before it.

use crate::gates::AllocatorMode;
use crate::history::{
    Change, Entry, Micros, Observation, Operation, Outcome, Revision, ServerId, ServiceKey, Side, StoredService,
    StoredServiceCidr,
};
use crate::net::{Band, ServiceRange};
use crate::refusal::{Refusal, classify};
use crate::server::ServerSpec;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;

mod address;
mod attribution;
mod assumptions;
mod bounds;
mod chart;
mod eventual;
mod explain;
mod finish;
mod halves;
mod occupancy;
mod operations;
mod rules;
mod safety;
mod sometimes;
pub mod synthetic;
mod topology;
mod verdict;
mod violation;
mod world;

#[cfg(test)]
mod attributed;
#[cfg(test)]
mod corpus;
#[cfg(test)]
mod mutants;
#[cfg(test)]
mod unseen;

pub use assumptions::BrokenAssumption;
pub use attribution::{LeftBy, hazard_of_left};
pub use bounds::Bounds;
pub use chart::chart;
pub use explain::explain;
pub use rules::{NOT_JUDGED_WITHOUT_BITMAPS, Rule};
pub use sometimes::Sometimes;
pub use verdict::{
    Drift, Evidence, Judged as TimesJudged, Judgement, Latency, Left, ServerStatistics, Statistics, Unmet,
    VERDICT_FORMAT, Verdict,
};
pub use violation::{Claim, Detail, Duplicate, Lock, Locks, MadeBy, Owner, Violation};

use address::{AddressId, Addresses};
use assumptions::Assumptions;
use attribution::Around;
use eventual::{OpenDuplicate, Waits};
use occupancy::{Occupancy, View};
use topology::Servers;
use verdict::LatencyCounts;
use world::{Bitmap, Cidrs, LifeId, Lives};

/// How many violations of one rule a verdict lists; all are counted.
pub const LISTED_PER_RULE: usize = 10_000;

/// What the judge must know about a case beside its recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseContext {
    /// Conditions without which the case is inconclusive, with how often each must be met.
    #[serde(default)]
    pub required: BTreeMap<Sometimes, u64>,
    /// Whether no two creations of the case use one name. If not, rule S5 is not judged: a stored Service may be another
    /// call's.
    pub names_are_unique: bool,
    /// Whether Kubernetes Events were recorded; without them rule E4 is not judged.
    pub events_recorded: bool,
    /// Rule E7 is judged only with a bound.
    #[serde(default)]
    pub latency_bound: Option<Micros>,
    /// Whether the bitmaps were recorded. Without raw access to etcd they are not, and what rests on them is not judged:
    /// [`NOT_JUDGED_WITHOUT_BITMAPS`].
    #[serde(default = "recorded")]
    pub bitmaps_recorded: bool,
    /// Writes up to this revision were there before the recording began: what they break is not of this case.
    #[serde(default)]
    pub found_until: i64,
}

/// Recordings are of etcd unless they say otherwise.
fn recorded() -> bool {
    true
}

impl Default for CaseContext {
    fn default() -> Self {
        CaseContext {
            required: BTreeMap::new(),
            names_are_unique: true,
            events_recorded: false,
            latency_bound: None,
            bitmaps_recorded: true,
            found_until: 0,
        }
    }
}

/// Judges a recording. The verdict depends on context and entries only: no clock, no randomness, no map order.
pub fn judge(context: &CaseContext, entries: impl IntoIterator<Item = Entry>) -> Verdict {
    judge_by(&Definitions::default(), context, entries)
}

fn judge_by(definitions: &Definitions, context: &CaseContext, entries: impl IntoIterator<Item = Entry>) -> Verdict {
    let mut judge = Judge::new(definitions, context);
    for entry in entries {
        judge.entry(entry);
    }
    judge.finish()
}

/// What the rules take for granted. A value, so that tests can alter one definition and see which rule notices.
#[derive(Debug, Clone)]
struct Definitions {
    bounds: Bounds,
    /// The mode of a server.
    mode: fn(&ServerSpec) -> Option<AllocatorMode>,
    /// Whether a stored Service holds its addresses.
    holds: fn(&StoredService) -> bool,
    /// Whether addresses can be granted from a ServiceCIDR.
    usable: fn(&StoredServiceCidr) -> bool,
    /// The band dynamic addresses come from first.
    upper_band: fn(&ServiceRange) -> Band,
    /// Whether a range can grant an address.
    can_grant: fn(&ServiceRange, IpAddr) -> bool,
    /// Reads a refusal.
    refusal: fn(u16, &str, &str) -> Option<Refusal>,
    /// How long a call took.
    took: fn(&Operation) -> Micros,
    /// Whether a server that repairs IPAddresses runs in this mode.
    repairs_ip_addresses: fn(AllocatorMode) -> bool,
    /// Whether a server that repairs the bitmap runs in this mode.
    repairs_bitmap: fn(AllocatorMode) -> bool,
    /// Whether both locks must be there when a Service of a server in this mode becomes visible.
    holds_both_locks: fn(AllocatorMode) -> bool,
    /// Whose eyes decide what is free for a server in this mode.
    view: fn(AllocatorMode) -> View,
    /// How many bits one allocation changes.
    bits_per_allocation: u32,
    /// How many Services may hold one address.
    owners_allowed: usize,
}

impl Default for Definitions {
    fn default() -> Self {
        Definitions {
            bounds: Bounds::default(),
            mode: |spec| spec.mode().ok(),
            // A Service that waits for finalizers is stored and holds its addresses.
            holds: |_| true,
            // `isReady` of the allocator: no condition counts as ready, a deletion timestamp never does.
            usable: |cidr| cidr.ready != Some(false) && !cidr.deleting,
            upper_band: ServiceRange::dynamic_band,
            can_grant: ServiceRange::can_grant,
            refusal: classify,
            took: |operation| Micros(operation.returned.0.saturating_sub(operation.invoked.0)),
            repairs_ip_addresses: AllocatorMode::writes_ip_addresses,
            repairs_bitmap: |mode| mode == AllocatorMode::Bitmap,
            holds_both_locks: |mode| mode == AllocatorMode::DualWrite,
            view: |mode| match mode {
                AllocatorMode::Bitmap => View::Bits,
                AllocatorMode::DualWrite => View::Either,
                AllocatorMode::IpAddress => View::IpAddresses,
            },
            bits_per_allocation: 1,
            owners_allowed: 1,
        }
    }
}

/// A violation whose Service records are filled in at the end, when every call has been joined to what it stored.
struct Draft {
    rule: Rule,
    revision: i64,
    at: Micros,
    detail: DraftDetail,
    around: Around,
    /// The drafts of the duplicates that were open around it.
    open: Vec<usize>,
}

/// Addresses that a Service gave up, until the call is known that made it do so.
struct Departure {
    at: Micros,
    revision: i64,
    /// The uid if the Service is gone as a whole.
    ended: Option<String>,
    addresses: SmallVec<[AddressId; 2]>,
}

/// How often each rule was due and judged.
#[derive(Debug, Default)]
struct Judged([u64; Rule::ALL.len()]);

impl Judged {
    #[inline]
    fn add(&mut self, rule: Rule, count: u64) {
        self.0[rule as usize] += count;
    }
}

enum DraftDetail {
    Ready(Detail),
    Duplicate { ip: IpAddr, first: LifeId, second: LifeId, ended: Option<i64> },
    RefusedButStored { life: LifeId, refusal: Option<Refusal>, code: u16 },
}

/// A creation that was refused or has an unknown outcome, while it may still show up as stored.
struct Undecided {
    operation: Operation,
    refused: Option<(Option<Refusal>, u16)>,
}

struct Judge<'a> {
    definitions: &'a Definitions,
    context: &'a CaseContext,
    now: Micros,
    last_revision: i64,
    assumptions: Assumptions,
    servers: Servers,
    lives: Lives,
    addresses: Addresses,
    occupancy: Occupancy,
    bitmaps: [Bitmap; 2],
    /// The bits that the write at hand changes; kept for its memory.
    flips: Vec<(IpAddr, bool)>,
    cidrs: Cidrs,
    /// Calls that returned but are not judged yet, with the highest revision any answer had shown until then.
    calls: VecDeque<(Box<Operation>, i64)>,
    highest_answer: i64,
    undecided: FxHashMap<ServiceKey, Undecided>,
    undecided_order: VecDeque<(Micros, ServiceKey)>,
    /// Deleted Services whose creating call may still come.
    over: VecDeque<(Micros, LifeId)>,
    waits: Waits,
    open_duplicates: FxHashMap<IpAddr, Vec<OpenDuplicate>>,
    /// When an Event about a duplicate was last seen, by what it regards: it may be recorded before the duplicate is.
    duplicate_events: FxHashMap<String, Micros>,
    /// By Service, what it gave up lately.
    departures: FxHashMap<Rc<ServiceKey>, SmallVec<[Departure; 1]>>,
    judged: Judged,
    /// Calls that were refused after they may have taken a lock, or were cut off.
    failed_calls: Vec<operations::FailedCall>,
    /// Changes of type that were cut off by the end of their server.
    cut_off_changes: FxHashMap<ServiceKey, Vec<(Micros, Micros)>>,
    /// Addresses taken by their IPAddress and free by their bit; only while dual-write servers were seen.
    halves: halves::Halves,
    /// The locks without a Service when the teardown began.
    left_at_teardown: Option<Vec<(AddressId, Lock, Micros)>>,
    /// Whether the write at hand replaces the range of a bitmap by that of a running server.
    range_written: bool,
    /// Whether anything was stored as `networking.k8s.io/v1`.
    v1_stored: bool,
    modes_seen: operations::ModesSeen,
    next_deadlines: Micros,
    drafts: Vec<Draft>,
    planted: Vec<i64>,
    /// When changes of type took away the addresses of a Service.
    given_up: FxHashMap<ServiceKey, Vec<(Micros, Micros)>>,
    broken: BTreeMap<Rule, u64>,
    pending: BTreeMap<Rule, u64>,
    /// Obligations that were never due, because no server ran that must act.
    off: BTreeMap<Rule, u64>,
    sometimes: BTreeMap<Sometimes, u64>,
    statistics: Statistics,
    answers: BTreeMap<ServerId, (ServerStatistics, LatencyCounts)>,
    race: operations::Race,
    fights: safety::Fights,
}

impl<'a> Judge<'a> {
    fn new(definitions: &'a Definitions, context: &'a CaseContext) -> Self {
        Judge {
            definitions,
            context,
            now: Micros(0),
            last_revision: 0,
            assumptions: Assumptions::default(),
            servers: Servers::default(),
            lives: Lives::default(),
            addresses: Addresses::default(),
            occupancy: Occupancy::default(),
            bitmaps: Default::default(),
            flips: Vec::new(),
            cidrs: Cidrs::default(),
            calls: VecDeque::new(),
            highest_answer: 0,
            undecided: FxHashMap::default(),
            undecided_order: VecDeque::new(),
            over: VecDeque::new(),
            waits: Waits::default(),
            open_duplicates: FxHashMap::default(),
            duplicate_events: FxHashMap::default(),
            departures: FxHashMap::default(),
            judged: Judged::default(),
            failed_calls: Vec::new(),
            cut_off_changes: FxHashMap::default(),
            halves: halves::Halves::default(),
            left_at_teardown: None,
            range_written: false,
            v1_stored: false,
            modes_seen: operations::ModesSeen::default(),
            next_deadlines: Micros(0),
            drafts: Vec::new(),
            planted: Vec::new(),
            given_up: FxHashMap::default(),
            broken: BTreeMap::new(),
            pending: BTreeMap::new(),
            off: BTreeMap::new(),
            sometimes: BTreeMap::new(),
            statistics: Statistics::default(),
            answers: BTreeMap::new(),
            race: operations::Race::default(),
            fights: safety::Fights::default(),
        }
    }

    #[inline]
    fn entry(&mut self, entry: Entry) {
        self.assumptions.watch(&entry, self.definitions, self.context.names_are_unique);
        self.statistics.entries += 1;
        self.advance(entry.at());
        match entry {
            Entry::Revision(revision) => self.revision(revision),
            Entry::Operation(operation) => {
                self.see_race(&operation);
                if let Outcome::Ok { revision, .. } = &operation.outcome {
                    self.highest_answer = self.highest_answer.max(*revision);
                }
                self.calls.push_back((operation, self.highest_answer));
            }
            Entry::Topology(topology) => self.topology(&topology),
            Entry::Side(side) => self.side(&side),
            Entry::End(_) => {}
        }
    }

    /// Moves the clock, and judges what is due by it.
    fn advance(&mut self, at: Micros) {
        self.now = self.now.max(at);
        while let Some((operation, answered)) = self.calls.front() {
            let delivered = operation.returned.0 + self.definitions.bounds.recorder_lag.0 <= self.now.0
                && *answered <= self.last_revision;
            if !delivered {
                break;
            }
            if let Some((operation, _)) = self.calls.pop_front() {
                self.settle(&operation);
            }
        }
        // Deadlines are minutes; looking once a second keeps this off the path of every entry.
        if self.now >= self.next_deadlines {
            self.next_deadlines = Micros(self.now.0 + 1_000_000);
            self.deadlines();
            self.forget_old();
        }
    }

    #[inline]
    fn revision(&mut self, revision: Revision) {
        self.statistics.revisions += 1;
        self.last_revision = self.last_revision.max(revision.revision);
        let (number, at) = (revision.revision, revision.at);
        if self.servers.quiet {
            self.watch_fights(number, at, &revision.change);
        }
        match revision.change {
            Change::PutService(service) => self.put_service(number, at, service),
            Change::DeleteService(key) => self.delete_service(number, at, &key),
            Change::PutIpAddress(object) => self.put_ip_address(number, at, object),
            Change::DeleteIpAddress(ip) => self.delete_ip_address(number, at, ip),
            Change::PutServiceCidr(cidr) => self.put_service_cidr(at, &cidr),
            Change::DeleteServiceCidr(name) => self.delete_service_cidr(number, at, &name),
            Change::PutRange(range) => self.put_range(number, at, range),
            Change::DeleteRange(key) => self.delete_range(number, at, key),
        }
    }

    fn side(&mut self, side: &Side) {
        match &side.observation {
            Observation::Event { reason, regarding, .. } => {
                if reason == "ClusterIPAlreadyAllocated" {
                    self.duplicate_reported(regarding, side.at);
                }
            }
            Observation::Metric { .. } | Observation::Readyz { .. } => {}
        }
    }

    /// Notes a broken rule; beyond [`LISTED_PER_RULE`] it is only counted.
    fn violated(&mut self, rule: Rule, revision: i64, at: Micros, detail: Detail) {
        self.draft(rule, revision, at, DraftDetail::Ready(detail), Around::Nothing, Vec::new());
    }

    /// Notes that a rule was due so many times, whatever came out.
    #[inline]
    fn judged(&mut self, rule: Rule, count: u64) {
        self.judged.add(rule, count);
    }

    /// False when the draft was not kept.
    fn draft(
        &mut self,
        rule: Rule,
        revision: i64,
        at: Micros,
        detail: DraftDetail,
        around: Around,
        open: Vec<usize>,
    ) -> bool {
        let count = self.broken.entry(rule).or_default();
        *count += 1;
        let kept = *count <= LISTED_PER_RULE as u64;
        if kept {
            self.drafts.push(Draft { rule, revision, at, detail, around, open });
        }
        kept
    }

    fn met(&mut self, condition: Sometimes) {
        *self.sometimes.entry(condition).or_default() += 1;
    }

    fn owner(&self, id: LifeId) -> Option<Owner> {
        let life = self.lives.get(id)?;
        Some(Owner { service: life.key.as_ref().clone(), uid: life.uid.clone(), made_by: life.made_by })
    }
}
