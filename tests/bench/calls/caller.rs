//! One MCP client on one kept-alive connection, raw, so that it costs as little as a client can.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Which protocol a client or a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    /// 2026-07-28, stateless.
    Modern,
    /// 2025-11-25, with a session.
    Legacy,
}

impl Era {
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Modern => "2026-07-28",
            Self::Legacy => "2025-11-25",
        }
    }
}

/// Where calls go.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) era: Era,
    /// `HOST:PORT`
    pub(crate) authority: String,
    pub(crate) path: String,
    /// The bearer token, where one is needed.
    pub(crate) token: Option<String>,
}

/// A connection, and in the legacy era a session.
pub(crate) struct Caller {
    target: Target,
    sender: http1::SendRequest<Full<Bytes>>,
    session: Option<String>,
    last_id: u64,
    /// Ends with the caller.
    _driver: JoinSet<hyper::Result<()>>,
}

impl Caller {
    pub(crate) async fn connect(target: &Target) -> Result<Self> {
        let stream = TcpStream::connect(&target.authority).await?;
        stream.set_nodelay(true)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        let mut drivers = JoinSet::new();
        drivers.spawn(driver);
        let mut caller = Self { target: target.clone(), sender, session: None, last_id: 0, _driver: drivers };
        if target.era == Era::Legacy {
            let about = json!({"protocolVersion": target.era.version(), "capabilities": {},
                "clientInfo": {"name": "bench", "version": "0"}});
            let (_, session) = caller.ask("initialize", about).await?;
            caller.session = session;
            let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
            caller.post("notifications/initialized", None, &initialized).await?;
        }
        Ok(caller)
    }

    /// One call of `echo`, whose answer is looked at.
    pub(crate) async fn echo(&mut self, text: &str) -> Result<()> {
        let params = json!({"name": "echo", "arguments": {"text": text}});
        let (result, _) = self.ask("tools/call", params).await?;
        ensure!(result["content"][0]["text"] == text, "not the echo: {result}");
        Ok(())
    }

    /// Ends the session, so that a long run does not pile them up.
    pub(crate) async fn close(mut self) -> Result<()> {
        let Some(session) = &self.session else { return Ok(()) };
        let mut request = Request::delete(&self.target.path)
            .header("host", &self.target.authority)
            .header("mcp-protocol-version", self.target.era.version())
            .header("mcp-session-id", session);
        if let Some(token) = &self.target.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.sender.ready().await?;
        self.sender.send_request(request.body(Full::default())?).await?.into_body().collect().await?;
        Ok(())
    }

    async fn ask(&mut self, method: &str, mut params: Value) -> Result<(Value, Option<String>)> {
        if self.target.era == Era::Modern {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": self.target.era.version(),
                "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "0"},
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        self.last_id += 1;
        let name = params["name"].as_str().map(str::to_owned);
        let message = json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params});
        let (body, session) = self.post(method, name.as_deref(), &message).await?;
        let mut answer: Value = serde_json::from_slice(&body)
            .with_context(|| format!("{method}: {}", String::from_utf8_lossy(&body)))?;
        if answer["id"] != json!(self.last_id) || !answer["error"].is_null() {
            bail!("{method}: {answer}");
        }
        Ok((answer["result"].take(), session))
    }

    /// The body of the answer, or the message of its event stream; and the session that it opens.
    async fn post(
        &mut self,
        method: &str,
        name: Option<&str>,
        message: &Value,
    ) -> Result<(Bytes, Option<String>)> {
        let mut request = Request::post(&self.target.path)
            .header("host", &self.target.authority)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(token) = &self.target.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if method != "initialize" {
            request = request.header("mcp-protocol-version", self.target.era.version());
        }
        if self.target.era == Era::Modern {
            request = request.header("mcp-method", method);
            if let Some(name) = name {
                request = request.header("mcp-name", name);
            }
        }
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        self.sender.ready().await?;
        let request = request.body(Full::new(Bytes::from(message.to_string())))?;
        let response = self.sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        ensure!(head.status.is_success(), "{method}: {} {}", head.status, String::from_utf8_lossy(&body));
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let session = header("mcp-session-id").map(str::to_owned);
        let is_stream = header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        Ok((if is_stream { last_message(&body) } else { body }, session))
    }
}

/// The last `data:` of an event stream that is not empty: the response.
fn last_message(body: &Bytes) -> Bytes {
    let data = body.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
    let last = data.map(<[u8]>::trim_ascii).rfind(|data| !data.is_empty());
    last.map_or_else(Bytes::new, |data| body.slice_ref(data))
}
