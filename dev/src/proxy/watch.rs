//! The events of a watch, disturbed. They are lines of JSON.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures::channel::mpsc;
use futures::{SinkExt, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use reqwest::Body;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Disturbance, FromEvent, Record};

/// Tells the caller that it has to list again.
const TOO_OLD: &[u8] = br#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}
"#;

/// Bytes of a line that has not come to its end may be so many.
const LONGEST: usize = 16 << 20;

/// How often it is looked whether the caller has left.
const LOOK: Duration = Duration::from_millis(500);

type Told = mpsc::Sender<Result<Frame<Bytes>, std::convert::Infallible>>;

/// How a line begins that tells of a change.
const CHANGES: [&[u8]; 3] = [br#"{"type":"ADDED""#, br#"{"type":"MODIFIED""#, br#"{"type":"DELETED""#];

/// No beginning of those is longer.
const BEGINNING: usize = 24;

/// Whether a line tells of a change of an object: bookmarks and errors do not.
fn is_event(line: &[u8]) -> bool {
    CHANGES.iter().any(|beginning| line.starts_with(beginning))
}

/// The answer to a watch with its events disturbed. Its number in the record is noted with the first event that is.
pub(super) fn disturbed(
    response: reqwest::Response,
    from: FromEvent,
    disturbance: Disturbance,
    record: Arc<Record>,
    number: u64,
) -> Body {
    let (told, events) = mpsc::channel(16);
    tokio::spawn(async move {
        let mut lines = Lines { response, rest: Vec::new() };
        let noted = move || record.met(number);
        // The end of either side ends the other.
        let _ = tell(&mut lines, &from, disturbance, told, noted).await;
    });
    Body::wrap(StreamBody::new(events))
}

/// The answer to a watch as it is, with its events counted.
pub(super) fn counted(body: Body, record: Arc<Record>, number: u64) -> Body {
    let mut count = Count::default();
    Body::wrap(body.map_frame(move |frame| {
        let events = frame.data_ref().map_or(0, |bytes| count.events(bytes));
        if events > 0 {
            record.told(number, events);
        }
        frame
    }))
}

/// Counts events in an answer that comes in pieces.
#[derive(Debug, Default)]
struct Count {
    /// The beginning of the line that has not come to its end.
    line: Vec<u8>,
}

impl Count {
    fn events(&mut self, piece: &[u8]) -> u64 {
        let mut events = 0;
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let room = BEGINNING.saturating_sub(self.line.len());
            self.line.extend(part.iter().take(room));
            if part.ends_with(b"\n") {
                events += u64::from(is_event(&self.line));
                self.line.clear();
            }
        }
        events
    }
}

/// The caller has left.
struct Left;

async fn tell(
    lines: &mut Lines,
    from: &FromEvent,
    disturbance: Disturbance,
    mut told: Told,
    noted: impl Fn(),
) -> Result<(), Left> {
    match disturbance {
        Disturbance::Hold(by) => hold(lines, from, by, told, noted).await,
        Disturbance::Miss(within) => {
            if !up_to(lines, from, &mut told).await? {
                return Ok(());
            }
            noted();
            let end = Instant::now() + within;
            while let Ok(Some(_)) = timeout_at(end, lines.next(&told)).await.unwrap_or(Ok(None)) {}
            sleep_until(end).await;
            send(&mut told, Bytes::from_static(TOO_OLD)).await
        }
        Disturbance::Replay(count) => {
            let mut last = VecDeque::new();
            while let Some(line) = lines.next(&told).await? {
                send(&mut told, line.clone()).await?;
                if !is_event(&line) {
                    continue;
                }
                let begun = from.comes().is_ge();
                last.push_back(line);
                if last.len() > count {
                    last.pop_front();
                }
                if begun {
                    noted();
                    for line in &last {
                        send(&mut told, line.clone()).await?;
                    }
                }
            }
            Ok(())
        }
        Disturbance::Freeze => {
            if !up_to(lines, from, &mut told).await? {
                return Ok(());
            }
            noted();
            while lines.next(&told).await?.is_some() {}
            // Nor is the end of the watch told.
            while !told.is_closed() {
                tokio::time::sleep(LOOK).await;
            }
            Ok(())
        }
    }
}

/// Tells all up to the chosen event, and not that one. Says whether it has come on this watch.
async fn up_to(lines: &mut Lines, from: &FromEvent, told: &mut Told) -> Result<bool, Left> {
    while let Some(line) = lines.next(told).await? {
        if is_event(&line) && from.comes().is_eq() {
            return Ok(true);
        }
        send(told, line).await?;
    }
    Ok(false)
}

async fn hold(lines: &mut Lines, from: &FromEvent, by: Duration, told: Told, noted: impl Fn()) -> Result<(), Left> {
    let (queue, mut queued) = mpsc::unbounded();
    let mut out = told.clone();
    let deliver = async move {
        while let Some((due, line)) = queued.next().await {
            sleep_until(due).await;
            send(&mut out, line).await?;
        }
        Ok(())
    };
    let read = async move {
        while let Some(line) = lines.next(&told).await? {
            if is_event(&line) && from.comes().is_ge() {
                noted();
            }
            let lag = if from.has_come() { by } else { Duration::ZERO };
            queue.unbounded_send((Instant::now() + lag, line)).map_err(|_| Left)?;
        }
        Ok(())
    };
    futures::future::try_join(deliver, read).await.map(drop)
}

async fn send(told: &mut Told, line: Bytes) -> Result<(), Left> {
    told.send(Ok(Frame::data(line))).await.map_err(|_| Left)
}

/// The lines of an answer that does not end.
struct Lines {
    response: reqwest::Response,
    rest: Vec<u8>,
}

impl Lines {
    /// The next line with its newline; none at the end of the answer, or when its caller is gone.
    async fn next(&mut self, told: &Told) -> Result<Option<Bytes>, Left> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let rest = self.rest.split_off(end + 1);
                return Ok(Some(Bytes::from(std::mem::replace(&mut self.rest, rest))));
            }
            let chunk = loop {
                // A caller that leaves says so only by its end of the channel.
                match tokio::time::timeout(LOOK, self.response.chunk()).await {
                    Ok(chunk) => break chunk,
                    Err(_) if told.is_closed() => return Err(Left),
                    Err(_) => {}
                }
            };
            match chunk {
                Ok(Some(chunk)) if self.rest.len() < LONGEST => self.rest.extend_from_slice(&chunk),
                _ => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted_and_bookmarks_are_not_however_they_are_cut_up() {
        let text = concat!(
            r#"{"type":"ADDED","object":{}}"#,
            "\n",
            r#"{"type":"BOOKMARK","object":{"type":"ADDED"}}"#,
            "\n",
            r#"{"type":"MODIFIED","object":{}}"#,
            "\n",
            r#"{"type":"DELETED","object":{}}"#,
            "\n",
            r#"{"type":"ERROR","object":{}}"#,
            "\n",
            r#"{"type":"ADDED","obj"#,
        );
        for size in [1, 7, 30, 1000] {
            let mut count = Count::default();
            let events: u64 = text.as_bytes().chunks(size).map(|piece| count.events(piece)).sum();
            assert_eq!(events, 3, "in pieces of {size}");
        }
    }
}
