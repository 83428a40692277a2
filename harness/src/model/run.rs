//! The scheduler: everything that happens, in the order of virtual time.

use super::client::Client;
use super::cluster::{Cluster, Server};
use super::random::Random;
use super::{Behavior, Plan, repair, spec};
use crate::gates::AllocatorMode;
use crate::history::{Completeness, End, Entry, Micros, ServerId, Topology, TopologyEvent};
use crate::net::ServiceRange;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const SECOND: u64 = 1_000_000;
/// `repairLoopInterval`.
const BITMAP_PASS: u64 = 180 * SECOND;
/// How often the model looks at what upstream's IPAddress repair is told by events.
const IP_ADDRESS_LOOK: u64 = 10 * SECOND;
const START: u64 = 3 * SECOND;

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Client(usize),
    Start(usize),
    Ready(usize, u32),
    BitmapPass(usize, u32),
    IpAddressLook(usize, u32),
    Kill(usize),
    Quiet,
}

/// One simulated run.
pub(super) struct Run<'a> {
    plan: &'a Plan,
    behavior: Behavior,
    random: Random,
    cluster: Cluster,
    servers: Vec<Server>,
    clients: Vec<Client>,
    /// Time, then order of scheduling.
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
}

impl<'a> Run<'a> {
    pub fn new(plan: &'a Plan, behavior: Behavior, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let range = ServiceRange::new(plan.range).expect("the range of a plan has addresses");
        let server = |(index, mode): (usize, &AllocatorMode)| {
            Server::new(ServerId(index as u8), *mode, 1_000 + random.below(SECOND / 2))
        };
        let servers = plan.modes.iter().enumerate().map(server).collect();
        Run {
            plan,
            behavior,
            random,
            cluster: Cluster::new(range),
            servers,
            clients: (0..plan.clients).map(Client::new).collect(),
            queue: BinaryHeap::new(),
            scheduled: 0,
        }
    }

    /// Runs to the end.
    pub fn entries(mut self) -> Vec<Entry> {
        let begin = 15 * SECOND;
        let quiet = begin + self.plan.traffic.0;
        let end = quiet + self.plan.quiet.0;
        (0..self.servers.len()).for_each(|index| self.schedule(index as u64 * START, Event::Start(index)));
        (0..self.clients.len()).for_each(|index| self.schedule(begin, Event::Client(index)));
        if self.plan.kill {
            self.schedule(begin + self.plan.traffic.0 / 2, Event::Kill(0));
        }
        self.schedule(quiet, Event::Quiet);
        while let Some(Reverse((at, _, event))) = self.queue.pop() {
            if at > end {
                break;
            }
            self.cluster.now = at;
            self.happen(event, quiet);
        }
        let (at, last_revision) = (Micros(end), self.cluster.revision);
        self.cluster.entries.push(Entry::End(End { at, last_revision, completeness: Completeness::Complete }));
        self.cluster.entries
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse((at, self.scheduled, event)));
    }

    fn topology(&mut self, event: TopologyEvent) {
        self.cluster.entries.push(Entry::Topology(Topology { at: Micros(self.cluster.now), event }));
    }

    fn happen(&mut self, event: Event, quiet: u64) {
        let now = self.cluster.now;
        match event {
            Event::Client(index) => {
                // Clients finish what is in flight a little before the quiet phase.
                let more = now + 2 * SECOND < quiet;
                let client = &mut self.clients[index];
                let (cluster, servers) = (&mut self.cluster, &mut self.servers);
                if client.step(cluster, servers, &self.behavior, self.plan, &mut self.random, more) {
                    // Steps take a millisecond or so, and now and then much longer.
                    let slow = if self.random.chance(2) { 400_000 } else { 0 };
                    let pause = 20_000 + self.random.below(150_000) + slow;
                    self.schedule(now + pause, Event::Client(index));
                }
            }
            Event::Start(index) => self.start(index),
            Event::Ready(index, process) => self.ready(index, process),
            Event::BitmapPass(index, process) => {
                if self.lives(index, process) {
                    repair::bitmap(&mut self.cluster, &mut self.servers[index], &self.behavior);
                    self.schedule(now + BITMAP_PASS, event);
                }
            }
            Event::IpAddressLook(index, process) => {
                if self.lives(index, process) {
                    if self.behavior.fights {
                        self.cluster.put_cidr((now / IP_ADDRESS_LOOK).is_multiple_of(2));
                    }
                    repair::ip_addresses(&mut self.cluster, &mut self.servers[index], &self.behavior);
                    self.schedule(now + IP_ADDRESS_LOOK, event);
                }
            }
            Event::Kill(index) => {
                self.servers[index].up = false;
                self.topology(TopologyEvent::Killed { server: ServerId(index as u8) });
                self.schedule(now + SECOND, Event::Start(index));
            }
            Event::Quiet => self.topology(TopologyEvent::QuietBegin),
        }
    }

    fn lives(&self, index: usize, process: u32) -> bool {
        self.servers[index].up && self.servers[index].process == process
    }

    fn start(&mut self, index: usize) {
        let server = &mut self.servers[index];
        server.restart(&self.cluster);
        let (id, mode, process) = (server.id, server.mode, server.process);
        let spec = spec(mode, &self.cluster.range);
        self.topology(TopologyEvent::Started { server: id, spec, command: Vec::new() });
        if self.cluster.revision == 1 {
            self.cluster.put_cidr(true);
        }
        // Whoever writes the bitmap makes an empty one at its start.
        if mode.writes_bitmap() && !self.cluster.has_bitmap {
            self.cluster.write_bitmap();
        }
        let restarted = process > 1;
        if !(self.behavior.never_ready && restarted) {
            self.schedule(self.cluster.now + START, Event::Ready(index, process));
        }
    }

    fn ready(&mut self, index: usize, process: u32) {
        self.servers[index].up = true;
        self.topology(TopologyEvent::Ready { server: ServerId(index as u8) });
        let now = self.cluster.now;
        let (pass, look) = (Event::BitmapPass(index, process), Event::IpAddressLook(index, process));
        match self.servers[index].mode {
            AllocatorMode::Bitmap => self.schedule(now, pass),
            AllocatorMode::DualWrite | AllocatorMode::IpAddress => self.schedule(now, look),
        }
    }
}
