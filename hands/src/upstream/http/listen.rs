//! The stream of the legacy era for what belongs to no request.

use std::time::Duration;

use http::StatusCode;
use tokio_util::sync::CancellationToken;

use super::answer::message;
use super::{Http, Spoken};
use crate::upstream::wire::{Failure, Incoming, MESSAGE_MAX};
use crate::web::events::Events;

/// The shortest wait before it is opened again.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest.
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// Why nobody listens any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The server has no such stream.
    NotOffered,
    /// The server has forgotten the session.
    SessionGone,
}

/// Listens until it is dropped, or there is nothing to listen to. A silent stream harms nothing: nobody waits for it.
/// Fires `answered` once the server has said whether there is a stream.
pub(crate) async fn listen(
    http: &Http,
    spoken: &Spoken,
    answered: &CancellationToken,
    mut take: impl FnMut(Incoming),
) -> Ended {
    let mut last_event: Option<String> = None;
    let mut again = AGAIN;
    loop {
        let opened = http.events(spoken, last_event.as_deref()).await;
        answered.cancel();
        match opened {
            Ok(response) => {
                let mut events = Events::new(response.into_body(), MESSAGE_MAX);
                while let Ok(Some(event)) = events.next().await {
                    again = AGAIN;
                    if let Some(id) = event.id {
                        last_event = Some(id).filter(|id| !id.is_empty());
                    }
                    if let Some(retry) = event.retry {
                        again = Duration::from_millis(retry).clamp(Duration::from_millis(50), AGAIN_MAX);
                    }
                    if let Some(message) = message(event.data.as_deref()) {
                        take(message);
                    }
                }
            }
            Err((_, Failure::SessionGone)) => return Ended::SessionGone,
            Err((status, Failure::Refused { .. } | Failure::Nonsense(_))) if !later(status) => {
                return Ended::NotOffered;
            }
            Err(_) => {}
        }
        tokio::time::sleep(again).await;
        again = (again * 2).min(AGAIN_MAX);
    }
}

/// Whether a refusal may pass.
fn later(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
        || status == StatusCode::TOO_MANY_REQUESTS
}
