//! The servers of a case over time: which lived when, in which mode, and how old their picture of the cluster may be.

use super::Definitions;
use crate::gates::AllocatorMode;
use crate::history::{Micros, ServerId, Topology, TopologyEvent};
use crate::net::ServiceRange;
use crate::version::Minor;
use std::net::IpAddr;
use std::rc::Rc;

/// One process of one server, from start to its end.
#[derive(Debug, Clone)]
pub(super) struct ServerLife {
    pub server: ServerId,
    /// `None` for a specification no release would start.
    pub mode: Option<AllocatorMode>,
    pub minor: Minor,
    /// The flag ranges, primary first.
    pub ranges: Vec<ServiceRange>,
    pub started: Micros,
    pub ready: Option<Micros>,
    /// When it was asked to stop.
    pub stop_asked: Option<Micros>,
    pub gone: Option<Micros>,
    /// From and until; an open pause has no end.
    pub pauses: Vec<(Micros, Option<Micros>)>,
    /// Whether rule E5 has been decided for this life.
    pub start_judged: bool,
}

impl ServerLife {
    /// Whether the process existed at some time from `from` on.
    pub fn up_since(&self, from: Micros) -> bool {
        self.gone.is_none_or(|gone| gone >= from)
    }

    /// Whether the server was ready from `from` to `until` without a pause.
    fn steady(&self, from: Micros, until: Micros) -> bool {
        self.ready.is_some_and(|ready| ready <= from)
            && self.gone.is_none_or(|gone| gone > until)
            && self.pauses.iter().all(|(begin, end)| *begin > until || end.is_some_and(|end| end < from))
    }

    /// The range of the bitmap that has a bit for this address.
    pub fn bitmap_range(&self, ip: IpAddr) -> Option<&ServiceRange> {
        self.ranges.iter().find(|range| range.usable_in_bitmap().contains(ip))
    }

    /// Whether a dynamic address is claimed by IPAddress before its bit: IPAddress-only servers, and dual write before
    /// 1.33 (k/k PR 129798 turned the order around).
    pub fn claims_ip_address_first(&self) -> bool {
        match self.mode {
            Some(AllocatorMode::IpAddress) => true,
            Some(AllocatorMode::DualWrite) => self.minor < Minor(33),
            Some(AllocatorMode::Bitmap) | None => false,
        }
    }
}

/// Every server life and every fault so far.
#[derive(Debug, Default)]
pub(super) struct Servers {
    /// Shared, so that a rule can hold on to one while it notes violations.
    lives: Vec<Rc<ServerLife>>,
    /// Name, begin, end.
    faults: Vec<(String, Micros, Option<Micros>)>,
    pub quiet: bool,
    /// When the scenario was over.
    pub teardown: Option<Micros>,
}

impl Servers {
    /// Takes in an event. Says whether a server came, went, paused or a fault changed: assumptions of eventual rules may
    /// hold or not hold from here on.
    pub fn record(&mut self, topology: &Topology, definitions: &Definitions) -> bool {
        let at = topology.at;
        match &topology.event {
            TopologyEvent::Started { server, spec, .. } => {
                self.end(*server, at);
                self.lives.push(Rc::new(ServerLife {
                    server: *server,
                    mode: (definitions.mode)(spec),
                    minor: spec.effective_minor(),
                    ranges: spec.service_ranges.iter().filter_map(|net| ServiceRange::new(*net).ok()).collect(),
                    started: at,
                    ready: None,
                    stop_asked: None,
                    gone: None,
                    pauses: Vec::new(),
                    start_judged: false,
                }));
            }
            TopologyEvent::Ready { server } => {
                if let Some(life) = self.current(*server) {
                    life.ready.get_or_insert(at);
                }
            }
            TopologyEvent::Stopping { server } => {
                if let Some(life) = self.current(*server) {
                    life.stop_asked.get_or_insert(at);
                }
            }
            TopologyEvent::Stopped { server }
            | TopologyEvent::Killed { server }
            | TopologyEvent::Exited { server, .. } => self.end(*server, at),
            TopologyEvent::Paused { server } => {
                if let Some(life) = self.current(*server) {
                    life.pauses.push((at, None));
                }
            }
            TopologyEvent::Resumed { server } => {
                if let Some((_, end)) = self.current(*server).and_then(|life| life.pauses.last_mut()) {
                    end.get_or_insert(at);
                }
            }
            TopologyEvent::FaultBegin { fault } => self.faults.push((fault.clone(), at, None)),
            TopologyEvent::FaultEnd { fault } => {
                let open = self.faults.iter_mut().rev().find(|(name, _, end)| name == fault && end.is_none());
                if let Some((_, _, end)) = open {
                    *end = Some(at);
                }
            }
            TopologyEvent::QuietBegin => self.quiet = true,
            TopologyEvent::QuietEnd => self.quiet = false,
            TopologyEvent::Teardown => drop(self.teardown.get_or_insert(at)),
            TopologyEvent::Planted { .. } => {}
        }
        match &topology.event {
            TopologyEvent::Planted { .. }
            | TopologyEvent::QuietBegin
            | TopologyEvent::QuietEnd
            | TopologyEvent::Stopping { .. }
            | TopologyEvent::Teardown => false,
            TopologyEvent::Started { .. }
            | TopologyEvent::Ready { .. }
            | TopologyEvent::Exited { .. }
            | TopologyEvent::Stopped { .. }
            | TopologyEvent::Killed { .. }
            | TopologyEvent::Paused { .. }
            | TopologyEvent::Resumed { .. }
            | TopologyEvent::FaultBegin { .. }
            | TopologyEvent::FaultEnd { .. } => true,
        }
    }

