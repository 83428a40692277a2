//! The namespace of a case: everything that a case makes in a cluster of somebody else lies in it, and goes with it.

use crate::client::root_cause;
use crate::wait::{self, NotYet};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use std::collections::BTreeMap;
use std::time::Duration;

/// Label whose value is the id of the run: only what carries it is ever deleted.
const RUN_LABEL: &str = "skewlab.dev/run";
/// Who made it, for people who find it.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "skewlab");
/// A namespace with some hundred Services is gone within seconds; a busy cluster takes longer.
const GONE_TIMEOUT: Duration = Duration::from_secs(90);

/// The name of the namespace of the case with this number, from 1 on.
pub fn name(run: &str, number: usize) -> String {
    format!("skewlab-{}-{number}", run.to_lowercase())
}

/// Makes the namespace of a case. One that is there already is somebody else's.
///
/// # Errors
/// The server refuses.
pub async fn create(client: &kube::Client, run: &str, name: &str) -> Result<(), kube::Error> {
    let api: Api<Namespace> = Api::all(client.clone());
    let labels = [(RUN_LABEL, run), MANAGED_BY].map(|(key, value)| (key.to_string(), value.to_string()));
    let metadata =
        ObjectMeta { name: Some(name.into()), labels: Some(BTreeMap::from(labels)), ..ObjectMeta::default() };
    api.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await.map(drop)
}

/// Deletes every namespace of a run, waits until they are gone, and returns their names.
///
/// # Errors
/// They are not gone in time, with the command that deletes them.
pub async fn sweep(client: &kube::Client, run: &str) -> Result<Vec<String>, Left> {
    let found = of_run(client, run).await.map_err(|error| Left::new(run, error))?;
    for name in &found {
        remove(client, run, name).await?;
    }
    Ok(found)
}

/// Deletes the namespace of a case and waits until it is gone.
///
/// # Errors
/// It is not gone in time, with the command that deletes it.
pub async fn remove(client: &kube::Client, run: &str, name: &str) -> Result<(), Left> {
    let api: Api<Namespace> = Api::all(client.clone());
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(Left::new(run, error)),
    }
    let gone = wait::until(format!("the end of namespace {name}"), GONE_TIMEOUT, async || {
        let left = of_run(client, run).await.map_err(|error| NotYet::new(error.to_string()))?;
        if left.iter().any(|it| it == name) { Err(NotYet::new("its removal by the cluster")) } else { Ok(()) }
    });
    gone.await.map_err(|timeout| Left::new(run, timeout))
}

async fn of_run(client: &kube::Client, run: &str) -> Result<Vec<String>, kube::Error> {
    let api: Api<Namespace> = Api::all(client.clone());
    let of_run = ListParams::default().labels(&format!("{RUN_LABEL}={run}"));
    Ok(api.list(&of_run).await?.items.into_iter().filter_map(|it| it.metadata.name).collect())
}

/// Namespaces that are still there.
#[derive(Debug, thiserror::Error)]
#[error("namespaces of the run are left: {why}; delete them with: kubectl delete namespace -l {RUN_LABEL}={run}")]
pub struct Left {
    run: String,
    why: String,
}

impl Left {
    fn new(run: &str, why: impl std::error::Error) -> Left {
        Left { run: run.into(), why: root_cause(&why) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_said_with_the_command_that_removes_it() {
        let left = Left { run: "20261202-141529-7".into(), why: "403".into() };
        let command = "kubectl delete namespace -l skewlab.dev/run=20261202-141529-7";
        assert!(left.to_string().ends_with(command), "{left}");
        assert_eq!(name("20261202-141529-7", 3), "skewlab-20261202-141529-7-3");
    }
}
