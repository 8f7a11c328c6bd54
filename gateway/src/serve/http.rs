//! The HTTP face: who is calling, which endpoint, then MCP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tower::ServiceExt as _;

use super::{Auth, Gateway};
use crate::access::Principal;
use crate::config::Config;
use crate::error::{self, Faced};
use crate::mcp::wire::host_origin::{self, NotAPlace};
use crate::mcp::wire::{self, Guarded, HostOrigin, Scope, WireSettings};
use crate::mcp::{self, Face, HandsInView, View};
use crate::session::{BadName, SessionError, SessionRef};

/// Names the session of a request to `/mcp`, which has none in its path.
const SESSION_HEADER: HeaderName = HeaderName::from_static("manyhands-session");
/// The session of a caller that names none.
const DEFAULT_SESSION: &str = "default";

#[derive(Clone)]
struct Faces {
    gateway: Arc<Gateway>,
    auth: Auth,
    mcp: Guarded<Face>,
}

pub(super) fn router(gateway: Arc<Gateway>, auth: Auth, settings: WireSettings) -> Router {
    let ours = Arc::new(settings.ours.clone());
    let input_schemas = input_schemas(&gateway);
    let settings = WireSettings { input_schemas, raw_methods: mcp::RAW_METHODS, ..settings };
    let mcp = wire::service_for(
        {
            let gateway = gateway.clone();
            move |parts| match parts.and_then(|parts| parts.extensions.get::<View>()) {
                Some(view) => Face::of(gateway.clone(), view.clone()),
                None => Face::new(gateway.clone()),
            }
        },
        settings,
        &gateway.hung_up,
        &gateway.tasks,
        &gateway.requests,
    );
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/mcp", any(whole))
        .route("/mcp/sessions/{session}", any(one_session))
        .route("/mcp/hands/{hand}", any(one_hand))
        .with_state(Faces { gateway, auth, mcp })
        // In front of everything: a foreign page learns nothing, not even whether there is such a path.
        .layer(middleware::from_fn_with_state(ours, host_origin::layer))
}

