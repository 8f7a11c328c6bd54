//! `manyhands interrupt`: a person stops the built-in loop, and may say what it is to do instead.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Refusal;
use super::session::{Whose, find, name};
use crate::harness::wake;
use crate::serve::Gateway;
use crate::session::{
    At, Body, By, EventLog as _, NewEvent, Seq, SessionError, SessionInfo, State as SessionState, Status,
    StopReason, Via,
};

/// How long it is waited for the loop's word that it rests. A call that ignores everything is ended after five seconds.
const RESTS_WITHIN: Duration = Duration::from_secs(10);
/// The same, where it is another gateway's loop if it is any.
const RESTS_ELSEWHERE_WITHIN: Duration = Duration::from_secs(3);

#[derive(Deserialize)]
pub(super) struct Instead {
    text: Option<String>,
}

pub(super) async fn interrupt(
    State(gateway): State<Arc<Gateway>>,
    Path(session): Path<String>,
    Query(whose): Query<Whose>,
    Json(Instead { text }): Json<Instead>,
) -> Result<Json<Value>, Refusal> {
    let principal = whose.principal();
    let by = By { principal: principal.to_string(), client: None, via: Via::Cli };
    let session = find(&gateway, &session, principal).await?;
    if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
        return Err(Refusal::invalid("the text is empty: say what is to be done instead, or nothing"));
    }
    let state = gateway.sessions.state(session.id).await?;
    let stops = state.can_be_stopped();
    if !stops && text.is_none() {
        let why = why_not(&state);
        let sentence = format!("nothing runs in session {} that could be stopped: {why}", name(&session));
        return Err(Refusal::invalid(sentence));
    }
    if text.is_some() && gateway.works_on(session.id) {
        let brain = gateway.harness.brain(state.model.as_deref());
        brain.map_err(|error| Refusal::invalid(error.to_string()))?;
    }
    let stop = stops.then(|| NewEvent::of(by.clone(), &Body::UserInterrupt {}));
    let instead = text.as_ref().map(|text| {
        let content = json!([{"type": "text", "text": text}]);
        NewEvent::of(by, &Body::UserMessage { content })
    });
    // In one append: whoever reads the first knows the second.
    let events: Vec<NewEvent> = stop.into_iter().chain(instead).collect();
    let last = gateway.sessions.append(&session, At::End, &events).await?;
    let came = if !stops {
        Came::NothingRan
    } else if ends_here(&gateway, &session, text.as_deref()).await? || rests(&gateway, &session, last).await {
        Came::Stopped
    } else {
        Came::Told
    };
    let note = came.note(text.as_deref(), &gateway, &session);
    Ok(Json(json!({"session": session.id, "seq": last, "came": came, "note": note})))
}

/// Has the loop rest before the session is archived, so that its log has an end.
pub(super) async fn settle(gateway: &Gateway, session: &SessionInfo, by: &By) -> Result<(), Refusal> {
    if !gateway.sessions.state(session.id).await?.is_at_work() {
        return Ok(());
    }
    let stop = NewEvent::of(by.clone(), &Body::UserInterrupt {});
    // Who stores as much as they may can still archive.
    let last =
        gateway.sessions.log().append(session.id, At::End, &[stop]).await.map_err(SessionError::from)?;
    if ends_here(gateway, session, None).await?
        || !gateway.sessions.state(session.id).await?.is_at_work()
        || rests(gateway, session, last).await
    {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "the built-in brain works in session {0} and does not rest yet: try again, or look at `manyhands session show {0}`",
        name(session)
    )))
}

/// Has the loop rest that was told to stop, where this process does not work on the session: nobody else may be there to
/// do it. If somebody is, that one does. Whether it rests.
async fn ends_here(
    gateway: &Gateway,
    session: &SessionInfo,
    instead: Option<&str>,
) -> Result<bool, SessionError> {
    // What it is to do instead, it would do at once.
    if gateway.works_on(session.id) || instead.is_some() {
        return Ok(false);
    }
    let cancel = gateway.closing.child_token();
    let mut waking = pin!(wake(&gateway.harness, session.id, cancel.clone()));
    if tokio::time::timeout(RESTS_WITHIN, &mut waking).await.is_err() {
        cancel.cancel();
        let _ = waking.await;
    }
    Ok(!gateway.sessions.state(session.id).await?.is_at_work())
}

fn why_not(state: &SessionState) -> String {
    match &state.status {
        Status::New => "the built-in brain was never asked to work in it".to_owned(),
        Status::Idle { stop_reason } => format!("the built-in brain rests there ({})", word(stop_reason)),
        Status::Running | Status::Rescheduled | Status::Terminated => {
            "the built-in brain works in it no more".to_owned()
        }
    }
}

fn word(reason: &StopReason) -> String {
    let reason = serde_json::to_value(reason).unwrap_or_default();
    reason["type"].as_str().unwrap_or_default().to_owned()
}

/// Whether the loop says soon that it rests, or that it has begun with what it was told instead.
async fn rests(gateway: &Gateway, session: &SessionInfo, after: Seq) -> bool {
    let patience = match (gateway.works_on(session.id), &gateway.config.database_url) {
        (true, _) => RESTS_WITHIN,
        (false, Some(_)) => RESTS_ELSEWHERE_WITHIN,
        (false, None) => return false,
    };
    let mut follow = Box::pin(gateway.sessions.follow(session, after));
    let rests = async {
        while let Some(Ok(event)) = follow.next().await {
            if matches!(event.kind(), "session.status_idle" | "session.status_running") {
                return true;
            }
        }
        false
    };
    tokio::select! {
        rests = tokio::time::timeout(patience, rests) => rests.unwrap_or(false),
        () = gateway.closing.cancelled() => false,
    }
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Came {
    /// The loop rests, or has begun with what it was told instead.
    Stopped,
    /// It is in the log: the loop has not said yet that it rests.
    Told,
    /// There was nothing to stop.
    NothingRan,
}

impl Came {
    fn note(self, instead: Option<&str>, gateway: &Gateway, session: &SessionInfo) -> String {
        let name = name(session);
        let first = match (self, gateway.works_on(session.id)) {
            (Self::Stopped, _) => "stopped".to_owned(),
            (Self::Told, true) => format!(
                "told to stop; it does not rest yet, and `manyhands session show {name}` says where it stands"
            ),
            (Self::Told, false) => {
                "told to stop; no gateway runs here, and the next one leaves what was begun".to_owned()
            }
            (Self::NothingRan, _) => "nothing ran".to_owned(),
        };
        match (instead, gateway.works_on(session.id)) {
            (None, _) => first,
            (Some(_), true) => format!(
                "{first}: it goes on with what you said, and `manyhands session events {name} --follow` shows it"
            ),
            (Some(_), false) => format!(
                "{first}; the brain goes on with what you said once a gateway runs, or with `manyhands wake {name}`"
            ),
        }
    }
}
