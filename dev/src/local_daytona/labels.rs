//! The log of a command, and the loops that label each line of its outputs with the stream that it came from. In the
//! service these are loops of the session's shell: slow, and with the faults of the tools they are made of.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::Instant;

use super::environment::Labelling;
use super::lock;

/// So much is written at once; between the pieces of a longer line the other stream can come.
const PIECE: usize = 4096;

/// A line that grows beyond this is written before its end is known.
const LONGEST_LINE: usize = 64 << 20;

/// What a loop takes for a line and for a byte, fitted to the measurements: a line of 10 MB in 4.7 s, `seq 1 200000` in
/// 1.7 s, lines of 100 bytes at 2 MB/s.
const PER_LINE: Duration = Duration::from_nanos(5500);
const PER_BYTE: Duration = Duration::from_nanos(450);

/// What is owed less than this is not waited for: a short output costs nothing.
const SMALLEST_WAIT: Duration = Duration::from_millis(2);

/// A wait that came out too long is made up for, up to so much.
const CREDIT: Duration = Duration::from_millis(5);

/// How long the other stream has to come between two pieces.
const GAP: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

impl Stream {
    fn marker(self) -> [u8; 3] {
        match self {
            Self::Out => [1; 3],
            Self::Err => [2; 3],
        }
    }
}

/// The log as the service keeps it: every line behind the marker of its stream.
#[derive(Debug)]
pub(super) struct Log {
    state: Mutex<Written>,
    /// Whether a loop stands in the middle of a line.
    out_busy: AtomicBool,
    err_busy: AtomicBool,
}

#[derive(Debug)]
struct Written {
    file: File,
    length: u64,
}

impl Log {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        let state = Mutex::new(Written { file, length: 0 });
        Ok(Self { state, out_busy: AtomicBool::default(), err_busy: AtomicBool::default() })
    }

    /// Writes input into the log as the service does: one marker, however many lines.
    pub(super) fn echo(&self, input: &[u8]) -> io::Result<()> {
        self.write(&[&Stream::Out.marker(), input].concat())
    }

    fn write(&self, piece: &[u8]) -> io::Result<()> {
        let mut state = lock(&self.state);
        // The handle is kept from the start: whatever the sandbox puts at the path is not followed.
        state.file.write_all(piece)?;
        state.length += piece.len() as u64;
        Ok(())
    }

    pub(super) fn length(&self) -> u64 {
        lock(&self.state).length
    }

    /// The whole log, markers included.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        self.read_at(0, usize::MAX)
    }

    /// At most `most` bytes of it from `start` on.
    pub(super) fn read_at(&self, start: u64, most: usize) -> io::Result<Vec<u8>> {
        let state = lock(&self.state);
        let there = usize::try_from(state.length.saturating_sub(start)).unwrap_or(usize::MAX);
        let mut content = vec![0; there.min(most)];
        state.file.read_exact_at(&mut content, start)?;
        Ok(content)
    }

    fn busy(&self, stream: Stream) -> &AtomicBool {
        match stream {
            Stream::Out => &self.out_busy,
            Stream::Err => &self.err_busy,
        }
    }
}

/// How far a loop is behind what it has read.
struct Pace {
    throttled: bool,
    due: Instant,
}

impl Pace {
    /// Until when to wait after so much.
    fn owe(&mut self, now: Instant, lines: usize, bytes: usize) -> Option<Instant> {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let start = now.checked_sub(CREDIT).map_or(self.due, |earliest| self.due.max(earliest));
        self.due = start + PER_LINE * count(lines) + PER_BYTE * count(bytes);
        (self.throttled && self.due > now + SMALLEST_WAIT).then_some(self.due)
    }
}

