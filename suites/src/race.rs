//! The same static address asked of every server at once.

use crate::case::Case;
use crate::observe::{count_refusals, counts_text, require_only};
use harness::history::{Operation, Outcome};
use harness::net::ServiceRange;
use harness::record::Observed;
use harness::refusal::Refusal;
use harness::server::DEFAULT_SERVICE_RANGE;
use std::net::IpAddr;

/// Addresses of the static band of the default range, without the first ten: `kubernetes` has the first, and DNS by
/// custom the tenth.
///
/// # Errors
/// Never for the default range.
pub fn addresses(count: usize) -> anyhow::Result<Vec<IpAddr>> {
    let range = ServiceRange::new(DEFAULT_SERVICE_RANGE.parse()?)?;
    let band = range.static_band().expect("the default service range must have a static band");
    Ok(band.addresses().skip(10).take(count).collect())
}

/// Asks all servers for the same addresses, one after the other. What was granted twice is for the judge to say.
///
/// # Errors
/// A server does not run.
pub async fn static_addresses(case: &mut Case, count: usize) -> anyhow::Result<Observed> {
    let mut clients = case.clients()?;
    let mut operations: Vec<Operation> = Vec::new();
    let (mut granted_twice, mut granted_to_none) = (0, 0);
    for (index, ip) in addresses(count)?.into_iter().enumerate() {
        let mut calls = tokio::task::JoinSet::new();
        for mut client in clients.drain(..) {
            let name = format!("static-{index}-{}", client.server());
            calls.spawn(async move { (client.create(&name, &[ip]).await, client) });
        }
        let (round, returned): (Vec<_>, Vec<_>) = calls.join_all().await.into_iter().unzip();
        clients = returned;
        match round.iter().filter(|it| matches!(it.outcome, Outcome::Ok { .. })).count() {
            0 => granted_to_none += 1,
            1 => {}
            _ => granted_twice += 1,
        }
        operations.extend(round);
    }
    let mut observed = Observed::default();
    let refusals = count_refusals(&operations, &mut observed);
    require_only(&[Refusal::StaticTaken], &operations, &mut observed);
    observed.summary = format!(
        "{granted_twice} of {count} static addresses granted twice, {granted_to_none} to nobody; refused: {}",
        counts_text(&refusals)
    );
    Ok(observed)
}
