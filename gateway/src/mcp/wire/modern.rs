//! One request of the stateless era over HTTP: answered as JSON, or as an event stream when there is news before the
//! answer.
//!
//! rmcp's own HTTP half decodes into types that forget what they do not know, so that this one hands requests to
//! rmcp's loop itself. Those that a handler answers as JSON do without the loop (`direct`).

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use rmcp::model::{
    ClientJsonRpcMessage, ErrorCode, GetExtensions as _, GetMeta as _, ProtocolVersion, RequestId,
    RequestMetaObject, ServerJsonRpcMessage,
};
use rmcp::service::serve_directly_with_ct;
use rmcp::transport::OneshotTransport;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";

/// What a request needs to be served.
pub(super) struct Serving {
    pub(super) keep_alive: Duration,
    pub(super) cancel: CancellationToken,
    pub(super) tasks: TaskTracker,
}

/// Refuses what is sent or wanted in another form than the transport has.
pub(super) fn check_forms(headers: &HeaderMap) -> Result<(), Box<Response<Body>>> {
    let essence = |text: &str| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let accepted: Vec<String> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(essence)
        .collect();
    let accepts = |form: &str| accepted.iter().any(|accepted| accepted == form);
    if !accepts(JSON) || !accepts(EVENT_STREAM) {
        let hint = "Not Acceptable: Client must accept both application/json and text/event-stream";
        return Err(Box::new(plain(StatusCode::NOT_ACCEPTABLE, hint)));
    }
    let sent = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(essence);
    if sent.as_deref() != Some(JSON) {
        let hint = "Unsupported Media Type: Content-Type must be application/json";
        return Err(Box::new(plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, hint)));
    }
    Ok(())
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}

/// The answer to what wants none.
pub(super) fn accepted() -> Response<Body> {
    plain(StatusCode::ACCEPTED, "")
}

/// Serves one request. Dropping the answer, or the wait for it, cancels what runs for it.
pub(super) async fn answer<H: ServerHandler>(
    handler: H,
    mut message: ClientJsonRpcMessage,
    parts: Parts,
    serving: Serving,
) -> Response<Body> {
    let ClientJsonRpcMessage::Request(request) = &mut message else { return accepted() };
    if let Some(refused) = incomplete(request.request.get_meta(), &request.id) {
        return refused;
    }
    request.request.extensions_mut().insert(parts);
    let (transport, mut answers) = OneshotTransport::<RoleServer>::new(message);
    let ct = CancellationToken::new();
    let gone = ct.clone().drop_guard();
    let running = serve_directly_with_ct(handler, transport, None, ct);
    serving.tasks.spawn(running.waiting());
    let first = tokio::select! {
        first = answers.recv() => first,
        () = serving.cancel.cancelled() => None,
    };
    match first {
        None => unanswered(),
        Some(answer @ (ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_))) => json(&answer),
        Some(first) => {
            let Serving { keep_alive, cancel, .. } = serving;
            events(Events { first: Some(first), answers, keep_alive, cancel, _gone: gone })
        }
    }
}

/// Refuses a request that does not say what each must say in this era.
pub(super) fn incomplete(meta: &RequestMetaObject, id: &RequestId) -> Option<Response<Body>> {
    let missing = meta.missing_required_keys(&ProtocolVersion::V_2026_07_28);
    if missing.is_empty() {
        return None;
    }
    let missing = missing.join(", ");
    let hint = format!("request _meta is missing or has malformed required fields: {missing}");
    let error = ErrorData::invalid_params(hint, None);
    let mut refused = json(&ServerJsonRpcMessage::error(error, Some(id.clone())));
    *refused.status_mut() = StatusCode::BAD_REQUEST;
    Some(refused)
}

/// The answer to what is broken off.
pub(super) fn unanswered() -> Response<Body> {
    plain(StatusCode::INTERNAL_SERVER_ERROR, "the request was not answered")
}

/// The HTTP status of an answer (2026-07-28, basic/transports/streamable-http).
fn status(answer: &ServerJsonRpcMessage) -> StatusCode {
    let ServerJsonRpcMessage::Error(error) = answer else { return StatusCode::OK };
    match error.error.code {
        ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
        | ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY
        | ErrorCode::HEADER_MISMATCH => StatusCode::BAD_REQUEST,
        ErrorCode::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    }
}

/// An answer without news before it.
pub(super) fn json(answer: &ServerJsonRpcMessage) -> Response<Body> {
    let Ok(body) = serde_json::to_vec(answer) else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "the answer can't be written");
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status(answer);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

struct Events {
    first: Option<ServerJsonRpcMessage>,
    answers: Receiver<ServerJsonRpcMessage>,
    keep_alive: Duration,
    cancel: CancellationToken,
    _gone: DropGuard,
}

impl Events {
    /// What to write next; nothing more after the answer.
    async fn next(&mut self) -> Option<Bytes> {
        let message = match self.first.take() {
            Some(first) => first,
            None => tokio::select! {
                message = self.answers.recv() => message?,
                () = tokio::time::sleep(self.keep_alive) => return Some(Bytes::from_static(b":\n\n")),
                () = self.cancel.cancelled() => return None,
            },
        };
        event(&message)
    }
}

/// A message as an event.
pub(super) fn event(message: &ServerJsonRpcMessage) -> Option<Bytes> {
    let mut event = b"data: ".to_vec();
    serde_json::to_writer(&mut event, message).ok()?;
    event.extend_from_slice(b"\n\n");
    Some(event.into())
}

fn events(events: Events) -> Response<Body> {
    let chunks = stream::unfold(events, |mut events| async {
        let chunk = events.next().await?;
        Some((Ok::<_, Infallible>(chunk), events))
    });
    event_stream(Body::from_stream(chunks))
}

/// A response whose body is an event stream.
pub(super) fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
