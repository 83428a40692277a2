//! Traffic that goes on while servers come and go, and the controller manager that follows them.

use crate::case::Case;
use crate::events::{repair_reasons, require_no_alarm};
use crate::observe::{count_refusals, counts_text, require_only};
use crate::readback::{ReadBack, read_back};
use crate::step::{check_step, create_anchors};
use anyhow::Context;
use harness::binaries::{KubeComponent, default_version};
use harness::expect::hazard_of_dynamic_taken;
use harness::hazard::Hazard;
use harness::history::{Operation, OperationKind, Outcome, ServerId, ServiceType, TopologyEvent};
use harness::journal::Journal;
use harness::net::ServiceRange;
use harness::record::Observed;
use harness::refusal::Refusal;
use harness::server::ServerSpec;
use harness::traffic::{Client, NAMESPACE};
use harness::version::Minor;
use harness::wait::{self, NotYet};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock, watch};
use tokio::task::JoinHandle;

/// Between two calls of one client. Two clients make 20 calls a second, the churn up to which SIG Scalability's service
/// level objectives hold.
const PACE: Duration = Duration::from_millis(100);
/// Calls that must have returned through all servers between two steps.
const CALLS_PER_STEP: u64 = 12;
/// How long that may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Starts of one server before a path counts as impassable.
const STARTS: usize = 5;
/// Services a client keeps alive; beyond it the oldest is deleted.
const ALIVE: usize = 12;

/// What a client of the traffic asks through: nothing while its server is away.
type Road = Option<(u16, kube::Client)>;

/// One client per server that creates (static and dynamic), changes types and deletes.
pub struct Traffic {
    roads: Vec<(ServerId, watch::Sender<Road>)>,
    tasks: Vec<JoinHandle<Vec<Operation>>>,
    /// Every call holds it for reading; a quiet phase holds it for writing.
    gate: Arc<RwLock<()>>,
    calls: Arc<AtomicU64>,
    next_client: u16,
}

impl Traffic {
    /// Starts a client for every running server.
    ///
    /// # Errors
    /// A server does not run.
    pub fn start(case: &Case) -> anyhow::Result<Self> {
        let mut traffic = Traffic {
            roads: Vec::new(),
            tasks: Vec::new(),
            gate: Arc::default(),
            calls: Arc::default(),
            next_client: 1000,
        };
        let range = ServiceRange::new(case.combo.servers[0].service_ranges[0])?;
        let servers = case.plane.server_ids();
        let parts = static_parts(&range, servers.len());
        for (server, statics) in servers.into_iter().zip(parts) {
            traffic.next_client += 1;
            let (sender, road) = watch::channel(Some((traffic.next_client, case.plane.client(server)?)));
            let (gate, calls) = (traffic.gate.clone(), traffic.calls.clone());
            traffic.tasks.push(tokio::spawn(drive(server, road, case.journal.clone(), statics, gate, calls)));
            traffic.roads.push((server, sender));
        }
        Ok(traffic)
    }

    /// The server goes away. A call that is under way is not waited for.
    pub fn leave(&mut self, server: ServerId) {
        self.set(server, None);
    }

    /// The server is back.
    pub fn join(&mut self, server: ServerId, client: kube::Client) {
        self.next_client += 1;
        let road = Some((self.next_client, client));
        self.set(server, road);
    }

    fn set(&self, server: ServerId, road: Road) {
        for (_, sender) in self.roads.iter().filter(|(id, _)| *id == server) {
            sender.send_replace(road.clone());
        }
    }

    /// Lets the traffic run until some more calls have returned.
    ///
    /// # Errors
    /// They do not return.
    pub async fn run_for_a_while(&self) -> anyhow::Result<()> {
        let goal = self.calls.load(Ordering::Relaxed) + CALLS_PER_STEP;
        let reached = wait::until("traffic between two steps", STEP_TIMEOUT, async || {
            let missing = goal.saturating_sub(self.calls.load(Ordering::Relaxed));
            if missing == 0 { Ok(()) } else { Err(NotYet::new(format!("{missing} calls"))) }
        });
        Ok(reached.await?)
    }

    /// Waits until no call is under way and holds the traffic until the guard is dropped.
    pub async fn quiet(&self) -> OwnedRwLockWriteGuard<()> {
        self.gate.clone().write_owned().await
    }

