//! A client in either era that keeps every byte of what it is told, and answers whatever it is asked, always alike.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Ten times what anything here takes.
const HANGS: Duration = Duration::from_mins(1);
/// How long after its response a log message may come on another stream.
const LATE: Duration = Duration::from_secs(5);
/// The most rounds of questions of one request.
const ROUNDS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Era {
    Modern,
    Legacy,
}

impl Era {
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::Modern => "2026-07-28",
            Self::Legacy => "2025-11-25",
        }
    }
}

/// What came of one request.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// `params` of progress and log messages, as they came.
    pub(super) news: Vec<Box<RawValue>>,
    /// Requests of the server: method and params. In an order of their own: eras differ in it.
    pub(super) questions: Vec<String>,
    /// `result` or `error` of the response, as it came, with its name around.
    pub(super) end: String,
}

#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
    era: Era,
    /// What it declares.
    capabilities: Value,
    session: Option<String>,
    next: u64,
    /// Log messages that came on the stream of the session, which is where a server may send them, too.
    standing: Option<Arc<Standing>>,
}

struct Standing {
    logs: Mutex<mpsc::UnboundedReceiver<Box<RawValue>>>,
    _reading: JoinSet<()>,
}

impl Client {
    pub(super) async fn connect(
        url: &str,
        token: Option<&str>,
        era: Era,
        capabilities: Value,
    ) -> Result<Self> {
        let mut client = Self {
            http: reqwest::Client::new(),
            url: url.to_owned(),
            token: token.map(str::to_owned),
            era,
            capabilities,
            session: None,
            next: 1,
            standing: None,
        };
        if era == Era::Legacy {
            client.initialize().await?;
        }
        Ok(client)
    }

    async fn initialize(&mut self) -> Result<()> {
        let params = json!({
            "protocolVersion": self.era.version(), "capabilities": self.capabilities,
            "clientInfo": {"name": "lossless", "version": "1"},
        });
        let message = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let response = self.post(&message, &[]).await?;
        let session = response.headers().get("mcp-session-id").context("no session")?.to_str()?.to_owned();
        drop(response.bytes().await?);
        self.session = Some(session);
        let done = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        ensure!(self.post(&done, &[]).await?.status() == 202);
        self.stand().await?;
        let told = self.request("logging/setLevel", json!({"level": "debug"})).await?;
        ensure!(told.end.starts_with("{\"result\""), "{told:?}");
        Ok(())
    }

    /// Opens the stream of the session.
    async fn stand(&mut self) -> Result<()> {
        let response = self.headers(self.http.get(&self.url)).send().await?;
        ensure!(response.status() == 200, "no stream: {response:?}");
        let (sender, logs) = mpsc::unbounded_channel();
        let mut stream = Stream::of(response);
        let mut reading = JoinSet::new();
        reading.spawn(async move {
            while let Ok(Some(text)) = stream.next().await {
                let Ok(Parts { method, params: Some(params), .. }) = serde_json::from_str(&text) else {
                    continue;
                };
                if method.as_deref() == Some("notifications/message") && sender.send(params).is_err() {
                    return;
                }
            }
        });
        self.standing = Some(Arc::new(Standing { logs: Mutex::new(logs), _reading: reading }));
        Ok(())
    }

    /// Waits for log messages on the stream of the session, until there are `wanted` news. Less, when they don't come.
    pub(super) async fn wait_for_logs(&self, told: &mut Told, wanted: usize) {
        let Some(standing) = &self.standing else { return };
        let mut logs = standing.logs.lock().await;
        while told.news.len() < wanted {
            let Ok(Some(log)) = timeout(LATE, logs.recv()).await else { return };
            told.news.push(log);
        }
    }

    /// Sends a request and sees it through, with all its questions.
    pub(super) async fn request(&mut self, method: &str, params: Value) -> Result<Told> {
        let what = format!("{method} {params}");
        timeout(HANGS, self.rounds(method, params)).await.with_context(|| format!("no end of {what}"))?
    }

    async fn rounds(&mut self, method: &str, mut params: Value) -> Result<Told> {
        let mut told = Told::default();
        for _ in 0..ROUNDS {
            self.round(method, &params, &mut told).await?;
            let end: Value = serde_json::from_str(&told.end)?;
            if end["result"]["resultType"] != "input_required" {
                told.questions.sort();
                return Ok(told);
            }
            let mut answers = Map::new();
            for (key, question) in end["result"]["inputRequests"].as_object().context("no questions")? {
                told.questions.push(json!([question["method"], question["params"]]).to_string());
                answers.insert(key.clone(), answer(question));
            }
            params["inputResponses"] = answers.into();
            match &end["result"]["requestState"] {
                Value::Null => drop(params.as_object_mut().and_then(|params| params.remove("requestState"))),
                state => params["requestState"] = state.clone(),
            }
        }
        bail!("{ROUNDS} rounds of questions, and no end")
    }

