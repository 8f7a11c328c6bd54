//! A plain MCP client in either era: it sends what it is told to, and hides nothing of what comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};
use tokio::time::timeout;

/// Ten times what anything here takes, apart from what is meant to be silent.
pub(crate) const HANGS: Duration = Duration::from_secs(30);

/// How a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Modern,
    Legacy,
}

pub(crate) const ERAS: [Era; 2] = [Era::Modern, Era::Legacy];

impl Era {
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Modern => "2026-07-28",
            Self::Legacy => "2025-11-25",
        }
    }
}

/// One client at one endpoint.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    pub(crate) url: String,
    pub(crate) token: String,
    pub(crate) era: Era,
    /// The MCP session of the legacy era.
    pub(crate) mcp_session: Option<String>,
    headers: HeaderMap,
    name: String,
    capabilities: Value,
    next: Arc<AtomicI64>,
}

/// A gateway as a person starts it.
pub(crate) async fn gateway() -> Result<Gateway> {
    Gateway::start(Options::default()).await
}

/// Makes a token with the command line, as its owner does.
pub(crate) fn token(gateway: &Gateway, name: &str) -> Result<String> {
    let made = gateway.cli(&["token", "new", name])?;
    ensure!(made.status.success(), "{made:?}");
    let said = String::from_utf8(made.stdout)?;
    let token = said.split_whitespace().find(|word| word.starts_with("mh_")).context("no token in it")?;
    Ok(token.to_owned())
}

impl Client {
    /// The owner's client at the endpoint of this session.
    pub(crate) async fn owner(gateway: &Gateway, era: Era, session: &str) -> Result<Self> {
        Self::at(&gateway.session_url(session), &gateway.owner_token()?, era).await
    }

    /// A client at `url`; of the legacy era, with its handshake done.
    pub(crate) async fn at(url: &str, token: &str, era: Era) -> Result<Self> {
        let mut client = Self::unconnected(url, token, era);
        if era == Era::Legacy {
            client.initialize().await?;
        }
        Ok(client)
    }

    /// A client that has sent nothing yet.
    pub(crate) fn unconnected(url: &str, token: &str, era: Era) -> Self {
        Self {
            http: reqwest::Client::new(),
            url: url.to_owned(),
            token: token.to_owned(),
            era,
            mcp_session: None,
            headers: HeaderMap::new(),
            name: "test".to_owned(),
            capabilities: json!({}),
            next: Arc::new(AtomicI64::new(1)),
        }
    }

    /// With one more header on every request.
    pub(crate) fn with_header(mut self, name: &'static str, value: &str) -> Result<Self> {
        self.headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
        Ok(self)
    }

