//! `manyhands stdio` where another process owns the data directory: its bytes come here, and MCP is spoken here.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::{StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;

use super::Refusal;
use crate::access::Principal;
use crate::mcp::{self, Face, HandsInView, View, wire};
use crate::serve::Gateway;
use crate::session::SessionRef;

/// What the connection is upgraded to.
pub const PROTOCOL: &str = "mcp-stdio";

pub(super) fn router() -> Router<Arc<Gateway>> {
    Router::new().route("/stdio", get(upgrade))
}

#[derive(Deserialize)]
struct Wanted {
    session: String,
}

async fn upgrade(
    State(gateway): State<Arc<Gateway>>,
    Query(wanted): Query<Wanted>,
    request: Request,
) -> Result<Response, Refusal> {
    let session: SessionRef = wanted.session.parse()?;
    let tasks = gateway.tasks.clone();
    tasks.spawn(async move {
        match hyper::upgrade::on(request).await {
            Ok(upgraded) => {
                let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
                serve(&gateway, session, reader, writer).await;
            }
            Err(error) => tracing::warn!(error = %error, "a stdio client went away at once"),
        }
    });
    Ok((StatusCode::SWITCHING_PROTOCOLS, [(header::UPGRADE, PROTOCOL), (header::CONNECTION, "upgrade")])
        .into_response())
}

/// Speaks MCP on a pair of streams for the owner of this machine.
pub async fn serve(
    gateway: &Arc<Gateway>,
    session: SessionRef,
    reader: impl tokio::io::AsyncRead + Send + Unpin + 'static,
    writer: impl tokio::io::AsyncWrite + Send + Unpin + 'static,
) {
    let view = View { principal: Principal::owner(), session, hands: HandsInView::All };
    let face = Face::of(gateway.clone(), view);
    let hung_up = gateway.hung_up.child_token();
    if let Err(error) = wire::stdio::serve_raw(reader, writer, face, mcp::RAW_METHODS, hung_up).await {
        tracing::warn!(error = %error, "a stdio client was lost");
    }
}
