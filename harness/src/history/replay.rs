//! The state of etcd that a recording amounts to, to be compared with the state read from etcd.

use super::{Change, Entry, RangeKey, ServiceKey, StoredIpAddress, StoredRange, StoredService, StoredServiceCidr};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;

/// Everything stored that concerns ClusterIPs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Services.
    pub services: BTreeMap<ServiceKey, StoredService>,
    /// IPAddresses.
    pub ip_addresses: BTreeMap<IpAddr, StoredIpAddress>,
    /// ServiceCIDRs by name.
    pub service_cidrs: BTreeMap<String, StoredServiceCidr>,
    /// Bitmaps.
    pub ranges: BTreeMap<RangeKey, StoredRange>,
}

impl State {
    /// Takes in one write. Removing what is not there changes nothing.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::PutService(service) => drop(self.services.insert(service.key.clone(), service)),
            Change::DeleteService(key) => drop(self.services.remove(&key)),
            Change::PutIpAddress(object) => drop(self.ip_addresses.insert(object.ip, object)),
            Change::DeleteIpAddress(ip) => drop(self.ip_addresses.remove(&ip)),
            Change::PutServiceCidr(cidr) => drop(self.service_cidrs.insert(cidr.name.clone(), cidr)),
            Change::DeleteServiceCidr(name) => drop(self.service_cidrs.remove(&name)),
            Change::PutRange(range) => drop(self.ranges.insert(range.key, range)),
            Change::DeleteRange(key) => drop(self.ranges.remove(&key)),
        }
    }

    /// The first difference to another state, in words; `None` when they are equal. `self` is what the recording amounts
    /// to, `stored` what etcd has.
    pub fn difference(&self, stored: &State) -> Option<String> {
        first_difference("Service", &self.services, &stored.services)
            .or_else(|| first_difference("IPAddress", &self.ip_addresses, &stored.ip_addresses))
            .or_else(|| first_difference("ServiceCIDR", &self.service_cidrs, &stored.service_cidrs))
            .or_else(|| first_difference("bitmap", &self.ranges, &stored.ranges))
    }
}

/// The state after every write among the entries.
pub fn replay(entries: impl IntoIterator<Item = Entry>) -> State {
    let mut state = State::default();
    for entry in entries {
        match entry {
            Entry::Revision(revision) => state.apply(revision.change),
            Entry::Operation(_) | Entry::Topology(_) | Entry::Side(_) | Entry::End(_) => {}
        }
    }
    state
}

fn first_difference<K: Ord + Debug, V: PartialEq + Debug>(
    kind: &str,
    replayed: &BTreeMap<K, V>,
    stored: &BTreeMap<K, V>,
) -> Option<String> {
    let lost = stored.keys().find(|key| !replayed.contains_key(key));
    if let Some(key) = lost {
        return Some(format!("{kind} {key:?} is stored, but not in the recording"));
    }
    replayed.iter().find_map(|(key, replayed)| match stored.get(key) {
        None => Some(format!("{kind} {key:?} is in the recording, but not stored")),
        Some(stored) if stored != replayed => {
            Some(format!("{kind} {key:?} is {stored:?}, but {replayed:?} in the recording"))
        }
        Some(_) => None,
    })
}
