//! The guard between the socket and rmcp: everything that an MCP endpoint must refuse, bind or cap and rmcp does not.
//!
//! In order: Host and Origin, header sizes, who is calling (said by the layer in front, never here), the body up to
//! its limit, the JSON-RPC envelope, the headers that mirror it, the legacy session's owner, caps; then rmcp, whose
//! answer is opened early when it takes long. Knows nothing of tools, logs or tokens.

mod body;
mod caps;
mod direct;
mod early;
mod envelope;
mod headers;
pub mod host_origin;
mod mirrored;
mod modern;
mod raw;
mod refusal;
mod replay;
mod scan;
mod sessions;
mod shape;
pub mod stdio;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, CustomRequest, JsonRpcRequest, RequestId};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::caps::Caps;
pub use self::direct::{Asker, RawHandler};
use self::early::Answer;
use self::envelope::{Envelope, Id, Kind};
pub(super) use self::headers::Era;
pub use self::host_origin::HostOrigin;
pub use self::raw::RawMethods;
pub use self::refusal::{Refusal, TOO_MANY};
pub use self::sessions::{About, Scope};
use self::sessions::{InUse, Opening, Sessions};
use crate::access::Principal;

/// The input schema of a tool as this caller sees it, for the headers that repeat arguments. `None`: no such tool, or
/// one whose headers need no check.
pub type InputSchemas = Arc<dyn Fn(&Parts, &str) -> Option<Arc<Map<String, Value>>> + Send + Sync>;

/// What can be set about an endpoint.
#[derive(Clone)]
pub struct WireSettings {
    /// The hosts and origins that are ours. Default: loopback.
    pub ours: HostOrigin,
    /// The largest body of a request, in bytes. Default: 4 MiB.
    pub max_body_bytes: usize,
    /// How many legacy sessions a principal may have at a time. Default: 64.
    pub max_sessions: usize,
    /// How long a legacy session without a running call or an open stream is kept. Default: 30 minutes.
    pub session_idle: Duration,
    /// How many listening streams (`subscriptions/listen`, GET) a principal may have at a time. Default: 32.
    pub max_streams: usize,
    /// After how long a request without an answer gets its response headers anyway. Default: 500 ms.
    pub patience: Duration,
    /// The longest silence on an event stream before a comment keeps it alive. Default: 15 s.
    pub keep_alive: Duration,
    /// Where `Mcp-Param-*` headers are looked up. Default: no tool has any.
    pub input_schemas: InputSchemas,
    /// The methods that the handler answers as JSON: in the stateless era by [`RawHandler`], in a session in
    /// `on_custom_request`. Default: none.
    pub raw_methods: RawMethods,
}

impl Default for WireSettings {
    fn default() -> Self {
        Self {
            ours: HostOrigin::default(),
            max_body_bytes: 4 * 1024 * 1024,
            max_sessions: 64,
            session_idle: Duration::from_mins(30),
            max_streams: 32,
            patience: Duration::from_millis(500),
            keep_alive: Duration::from_secs(15),
            input_schemas: Arc::new(|_, _| None),
            raw_methods: &[],
        }
    }
}

/// An MCP endpoint over HTTP, in both eras, for axum's `Router::route_service` or `fallback_service`.
///
/// Whoever is in front puts a [`Principal`] into each request's extensions: without one every request is a 500. A
/// [`Scope`] there names the endpoint that a legacy session is bound to; else it is the path (which `Router::nest`
/// shortens: behind it a `Scope` is needed to tell endpoints apart). Both, and whatever else
/// is in the extensions, reach the handler in `RequestContext::extensions` as `http::request::Parts`.
///
/// `cancel` breaks off what is still open; `requests` holds a place for each request that has no complete answer yet,
/// listening streams apart, so that whoever shuts down can let them end first.
///
/// The handler must not implement `get_tool`: rmcp would compare integers in `Mcp-Param-*` headers as text.
pub fn service<H: RawHandler>(
    factory: impl Fn() -> H + Send + Sync + 'static,
    settings: WireSettings,
    cancel: &CancellationToken,
    tasks: &TaskTracker,
    requests: &TaskTracker,
) -> Guarded<H> {
    service_for(move |_| factory(), settings, cancel, tasks, requests)
}

/// The same with a handler that is made for a request of the stateless era, or for a session: then there is none yet.
pub fn service_for<H: RawHandler>(
    factory: impl Fn(Option<&Parts>) -> H + Send + Sync + 'static,
    settings: WireSettings,
    cancel: &CancellationToken,
    tasks: &TaskTracker,
    requests: &TaskTracker,
) -> Guarded<H> {
    let sessions = Arc::new(Sessions::new(&settings, tasks.clone()));
    tasks.spawn(sessions.clone().expire(cancel.clone()));
    let config = StreamableHttpServerConfig::default()
        // Host, Origin and the body's size were checked when a request comes here.
        .disable_allowed_hosts()
        .with_max_request_body_bytes(settings.max_body_bytes)
        .with_sse_keep_alive(Some(settings.keep_alive))
        // A result without a notification before it needs no event stream.
        .with_json_response(true)
        .with_cancellation_token(cancel.child_token());
    let factory: Factory<H> = Arc::new(factory);
    let make = factory.clone();
    let rmcp = StreamableHttpService::new(move || Ok(make(None)), sessions.clone(), config);
    let streams = Caps::new(settings.max_streams);
    let (requests, tasks, cancel) = (requests.clone(), tasks.clone(), cancel.clone());
    Guarded { guard: Arc::new(Guard { settings, sessions, streams, requests, tasks, cancel }), rmcp, factory }
}

