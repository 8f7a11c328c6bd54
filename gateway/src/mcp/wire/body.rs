//! Reading a request's body: up to a limit, within a time.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};

use super::refusal::Refusal;

/// How long a body may take to arrive.
const MAX_TIME: Duration = Duration::from_secs(30);
/// How much of a body that is too large is still read and thrown away, in bytes, and how long: a client that is still
/// sending would otherwise see a broken connection instead of the answer.
const MAX_DRAINED: usize = 32 * 1024 * 1024;
const MAX_DRAINING: Duration = Duration::from_secs(5);

/// The whole body, of at most `limit` bytes.
pub(super) async fn read(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let mut chunks = body.into_data_stream();
    if announced.is_some_and(|length| length > limit as u64) {
        // Who asks before sending has sent nothing that would have to be drained.
        if !headers.contains_key(EXPECT) {
            drain(&mut chunks).await;
        }
        return Err(Refusal::BodyTooLarge(limit));
    }
    let collect = async {
        let mut whole = BytesMut::new();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| Refusal::BodyBroken)?;
            if chunk.len() > limit - whole.len() {
                return Err(Refusal::BodyTooLarge(limit));
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    };
    let result = tokio::time::timeout(MAX_TIME, collect).await.unwrap_or(Err(Refusal::BodyTooSlow));
    if matches!(result, Err(Refusal::BodyTooLarge(_))) {
        drain(&mut chunks).await;
    }
    result
}

async fn drain(chunks: &mut axum::body::BodyDataStream) {
    let throw_away = async {
        let mut drained = 0;
        while let Some(Ok(chunk)) = chunks.next().await {
            drained += chunk.len();
            if drained > MAX_DRAINED {
                break;
            }
        }
    };
    // Out of time: the connection is closed with the rest unread.
    let _ = tokio::time::timeout(MAX_DRAINING, throw_away).await;
}
