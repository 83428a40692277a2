//! Records a case through the API of one server, where etcd cannot be reached: it lists Services, IPAddresses and
//! ServiceCIDRs at one revision and watches each kind from there.
//!
//! Three watches come in no common order, so everything is held back and written in order at the end. The recording is
//! complete or void: a Service that is made for it marks the end in the watches, and the replay must equal what is listed
//! at the revision before.

use super::void;
use crate::existing::Endpoint;
use crate::existing::endpoint::EndpointError;
use crate::history::replay::State;
use crate::history::{Change, Completeness, End, Entry, Micros, Revision, ServiceKey};
use crate::journal::Journal;
use crate::listing::{self, Kind, ListError, Listing, Networking};
use crate::traffic::mk_service;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{PostParams, WatchEvent};
use serde_json::Value;
use std::pin::pin;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// How long the watches may take to deliver the marker.
const MARKER_TIMEOUT: Duration = Duration::from_secs(30);
/// The Service that marks the end.
const MARKER: &str = "end-of-recording";
/// After so many seconds the server ends a watch, which then goes on where it was.
const WATCH_SECONDS: u32 = 1500;
/// A watch that ends sooner is one that the server does not want.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// The recording of a case through one server.
pub struct Watcher {
    client: kube::Client,
    networking: Option<Networking>,
    journal: Journal,
    held: Receiver<Entry>,
    begin: Listing,
    began: Micros,
    seen: UnboundedReceiver<Result<Revision, ListError>>,
    _watches: JoinSet<()>,
}

/// Lists everything and begins to watch. The journal that is returned is the one to use from here on.
///
/// # Errors
/// The server does not answer.
pub async fn begin(
    endpoint: &Endpoint,
    networking: Option<Networking>,
    journal: Journal,
) -> Result<(Watcher, Journal), BeginError> {
    let client = endpoint.watching_client().await?;
    let begin = listing::list(&client, networking, None).await?;
    let began = journal.now();
    let (sender, seen) = unbounded_channel();
    let mut watches = JoinSet::new();
    for kind in Kind::all(networking) {
        watches.spawn(watch(client.clone(), kind, begin.revision, journal.clone(), sender.clone()));
    }
    let (ours, held) = journal.held_back();
    Ok((Watcher { client, networking, journal, held, begin, began, seen, _watches: watches }, ours))
}

/// Watches one kind until nobody listens any more.
async fn watch(
    client: kube::Client,
    kind: Kind,
    from: i64,
    journal: Journal,
    seen: UnboundedSender<Result<Revision, ListError>>,
) {
    let mut from = from;
    loop {
        let asked = Instant::now();
        let ended = watch_once(&client, kind, &mut from, &journal, &seen).await;
        // A server that ends every watch at once must not be asked without end.
        let ended =
            ended.and_then(|()| if asked.elapsed() < SHORTEST_WATCH { Err(ListError::WatchEnds) } else { Ok(()) });
        if let Err(error) = ended {
            let _ = seen.send(Err(error));
            return;
        }
    }
}

/// One request, from a revision on; where it ends without an error the next one loses nothing.
async fn watch_once(
    client: &kube::Client,
    kind: Kind,
    from: &mut i64,
    journal: &Journal,
    seen: &UnboundedSender<Result<Revision, ListError>>,
) -> Result<(), ListError> {
    let path = format!(
        "{}?watch=true&resourceVersion={from}&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}",
        kind.path()
    );
    let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    let mut events = pin!(client.request_events::<Value>(request).await?);
    while let Some(event) = events.next().await {
        let at = journal.now();
        let (revision, change) = match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => listing::written(kind, object)?,
            WatchEvent::Deleted(object) => listing::removed(kind, &object)?,
            WatchEvent::Bookmark(bookmark) => {
                *from = listing::number(&bookmark.metadata.resource_version)?;
                continue;
            }
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        };
        *from = revision;
        let _ = seen.send(Ok(Revision { revision, at, change }));
    }
    Ok(())
}

impl Watcher {
    /// The revision up to which everything was there before.
    pub fn found_until(&self) -> i64 {
        self.begin.revision
    }

    /// Ends the recording and writes it. Every clone of the journal that [`begin`] gave must be gone.
    ///
    /// `claims` is a server that makes an IPAddress for each address, where there is one: the one of the marker tells
    /// that the watch of IPAddresses has come so far as well.
    pub async fn finish(mut self, namespace: &str, claims: Option<kube::Client>) -> Completeness {
        let mut seen = Vec::new();
        let (end, completeness) = match self.compare(namespace, claims, &mut seen).await {
            Ok(end) => (end, Completeness::Complete),
            Err(why) => (i64::MAX, void(why)),
        };
        seen.retain(|revision| revision.revision <= end);
        let found = self.begin.writes.iter();
        let found =
            found.map(|(revision, change)| Revision { revision: *revision, at: self.began, change: change.clone() });
        let revisions: Vec<Revision> = found.chain(seen).collect();
        let last_revision = revisions.iter().map(|it| it.revision).max().unwrap_or_default().max(self.begin.revision);
        for entry in in_order(revisions, self.held.try_iter().collect()) {
            self.journal.push(entry);
        }
        let end = End { at: self.journal.now(), last_revision, completeness: completeness.clone() };
        self.journal.push(Entry::End(end));
        completeness
    }

