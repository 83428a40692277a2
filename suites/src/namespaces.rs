//! Many namespaces, which slow down the caches of a server that starts.

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tokio::task::JoinSet;

/// Creates under way at the same time.
const AT_ONCE: usize = 32;

/// Creates so many empty namespaces.
///
/// # Errors
/// The server refuses one.
pub async fn create_namespaces(client: &kube::Client, count: usize) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE {
        let api: Api<Namespace> = Api::all(client.clone());
        tasks.spawn(async move {
            for index in (first..count).step_by(AT_ONCE) {
                let metadata = ObjectMeta { name: Some(format!("many-{index}")), ..Default::default() };
                let namespace = Namespace { metadata, ..Default::default() };
                api.create(&PostParams::default(), &namespace).await?;
            }
            Ok::<(), kube::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
