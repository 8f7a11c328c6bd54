//! The response streams of one legacy session: a slow reader is cut off, and what broke can be taken up again.
//!
//! rmcp lets a session wait for its slowest reader, and forgets an answer with the connection that it was meant for.
//! So nobody but a task of ours reads from rmcp. It hands each event on without waiting; when the reader is gone before
//! the answer came, the answer is kept for a while for a GET with `Last-Event-ID`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use rmcp::model::{RequestId, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::ServerSseMessage;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::caps::lock;

/// How many events a reader may lag behind before its stream is closed, and how many are kept for one who comes back.
const MAX_LAG: usize = 64;
/// How long an answer that nobody was there for is kept.
const KEPT_FOR: Duration = Duration::from_mins(1);
/// How many of those a session has at most; the oldest goes first.
const MAX_KEPT: usize = 16;

/// The streams of one session. They end when it is dropped.
pub(super) struct Replays {
    tasks: TaskTracker,
    over: CancellationToken,
    _end: DropGuard,
    streams: Arc<Mutex<BTreeMap<Number, Arc<Mutex<Kept>>>>>,
    /// The same by the request that each answers, as long as somebody writes to it.
    answering: Mutex<HashMap<RequestId, Weak<Mutex<Kept>>>>,
}

/// Which request of the session a stream answers, as rmcp numbers them in its event ids (`event/request`).
type Number = u64;

/// What a reader gets.
pub(super) struct Events(Receiver<ServerSseMessage>);

#[derive(Default)]
struct Kept {
    events: VecDeque<ServerSseMessage>,
    reader: Option<Sender<ServerSseMessage>>,
    ended: bool,
}

impl Replays {
    /// None yet; their tasks are `tasks`.
    pub(super) fn new(tasks: TaskTracker) -> Self {
        let over = CancellationToken::new();
        let guard = over.clone().drop_guard();
        Self { tasks, _end: guard, over, streams: Arc::default(), answering: Mutex::default() }
    }

    /// The stream that answers one request; it outlives its reader.
    pub(super) fn answer(
        &self,
        request: Option<RequestId>,
        events: impl Stream<Item = ServerSseMessage> + Send + 'static,
    ) -> Events {
        let (sender, receiver) = mpsc::channel(MAX_LAG);
        let kept = Arc::new(Mutex::new(Kept { reader: Some(sender), ..Kept::default() }));
        if let Some(request) = request {
            let mut answering = lock(&self.answering);
            answering.retain(|_, kept| kept.strong_count() > 0);
            answering.insert(request, Arc::downgrade(&kept));
        }
        self.tasks.spawn(keep(events, kept, self.streams.clone(), self.over.clone()));
        Events(receiver)
    }

    /// Says something on the stream that answers `request`, ahead of the answer. Gives it back when there is none.
    pub(super) fn say(
        &self,
        request: &RequestId,
        message: ServerJsonRpcMessage,
    ) -> Option<ServerJsonRpcMessage> {
        let kept = lock(&self.answering).get(request).and_then(Weak::upgrade);
        let Some(kept) = kept else { return Some(message) };
        let mut kept = lock(&kept);
        if kept.ended {
            return Some(message);
        }
        kept.push(ServerSseMessage::from_message(message));
        None
    }

    /// A stream that nobody has to have received: it ends with its reader, and its reader with a lag.
    pub(super) fn news(&self, events: impl Stream<Item = ServerSseMessage> + Send + 'static) -> Events {
        let (sender, receiver) = mpsc::channel(MAX_LAG);
        let over = self.over.clone();
        self.tasks.spawn(async move {
            let mut events = pin!(events);
            loop {
                let event = tokio::select! {
                    event = events.next() => event,
                    () = sender.closed() => break,
                    () = over.cancelled() => break,
                };
                if event.is_none_or(|event| sender.try_send(event).is_err()) {
                    break;
                }
            }
        });
        Events(receiver)
    }

    /// What came after the event `last`, and what comes; if it is an event of an answer that is still known.
    pub(super) fn resume(&self, last: &str) -> Option<Events> {
        let (event, number) = last.split_once('/')?;
        let (event, number) = (event.parse::<u64>().ok()?, number.parse::<Number>().ok()?);
        let kept = lock(&self.streams).get(&number)?.clone();
        let mut kept = lock(&kept);
        // Twice: everything that is kept, and then the same lag as any reader.
        let (sender, receiver) = mpsc::channel(2 * MAX_LAG);
        for missed in kept.events.iter().filter(|kept| id(kept).is_some_and(|(kept, _)| kept > event)) {
            sender.try_send(missed.clone()).ok()?;
        }
        if !kept.ended {
            kept.reader = Some(sender);
        }
        Some(Events(receiver))
    }
}

/// Reads the answer to its end, whoever listens.
async fn keep(
    events: impl Stream<Item = ServerSseMessage> + Send + 'static,
    kept: Arc<Mutex<Kept>>,
    streams: Arc<Mutex<BTreeMap<Number, Arc<Mutex<Kept>>>>>,
    over: CancellationToken,
) {
    let mut number = None;
    let mut events = pin!(events);
    while let Some(Some(event)) = over.run_until_cancelled(events.next()).await {
        if number.is_none() {
            number = id(&event).map(|(_, number)| number);
            if let Some(number) = number {
                lock(&streams).insert(number, kept.clone());
            }
        }
        lock(&kept).push(event);
    }
    let Some(number) = number else { return };
    let heard = {
        let mut kept = lock(&kept);
        kept.ended = true;
        kept.reader.take().is_some()
    };
    if !heard {
        forget_oldest(&mut lock(&streams));
        // The session's end makes it unknown at once.
        over.run_until_cancelled(tokio::time::sleep(KEPT_FOR)).await;
    }
    lock(&streams).remove(&number);
}

/// Makes room among the answers that nobody was there for.
fn forget_oldest(streams: &mut BTreeMap<Number, Arc<Mutex<Kept>>>) {
    let ended: Vec<Number> =
        streams.iter().filter(|(_, kept)| lock(kept).ended).map(|(number, _)| *number).collect();
    for number in ended.iter().take(ended.len().saturating_sub(MAX_KEPT)) {
        streams.remove(number);
    }
}

impl Kept {
    fn push(&mut self, event: ServerSseMessage) {
        if self.reader.as_ref().is_some_and(|reader| reader.try_send(event.clone()).is_err()) {
            // Gone, or too slow; either way it may come back for the rest.
            self.reader = None;
        }
        if self.events.len() == MAX_LAG {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

/// An event's number in its stream, and its stream's.
fn id(event: &ServerSseMessage) -> Option<(u64, Number)> {
    let (event, number) = event.event_id.as_deref()?.split_once('/')?;
    Some((event.parse().ok()?, number.parse().ok()?))
}

impl Stream for Events {
    type Item = ServerSseMessage;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ServerSseMessage>> {
        self.0.poll_recv(context)
    }
}
