//! `manyhands hand move|release|checkpoint|restore`

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Refusal;
use super::session::find;
use crate::access::Principal;
use crate::calls::RunningCalls;
use crate::leases::{Keeping, LeaseError, Move};
use crate::serve::Gateway;
use crate::session::{By, Via};

#[derive(Deserialize)]
pub(super) struct Way {
    session: String,
    to: String,
    /// Whether running calls are cancelled for it.
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize)]
pub(super) struct Holder {
    session: String,
}

#[derive(Deserialize)]
pub(super) struct Named {
    session: String,
    name: String,
}

pub(super) async fn to_session(
    State(gateway): State<Arc<Gateway>>,
    Path(hand): Path<String>,
    Json(way): Json<Way>,
) -> Result<Json<Value>, Refusal> {
    let hand = gateway.registry.get(&hand)?;
    let from = find(&gateway, &way.session, Principal::owner()).await?;
    let target = find(&gateway, &way.to, Principal::owner()).await?;
    let (calls, name) = (gateway.calls.clone(), hand.name.clone());
    let (from_id, to_id) = (from.id, target.id);
    let moving = Move { from, to: target, hand, by: by() };
    let running = if way.force { RunningCalls::Cancelled } else { RunningCalls::Stay };
    // On a task of its own: what is half moved would be nobody's.
    let moved = gateway.tasks.spawn(async move { calls.move_hand(&moving, running).await });
    let moved = moved.await.unwrap_or(Err(LeaseError::Panicked))?;
    Ok(Json(json!({
        "hand": name,
        "from": from_id.to_string(),
        "to": to_id.to_string(),
        "instance": moved.instance,
        "kept_aside": moved.kept_aside,
    })))
}

pub(super) async fn release(
    State(gateway): State<Arc<Gateway>>,
    Path(hand): Path<String>,
    Json(Holder { session }): Json<Holder>,
) -> Result<Json<Value>, Refusal> {
    let hand = gateway.registry.get(&hand)?;
    let session = find(&gateway, &session, Principal::owner()).await?.id;
    let released = gateway.leases.release(session, &hand.name).await?;
    Ok(Json(json!({"hand": hand.name, "session": session.to_string(), "released": released})))
}

pub(super) async fn checkpoint(
    gateway: State<Arc<Gateway>>,
    hand: Path<String>,
    named: Json<Named>,
) -> Result<Json<Value>, Refusal> {
    keep(gateway, hand, named, Keeping::Checkpoint).await
}

pub(super) async fn restore(
    gateway: State<Arc<Gateway>>,
    hand: Path<String>,
    named: Json<Named>,
) -> Result<Json<Value>, Refusal> {
    keep(gateway, hand, named, Keeping::Restore).await
}

async fn keep(
    State(gateway): State<Arc<Gateway>>,
    Path(hand): Path<String>,
    Json(Named { session, name }): Json<Named>,
    keeping: Keeping,
) -> Result<Json<Value>, Refusal> {
    let hand = gateway.registry.get(&hand)?;
    let session = find(&gateway, &session, Principal::owner()).await?;
    let answer = json!({"hand": hand.name, "session": session.id.to_string(), "name": name});
    let leases = gateway.leases.clone();
    let kept = gateway.tasks.spawn(async move { leases.keep(&session, &hand, &name, &by(), keeping).await });
    kept.await.unwrap_or(Err(LeaseError::Panicked))?;
    Ok(Json(answer))
}

fn by() -> By {
    By { principal: Principal::owner().to_string(), client: None, via: Via::Cli }
}
