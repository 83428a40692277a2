//! The run of one case: plan, control plane, scenario, verdict, record.

use crate::{existing, observe};
use anyhow::{Context, anyhow};
use harness::binaries;
use harness::check::CaseContext;
use harness::cluster::{Binaries, ControlPlane, Purpose, Site};
use harness::combo::{self, Combo};
use harness::expect::{Expectation, Scenario, expectation};
use harness::gates::AllocatorMode;
use harness::history::replay::State;
use harness::history::{ServerId, ServiceKey};
use harness::journal::Journal;
use harness::judged;
use harness::listing::{self, Networking};
use harness::provider::{Lacking, Need};
use harness::record::{CLUSTER_VARIABLE, CaseId, CaseOutcome, CaseRecord, Observed, RUN_DIR_VARIABLE, RunPlan, judge};
use harness::recorder;
use harness::traffic::{Client, NAMESPACE};
use harness::wait::{self, NotYet};
use ipnet::IpNet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A namespace is there within a second of readiness.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(30);

/// One running case, as a scenario sees it.
pub struct Case {
    /// The control plane.
    pub plane: ControlPlane,
    /// Its servers as planned.
    pub combo: Combo,
    /// Clock and recording.
    pub journal: Journal,
    /// What must have happened for the case to say anything.
    pub context: CaseContext,
    /// The revisions at which the scenario wrote a duplicate into etcd itself; the judge must find each of them.
    pub planted: Vec<i64>,
    /// Where its Services are made.
    pub namespace: String,
    clients: u16,
}

impl Case {
    /// A case on servers that run, whose Services are made in this namespace.
    pub fn new(plane: ControlPlane, combo: Combo, journal: Journal, context: CaseContext, namespace: String) -> Self {
        Case { plane, combo, journal, context, planted: Vec::new(), namespace, clients: 0 }
    }

    /// What a server lists of Services, IPAddresses and ServiceCIDRs now: one that serves them all, if there is one.
    ///
    /// # Errors
    /// No server answers.
    pub async fn list(&self) -> anyhow::Result<State> {
        let (client, networking) = self.lister().await?;
        Ok(listing::list(&client, networking, None).await?.state())
    }

    /// The Service that the IPAddress of an address refers to, as a server that serves IPAddresses reads it.
    ///
    /// # Errors
    /// No server answers.
    pub async fn parent_of(&self, ip: IpAddr) -> anyhow::Result<Option<ServiceKey>> {
        let (client, networking) = self.lister().await?;
        let Some(networking) = networking else { return Ok(None) };
        Ok(listing::ip_address(&client, networking, ip).await?.and_then(|object| object.parent))
    }

    async fn lister(&self) -> anyhow::Result<(kube::Client, Option<Networking>)> {
        let clients = self.plane.server_ids().into_iter().map(|server| self.plane.client(server));
        let mut clients: Vec<kube::Client> = clients.collect::<Result<_, _>>()?;
        anyhow::ensure!(!clients.is_empty(), "no server runs");
        let (index, networking) = listing::first_with_all(&clients).await?;
        Ok((clients.swap_remove(index), networking))
    }

    /// The modes of the servers that run, in order.
    ///
    /// # Errors
    /// A server that no release would start.
    pub fn running_modes(&self) -> anyhow::Result<Vec<AllocatorMode>> {
        self.plane.server_ids().into_iter().map(|id| Ok(self.plane.spec(id)?.mode()?)).collect()
    }

    /// A new client of a server.
    ///
    /// # Errors
    /// The server does not run.
    pub fn client(&mut self, server: ServerId) -> anyhow::Result<Client> {
        self.clients += 1;
        Ok(Client::new(self.clients, server, self.plane.client(server)?, self.journal.clone(), self.namespace.clone()))
    }

    /// A new client of every running server, in order.
    ///
    /// # Errors
    /// A server does not run.
    pub fn clients(&mut self) -> anyhow::Result<Vec<Client>> {
        self.plane.server_ids().into_iter().map(|server| self.client(server)).collect()
    }
}

