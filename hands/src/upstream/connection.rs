//! A connection to a server: a child process, or one session of a URL. What comes over it goes where it belongs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::follow::Follows;
use super::http::{Answer, Http, ParamHeader, Spoken};
use super::pending::{Pending, Waiting};
use super::stdio::Process;
use super::wire::{
    Era, Event, Failure, Incoming, METHOD_NOT_FOUND, Outgoing, internal, notification, response,
};
use crate::InstanceId;
use crate::mcp::{Object, RpcError};

/// How long telling a server something may take.
const TELL_MAX: Duration = Duration::from_secs(10);
/// How long telling it that an answer is not wanted any more may take: whoever gave up does not wait.
const CANCEL_MAX: Duration = Duration::from_millis(500);
/// How long ending a session may take.
const END_MAX: Duration = Duration::from_secs(2);
/// How long a new session's first request waits for the stream of what belongs to no request.
const LISTEN_MAX: Duration = Duration::from_secs(1);
/// How many answers to questions that belong to no call may wait to be read: a server that asks and does not read gets
/// no more.
const ANSWERS_MAX: usize = 64;
/// Log levels, the least severe first (RFC 5424).
pub(super) const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// What both sides agreed on.
#[derive(Clone, Debug)]
pub(super) struct Agreed {
    pub(super) era: Era,
    pub(super) version: String,
    pub(super) spoken: Spoken,
    pub(super) server: Object,
    pub(super) capabilities: Object,
    pub(super) instructions: Option<String>,
}

/// How messages get there.
pub(super) enum Transport {
    Http(Arc<Http>),
    Stdio(Arc<Process>),
}

/// A connection.
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    transport: Transport,
    agreed: OnceLock<Agreed>,
    pub(super) pending: Arc<Pending>,
    pub(super) follows: Follows,
    /// Fires when the server says that one of its lists has changed.
    pub(super) lists_changed: Notify,
    /// Fires when a session's own stream is open, or there is none.
    pub(super) listening: CancellationToken,
    /// Fires when it can't be used any more.
    pub(super) gone: CancellationToken,
    why: OnceLock<String>,
    answering: Arc<Semaphore>,
    /// Answers to what was never asked.
    stray: AtomicU64,
    /// The place in [`LEVELS`] that a legacy server was told.
    level: Mutex<Option<usize>>,
}

