//! The owner's socket: what only the machine's owner may do, and what every command asks.
//!
//! HTTP over `manyhands.sock` in the data directory. **Invariant:** only a process of the user that runs the
//! gateway (or of root) is answered; nothing that is served here is served on TCP.

mod confirm;
mod files;
mod hand;
mod interrupt;
mod moves;
mod run;
mod session;
pub mod stdio;
mod token;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};

use super::connections::{self, Bounds};
use super::Gateway;
use crate::error::{self, Faced};
pub use files::{ERROR_TRAILER, LEFT_OUT_TRAILER};

/// Everything that commands can ask for.
pub fn router(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/about", get(about))
        .nest("/hands", hand::router())
        .nest("/sessions", session::router().merge(run::router()))
        .nest("/tokens", token::router())
        .merge(stdio::router())
        .with_state(gateway)
}

/// Who answers, and where it serves HTTP, if it does.
async fn about(State(gateway): State<Arc<Gateway>>) -> axum::Json<Value> {
    axum::Json(json!({
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "listen": gateway.address(),
    }))
}

/// Serves until the gateway closes.
pub(super) async fn serve(listener: UnixListener, gateway: Arc<Gateway>) {
    let closing = gateway.closing.clone();
    connections::serve(OwnerOnly(listener), router(gateway), Bounds::owner(), closing).await;
}

/// Accepts the owner of this process and root, and hangs up on everybody else.
struct OwnerOnly(UnixListener);

impl connections::Listener for OwnerOnly {
    type Socket = UnixStream;

    async fn accept(&mut self) -> std::io::Result<UnixStream> {
        loop {
            let (stream, _) = self.0.accept().await?;
            let ours = rustix::process::geteuid().as_raw();
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == ours || peer.uid() == 0 => return Ok(stream),
                Ok(peer) => tracing::warn!(
                    peer.uid = peer.uid(),
                    "another user was turned away from the owner's socket"
                ),
                Err(error) => {
                    tracing::warn!(error = %error, "a caller of the owner's socket could not be identified");
                }
            }
        }
    }
}

/// An error as commands print it.
pub(super) struct Refusal(StatusCode, String);

impl<E: Faced> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self(error::status(&error), error::say(&error))
    }
}

impl Refusal {
    pub(super) fn invalid(sentence: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, sentence.into())
    }

    pub(super) fn missing(sentence: impl Into<String>) -> Self {
        Self(StatusCode::NOT_FOUND, sentence.into())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, axum::Json(json!({"error": self.1}))).into_response()
    }
}
