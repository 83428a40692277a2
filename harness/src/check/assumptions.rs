//! What a recording must be before its verdict means anything.

use super::Definitions;
use super::finish::clock;
use crate::gates::AllocatorMode;
use crate::history::{Completeness, End, Entry, Micros, Operation, OperationKind, ServerId, ServiceKey, TopologyEvent};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An assumption that does not hold: the run is inconclusive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokenAssumption {
    /// The recording has no end: it was cut off.
    NoEnd,
    /// The recorder itself says that something is missing.
    Void {
        /// Its words.
        why: String,
    },
    /// Something was recorded after the end.
    EntryAfterEnd,
    /// Revisions go backward.
    RevisionsOutOfOrder {
        /// The revision before.
        before: i64,
        /// The smaller one after it.
        after: i64,
    },
    /// The end is at an earlier revision than the writes.
    EndBeforeLastRevision {
        /// Of the end.
        end: i64,
        /// Of the last write.
        last: i64,
    },
    /// A key was removed that was never stored: the recording has a hole or did not start with an empty etcd.
    RemovedUnstored {
        /// The revision.
        revision: i64,
        /// What was removed.
        key: String,
    },
    /// A client made a call while another one was in flight.
    CallsOverlap {
        /// Which client.
        client: u16,
        /// When its earlier call returned.
        returned: Micros,
        /// When the next one was made.
        invoked: Micros,
    },
    /// A call returned before it was made.
    TimeRunsBackward {
        /// Which client.
        client: u16,
        /// When the call was made.
        invoked: Micros,
    },
    /// Two calls create the same Service although the case says that names are unique.
    NameReused {
        /// The Service.
        service: ServiceKey,
    },
    /// A call went to a server that was not recorded as started before it.
    UnknownServer {
        /// Which.
        server: ServerId,
    },
    /// A call whose outcome is open although its server was neither stopped, killed nor paused, nor etcd.
    OpenOutcome {
        /// Which client.
        client: u16,
        /// Which server.
        server: ServerId,
        /// When the call was made.
        invoked: Micros,
        /// What was seen.
        detail: String,
    },
    /// A pause or another fault that did not end before the recording did.
    FaultOpen {
        /// Which.
        fault: String,
    },
    /// A server whose creations wrote other locks than those of its mode: gates are not what the plan says.
    ModeDiffers {
        /// Which.
        server: ServerId,
        /// The mode of its specification.
        planned: AllocatorMode,
        /// The mode that most of its creations show; `None` if they wrote no lock.
        seen: Option<AllocatorMode>,
        /// How many creations show that.
        showing: u64,
        /// Of so many.
        of: u64,
    },
    /// A server with a specification no release would start.
    ImpossibleServer {
        /// Which.
        server: ServerId,
    },
}

impl fmt::Display for BrokenAssumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BrokenAssumption::NoEnd => write!(f, "the recording was cut off"),
            BrokenAssumption::Void { why } => write!(f, "the recording is incomplete: {why}"),
            BrokenAssumption::EntryAfterEnd => write!(f, "something was recorded after the end"),
            BrokenAssumption::RevisionsOutOfOrder { before, after } => {
                write!(f, "revision {after} was recorded after revision {before}")
            }
            BrokenAssumption::EndBeforeLastRevision { end, last } => {
                write!(f, "the recording ends at revision {end}, but has revision {last}")
            }
            BrokenAssumption::RemovedUnstored { revision, key } => {
                write!(
                    f,
                    "revision {revision} removed {key}, which was never stored: the recording does not begin with an empty etcd, or has a hole"
                )
            }
            BrokenAssumption::CallsOverlap { client, returned, invoked } => write!(
                f,
                "client {client} made a call at {} while its call that returned at {} was in flight",
                clock(*invoked),
                clock(*returned)
            ),
            BrokenAssumption::TimeRunsBackward { client, invoked } => {
                write!(f, "a call of client {client} returned before it was made at {}", clock(*invoked))
            }
            BrokenAssumption::NameReused { service } => {
                write!(f, "Service {service} was created by two calls, and the case says that names are unique")
            }
            BrokenAssumption::UnknownServer { server } => {
                write!(f, "a call went to {server} before it was recorded as started")
            }
            BrokenAssumption::OpenOutcome { client, server, invoked, detail } => write!(
                f,
                "the call of client {client} to {server} at {} has an open outcome ({detail}), and nothing disturbed the server",
                clock(*invoked)
            ),
            BrokenAssumption::FaultOpen { fault } => write!(f, "at the end of the recording {fault} had not ended"),
            BrokenAssumption::ModeDiffers { server, planned, seen, showing, of } => {
                let seen = seen.map_or("wrote no lock".to_string(), |mode| format!("wrote the locks of {mode}"));
                write!(f, "{server} is planned as {planned}, but {showing} of its {of} creations {seen}")
            }
            BrokenAssumption::ImpossibleServer { server } => {
                write!(f, "no release would start {server} as it is specified")
            }
        }
    }
}

