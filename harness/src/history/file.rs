//! A recording on disk.
//!
//! The line [`MAGIC`], then frames. A frame is a header of 20 bytes (length of the payload, length of its text, the
//! first 8 bytes of the payload's SHA-256, the first 4 bytes of the SHA-256 of the 16 bytes before; numbers
//! little-endian) and a payload, one zstd frame of JSON lines, one line an entry. Every frame is read alone, so what was
//! flushed before a SIGKILL stays readable: a file that ends inside a frame is cut off there, any other deviation is
//! damage.

use super::Entry;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::io::{self, Read, Write};

/// What a recording begins with: kind and version of the format.
pub const MAGIC: &[u8] = b"skewlab history 1\n";
/// What the magic of every version begins with.
const MAGIC_ANY_VERSION: &[u8] = b"skewlab history ";
const HEADER: usize = 20;
/// No frame's text is longer, in bytes. It bounds what a reader allocates, whatever the file says.
const TEXT_MAX: usize = 16 << 20;
/// A frame is written when its text has reached this length, in bytes.
const TEXT_ENOUGH: usize = 256 << 10;
/// A quick level: a recorder must not compete with the servers for the processor.
const ZSTD_LEVEL: i32 = 1;

/// Writes a recording. Entries are buffered until [`Writer::flush`], or until a frame is full.
pub struct Writer<W: Write> {
    out: W,
    text: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a recording.
    ///
    /// # Errors
    /// What writing gives.
    pub fn new(mut out: W) -> Result<Self, WriteError> {
        out.write_all(MAGIC)?;
        Ok(Writer { out, text: Vec::new() })
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// An entry that alone is longer than a frame may be, or what writing gives.
    pub fn push(&mut self, entry: &Entry) -> Result<(), WriteError> {
        let before = self.text.len();
        serde_json::to_writer(&mut self.text, entry).map_err(|error| WriteError::Io(error.into()))?;
        self.text.push(b'\n');
        let length = self.text.len() - before;
        if length > TEXT_MAX - TEXT_ENOUGH {
            self.text.truncate(before);
            return Err(WriteError::EntryTooLong { length });
        }
        if self.text.len() >= TEXT_ENOUGH { self.flush() } else { Ok(()) }
    }

    /// Writes what is buffered as one frame, and flushes the sink: from here on it survives a SIGKILL of the writer.
    ///
    /// # Errors
    /// What writing gives.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        if !self.text.is_empty() {
            let payload = zstd::bulk::compress(&self.text, ZSTD_LEVEL)?;
            let mut frame = Vec::with_capacity(HEADER + payload.len());
            frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
            frame.extend_from_slice(&(self.text.len() as u32).to_le_bytes());
            frame.extend_from_slice(&Sha256::digest(&payload)[..8]);
            let check = Sha256::digest(&frame);
            frame.extend_from_slice(&check[..4]);
            frame.extend_from_slice(&payload);
            self.out.write_all(&frame)?;
            self.text.clear();
        }
        Ok(self.out.flush()?)
    }

    /// Writes what is left and gives the sink back.
    ///
    /// # Errors
    /// What writing gives.
    pub fn finish(mut self) -> Result<W, WriteError> {
        self.flush()?;
        Ok(self.out)
    }
}

/// A recording that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The sink failed.
    #[error("recording cannot be written: {0}")]
    Io(#[from] io::Error),
    /// One entry longer than a frame.
    #[error("an entry of {length} bytes is too long for a recording")]
    EntryTooLong {
        /// In bytes.
        length: usize,
    },
}

/// Reads a recording entry by entry, with memory for one frame. After the last entry [`Reader::cut_off`] tells whether
/// the file ends where a writer would have ended it.
pub struct Reader<R: Read> {
    source: R,
    /// Bytes consumed.
    offset: u64,
    entries: VecDeque<Entry>,
    done: bool,
    cut_off: Option<u64>,
}

