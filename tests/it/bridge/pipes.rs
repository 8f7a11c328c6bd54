//! The same over a pair of pipes, in both eras.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use gateway::access::Principal;
use gateway::mcp::{Face, HandsInView, RAW_METHODS, View, wire};
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::kit::{Running, bare, start};
use super::scripted::odd;
use crate::mcp::client::{ERAS, Era, HANGS};

struct Pipe {
    to: WriteHalf<DuplexStream>,
    from: Lines<BufReader<ReadHalf<DuplexStream>>>,
    era: Era,
    capabilities: Value,
    _stop: tokio_util::sync::DropGuard,
    _serving: JoinSet<()>,
}

impl Pipe {
    async fn open(running: &Running, era: Era, capabilities: Value, hands: HandsInView) -> Result<Self> {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (from, to) = tokio::io::split(ours);
        let (reader, writer) = tokio::io::split(theirs);
        let view = View { principal: Principal::owner(), session: "s".parse()?, hands };
        let face = Face::of(Arc::clone(&running.gateway), view);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let _ = wire::stdio::serve_raw(reader, writer, face, RAW_METHODS, stopped).await;
        });
        let from = BufReader::new(from).lines();
        let mut pipe = Self { to, from, era, capabilities, _stop: stop.drop_guard(), _serving: serving };
        if era == Era::Legacy {
            let info = json!({"name": "test", "version": "1"});
            let params = json!({"protocolVersion": "2025-11-25", "capabilities": pipe.capabilities, "clientInfo": info});
            pipe.say(json!({"id": 0, "method": "initialize", "params": params})).await?;
            pipe.hear().await?;
            pipe.say(json!({"method": "notifications/initialized"})).await?;
        }
        Ok(pipe)
    }

    async fn say(&mut self, mut message: Value) -> Result<()> {
        message["jsonrpc"] = "2.0".into();
        Ok(self.to.write_all(format!("{message}\n").as_bytes()).await?)
    }

    async fn hear(&mut self) -> Result<Value> {
        let line = tokio::time::timeout(HANGS, self.from.next_line()).await.context("nothing came")??;
        Ok(serde_json::from_str(&line.context("it ended")?)?)
    }

    async fn ask(&mut self, id: &Value, method: &str, mut params: Value) -> Result<()> {
        if self.era == Era::Modern {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        self.say(json!({"id": id, "method": method, "params": params})).await
    }

    /// The answer, and what came before it.
    async fn request(&mut self, id: Value, method: &str, params: Value) -> Result<(Vec<Value>, Value)> {
        self.ask(&id, method, params).await?;
        let mut before = Vec::new();
        loop {
            let message = self.hear().await?;
            if message.get("method").is_none() {
                ensure!(message["id"] == id, "{message}");
                return Ok((before, message));
            }
            before.push(message);
        }
    }
}

#[tokio::test]
async fn results_news_and_questions_go_through_pipes() -> Result<()> {
    let running = start().await?;
    for era in ERAS {
        let one = || HandsInView::One("fx".parse().unwrap());
        let mut pipe = Pipe::open(&running, era, json!({"elicitation": {}}), one()).await?;
        let (_, odd_one) = pipe.request(json!("1"), "tools/call", json!({"name": "odd"})).await?;
        assert_eq!(bare(odd_one["result"].clone())?, odd());
        let meta = json!({"progressToken": 7, "io.modelcontextprotocol/logLevel": "info"});
        let (news, _) = pipe.request(json!(1), "tools/call", json!({"name": "news", "_meta": meta})).await?;
        let methods: Vec<_> = news.iter().filter_map(|it| it["method"].as_str()).collect();
        assert_eq!(methods.iter().filter(|it| **it == "notifications/progress").count(), 3, "{news:?}");
        assert_eq!(methods.iter().filter(|it| **it == "notifications/message").count(), 1, "{news:?}");
        let question = json!({"q": {"method": "elicitation/create", "params": {"message": "?"}}});
        let given = json!({"action": "accept", "content": {"a": 1}, "odd": 1});
        let call = json!({"name": "ask", "arguments": {"questions": question}});
        let answer = if era == Era::Modern {
            let (_, asked) = pipe.request(json!(2), "tools/call", call.clone()).await?;
            assert_eq!(asked["result"]["inputRequests"], question);
            let mut again = call;
            again["requestState"] = asked["result"]["requestState"].clone();
            again["inputResponses"] = json!({"q": given});
            pipe.request(json!(3), "tools/call", again).await?.1
        } else {
            pipe.ask(&json!(2), "tools/call", call).await?;
            let asked = loop {
                let message = pipe.hear().await?;
                if message["method"] == "elicitation/create" {
                    break message;
                }
            };
            pipe.say(json!({"id": asked["id"], "result": given})).await?;
            loop {
                let message = pipe.hear().await?;
                if message["id"] == 2 {
                    break message;
                }
            }
        };
        assert_eq!(answer["result"]["structuredContent"], json!({"answers": [{"q": given}]}), "{answer}");
    }
    Ok(())
}