/// No more than this many broken assumptions are listed; one is enough to make a run inconclusive.
const LISTED: usize = 100;

/// Watches the assumptions.
#[derive(Debug, Default)]
pub(super) struct Assumptions {
    pub broken: Vec<BrokenAssumption>,
    last_return: FxHashMap<u16, Micros>,
    started: FxHashMap<ServerId, Micros>,
    /// Hashes of the names created: a name costs eight bytes, and a collision in 10^7 names has a chance of 3 in 10^6.
    names: FxHashSet<u64>,
    last_revision: i64,
    ended: bool,
}

impl Assumptions {
    pub fn break_one(&mut self, broken: BrokenAssumption) {
        if self.broken.len() < LISTED {
            self.broken.push(broken);
        }
    }

    pub fn watch(&mut self, entry: &Entry, definitions: &Definitions, unique_names: bool) {
        if self.ended {
            self.break_one(BrokenAssumption::EntryAfterEnd);
        }
        match entry {
            Entry::Revision(revision) => {
                if revision.revision < self.last_revision {
                    let (before, after) = (self.last_revision, revision.revision);
                    self.break_one(BrokenAssumption::RevisionsOutOfOrder { before, after });
                }
                self.last_revision = self.last_revision.max(revision.revision);
            }
            Entry::Operation(operation) => self.operation(operation, unique_names),
            Entry::Topology(topology) => {
                if let TopologyEvent::Started { server, spec, .. } = &topology.event {
                    self.started.entry(*server).or_insert(topology.at);
                    if (definitions.mode)(spec).is_none() {
                        self.break_one(BrokenAssumption::ImpossibleServer { server: *server });
                    }
                }
            }
            Entry::Side(_) => {}
            Entry::End(end) => self.end(end),
        }
    }

    fn operation(&mut self, operation: &Operation, unique_names: bool) {
        let (client, invoked) = (operation.client, operation.invoked);
        if operation.returned < invoked {
            self.break_one(BrokenAssumption::TimeRunsBackward { client, invoked });
        }
        if let Some(returned) = self.last_return.insert(client, operation.returned).filter(|it| *it > invoked) {
            self.break_one(BrokenAssumption::CallsOverlap { client, returned, invoked });
        }
        if self.started.get(&operation.server).is_none_or(|started| *started > invoked) {
            self.break_one(BrokenAssumption::UnknownServer { server: operation.server });
        }
        if let OperationKind::CreateService { service, .. } = &operation.kind
            && !self.names.insert(hash(service))
            && unique_names
        {
            self.break_one(BrokenAssumption::NameReused { service: service.clone() });
        }
    }

    fn end(&mut self, end: &End) {
        self.ended = true;
        if let Completeness::Void { why } = &end.completeness {
            self.break_one(BrokenAssumption::Void { why: why.clone() });
        }
        if end.last_revision < self.last_revision {
            let (end, last) = (end.last_revision, self.last_revision);
            self.break_one(BrokenAssumption::EndBeforeLastRevision { end, last });
        }
    }

    /// Whether a recorded call creates a Service of this name.
    pub fn is_created_by_a_call(&self, service: &ServiceKey) -> bool {
        self.names.contains(&hash(service))
    }

    /// Every broken assumption, sorted.
    pub fn finish(mut self) -> Vec<BrokenAssumption> {
        if !self.ended {
            self.broken.push(BrokenAssumption::NoEnd);
        }
        self.broken.sort();
        self.broken.dedup();
        self.broken
    }
}

fn hash(service: &ServiceKey) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    service.hash(&mut hasher);
    hasher.finish()
}