impl<R: Read> Reader<R> {
    /// Opens a recording. A file cut off inside its first line is an empty recording that is cut off.
    ///
    /// # Errors
    /// Not a recording, one of another format version, or what reading gives.
    pub fn new(mut source: R) -> Result<Self, ReadError> {
        let first = read_up_to(&mut source, MAGIC.len())?;
        let offset = first.len() as u64;
        let cut_off = (first.len() < MAGIC.len() && MAGIC.starts_with(&first)).then_some(offset);
        if cut_off.is_none() && first != MAGIC {
            let version = first.strip_prefix(MAGIC_ANY_VERSION);
            return Err(match version {
                Some(version) => ReadError::Version { found: String::from_utf8_lossy(version.trim_ascii()).into() },
                None => ReadError::NotARecording,
            });
        }
        Ok(Reader { source, offset, entries: VecDeque::new(), done: cut_off.is_some(), cut_off })
    }

    /// The offset of the first byte of the frame that is not whole, when the file ends inside one. Known once the
    /// iterator has ended.
    pub fn cut_off(&self) -> Option<u64> {
        self.cut_off
    }

    /// False at the end.
    fn frame(&mut self) -> Result<bool, ReadError> {
        let at = self.offset;
        let damaged = |what: String| ReadError::Damaged { offset: at, what };
        let header = read_up_to(&mut self.source, HEADER)?;
        self.offset += header.len() as u64;
        let Ok(header): Result<[u8; HEADER], _> = header.as_slice().try_into() else {
            self.cut_off = (!header.is_empty()).then_some(at);
            return Ok(false);
        };
        if Sha256::digest(&header[..16])[..4] != header[16..] {
            return Err(damaged("the frame header does not match its checksum".into()));
        }
        let number = |from: usize| u32::from_le_bytes([0, 1, 2, 3].map(|index| header[from + index])) as usize;
        let (length, text_length) = (number(0), number(4));
        if length > TEXT_MAX || text_length > TEXT_MAX {
            return Err(damaged(format!("a frame of {length} bytes for {text_length} bytes of text is too long")));
        }
        let payload = read_up_to(&mut self.source, length)?;
        self.offset += payload.len() as u64;
        if payload.len() < length {
            self.cut_off = Some(at);
            return Ok(false);
        }
        if Sha256::digest(&payload)[..8] != header[8..16] {
            return Err(damaged("the frame does not match its checksum".into()));
        }
        let text = zstd::bulk::decompress(&payload, text_length)
            .map_err(|error| damaged(format!("the frame does not decompress to {text_length} bytes: {error}")))?;
        if text.len() != text_length {
            return Err(damaged(format!("the frame has {} bytes of text, not {text_length}", text.len())));
        }
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
            let entry = serde_json::from_slice(line);
            self.entries
                .push_back(entry.map_err(|error| damaged(format!("line {} of the frame: {error}", index + 1)))?);
        }
        Ok(true)
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Entry, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.entries.is_empty() && !self.done {
            match self.frame() {
                Ok(more) => self.done = !more,
                Err(error) => {
                    // Entries of a frame that is damaged further on are not handed out.
                    self.entries.clear();
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        self.entries.pop_front().map(Ok)
    }
}

/// Fewer bytes than asked for only at the end. Memory grows with what is there, not with what is asked for.
fn read_up_to(source: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(length as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A recording that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The source failed.
    #[error("recording cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Something else than a recording.
    #[error("not a skewlab recording, it does not begin with `skewlab history`")]
    NotARecording,
    /// A recording of another format.
    #[error("recording has format version {found}, this build reads version 1")]
    Version {
        /// Its version.
        found: String,
    },
    /// Bytes that no writer wrote.
    #[error("recording is damaged at byte {offset}: {what}")]
    Damaged {
        /// Where the frame begins.
        offset: u64,
        /// What is wrong.
        what: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Change, Micros, Observation, Revision, ServiceKey, Side};
    use proptest::prelude::*;
    use proptest::sample::Index;

    fn entries(count: usize) -> Vec<Entry> {
        let service = |index: usize| ServiceKey { namespace: "default".into(), name: format!("service-{index}") };
        (0..count)
            .map(|index| {
                let change = Change::DeleteService(service(index));
                Entry::Revision(Revision { revision: index as i64, at: Micros(index as u64), change })
            })
            .collect()
    }

    /// A recording flushed after every entry, and where each frame ends.
    fn written(entries: &[Entry]) -> (Vec<u8>, Vec<usize>) {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut ends = vec![writer.out.len()];
        for entry in entries {
            writer.push(entry).unwrap();
            writer.flush().unwrap();
            ends.push(writer.out.len());
        }
        (writer.finish().unwrap(), ends)
    }

    #[test]
    fn every_entry_comes_back_in_order_across_frames() {
        let many = entries(20_000);
        let mut writer = Writer::new(Vec::new()).unwrap();
        many.iter().for_each(|entry| writer.push(entry).unwrap());
        let bytes = writer.finish().unwrap();
        let mut reader = Reader::new(bytes.as_slice()).unwrap();
        let again: Vec<Entry> = reader.by_ref().map(Result::unwrap).collect();
        assert_eq!((again, reader.cut_off()), (many, None));
        assert!(bytes.len() < 200_000, "{} bytes for 20,000 entries", bytes.len());
    }

    #[test]
    fn a_file_cut_anywhere_gives_the_whole_frames_before_the_cut_and_says_where_it_is() {
        let all = entries(5);
        let (bytes, ends) = written(&all);
        for cut in 0..bytes.len() {
            let mut reader = Reader::new(&bytes[..cut]).unwrap();
            let again: Vec<Entry> = reader.by_ref().map(|entry| entry.unwrap()).collect();
            let whole = ends.iter().filter(|end| **end <= cut).count().saturating_sub(1);
            assert_eq!(again, all[..whole], "cut at {cut}");
            let clean = ends.contains(&cut);
            let frame = ends.iter().copied().rfind(|end| *end <= cut).unwrap_or(cut);
            assert_eq!(reader.cut_off(), (!clean).then_some(frame as u64), "cut at {cut}");
        }
    }

    #[test]
    fn a_changed_byte_anywhere_is_an_error_that_names_the_frame() {
        let (bytes, ends) = written(&entries(3));
        for index in MAGIC.len()..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0x10;
            let result: Result<Vec<Entry>, ReadError> = Reader::new(damaged.as_slice()).unwrap().collect();
            let frame = ends.iter().copied().rfind(|end| *end <= index).unwrap() as u64;
            match result {
                Err(ReadError::Damaged { offset, .. }) => assert_eq!(offset, frame, "byte {index}"),
                other => panic!("byte {index}: {other:?}"),
            }
        }
    }

    #[test]
    fn another_format_is_refused_by_name() {
        let message = |bytes: &[u8]| Reader::new(bytes).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message(b"skewlab history 2\n...").contains("format version 2"));
        assert!(message(b"{\"json\": true, \"but\": \"no recording\"}").contains("not a skewlab recording"));
    }

    #[test]
    fn a_frame_that_decompresses_to_more_than_it_says_is_refused() {
        let payload = zstd::bulk::compress(&vec![b' '; 8 << 20], 1).unwrap();
        let bytes = [MAGIC, &sealed(&payload, 100)].concat();
        let error = Reader::new(bytes.as_slice()).unwrap().next().unwrap().unwrap_err();
        assert!(error.to_string().starts_with("recording is damaged at byte 18"), "{error}");
    }

    #[test]
    fn a_metric_that_is_no_number_is_recorded() {
        let observation =
            Observation::Metric { server: crate::history::ServerId(0), name: "m".into(), value: f64::INFINITY };
        let (bytes, _) = written(&[Entry::Side(Side { at: Micros(1), observation })]);
        let entry = Reader::new(bytes.as_slice()).unwrap().next().unwrap().unwrap();
        let Entry::Side(Side { observation: Observation::Metric { value, .. }, .. }) = entry else {
            panic!("{entry:?}")
        };
        assert!(value.is_nan());
    }

    /// A frame around a payload, with checksums that match whatever it is.
    fn sealed(payload: &[u8], text_length: usize) -> Vec<u8> {
        let mut frame = [(payload.len() as u32).to_le_bytes(), (text_length as u32).to_le_bytes()].concat();
        frame.extend_from_slice(&Sha256::digest(payload)[..8]);
        frame.extend_from_slice(&Sha256::digest(&frame)[..4]);
        [&frame, payload].concat()
    }

    /// What a reader hands out before it ends, the damage it names and where the file is cut off.
    fn read(bytes: &[u8]) -> (Vec<Entry>, Option<(u64, String)>, Option<u64>) {
        let mut reader = Reader::new(bytes).unwrap();
        let (mut entries, mut damage) = (Vec::new(), None);
        for entry in reader.by_ref() {
            assert!(damage.is_none(), "nothing comes behind an error");
            match entry {
                Ok(entry) => entries.push(entry),
                Err(ReadError::Damaged { offset, what }) => damage = Some((offset, what)),
                Err(other) => panic!("{other}"),
            }
        }
        (entries, damage, reader.cut_off())
    }

    /// A recording of whole frames, and how many entries and bytes stand before each frame; last, before the end.
    fn recording() -> impl Strategy<Value = (Vec<Entry>, Vec<u8>, Vec<(usize, usize)>)> {
        proptest::collection::vec(1usize..5, 1..6).prop_map(|sizes| {
            let all = entries(sizes.iter().sum());
            let mut writer = Writer::new(Vec::new()).unwrap();
            let mut starts = vec![(0, writer.out.len())];
            for size in sizes {
                let before = starts.last().map_or(0, |start| start.0);
                all[before..before + size].iter().for_each(|entry| writer.push(entry).unwrap());
                writer.flush().unwrap();
                starts.push((before + size, writer.out.len()));
            }
            (all, writer.finish().unwrap(), starts)
        })
    }

    proptest! {
        #[test]
        fn a_changed_byte_costs_its_frame_and_what_follows(
            (all, bytes, starts) in recording(), at: Index, mask in 1u8..,
        ) {
            prop_assert_eq!(read(&bytes), (all.clone(), None, None));
            let (at, mut bytes) = (at.index(bytes.len()), bytes);
            bytes[at] ^= mask;
            match starts.iter().rfind(|start| start.1 <= at) {
                Some((before, offset)) => {
                    let (entries, damage, cut_off) = read(&bytes);
                    prop_assert_eq!((entries.as_slice(), cut_off), (&all[..*before], None));
                    let (named, what) = damage.unwrap();
                    prop_assert_eq!(named, *offset as u64);
                    let part = if at < offset + HEADER { "the frame header does not match" } else { "the frame does not match" };
                    prop_assert!(what.starts_with(part), "{}", what);
                }
                None => match Reader::new(bytes.as_slice()).err() {
                    Some(ReadError::NotARecording) => prop_assert!(at < MAGIC_ANY_VERSION.len()),
                    Some(ReadError::Version { .. }) => prop_assert!(at >= MAGIC_ANY_VERSION.len()),
                    other => prop_assert!(false, "{:?}", other),
                },
            }
        }

        #[test]
        fn a_cut_costs_the_frame_it_is_in((all, bytes, starts) in recording(), at: Index) {
            let (length, first) = (bytes.len() - starts[0].1, starts[0].1);
            let at = first + at.index(length + 1);
            let (before, offset) = starts.iter().copied().rfind(|start| start.1 <= at).unwrap();
            let cut_off = (offset < at).then_some(offset as u64);
            prop_assert_eq!(read(&bytes[..at]), (all[..before].to_vec(), None, cut_off));
        }

        #[test]
        fn bytes_behind_a_recording_are_cut_off_or_damage(
            (all, bytes, _) in recording(), tail in proptest::collection::vec(any::<u8>(), 0..3 * HEADER),
        ) {
            let (entries, damage, cut_off) = read(&[bytes.as_slice(), &tail].concat());
            let end = bytes.len() as u64;
            prop_assert_eq!(entries, all);
            prop_assert_eq!(cut_off, (1..HEADER).contains(&tail.len()).then_some(end));
            prop_assert_eq!(damage.map(|it| it.0), (tail.len() >= HEADER).then_some(end));
        }

        /// Behind the checksums: no disk writes this, so the reader must not trust it either.
        #[test]
        fn a_frame_with_good_checksums_is_read_for_what_it_says(
            (mut all, mut bytes, _) in recording(), said in prop_oneof![Just(0i64), -3i64..4, Just(TEXT_MAX as i64)],
            changed: Option<(Index, u8)>,
        ) {
            let lines = entries(3).iter().map(|entry| serde_json::to_string(entry).unwrap()).collect::<Vec<_>>();
            let mut text = format!("{}\n", lines.join("\n")).into_bytes();
            if let Some((index, byte)) = changed {
                let index = index.index(text.len());
                text[index] = byte;
            }
            let offset = bytes.len() as u64;
            let text_length = (text.len() as i64 + said) as usize;
            bytes.extend(sealed(&zstd::bulk::compress(&text, ZSTD_LEVEL).unwrap(), text_length));
            // What follows is whole: it must come when the frame is good, and must not when it is not.
            let follows = entries(1);
            bytes.extend_from_slice(&written(&follows).0[MAGIC.len()..]);

            let parsed: Vec<Result<Entry, _>> = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
                .map(serde_json::from_slice).collect();
            let (seen, damage, cut_off) = read(&bytes);
            prop_assert_eq!(cut_off, None);
            let expected = match said {
                ..0 => Some(format!("the frame does not decompress to {text_length} bytes: ")),
                0 => parsed.iter().any(Result::is_err).then(|| "line ".to_string()),
                _ if text_length > TEXT_MAX => Some("a frame of ".to_string()),
                _ => Some(format!("the frame has {} bytes of text, not {text_length}", text.len())),
            };
            if expected.is_none() {
                all.extend(parsed.into_iter().map(Result::unwrap).chain(follows));
            }
            prop_assert_eq!(seen, all);
            prop_assert_eq!(damage.is_some(), expected.is_some());
            if let (Some((named, what)), Some(expected)) = (damage, expected) {
                prop_assert_eq!(named, offset);
                prop_assert!(what.starts_with(&expected), "`{}` does not begin with `{}`", what, expected);
            }
        }

        #[test]
        fn a_payload_that_is_not_compressed_is_damage(
            (all, mut bytes, _) in recording(), payload in proptest::collection::vec(0u8..0x20, 1..200), said in 0usize..300,
        ) {
            let offset = bytes.len() as u64;
            bytes.extend(sealed(&payload, said));
            let (entries, damage, cut_off) = read(&bytes);
            prop_assert_eq!((entries, cut_off), (all, None));
            let what = format!("the frame does not decompress to {said} bytes: ");
            prop_assert!(damage.as_ref().is_some_and(|it| it.0 == offset && it.1.starts_with(&what)), "{:?}", damage);
        }

        #[test]
        fn no_bytes_are_a_recording_without_its_first_line(bytes: Vec<u8>) {
            let refused = matches!(Reader::new(bytes.as_slice()), Err(ReadError::NotARecording));
            prop_assert_eq!(refused, !bytes.is_empty() && !MAGIC_ANY_VERSION.starts_with(&bytes));
        }
    }
}
