//! The two repair loops.

use super::Behavior;
use super::cluster::{Cluster, Server};
use crate::history::{Entry, Micros, Observation, ServiceKey, Side};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// One pass of the bitmap repair: missing bits are set, a leak is cleared once enough passes have seen it.
pub(super) fn bitmap(cluster: &mut Cluster, server: &mut Server, behavior: &Behavior) {
    let owners = owners(cluster);
    let band = cluster.range.usable_in_bitmap();
    let mut changed = false;
    if behavior.sets_missing_bits {
        for ip in owners.keys().filter(|ip| band.contains(**ip)) {
            changed |= cluster.bitmap.insert(*ip) == Ok(true);
        }
    }
    let leaked: BTreeSet<IpAddr> = cluster.bitmap.addresses().filter(|ip| !owners.contains_key(ip)).collect();
    server.leaks.retain(|ip, _| leaked.contains(ip));
    for ip in &leaked {
        let sightings = server.leaks.entry(*ip).or_default();
        *sightings += 1;
        if behavior.leak_passes.is_some_and(|passes| *sightings >= passes) {
            changed |= cluster.bitmap.remove(*ip);
        }
    }
    if behavior.clears_held_bits
        && let Some(ip) = owners.keys().next()
    {
        changed |= cluster.bitmap.remove(*ip);
    }
    if changed {
        cluster.write_bitmap();
    }
    report_duplicates(cluster, server, behavior, &owners);
}

/// One look of the IPAddress repair over everything: what its workers would do, event by event.
pub(super) fn ip_addresses(cluster: &mut Cluster, server: &mut Server, behavior: &Behavior) {
    let owners = owners(cluster);
    if behavior.creates_missing_ip_addresses {
        for (ip, services) in &owners {
            if let [service, ..] = services.as_slice() {
                let stale = cluster.objects.get(ip).is_some_and(|object| !services.contains(&object.parent));
                if stale {
                    cluster.delete_object(*ip);
                }
                cluster.create_object(*ip, service);
            }
        }
    }
    let now = cluster.now;
    let old = |created: u64| behavior.orphan_age.is_some_and(|age| now >= created + age);
    let orphan = |ip: &IpAddr, parent: &ServiceKey| {
        behavior.removes_held_ip_addresses || owners.get(ip).is_none_or(|services| !services.contains(parent))
    };
    let orphans: Vec<IpAddr> = (cluster.objects.iter())
        .filter(|(ip, object)| orphan(ip, &object.parent) && old(object.created))
        .map(|(ip, _)| *ip)
        .collect();
    for ip in orphans {
        cluster.delete_object(ip);
    }
    report_duplicates(cluster, server, behavior, &owners);
}

fn owners(cluster: &Cluster) -> BTreeMap<IpAddr, Vec<ServiceKey>> {
    let mut owners: BTreeMap<IpAddr, Vec<ServiceKey>> = BTreeMap::new();
    for (key, (_, ips)) in &cluster.services {
        for ip in ips {
            owners.entry(*ip).or_default().push(key.clone());
        }
    }
    owners
}

/// Every Service but the first that holds an address gets an Event, once a process.
fn report_duplicates(
    cluster: &mut Cluster,
    server: &mut Server,
    behavior: &Behavior,
    owners: &BTreeMap<IpAddr, Vec<ServiceKey>>,
) {
    if !behavior.reports_duplicates {
        return;
    }
    for (ip, services) in owners {
        for service in services.iter().skip(1) {
            if server.reported.insert((*ip, service.clone())) {
                let observation = Observation::Event {
                    reason: "ClusterIPAlreadyAllocated".into(),
                    regarding: format!("Service/{service}"),
                    note: format!("Cluster IP {ip} was assigned to multiple services"),
                    reporter: "ipallocator-repair-controller".into(),
                    count: 1,
                };
                cluster.entries.push(Entry::Side(Side { at: Micros(cluster.now), observation }));
            }
        }
    }
}
