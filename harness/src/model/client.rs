//! Calls of clients, step by step.

use super::cluster::{Cluster, Server};
use super::random::Random;
use super::{Behavior, Plan};
use crate::gates::AllocatorMode;
use crate::history::{Entry, Micros, Operation, OperationKind, Outcome, ServerId, ServiceKey};
use crate::net::{from_bits, to_bits};
use std::collections::VecDeque;
use std::net::IpAddr;

const FULL: (u16, &str) = (500, "Internal error occurred: failed to allocate a serviceIP: range is full");
const TAKEN_DYNAMIC: (u16, &str) =
    (500, "Internal error occurred: failed to allocate a serviceIP: provided IP is already allocated");
const TAKEN: (u16, &str) = (422, "failed to allocate IP: provided IP is already allocated");

/// What a call still has to do, one etcd write a step.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Bit,
    IpAddress,
    Store,
    Remove,
    ReleaseBit,
    ReleaseIpAddress,
    Answer,
}

/// One client, with at most one call in flight.
#[derive(Debug)]
pub(super) struct Client {
    id: u16,
    call: Option<Call>,
    /// Services it created.
    own: Vec<(ServiceKey, IpAddr)>,
    created: u32,
}

#[derive(Debug)]
struct Call {
    server: usize,
    process: u32,
    invoked: u64,
    service: ServiceKey,
    wanted: Option<IpAddr>,
    ip: Option<IpAddr>,
    steps: VecDeque<Step>,
    deletes: bool,
    refusal: Option<(u16, &'static str)>,
    stored: Option<i64>,
}

impl Client {
    pub fn new(id: u16) -> Self {
        Client { id, call: None, own: Vec::new(), created: 0 }
    }

    /// Does one step, or begins a call if `more` calls are wanted. False when the client is idle for good.
    pub fn step(
        &mut self,
        cluster: &mut Cluster,
        servers: &mut [Server],
        behavior: &Behavior,
        plan: &Plan,
        random: &mut Random,
        more: bool,
    ) -> bool {
        let Some(mut call) = self.call.take() else {
            if more {
                self.begin(cluster, servers, behavior, plan, random);
            }
            return more;
        };
        let server = &mut servers[call.server];
        if !server.up || server.process != call.process {
            self.answer(cluster, call, Outcome::Unknown { detail: "connection reset".into() });
            return true;
        }
        match call.steps.pop_front() {
            Some(Step::Answer) | None => {
                let outcome = outcome(cluster, &mut call, behavior, random);
                self.answer(cluster, call, outcome);
            }
            Some(step) => {
                take_step(step, cluster, server, behavior, random, &mut call, self.id);
                self.call = Some(call);
            }
        }
        true
    }

    fn begin(&mut self, cluster: &Cluster, servers: &[Server], behavior: &Behavior, plan: &Plan, random: &mut Random) {
        let server = random.below(servers.len() as u64) as usize;
        let Some(target) = servers.get(server).filter(|server| server.up) else { return };
        let mode = target.mode;
        let deletes = !self.own.is_empty() && random.chance(plan.delete_percent);
        let (service, ip, wanted) = if deletes {
            let (service, ip) = self.own.swap_remove(random.below(self.own.len() as u64) as usize);
            (service, Some(ip), None)
        } else {
            self.created += 1;
            let service =
                ServiceKey { namespace: "default".into(), name: format!("service-{}-{}", self.id, self.created) };
            let asks = random.chance(plan.static_percent);
            let usable = cluster.range.usable();
            let wanted =
                asks.then(|| from_bits(to_bits(usable.first) + u128::from(random.below(usable.len() as u64)), true));
            (service, None, wanted)
        };
        let release = |mode: AllocatorMode| {
            let bit = mode.writes_bitmap() && behavior.releases_bit;
            let ip_address = mode.writes_ip_addresses() && behavior.releases_ip_address;
            [bit.then_some(Step::ReleaseBit), ip_address.then_some(Step::ReleaseIpAddress)].into_iter().flatten()
        };
        let claim =
            [mode.writes_bitmap().then_some(Step::Bit), (mode.writes_ip_addresses()).then_some(Step::IpAddress)];
        let steps = match (deletes, behavior.releases_first) {
            (false, _) => claim.into_iter().flatten().chain([Step::Store, Step::Answer]).collect(),
            (true, false) => [Step::Remove].into_iter().chain(release(mode)).chain([Step::Answer]).collect(),
            (true, true) => release(mode).chain([Step::Remove, Step::Answer]).collect(),
        };
        self.call = Some(Call {
            server,
            process: target.process,
            invoked: cluster.now,
            service,
            wanted,
            ip: ip.or(wanted),
            steps,
            deletes,
            refusal: None,
            stored: None,
        });
    }

