//! The HTTP face: who is calling, which endpoint, then MCP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use axum::serve::ListenerExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{Auth, Gateway};
use crate::access::Principal;
use crate::error;
use crate::mcp::wire::host_origin::NotAPlace;
use crate::mcp::wire::{self, Guarded, HostOrigin, Scope, WireSettings};
use crate::mcp::{Face, HandsInView, View};
use crate::session::SessionRef;

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

/// Serves until the gateway closes and the last answer is out.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    closing: CancellationToken,
) -> std::io::Result<()> {
    // Nagle and delayed acknowledgements cost up to 44 ms a call.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router).with_graceful_shutdown(closing.cancelled_owned()).await
}

pub(super) fn router(gateway: Arc<Gateway>, auth: Auth, address: SocketAddr) -> Result<Router, NotAPlace> {
    let settings = settings(&gateway, address)?;
    // Until calls have drained: a stream that ends takes its call with it.
    let (ending, tasks) = (gateway.ending.clone(), gateway.tasks.clone());
    let mcp = wire::service(
        {
            let gateway = gateway.clone();
            move || Face::new(gateway.clone())
        },
        settings,
        &ending,
        &tasks,
    );
    Ok(Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/mcp", any(whole))
        .route("/mcp/sessions/{session}", any(one_session))
        .route("/mcp/hands/{hand}", any(one_hand))
        .with_state(Faces { gateway, auth, mcp }))
}

/// What stands in the `Host` of a client that dialled the address itself.
fn host_of(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

fn settings(gateway: &Gateway, address: SocketAddr) -> Result<WireSettings, NotAPlace> {
    let config = &gateway.config;
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

async fn ready(State(faces): State<Faces>) -> Response {
    match faces.gateway.sessions.ready().await {
        Ok(()) => (StatusCode::OK, "ready\n").into_response(),
        Err(error) => (error::status(&error), format!("{}\n", error::say(&error))).into_response(),
    }
}

/// `/mcp`: everything; the session is the header's, else `default`.
async fn whole(State(faces): State<Faces>, request: Request) -> Response {
    let session = match session_header(request.headers()) {
        Ok(named) => named.unwrap_or_else(|| DEFAULT_SESSION.to_owned()),
        Err(refusal) => return *refusal,
    };
    faces.mcp(request, &session, HandsInView::All).await
}

/// `/mcp/sessions/{name-or-id}`: everything, bound to one session.
async fn one_session(State(faces): State<Faces>, Path(session): Path<String>, request: Request) -> Response {
    match session_header(request.headers()) {
        Ok(Some(named)) if named != session => {
            bad_request("the header Manyhands-Session names another session than the URL")
        }
        Ok(_) => faces.mcp(request, &session, HandsInView::All).await,
        Err(refusal) => *refusal,
    }
}

/// `/mcp/hands/{hand}`: one hand, its tools under their own names.
async fn one_hand(State(faces): State<Faces>, Path(hand): Path<String>, request: Request) -> Response {
    let session = match session_header(request.headers()) {
        Ok(named) => named.unwrap_or_else(|| DEFAULT_SESSION.to_owned()),
        Err(refusal) => return *refusal,
    };
    // Who may ask comes before what there is.
    if let Err(refusal) = faces.principal(request.headers()).await {
        return *refusal;
    }
    match faces.gateway.registry.get(&hand) {
        Ok(hand) => faces.mcp(request, &session, HandsInView::One(hand.name.clone())).await,
        Err(error) => (error::status(&error), format!("{}\n", error::say(&error))).into_response(),
    }
}

impl Faces {
    async fn mcp(self, mut request: Request, session: &str, hands: HandsInView) -> Response {
        let principal = match self.principal(request.headers()).await {
            Ok(principal) => principal,
            Err(refusal) => return *refusal,
        };
        let session: SessionRef = match session.parse() {
            Ok(session) => session,
            Err(error) => return bad_request(&error.to_string()),
        };
        let scope = Scope(request.uri().path().to_owned());
        let extensions = request.extensions_mut();
        extensions.insert(scope);
        extensions.insert(principal.clone());
        extensions.insert(View { principal, session, hands });
        match self.mcp.oneshot(request.map(Body::new)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    async fn principal(&self, headers: &HeaderMap) -> Result<Principal, Box<Response>> {
        if self.auth == Auth::Off {
            return Ok(Principal::owner());
        }
        let Some(sent) = headers.get(header::AUTHORIZATION) else { return Err(Box::new(unauthorized(None))) };
        let token = bearer(sent).ok_or_else(|| Box::new(unauthorized(Some("invalid_token"))))?;
        match self.gateway.tokens.verify(token).await {
            Ok(Some(principal)) => Ok(principal),
            Ok(None) => Err(Box::new(unauthorized(Some("invalid_token")))),
            Err(error) => {
                Err(Box::new((error::status(&error), format!("{}\n", error::say(&error))).into_response()))
            }
        }
    }
}

/// The token of an `Authorization: Bearer` header (RFC 6750, section 2.1). The scheme's case does not matter.
fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
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

/// The session that the header names. Two of them, or one that is no text, name none.
fn session_header(headers: &HeaderMap) -> Result<Option<String>, Box<Response>> {
    let mut named = headers.get_all(SESSION_HEADER).iter();
    match (named.next(), named.next()) {
        (None, _) => Ok(None),
        (Some(name), None) => match name.to_str() {
            Ok(name) => Ok(Some(name.to_owned())),
            Err(_) => Err(Box::new(bad_request("the header Manyhands-Session is no session name"))),
        },
        (Some(_), Some(_)) => Err(Box::new(bad_request("the header Manyhands-Session stands there twice"))),
    }
}

fn bad_request(sentence: &str) -> Response {
    (StatusCode::BAD_REQUEST, format!("{sentence}\n")).into_response()
}
