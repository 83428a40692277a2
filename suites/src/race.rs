//! The same static address asked of every server at once.

use crate::case::Case;
use crate::observe::{count_refusals, counts_text, overlap, require_only};
use crate::order;
use crate::words;
use harness::check::Sometimes;
use harness::hazard::Hazard;
use harness::history::{Operation, Outcome};
use harness::net::{Band, ServiceRange, free_static};
use harness::provider::Need;
use harness::record::Observed;
use harness::refusal::Refusal;
use harness::traffic::Client;
use std::collections::BTreeSet;
use std::net::IpAddr;
use tokio::task::JoinSet;

/// Addresses that are asked for at the same time. Each lane has a client per server, and a client one call in flight.
const LANES: usize = 4;

/// Free addresses of the static band of the service range, at most so many.
///
/// # Errors
/// There is none, or a server does not list what is in use.
pub async fn free_addresses(case: &Case, count: usize) -> anyhow::Result<Vec<IpAddr>> {
    let (ranges, in_use) = occupied(case).await?;
    let free = free_static(&ranges, &in_use, count);
    anyhow::ensure!(!free.is_empty(), "no address of the static band of {} is free", ranges[0]);
    Ok(free)
}

/// The ranges of the servers, and the addresses in use.
async fn occupied(case: &Case) -> anyhow::Result<(Vec<ServiceRange>, BTreeSet<IpAddr>)> {
    let state = case.list().await?;
    let services = state.services.values().flat_map(|service| service.ips.iter().copied());
    let in_use = services.chain(state.ip_addresses.keys().copied()).collect();
    let ranges = case.combo.servers.iter().filter_map(|server| server.service_ranges.first());
    Ok((ranges.map(|net| ServiceRange::new(*net)).collect::<Result<_, _>>()?, in_use))
}

/// Free addresses for a race, at most so many: of the static band, and where that has too few of the upper band as well.
/// From there servers choose addresses themselves, but in a race nobody creates without an address; in a cluster of
/// somebody else that is not sure, and there the static band alone is used.
async fn racing_addresses(case: &Case, count: usize) -> anyhow::Result<Vec<IpAddr>> {
    let mut free = free_addresses(case, count).await?;
    if case.plane.provider().has(Need::OwnRange) {
        let (ranges, in_use) = occupied(case).await?;
        let upper = ranges[0].dynamic_band().addresses();
        let upper = upper.filter(|ip| !in_use.contains(ip) && ranges.iter().all(|range| range.can_grant(*ip)));
        let missing = count - free.len();
        free.extend(upper.take(missing));
    }
    Ok(free)
}

/// What the servers answered to one address.
pub struct Round {
    /// The address.
    pub ip: IpAddr,
    /// One call per client.
    pub operations: Vec<Operation>,
}

impl Round {
    /// How many calls were granted.
    pub fn granted(&self) -> usize {
        self.operations.iter().filter(|it| matches!(it.outcome, Outcome::Ok { .. })).count()
    }

    /// Whether two calls were under way at the same time.
    pub fn overlapped(&self) -> bool {
        let operations = &self.operations;
        operations.iter().enumerate().any(|(index, a)| operations[index + 1..].iter().any(|b| overlap(a, b)))
    }

    /// An address that nobody was granted although every call was refused for good is lost.
    pub fn require_granted(&self, observed: &mut Observed) {
        let returned = self.operations.iter().all(|it| !matches!(it.outcome, Outcome::Unknown { .. }));
        if returned && self.granted() == 0 {
            observed.wrong.push(format!(
                "{} was free and granted to nobody: {}",
                self.ip,
                words::answers(&self.operations)
            ));
        }
    }
}

/// Asks every client for an address at the same time, and gives the clients back.
pub async fn ask_all(clients: Vec<Client>, name: &str, ip: IpAddr) -> (Round, Vec<Client>) {
    let mut calls = JoinSet::new();
    for (number, mut client) in clients.into_iter().enumerate() {
        let name = format!("{name}-{number}-{}", client.server());
        calls.spawn(async move { (client.create(&name, &[ip]).await, client) });
    }
    let (mut operations, clients): (Vec<Operation>, Vec<Client>) = calls.join_all().await.into_iter().unzip();
    operations.sort_by_key(|it| (it.server, it.client));
    (Round { ip, operations }, clients)
}

/// Asks all servers for the same addresses, some lanes at a time; a lone endpoint is asked by two clients of each lane.
/// Which were granted twice the judge finds as well, and must find as many. Of so many addresses so many must really have
/// been asked for at the same time, and in proportion of fewer where fewer are free. Where two servers share no lock, they
/// are asked one after the other too.
///
/// # Errors
/// A server does not run.
pub async fn static_addresses(case: &mut Case, count: usize, overlaps: u64) -> anyhow::Result<Observed> {
    let pair = order::blind_pair(case)?;
    let spare = if pair.is_some() { 2 * order::ADDRESSES } else { 0 };
    let mut addresses = racing_addresses(case, count + spare).await?;
    let in_order = addresses.split_off(addresses.len() - spare.min(addresses.len() / 2));
    let static_band = ServiceRange::new(case.combo.servers[0].service_ranges[0])?.static_band();
    let upper = addresses.iter().filter(|ip| !static_band.is_some_and(|band: Band| band.contains(**ip))).count();
    let asked = addresses.len();
    let required = (overlaps * asked as u64).div_ceil(count as u64);
    if case.plane.server_ids().len() > 1 {
        case.context.required.insert(Sometimes::SameAddressOverlapped, required);
    }
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let mut clients = case.clients()?;
        if let [alone] = clients.as_slice() {
            let second = case.client(alone.server())?;
            clients.push(second);
        }
        let mine: Vec<(usize, IpAddr)> = addresses.iter().copied().enumerate().skip(lane).step_by(LANES).collect();
        lanes.spawn(async move {
            let mut rounds = Vec::new();
            for (index, ip) in mine {
                let (round, returned) = ask_all(clients, &format!("static-{index}"), ip).await;
                clients = returned;
                rounds.push(round);
            }
            rounds
        });
    }
    let rounds: Vec<Round> = lanes.join_all().await.into_iter().flatten().collect();
    let mut observed = Observed::default();
    rounds.iter().for_each(|round| round.require_granted(&mut observed));
    let overlapped = rounds.iter().filter(|round| round.overlapped()).count();
    if (overlapped as u64) < required {
        let why = format!("{overlapped} of {asked} addresses were asked for at once, {required} required");
        observed.inconclusive.push(why);
    }
    let mut twice = rounds.iter().filter(|round| round.granted() > 1).count();
    let operations: Vec<Operation> = rounds.into_iter().flat_map(|round| round.operations).collect();
    let refusals = count_refusals(&operations, &mut observed);
    require_only(&[Refusal::StaticTaken], &operations, &mut observed);
    observed.measured.insert("granted_twice_addresses".into(), twice as f64);
    observed.summary = format!("{twice} of {asked} static addresses granted twice");
    if upper > 0 {
        observed.summary += &format!(" ({upper} of them from the upper band)");
    }
    observed.summary += &format!("; {overlapped} asked for at once; refused: {}", counts_text(&refusals));
    if let Some(pair) = pair {
        twice += order::one_after_the_other(case, pair, &in_order, &mut observed).await?;
        observed.predicted.insert(Hazard::NoSharedLock, (twice as u64, twice as u64));
    }
    Ok(observed)
}
