//! The Events of the repair loops: what an admin of the cluster sees.

use harness::record::Observed;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use std::collections::BTreeMap;

/// The reporter of both repair loops (`pkg/registry/core/service/ipallocator/controller`).
const REPORTER: &str = "ipallocator-repair-controller";
/// Reasons that say that a Service has lost its address, or shares it.
const ALARMS: [&str; 4] = ["ClusterIPAlreadyAllocated", "ClusterIPNotValid", "ClusterIPOutOfRange", "UnknownError"];

/// How often the repair loops gave each reason so far, as one server lists the Events.
///
/// # Errors
/// The server does not answer.
pub async fn repair_reasons(client: &kube::Client) -> anyhow::Result<BTreeMap<String, u64>> {
    let api: Api<Event> = Api::all(client.clone());
    let mut counts = BTreeMap::new();
    for event in api.list(&ListParams::default()).await?.items {
        if event.reporting_controller.as_deref() == Some(REPORTER) {
            let count = event.series.map_or(1, |series| u64::try_from(series.count).unwrap_or(1));
            *counts.entry(event.reason.unwrap_or_default()).or_default() += count;
        }
    }
    Ok(counts)
}

/// One server at a time cannot grant an address twice or leave its range: an Event that says so is wrong.
pub fn require_no_alarm(step: usize, reasons: &BTreeMap<String, u64>, observed: &mut Observed) {
    for (reason, count) in reasons.iter().filter(|(reason, _)| ALARMS.contains(&reason.as_str())) {
        observed.wrong.push(format!("step {step}: the repair loops have said {reason} {count} times"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::counts_text;

    #[test]
    fn only_reasons_about_a_lost_or_shared_address_are_alarms() {
        let mut observed = Observed::default();
        let reasons = |text: &str| BTreeMap::from([(text.to_string(), 2)]);
        require_no_alarm(1, &reasons("ClusterIPNotAllocated"), &mut observed);
        assert!(observed.wrong.is_empty());
        require_no_alarm(2, &reasons("ClusterIPAlreadyAllocated"), &mut observed);
        assert_eq!(observed.wrong, ["step 2: the repair loops have said ClusterIPAlreadyAllocated 2 times"]);
        assert_eq!(counts_text(&reasons("ClusterIPNotAllocated")), "2 x ClusterIPNotAllocated");
    }
}