    async fn round(&mut self, method: &str, params: &Value, told: &mut Told) -> Result<()> {
        let id = self.next;
        self.next += 1;
        let mut params = params.clone();
        let mut further = Vec::new();
        let meta = &mut params["_meta"];
        if method == "tools/call" {
            meta["progressToken"] = "lossless 符".into();
            meta["vendor.example/from-client"] = json!({"kept": [1.5, null]});
        }
        if self.era == Era::Modern {
            meta["io.modelcontextprotocol/protocolVersion"] = self.era.version().into();
            meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
            meta["io.modelcontextprotocol/clientInfo"] = json!({"name": "lossless", "version": "1"});
            meta["io.modelcontextprotocol/logLevel"] = "debug".into();
            further.push(("Mcp-Method".to_owned(), method.to_owned()));
            let name = ["name", "uri", "taskId"].iter().find_map(|key| params[key].as_str());
            further.extend(name.map(|name| ("Mcp-Name".to_owned(), name.to_owned())));
            if params["name"] == "test_custom_header" {
                let region = params["arguments"]["region"].as_str().unwrap_or_default();
                further.push(("Mcp-Param-Region".to_owned(), region.to_owned()));
            }
        }
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut stream = Stream::of(self.post(&message, &further).await?);
        loop {
            match stream.next().await? {
                Some(text) => {
                    if self.take(&text, id, told).await? {
                        return Ok(());
                    }
                }
                // It ended early: the rest is where it ended (SEP-1699).
                None => {
                    let last = stream.last.take().context("nothing to go on from")?;
                    stream = Stream::of(self.resume(last).await?);
                }
            }
        }
    }

    /// True when it is the response.
    async fn take(&self, text: &str, id: u64, told: &mut Told) -> Result<bool> {
        let message: Value = serde_json::from_str(text).with_context(|| text.to_owned())?;
        let raw: Map<String, Value> = serde_json::from_str(text)?;
        if raw.contains_key("result") || raw.contains_key("error") {
            ensure!(message["id"] == id, "{text}");
            told.end = end(text)?;
            return Ok(true);
        }
        if message.get("id").is_none() {
            let Parts { params, .. } = serde_json::from_str(text)?;
            told.news.extend(params);
            return Ok(false);
        }
        told.questions.push(json!([message["method"], message["params"]]).to_string());
        let response = json!({"jsonrpc": "2.0", "id": message["id"], "result": answer(&message)});
        ensure!(self.post(&response, &[]).await?.status() == 202);
        Ok(false)
    }

    async fn post(&self, message: &Value, further: &[(String, String)]) -> Result<reqwest::Response> {
        let mut request = self.headers(self.http.post(&self.url)).json(message);
        for (name, value) in further {
            request = request.header(name, value);
        }
        Ok(request.send().await?)
    }

    async fn resume(&self, last: String) -> Result<reqwest::Response> {
        Ok(self.headers(self.http.get(&self.url)).header("Last-Event-ID", last).send().await?)
    }

    fn headers(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        let mut request = request
            .header("Accept", "application/json, text/event-stream")
            .header("MCP-Protocol-Version", self.era.version());
        if let Some(session) = &self.session {
            request = request.header("Mcp-Session-Id", session);
        }
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }
}

/// The parts of a message that are kept as they are written.
#[derive(serde::Deserialize)]
struct Parts {
    method: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<Box<RawValue>>,
}

fn end(text: &str) -> Result<String> {
    let parts: Parts = serde_json::from_str(text)?;
    match (parts.result, parts.error) {
        (Some(result), _) => Ok(format!("{{\"result\":{result}}}")),
        (None, Some(error)) => Ok(format!("{{\"error\":{error}}}")),
        (None, None) => bail!("no response: {text}"),
    }
}

/// The same question has the same answer.
pub(super) fn answer(question: &Value) -> Value {
    match question["method"].as_str() {
        Some("roots/list") => json!({"roots": [{"uri": "file:///tmp/ä", "name": "根"}]}),
        Some("sampling/createMessage") => json!({
            "role": "assistant", "content": {"type": "text", "text": "Paris 巴黎"}, "model": "m", "stopReason": "endTurn",
        }),
        _ => {
            let properties = question["params"]["requestedSchema"]["properties"].as_object();
            let filled = properties.into_iter().flatten().map(|(name, schema)| {
                let value = match schema["type"].as_str() {
                    Some("boolean") => true.into(),
                    Some("integer" | "number") => 3.into(),
                    Some("array") => json!([]),
                    _ => schema["enum"][0].as_str().unwrap_or("名").into(),
                };
                (name.clone(), value)
            });
            json!({"action": "accept", "content": filled.collect::<Map<_, _>>()})
        }
    }
}

/// Messages of one answer.
struct Stream {
    response: reqwest::Response,
    unread: Vec<u8>,
    /// The id of the last event.
    last: Option<String>,
    over: bool,
}

impl Stream {
    fn of(response: reqwest::Response) -> Self {
        Self { response, unread: Vec::new(), last: None, over: false }
    }

    async fn next(&mut self) -> Result<Option<String>> {
        let kind = self.response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            while let Some(chunk) = self.response.chunk().await? {
                self.unread.extend_from_slice(&chunk);
            }
            if std::mem::replace(&mut self.over, true) {
                return Ok(None);
            }
            return Ok(Some(String::from_utf8(std::mem::take(&mut self.unread))?));
        }
        loop {
            while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let line = String::from_utf8(line)?;
                if let Some(id) = line.strip_prefix("id:") {
                    self.last = Some(id.trim().to_owned());
                }
                if let Some(data) = line.strip_prefix("data:").filter(|data| !data.trim().is_empty()) {
                    return Ok(Some(data.trim().to_owned()));
                }
            }
            match self.response.chunk().await? {
                Some(chunk) => self.unread.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }
}