/// What stands in the `Host` of a client that dialled the address itself.
fn host_of(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// What the wire is told. Fails before anything is opened.
pub(super) fn settings(config: &Config, address: SocketAddr) -> Result<WireSettings, NotAPlace> {
    let mut ours = HostOrigin::default();
    let listened = host_of(address);
    for host in config.allowed_hosts.iter().chain(std::iter::once(&listened)) {
        ours = ours.with_host(host)?;
    }
    for origin in &config.allowed_origins {
        ours = ours.with_origin(origin)?;
    }
    Ok(WireSettings {
        ours,
        max_body_bytes: config.limits.body_bytes,
        max_sessions: config.limits.mcp_sessions,
        max_streams: config.limits.streams,
        ..WireSettings::default()
    })
}

/// Where the wire looks up the schema of a tool that the caller sees.
fn input_schemas(gateway: &Arc<Gateway>) -> wire::InputSchemas {
    let gateway = gateway.clone();
    Arc::new(move |parts, tool| {
        let view = parts.extensions.get::<View>()?;
        mcp::input_schema(&gateway, view, tool)
    })
}

async fn ready(State(faces): State<Faces>) -> Response {
    match faces.gateway.sessions.ready().await {
        Ok(()) => (StatusCode::OK, "ready\n").into_response(),
        Err(error) => failed(&error),
    }
}

/// `/mcp`: everything; the session is the header's, else `default`.
async fn whole(State(faces): State<Faces>, request: Request) -> Response {
    flat(faces.whole(request).await)
}

/// `/mcp/sessions/{name-or-id}`: everything, bound to one session.
async fn one_session(State(faces): State<Faces>, Path(session): Path<String>, request: Request) -> Response {
    flat(faces.one_session(&session, request).await)
}

/// `/mcp/hands/{hand}`: one hand, its tools under their own names.
async fn one_hand(State(faces): State<Faces>, Path(hand): Path<String>, request: Request) -> Response {
    flat(faces.one_hand(&hand, request).await)
}

/// An answer, or what is answered instead.
type Answered = Result<Response, Refused>;

/// What is answered instead of what was asked for.
struct Refused(Box<Response>);

impl From<Response> for Refused {
    fn from(response: Response) -> Self {
        Self(Box::new(response))
    }
}

fn flat(answered: Answered) -> Response {
    answered.unwrap_or_else(|Refused(response)| *response)
}

/// Who may ask comes before what there is, in each of these.
impl Faces {
    async fn whole(self, request: Request) -> Answered {
        let principal = self.principal(request.headers()).await?;
        let session = session_header(request.headers())?.map_or_else(|| parsed(DEFAULT_SESSION), Ok)?;
        Ok(self.mcp(request, View { principal, session, hands: HandsInView::All }).await)
    }

    async fn one_session(self, session: &str, request: Request) -> Answered {
        let principal = self.principal(request.headers()).await?;
        let session = parsed(session)?;
        if let Some(named) = session_header(request.headers())?
            && named != session
            && !self.are_one(&principal, &named, &session).await?
        {
            return Err(bad_request("the header Manyhands-Session names another session than the URL").into());
        }
        Ok(self.mcp(request, View { principal, session, hands: HandsInView::All }).await)
    }

    async fn one_hand(self, hand: &str, request: Request) -> Answered {
        let principal = self.principal(request.headers()).await?;
        let session = session_header(request.headers())?.map_or_else(|| parsed(DEFAULT_SESSION), Ok)?;
        let hand = self.gateway.registry.get(hand).map_err(|error| failed(&error))?;
        let hands = HandsInView::One(hand.name.clone());
        Ok(self.mcp(request, View { principal, session, hands }).await)
    }

    /// Whether an id and a name are those of the same session.
    async fn are_one(
        &self,
        principal: &Principal,
        one: &SessionRef,
        other: &SessionRef,
    ) -> Result<bool, Refused> {
        let id = async |session| match self.gateway.sessions.find(principal, session).await {
            Ok(info) => Ok(Some(info.id)),
            Err(SessionError::NoSession) => Ok(None),
            Err(error) => Err(Refused::from(failed(&error))),
        };
        let (one, other) = (id(one).await?, id(other).await?);
        Ok(one.is_some() && one == other)
    }

    async fn mcp(self, mut request: Request, view: View) -> Response {
        let scope = Scope(request.uri().path().to_owned());
        let extensions = request.extensions_mut();
        extensions.insert(scope);
        extensions.insert(view.principal.clone());
        extensions.insert(view);
        match self.mcp.oneshot(request.map(Body::new)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    async fn principal(&self, headers: &HeaderMap) -> Result<Principal, Refused> {
        if self.auth == Auth::Off {
            return Ok(Principal::owner());
        }
        let sent = headers.get(header::AUTHORIZATION).and_then(bearer);
        let token = sent.ok_or_else(|| unauthorized(None))?;
        match self.gateway.tokens.verify(token).await {
            Ok(Some(principal)) => Ok(principal),
            Ok(None) => Err(unauthorized(Some("invalid_token")).into()),
            Err(error) => Err(failed(&error).into()),
        }
    }
}

/// What an `Authorization: Bearer` header holds for a token (RFC 6750, section 2.1), be it none or unreadable. The
/// scheme's case does not matter; another scheme sends no token.
fn bearer(header: &HeaderValue) -> Option<&str> {
    let bytes = header.as_bytes();
    let (scheme, rest) = bytes.split_at_checked(6)?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && rest.first().is_none_or(|byte| *byte == b' ');
    is_bearer.then(|| std::str::from_utf8(rest).unwrap_or_default().trim())
}

/// 401 as RFC 6750, section 3, has it: no `error` when nothing was sent.
fn unauthorized(error: Option<&str>) -> Response {
    let challenge = match error {
        None => "Bearer realm=\"manyhands\"".to_owned(),
        Some(error) => format!("Bearer realm=\"manyhands\", error=\"{error}\""),
    };
    let hint = "a bearer token is needed: `manyhands connect` prints a client's configuration with one\n";
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)], hint).into_response()
}

/// The session that the header names. Two of them name none.
fn session_header(headers: &HeaderMap) -> Result<Option<SessionRef>, Refused> {
    let mut named = headers.get_all(SESSION_HEADER).iter();
    match (named.next(), named.next()) {
        (None, _) => Ok(None),
        (Some(name), None) => parsed(name.to_str().unwrap_or_default()).map(Some),
        (Some(_), Some(_)) => Err(bad_request("the header Manyhands-Session stands there twice").into()),
    }
}

fn parsed(session: &str) -> Result<SessionRef, Refused> {
    Ok(session.parse().map_err(|error: BadName| bad_request(&error.to_string()))?)
}

fn failed<E: Faced>(error: &E) -> Response {
    (error::status(error), format!("{}\n", error::say(error))).into_response()
}

fn bad_request(sentence: &str) -> Response {
    (StatusCode::BAD_REQUEST, format!("{sentence}\n")).into_response()
}
