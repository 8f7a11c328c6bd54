//! `manyhands token …`

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::{delete, get};
use axum::{Json, Router};
use jiff::Timestamp;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Refusal;
use crate::serve::Gateway;

pub(super) fn router() -> Router<Arc<Gateway>> {
    Router::new().route("/", get(list).post(create)).route("/{name}", delete(revoke))
}

#[derive(Deserialize)]
struct New {
    name: String,
    expires_at: Option<Timestamp>,
}

async fn list(State(gateway): State<Arc<Gateway>>) -> Result<Json<Value>, Refusal> {
    Ok(Json(json!(gateway.tokens.list().await?)))
}

/// The one answer that carries a token: it was made just now, and the owner asked for it.
async fn create(State(gateway): State<Arc<Gateway>>, Json(new): Json<New>) -> Result<Json<Value>, Refusal> {
    let token = gateway.tokens.create(&new.name, new.expires_at).await?;
    Ok(Json(json!({
        "name": new.name,
        "principal": format!("local:{}", new.name),
        "expires_at": new.expires_at,
        "token": token.expose_secret(),
    })))
}

async fn revoke(
    State(gateway): State<Arc<Gateway>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Refusal> {
    gateway.tokens.revoke(&name).await?;
    Ok(Json(json!({"name": name, "revoked": true})))
}
