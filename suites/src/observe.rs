//! Questions that several scenarios ask of what was recorded or stored.

use harness::etcd::Etcd;
use harness::history::{Operation, Outcome, StoredService};
use harness::record::Observed;
use harness::refusal::{Refusal, classify};
use harness::stored::{Stored, decode, keys, parse_key};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Whether two calls were under way at the same time.
pub fn overlap(a: &Operation, b: &Operation) -> bool {
    a.invoked < b.returned && b.invoked < a.returned
}

/// The refusals by kind. Unclassified ones go to `wrong`, unknown outcomes to `inconclusive`.
pub fn count_refusals(operations: &[Operation], observed: &mut Observed) -> BTreeMap<Refusal, u64> {
    let mut counts = BTreeMap::new();
    for operation in operations {
        match &operation.outcome {
            Outcome::Ok { .. } => {}
            Outcome::Refused { code, reason, message } => match classify(*code, reason, message) {
                Some(kind) => *counts.entry(kind).or_default() += 1,
                None => observed
                    .wrong
                    .push(format!("{} gave an unclassified answer: {code} {reason}: {message}", operation.server)),
            },
            Outcome::Unknown { detail } => {
                observed.inconclusive.push(format!("{} left an outcome open: {detail}", operation.server));
            }
        }
    }
    counts
}

/// Counts as text: `93 x 422 already allocated, 7 x 500 range is full`.
pub fn refusals_text(counts: &BTreeMap<Refusal, u64>) -> String {
    if counts.is_empty() {
        return "none".into();
    }
    counts.iter().map(|(kind, count)| format!("{count} x {kind}")).collect::<Vec<_>>().join(", ")
}

/// Every Service as etcd has it now.
///
/// # Errors
/// etcd does not answer, or a value does not decode.
pub async fn stored_services(etcd: &Etcd) -> anyhow::Result<Vec<StoredService>> {
    let mut services = Vec::new();
    for kv in etcd.list(keys::SERVICES).await?.kvs {
        if let Some(key) = parse_key(&kv.key)?
            && let Stored::Service(service) = decode(&key, &kv.value)?
        {
            services.push(service);
        }
    }
    Ok(services)
}

/// The addresses that more than one of the Services holds.
pub fn duplicates(services: &[StoredService]) -> BTreeSet<IpAddr> {
    let mut seen = BTreeSet::new();
    services.iter().flat_map(|service| &service.ips).copied().filter(|ip| !seen.insert(*ip)).collect()
}
