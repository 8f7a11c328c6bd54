//! Legacy sessions, each bound to who opened it and where; nobody else can tell one from an id that never was.
//!
//! rmcp's own manager keeps the sessions; it knows neither principals nor caps, and it ends a session after a time
//! without a message even when a call is running in it or a client is listening. So its clock is off and this one is on:
//! a session is idle when no response stream of it is open and no call runs in it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use futures_util::Stream;
use http::{Response, StatusCode};
use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, GetExtensions as _, JsonRpcNotification, RequestId,
    ServerJsonRpcMessage, ServerNotification,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, SessionConfig,
};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::caps::{Caps, Place, lock};
use super::raw::{self, RawMethods};
use super::replay::Replays;
use super::{WireSettings, modern};
use crate::access::Principal;

/// How long a session has been idle at least before a new one of its owner may take its place, when the owner's are
/// all taken. Clients that go away without a DELETE are the rule (`claude -p` sends none).
const RECLAIM_AFTER: Duration = Duration::from_mins(1);

tokio::task_local! {
    /// For whom rmcp opens a session: its manager is not told.
    static OPENING: Mutex<Option<Opening>>;
}

/// In the extensions of a notification: it is news of this request.
#[derive(Clone, Debug)]
pub struct About(pub RequestId);

/// The endpoint that a session belongs to: the path of its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope(pub String);

/// All sessions of one service.
pub(super) struct Sessions {
    inner: LocalSessionManager,
    caps: Caps,
    idle: Duration,
    raw_methods: RawMethods,
    tasks: TaskTracker,
    bound: Arc<Mutex<HashMap<SessionId, Bound>>>,
}

/// The right to open one session.
pub(super) struct Opening {
    owner: Principal,
    scope: Scope,
    place: Place,
}

/// Whose a session is, and what goes on in it.
struct Bound {
    owner: Principal,
    scope: Scope,
    /// Requests without an answer yet.
    running: HashSet<RequestId>,
    /// Response streams that a client holds open.
    open: usize,
    /// When it was last used.
    used: Instant,
    /// Its response streams.
    replays: Arc<Replays>,
    /// Gives the owner's place back when the session is forgotten.
    _place: Place,
}

/// Keeps a session from being idle while a response of it is on its way.
pub(super) struct InUse {
    id: SessionId,
    bound: Arc<Mutex<HashMap<SessionId, Bound>>>,
}

impl Sessions {
    /// No session yet; as many and each as long as the settings say.
    pub(super) fn new(settings: &WireSettings, tasks: TaskTracker) -> Self {
        let mut inner = LocalSessionManager::default();
        let mut config = SessionConfig::default();
        config.keep_alive = None;
        inner.session_config = config;
        let WireSettings { max_sessions, session_idle, raw_methods, .. } = *settings;
        let caps = Caps::new(max_sessions);
        Self { inner, caps, idle: session_idle, raw_methods, tasks, bound: Arc::default() }
    }

    /// Takes a client's answer to a request of ours.
    pub(super) async fn answered(&self, id: &str, message: ClientJsonRpcMessage) -> Response<Body> {
        match self.accept_message(&SessionId::from(id), message).await {
            Ok(()) => modern::accepted(),
            Err(error) => {
                tracing::debug!(mcp.session = %id, %error, "an answer came too late");
                let mut response = Response::new(Body::from("Not Found: Session not found"));
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            }
        }
    }

    /// Marks the session as used, if it is this principal's at this endpoint.
    pub(super) fn enter(&self, id: &str, principal: &Principal, scope: &Scope) -> Option<InUse> {
        let mut bound = lock(&self.bound);
        let (id, session) = bound.get_key_value(id).map(|(id, _)| id.clone()).zip(bound.get_mut(id))?;
        if session.owner != *principal || session.scope != *scope {
            return None;
        }
        session.open += 1;
        session.used = Instant::now();
        Some(InUse { id, bound: self.bound.clone() })
    }

    /// A place for one more session, if need be that of one which nobody seems to use any more.
    pub(super) async fn open(&self, owner: Principal, scope: Scope) -> Result<Opening, usize> {
        let mut place = self.caps.take(&owner);
        if place.is_none()
            && let Some(abandoned) = self.longest_idle(&owner)
        {
            self.end(&abandoned).await;
            place = self.caps.take(&owner);
        }
        let place = place.ok_or(self.caps.limit())?;
        Ok(Opening { owner, scope, place })
    }

    /// Runs `f`, in which rmcp may open the session that `opening` is for.
    pub(super) fn opening<F: Future>(opening: Option<Opening>, f: F) -> impl Future<Output = F::Output> {
        OPENING.scope(Mutex::new(opening), f)
    }

    /// Ends idle sessions until `cancel`.
    pub(super) async fn expire(self: Arc<Self>, cancel: CancellationToken) {
        let mut ticks = tokio::time::interval((self.idle / 4).max(Duration::from_millis(10)));
        while cancel.run_until_cancelled(ticks.tick()).await.is_some() {
            let expired: Vec<SessionId> = {
                let bound = lock(&self.bound);
                let idle = |session: &Bound| session.idle_for().is_some_and(|idle| idle >= self.idle);
                bound.iter().filter(|(_, session)| idle(session)).map(|(id, _)| id.clone()).collect()
            };
            for id in expired {
                tracing::debug!(mcp.session = %id, "idle session ended");
                self.end(&id).await;
            }
        }
    }

    fn replays(&self, id: &SessionId) -> Result<Arc<Replays>, SessionError> {
        let bound = lock(&self.bound);
        bound.get(id).map(|session| session.replays.clone()).ok_or(SessionError::Over)
    }