/// Makes a handler: one for each request of the stateless era, one for each session before it.
type Factory<H> = Arc<dyn Fn(Option<&Parts>) -> H + Send + Sync>;

/// The service that [`service`] makes.
pub struct Guarded<H> {
    guard: Arc<Guard>,
    rmcp: StreamableHttpService<H, Sessions>,
    factory: Factory<H>,
}

impl<H> Clone for Guarded<H> {
    fn clone(&self) -> Self {
        Self { guard: self.guard.clone(), rmcp: self.rmcp.clone(), factory: self.factory.clone() }
    }
}

impl<H: RawHandler> tower::Service<Request<Body>> for Guarded<H> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { guard, rmcp, factory } = self.clone();
        Box::pin(async move {
            let WireSettings { patience, keep_alive, .. } = guard.settings;
            let passed = match guard.check(request).await {
                Ok(passed) => passed,
                Err((refusal, id)) => {
                    tracing::debug!(%refusal, "refused");
                    return Ok(refusal.response(id.as_ref()));
                }
            };
            let Passed { to, opening, answers, held } = passed;
            let answer: Answer = match to {
                To::Rmcp(request) => {
                    let answer = async move { rmcp.handle(*request).await.map(Body::new) };
                    Box::pin(Sessions::opening(opening, answer))
                }
                To::Handler(message, parts) => {
                    let handler = factory(Some(&parts));
                    Box::pin(modern::answer(handler, *message, *parts, guard.serving()))
                }
                To::Direct(request, id, parts) => {
                    let handler = factory(Some(&parts));
                    Box::pin(direct::answer(handler, *request, id, *parts, guard.serving()))
                }
                To::Session(id, message) => {
                    Box::pin(async move { guard.sessions.answered(&id, *message).await })
                }
                To::Nobody(response) => return Ok(*response),
            };
            let response = match answers {
                Some(id) => early::answer(answer, id, patience, keep_alive).await,
                None => answer.await,
            };
            Ok(held.until_sent(response))
        })
    }
}

struct Guard {
    settings: WireSettings,
    sessions: Arc<Sessions>,
    streams: Caps,
    requests: TaskTracker,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

/// Where a request goes that may go on.
enum To {
    /// To rmcp's HTTP half: sessions, and what is no POST.
    Rmcp(Box<Request<Body>>),
    /// To a handler of its own, which answers it as JSON.
    Direct(Box<CustomRequest>, RequestId, Box<Parts>),
    /// To a handler of its own, through rmcp's loop.
    Handler(Box<ClientJsonRpcMessage>, Box<Parts>),
    /// It answers a request of ours in this session.
    Session(String, Box<ClientJsonRpcMessage>),
    /// Nowhere: this is its answer.
    Nobody(Box<Response<Body>>),
}

/// A request that was let through.
struct Passed {
    to: To,
    /// The right to open a session, for `initialize`.
    opening: Option<Opening>,
    /// The id of the request that is answered, if it is one.
    answers: Option<Id>,
    held: Held,
}

/// What is taken for as long as the response is on its way.
#[derive(Default)]
struct Held {
    session: Option<InUse>,
    stream: Option<caps::Place>,
    request: Option<TaskTrackerToken>,
}

/// A refusal, with the id of the request when that is known.
type Refused = (Refusal, Option<Id>);

impl Guard {
    async fn check(&self, request: Request<Body>) -> Result<Passed, Refused> {
        let alone = |refusal| (refusal, None);
        let (mut parts, body) = request.into_parts();
        self.settings.ours.check(&parts.uri, &parts.headers).map_err(alone)?;
        headers::check_size(&parts.headers).map_err(alone)?;
        headers::check_single(&parts.headers).map_err(alone)?;
        let principal = parts.extensions.get::<Principal>().cloned().ok_or((Refusal::NobodyCalls, None))?;
        let scope = scope(&parts);
        if parts.method == Method::POST {
            let body = body::read(&parts.headers, body, self.settings.max_body_bytes).await.map_err(alone)?;
            let envelope = Envelope::read(&body)?;
            let id = envelope.id().cloned();
            return self
                .post(parts, body, &envelope, principal, scope)
                .await
                .map_err(|refusal| (refusal, id));
        }
        let mut held = Held::default();
        if headers::era_of_header(&parts.headers) == Era::Modern {
            parts.headers.remove(headers::SESSION_ID);
        } else if matches!(parts.method, Method::GET | Method::DELETE) {
            held.session = self.session(&parts, &principal, &scope).map_err(alone)?;
            if parts.method == Method::GET && held.session.is_some() {
                held.stream = Some(self.stream(&principal).map_err(alone)?);
            }
        }
        let to = To::Rmcp(Box::new(Request::from_parts(parts, Body::empty())));
        Ok(Passed { to, opening: None, answers: None, held })
    }

