//! The events of a watch, disturbed. They are lines of JSON.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures::channel::mpsc;
use futures::{SinkExt, StreamExt};
use http_body_util::StreamBody;
use hyper::body::Frame;
use reqwest::Body;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Disturbance, Record};

/// Tells the caller that it has to list again.
const TOO_OLD: &[u8] = br#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}
"#;

/// Bytes of a line that has not come to its end may be so many.
const LONGEST: usize = 16 << 20;

/// How often it is looked whether the caller has left.
const LOOK: Duration = Duration::from_millis(500);

type Told = mpsc::Sender<Result<Frame<Bytes>, std::convert::Infallible>>;

/// The answer to a watch with its events disturbed. Its number in the record is noted with the first event that is.
pub(super) fn disturbed(
    response: reqwest::Response,
    disturbance: Disturbance,
    record: Arc<Record>,
    number: u64,
) -> Body {
    let (told, events) = mpsc::channel(16);
    tokio::spawn(async move {
        let mut lines = Lines { response, rest: Vec::new() };
        let noted = move || record.met(number);
        // The end of either side ends the other.
        let _ = tell(&mut lines, disturbance, told, noted).await;
    });
    Body::wrap(StreamBody::new(events))
}

/// The caller has left.
struct Left;

async fn tell(lines: &mut Lines, disturbance: Disturbance, mut told: Told, noted: impl Fn()) -> Result<(), Left> {
    match disturbance {
        Disturbance::Hold(by) => hold(lines, by, told, noted).await,
        Disturbance::Miss(within) => {
            let Some(_) = lines.next(&told).await? else { return Ok(()) };
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
                last.push_back(line);
                if last.len() > count {
                    last.pop_front();
                }
                if last.len() > 1 {
                    noted();
                    for line in &last {
                        send(&mut told, line.clone()).await?;
                    }
                }
            }
            Ok(())
        }
        Disturbance::Freeze => {
            while lines.next(&told).await?.is_some() {
                noted();
            }
            // Nor is the end of the watch told.
            while !told.is_closed() {
                tokio::time::sleep(LOOK).await;
            }
            Ok(())
        }
    }
}

async fn hold(lines: &mut Lines, by: Duration, told: Told, noted: impl Fn()) -> Result<(), Left> {
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
            noted();
            queue.unbounded_send((Instant::now() + by, line)).map_err(|_| Left)?;
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
