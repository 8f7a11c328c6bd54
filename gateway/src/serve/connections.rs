//! Connections: accepted up to a cap, closed when they take too long, ended with the gateway.
//!
//! Each connection notes in two atomics what it does and since when (`life`); a sweep each second closes those that
//! took too long. At the cap, the one that has been without a complete request for longest makes room; one whose
//! request is being answered never does.

mod life;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use self::life::{AnswerBody, Life, RequestBody, Seen, Watched, now_ms};

/// Most HTTP connections, when no setting says otherwise and enough files may be open.
const MOST: usize = 20_000;
/// Open files kept for everything else: the owner's socket, the database, hands and new processes.
const RESERVE: usize = 512;
/// Most connections to the owner's socket.
const OWNER_MOST: usize = 128;
/// How long a request's headers may take, from the accept or from their first byte.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// How long a request's body may pause. `/mcp` bounds the whole of it further.
const BODY_PAUSE_MAX: Duration = Duration::from_mins(1);
/// How long a connection may be between two requests. HTTP clients usually keep theirs for 90 s at most.
const IDLE_MAX: Duration = Duration::from_mins(2);
/// The same on the owner's socket, where a person may be asked something between two requests.
const OWNER_IDLE_MAX: Duration = Duration::from_hours(1);
/// How long a client may take no byte of what is written to it.
const WRITE_PAUSE_MAX: Duration = Duration::from_mins(2);
/// How often it is looked for connections that took too long.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How long a connection that makes room may take to be gone.
const ROOM_WAIT: Duration = Duration::from_secs(1);
/// Pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often it is said that connections are refused or can't be accepted.
const SAID_EVERY: Duration = Duration::from_mins(1);
/// Bytes of one connection's buffer. The headers of a request must fit; `mcp/wire` allows them 64 KiB.
const BUFFER: usize = 96 * 1024;

/// What the connections of one listener may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How many there may be.
    pub(super) most: usize,
    /// How long headers may take.
    pub(super) head: Duration,
    /// How long a body may pause.
    pub(super) body: Duration,
    /// How long one may be without a request.
    pub(super) idle: Duration,
    /// How long a write may make no progress.
    pub(super) write: Duration,
}

impl Bounds {
    /// Those of HTTP. `wanted` is the setting; it is cut to what the limit of open files leaves room for.
    pub(super) fn http(wanted: Option<usize>) -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let room = files - RESERVE.min(files / 2);
        if let Some(wanted) = wanted.filter(|wanted| *wanted > room) {
            tracing::warn!(
                wanted,
                room,
                "limits.connections is more than the limit of open files allows: raise that (ulimit -Hn)"
            );
        }
        let most = wanted.unwrap_or(MOST).min(room);
        Self { most, head: HEAD_MAX, body: BODY_PAUSE_MAX, idle: IDLE_MAX, write: WRITE_PAUSE_MAX }
    }

    /// Those of the owner's socket. A copy into a hand that takes its time pauses as long as the hand does.
    pub(super) fn owner() -> Self {
        let most = OWNER_MOST;
        Self { most, head: HEAD_MAX, body: OWNER_IDLE_MAX, idle: OWNER_IDLE_MAX, write: OWNER_IDLE_MAX }
    }
}

/// Where connections come from.
pub(super) trait Listener: Send + 'static {
    /// What one is.
    type Socket: Socket;

    /// The next one. Nothing is lost when this is dropped.
    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Socket>> + Send;
}

impl Listener for TcpListener {
    type Socket = TcpStream;

    async fn accept(&mut self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        // Nagle and delayed acknowledgements cost up to 44 ms a call.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

/// A stream that can be waited for before anything is set up to read it.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static {
    /// Returns when there is something to read, or its end.
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send;
}

impl Socket for TcpStream {
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send {
        Self::readable(self)
    }
}

impl Socket for UnixStream {
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send {
        Self::readable(self)
    }
}

/// Serves until `closing`, and then until the last answer is out.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    bounds: Bounds,
    closing: CancellationToken,
) {
    let mut connections = Connections::new(bounds);
    let mut sweeps = tokio::time::interval(SWEEP_EVERY);
    sweeps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(socket) => connections.take(socket, &router, &closing).await,
                Err(error) => connections.failed(&error).await,
            },
            _ = sweeps.tick() => connections.sweep(),
            () = closing.cancelled() => break,
        }
    }
    drop(listener);
    connections.tasks.close();
    connections.tasks.wait().await;
}

/// The connections of one listener.
struct Connections {
    bounds: Bounds,
    places: Arc<Semaphore>,
    open: Vec<Open>,
    /// Those without a complete request when it was last looked, the longest first, and what was seen of each.
    silent: VecDeque<(Seen, Open)>,
    tasks: TaskTracker,
    failures: Seldom,
    refusals: Seldom,
}

/// One connection, as long as it is there.
#[derive(Clone)]
struct Open {
    life: Weak<Life>,
    task: AbortHandle,
}

impl Open {
    /// Closes it, unless it went on since it was `seen`. Whether it was closed.
    fn close(&self, seen: Seen) -> bool {
        let closed = self.life.upgrade().is_some_and(|life| life.close(seen));
        if closed {
            self.task.abort();
        }
        closed
    }
}

