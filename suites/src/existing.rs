//! The run of a case on servers that run already: a namespace of its own, a recording through their API, and nothing left.

use crate::case::Case;
use anyhow::Context;
use harness::check::CaseContext;
use harness::cluster::{Binaries, ControlPlane, Purpose, Site};
use harness::combo::Combo;
use harness::existing::{Endpoint, Existing, namespace};
use harness::history::Completeness;
use harness::journal::Journal;
use harness::judged;
use harness::listing::{self, Networking};
use harness::record::Observed;
use harness::recorder::api;
use std::path::Path;
use std::time::Instant;

/// Where a case runs.
pub struct Place<'a> {
    /// The servers.
    pub existing: &'a Existing,
    /// What they are.
    pub combo: &'a Combo,
    /// The id of the run.
    pub run: &'a str,
    /// The namespace that the case makes.
    pub namespace: &'a str,
}

/// Runs a scenario; the journal ends with it, and the namespace too, whatever happens.
///
/// # Errors
/// A server does not answer or is not what the plan says, the scenario fails, or its namespace is left.
pub async fn drive(
    place: &Place<'_>,
    dir: &Path,
    journal: Journal,
    body: impl AsyncFnOnce(&mut Case) -> anyhow::Result<Observed>,
) -> anyhow::Result<(Observed, CaseContext)> {
    let first = place.existing.servers.first().context("a plan must have servers")?;
    let client = first.endpoint.client().await?;
    namespace::create(&client, place.run, place.namespace)
        .await
        .with_context(|| format!("cannot create namespace {}", place.namespace))?;
    let driven = drive_in_namespace(place, dir, journal, body).await;
    // The failure of the scenario says more than that of the clearing away.
    let removed = namespace::remove(&client, place.run, place.namespace).await;
    if let (Err(_), Err(left)) = (&driven, &removed) {
        eprintln!("{left}");
    }
    let driven = driven?;
    removed?;
    Ok(driven)
}

async fn drive_in_namespace(
    place: &Place<'_>,
    dir: &Path,
    journal: Journal,
    body: impl AsyncFnOnce(&mut Case) -> anyhow::Result<Observed>,
) -> anyhow::Result<(Observed, CaseContext)> {
    let begin = Instant::now();
    let (endpoint, networking) = recorded(place.existing).await?;
    let (watcher, journal) = api::begin(&endpoint, networking, journal).await?;
    let context = CaseContext { bitmaps_recorded: false, found_until: watcher.found_until(), ..CaseContext::default() };
    judged::write_context(dir, &context)?;
    let site = Site::Existing(place.existing.clone());
    let purpose = Purpose { first: place.combo, combo: place.combo };
    let mut plane = ControlPlane::start_etcd(&site, dir, &Binaries::default(), &journal, purpose).await?;
    plane.start_servers().await?;
    let mut case = Case::new(plane, place.combo.clone(), journal, context, place.namespace.into());
    let ready = begin.elapsed();
    let mut observed = body(&mut case).await?;
    observed.measured.insert("ready_seconds".into(), ready.as_secs_f64());
    let claims = claims_ip_addresses(&case)?.filter(|_| networking.is_some());
    case.plane.stop_servers().await?;
    let context = case.context.clone();
    drop(case);
    // A recording that is void is judged as such.
    match watcher.finish(place.namespace, claims).await {
        Completeness::Complete | Completeness::Void { .. } => {}
    }
    Ok((observed, context))
}

/// The server to record through: the first that serves every kind, else the first.
async fn recorded(existing: &Existing) -> anyhow::Result<(Endpoint, Option<Networking>)> {
    let mut clients = Vec::new();
    for found in &existing.servers {
        clients.push(found.endpoint.client().await?);
    }
    let (index, networking) = listing::first_with_all(&clients).await?;
    let found = existing.servers.get(index).context("a plan must have servers")?;
    Ok((found.endpoint.clone(), networking))
}

/// A server that makes an IPAddress for each address it grants.
fn claims_ip_addresses(case: &Case) -> anyhow::Result<Option<kube::Client>> {
    for server in case.plane.server_ids() {
        if case.plane.spec(server)?.mode()?.writes_ip_addresses() {
            return Ok(Some(case.plane.client(server)?));
        }
    }
    Ok(None)
}
