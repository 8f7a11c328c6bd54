//! `manyhands confirm`. **Invariant:** this and a client that asks its person are the only ways to answer a call; neither
//! is a tool or a resource, so that no brain answers for itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Refusal;
use super::session::{Whose, find, name};
use crate::serve::Gateway;
use crate::session::{
    At, Body, By, Confirmation, EventId, Likeness, LogError, NewEvent, Permission, SessionError, Via,
};

#[derive(Deserialize)]
pub(super) struct Said {
    result: Confirmation,
    deny_message: Option<String>,
}

pub(super) async fn confirm(
    State(gateway): State<Arc<Gateway>>,
    Path((session, call)): Path<(String, String)>,
    Query(whose): Query<Whose>,
    Json(said): Json<Said>,
) -> Result<Json<Value>, Refusal> {
    let principal = whose.principal();
    let by = By { principal: principal.to_string(), client: None, via: Via::Cli };
    let session = find(&gateway, &session, principal).await?;
    let no_call = || {
        Refusal::missing(format!("session {} has no call {call:?} that asks for a person's word", session.id))
    };
    let id: EventId = call.parse().map_err(|_| no_call())?;
    let found = gateway.sessions.in_question(session.id, id).await?.ok_or_else(no_call)?;
    let Some(Body::ToolUse { evaluated_permission: Some(Permission::Ask), .. }) = found.asked.known() else {
        return Err(no_call());
    };
    let answered = || Refusal::invalid("this call was answered already: an answer is good for one call");
    if found.word.is_some() {
        return Err(answered());
    }
    if said.deny_message.is_some() && said.result == Confirmation::Allow {
        return Err(Refusal::invalid("--message says why not: it goes with deny"));
    }
    let over = gateway.sessions.outcome(session.id, id).await?.is_some();
    let of_loop = found.asked.by.via == Via::Loop;
    if over && of_loop {
        return Err(Refusal::invalid(
            "this call has ended, and the built-in brain waits no more for a word on it: have it ask again",
        ));
    }
    let like = Likeness::of_event(&found.asked);
    let word = NewEvent::confirmation(by, id, like, said.result, said.deny_message);
    match gateway.sessions.append(&session, At::End, &[word]).await {
        Ok(_) => {}
        Err(SessionError::Log(LogError::Settled)) => return Err(answered()),
        Err(error) => return Err(error.into()),
    }
    // Nobody here works on the session. On a database that others share, one of them may.
    let later = of_loop && !gateway.works();
    let goes_on =
        |what: &str| format!("{what} once a gateway runs, or with `manyhands wake {}`", name(&session));
    let note = match (said.result, over) {
        (Confirmation::Allow, true) => {
            "allowed: the next call of the same tool with the same arguments runs, once".to_owned()
        }
        (Confirmation::Allow, false) if later => goes_on("allowed: the call goes on"),
        (Confirmation::Allow, false) => "allowed: the call goes on".to_owned(),
        (Confirmation::Deny, _) if later => goes_on("denied: the brain is told"),
        (Confirmation::Deny, _) => "denied".to_owned(),
    };
    Ok(Json(json!({"session": session.id, "call": id, "result": said.result, "note": note})))
}
