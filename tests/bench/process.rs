//! The process as a whole: how fast it is there, and how much memory it takes.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};

use crate::report::{Bound, Row, percentile};

/// Starts measured.
const STARTS: usize = 15;

/// Callers at once in the second memory row.
const CALLERS: usize = 64;

/// How long they call.
const LOAD: Duration = Duration::from_secs(5);

/// Bytes of a megabyte, as in `25 MB`.
pub(crate) const MEGABYTE: f64 = 1e6;

pub(crate) async fn rows(scratch: &Path) -> Result<Vec<Row>> {
    let options = Options::default().data(&scratch.join("process"));
    let mut starts = Vec::new();
    for _ in 0..=STARTS {
        starts.push(start(&options).await?);
    }
    // The first one also made the database.
    let first = starts.remove(0);
    let p50 = percentile(&mut starts, 0.5);
    let (idle, loaded) = memory(&options).await?;
    Ok(vec![
        Row {
            what: "start to first tools/list",
            value: p50 * 1e3,
            must: Bound::AtMost(150.0),
            aim: Bound::AtMost(50.0),
            unit: "ms",
            detail: format!("p50 of {STARTS}; {:.0} ms with a new data directory", first * 1e3),
        },
        Row {
            what: "resident memory, idle",
            value: idle / MEGABYTE,
            must: Bound::AtMost(25.0),
            aim: Bound::AtMost(12.0),
            unit: "MB",
            detail: "2 s after a tools/list".to_owned(),
        },
        Row {
            what: "resident memory, 64 callers",
            value: loaded / MEGABYTE,
            must: Bound::AtMost(60.0),
            aim: Bound::AtMost(30.0),
            unit: "MB",
            detail: "the highest seen in 5 s of session_emit".to_owned(),
        },
    ])
}

/// Seconds from the start of the process to the answer.
async fn start(options: &Options) -> Result<f64> {
    let http = reqwest::Client::new();
    let start = Instant::now();
    let mut gateway = Gateway::start(options.clone()).await?;
    let answer = Caller::new(&gateway, http)?.ask("tools/list", json!({})).await?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(answer["result"]["tools"].is_array(), "no tools: {answer}");
    gateway.stop()?;
    Ok(seconds)
}

/// Bytes resident when idle and at most under load.
async fn memory(options: &Options) -> Result<(f64, f64)> {
    let gateway = Gateway::start(options.clone()).await?;
    let caller = Caller::new(&gateway, reqwest::Client::new())?;
    caller.ask("tools/list", json!({})).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let idle = resident(gateway.pid())?;
    let end = Instant::now() + LOAD;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let caller = caller.clone();
        callers.spawn(async move {
            while Instant::now() < end {
                caller.emit().await?;
            }
            anyhow::Ok(())
        });
    }
    let mut highest = idle;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
        highest = highest.max(resident(gateway.pid())?);
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    Ok((idle, highest))
}

/// `VmRSS`, in bytes.
pub(crate) fn resident(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024.0)
}

/// A stateless MCP client of one session.
#[derive(Clone)]
pub(crate) struct Caller {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl Caller {
    pub(crate) fn new(gateway: &Gateway, http: reqwest::Client) -> Result<Self> {
        Self::of(gateway, http, "bench")
    }

    pub(crate) fn of(gateway: &Gateway, http: reqwest::Client, session: &str) -> Result<Self> {
        Ok(Self { http, url: gateway.session_url(session), token: gateway.owner_token()? })
    }

    pub(crate) async fn emit(&self) -> Result<()> {
        let content = json!([{"type": "text", "text": "x".repeat(100)}]);
        let event = json!({"type": "user.message", "content": content});
        let arguments = json!({"name": "session_emit", "arguments": event});
        let answer = self.ask("tools/call", arguments).await?;
        ensure!(answer["result"]["isError"] == json!(false), "not emitted: {answer}");
        Ok(())
    }

    /// One request, and its answer whether it came as JSON or as a stream of events.
    pub(crate) async fn ask(&self, method: &str, mut params: Value) -> Result<Value> {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let mut request = self
            .http
            .post(&self.url)
            .bearer_auth(&self.token)
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", method);
        if let Some(name) = params["name"].as_str() {
            request = request.header("mcp-name", name);
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let response = request.json(&body).send().await?;
        let text = response.error_for_status()?.text().await?;
        let answer = text
            .lines()
            .map(|line| line.strip_prefix("data:").unwrap_or(line))
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|message| message.get("id").is_some());
        answer.with_context(|| format!("no answer in {text:?}"))
    }
}