    fn answer(&mut self, cluster: &mut Cluster, call: Call, outcome: Outcome) {
        let granted = matches!(outcome, Outcome::Ok { .. });
        if let (false, true, Some(ip)) = (call.deletes, granted, call.ip) {
            self.own.push((call.service.clone(), ip));
        }
        let service = call.service;
        let kind = if call.deletes {
            OperationKind::DeleteService { service }
        } else {
            OperationKind::CreateService { service, wanted: call.wanted.into_iter().collect() }
        };
        cluster.entries.push(Entry::Operation(Box::new(Operation {
            client: self.id,
            server: ServerId(call.server as u8),
            kind,
            invoked: Micros(call.invoked),
            returned: Micros(cluster.now),
            outcome,
        })));
    }
}

fn outcome(cluster: &Cluster, call: &mut Call, behavior: &Behavior, random: &mut Random) -> Outcome {
    if call.stored.is_some() && random.chance(behavior.refuses_stored_percent) {
        call.refusal = Some((403, "denied by policy"));
    }
    match call.refusal {
        Some((code, message)) => {
            let reason = if code == 422 { "Invalid" } else { "InternalError" };
            Outcome::Refused { code, reason: reason.into(), message: message.into() }
        }
        None => Outcome::Ok {
            granted: if call.deletes { Vec::new() } else { call.ip.into_iter().collect() },
            uid: uid(&call.service),
            revision: call.stored.unwrap_or(cluster.revision),
        },
    }
}

fn uid(service: &ServiceKey) -> String {
    format!("uid-{}", service.name)
}

fn take_step(
    step: Step,
    cluster: &mut Cluster,
    server: &mut Server,
    behavior: &Behavior,
    random: &mut Random,
    call: &mut Call,
    client: u16,
) {
    match step {
        Step::Bit => claim_bit(cluster, behavior, random, call),
        Step::IpAddress => claim_ip_address(cluster, server, behavior, random, call),
        Step::Store => {
            let Some(mut ip) = call.ip else { return };
            if behavior.grants_another && call.wanted.is_some() && client == 0 {
                let free = cluster.range.dynamic_band().addresses().find(|it| cluster.owners(*it).is_empty());
                ip = free.unwrap_or(ip);
                call.ip = Some(ip);
            }
            if !random.chance(behavior.loses_write_percent) {
                cluster.put_service(&call.service, &uid(&call.service), &[ip]);
            }
            call.stored = Some(cluster.revision);
        }
        Step::Remove => {
            if cluster.services.contains_key(&call.service) {
                cluster.delete_service(&call.service);
            }
        }
        Step::ReleaseBit => {
            if call.ip.is_some_and(|ip| cluster.bitmap.remove(ip)) {
                cluster.write_bitmap();
            }
        }
        Step::ReleaseIpAddress => {
            if let Some(ip) = call.ip {
                cluster.delete_object(ip);
            }
        }
        Step::Answer => {}
    }
}

fn refuse(call: &mut Call, refusal: (u16, &'static str)) {
    call.refusal = Some(refusal);
    // Upstream does not take back the first lock when the second fails; what the call claimed stays for repair.
    call.steps = [Step::Answer].into();
}

/// The dynamic order: the upper band from a random start, around, then the lower one.
fn dynamic_order(cluster: &Cluster, behavior: &Behavior, random: &mut Random) -> Vec<IpAddr> {
    let usable: Vec<IpAddr> = cluster.range.usable().addresses().collect();
    let lower = cluster.range.static_band().map_or(0, |band| band.len() as i32);
    let lower = if behavior.ignores_bands { 0 } else { (lower + behavior.band_shift).max(0) as usize };
    let (low, high) = usable.split_at(lower.min(usable.len()));
    let start = random.below(high.len() as u64) as usize;
    let low = if behavior.full_without_lower_band { &[] } else { low };
    let network = behavior.grants_network.then(|| cluster.range.network());
    network.into_iter().chain(high.iter().cycle().skip(start).take(high.len()).chain(low).copied()).collect()
}

fn claim_bit(cluster: &mut Cluster, behavior: &Behavior, random: &mut Random, call: &mut Call) {
    let ip = match call.wanted {
        Some(ip) if cluster.bitmap.contains(ip) && !behavior.set_bit_is_ok => return refuse(call, TAKEN),
        Some(ip) => ip,
        None => {
            let order = dynamic_order(cluster, behavior, random);
            let is_free = |ip: &IpAddr| !cluster.bitmap.contains(*ip) || behavior.set_bit_is_ok;
            match order.into_iter().find(is_free) {
                Some(ip) => ip,
                // Dual write goes on without the bitmap; a bitmap server gives up.
                None if call.steps.contains(&Step::IpAddress) => return,
                None => return refuse(call, FULL),
            }
        }
    };
    call.ip = Some(ip);
    if random.chance(behavior.loses_bit_percent) {
        return;
    }
    // The network address has no bit.
    if cluster.bitmap.insert(ip) == Ok(true) {
        if behavior.sets_neighbor_bit {
            let _ = cluster.bitmap.insert(from_bits(to_bits(ip) + 1, true));
        }
        cluster.write_bitmap();
    }
}

fn claim_ip_address(
    cluster: &mut Cluster,
    server: &mut Server,
    behavior: &Behavior,
    random: &mut Random,
    call: &mut Call,
) {
    if behavior.skips_ip_address {
        if call.ip.is_none() {
            refuse(call, FULL);
        }
        return;
    }
    // Asked for, or picked by the bitmap.
    if let Some(ip) = call.ip {
        if !cluster.create_object(ip, &call.service) && !behavior.already_exists_is_ok {
            refuse(call, if call.wanted.is_some() { TAKEN } else { TAKEN_DYNAMIC });
        }
        return;
    }
    let order = dynamic_order(cluster, behavior, random);
    let cache = server.cache(cluster);
    let free: Vec<IpAddr> = order.into_iter().filter(|ip| !cache.contains_key(ip)).collect();
    for ip in free {
        if cluster.create_object(ip, &call.service) || behavior.already_exists_is_ok {
            call.ip = Some(ip);
            return;
        }
    }
    refuse(call, FULL);
}
