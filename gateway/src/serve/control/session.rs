//! `manyhands session …`. The owner of the machine sees the sessions of every principal.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Refusal;
use crate::access::Principal;
use crate::clock;
use crate::error;
use crate::serve::Gateway;
use crate::session::{
    At, By, LIST_MAX, Listing, LogError, Seq, SessionError, SessionInfo, SessionName, SessionRef, Slice, Via,
};

/// How long whoever deletes a session waits for what its hands keep elsewhere to be removed.
const REMOVING: Duration = Duration::from_secs(5);
/// How often it is tried to archive a session that changes meanwhile.
const ARCHIVE_TRIES: usize = 5;

pub(super) fn router() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/", get(list).post(create))
        .route("/{session}", get(show).delete(delete))
        .route("/{session}/events", get(events))
        .route("/{session}/archive", post(archive))
        .route("/{session}/calls/{call}", get(super::confirm::show))
        .route("/{session}/calls/{call}/confirmation", post(super::confirm::confirm))
        .route("/{session}/interrupt", post(super::interrupt::interrupt))
}

#[derive(Deserialize)]
pub(super) struct Whose {
    principal: Option<Principal>,
}

impl Whose {
    pub(super) fn principal(self) -> Principal {
        self.principal.unwrap_or_else(Principal::owner)
    }
}

#[derive(Deserialize)]
struct New {
    name: Option<String>,
    principal: Option<Principal>,
}

/// Which events, as the query says it; `type` holds types separated by commas.
#[derive(Deserialize)]
struct Which {
    principal: Option<Principal>,
    after: Option<i64>,
    before: Option<i64>,
    limit: Option<u32>,
    r#type: Option<String>,
    #[serde(default)]
    follow: bool,
}

async fn list(
    State(gateway): State<Arc<Gateway>>,
    Query(whose): Query<Whose>,
) -> Result<Json<Value>, Refusal> {
    let (principal, mut shown) = (whose.principal(), Vec::new());
    let mut listing = Listing { limit: Some(LIST_MAX), ..Listing::default() };
    loop {
        let (page, more) = gateway.sessions.list(&principal, &listing).await?;
        shown.extend(page.iter().map(|info| state(&gateway, info)));
        listing.before = page.last().map(|last| last.id);
        if !more {
            return Ok(Json(json!(shown)));
        }
    }
}

async fn create(State(gateway): State<Arc<Gateway>>, Json(new): Json<New>) -> Result<Json<Value>, Refusal> {
    let principal = new.principal.unwrap_or_else(Principal::owner);
    let by = By { principal: principal.to_string(), client: None, via: Via::Cli };
    let name = new.name.map(|name| name.parse::<SessionName>()).transpose()?;
    let info = match name {
        Some(name) => gateway.sessions.open(&principal, &SessionRef::Name(name), &by).await?,
        None => gateway.sessions.create(&principal, None, &by).await?,
    };
    Ok(Json(state(&gateway, &info)))
}

async fn show(
    State(gateway): State<Arc<Gateway>>,
    Path(session): Path<String>,
    Query(whose): Query<Whose>,
) -> Result<Json<Value>, Refusal> {
    let info = find(&gateway, &session, whose.principal()).await?;
    let mut shown = state(&gateway, &info);
    if let Some(standing) = standing(&gateway, &info).await? {
        shown["loop"] = standing;
    }
    Ok(Json(shown))
}

/// Where the built-in loop stands with a session, and why, if it has ever worked on it.
async fn standing(gateway: &Gateway, info: &SessionInfo) -> Result<Option<Value>, Refusal> {
    let types = vec!["session.status_running".to_owned()];
    let worked = Slice { limit: Some(1), types, ..Slice::default() };
    if gateway.sessions.slice(info, worked).await?.events.is_empty() {
        return Ok(None);
    }
    let state = gateway.sessions.state(info.id).await?;
    let calls = state.calls.iter().map(|call| {
        let stands = match (&call.started, call.waits_for_a_word()) {
            (Some(_), _) => "running",
            (None, true) => "waits for a person",
            (None, false) => "asked for",
        };
        json!({"id": call.id, "name": call.name, "stands": stands})
    });
    Ok(Some(json!({
        "status": state.status,
        "model": state.model,
        "here": gateway.harness.is_waking(info.id),
        "open_calls": calls.collect::<Vec<_>>(),
        "failures": state.failures.count,
        "error": state.error,
        "waits": state.waits(clock::now()),
        "requests": state.spent.requests,
        "usage": state.spent.usage,
        "usage_ever": state.usage,
        // In thousandths: more is noise.
        "cache_hit_rate": state.usage.cache_hit_rate().map(|rate| (rate * 1_000.0).round() / 1_000.0),
        "context_tokens": state.context_tokens,
    })))
}