    /// Ends the traffic and returns every call it made.
    ///
    /// # Errors
    /// A client panicked.
    pub async fn stop(self) -> anyhow::Result<Vec<Operation>> {
        drop(self.roads);
        let mut operations = Vec::new();
        for task in self.tasks {
            operations.extend(task.await?);
        }
        Ok(operations)
    }
}

/// Splits the static band among clients: contention is another scenario's subject, and an address of the dynamic band
/// may be taken by any create. The Service `kubernetes` has the first address.
fn static_parts(range: &ServiceRange, clients: usize) -> Vec<VecDeque<IpAddr>> {
    let kubernetes = range.kubernetes_service_ip();
    let mut parts = vec![VecDeque::new(); clients];
    let band = range.static_band().into_iter().flat_map(|band| band.addresses());
    for (index, ip) in band.filter(|ip| *ip != kubernetes).enumerate() {
        parts[index % clients].push_back(ip);
    }
    parts
}

/// The life of one client, until its road is gone.
async fn drive(
    server: ServerId,
    mut road: watch::Receiver<Road>,
    journal: Journal,
    mut statics: VecDeque<IpAddr>,
    gate: Arc<RwLock<()>>,
    calls: Arc<AtomicU64>,
) -> Vec<Operation> {
    let mut operations: Vec<Operation> = Vec::new();
    let mut alive: VecDeque<String> = VecDeque::new();
    let mut pace = tokio::time::interval(PACE);
    let mut turn = 0;
    loop {
        // Closed: the traffic ends.
        if road.has_changed().is_err() {
            return operations;
        }
        let now = road.borrow_and_update().clone();
        let Some((id, client)) = now else {
            if road.changed().await.is_err() {
                return operations;
            }
            continue;
        };
        pace.tick().await;
        let _under_way = gate.read().await;
        turn += 1;
        let mut client = Client::new(id, server, client, journal.clone(), NAMESPACE.into());
        let operation = next_call(&mut client, turn, &mut alive, &mut statics).await;
        calls.fetch_add(1, Ordering::Relaxed);
        operations.push(operation);
    }
}

/// Every third create names an address; every fifth turn gives an address back and takes one by changing the type.
async fn next_call(
    client: &mut Client,
    turn: usize,
    alive: &mut VecDeque<String>,
    statics: &mut VecDeque<IpAddr>,
) -> Operation {
    if alive.len() > ALIVE
        && let Some(oldest) = alive.pop_front()
    {
        return client.delete(&oldest).await;
    }
    let name = format!("rolling-{}-{turn}", client.server());
    let wanted: Vec<IpAddr> =
        if turn.is_multiple_of(3) { statics.pop_front().into_iter().collect() } else { Vec::new() };
    if turn.is_multiple_of(5)
        && let Some(last) = alive.back().cloned()
    {
        let to = if turn.is_multiple_of(10) { ServiceType::ClusterIp } else { ServiceType::ExternalName };
        return client.change_type(&last, to).await;
    }
    let operation = client.create(&name, &wanted).await;
    let created = match (&operation.kind, &operation.outcome) {
        (OperationKind::CreateService { .. }, Outcome::Ok { .. }) => true,
        (_, Outcome::Ok { .. } | Outcome::Refused { .. } | Outcome::Unknown { .. }) => false,
    };
    if created {
        alive.push_back(name);
    }
    operation
}

