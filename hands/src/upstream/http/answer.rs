//! The answer to one POST: JSON in one go, or events that end with it.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming as Body;

use super::{EVENTS, Http, JSON, Spoken, is};
use crate::upstream::wire::{Era, Event, Failure, Incoming, MESSAGE_MAX};
use crate::web::causes;
use crate::web::events::{Broken, Events};

/// How long to wait before a stream that broke off is asked for again, when the server does not say.
const RETRY: Duration = Duration::from_millis(500);
/// The longest that a server may let us wait.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How often in a row a stream may break off without having said anything.
const RESUMES: u32 = 5;

/// The answer to one request, while it comes.
pub(crate) struct Answer {
    id: u64,
    era: Era,
    state: State,
    /// Where the stream could go on.
    last_event: Option<String>,
    retry: Duration,
    /// How often it broke off since it last said something.
    breaks: u32,
    /// The session that came with it.
    pub(crate) session: Option<http::HeaderValue>,
}

enum State {
    /// It came whole.
    Whole(Option<Incoming>),
    Events(Events),
    /// The stream broke off for this reason.
    Broken(String),
}

impl Answer {
    pub(super) async fn of(
        http: &Http,
        id: u64,
        era: Era,
        spoken: &Spoken,
        response: Response<Body>,
    ) -> Result<Self, Failure> {
        let status = response.status();
        let session = response.headers().get(super::SESSION_ID).cloned();
        let state = if status == StatusCode::OK && is(&response, &EVENTS) {
            State::Events(Events::new(response.into_body(), MESSAGE_MAX))
        } else if status == StatusCode::OK && is(&response, &JSON) {
            let body = whole(response.into_body()).await?;
            State::Whole(Some(Incoming::parse(&body).map_err(Failure::Nonsense)?))
        } else if status.is_success() {
            let kind = response.headers().get(http::header::CONTENT_TYPE);
            return Err(Failure::Nonsense(format!("HTTP status {status}, content type {kind:?}")));
        } else {
            // Errors of the protocol come with a status of their own.
            match http.refusal(response, spoken).await {
                (_, gone @ Failure::SessionGone) => return Err(gone),
                (Some(Incoming::Response { reply: Err(error), .. }), _) => {
                    let id = serde_json::Value::from(id);
                    State::Whole(Some(Incoming::Response { id, reply: Err(error) }))
                }
                (_, failure) => return Err(failure),
            }
        };
        Ok(Self { id, era, state, last_event: None, retry: RETRY, breaks: 0, session })
    }

    /// What comes next. Losing nothing when it is dropped and called again.
    pub(crate) async fn next(&mut self, http: &Http, spoken: &Spoken) -> Result<Event, Failure> {
        loop {
            let message = match &mut self.state {
                State::Whole(message) => match message.take() {
                    Some(message) => message,
                    None => return Err(Failure::Cut("the answer was to another request".to_owned())),
                },
                State::Events(events) => match events.next().await {
                    Ok(Some(sse)) => {
                        self.breaks = 0;
                        if let Some(id) = sse.id {
                            self.last_event = Some(id).filter(|id| !id.is_empty());
                        }
                        if let Some(retry) = sse.retry {
                            self.retry = Duration::from_millis(retry).min(RETRY_MAX);
                        }
                        match message(sse.data.as_deref()) {
                            Some(message) => message,
                            None => continue,
                        }
                    }
                    Ok(None) => {
                        self.state = State::Broken("the stream ended before the answer".to_owned());
                        continue;
                    }
                    Err(Broken::Cut(why)) => {
                        self.state = State::Broken(why);
                        continue;
                    }
                    Err(Broken::TooLarge) => return Err(Failure::TooLarge),
                },
                State::Broken(why) => {
                    let why = why.clone();
                    self.resume(http, spoken, why).await?;
                    continue;
                }
            };
            if let Some(event) = self.mine(message) {
                return Ok(event);
            }
        }
    }

    /// Asks for the rest of a stream that broke off (2025-11-25, SEP-1699).
    async fn resume(&mut self, http: &Http, spoken: &Spoken, why: String) -> Result<(), Failure> {
        let Some(last) = self.last_event.as_deref().filter(|_| self.era == Era::Legacy) else {
            return Err(Failure::Cut(why));
        };
        if self.breaks >= RESUMES {
            return Err(Failure::Cut(why));
        }
        self.breaks += 1;
        tokio::time::sleep(self.retry).await;
        match http.events(spoken, Some(last)).await {
            Ok(response) => {
                self.state = State::Events(Events::new(response.into_body(), MESSAGE_MAX));
                Ok(())
            }
            // The server may just be starting anew.
            Err((_, Failure::Unreached(_))) => Ok(()),
            Err((_, failure)) => Err(Failure::Cut(format!("{why}, and it could not go on: {failure}"))),
        }
    }

    fn mine(&self, message: Incoming) -> Option<Event> {
        match message {
            Incoming::Notification { method, params } => Some(Event::Notification { method, params }),
            Incoming::Request { id, method, params } => Some(Event::Question { id, method, params }),
            Incoming::Response { id, reply } if id == self.id => Some(Event::Answer(reply)),
            Incoming::Response { id, .. } => {
                tracing::warn!(%id, wanted = self.id, "an MCP server answered with another id: dropped");
                None
            }
        }
    }
}

/// The message in an event, if there is one.
pub(super) fn message(data: Option<&str>) -> Option<Incoming> {
    let data = data.filter(|data| !data.trim().is_empty())?;
    match Incoming::parse(data.as_bytes()) {
        Ok(message) => Some(message),
        Err(error) => {
            tracing::debug!(error, "an MCP server's event is no JSON-RPC message: skipped");
            None
        }
    }
}

/// A body in one go.
async fn whole(body: Body) -> Result<Bytes, Failure> {
    if body.size_hint().lower() > MESSAGE_MAX as u64 {
        return Err(Failure::TooLarge);
    }
    match Limited::new(body, MESSAGE_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Failure::TooLarge),
        Err(error) => Err(Failure::Cut(causes(&*error))),
    }
}