    /// The last revision of the recording, if everything up to it was seen.
    async fn compare(
        &mut self,
        namespace: &str,
        claims: Option<kube::Client>,
        seen: &mut Vec<Revision>,
    ) -> Result<i64, String> {
        let key = ServiceKey { namespace: namespace.into(), name: MARKER.into() };
        let through = claims.as_ref().unwrap_or(&self.client);
        let api: Api<Service> = Api::namespaced(through.clone(), namespace);
        let made = api.create(&PostParams::default(), &mk_service(MARKER, &[])).await;
        made.map_err(|error| format!("the Service that marks the end cannot be made: {error}"))?;
        let mut missing: Vec<&str> = vec!["Service"];
        missing.extend(claims.is_some().then_some("IPAddress"));
        let mut first = i64::MAX;
        let delivered = tokio::time::timeout(MARKER_TIMEOUT, async {
            while !missing.is_empty() {
                let revision = self.seen.recv().await.ok_or("the watches have ended")?;
                let revision = revision.map_err(|error| format!("a watch failed: {error}"))?;
                if let Some(kind) = marker(&revision.change, &key) {
                    missing.retain(|it| *it != kind);
                    first = first.min(revision.revision);
                }
                seen.push(revision);
            }
            Ok(())
        });
        match delivered.await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return Err(why),
            Err(_) => {
                return Err(format!("the watches did not deliver the {} of the marker in time", missing.join(" and ")));
            }
        }
        let end = first - 1;
        let listed = listing::list(&self.client, self.networking, Some(end)).await;
        let listed = listed.map_err(|error| format!("the last state cannot be listed: {error}"))?.state();
        let mut replayed = self.begin.state();
        replay(&mut replayed, seen, end);
        match replayed.difference(&listed) {
            None => Ok(end),
            Some(difference) => Err(format!("the replay differs from the last list: {difference}")),
        }
    }
}

/// Which object of the marker a change writes.
fn marker(change: &Change, key: &ServiceKey) -> Option<&'static str> {
    match change {
        Change::PutService(service) if service.key == *key => Some("Service"),
        Change::PutIpAddress(object) if object.parent.as_ref() == Some(key) => Some("IPAddress"),
        Change::PutService(_)
        | Change::PutIpAddress(_)
        | Change::DeleteService(_)
        | Change::DeleteIpAddress(_)
        | Change::PutServiceCidr(_)
        | Change::DeleteServiceCidr(_)
        | Change::PutRange(_)
        | Change::DeleteRange(_) => None,
    }
}

fn replay(state: &mut State, seen: &[Revision], end: i64) {
    let mut seen: Vec<&Revision> = seen.iter().filter(|it| it.revision <= end).collect();
    seen.sort_by_key(|it| it.revision);
    seen.into_iter().for_each(|it| state.apply(it.change.clone()));
}

/// The entries of a recording in order: revisions by number, the others as they are, both by time. A write was done at
/// the latest when a later one was received, so that no revision is later than the next one.
fn in_order(mut revisions: Vec<Revision>, others: Vec<Entry>) -> Vec<Entry> {
    revisions.sort_by_key(|it| it.revision);
    let mut latest = Micros(u64::MAX);
    for revision in revisions.iter_mut().rev() {
        latest = latest.min(revision.at);
        revision.at = latest;
    }
    let mut entries = Vec::with_capacity(revisions.len() + others.len());
    let mut revisions = revisions.into_iter().peekable();
    for other in others {
        while let Some(revision) = revisions.next_if(|it| it.at <= other.at()) {
            entries.push(Entry::Revision(revision));
        }
        entries.push(other);
    }
    entries.extend(revisions.map(Entry::Revision));
    entries
}

/// A recording that cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The kubeconfig.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The first list.
    #[error("the recording cannot begin: {0}")]
    List(#[from] ListError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Topology, TopologyEvent};

    #[test]
    fn what_three_watches_delivered_is_written_in_the_order_of_revisions_and_between_the_calls() {
        let change = || Change::DeleteServiceCidr("a".into());
        let revision = |revision, at| Revision { revision, at: Micros(at), change: change() };
        let quiet = |at| Entry::Topology(Topology { at: Micros(at), event: TopologyEvent::QuietBegin });
        let entries = in_order(vec![revision(7, 30), revision(5, 40), revision(9, 60)], vec![quiet(10), quiet(50)]);
        let places: Vec<(i64, u64)> = entries
            .iter()
            .map(|entry| match entry {
                Entry::Revision(revision) => (revision.revision, revision.at.0),
                Entry::Operation(_) | Entry::Topology(_) | Entry::Side(_) | Entry::End(_) => (0, entry.at().0),
            })
            .collect();
        // Revision 5 was done when 7 was received.
        assert_eq!(places, [(0, 10), (5, 30), (7, 30), (0, 50), (9, 60)]);
    }

    #[test]
    fn a_write_that_no_watch_delivered_is_a_difference() {
        let mut state = State::default();
        let seen = vec![
            Revision { revision: 5, at: Micros(1), change: cidr("a") },
            Revision { revision: 9, at: Micros(1), change: cidr("later") },
        ];
        replay(&mut state, &seen, 7);
        let mut listed = State::default();
        listed.apply(cidr("a"));
        assert_eq!(state.difference(&listed), None);
        listed.apply(cidr("b"));
        assert!(state.difference(&listed).unwrap().contains("ServiceCIDR \"b\""));
    }

    fn cidr(name: &str) -> Change {
        Change::PutServiceCidr(crate::history::StoredServiceCidr {
            name: name.into(),
            cidrs: Vec::new(),
            ready: None,
            deleting: false,
            api_version: String::new(),
        })
    }
}