impl Connections {
    fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            places: Arc::new(Semaphore::new(bounds.most)),
            open: Vec::new(),
            silent: VecDeque::new(),
            tasks: TaskTracker::new(),
            failures: Seldom::default(),
            refusals: Seldom::default(),
        }
    }

    /// Serves one more, when there is a place for it.
    async fn take<S: Socket>(&mut self, socket: S, router: &Router, closing: &CancellationToken) {
        let Some(place) = self.place().await else {
            if let Some(refused) = self.refusals.note() {
                let most = self.bounds.most;
                tracing::warn!(refused, most, "connections were refused: all that may be open are in use");
            }
            return;
        };
        let life = Arc::new(Life::new());
        let watched = Watched::new(socket, life.clone(), place);
        let task = self.tasks.spawn(connection(watched, router.clone(), closing.clone()));
        self.open.push(Open { life: Arc::downgrade(&life), task: task.abort_handle() });
    }

    /// A place for one more. Where there is none, one that is silent makes room.
    async fn place(&mut self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Some(place);
        }
        if !self.make_room() {
            return None;
        }
        tokio::time::timeout(ROOM_WAIT, self.places.clone().acquire_owned()).await.ok()?.ok()
    }

    /// Closes the connection that has been without a complete request for longest. Whether there was one.
    fn make_room(&mut self) -> bool {
        if self.close_silent() {
            return true;
        }
        self.look_for_silent();
        self.close_silent()
    }

    fn close_silent(&mut self) -> bool {
        while let Some((seen, open)) = self.silent.pop_front() {
            if open.close(seen) {
                return true;
            }
        }
        false
    }

    fn look_for_silent(&mut self) {
        let seen = |open: &Open| {
            let life = open.life.upgrade()?;
            Some((life.without_request_since()?, life.seen(), open.clone()))
        };
        let mut silent: Vec<_> = self.open.iter().filter_map(seen).collect();
        silent.sort_by_key(|(since, ..)| *since);
        self.silent = silent.into_iter().map(|(_, seen, open)| (seen, open)).collect();
    }

    /// Closes those that took too long, and forgets those that are gone.
    fn sweep(&mut self) {
        let (bounds, now) = (self.bounds, now_ms());
        self.open.retain(|open| {
            let Some(life) = open.life.upgrade() else { return false };
            if let Some(seen) = life.overdue(&bounds, now) {
                open.close(seen);
            }
            true
        });
        // It would keep what is gone.
        if self.places.available_permits() > 0 {
            self.silent.clear();
        }
    }

    /// After an accept that failed: pauses, for the next one is likely to fail as well.
    async fn failed(&mut self, error: &io::Error) {
        if matches!(
            error.kind(),
            ErrorKind::ConnectionAborted | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
        ) {
            return;
        }
        if let Some(failures) = self.failures.note() {
            tracing::error!(failures, error = %error, "connections can't be accepted");
        }
        let errno = Errno::from_io_error(error);
        if matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) {
            self.make_room();
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Something that happens often and is said once a minute.
#[derive(Default)]
struct Seldom {
    said: Option<Instant>,
    count: u64,
}

impl Seldom {
    /// How often it happened since it was last said, when it is to be said now.
    fn note(&mut self) -> Option<u64> {
        self.count += 1;
        if self.said.is_some_and(|said| said.elapsed() < SAID_EVERY) {
            return None;
        }
        self.said = Some(Instant::now());
        Some(std::mem::take(&mut self.count))
    }
}

/// Serves one connection to its end.
async fn connection<S: Socket>(socket: Watched<S>, router: Router, closing: CancellationToken) {
    // Until something comes, no buffer and no parser is set up: a client that sends nothing costs about a kilobyte.
    tokio::select! {
        heard = socket.readable() => if heard.is_err() { return },
        () = closing.cancelled() => return,
    }
    Box::pin(talk(socket, router, closing)).await;
}

async fn talk<S: Socket>(socket: Watched<S>, router: Router, closing: CancellationToken) {
    let life = socket.life().clone();
    let service = service_fn(move |request| answer(request, life.clone(), router.clone()));
    let http = http1::Builder::new().max_buf_size(BUFFER).serve_connection(TokioIo::new(socket), service);
    let mut http = pin!(http.with_upgrades());
    tokio::select! {
        // What breaks a connection is nothing that anybody here could act on.
        _ = http.as_mut() => return,
        () = closing.cancelled() => http.as_mut().graceful_shutdown(),
    }
    let _ = http.await;
}

async fn answer(
    request: Request<Incoming>,
    life: Arc<Life>,
    router: Router,
) -> Result<Response<Body>, Infallible> {
    if !life.begin(request.body()) {
        // It was closed this moment: nothing that it asks for may run any more.
        std::future::pending::<()>().await;
    }
    let request = request.map(|body| Body::new(RequestBody::new(body, life.clone())));
    let response = router.oneshot(request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // What it has become has no requests: it stays in use.
        return Ok(response);
    }
    Ok(response.map(|body| Body::new(AnswerBody::new(body, life))))
}
