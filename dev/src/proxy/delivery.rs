//! When an answer has arrived: written whole by us, and read by the caller.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::sockets::is_under_way;

/// A caller that does not read is killed all the same after so long.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often the kernel is asked whether the caller has read.
const LOOK: Duration = Duration::from_micros(500);

type Then = Box<dyn FnOnce() + Send>;

/// The delivery of one answer on a connection.
pub(super) struct Delivery {
    caller: SocketAddr,
    own: SocketAddr,
    step: Mutex<Step>,
}

enum Step {
    /// Nobody wants to know.
    Idle,
    /// The answer is being written.
    Writing(Then),
    /// It has been handed over whole, and is to be flushed.
    Ended(Then),
}

impl Delivery {
    pub(super) fn new(caller: SocketAddr, own: SocketAddr) -> Self {
        Self { caller, own, step: Mutex::new(Step::Idle) }
    }

    /// The caller's end of the connection.
    pub(super) fn caller(&self) -> SocketAddr {
        self.caller
    }

    /// What is done when the next answer has been read.
    pub(super) fn then(&self, then: impl FnOnce() + Send + 'static) {
        *self.step() = Step::Writing(Box::new(then));
    }

    fn step(&self) -> MutexGuard<'_, Step> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) {
        let mut step = self.step();
        *step = match std::mem::replace(&mut *step, Step::Idle) {
            Step::Writing(then) => Step::Ended(then),
            other => other,
        };
    }

    fn flushed(&self) {
        let mut step = self.step();
        match std::mem::replace(&mut *step, Step::Idle) {
            Step::Ended(then) => {
                let (caller, own) = (self.caller, self.own);
                tokio::spawn(async move {
                    let start = Instant::now();
                    while is_under_way(caller, own) && start.elapsed() < PATIENCE {
                        tokio::time::sleep(LOOK).await;
                    }
                    then();
                });
            }
            other => *step = other,
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("caller", &self.caller).finish_non_exhaustive()
    }
}

/// The body of an answer, which tells when it has been taken whole.
#[derive(Debug)]
pub(super) struct Answer {
    body: reqwest::Body,
    delivery: Option<Arc<Delivery>>,
}

impl Answer {
    pub(super) fn new(body: reqwest::Body, delivery: Option<Arc<Delivery>>) -> Self {
        Self { body, delivery }
    }
}

impl Drop for Answer {
    /// The connection drops a body when it has taken all that it wants of it. One that fails is not flushed after it.
    fn drop(&mut self) {
        if let Some(delivery) = &self.delivery {
            delivery.ended();
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The caller's connection, which tells when all that was written has left.
#[derive(Debug)]
pub(super) struct Watched {
    stream: TcpStream,
    delivery: Arc<Delivery>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, delivery: Arc<Delivery>) -> Self {
        Self { stream, delivery }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = flushed {
            self.delivery.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