async fn events(
    State(gateway): State<Arc<Gateway>>,
    Path(session): Path<String>,
    Query(which): Query<Which>,
) -> Result<Response, Refusal> {
    let principal = which.principal.unwrap_or_else(Principal::owner);
    let info = find(&gateway, &session, principal).await?;
    let types: Vec<String> =
        which.r#type.iter().flat_map(|types| types.split(',')).map(str::to_owned).collect();
    let slice = Slice {
        after: which.after.map(Seq),
        before: which.before.map(Seq),
        limit: which.limit,
        types: types.clone(),
    };
    if !which.follow {
        return Ok(Json(gateway.sessions.slice(&info, slice).await?.to_json()).into_response());
    }
    // Behind a place: everything, then what is appended. Without one: the last events first.
    let (first, from) = match which.after {
        Some(after) => (Vec::new(), Seq(after)),
        None => {
            let events = gateway.sessions.slice(&info, slice).await?.events;
            let from = events.last().map_or(Seq(0), |last| last.seq);
            (events, from)
        }
    };
    let closing = gateway.closing.clone().cancelled_owned();
    let live = gateway.sessions.follow(&info, from).take_until(closing).filter(move |event| {
        let wanted =
            event.as_ref().map_or(true, |event| types.is_empty() || types.iter().any(|t| t == event.kind()));
        std::future::ready(wanted)
    });
    let lines = stream::iter(first.into_iter().map(Ok)).chain(live).map(|event| {
        let line = match event {
            Ok(event) => event.to_json(),
            Err(error) => json!({"error": error::say(&error)}),
        };
        Ok::<_, Infallible>(format!("{line}\n"))
    });
    Ok(Body::from_stream(lines).into_response())
}

async fn archive(
    State(gateway): State<Arc<Gateway>>,
    Path(session): Path<String>,
    Query(whose): Query<Whose>,
) -> Result<Json<Value>, Refusal> {
    let principal = whose.principal();
    let info = find(&gateway, &session, principal.clone()).await?;
    let by = By { principal: principal.to_string(), client: None, via: Via::Cli };
    for _ in 0..ARCHIVE_TRIES {
        super::interrupt::settle(&gateway, &info, &by).await?;
        gateway.leases.release_session(info.id).await?;
        let state = gateway.sessions.state(info.id).await?;
        if state.is_at_work() {
            continue;
        }
        // The loop may begin again at any moment: then its log would have no end.
        match gateway.sessions.archive(&info, &by, At::After(state.seq)).await {
            Err(SessionError::Log(LogError::Conflict)) => {}
            archived => {
                return archived
                    .map(|_| Json(json!({"id": info.id, "status": "archived"})))
                    .map_err(Refusal::from);
            }
        }
    }
    Err(Refusal::invalid(format!(
        "session {} changes again and again: end what works in it, then try again",
        name(&info)
    )))
}

async fn delete(
    State(gateway): State<Arc<Gateway>>,
    Path(session): Path<String>,
    Query(whose): Query<Whose>,
) -> Result<Json<Value>, Refusal> {
    let info = find(&gateway, &session, whose.principal()).await?;
    gateway.leases.release_session(info.id).await?;
    gateway.sessions.delete(&info).await?;
    // What is not done when this process ends is done by the next.
    let removing = gateway.tasks.spawn({
        let gateway = Arc::clone(&gateway);
        async move { gateway.closing.run_until_cancelled(gateway.leases.remove_work(info.id)).await }
    });
    let _ = timeout(REMOVING, removing).await;
    let mut answer = json!({"id": info.id, "deleted": true});
    let left = gateway.leases.far_work_left(info.id).await?;
    if !left.is_empty() {
        answer["left_elsewhere"] = left.into();
    }
    Ok(Json(answer))
}

pub(super) async fn find(
    gateway: &Gateway,
    session: &str,
    principal: Principal,
) -> Result<SessionInfo, Refusal> {
    let wanted: SessionRef = session.parse()?;
    match gateway.sessions.find(&principal, &wanted).await {
        Err(SessionError::NoSession) => Err(Refusal::missing(format!(
            "there is no session {wanted}: `manyhands session list` shows them"
        ))),
        found => Ok(found?),
    }
}

/// What a person calls a session.
pub(super) fn name(info: &SessionInfo) -> String {
    info.name.as_ref().map_or_else(|| info.id.to_string(), ToString::to_string)
}

fn state(gateway: &Gateway, info: &SessionInfo) -> Value {
    let mut state = info.to_json();
    state["hands"] = json!(gateway.leases.alive(info.id));
    state
}
