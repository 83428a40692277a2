//! Records a case while it runs: a thread writes entries to disk, a task watches etcd from its empty store on.
//!
//! A recording is complete or void. At its end a marker is written to etcd; when the watch has delivered it, the replay
//! of everything recorded must equal what etcd has.

pub mod api;

use crate::etcd::{Batch, Etcd, EtcdError, EventType};
use crate::history::file::{WriteError, Writer};
use crate::history::replay::State;
use crate::history::{Change, Completeness, End, Entry, Revision, Side};
use crate::journal::Journal;
use crate::stored::{DecodeError, decode, event, keys, parse_key};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The name of a recording in the directory of its case.
pub const RECORDING_FILE: &str = "recording.skl";
/// An entry is on disk at most this much later: what a SIGKILL can cost.
const FLUSH_INTERVAL: Duration = Duration::from_millis(250);
/// How long the watch may take to deliver the marker.
const MARKER_TIMEOUT: Duration = Duration::from_secs(30);
/// Last write of a recording. It lies inside the watched keys and is none that Kubernetes knows.
const MARKER: &str = "/registry/ranges/skewlab-end-of-recording";

/// A recording that is being written.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    writer: JoinHandle<Result<(), WriteError>>,
}

/// Opens the recording of a case; its clock starts now.
///
/// # Errors
/// The file cannot be made.
pub fn open(dir: &Path) -> Result<(Recording, Journal), RecorderError> {
    let path = dir.join(RECORDING_FILE);
    let failed = |source: WriteError| RecorderError::Write { path: path.clone(), source };
    let file = File::create(&path).map_err(|error| failed(error.into()))?;
    let writer = Writer::new(BufWriter::new(file)).map_err(failed)?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || write(writer, &receiver));
    Ok((Recording { path, writer }, Journal::new(sender)))
}

fn write(mut writer: Writer<BufWriter<File>>, entries: &Receiver<Entry>) -> Result<(), WriteError> {
    let mut flushed = Instant::now();
    loop {
        match entries.recv_timeout(FLUSH_INTERVAL) {
            Ok(entry) => writer.push(&entry)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                writer.finish()?;
                return Ok(());
            }
        }
        if flushed.elapsed() >= FLUSH_INTERVAL {
            writer.flush()?;
            flushed = Instant::now();
        }
    }
}

impl Recording {
    /// Waits until everything is on disk and returns the path. Every clone of the journal must be gone.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn close(self) -> Result<PathBuf, RecorderError> {
        let written = self.writer.join().map_err(|_| RecorderError::Lost { what: "the writer of the recording" })?;
        written.map_err(|source| RecorderError::Write { path: self.path.clone(), source })?;
        Ok(self.path)
    }
}

/// The watch of a case.
#[derive(Debug)]
pub struct Watcher {
    etcd: Etcd,
    journal: Journal,
    /// Ends with the replayed state when the marker was delivered.
    task: tokio::task::JoinHandle<Result<State, WatchError>>,
}

/// Watches everything that concerns ClusterIPs, and the Kubernetes Events, from the empty store on.
///
/// # Errors
/// etcd does not answer, or its store is not empty: what was written before would be missing in the recording.
pub async fn watch(etcd: Etcd, journal: Journal) -> Result<Watcher, RecorderError> {
    let before = etcd.range(&first_key(), &end_key()).await?;
    if let Some(kv) = before.kvs.first() {
        return Err(RecorderError::NotEmpty { key: String::from_utf8_lossy(&kv.key).into_owned() });
    }
    let mut watch = etcd.watch(&first_key(), &end_key(), before.revision + 1).await?;
    let recorder = journal.clone();
    let task = tokio::spawn(async move {
        let mut state = State::default();
        while !record(watch.next().await?, &recorder, &mut state)? {}
        Ok(state)
    });
    Ok(Watcher { etcd, journal, task })
}

/// Records a batch; true if it held the marker.
fn record(batch: Batch, journal: &Journal, state: &mut State) -> Result<bool, WatchError> {
    let at = journal.now();
    for event in batch.events {
        let is_put = event.r#type() == EventType::Put;
        let Some(kv) = event.kv else { continue };
        if kv.key == MARKER.as_bytes() {
            return Ok(true);
        }
        if kv.key.starts_with(keys::EVENTS.as_bytes()) {
            // An Event is removed only because it is old.
            if is_put {
                let key = || String::from_utf8_lossy(&kv.key).into_owned();
                let observation =
                    event::decode(&kv.value).map_err(|source| WatchError::Event { key: key(), source })?;
                journal.push(Entry::Side(Side { at, observation }));
            }
            continue;
        }
        let Some(key) = parse_key(&kv.key)? else { continue };
        let change: Change = if is_put { decode(&key, &kv.value)?.into() } else { key.into() };
        state.apply(change.clone());
        journal.push(Entry::Revision(Revision { revision: kv.mod_revision, at, change }));
    }
    Ok(false)
}

