//! The recording and its judge, tried on a real control plane.

use anyhow::Context;
use harness::expect::Scenario;
use harness::history::{Outcome, TopologyEvent};
use harness::record::Observed;
use harness::stored::keys;
use harness::traffic::{NAMESPACE, mk_service};
use rstest::rstest;
use suites::case::{self, Case};

/// A Service written past every apiserver, holding the address of another one, is the control that the judge can see.
#[rstest]
#[case::v1_33_dual_write__v1_33_dual_write("v1_33_dual_write__v1_33_dual_write")]
#[tokio::test]
async fn a_planted_duplicate_is_found(#[case] combo: &str) -> anyhow::Result<()> {
    case::run(Scenario::PlantedDuplicate, combo, &[], async |case: &mut Case| {
        let server = case.plane.server_ids()[0];
        let created = case.client(server)?.create("owner", &[]).await;
        let Outcome::Ok { granted, revision, .. } = &created.outcome else {
            anyhow::bail!("the first Service was not created: {:?}", created.outcome);
        };
        let ip = *granted.first().context("the first Service must have an address")?;
        let mut service = mk_service("planted", &[ip]);
        service.metadata.uid = Some("00000000-0000-0000-0000-00000000d00d".into());
        service.metadata.namespace = Some(NAMESPACE.into());
        let key = format!("{}{NAMESPACE}/planted", keys::SERVICES);
        let planted = case.plane.etcd()?.put(&key, serde_json::to_vec(&service)?).await?;
        case.journal.topology(TopologyEvent::Planted { revision: planted });
        case.planted.push(planted);
        let summary = format!("{ip} granted at revision {revision} and planted again at revision {planted}");
        Ok(Observed { summary, ..Observed::default() })
    })
    .await
}