impl Connection {
    pub(super) fn new(shared: &Arc<Shared>, transport: Transport) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            transport,
            agreed: OnceLock::new(),
            pending: Arc::default(),
            follows: Follows::default(),
            lists_changed: Notify::new(),
            listening: CancellationToken::new(),
            gone: CancellationToken::new(),
            why: OnceLock::new(),
            answering: Arc::new(Semaphore::new(ANSWERS_MAX)),
            stray: AtomicU64::new(0),
            level: Mutex::default(),
        })
    }

    /// The hand's name.
    pub(super) fn hand(&self) -> &str {
        &self.shared.config.name
    }

    /// What was agreed on. Before that, as with a stateless server.
    pub(super) fn agreed(&self) -> &Agreed {
        static NOTHING_YET: LazyLock<Agreed> = LazyLock::new(|| Agreed {
            era: Era::Modern,
            version: super::wire::MODERN.to_owned(),
            spoken: Spoken::modern(),
            server: Object::new(),
            capabilities: Object::new(),
            instructions: None,
        });
        self.agreed.get().unwrap_or(&NOTHING_YET)
    }

    /// Says what was agreed on, once.
    pub(super) fn agree(&self, agreed: Agreed) {
        let _ = self.agreed.set(agreed);
    }

    /// Which era it speaks.
    pub(super) fn era(&self) -> Era {
        self.agreed().era
    }

    /// Whether it is a child process.
    pub(super) fn is_process(&self) -> bool {
        matches!(self.transport, Transport::Stdio(_))
    }

    /// The URL, when there is one.
    pub(super) fn http(&self) -> Option<&Arc<Http>> {
        match &self.transport {
            Transport::Http(http) => Some(http),
            Transport::Stdio(_) => None,
        }
    }

    /// Why it can't be used any more, if so.
    pub(super) fn why_gone(&self) -> Option<&str> {
        self.gone.is_cancelled().then(|| self.why.get().map_or("it was ended", String::as_str))
    }

    /// Waits until a question is heard that comes outside the answer to a call: servers lose one that is asked while
    /// nobody listens, and the call waits for its answer for ever. Once the wait was in vain, nobody waits again.
    pub(super) async fn listened(&self) {
        if self.era() == Era::Modern || self.is_process() || self.listening.is_cancelled() {
            return;
        }
        tokio::select! {
            () = self.listening.cancelled() => {}
            () = self.gone.cancelled() => {}
            () = tokio::time::sleep(LISTEN_MAX) => {}
        }
        self.listening.cancel();
    }

    /// An id that no other request to this server has, on whatever connection.
    pub(super) fn id(&self) -> u64 {
        self.shared.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request in the words that were agreed on.
    pub(super) async fn open(
        self: &Arc<Self>,
        id: u64,
        outgoing: &Outgoing<'_>,
        of: Option<&InstanceId>,
        params: &[(ParamHeader, HeaderValue)],
    ) -> Result<Exchange, Failure> {
        let agreed = self.agreed();
        self.open_as(id, outgoing, of, params, agreed.era, &agreed.spoken).await
    }

    /// Sends a request in other words.
    pub(super) async fn open_as(
        self: &Arc<Self>,
        id: u64,
        outgoing: &Outgoing<'_>,
        of: Option<&InstanceId>,
        params: &[(ParamHeader, HeaderValue)],
        era: Era,
        spoken: &Spoken,
    ) -> Result<Exchange, Failure> {
        if let Some(why) = self.why_gone() {
            return Err(Failure::Unreached(why.to_owned()));
        }
        let connection = Arc::clone(self);
        match &self.transport {
            Transport::Http(http) => {
                // Nothing outside its own stream belongs to a request of the stateless era.
                let waiting = (era == Era::Legacy).then(|| self.pending.wait(id, of));
                let answer = http.request(id, outgoing, era, spoken, params).await?;
                Ok(Exchange { connection, spoken: spoken.clone(), answer: Some(answer), waiting })
            }
            Transport::Stdio(process) => {
                let waiting = Some(self.pending.wait(id, of));
                process.send(outgoing.body(id, era)).await?;
                Ok(Exchange { connection, spoken: spoken.clone(), answer: None, waiting })
            }
        }
    }

    /// Asks something of our own and waits for the answer, no longer than `limit`.
    pub(super) async fn ask(
        self: &Arc<Self>,
        outgoing: &Outgoing<'_>,
        limit: Duration,
    ) -> Result<Result<Object, RpcError>, Failure> {
        let id = self.id();
        let asking = async { self.open(id, outgoing, None, &[]).await?.answer().await };
        match tokio::time::timeout(limit, asking).await {
            Ok(answer) => answer,
            Err(_) => {
                self.forget(id, "it took too long").await;
                Err(Failure::Slow(limit.as_secs()))
            }
        }
    }

    /// Answers a request of the server's.
    pub(super) async fn respond(&self, id: &Value, reply: &Result<Value, RpcError>) {
        self.tell(response(id, reply), TELL_MAX).await;
    }

    /// Says something to which there is no answer.
    pub(super) async fn notify(&self, method: &str, params: &Value) -> Result<(), Failure> {
        let body = notification(method, params);
        match &self.transport {
            Transport::Http(http) => http.tell(body, &self.agreed().spoken).await,
            Transport::Stdio(process) => process.send(body).await,
        }
    }

    /// Tells the server that nobody waits for the answer to `id` any more. A stateless server over HTTP is told by the
    /// end of the stream.
    pub(super) async fn forget(&self, id: u64, reason: &str) {
        if self.is_process() || self.era() == Era::Legacy {
            let params = json!({"requestId": id, "reason": reason});
            self.tell(notification("notifications/cancelled", &params), CANCEL_MAX).await;
        }
    }

    async fn tell(&self, body: bytes::Bytes, limit: Duration) {
        let telling = async {
            match &self.transport {
                Transport::Http(http) => http.tell(body, &self.agreed().spoken).await,
                Transport::Stdio(process) => process.send(body).await,
            }
        };
        let failure = match tokio::time::timeout(limit, telling).await {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure.to_string(),
            Err(_) => "it does not read".to_owned(),
        };
        tracing::debug!(hand.name = self.hand(), failure, "an MCP server could not be told something");
    }

    /// Sees to it that a legacy server sends messages of this severity, without making it quieter for others.
    pub(super) async fn want_level(self: &Arc<Self>, level: &str) {
        if self.era() != Era::Legacy || !self.agreed().capabilities.contains_key("logging") {
            return;
        }
        let Some(wanted) = severity(level) else { return };
        {
            let mut told = self.level.lock().unwrap_or_else(PoisonError::into_inner);
            if told.is_some_and(|told| told <= wanted) {
                return;
            }
            *told = Some(wanted);
        }
        let params = Object::from_iter([("level".to_owned(), json!(level))]);
        let _ = self.ask(&Outgoing::plain("logging/setLevel", &params), TELL_MAX).await;
    }

    /// Takes a message that belongs to no exchange of its own. Never blocks.
    pub(super) fn take(self: &Arc<Self>, message: Incoming) {
        match message {
            Incoming::Response { id, reply } => {
                if !self.pending.end(&id, Ok(reply)) {
                    if id.as_u64().is_some_and(|id| id < self.shared.ids.load(Ordering::Relaxed)) {
                        tracing::debug!(hand.name = self.hand(), %id, "an answer that nobody waits for any more");
                    } else {
                        self.strayed(&id);
                    }
                }
            }
            Incoming::Notification { method, params } => self.notified(method, params),
            // It must not (2026-07-28, basic), and there is no way to answer.
            Incoming::Request { .. } if self.agreed.get().is_some_and(|agreed| agreed.era == Era::Modern) => {
            }
            Incoming::Request { id, method, params } => {
                let question = Event::Question { id, method, params };
                let returned = match &question {
                    Event::Question { method, .. } if is_question(method) => self.pending.unnamed(question),
                    _ => Err(question),
                };
                if let Err(Event::Question { id, method, .. }) = returned {
                    self.answer_alone(id, &method);
                }
            }
        }
    }

    /// An answer to what was never asked: a flood of them is no flood of lines.
    fn strayed(&self, id: &Value) {
        let count = self.stray.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(hand.name = self.hand(), %id, count, "an answer to what was never asked: dropped");
        }
    }

    fn notified(self: &Arc<Self>, method: String, params: Object) {
        match method.as_str() {
            "notifications/progress" => {
                let token = params.get("progressToken").cloned().unwrap_or_default();
                self.pending.progress(&token, Event::Notification { method, params });
            }
            "notifications/message" => {
                // Whose it is, nobody can tell when calls of several instances run.
                let _ = self.pending.unnamed(Event::Notification { method, params });
            }
            "notifications/resources/updated" => {
                if let Some(uri) = params.get("uri").and_then(Value::as_str) {
                    self.follows.updated(uri);
                }
            }
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed" => self.lists_changed.notify_one(),
            "notifications/cancelled" if self.is_process() && self.era() == Era::Modern => {
                let id = params.get("requestId").cloned().unwrap_or_default();
                self.pending.end(&id, Err(Failure::Cut("the server ended it".to_owned())));
            }
            _ => {}
        }
    }

    /// Answers a request that belongs to no call.
    pub(super) fn answer_alone(self: &Arc<Self>, id: Value, method: &str) {
        let Ok(place) = Arc::clone(&self.answering).try_acquire_owned() else {
            tracing::debug!(
                hand.name = self.hand(),
                method,
                "an MCP server asks and does not read: not answered"
            );
            return;
        };
        let reply = match method {
            "ping" => Ok(json!({})),
            "roots/list" => Ok(json!({"roots": []})),
            _ => Err(RpcError {
                code: METHOD_NOT_FOUND,
                message: format!("{method} belongs to no call, so there is nobody to ask"),
                data: None,
            }),
        };
        let connection = Arc::clone(self);
        self.shared.tasks.spawn(async move {
            connection.respond(&id, &reply).await;
            drop(place);
        });
    }

    /// A line of stdout was too long.
    pub(super) fn too_large(&self, id: Option<u64>) {
        let hit = id.or_else(|| self.pending.only());
        let known = hit.is_some_and(|id| self.pending.end(&Value::from(id), Err(Failure::TooLarge)));
        tracing::warn!(hand.name = self.hand(), known, "a line of stdout was longer than the limit: dropped");
    }

    /// Says that it can't be used any more, and why.
    pub(super) fn end(&self, why: &str) {
        let _ = self.why.set(why.to_owned());
        self.gone.cancel();
        self.pending.fail(&Failure::Cut(why.to_owned()));
        self.follows.clear();
    }

    /// Ends it: the session, or the process and everything that it started.
    pub(super) async fn close(&self) {
        self.end("it was ended");
        match &self.transport {
            Transport::Stdio(process) => process.end().await,
            Transport::Http(http) => {
                let Some(agreed) = self.agreed.get() else { return };
                if agreed.spoken.session.is_some() {
                    let _ = tokio::time::timeout(END_MAX, http.end_session(&agreed.spoken)).await;
                }
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Transport::Stdio(process) = &self.transport {
            process.close();
        }
    }
}

/// The place of a log level in [`LEVELS`].
pub(super) fn severity(level: &str) -> Option<usize> {
    LEVELS.iter().position(|known| *known == level)
}

/// What a server may ask in the middle of a call.
pub(super) fn is_question(method: &str) -> bool {
    matches!(method, "elicitation/create" | "sampling/createMessage" | "roots/list")
}

/// A request that was sent, and what comes back.
pub(super) struct Exchange {
    connection: Arc<Connection>,
    spoken: Spoken,
    /// What comes on the answer's own stream.
    answer: Option<Answer>,
    /// What comes otherwise.
    waiting: Option<Waiting>,
}

impl Exchange {
    /// What comes next. Losing nothing when it is dropped and called again.
    pub(super) async fn next(&mut self) -> Result<Event, Failure> {
        match (&mut self.answer, &mut self.waiting, self.connection.http()) {
            (Some(answer), None, Some(http)) => answer.next(http, &self.spoken).await,
            (Some(answer), Some(waiting), Some(http)) => tokio::select! {
                biased;
                event = waiting.next() => event,
                event = answer.next(http, &self.spoken) => event,
            },
            (_, Some(waiting), _) => waiting.next().await,
            _ => Ok(Event::Answer(Err(internal("nothing was asked")))),
        }
    }

    /// Its end. News is dropped, and questions are answered as those that belong to no call.
    pub(super) async fn answer(&mut self) -> Result<Result<Object, RpcError>, Failure> {
        loop {
            match self.next().await? {
                Event::Answer(answer) => return Ok(answer),
                Event::Question { id, method, .. } => self.connection.answer_alone(id, &method),
                Event::Notification { method, params } => {
                    self.connection.take(Incoming::Notification { method, params });
                }
            }
        }
    }

    /// The session that came with the answer.
    pub(super) fn session(&self) -> Option<HeaderValue> {
        self.answer.as_ref()?.session.clone()
    }
}