    /// Under another name.
    pub(crate) fn called(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Declaring these capabilities.
    pub(crate) fn declaring(mut self, capabilities: Value) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// The legacy handshake; returns the answer of `initialize`.
    pub(crate) async fn initialize(&mut self) -> Result<Value> {
        let params = json!({
            "protocolVersion": self.era.version(), "capabilities": self.capabilities,
            "clientInfo": { "name": self.name, "version": "1" },
        });
        let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let response = self.post(&body, &[]).await?;
        let session = response.headers().get("mcp-session-id");
        let session = session.with_context(|| format!("no session: {response:?}"))?.to_str()?.to_owned();
        let answer = Stream::of(response, Value::from(0)).answer().await?;
        self.mcp_session = Some(session);
        let done = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        ensure!(self.post(&done, &[]).await?.status() == 202);
        Ok(answer)
    }

    /// Sends a body with the headers of every request, and further ones.
    pub(crate) async fn post(&self, body: &Value, further: &[(&str, &str)]) -> Result<reqwest::Response> {
        let mut request = self
            .http
            .post(&self.url)
            .bearer_auth(&self.token)
            .header("Accept", "application/json, text/event-stream")
            .header("MCP-Protocol-Version", self.era.version())
            .headers(self.headers.clone())
            .json(body);
        for (name, value) in further {
            request = request.header(*name, *value);
        }
        if let Some(session) = &self.mcp_session {
            request = request.header("Mcp-Session-Id", session);
        }
        Ok(request.send().await?)
    }

    /// Sends a request; its answer is still to come. Dropping that closes the connection.
    pub(crate) async fn open(&self, method: &str, params: Value) -> Result<Stream> {
        let id = Value::from(self.next.fetch_add(1, Ordering::SeqCst));
        self.open_as(id, method, params).await
    }

    /// The same under an id of the caller's choice.
    pub(crate) async fn open_as(&self, id: Value, method: &str, mut params: Value) -> Result<Stream> {
        let name = ["name", "uri", "taskId"].iter().find_map(|key| params[key].as_str().map(str::to_owned));
        let mut further = Vec::new();
        let encoded;
        if self.era == Era::Modern {
            let meta = &mut params["_meta"];
            meta["io.modelcontextprotocol/protocolVersion"] = self.era.version().into();
            meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
            meta["io.modelcontextprotocol/clientInfo"] = json!({ "name": self.name, "version": "1" });
            further.push(("Mcp-Method", method));
            if let Some(name) = &name {
                encoded = mirrored(name);
                further.push(("Mcp-Name", &encoded));
            }
        }
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        Ok(Stream::of(self.post(&body, &further).await?, id))
    }

    /// The whole answer to a request: its JSON-RPC message.
    pub(crate) async fn request(&self, method: &str, params: Value) -> Result<Value> {
        self.open(method, params).await?.answer().await
    }

    /// The result of a request.
    pub(crate) async fn result(&self, method: &str, params: Value) -> Result<Value> {
        let mut answer = self.request(method, params).await?;
        ensure!(answer["result"].is_object(), "no result: {answer}");
        Ok(answer["result"].take())
    }

    /// The error of a request.
    pub(crate) async fn error(&self, method: &str, params: Value) -> Result<Value> {
        let mut answer = self.request(method, params).await?;
        ensure!(answer["error"].is_object(), "no error: {answer}");
        Ok(answer["error"].take())
    }

    /// The result of a tool.
    pub(crate) async fn call(&self, name: &str, arguments: Value) -> Result<Value> {
        self.result("tools/call", json!({ "name": name, "arguments": arguments })).await
    }

    /// A call of the sandbox's `bash` that is still to be answered.
    pub(crate) async fn bash(&self, command: &str, meta: Value) -> Result<Stream> {
        let arguments = json!({ "command": command });
        let params = json!({ "name": "sandbox__bash", "arguments": arguments, "_meta": meta });
        self.open("tools/call", params).await
    }

    /// The whole JSON of a session tool that must succeed.
    pub(crate) async fn ask(&self, name: &str, arguments: Value) -> Result<Value> {
        let mut result = self.call(name, arguments).await?;
        ensure!(result["isError"] != true, "{name}: {result}");
        let text: Value = serde_json::from_str(text(&result))?;
        ensure!(text == result["structuredContent"], "text and structuredContent differ: {result}");
        Ok(result["structuredContent"].take())
    }

    /// The first contents of a resource.
    pub(crate) async fn read(&self, uri: &str) -> Result<Value> {
        let mut result = self.result("resources/read", json!({ "uri": uri })).await?;
        Ok(result["contents"][0].take())
    }

    /// A resource that is JSON.
    pub(crate) async fn read_json(&self, uri: &str) -> Result<Value> {
        let contents = self.read(uri).await?;
        ensure!(contents["mimeType"] == "application/json", "{contents}");
        Ok(serde_json::from_str(contents["text"].as_str().context("no text")?)?)
    }

    /// Listens for changes of lists and of resources, in the way of the era. The subscription holds when this returns.
    pub(crate) async fn listen(&self, uris: &[&str]) -> Result<Stream> {
        if self.era == Era::Legacy {
            let stream = self.get(&[]).await?;
            for uri in uris {
                self.result("resources/subscribe", json!({ "uri": uri })).await?;
            }
            return Ok(stream);
        }
        let mut stream = self
            .open(
                "subscriptions/listen",
                json!({ "notifications": {
                    "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true,
                    "resourceSubscriptions": uris,
                }}),
            )
            .await?;
        let first = stream.next().await?.context("no acknowledgement")?;
        ensure!(first["method"] == "notifications/subscriptions/acknowledged", "{first}");
        Ok(stream)
    }

    /// The stream of a legacy session, from an event on when its id is given.
    pub(crate) async fn get(&self, further: &[(&str, &str)]) -> Result<Stream> {
        let session = self.mcp_session.as_deref().context("no session")?;
        let mut request = self
            .http
            .get(&self.url)
            .bearer_auth(&self.token)
            .header("Accept", "text/event-stream")
            .header("MCP-Protocol-Version", self.era.version())
            .header("Mcp-Session-Id", session);
        for (name, value) in further {
            request = request.header(*name, *value);
        }
        Ok(Stream::of(request.send().await?, Value::Null))
    }
}

/// A value as `Mcp-Name` carries it.
fn mirrored(name: &str) -> String {
    use base64::Engine as _;
    if name.bytes().all(|byte| (0x20..0x7f).contains(&byte)) && !name.starts_with("=?") {
        return name.to_owned();
    }
    format!("=?base64?{}?=", base64::prelude::BASE64_STANDARD.encode(name))
}

/// The first text of a tool's result.
pub(crate) fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_default()
}

