//! The owner of the data directory, wherever it is: another process behind its socket, or this one.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use axum::body::Body;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tower::ServiceExt as _;

use super::Setting;
use crate::serve::{Gateway, SOCKET_FILE, control};

/// Whoever answers commands.
pub(super) enum Owner {
    /// The process that owns the data directory.
    There(hyper::client::conn::http1::SendRequest<Body>),
    /// This process, until the command is done.
    Here(Arc<Gateway>),
}

impl Owner {
    /// Reaches the owner, or becomes it when there is none.
    pub(super) async fn reach(setting: &Setting) -> anyhow::Result<Self> {
        if let Some(stream) = socket(&setting.config.data).await {
            let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            let driver = connection.with_upgrades();
            // Ends with the sender, which is with this command.
            tokio::task::spawn(driver);
            return Ok(Self::There(sender));
        }
        Ok(Self::Here(Gateway::open(setting.config.clone()).await?))
    }

    /// Asks, and returns the answer as JSON. A refusal is an error in the owner's words.
    pub(super) async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<Value> {
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{}", refusal(&bytes));
        }
        serde_json::from_slice(&bytes).context("the gateway answered something that is not JSON")
    }

    /// Asks, and returns the answer as it comes.
    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<Response<Body>> {
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "manyhands")
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)?;
        Ok(match self {
            Self::There(sender) => sender.send_request(request).await?.map(Body::new),
            Self::Here(gateway) => match control::router(gateway.clone()).oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        })
    }

    /// Ends what this command began.
    pub(super) async fn leave(self) {
        if let Self::Here(gateway) = self {
            gateway.shutdown().await;
        }
    }
}

/// What a refusal says.
pub(super) fn refusal(bytes: &[u8]) -> String {
    serde_json::from_slice::<Value>(bytes)
        .ok()
        .and_then(|body| body["error"].as_str().map(str::to_owned))
        .unwrap_or_else(|| String::from_utf8_lossy(bytes).trim().to_owned())
}

/// The owner's socket, if somebody listens there.
pub(super) async fn socket(data: &Path) -> Option<UnixStream> {
    UnixStream::connect(data.join(SOCKET_FILE)).await.ok()
}

/// A path segment or query value, percent-encoded.
pub(super) fn encoded(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}
