//! `manyhands confirm`. **Invariant:** this is the only way to answer a call of `ask-owner`; of `ask`, a client that asks its
//! person is another. Neither is a tool or a resource.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Refusal;
use super::session::{Whose, find, name};
use crate::access::Principal;
use crate::calls::{Shown, shown};
use crate::serve::Gateway;
use crate::session::{
    At, Body, By, Confirmation, EventId, InQuestion, Likeness, LogError, NewEvent, Permission, SessionError,
    SessionInfo, Via,
};

/// An answer is good for one call.
const ANSWERED: &str = "this call was answered already: an answer is good for one call";

#[derive(Deserialize)]
pub(super) struct Said {
    result: Confirmation,
    deny_message: Option<String>,
}

/// A call that asked for a person's word.
struct Asked {
    session: SessionInfo,
    call: EventId,
    found: InQuestion,
    /// Whether it has its outcome.
    over: bool,
}

impl Asked {
    async fn find(
        gateway: &Gateway,
        session: &str,
        call: &str,
        principal: Principal,
    ) -> Result<Self, Refusal> {
        let session = find(gateway, session, principal).await?;
        let no_call = || {
            Refusal::missing(format!(
                "session {} has no call {call:?} that asks for a person's word",
                session.id
            ))
        };
        let id: EventId = call.parse().map_err(|_| no_call())?;
        let found = gateway.sessions.in_question(session.id, id).await?.ok_or_else(no_call)?;
        let permission = match found.asked.known() {
            Some(Body::ToolUse { evaluated_permission, .. }) => evaluated_permission,
            _ => None,
        };
        if !permission.is_some_and(Permission::asks) {
            return Err(no_call());
        }
        let over = gateway.sessions.outcome(session.id, id).await?.is_some();
        Ok(Self { session, call: id, found, over })
    }

    fn is_of_loop(&self) -> bool {
        self.found.asked.by.via == Via::Loop
    }

    /// Why no word on it counts any more.
    fn closed(&self) -> Option<&'static str> {
        if self.found.word.is_some() {
            return Some(ANSWERED);
        }
        (self.over && self.is_of_loop()).then_some(
            "this call has ended, and the built-in brain waits no more for a word on it: have it ask again",
        )
    }
}

/// The call, for a person to look at before they answer.
pub(super) async fn show(
    State(gateway): State<Arc<Gateway>>,
    Path((session, call)): Path<(String, String)>,
    Query(whose): Query<Whose>,
) -> Result<Json<Value>, Refusal> {
    let asked = Asked::find(&gateway, &session, &call, whose.principal()).await?;
    let event = &asked.found.asked;
    let Some(Body::ToolUse { name, input, hand, tool, .. }) = event.known() else {
        return Err(Refusal::missing("the call can't be read"));
    };
    let Shown { lines, whole } = shown(&input);
    Ok(Json(json!({
        "session": asked.session.id, "call": asked.call, "name": name, "hand": hand, "tool": tool,
        "arguments": input, "shown": lines, "whole": whole, "by": event.by, "at": event.at,
        "closed": asked.closed(),
    })))
}

pub(super) async fn confirm(
    State(gateway): State<Arc<Gateway>>,
    Path((session, call)): Path<(String, String)>,
    Query(whose): Query<Whose>,
    Json(said): Json<Said>,
) -> Result<Json<Value>, Refusal> {
    let principal = whose.principal();
    let by = By { principal: principal.to_string(), client: None, via: Via::Cli };
    let asked = Asked::find(&gateway, &session, &call, principal).await?;
    if let Some(closed) = asked.closed() {
        return Err(Refusal::invalid(closed));
    }
    if said.deny_message.is_some() && said.result == Confirmation::Allow {
        return Err(Refusal::invalid("--message says why not: it goes with deny"));
    }
    let of_loop = asked.is_of_loop();
    let Asked { session, call: id, found, over } = asked;
    let like = Likeness::of_event(&found.asked);
    let word = NewEvent::confirmation(by, id, like, said.result, said.deny_message);
    match gateway.sessions.append(&session, At::End, &[word]).await {
        Ok(_) => {}
        Err(SessionError::Log(LogError::Settled)) => return Err(Refusal::invalid(ANSWERED)),
        Err(error) => return Err(error.into()),
    }
    // Nobody here works on the session. On a database that others share, one of them may.
    let later = of_loop && !gateway.works_on(session.id);
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