/// What comes in answer to one request: notifications, then the answer. A plain JSON answer comes as one message.
pub(crate) struct Stream {
    response: reqwest::Response,
    id: Value,
    unread: Vec<u8>,
    /// The id of the last event, where there was one.
    pub(crate) event_id: Option<String>,
    over: bool,
}

impl Stream {
    fn of(response: reqwest::Response, id: Value) -> Self {
        Self { response, id, unread: Vec::new(), event_id: None, over: false }
    }

    /// The id of the request.
    pub(crate) fn id(&self) -> &Value {
        &self.id
    }

    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The next message, or none when the answer has ended.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>> {
        timeout(HANGS, self.message()).await.context("nothing came")?
    }

    /// The next message, however long it takes.
    pub(crate) async fn patient(&mut self) -> Result<Option<Value>> {
        self.message().await
    }

    /// The next message, if one comes within this time.
    pub(crate) async fn within(&mut self, time: Duration) -> Result<Option<Value>> {
        timeout(time, self.message()).await.unwrap_or(Ok(None))
    }

    async fn message(&mut self) -> Result<Option<Value>> {
        let kind = self.response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            while let Some(chunk) = self.response.chunk().await? {
                self.unread.extend_from_slice(&chunk);
            }
            if std::mem::replace(&mut self.over, true) {
                return Ok(None);
            }
            let body = String::from_utf8_lossy(&self.unread);
            return Ok(Some(serde_json::from_str(&body).unwrap_or_else(|_| json!({ "body": body }))));
        }
        loop {
            while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let line = String::from_utf8(line)?;
                if let Some(id) = line.strip_prefix("id:") {
                    self.event_id = Some(id.trim().to_owned());
                }
                if let Some(data) = line.strip_prefix("data:").filter(|data| !data.trim().is_empty()) {
                    return Ok(Some(serde_json::from_str(data)?));
                }
            }
            match self.response.chunk().await? {
                Some(chunk) => self.unread.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }

    /// Everything up to the answer, and that.
    pub(crate) async fn all(mut self) -> Result<(Vec<Value>, Value)> {
        let mut before = Vec::new();
        while let Some(message) = self.next().await? {
            if message.get("method").is_some() {
                before.push(message);
                continue;
            }
            ensure!(
                message["id"] == self.id || message.get("error").is_some() || message.get("body").is_some(),
                "{message}"
            );
            let after = self.next().await?;
            ensure!(after.is_none(), "something came behind the answer: {after:?}");
            return Ok((before, message));
        }
        bail!("the stream ended without an answer, after {before:?}")
    }

    /// The answer.
    pub(crate) async fn answer(self) -> Result<Value> {
        Ok(self.all().await?.1)
    }

    /// The result of a tool.
    pub(crate) async fn result(self) -> Result<Value> {
        let mut answer = self.answer().await?;
        ensure!(answer["result"].is_object(), "no result: {answer}");
        Ok(answer["result"].take())
    }
}

/// Waits until `done` says so.
pub(crate) async fn soon(mut done: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    timeout(HANGS, async {
        while !done().await? {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    })
    .await
    .context("it did not happen in time")?
}
