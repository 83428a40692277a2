//! Records a case while it runs: a thread writes entries to disk, a task watches etcd from its empty store on.
//!
//! A recording is complete or void. At its end a marker is written to etcd; when the watch has delivered it, the replay
//! of everything recorded must equal what etcd has.

pub mod api;

use crate::etcd::{Batch, Etcd, EtcdError, EventType};
use crate::history::file::{WriteError, Writer};
use crate::history::replay::State;
use crate::history::{Change, Completeness, End, Entry, Observation, Revision, Side};
use crate::journal::Journal;
use crate::stored::{DecodeError, decode, keys, parse_key};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
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

/// Records the Kubernetes Events there are now. One list at the end of a case holds them all: they live for an hour.
///
/// # Errors
/// The server does not answer.
pub async fn record_events(client: &kube::Client, journal: &Journal) -> Result<(), kube::Error> {
    let api: Api<Event> = Api::all(client.clone());
    for event in api.list(&ListParams::default()).await?.items {
        let regarding = event.regarding.unwrap_or_default();
        let parts = [regarding.kind, regarding.namespace, regarding.name].into_iter().flatten();
        let observation = Observation::Event {
            reason: event.reason.unwrap_or_default(),
            regarding: parts.collect::<Vec<_>>().join("/"),
            note: event.note.unwrap_or_default(),
            reporter: event.reporting_controller.unwrap_or_default(),
            count: event.series.map_or(1, |series| series.count),
        };
        journal.push(Entry::Side(Side { at: journal.now(), observation }));
    }
    Ok(())
}

/// The watch of a case.
#[derive(Debug)]
pub struct Watcher {
    etcd: Etcd,
    journal: Journal,
    /// Ends with the replayed state when the marker was delivered.
    task: tokio::task::JoinHandle<Result<State, WatchError>>,
}

/// Watches everything that concerns ClusterIPs from the empty store on.
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

fn first_key() -> Vec<u8> {
    keys::IP_ADDRESSES.as_bytes().to_vec()
}

/// One watch delivers all kinds in one order; several would not. The keys between the kinds are skipped when they come.
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
