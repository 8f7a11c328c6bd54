//! The owner's socket: what only the machine's owner may do, and what every command asks.
//!
//! HTTP over `manyhands.sock` in the data directory. **Invariant:** only a process of the user that runs the
//! gateway (or of root), in the gateway's own PID namespace, is answered; nothing that is served here is served on TCP.

mod confirm;
mod files;
mod hand;
mod interrupt;
mod moves;
mod peer;
mod run;
mod session;
pub mod stdio;
mod token;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::Gateway;
use super::connections::{self, Bounds};
use crate::config::ConfigError;
use crate::error::{self, Faced};
use peer::Stranger;

pub use files::{ERROR_TRAILER, LEFT_OUT_TRAILER};

/// What a process is told that this user or root runs in another PID namespace.
const ELSEWHERE: &str = "the gateway answers only commands of its own PID namespace, and this one runs in another, such as a \
                         container or a sandbox: run it where the gateway runs";
/// How many are told so at a time; the others are hung up on.
const TOLD_MAX: usize = 8;
/// How long telling one may take.
const TELLING_MAX: Duration = Duration::from_secs(2);

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
        "waits": gateway.unasked().map(|question| ConfigError::NeedsYes(Box::new(question)).to_string()),
    }))
}

/// Serves until the gateway closes.
pub(super) async fn serve(listener: UnixListener, gateway: Arc<Gateway>) {
    let closing = gateway.closing.clone();
    let owner_only =
        OwnerOnly { listener, tasks: gateway.tasks.clone(), told: Arc::new(Semaphore::new(TOLD_MAX)) };
    connections::serve(owner_only, router(gateway), Bounds::owner(), closing).await;
}

/// Accepts the owner of this process and root, outside of sandboxes and containers, and turns everybody else away.
struct OwnerOnly {
    listener: UnixListener,
    tasks: TaskTracker,
    told: Arc<Semaphore>,
}

impl connections::Listener for OwnerOnly {
    type Socket = UnixStream;

    async fn accept(&mut self) -> std::io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let Err(stranger) = peer::check(&stream) else { return Ok(stream) };
            match &stranger {
                Stranger::User(uid) => {
                    tracing::warn!(peer.uid = uid, "another user was turned away from the owner's socket");
                }
                other => tracing::warn!(why = %other, "a process was turned away from the owner's socket"),
            }
            if let (Stranger::Elsewhere(_), Ok(one)) = (stranger, self.told.clone().try_acquire_owned()) {
                self.tasks.spawn(async move {
                    let _ = timeout(TELLING_MAX, tell(stream)).await;
                    drop(one);
                });
            }
        }
    }
}

/// Says why nothing is answered, and hangs up.
async fn tell(mut stream: UnixStream) -> std::io::Result<()> {
    let body = json!({"error": ELSEWHERE}).to_string();
    let head = format!(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // Its question first: an answer to none is an error to whoever asks.
    let _question = stream.read(&mut [0; 1024]).await?;
    stream.write_all((head + &body).as_bytes()).await?;
    stream.shutdown().await?;
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
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
