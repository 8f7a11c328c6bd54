//! `manyhands run` and `manyhands wake`: somebody says something to the built-in loop, and hears what comes of it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::{Stream, StreamExt as _, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::Refusal;
use super::session::find;
use crate::access::Principal;
use crate::clock;
use crate::error;
use crate::harness::{Piece, Said};
use crate::serve::Gateway;
use crate::session::{
    At, Body as EventBody, By, Event, LogError, NewEvent, Seq, SessionInfo, SessionRef, Via,
};

pub(super) fn router() -> Router<Arc<Gateway>> {
    Router::new().route("/{session}/run", post(run)).route("/{session}/wake", post(wake))
}

#[derive(Deserialize)]
struct Whose {
    principal: Option<Principal>,
}

impl Whose {
    fn principal(self) -> Principal {
        self.principal.unwrap_or_else(Principal::owner)
    }
}

#[derive(Deserialize)]
struct Prompt {
    prompt: String,
    model: Option<String>,
}

/// Says something in a session, which is made when it is named and not there, and tells what comes of it.
async fn run(
    State(gateway): State<Arc<Gateway>>,
    Path(session): Path<String>,
    Query(whose): Query<Whose>,
    Json(asked): Json<Prompt>,
) -> Result<Response, Refusal> {
    let principal = whose.principal();
    let wanted: SessionRef = session.parse()?;
    let by = By { principal: principal.to_string(), client: None, via: Via::Cli };
    if let Some(model) = &asked.model {
        gateway.harness.brain(Some(model)).map_err(|error| Refusal::invalid(error.to_string()))?;
    }
    if asked.prompt.trim().is_empty() {
        return Err(Refusal::invalid("the prompt is empty: say what is to be done"));
    }
    let known = gateway.sessions.find(&principal, &wanted).await.ok();
    let chosen = match (&asked.model, &known) {
        (None, Some(known)) => gateway.sessions.state(known.id).await?.model,
        _ => asked.model.clone(),
    };
    gateway.harness.brain(chosen.as_deref()).map_err(|error| Refusal::invalid(error.to_string()))?;
    let info = gateway.sessions.open(&principal, &wanted, &by).await?;
    let content = json!([{"type": "text", "text": asked.prompt}]);
    let message = NewEvent::of(by.clone(), &EventBody::UserMessage { content });
    let model = asked.model.map(|model| {
        NewEvent::of(by, &EventBody::SessionUpdated { status: "active".to_owned(), model: Some(model) })
    });
    let events: Vec<NewEvent> = model.into_iter().chain([message]).collect();
    say(&gateway, &info, &events).await
}

/// Has the loop go on with a session that stopped on its way.
async fn wake(
    State(gateway): State<Arc<Gateway>>,
    Path(session): Path<String>,
    Query(whose): Query<Whose>,
) -> Result<Response, Refusal> {
    let principal = whose.principal();
    let info = find(&gateway, &session, principal.clone()).await?;
    let model = gateway.sessions.state(info.id).await?.model;
    gateway.harness.brain(model.as_deref()).map_err(|error| Refusal::invalid(error.to_string()))?;
    let by = By { principal: principal.to_string(), client: None, via: Via::Cli };
    say(&gateway, &info, &[NewEvent::of(by, &EventBody::StatusRescheduled {})]).await
}

/// Writes what was said, and tells what comes of it: an event or a piece of one on each line, until the loop rests.
async fn say(gateway: &Gateway, info: &SessionInfo, events: &[NewEvent]) -> Result<Response, Refusal> {
    let voice = gateway.harness.voices().listen(info.id);
    gateway.take_on(info.id);
    let said = gateway.sessions.append(info, At::End, events).await?;
    let first = Seq(said.0 - i64::try_from(events.len()).unwrap_or_default());
    let state = gateway.sessions.state(info.id).await?;
    let waits = state.waits(clock::now()).map(|wait| json!({"waits": wait}));
    let follow = Box::pin(gateway.sessions.follow(info, first));
    let hearing = Hearing {
        voice: Some(voice),
        waiting: None,
        follow,
        said,
        stopped: false,
        shown: first,
        done: false,
        closing: gateway.closing.clone(),
    };
    let heard = stream::unfold(hearing, |mut hearing| async move {
        let line = hearing.next().await?;
        Some((line, hearing))
    });
    let lines = stream::iter(waits).chain(heard).map(|line| Ok::<_, Infallible>(format!("{line}\n")));
    Ok(Body::from_stream(lines).into_response())
}

