//! The modelled etcd, and what each server has seen of it.

use crate::bitmap::AllocationBitmap;
use crate::gates::AllocatorMode;
use crate::history::{
    Change, Entry, Micros, RangeKey, Revision, ServerId, ServiceKey, ServiceType, StoredIpAddress, StoredRange,
    StoredService, StoredServiceCidr,
};
use crate::net::ServiceRange;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

const API_VERSION: &str = "networking.k8s.io/v1";

/// An IPAddress.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub parent: ServiceKey,
    pub created: u64,
}

/// What an informer learns later: an IPAddress came, or went.
#[derive(Debug, Clone)]
struct Seen {
    at: u64,
    ip: IpAddr,
    object: Option<Object>,
}

/// etcd, and the recording of every write.
#[derive(Debug)]
pub(super) struct Cluster {
    pub range: ServiceRange,
    pub now: u64,
    pub revision: i64,
    pub services: BTreeMap<ServiceKey, (String, Vec<IpAddr>)>,
    pub objects: BTreeMap<IpAddr, Object>,
    pub bitmap: AllocationBitmap,
    /// Whether the bitmap was ever written.
    pub has_bitmap: bool,
    pub entries: Vec<Entry>,
    log: Vec<Seen>,
}

/// One server process.
#[derive(Debug)]
pub(super) struct Server {
    pub id: ServerId,
    pub mode: AllocatorMode,
    pub up: bool,
    /// How late its informers are, in microseconds.
    pub lag: u64,
    /// Counts restarts: work begun by an earlier process ends with it.
    pub process: u32,
    /// Sightings of each leaked bit, in the memory of this process.
    pub leaks: BTreeMap<IpAddr, u32>,
    /// Duplicates already reported by this process.
    pub reported: BTreeSet<(IpAddr, ServiceKey)>,
    cache: BTreeMap<IpAddr, Object>,
    read: usize,
}

impl Server {
    pub fn new(id: ServerId, mode: AllocatorMode, lag: u64) -> Self {
        Server {
            id,
            mode,
            up: false,
            lag,
            process: 0,
            leaks: BTreeMap::new(),
            reported: BTreeSet::new(),
            cache: BTreeMap::new(),
            read: 0,
        }
    }

    /// A new process: it lists before it serves.
    pub fn restart(&mut self, cluster: &Cluster) {
        self.process += 1;
        self.leaks.clear();
        self.reported.clear();
        self.cache.clone_from(&cluster.objects);
        self.read = cluster.log.len();
    }

    /// The IPAddresses as its informer has them.
    pub fn cache(&mut self, cluster: &Cluster) -> &BTreeMap<IpAddr, Object> {
        while let Some(seen) = cluster.log.get(self.read).filter(|seen| seen.at + self.lag <= cluster.now) {
            match &seen.object {
                Some(object) => self.cache.insert(seen.ip, object.clone()),
                None => self.cache.remove(&seen.ip),
            };
            self.read += 1;
        }
        &self.cache
    }
}

impl Cluster {
    pub fn new(range: ServiceRange) -> Self {
        Cluster {
            range,
            now: 0,
            revision: 1,
            services: BTreeMap::new(),
            objects: BTreeMap::new(),
            bitmap: AllocationBitmap::empty(range),
            has_bitmap: false,
            entries: Vec::new(),
            log: Vec::new(),
        }
    }

    pub fn write(&mut self, change: Change) {
        self.revision += 1;
        self.entries.push(Entry::Revision(Revision { revision: self.revision, at: Micros(self.now), change }));
    }

    pub fn put_cidr(&mut self, ready: bool) {
        self.write(Change::PutServiceCidr(StoredServiceCidr {
            name: "kubernetes".into(),
            cidrs: vec![self.range.net()],
            ready: Some(ready),
            deleting: false,
            api_version: API_VERSION.into(),
        }));
    }

    pub fn put_service(&mut self, key: &ServiceKey, uid: &str, ips: &[IpAddr]) {
        self.services.insert(key.clone(), (uid.to_string(), ips.to_vec()));
        self.write(Change::PutService(StoredService {
            key: key.clone(),
            uid: uid.to_string(),
            service_type: ServiceType::ClusterIp,
            ips: ips.to_vec(),
            deleting: false,
        }));
    }

    pub fn delete_service(&mut self, key: &ServiceKey) {
        self.services.remove(key);
        self.write(Change::DeleteService(key.clone()));
    }

    /// False when the name is taken.
    pub fn create_object(&mut self, ip: IpAddr, parent: &ServiceKey) -> bool {
        if self.objects.contains_key(&ip) {
            return false;
        }
        let object = Object { parent: parent.clone(), created: self.now };
        self.objects.insert(ip, object.clone());
        self.log.push(Seen { at: self.now, ip, object: Some(object) });
        let (parent, api_version) = (Some(parent.clone()), API_VERSION.to_string());
        self.write(Change::PutIpAddress(StoredIpAddress { ip, parent, managed: true, api_version }));
        true
    }

    pub fn delete_object(&mut self, ip: IpAddr) {
        if self.objects.remove(&ip).is_some() {
            self.log.push(Seen { at: self.now, ip, object: None });
            self.write(Change::DeleteIpAddress(ip));
        }
    }

    /// Stores the bitmap as it is now in memory.
    pub fn write_bitmap(&mut self) {
        self.has_bitmap = true;
        let (key, range, data) = (RangeKey::Primary, Some(self.range.net()), self.bitmap.encode());
        self.write(Change::PutRange(StoredRange { key, range, data }));
    }

    /// The live Services that hold an address.
    pub fn owners(&self, ip: IpAddr) -> Vec<ServiceKey> {
        let holds = self.services.iter().filter(|(_, (_, ips))| ips.contains(&ip));
        holds.map(|(key, _)| key.clone()).collect()
    }
}