/// Runs a scenario on the servers of a combo, with their service ranges replaced if `ranges` is not empty, and writes
/// the record of the case. It begins with the servers of [`Scenario::first`].
///
/// # Errors
/// The case did not pass; the record says why.
pub async fn run(
    scenario: Scenario,
    combo: &str,
    ranges: &[&str],
    body: impl AsyncFnOnce(&mut Case) -> anyhow::Result<Observed>,
) -> anyhow::Result<()> {
    let setup = Setup::load(scenario, combo, ranges)?;
    let first = scenario.first(&setup.combo);
    finish(setup, &first, body).await
}

async fn finish(
    setup: Setup,
    first: &Combo,
    body: impl AsyncFnOnce(&mut Case) -> anyhow::Result<Observed>,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let (outcome, observed, detail) = match setup.lacking {
        Some(lacking) => (CaseOutcome::Skipped, Observed::default(), lacking.to_string()),
        None => match execute(&setup, first, body).await {
            Ok(observed) => {
                let (outcome, detail) = judge(&setup.expectation, &observed);
                (outcome, observed, detail)
            }
            Err(error) => (CaseOutcome::Error, Observed::default(), format!("{error:#}")),
        },
    };
    let layout = harness::cluster::Layout { dir: setup.dir.clone() };
    if outcome == CaseOutcome::Passed || !setup.keep || !setup.site.provider().has(Need::ReuseData) {
        layout.remove_data()?;
    }
    let record = CaseRecord {
        id: setup.id,
        outcome,
        seconds: begin.elapsed().as_secs_f64(),
        expectation: Some(setup.expectation),
        observed,
        detail,
    };
    record.write(&setup.dir)?;
    match outcome {
        CaseOutcome::Passed | CaseOutcome::Skipped => Ok(()),
        CaseOutcome::Failed | CaseOutcome::Error => Err(anyhow!("{}: {}", record.id, record.detail)),
    }
}

async fn execute(
    setup: &Setup,
    first: &Combo,
    body: impl AsyncFnOnce(&mut Case) -> anyhow::Result<Observed>,
) -> anyhow::Result<Observed> {
    let (recording, journal) = recorder::open(&setup.dir)?;
    let (mut observed, context, planted) = match &setup.site {
        Site::Local | Site::Kind(_) | Site::Containers(_) => {
            let context = CaseContext { events_recorded: true, ..CaseContext::default() };
            // Now already, so that a case that is killed can be judged as far as it got.
            judged::write_context(&setup.dir, &context)?;
            drive(setup, first, journal, context, body).await?
        }
        Site::Existing(existing) => {
            let place = existing::Place { existing, combo: &setup.combo, run: &setup.run, namespace: &setup.namespace };
            let (observed, context) = existing::drive(&place, &setup.dir, journal, body).await?;
            (observed, context, Vec::new())
        }
    };
    recording.close()?;
    judged::write_context(&setup.dir, &context)?;
    let verdict = judged::judge(&setup.dir)?;
    judged::write(&setup.dir, &verdict)?;
    observe::add_verdict(&verdict, &setup.expectation, &planted, &mut observed);
    Ok(observed)
}

/// Everything between the first process and the last; the journal ends with it.
async fn drive(
    setup: &Setup,
    first: &Combo,
    journal: Journal,
    context: CaseContext,
    body: impl AsyncFnOnce(&mut Case) -> anyhow::Result<Observed>,
) -> anyhow::Result<(Observed, CaseContext, Vec<i64>)> {
    let begin = Instant::now();
    let purpose = Purpose { first, combo: &setup.combo };
    let mut plane = ControlPlane::start_etcd(&setup.site, &setup.dir, &setup.binaries, &journal, purpose).await?;
    let created = begin.elapsed();
    let watcher = recorder::watch(plane.etcd()?, journal.clone()).await?;
    if let Err(error) = plane.start_servers().await {
        plane.export_logs().await;
        return Err(error.into());
    }
    let ready = begin.elapsed();
    let mut case = Case::new(plane, setup.combo.clone(), journal, context, NAMESPACE.into());
    for server in case.plane.server_ids() {
        await_namespace(&case.plane.client(server)?).await?;
    }
    let observed = body(&mut case).await;
    // A server that died explains a scenario that failed better than the scenario's own error.
    let running = case.plane.check_running().await.context("a process of the control plane ended by itself");
    if running.is_err() || observed.is_err() {
        case.plane.export_logs().await;
    }
    running?;
    let mut observed = observed?;
    observed.measured.insert("created_seconds".into(), created.as_secs_f64());
    observed.measured.insert("ready_seconds".into(), ready.as_secs_f64());
    observed.measured.insert("memory_mib".into(), (case.plane.resident_memory().await >> 20) as f64);
    case.plane.stop_servers().await?;
    watcher.finish().await?;
    case.plane.stop().await?;
    Ok((observed, case.context, case.planted))
}