struct Hearing {
    voice: Option<broadcast::Receiver<Piece>>,
    /// A piece whose event has not been shown yet.
    waiting: Option<Piece>,
    follow: Pin<Box<dyn Stream<Item = Result<Event, LogError>> + Send>>,
    /// What was said. The loop answers behind it.
    said: Seq,
    /// Somebody has stopped the loop since. Else one that says so speaks of what was before.
    stopped: bool,
    /// The last event that was shown.
    shown: Seq,
    done: bool,
    closing: CancellationToken,
}

impl Hearing {
    async fn next(&mut self) -> Option<Value> {
        if self.done {
            return None;
        }
        loop {
            if let Some(piece) = self.waiting.take_if(|piece| piece.after <= self.shown) {
                return Some(line(&piece.said));
            }
            tokio::select! {
                // What was said before an event was written comes before it.
                biased;
                piece = heard(&mut self.voice), if self.waiting.is_none() => self.waiting = piece,
                event = self.follow.next() => return Some(self.event(event?)),
                () = self.closing.cancelled() => return None,
            }
        }
    }

    fn event(&mut self, event: Result<Event, LogError>) -> Value {
        match event {
            Ok(event) => {
                self.shown = event.seq;
                self.done |= event.seq > self.said && self.ends(&event);
                json!({"event": event.to_json()})
            }
            Err(error) => {
                self.done = true;
                json!({"error": error::say(&error)})
            }
        }
    }
}

impl Hearing {
    fn ends(&mut self, event: &Event) -> bool {
        self.stopped |= event.kind() == "user.interrupt";
        let interrupted = event.fields.get("stop_reason").is_some_and(|why| why["type"] == "interrupted");
        match event.kind() {
            "session.status_idle" => self.stopped || !interrupted,
            // Nothing comes any more.
            "session.updated" => event.fields.get("status").is_some_and(|status| status == "archived"),
            kind => kind == "session.status_terminated",
        }
    }
}

fn line(said: &Said) -> Value {
    match said {
        Said::Text(text) => json!({"text": &**text}),
        Said::Thinking(text) => json!({"thinking": &**text}),
        Said::Output(text) => json!({"output": &**text}),
    }
}

/// The next piece. None: some were missed, or there will be no more.
async fn heard(voice: &mut Option<broadcast::Receiver<Piece>>) -> Option<Piece> {
    let Some(receiver) = voice else { return std::future::pending().await };
    match receiver.recv().await {
        Ok(piece) => Some(piece),
        Err(broadcast::error::RecvError::Lagged(_)) => None,
        Err(broadcast::error::RecvError::Closed) => {
            *voice = None;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::session::{EventId, SessionId};

    fn event(seq: i64, body: &EventBody) -> Event {
        let by = By { principal: Principal::owner().to_string(), client: None, via: Via::Cli };
        let NewEvent { by, fields, .. } = NewEvent::of(by, body);
        let (id, session) = (EventId::new(), SessionId::new());
        Event { id, seq: Seq(seq), session, at: clock::now(), by, fields, private: None }
    }

    /// Who follows a turn has nothing to wait for in an archived session, whoever archived it, and wherever the loop was.
    #[tokio::test]
    async fn a_turn_ends_with_its_session() {
        let model = Some("scripted/other".to_owned());
        let updated = |status: &str, model| EventBody::SessionUpdated { status: status.to_owned(), model };
        let events = [
            event(1, &updated("active", None)),
            event(2, &EventBody::StatusRunning {}),
            event(3, &updated("active", model)),
            event(4, &updated("archived", None)),
        ];
        let mut hearing = Hearing {
            voice: None,
            waiting: None,
            follow: Box::pin(stream::iter(events.map(Ok)).chain(stream::pending())),
            said: Seq(1),
            stopped: false,
            shown: Seq(0),
            done: false,
            closing: CancellationToken::new(),
        };
        for seq in 1..=4 {
            let line = hearing.next().await;
            assert_eq!(line.map(|line| line["event"]["seq"].clone()), Some(json!(seq)));
        }
        assert_eq!(hearing.next().await, None);
    }
}