    fn longest_idle(&self, owner: &Principal) -> Option<SessionId> {
        let bound = lock(&self.bound);
        let idle = bound.iter().filter(|(_, session)| session.owner == *owner);
        let idle = idle.filter_map(|(id, session)| Some((session.idle_for()?, id)));
        idle.filter(|(idle, _)| *idle >= RECLAIM_AFTER).max().map(|(_, id)| id.clone())
    }

    async fn end(&self, id: &SessionId) {
        if let Err(error) = self.close_session(id).await {
            tracing::warn!(mcp.session = %id, %error, "a session did not end in order");
        }
    }
}

impl Bound {
    fn idle_for(&self) -> Option<Duration> {
        (self.open == 0 && self.running.is_empty()).then(|| self.used.elapsed())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Some(session) = lock(&self.bound).get_mut(&self.id) {
            session.open -= 1;
            session.used = Instant::now();
        }
    }
}

impl SessionManager for Sessions {
    type Error = SessionError;
    type Transport = Watched;

    async fn create_session(&self) -> Result<(SessionId, Watched), SessionError> {
        let opening = OPENING.try_with(|opening| lock(opening).take()).ok().flatten();
        let Opening { owner, scope, place } = opening.ok_or(SessionError::NobodyOpens)?;
        let (id, inner) = self.inner.create_session().await?;
        let replays = Arc::new(Replays::new(self.tasks.clone()));
        let (running, used) = (HashSet::new(), Instant::now());
        let session = Bound { owner, scope, running, open: 0, used, replays, _place: place };
        lock(&self.bound).insert(id.clone(), session);
        Ok((id.clone(), Watched { id, inner, raw_methods: self.raw_methods, bound: self.bound.clone() }))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, SessionError> {
        Ok(self.inner.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, SessionError> {
        Ok(lock(&self.bound).contains_key(id) && self.inner.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), SessionError> {
        lock(&self.bound).remove(id);
        Ok(self.inner.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionError> {
        let replays = self.replays(id)?;
        let request = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        Ok(replays.answer(request, self.inner.create_stream(id, message).await?))
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), SessionError> {
        Ok(self.inner.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionError> {
        let replays = self.replays(id)?;
        Ok(replays.news(self.inner.create_standalone_stream(id).await?))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionError> {
        let replays = self.replays(id)?;
        if let Some(events) = replays.resume(&last_event_id) {
            return Ok(events);
        }
        Ok(replays.news(self.inner.resume(id, last_event_id).await?))
    }
}

/// Why a session could not be used; rmcp turns all of it into a 500.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// rmcp opened a session that nobody was let in for.
    #[error("a session was opened for nobody")]
    NobodyOpens,
    /// The session ended while a request was on its way into it.
    #[error("the session is over")]
    Over,
    /// rmcp's manager failed.
    #[error(transparent)]
    Local(#[from] LocalSessionManagerError),
}

/// A session's transport, watched for which requests are running and for its end.
pub(super) struct Watched {
    id: SessionId,
    inner: <LocalSessionManager as SessionManager>::Transport,
    raw_methods: RawMethods,
    bound: Arc<Mutex<HashMap<SessionId, Bound>>>,
}

impl Transport<RoleServer> for Watched {
    type Error = <<LocalSessionManager as SessionManager>::Transport as Transport<RoleServer>>::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let answered = match &message {
            ServerJsonRpcMessage::Response(response) => Some(response.id.clone()),
            ServerJsonRpcMessage::Error(error) => error.id.clone(),
            ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => None,
        };
        let (id, bound) = (self.id.clone(), self.bound.clone());
        // rmcp would put it on the stream of the session, which not every client reads.
        let message = match message {
            ServerJsonRpcMessage::Notification(said) => self.say_on_its_stream(said),
            other => Some(other),
        };
        let sending = message.map(|message| self.inner.send(message));
        async move {
            let Some(sending) = sending else { return Ok(()) };
            let sent = sending.await;
            if let Some(request) = answered {
                over(&bound, &id, &request);
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let message = match self.inner.receive().await? {
            ClientJsonRpcMessage::Request(mut request) => {
                request.request = raw::unread(self.raw_methods, request.request);
                ClientJsonRpcMessage::Request(request)
            }
            other => other,
        };
        match &message {
            ClientJsonRpcMessage::Request(request) => {
                if let Some(session) = lock(&self.bound).get_mut(&self.id) {
                    session.running.insert(request.id.clone());
                }
            }
            // rmcp answers a cancelled request no more.
            ClientJsonRpcMessage::Notification(message) => {
                if let ClientNotification::CancelledNotification(cancelled) = &message.notification
                    && let Some(request) = &cancelled.params.request_id
                {
                    over(&self.bound, &self.id, request);
                }
            }
            ClientJsonRpcMessage::Response(_) | ClientJsonRpcMessage::Error(_) => {}
        }
        Some(message)
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}

impl Watched {
    /// Says what belongs to a request on the stream that answers it. What does not, or comes too late, is given back.
    fn say_on_its_stream(
        &self,
        said: JsonRpcNotification<ServerNotification>,
    ) -> Option<ServerJsonRpcMessage> {
        let about = said.notification.extensions().get::<About>().cloned();
        let message = ServerJsonRpcMessage::Notification(said);
        let Some(About(request)) = about else { return Some(message) };
        let replays = lock(&self.bound).get(&self.id).map(|session| session.replays.clone());
        match replays {
            Some(replays) => replays.say(&request, message),
            None => Some(message),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        lock(&self.bound).remove(&self.id);
    }
}

fn over(bound: &Mutex<HashMap<SessionId, Bound>>, id: &SessionId, request: &RequestId) {
    if let Some(session) = lock(bound).get_mut(id) {
        session.running.remove(request);
        session.used = Instant::now();
    }
}