/// Takes every server to each of the targets in turn, one at a time, under traffic.
///
/// # Errors
/// A server or the controller manager does not start, or etcd does not answer.
pub async fn roll(case: &mut Case, targets: &[ServerSpec]) -> anyhow::Result<Observed> {
    let begin = Instant::now();
    let mut observed = Observed::default();
    start_controller_manager(case).await?;
    let anchors = create_anchors(case).await?;
    let mut traffic = Traffic::start(case)?;
    let servers: Vec<ServerId> = case.plane.server_ids();
    let mut steps = 0;
    let mut seen = ReadBack::default();
    let mut reasons = BTreeMap::new();
    for target in targets {
        for server in &servers {
            // The controller manager must never be newer than the oldest apiserver, also not for a moment.
            stop_controller_manager(case).await?;
            traffic.leave(*server);
            case.plane.stop_server(*server).await?;
            case.plane.respecify_server(*server, target.clone())?;
            start_server_under_traffic(case, *server, &mut observed).await?;
            traffic.join(*server, case.plane.client(*server)?);
            start_controller_manager(case).await?;
            traffic.run_for_a_while().await?;
            steps += 1;
            let quiet = traffic.quiet().await;
            case.journal.topology(TopologyEvent::QuietBegin);
            check_step(case, steps, &anchors, &mut observed).await?;
            seen.merge(read_back(case, steps, &mut observed).await?);
            reasons = repair_reasons(&case.plane.client(*server)?).await?;
            if let [_] = servers.as_slice() {
                require_no_alarm(steps, &reasons, &mut observed);
            }
            case.journal.topology(TopologyEvent::QuietEnd);
            drop(quiet);
        }
    }
    let operations = traffic.stop().await?;
    // A call that was cut off by a restart is resolved by the recording.
    let finished: Vec<Operation> =
        operations.iter().filter(|it| !matches!(it.outcome, Outcome::Unknown { .. })).cloned().collect();
    let cut_off = operations.len() - finished.len();
    let refusals = count_refusals(&finished, &mut observed);
    let taken = hazard_of_dynamic_taken(&case.combo.modes()?);
    *observed.hazards.entry(taken).or_default() += refusals.get(&Refusal::DynamicTaken).copied().unwrap_or(0);
    require_only(&[Refusal::DynamicTaken, Refusal::Stopping], &finished, &mut observed);
    observed.measured.insert("rolling_seconds".into(), begin.elapsed().as_secs_f64());
    observed.summary = format!(
        "{steps} steps under {} calls, {cut_off} cut off by a restart; refused: {}; Events of repair: {}; {seen}",
        operations.len(),
        counts_text(&refusals),
        counts_text(&reasons)
    );
    Ok(observed)
}

/// Starts a server that is down. One whose first repair pass loses against the traffic exits by itself; it is started
/// again, as the kubelet would, and every such exit is counted as the hazard it is.
///
/// # Errors
/// It does not start for another reason, or loses every time.
pub async fn start_server_under_traffic(
    case: &mut Case,
    server: ServerId,
    observed: &mut Observed,
) -> anyhow::Result<()> {
    for _ in 0..STARTS {
        match case.plane.start_server(server).await {
            Err(error) if error.is_first_repair_pass_lost() => {
                *observed.hazards.entry(Hazard::FirstRepairPassLost).or_default() += 1;
            }
            result => return Ok(result?),
        }
    }
    anyhow::bail!("{server} lost its first repair pass {STARTS} times in a row")
}

/// Stops kube-controller-manager: its apiserver is about to be replaced, and it must never be newer than any apiserver.
///
/// # Errors
/// It cannot be waited for.
pub async fn stop_controller_manager(case: &mut Case) -> anyhow::Result<()> {
    Ok(case.plane.stop_controller_manager().await?)
}

/// Starts kube-controller-manager in the minor of the oldest apiserver, and against that.
///
/// # Errors
/// It does not start.
pub async fn start_controller_manager(case: &mut Case) -> anyhow::Result<()> {
    let mut oldest: Option<(Minor, ServerId)> = None;
    for id in case.plane.server_ids() {
        let candidate = (case.plane.spec(id)?.version.minor, id);
        oldest = Some(oldest.map_or(candidate, |before| before.min(candidate)));
    }
    let (minor, server) = oldest.context("no server runs")?;
    let version = default_version(KubeComponent::ControllerManager, minor).context("no controller manager")?;
    Ok(case.plane.start_controller_manager(server, version).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn clients_ask_only_for_static_addresses_and_never_for_the_same_one() {
        for (cidr, expected) in [("10.0.0.0/16", 255), ("10.0.0.0/24", 15), ("10.0.0.0/28", 0)] {
            let range = ServiceRange::new(cidr.parse().unwrap()).unwrap();
            for clients in 1..=3 {
                let parts = static_parts(&range, clients);
                let all: Vec<IpAddr> = parts.iter().flatten().copied().collect();
                assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), expected, "{cidr} for {clients}");
                assert_eq!(all.len(), expected);
                assert!(all.iter().all(|ip| range.static_band().is_some_and(|band| band.contains(*ip))));
                assert!(!all.contains(&range.kubernetes_service_ip()));
            }
        }
    }
}