/// Labels one output from its beginning to its end.
pub(super) async fn label(mut pipe: pipe::Receiver, stream: Stream, log: &Log, labelling: Labelling) -> io::Result<()> {
    let mut pace = Pace { throttled: labelling.throttled, due: Instant::now() };
    let mut pending = Vec::new();
    let mut buffer = vec![0; PIECE];
    loop {
        let count = pipe.read(&mut buffer).await?;
        let read = buffer.get(..count).unwrap_or_default();
        let lines = read.split(|byte| *byte == b'\n').count() - 1;
        if let Some(due) = pace.owe(Instant::now(), lines, count) {
            tokio::time::sleep_until(due).await;
        }
        let known = pending.len();
        pending.extend(read.iter().filter(|byte| labelling.keeps_nul || **byte != 0));
        if count == 0 && !pending.is_empty() {
            // As the service does: a last line without an end gets one.
            pending.push(b'\n');
        }
        let complete = if pending.len() > LONGEST_LINE {
            pending.len()
        } else {
            let fresh = pending.get(known..).unwrap_or_default();
            fresh.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| known + last + 1)
        };
        log.busy(stream).store(pending.len() > complete, Ordering::Relaxed);
        if complete > 0 {
            write(pending.get(..complete).unwrap_or_default(), stream, log).await?;
            pending.drain(..complete);
        }
        if count == 0 {
            return Ok(());
        }
    }
}

/// Only the first piece of a line has its marker: what comes between two is taken for a part of the line.
async fn write(lines: &[u8], stream: Stream, log: &Log) -> io::Result<()> {
    let mut batch = Vec::with_capacity(lines.len());
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let start = batch.len();
        batch.extend_from_slice(&stream.marker());
        batch.extend_from_slice(line);
        if batch.len() - start <= PIECE {
            continue;
        }
        let torn = batch.split_off(start);
        log.write(&batch)?;
        batch.clear();
        let other = if stream == Stream::Out { Stream::Err } else { Stream::Out };
        for (number, piece) in torn.chunks(PIECE).enumerate() {
            if number > 0 && log.busy(other).load(Ordering::Relaxed) {
                tokio::time::sleep(GAP).await;
            }
            log.write(piece)?;
        }
    }
    log.write(&batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> (tempfile::TempDir, Log) {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::create(&dir.path().join("log")).unwrap();
        (dir, log)
    }

    #[tokio::test]
    async fn every_line_gets_the_marker_of_its_stream() {
        let (_dir, log) = log();
        write(b"a\nb\n", Stream::Out, &log).await.unwrap();
        write(b"c\n", Stream::Err, &log).await.unwrap();
        log.echo(b"d\ne\n").unwrap();
        let all = b"\x01\x01\x01a\n\x01\x01\x01b\n\x02\x02\x02c\n\x01\x01\x01d\ne\n";
        assert_eq!(log.read().unwrap(), all);
        assert_eq!(log.read_at(3, 2).unwrap(), b"a\n");
    }

    #[tokio::test]
    async fn a_line_of_more_than_four_kilobytes_is_torn_by_the_other_stream() {
        let (_dir, log) = log();
        log.busy(Stream::Err).store(true, Ordering::Relaxed);
        let line = format!("{}\n", "x".repeat(9000));
        let other = write(b"oops\n", Stream::Err, &log);
        let (written, torn) = tokio::join!(write(line.as_bytes(), Stream::Out, &log), other);
        written.and(torn).unwrap();
        let (out, err) = super::super::output::split(&log.read().unwrap());
        assert_eq!((out.len(), err.len()), (4093, 9001 - 4093 + 5), "the rest of the line counts as the other's");
    }

    /// Reads in full pieces, and whoever is to wait does so to the moment.
    fn took(lines: usize, bytes: usize) -> f64 {
        let begun = Instant::now();
        let (mut now, mut pace) = (begun, Pace { throttled: true, due: begun });
        let reads = bytes.div_ceil(PIECE);
        for read in 0..reads {
            let share = |of: usize| of * (read + 1) / reads - of * read / reads;
            now = pace.owe(now, share(lines), share(bytes)).unwrap_or(now);
        }
        (now - begun).as_secs_f64()
    }

    #[test]
    fn a_loop_takes_as_long_as_measured() {
        assert!((4.4..4.9).contains(&took(1, 10_000_000)), "one line of 10 MB: 4.7 s");
        assert!((1.6..1.8).contains(&took(200_000, 1_288_895)), "seq 1 200000: 1.7 s");
        assert!((0.4..0.6).contains(&took(10_000, 1_000_000)), "lines of 100 bytes: 2 MB/s");
        assert!(took(100, 1000) == 0.0, "a short output costs nothing");
    }
}
