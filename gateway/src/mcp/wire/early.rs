//! Response headers within a second, however long the handler is silent.
//!
//! Since 2026-07-28 rmcp holds the HTTP response back until the handler's first message, and clients give up without
//! headers (Claude Code after 60 s). So when rmcp has not answered in time, the event stream is opened here, and rmcp's
//! answer goes into it when it comes. An error that comes earlier keeps its HTTP status.

use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use serde_json::json;

use super::envelope::Id;

/// The most of an answer that is not a stream, in bytes: rmcp's own are small, or the result of one call.
const MAX_ANSWER: usize = 128 * 1024 * 1024;

/// rmcp's answer, on its way. Dropping it is how rmcp learns that the client is gone.
pub(super) type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// The answer if it comes within `patience`; else an event stream which it will come on, with a comment every
/// `keep_alive` until then.
pub(super) async fn answer(
    mut answer: Answer,
    id: Id,
    patience: Duration,
    keep_alive: Duration,
) -> Response<Body> {
    if let Ok(response) = tokio::time::timeout(patience, &mut answer).await {
        return response;
    }
    let stage = Stage::Open(Waiting { answer, id, keep_alive });
    let chunks = stream::unfold(stage, |stage| async {
        let (chunk, next) = stage.next().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), next))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Waiting {
    answer: Answer,
    id: Id,
    keep_alive: Duration,
}

enum Stage {
    Open(Waiting),
    Waiting(Waiting),
    Piping(BodyDataStream),
    Over,
}

impl Stage {
    /// What to write next, and where that leaves us.
    async fn next(self) -> Option<(Bytes, Self)> {
        match self {
            Self::Open(waiting) => Some((Bytes::from_static(b": working\n\n"), Self::Waiting(waiting))),
            Self::Waiting(mut waiting) => {
                let Ok(response) = tokio::time::timeout(waiting.keep_alive, &mut waiting.answer).await else {
                    return Some((Bytes::from_static(b": still working\n\n"), Self::Waiting(waiting)));
                };
                if is_event_stream(response.headers()) {
                    return pipe(response.into_body().into_data_stream()).await;
                }
                Some((event(response, &waiting.id).await, Self::Over))
            }
            Self::Piping(chunks) => pipe(chunks).await,
            Self::Over => None,
        }
    }
}

async fn pipe(mut chunks: BodyDataStream) -> Option<(Bytes, Stage)> {
    let chunk = chunks.next().await?.ok()?;
    Some((chunk, Stage::Piping(chunks)))
}

/// Whether the body is a stream of events.
pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// An answer that is a whole, as the one event of the stream: its JSON-RPC message, or an error that says its text.
async fn event(response: Response<Body>, id: &Id) -> Bytes {
    let status = response.status();
    let is_json = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let body = axum::body::to_bytes(response.into_body(), MAX_ANSWER).await;
    let mut event = b"event: message\ndata: ".to_vec();
    match body {
        // JSON as rmcp writes it has no line break.
        Ok(body) if is_json && !body.contains(&b'\n') => event.extend_from_slice(&body),
        Ok(_) | Err(_) => {
            tracing::error!(%status, "a request that was answered early failed");
            let said = if status == StatusCode::OK { "no readable answer" } else { "the request failed" };
            let error = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32603, "message": said } });
            event.extend_from_slice(error.to_string().as_bytes());
        }
    }
    event.extend_from_slice(b"\n\n");
    Bytes::from(event)
}
