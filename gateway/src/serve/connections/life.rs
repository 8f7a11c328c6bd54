//! What a connection does, and since when: noted by its socket and its bodies, read by the sweep.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

use super::{Bounds, Socket};

/// What times are counted from.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since a moment before the first connection; never 0.
pub(super) fn now_ms() -> u64 {
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX >> PHASE_BITS) + 1
}

/// How many bits of a note say what a connection does. The rest says since when.
const PHASE_BITS: u32 = 3;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It owes the headers of a request.
    Head,
    /// It owes the rest of a body.
    Body,
    /// Its request is being answered.
    Busy,
    /// It is between two requests.
    Idle,
    /// It was told to go.
    Closed,
}

/// A moment of a connection's life. Two that are equal are the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(u64);

impl Seen {
    fn new(phase: Phase, since: u64) -> Self {
        Self((since << PHASE_BITS) | phase as u64)
    }

    fn phase(self) -> Phase {
        const PHASES: [Phase; 4] = [Phase::Head, Phase::Body, Phase::Busy, Phase::Idle];
        let phase = usize::try_from(self.0 & ((1 << PHASE_BITS) - 1)).ok();
        phase.and_then(|phase| PHASES.get(phase)).copied().unwrap_or(Phase::Closed)
    }

    fn since(self) -> u64 {
        self.0 >> PHASE_BITS
    }
}

/// One connection's life.
#[derive(Debug)]
pub(super) struct Life {
    at: AtomicU64,
    /// When it last had a complete request, or was accepted.
    without: AtomicU64,
    /// Since when a write waits; 0 when none does.
    stuck: AtomicU64,
}

impl Life {
    /// That of a connection that was just accepted.
    pub(super) fn new() -> Self {
        let now = now_ms();
        let at = AtomicU64::new(Seen::new(Phase::Head, now).0);
        Self { at, without: AtomicU64::new(now), stuck: AtomicU64::new(0) }
    }

    pub(super) fn seen(&self) -> Seen {
        Seen(self.at.load(Ordering::Acquire))
    }

    /// Goes from one of `from` to another phase. Whether it was in one of them.
    fn go(&self, from: &[Phase], to: Phase) -> bool {
        let next = Seen::new(to, now_ms()).0;
        let change = |at| from.contains(&Seen(at).phase()).then_some(next);
        self.at.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Bytes came.
    fn heard(&self) {
        if self.seen().phase() == Phase::Idle {
            self.go(&[Phase::Idle], Phase::Head);
        }
    }

    /// A request's headers are there, and `body` may be to come. False: the connection is closed.
    pub(super) fn begin(&self, body: &Incoming) -> bool {
        let to = if body.is_end_stream() { Phase::Busy } else { Phase::Body };
        self.go(&[Phase::Head, Phase::Body, Phase::Busy, Phase::Idle], to)
    }

    /// The answer is done.
    fn rest(&self) {
        self.without.store(now_ms(), Ordering::Release);
        self.go(&[Phase::Head, Phase::Body, Phase::Busy, Phase::Idle], Phase::Idle);
    }

    /// Closes it, unless it went on since it was `seen`. Whether it was closed now.
    pub(super) fn close(&self, seen: Seen) -> bool {
        let closed = Seen::new(Phase::Closed, seen.since()).0;
        seen.phase() != Phase::Closed
            && self.at.compare_exchange(seen.0, closed, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Since when it has had no complete request. `None`: it has one, or is closed.
    pub(super) fn without_request_since(&self) -> Option<u64> {
        match self.seen().phase() {
            Phase::Head | Phase::Body | Phase::Idle => Some(self.without.load(Ordering::Acquire)),
            Phase::Busy | Phase::Closed => None,
        }
    }

    /// What was seen of it, if it took longer than it may.
    pub(super) fn overdue(&self, bounds: &Bounds, now: u64) -> Option<Seen> {
        let seen = self.seen();
        let over = |since: u64, most: Duration| u128::from(now.saturating_sub(since)) > most.as_millis();
        let stuck = self.stuck.load(Ordering::Acquire);
        let late = match seen.phase() {
            Phase::Head => over(seen.since(), bounds.head),
            Phase::Body => over(seen.since(), bounds.body),
            Phase::Idle => over(seen.since(), bounds.idle),
            Phase::Busy => false,
            Phase::Closed => return None,
        };
        (late || (stuck != 0 && over(stuck, bounds.write))).then_some(seen)
    }

    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        let was = self.stuck.load(Ordering::Relaxed);
        match (&written, was) {
            (Poll::Pending, 0) => self.stuck.store(now_ms(), Ordering::Release),
            (Poll::Ready(_), 1..) => self.stuck.store(0, Ordering::Release),
            _ => {}
        }
        written
    }
}

/// A socket that notes what goes through it. Its place is free again when it is closed, whoever holds it then.
pub(super) struct Watched<S> {
    socket: S,
    life: Arc<Life>,
    _place: OwnedSemaphorePermit,
}

impl<S: Socket> Watched<S> {
    pub(super) fn new(socket: S, life: Arc<Life>, place: OwnedSemaphorePermit) -> Self {
        Self { socket, life, _place: place }
    }

    pub(super) fn life(&self) -> &Arc<Life> {
        &self.life
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }
}

impl<S: Socket> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, to))?;
        if to.filled().len() > before {
            self.life.heard();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Socket> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.life.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.life.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// A request's body. Notes each piece, and when there is no more.
pub(super) struct RequestBody {
    body: Incoming,
    life: Arc<Life>,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, life: Arc<Life>) -> Self {
        Self { body, life }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        // Whoever answers does without the rest.
        self.life.go(&[Phase::Body], Phase::Busy);
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let more = matches!(frame, Some(Ok(_))) && !self.body.is_end_stream();
        self.life.go(&[Phase::Body], if more { Phase::Body } else { Phase::Busy });
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body. Notes when it is done, or given up.
pub(super) struct AnswerBody {
    body: Body,
    life: Arc<Life>,
}

impl AnswerBody {
    pub(super) fn new(body: Body, life: Arc<Life>) -> Self {
        Self { body, life }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.life.rest();
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