    fn current(&mut self, server: ServerId) -> Option<&mut ServerLife> {
        self.lives.iter_mut().rev().find(|life| life.server == server && life.gone.is_none()).map(Rc::make_mut)
    }

    fn end(&mut self, server: ServerId, at: Micros) {
        if let Some(life) = self.current(server) {
            life.gone = Some(at);
        }
    }

    /// Whether a server was on its way out, down or on its way in at some moment of a call: from the request to stop, or
    /// its death, until it was ready again. Answers may be cut off then.
    pub fn was_leaving(&self, server: ServerId, invoked: Micros, returned: Micros) -> bool {
        let lives: Vec<&Rc<ServerLife>> = self.lives.iter().filter(|life| life.server == server).collect();
        lives.iter().enumerate().any(|(index, life)| {
            let Some(from) = life.stop_asked.or(life.gone) else { return false };
            let until = lives.get(index + 1).and_then(|next| next.ready);
            from <= returned && until.is_none_or(|until| until >= invoked)
        })
    }

    /// Whether a server or etcd was paused, or another fault was open, at some moment of a call.
    pub fn was_disturbed(&self, server: ServerId, invoked: Micros, returned: Micros) -> bool {
        let pauses =
            self.lives.iter().filter(|life| life.server == server).flat_map(|life| life.pauses.iter().copied());
        let faults = self.faults.iter().map(|(_, begin, end)| (*begin, *end));
        pauses.chain(faults).any(|(begin, end)| begin <= returned && end.is_none_or(|end| end >= invoked))
    }

    /// Pauses and faults that have not ended, in words.
    pub fn still_open(&self) -> Vec<String> {
        let paused =
            self.lives.iter().filter(|life| life.gone.is_none() && life.pauses.iter().any(|it| it.1.is_none()));
        let faults = self.faults.iter().filter(|(_, _, end)| end.is_none());
        paused.map(|life| format!("{} is paused", life.server)).chain(faults.map(|(name, ..)| name.clone())).collect()
    }

    /// Every life, in order of start.
    pub fn lives(&self) -> &[Rc<ServerLife>] {
        &self.lives
    }

    /// Notes that rule E5 is decided for a life.
    pub fn start_is_judged(&mut self, index: usize) {
        if let Some(life) = self.lives.get_mut(index) {
            Rc::make_mut(life).start_judged = true;
        }
    }

    /// The life that answered a call made at this time.
    pub fn life_at(&self, server: ServerId, at: Micros) -> Option<&Rc<ServerLife>> {
        self.lives.iter().rev().find(|life| life.server == server && life.started <= at)
    }

    /// Whether server and etcd were undisturbed from `from` to `until`.
    pub fn undisturbed(&self, life: &ServerLife, from: Micros, until: Micros) -> bool {
        life.steady(from, until)
            && self.faults.iter().all(|(_, begin, end)| *begin > until || end.is_some_and(|end| end < from))
    }

    /// Whether nothing kept a server from becoming ready from its start until `until`.
    pub fn start_undisturbed(&self, life: &ServerLife, until: Micros) -> bool {
        let reaches = |begin: Micros, end: Option<Micros>| begin <= until && end.is_none_or(|end| end >= life.started);
        let faults = self.faults.iter().map(|(_, begin, end)| (*begin, *end));
        !life.pauses.iter().copied().chain(faults).any(|(begin, end)| reaches(begin, end))
    }

    /// The earliest time whose state a server may still have taken for the present when it was asked at `asked`: `lag`
    /// before, and before any pause or fault that reaches into that window.
    pub fn picture_since(&self, life: &ServerLife, asked: Micros, lag: Micros) -> Micros {
        let mut since = Micros(asked.0.saturating_sub(lag.0));
        let gaps = || {
            let faults = self.faults.iter().map(|(_, begin, end)| (*begin, *end));
            life.pauses.iter().copied().chain(faults)
        };
        loop {
            let reaching = gaps()
                .filter(|(begin, end)| *begin <= asked && end.is_none_or(|end| end >= since))
                .map(|(begin, _)| Micros(begin.0.saturating_sub(lag.0)))
                .min();
            match reaching {
                Some(earlier) if earlier < since => since = earlier,
                Some(_) | None => return since,
            }
        }
    }

    /// Since when a server works undisturbed; `None` while it does not.
    pub fn steady_since(&self, life: &ServerLife) -> Option<Micros> {
        if life.gone.is_some() || life.pauses.last().is_some_and(|(_, end)| end.is_none()) {
            return None;
        }
        let mut since = life.ready?;
        for end in life.pauses.iter().map(|(_, end)| *end).chain(self.faults.iter().map(|(_, _, end)| *end)) {
            since = since.max(end?);
        }
        Some(since)
    }

    /// The servers that work undisturbed, with since when.
    pub fn steady(&self) -> impl Iterator<Item = (&ServerLife, Micros)> {
        self.lives.iter().filter_map(|life| Some((life.as_ref(), self.steady_since(life)?)))
    }
}
