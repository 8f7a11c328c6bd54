//! A client that asks for one thing at a time, of whichever gateway is there.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tests::gateway::Gateway;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

/// The protocol version in every request: there is no connection that anything depends on.
const VERSION: &str = "2026-07-28";

/// Somebody with the owner's token.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
    token: String,
}

/// What a call gave.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) outcome: String,
    pub(crate) text: String,
    pub(crate) seq: i64,
    pub(crate) replayed: bool,
}

impl Client {
    pub(crate) fn of(gateway: &Gateway) -> Result<Self> {
        let (base, token) = (gateway.url().to_owned(), gateway.owner_token()?);
        Ok(Self { http: reqwest::Client::new(), base, token })
    }

    /// Runs a command in the session's sandbox.
    pub(crate) async fn bash(&self, session: &str, command: &str) -> Result<Given> {
        self.given(session, command, None).await
    }

    /// The same, on a task of its own.
    pub(crate) fn begin(&self, session: &str, command: &str) -> JoinHandle<Result<Given>> {
        let (client, session, command) = (self.clone(), session.to_owned(), command.to_owned());
        TaskTracker::new().spawn(async move { client.bash(&session, &command).await })
    }

    /// The same, with a key that holds as long as the log.
    pub(crate) async fn bash_keyed(&self, session: &str, command: &str, key: &str) -> Result<Given> {
        self.given(session, command, Some(key)).await
    }

    async fn given(&self, session: &str, command: &str, key: Option<&str>) -> Result<Given> {
        let result = self.tool(session, "sandbox__bash", json!({"command": command}), key).await?;
        let meta = &result["_meta"];
        let text = |block: &Value| block["text"].as_str().unwrap_or_default().to_owned();
        let texts: Vec<String> = result["content"].as_array().into_iter().flatten().map(text).collect();
        let Some(outcome) = meta["manyhands/outcome"].as_str() else { bail!("no outcome: {result}") };
        Ok(Given {
            outcome: outcome.to_owned(),
            text: texts.join("\n"),
            seq: meta["manyhands/seq"].as_i64().context("no place")?,
            replayed: meta["manyhands/replayed"] == true,
        })
    }

    /// Appends an event; returns when it is acknowledged.
    pub(crate) async fn emit(&self, session: &str, text: &str) -> Result<()> {
        let event = json!({"type": "test.noted", "data": {"text": text}});
        let result = self.tool(session, "session_emit", event, None).await?;
        ensure!(result["isError"] != true, "{result}");
        Ok(())
    }

    /// The result of `tools/call`.
    pub(crate) async fn tool(
        &self,
        session: &str,
        tool: &str,
        arguments: Value,
        key: Option<&str>,
    ) -> Result<Value> {
        let mut params = json!({"name": tool, "arguments": arguments});
        if let Some(key) = key {
            params["_meta"] = json!({"manyhands/callKey": key});
        }
        self.ask(session, "tools/call", tool, params).await
    }

    /// The result of any request. `name` is what it is about: the tool, prompt or URI.
    pub(crate) async fn ask(
        &self,
        session: &str,
        method: &str,
        name: &str,
        mut params: Value,
    ) -> Result<Value> {
        let mut meta = params["_meta"].as_object().cloned().unwrap_or_default();
        meta.insert("io.modelcontextprotocol/protocolVersion".into(), VERSION.into());
        meta.insert("io.modelcontextprotocol/clientCapabilities".into(), json!({}));
        params["_meta"] = Value::Object(meta);
        let mut request = self
            .http
            .post(format!("{}/mcp/sessions/{session}", self.base))
            .bearer_auth(&self.token)
            .header("Accept", "application/json, text/event-stream")
            .header("Content-Type", "application/json")
            .header("MCP-Protocol-Version", VERSION)
            .header("Mcp-Method", method)
            .body(json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string());
        if !name.is_empty() {
            request = request.header("Mcp-Name", name);
        }
        let answer = request.send().await?.text().await?;
        // The body, or the last event that has a message.
        let message: Option<Value> = serde_json::from_str(&answer).ok().or_else(|| {
            let data = answer.lines().filter_map(|line| line.strip_prefix("data:"));
            data.filter_map(|data| serde_json::from_str(data).ok()).next_back()
        });
        match message.as_ref().and_then(|message| message.get("result")) {
            Some(result) => Ok(result.clone()),
            None => bail!("{method} of {name} was not answered: {answer:?}"),
        }
    }
}
