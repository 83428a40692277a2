//! The one clock and the one list of a case: everything that is recorded goes through here.

use crate::history::{Entry, Micros, Observation, Side, Topology, TopologyEvent};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Instant, SystemTime};

/// Where entries of a case go; cloning shares it.
#[derive(Debug, Clone)]
pub struct Journal {
    begin: Instant,
    sender: Sender<Entry>,
}

impl Journal {
    /// A journal whose clock starts now.
    pub fn new(sender: Sender<Entry>) -> Self {
        Journal { begin: Instant::now(), sender }
    }

    /// A journal of the same clock whose entries are kept back.
    pub fn held_back(&self) -> (Journal, Receiver<Entry>) {
        let (sender, receiver) = std::sync::mpsc::channel();
        (Journal { begin: self.begin, sender }, receiver)
    }

    /// The time since the start of the case.
    pub fn now(&self) -> Micros {
        Micros(u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Records an entry. When the writer is gone the case is over and nobody reads it any more.
    pub fn push(&self, entry: Entry) {
        let _ = self.sender.send(entry);
    }

    /// Records something that happened to a server, now.
    pub fn topology(&self, event: TopologyEvent) {
        self.push(Entry::Topology(Topology { at: self.now(), event }));
    }

    /// The same for something that happened a moment ago, at a time of the host's clock.
    pub fn topology_at(&self, when: SystemTime, event: TopologyEvent) {
        let ago = SystemTime::now().duration_since(when).unwrap_or_default();
        let at = self.now().0.saturating_sub(u64::try_from(ago.as_micros()).unwrap_or(u64::MAX));
        self.push(Entry::Topology(Topology { at: Micros(at), event }));
    }

    /// Records a side observation, now.
    pub fn observe(&self, observation: Observation) {
        self.push(Entry::Side(Side { at: self.now(), observation }));
    }
}