impl Watcher {
    /// Ends the recording. No apiserver may run any more, because the state read here must stay as it is.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn finish(self) -> Result<Completeness, EtcdError> {
        let last_revision = self.etcd.put(MARKER, "").await?;
        let stored = stored_state(&self.etcd).await?;
        let completeness = match (tokio::time::timeout(MARKER_TIMEOUT, self.task).await, stored) {
            (Err(_), _) => void("the watch did not deliver the last write in time"),
            (Ok(Err(error)), _) => void(format!("the watch failed: {error}")),
            (Ok(Ok(Err(error))), _) => void(error.to_string()),
            (Ok(Ok(Ok(_))), Err(error)) => void(format!("the last state does not decode: {error}")),
            (Ok(Ok(Ok(replayed))), Ok(stored)) => match replayed.difference(&stored) {
                None => Completeness::Complete,
                Some(difference) => void(format!("the replay differs from etcd: {difference}")),
            },
        };
        let end = End { at: self.journal.now(), last_revision, completeness: completeness.clone() };
        self.journal.push(Entry::End(end));
        Ok(completeness)
    }
}

fn void(why: impl Into<String>) -> Completeness {
    Completeness::Void { why: why.into() }
}

/// What etcd has now.
async fn stored_state(etcd: &Etcd) -> Result<Result<State, DecodeError>, EtcdError> {
    let snapshot = etcd.range(&first_key(), &end_key()).await?;
    let mut state = State::default();
    for kv in snapshot.kvs {
        match parse_key(&kv.key) {
            Ok(None) => {}
            Ok(Some(key)) => match decode(&key, &kv.value) {
                Ok(stored) => state.apply(stored.into()),
                Err(error) => return Ok(Err(error)),
            },
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(state))
}

/// Events come first: a write of one is recorded when it is delivered, once for each new count.
fn first_key() -> Vec<u8> {
    keys::EVENTS.as_bytes().to_vec()
}

/// One watch delivers all kinds in one order, and the marker after everything; several would not. The keys between the
/// kinds are skipped when they come.
fn end_key() -> Vec<u8> {
    crate::etcd::prefix_end(keys::SERVICES.as_bytes())
}

/// Why the watch of a case ended.
#[derive(Debug, thiserror::Error)]
enum WatchError {
    /// etcd.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// A key or value that does not decode.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// An Event that does not decode: it may have said of a duplicate what a rule waits for.
    #[error("the Event at {key} does not decode: {source}")]
    Event {
        /// Its key.
        key: String,
        /// Why.
        source: DecodeError,
    },
}

/// A recording that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    /// The file.
    #[error("cannot write {}: {source}; is the disk full?", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: WriteError,
    },
    /// etcd.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// Something was stored before the recording began.
    #[error("a recording must begin with an empty store, and etcd has {key}; start on fresh data")]
    NotEmpty {
        /// The first key.
        key: String,
    },
    /// A thread of the harness panicked.
    #[error("{what} panicked")]
    Lost {
        /// Which.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::{Event, KeyValue};
    use crate::history::Observation;

    const EVENT_KEY: &str = "/registry/events/default/b.18";

    fn wrote(kind: EventType, key: &str, value: &str) -> Event {
        let kv = KeyValue { key: key.into(), value: value.into(), ..Default::default() };
        Event { r#type: kind as i32, kv: Some(kv) }
    }

    fn event(count: i32) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"Event","metadata":{{}},"involvedObject":{{"kind":"Service"}},"count":{count}}}"#
        )
    }

    /// What is recorded of these writes, delivered together.
    fn recorded(events: Vec<Event>) -> (Result<bool, WatchError>, Vec<Entry>) {
        let (sender, receiver) = std::sync::mpsc::channel();
        let journal = Journal::new(sender);
        let ended = record(Batch { revision: 9, events }, &journal, &mut State::default());
        drop(journal);
        (ended, receiver.into_iter().collect())
    }

    #[test]
    fn every_write_of_an_event_is_recorded_and_its_removal_is_not() {
        let (ended, entries) = recorded(vec![
            wrote(EventType::Put, EVENT_KEY, &event(1)),
            wrote(EventType::Put, "/registry/flowschemas/exempt", "not looked at"),
            wrote(EventType::Put, EVENT_KEY, &event(2)),
            wrote(EventType::Delete, EVENT_KEY, ""),
        ]);
        assert!(!ended.unwrap());
        let counts = entries.iter().filter_map(|entry| match entry {
            Entry::Side(Side { observation: Observation::Event { count, .. }, .. }) => Some(*count),
            Entry::Side(_) | Entry::Revision(_) | Entry::Operation(_) | Entry::Topology(_) | Entry::End(_) => None,
        });
        assert_eq!((counts.collect::<Vec<_>>(), entries.len()), (vec![1, 2], 2));
    }

    #[test]
    fn an_event_that_does_not_decode_ends_the_recording_with_its_key() {
        let (ended, _) = recorded(vec![wrote(EventType::Put, EVENT_KEY, "nonsense")]);
        let text = ended.unwrap_err().to_string();
        assert!(text.contains(EVENT_KEY) && text.contains("neither JSON nor protobuf"), "{text}");
    }

    #[test]
    fn the_watched_keys_hold_events_and_the_marker() {
        let watched = |key: &str| first_key().as_slice() <= key.as_bytes() && key.as_bytes() < end_key().as_slice();
        for key in [EVENT_KEY, MARKER, keys::IP_ADDRESSES, keys::SERVICE_CIDRS, keys::PRIMARY_RANGE, keys::SERVICES] {
            assert!(watched(key), "{key}");
        }
        assert!(recorded(vec![wrote(EventType::Put, MARKER, "")]).0.unwrap());
    }
}
