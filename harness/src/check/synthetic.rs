//! Long synthetic recordings, to measure the judge with.

use crate::bitmap::AllocationBitmap;
use crate::history::{
    Change, Completeness, End, Entry, Micros, Operation, OperationKind, Outcome, RangeKey, Revision, ServerId,
    ServiceKey, ServiceType, StoredIpAddress, StoredRange, StoredService, StoredServiceCidr, Topology, TopologyEvent,
};
use crate::model::random::Random;
use crate::net::{ServiceRange, from_bits, to_bits};
use crate::server::ServerSpec;
use crate::version::KubeVersion;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Range of the synthetic recording: 4,094 addresses, so bitmaps of 512 bytes.
const RANGE: &str = "10.0.0.0/20";
/// How many Services live at once.
const LIVE: usize = 3_000;
const SERVERS: u64 = 3;

/// A clean recording with at least `revisions` writes: three dual-write servers create Services and, once
/// some 3,000 live, delete the oldest one for each new one. A creation is three writes and a call, a deletion three
/// writes. The same seed gives the same recording. Nothing is kept but what lives.
pub fn synthetic(revisions: u64, seed: u64) -> impl Iterator<Item = Entry> {
    let range = ServiceRange::new(RANGE.parse().expect("the synthetic range is a CIDR")).expect("it has addresses");
    let mut it = Synthetic {
        random: Random::new(seed),
        range,
        bitmap: AllocationBitmap::empty(range),
        live: VecDeque::new(),
        ready: VecDeque::new(),
        revision: 0,
        at: 0,
        created: 0,
        wanted: revisions,
        ended: false,
    };
    it.prelude();
    it
}

struct Synthetic {
    random: Random,
    range: ServiceRange,
    bitmap: AllocationBitmap,
    live: VecDeque<(ServiceKey, IpAddr)>,
    ready: VecDeque<Entry>,
    revision: i64,
    at: u64,
    created: u64,
    wanted: u64,
    ended: bool,
}

impl Iterator for Synthetic {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if self.ready.is_empty() && !self.ended {
            self.fill();
        }
        self.ready.pop_front()
    }
}

impl Synthetic {
    fn tick(&mut self) -> Micros {
        // A millisecond a write: some 130 creations a second, what real servers on one machine reach.
        self.at += 1_000;
        Micros(self.at)
    }

    fn change(&mut self, change: Change) {
        self.revision += 1;
        let (revision, at) = (self.revision, self.tick());
        self.ready.push_back(Entry::Revision(Revision { revision, at, change }));
    }

    fn bitmap(&mut self) {
        let (key, range, data) = (RangeKey::Primary, Some(self.range.net()), self.bitmap.encode());
        self.change(Change::PutRange(StoredRange { key, range, data }));
    }

    fn prelude(&mut self) {
        let spec = ServerSpec::new(KubeVersion::new(33, 13)).ranges(&[self.range.net()]);
        for server in (0..SERVERS).map(|index| ServerId(index as u8)) {
            let started = TopologyEvent::Started { server, spec: spec.clone(), command: Vec::new() };
            for event in [started, TopologyEvent::Ready { server }] {
                let at = self.tick();
                self.ready.push_back(Entry::Topology(Topology { at, event }));
            }
        }
        let cidr = StoredServiceCidr {
            name: "kubernetes".into(),
            cidrs: vec![self.range.net()],
            ready: Some(true),
            deleting: false,
            api_version: "networking.k8s.io/v1".into(),
        };
        self.change(Change::PutServiceCidr(cidr));
        // Longer than any informer may lag.
        self.at += 60_000_000;
    }

    fn fill(&mut self) {
        if self.live.len() >= LIVE {
            self.delete_oldest();
        }
        self.create();
        if self.revision as u64 >= self.wanted {
            let (at, last_revision) = (self.tick(), self.revision);
            self.ready.push_back(Entry::End(End { at, last_revision, completeness: Completeness::Complete }));
            self.ended = true;
        }
    }

    fn create(&mut self) {
        let band = self.range.dynamic_band();
        let ip = loop {
            let offset = self.random.below(band.len() as u64);
            let ip = from_bits(to_bits(band.first) + u128::from(offset), true);
            if !self.bitmap.contains(ip) {
                break ip;
            }
        };
        self.created += 1;
        let key = ServiceKey { namespace: "default".into(), name: format!("service-{}", self.created) };
        let uid = format!("00000000-0000-4000-8000-{:012x}", self.created);
        let invoked = self.tick();
        self.bitmap.insert(ip).expect("the address is one of the range");
        self.bitmap();
        let (parent, api_version) = (Some(key.clone()), "networking.k8s.io/v1".to_string());
        self.change(Change::PutIpAddress(StoredIpAddress { ip, parent, managed: true, api_version }));
        self.change(Change::PutService(StoredService {
            key: key.clone(),
            uid: uid.clone(),
            service_type: ServiceType::ClusterIp,
            ips: vec![ip],
            deleting: false,
        }));
        let server = self.random.below(SERVERS);
        let returned = self.tick();
        self.ready.push_back(Entry::Operation(Box::new(Operation {
            client: server as u16,
            server: ServerId(server as u8),
            kind: OperationKind::CreateService { service: key.clone(), wanted: Vec::new() },
            invoked,
            returned,
            outcome: Outcome::Ok { granted: vec![ip], uid, revision: self.revision },
        })));
        self.live.push_back((key, ip));
    }

    fn delete_oldest(&mut self) {
        let Some((key, ip)) = self.live.pop_front() else { return };
        let invoked = self.tick();
        self.change(Change::DeleteService(key.clone()));
        self.bitmap.remove(ip);
        self.bitmap();
        self.change(Change::DeleteIpAddress(ip));
        let server = self.random.below(SERVERS);
        let returned = self.tick();
        self.ready.push_back(Entry::Operation(Box::new(Operation {
            client: server as u16,
            server: ServerId(server as u8),
            kind: OperationKind::DeleteService { service: key },
            invoked,
            returned,
            outcome: Outcome::Ok { granted: Vec::new(), uid: String::new(), revision: self.revision },
        })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{CaseContext, Judgement, judge};

    #[test]
    fn a_synthetic_recording_is_clean_and_judged_the_same_every_time() {
        let verdict = || judge(&CaseContext::default(), synthetic(30_000, 7));
        let first = verdict();
        assert_eq!(first.judgement, Judgement::Clean, "{:?} {:?}", first.violations, first.assumptions);
        assert!(first.statistics.revisions >= 30_000);
        let json = |verdict| serde_json::to_string(&verdict).unwrap();
        assert_eq!(json(first), json(verdict()));
    }
}