async fn await_namespace(client: &kube::Client) -> anyhow::Result<()> {
    let exists = wait::until("the namespace of the scenarios", NAMESPACE_TIMEOUT, async || {
        match harness::traffic::namespace_exists(client).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(NotYet::new("the namespace")),
            Err(error) => Err(NotYet::new(error.to_string())),
        }
    });
    Ok(exists.await?)
}

/// What a case needs before it starts.
struct Setup {
    id: CaseId,
    /// The id of the run.
    run: String,
    /// The namespace of the case in a cluster of somebody else.
    namespace: String,
    dir: PathBuf,
    combo: Combo,
    expectation: Expectation,
    site: Site,
    /// What the scenario needs and the provider does not have.
    lacking: Option<Lacking>,
    binaries: Binaries,
    keep: bool,
}

impl Setup {
    fn load(scenario: Scenario, combo_id: &str, ranges: &[&str]) -> anyhow::Result<Setup> {
        let (suite, name) = scenario.path();
        let plan = match std::env::var_os(RUN_DIR_VARIABLE) {
            Some(run) => Some((PathBuf::from(&run), read_plan(Path::new(&run))?)),
            None => None,
        };
        let named = plan.as_ref().and_then(|(_, plan)| plan.named.clone());
        let combo_id = match (combo_id, &named) {
            (combo::FROM_TO, Some(named)) => named,
            (combo::FROM_TO, None) => anyhow::bail!("this case runs the combo of cargo xtask e2e --from V --to V"),
            (combo::EXISTING, Some(named)) => named,
            (combo::EXISTING, None) => {
                anyhow::bail!("this case runs on the servers of cargo xtask e2e --provider existing")
            }
            (id, _) => id,
        };
        let id = CaseId { suite: suite.into(), scenario: name.into(), combo: combo_id.into() };
        let planned = plan.as_ref().and_then(|(_, plan)| plan.combos.get(combo_id).cloned());
        let mut combo = planned.or_else(|| combo::find(combo_id)).with_context(|| format!("no combo {combo_id}"))?;
        let ranges: Vec<IpNet> = ranges.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        if !ranges.is_empty() {
            combo.servers = combo.servers.into_iter().map(|server| server.ranges(&ranges)).collect();
        }
        let expectation = expectation(scenario, &combo)?;
        let number = plan.as_ref().and_then(|(_, plan)| plan.cases.iter().position(|planned| *planned == id));
        let run_id = plan.as_ref().map_or(String::new(), |(_, plan)| plan.run.clone());
        let namespace = harness::existing::namespace::name(&run_id, number.unwrap_or_default() + 1);
        let (run, mut site, binaries, keep) = match plan {
            Some((run, plan)) => (run, plan.site, plan.binaries, plan.keep),
            None => by_hand(&combo)?,
        };
        match &mut site {
            Site::Local | Site::Containers(_) | Site::Existing(_) => {}
            Site::Kind(nodes) => nodes.lease = std::env::var(CLUSTER_VARIABLE).ok(),
        }
        let provider = site.provider();
        let lacking = provider.lacking(scenario.needs());
        let dir = id.dir(&run);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Setup { id, run: run_id, namespace, dir, combo, expectation, site, lacking, binaries, keep })
    }
}

fn read_plan(run: &Path) -> anyhow::Result<RunPlan> {
    let path = run.join(harness::record::PLAN_FILE);
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no plan", path.display()))
}

/// `cargo test -p suites --test e2e`, without xtask: a run directory of its own, binaries found or built now.
fn by_hand(combo: &Combo) -> anyhow::Result<(PathBuf, Site, Binaries, bool)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate must lie in the workspace")?;
    let target = root.join("target/skewlab");
    let run = target.join(format!("by-hand-{}", std::process::id()));
    println!("run directory: {}", run.display());
    let wanted = binaries::needed_by([combo], true);
    let obtained = binaries::obtain(&wanted, &binaries::Sources::from_env(None)?, &binaries::Silent)?;
    Ok((run, Site::Local, Binaries::from(&obtained), true))
}