    fn serving(&self) -> modern::Serving {
        modern::Serving {
            keep_alive: self.settings.keep_alive,
            cancel: self.cancel.clone(),
            tasks: self.tasks.clone(),
        }
    }

    /// Where a message goes whose headers and params are right.
    fn route(&self, parts: Parts, body: &Bytes, envelope: &Envelope, era: Era) -> Result<To, Refusal> {
        let read = || {
            let read = raw::read(self.settings.raw_methods, envelope, body);
            read.map(Box::new).map_err(|error| Refusal::InvalidRequest(error.to_string()))
        };
        let session = parts.headers.get(headers::SESSION_ID).and_then(|id| id.to_str().ok());
        Ok(match (era, &envelope.kind, session) {
            (Era::Modern, _, _) | (Era::Legacy, Kind::Response, Some(_))
                if let Err(refused) = modern::check_forms(&parts.headers) =>
            {
                To::Nobody(refused)
            }
            (Era::Modern, Kind::Request(_), _) => match *read()? {
                ClientJsonRpcMessage::Request(JsonRpcRequest {
                    request: ClientRequest::CustomRequest(request),
                    id,
                    ..
                }) if self.settings.raw_methods.contains(&&*request.method) => {
                    To::Direct(Box::new(request), id, Box::new(parts))
                }
                message => To::Handler(Box::new(message), Box::new(parts)),
            },
            (Era::Modern, Kind::Notification, _) => To::Nobody(Box::new(modern::accepted())),
            (Era::Modern, Kind::Response, _) => {
                let why = "stateless server does not accept JSON-RPC responses";
                return Err(Refusal::InvalidRequest(why.to_owned()));
            }
            (Era::Legacy, Kind::Response, Some(id)) => To::Session(id.to_owned(), read()?),
            (Era::Legacy, _, _) => To::Rmcp(Box::new(Request::from_parts(parts, Body::from(body.clone())))),
        })
    }

    async fn post(
        &self,
        mut parts: Parts,
        body: Bytes,
        envelope: &Envelope,
        principal: Principal,
        scope: Scope,
    ) -> Result<Passed, Refusal> {
        let era = headers::era(&parts.headers, envelope)?;
        headers::check_mirrors(&parts.headers, envelope, era)?;
        let mut held = Held::default();
        match era {
            // Sessions are no part of this era; rmcp is not even shown the id.
            Era::Modern => drop(parts.headers.remove(headers::SESSION_ID)),
            Era::Legacy => held.session = self.session(&parts, &principal, &scope)?,
        }
        headers::check_method(envelope, era)?;
        shape::check(envelope)?;
        if envelope.requests("tools/call")
            && let Some(schema) =
                envelope.text("name").and_then(|name| (self.settings.input_schemas)(&parts, name))
        {
            mirrored::check(&parts.headers, &schema, &body, era)?;
        }
        if envelope.requests("subscriptions/listen") {
            held.stream = Some(self.stream(&principal)?);
        } else {
            held.request = Some(self.requests.token());
        }
        let opening = match (envelope.requests("initialize"), &held.session) {
            (true, Some(_)) => {
                return Err(Refusal::InvalidRequest("this session is initialized already".into()));
            }
            (true, None) => {
                Some(self.sessions.open(principal, scope).await.map_err(Refusal::TooManySessions)?)
            }
            (false, _) => None,
        };
        let answers = match &envelope.kind {
            Kind::Request(id) => Some(id.clone()),
            Kind::Notification | Kind::Response => None,
        };
        let to = self.route(parts, &body, envelope, era)?;
        Ok(Passed { to, opening, answers, held })
    }

    /// The session that the request names, if it names one; unknown unless it is the caller's, at this endpoint.
    fn session(&self, parts: &Parts, principal: &Principal, scope: &Scope) -> Result<Option<InUse>, Refusal> {
        let Some(id) = parts.headers.get(headers::SESSION_ID) else { return Ok(None) };
        let session = id.to_str().ok().and_then(|id| self.sessions.enter(id, principal, scope));
        session.map(Some).ok_or(Refusal::SessionUnknown)
    }

    fn stream(&self, principal: &Principal) -> Result<caps::Place, Refusal> {
        self.streams.take(principal).ok_or(Refusal::TooManyStreams(self.streams.limit()))
    }
}

/// The endpoint: what the layer in front says, else the path.
fn scope(parts: &Parts) -> Scope {
    parts.extensions.get::<Scope>().cloned().unwrap_or_else(|| Scope(parts.uri.path().to_owned()))
}

impl Held {
    /// Holds on until the response's body is sent, or given up.
    fn until_sent(self, response: Response<Body>) -> Response<Body> {
        if self.session.is_none() && self.stream.is_none() && self.request.is_none() {
            return response;
        }
        response.map(|body| Body::new(HeldBody { body, _held: self }))
    }
}

/// A body that something is held for.
struct HeldBody {
    body: Body,
    _held: Held,
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
