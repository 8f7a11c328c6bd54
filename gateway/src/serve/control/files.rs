//! `manyhands hand cp`: a tar stream in and out of an instance.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hands::NoProgress;
use hands::sandbox::CopyError;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body::Frame;
use http_body_util::StreamBody;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::io::{ReaderStream, StreamReader};
use tokio_util::sync::CancellationToken;

use super::Refusal;
use crate::access::Principal;
use crate::leases::InUse;
use crate::registry::Registered;
use crate::serve::Gateway;
use crate::session::{By, Via};

/// The trailer that says why a stream out broke off: by then its status is long gone.
pub const ERROR_TRAILER: HeaderName = HeaderName::from_static("manyhands-error");
/// The trailer that says how many pipes, sockets and devices a stream out does not have.
pub const LEFT_OUT_TRAILER: HeaderName = HeaderName::from_static("manyhands-left-out");
/// Bytes between the sandbox and the socket.
const PIPE_BYTES: usize = 256 << 10;
/// How long the rest of an archive is taken after it was refused.
const LINGER: Duration = Duration::from_secs(30);

/// Which file, of which instance.
#[derive(Deserialize)]
pub(super) struct Which {
    session: String,
    path: String,
}

pub(super) async fn copy_in(
    State(gateway): State<Arc<Gateway>>,
    Path(hand): Path<String>,
    Query(which): Query<Which>,
    request: Request,
) -> Result<Json<Value>, Refusal> {
    let archive = StreamReader::new(request.into_body().into_data_stream().map_err(io::Error::other).boxed());
    let (back, rest) = oneshot::channel();
    let copied = put(&gateway, &hand, which, Lent { archive: Some(archive), back: Some(back) }).await;
    if copied.is_err() {
        gateway.tasks.spawn(linger(rest, gateway.closing.clone()));
    }
    copied
}

async fn put(gateway: &Gateway, hand: &str, which: Which, archive: Lent) -> Result<Json<Value>, Refusal> {
    let (hand, in_use) = instance(gateway, hand, &which.session).await?;
    if hand.hand.files().is_none() {
        return Err(no_files(&hand));
    }
    let cancel = gateway.closing.child_token();
    // On a task of its own: whoever copies may go away, and then there is something to clear up.
    let copied = gateway.tasks.spawn(async move {
        let Some(files) = hand.hand.files() else { return Ok(()) };
        files.copy_in(&in_use.instance.handle, &which.path, Box::new(archive), &cancel).await
    });
    match copied.await {
        Ok(Ok(())) => Ok(Json(json!({"copied": true}))),
        Ok(Err(error)) => Err(Refusal::invalid(sentence(&error))),
        Err(_) => Err(Refusal::invalid("the copy failed inside the gateway; its log has the details")),
    }
}

/// What a client sends.
type Archive = StreamReader<BoxStream<'static, io::Result<Bytes>>, Bytes>;

/// An archive that comes back when nobody reads it any more.
struct Lent {
    archive: Option<Archive>,
    back: Option<oneshot::Sender<Archive>>,
}

impl AsyncRead for Lent {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.archive {
            Some(archive) => Pin::new(archive).poll_read(cx, to),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(archive), Some(back)) = (self.archive.take(), self.back.take()) {
            // Where nobody wants it, it is dropped as it would have been.
            let _ = back.send(archive);
        }
    }
}

/// Takes the rest of what was refused: whoever sends into a connection that is hung up on misses the answer.
async fn linger(rest: oneshot::Receiver<Archive>, closing: CancellationToken) {
    let read = async {
        let Ok(mut rest) = rest.await else { return };
        // Its sender goes away with the answer.
        let _ = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
    };
    let _ = closing.run_until_cancelled(timeout(LINGER, read)).await;
}

pub(super) async fn copy_out(
    State(gateway): State<Arc<Gateway>>,
    Path(hand): Path<String>,
    Query(which): Query<Which>,
) -> Result<Response, Refusal> {
    let (hand, in_use) = instance(&gateway, &hand, &which.session).await?;
    if hand.hand.files().is_none() {
        return Err(no_files(&hand));
    }
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let cancel = gateway.closing.child_token();
    let copied = gateway.tasks.spawn(async move {
        let mut ours = ours;
        let Some(files) = hand.hand.files() else { return Ok(0) };
        files.copy_out(&in_use.instance.handle, &which.path, &mut ours, &|_| {}, &cancel).await
    });
    let data = ReaderStream::new(theirs).map_ok(Frame::data);
    let end = stream::once(async move {
        match copied.await {
            Ok(Ok(0)) => None,
            Ok(Ok(left_out)) => Some(Ok(Frame::trailers(trailers(LEFT_OUT_TRAILER, &left_out.to_string())))),
            Ok(Err(error)) => Some(Ok(Frame::trailers(trailers(ERROR_TRAILER, &sentence(&error))))),
            Err(error) => Some(Err(io::Error::other(error))),
        }
    })
    .filter_map(|end| async move { end });
    let mut response = Response::new(Body::new(StreamBody::new(data.chain(end))));
    response
        .headers_mut()
        .insert(header::TRAILER, HeaderValue::from_static("manyhands-error, manyhands-left-out"));
    Ok(response)
}

fn trailers(name: HeaderName, sentence: &str) -> HeaderMap {
    let plain: String = sentence.chars().map(|c| if c.is_ascii_graphic() { c } else { ' ' }).collect();
    let value = HeaderValue::from_maybe_shared(Bytes::from(plain));
    HeaderMap::from_iter(value.ok().map(|value| (name, value)))
}

/// The instance that calls of the session would use, provisioned when there is none.
async fn instance(gateway: &Gateway, hand: &str, session: &str) -> Result<(Arc<Registered>, InUse), Refusal> {
    let hand = gateway.registry.get(hand)?;
    let principal = Principal::owner();
    let by = By { principal: principal.to_string(), client: None, via: Via::Cli };
    let session = gateway.sessions.open(&principal, &session.parse()?, &by).await?.id;
    let in_use = gateway.leases.acquire(session, &principal, &hand, Arc::new(NoProgress)).await?;
    Ok((hand, in_use))
}

fn no_files(hand: &Registered) -> Refusal {
    Refusal::invalid(format!("the hand {} has no files to copy", hand.name))
}

fn sentence(error: &CopyError) -> String {
    error.to_string()
}
