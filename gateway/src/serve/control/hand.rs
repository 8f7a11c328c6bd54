//! `manyhands hand …`

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Refusal, files, moves};
use crate::access::Principal;
use crate::calls::{Answer, Ask, News};
use crate::error;
use crate::hand::{HandConfig, HandName};
use crate::registry::{Look, RegistryError};
use crate::serve::Gateway;
use crate::session::{By, Via};

pub(super) fn router() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/", get(list).post(add))
        .route("/{hand}", get(show).delete(remove))
        .route("/{hand}/call", post(call))
        .route("/{hand}/move", post(moves::to_session))
        .route("/{hand}/release", post(moves::release))
        .route("/{hand}/checkpoint", post(moves::checkpoint))
        .route("/{hand}/restore", post(moves::restore))
        .route("/{hand}/files", get(files::copy_out).put(files::copy_in))
}

#[derive(Deserialize)]
struct New {
    name: String,
    config: HandConfig,
    /// Whether an MCP server is added without a look at it.
    #[serde(default)]
    unseen: bool,
}

#[derive(Deserialize)]
struct Called {
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    session: String,
}

async fn list(State(gateway): State<Arc<Gateway>>) -> Json<Value> {
    Json(gateway.registry.list().iter().map(|hand| hand.describe()).collect())
}

async fn show(State(gateway): State<Arc<Gateway>>, Path(hand): Path<String>) -> Result<Json<Value>, Refusal> {
    Ok(Json(gateway.registry.get(&hand)?.describe()))
}

async fn add(State(gateway): State<Arc<Gateway>>, Json(new): Json<New>) -> Result<Json<Value>, Refusal> {
    let name: HandName = new.name.parse().map_err(RegistryError::from)?;
    let look = if new.unseen { Look::Later } else { Look::First };
    Ok(Json(gateway.registry.add(&name, &new.config, look).await?.describe()))
}

async fn remove(
    State(gateway): State<Arc<Gateway>>,
    Path(hand): Path<String>,
) -> Result<Json<Value>, Refusal> {
    let name: HandName = hand.parse().map_err(RegistryError::from)?;
    if let Some(removed) = gateway.registry.remove(&name).await? {
        gateway.leases.release_of(&removed).await;
    }
    Ok(Json(json!({"name": name, "removed": true})))
}

/// One call of one tool, logged like any other. Answers in lines: `{"step": …}` as often as something is done before it
/// runs, then `{"answer": …}` or `{"error": …}`.
async fn call(
    State(gateway): State<Arc<Gateway>>,
    Path(hand): Path<String>,
    Json(called): Json<Called>,
) -> Result<Response, Refusal> {
    let hand = gateway.registry.get(&hand)?;
    if let Some(why) = &hand.refused {
        return Err(Refusal::invalid(format!("the hand {} can't be used: {why}", hand.name)));
    }
    if let Some(mcp) = hand.hand.mcp().filter(|mcp| mcp.catalogue().version.is_empty()) {
        // Nobody has seen yet what it offers.
        mcp.refresh().await.map_err(|error| Refusal::invalid(error.to_string()))?;
    }
    let tool = hand.tool(&called.tool);
    let tool = tool
        .ok_or_else(|| Refusal::missing(format!("the hand {} has no tool {:?}", hand.name, called.tool)))?;
    let principal = Principal::owner();
    let by = By { principal: principal.to_string(), client: None, via: Via::Cli };
    let session = gateway.sessions.open(&principal, &called.session.parse()?, &by).await?.id;
    let (arguments, caller) = (called.arguments, Arc::default());
    let ask = Ask { by, principal, session, hand, tool, arguments, key: None, caller, turn: None };
    let ticket = gateway.calls.begin(ask)?;
    let lines = stream::unfold(Some(ticket), |ticket| async {
        let mut ticket = ticket?;
        loop {
            let (line, more) = match ticket.next().await {
                News::Step(what) => (json!({"step": &*what}), Some(ticket)),
                News::Ended(Ok(answer)) => (json!({"answer": shown(&answer)}), None),
                News::Ended(Err(error)) => (json!({"error": error::say(&error)}), None),
                News::Output(_) | News::Notice(_) | News::Question(_) => continue,
            };
            return Some((Ok::<_, Infallible>(format!("{line}\n")), more));
        }
    });
    Ok(Body::from_stream(lines).into_response())
}

fn shown(answer: &Answer) -> Value {
    json!({
        "session": answer.session,
        "seq": answer.seq,
        "outcome": answer.outcome,
        "is_error": answer.is_error(),
        "content": answer.blocks(),
        "output": answer.output_uri(),
    })
}
