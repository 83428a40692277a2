//! A server that dies while calls are on their way to it.

use crate::case::Case;
use harness::history::{Operation, Outcome, ServerId};
use harness::wait::{self, NotYet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// Clients that create without a pause: with so many some call is on its way at any moment.
const CLIENTS: u64 = 6;
/// A create takes some milliseconds.
const CALLS_TIMEOUT: Duration = Duration::from_secs(30);

/// Kills a server in the middle of creates of its own, and returns these.
///
/// # Errors
/// The server does not run, or does not answer before it is killed.
pub async fn kill_in_flight(case: &mut Case, server: ServerId, crash: usize) -> anyhow::Result<Vec<Operation>> {
    let answered = Arc::new(AtomicU64::new(0));
    let mut calls = JoinSet::new();
    for number in 0..CLIENTS {
        let (mut client, answered) = (case.client(server)?, answered.clone());
        calls.spawn(async move {
            let mut operations: Vec<Operation> = Vec::new();
            // The first call that is cut off is the last.
            while operations.last().is_none_or(|last| matches!(last.outcome, Outcome::Ok { .. })) {
                operations.push(client.create(&format!("crash-{crash}-{number}-{}", operations.len()), &[]).await);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            operations
        });
    }
    wait::until("creates before the crash", CALLS_TIMEOUT, async || {
        let missing = (2 * CLIENTS).saturating_sub(answered.load(Ordering::Relaxed));
        if missing == 0 { Ok(()) } else { Err(NotYet::new(format!("{missing} answers"))) }
    })
    .await?;
    case.plane.kill_server(server).await?;
    Ok(calls.join_all().await.concat())
}
