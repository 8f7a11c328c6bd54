//! What the command line asks of a gateway, over the same socket and without a process for each question.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::gateway::Gateway;

/// The owner of a gateway.
#[derive(Clone)]
pub(crate) struct Owner(reqwest::Client);

/// One turn of the loop, as it happens.
pub(crate) struct Turn {
    response: reqwest::Response,
    begun: Instant,
    /// The beginning of a line.
    rest: Vec<u8>,
    /// Lines that nobody has looked at.
    lines: VecDeque<Value>,
    /// Events that were heard.
    events: Vec<Value>,
}

impl Owner {
    pub(crate) fn of(gateway: &Gateway) -> Result<Self> {
        let socket = gateway.data().join("manyhands.sock");
        Ok(Self(reqwest::Client::builder().unix_socket(socket).build()?))
    }

    /// Says something to the loop, as `manyhands run` does.
    pub(crate) async fn run(&self, session: &str, prompt: &str) -> Result<Turn> {
        let begun = Instant::now();
        let body = json!({"prompt": prompt});
        let request = self.0.post(format!("http://owner/sessions/{session}/run")).json(&body);
        let response = request.send().await?.error_for_status()?;
        Ok(Turn { response, begun, rest: Vec::new(), lines: VecDeque::new(), events: Vec::new() })
    }

    /// Makes a call, as `manyhands hand call` does.
    pub(crate) async fn call(&self, session: &str, hand: &str, command: &str) -> Result<()> {
        let body = json!({"session": session, "tool": "bash", "arguments": {"command": command}});
        let request = self.0.post(format!("http://owner/hands/{hand}/call")).json(&body);
        let text = request.send().await?.error_for_status()?.text().await?;
        // What was done before it ran comes first, in lines of its own.
        let last: Value = serde_json::from_str(text.lines().last().unwrap_or_default())?;
        ensure!(last["answer"]["outcome"] == "ok", "{command}: {last}");
        Ok(())
    }

    /// Deletes a session with its hands and its work.
    pub(crate) async fn delete(&self, session: &str) -> Result<()> {
        let request = self.0.delete(format!("http://owner/sessions/{session}"));
        request.send().await?.error_for_status()?;
        Ok(())
    }
}

impl Turn {
    /// Waits for the first text of the model. Seconds since the question.
    pub(crate) async fn first_token(&mut self) -> Result<f64> {
        loop {
            let line = self.line().await?.context("the loop rests, and the model said nothing")?;
            if line["text"].as_str().is_some_and(|text| !text.is_empty()) {
                return Ok(self.begun.elapsed().as_secs_f64());
            }
        }
    }

    /// Waits until the loop works on it.
    pub(crate) async fn running(&mut self) -> Result<()> {
        loop {
            let line = self.line().await?.context("the loop rests")?;
            if line["event"]["type"] == "span.model_request_start" {
                return Ok(());
            }
        }
    }

    /// Waits until the loop rests because it has nothing more to do. What happened in this turn.
    pub(crate) async fn end(mut self) -> Result<Vec<Value>> {
        while self.line().await?.is_some() {}
        let last = self.events.last().cloned().unwrap_or_default();
        ensure!(last["stop_reason"]["type"] == "end_turn", "the turn ended otherwise: {last}");
        Ok(self.events)
    }

    async fn line(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                ensure!(line["error"].is_null(), "{line}");
                if line["event"].is_object() {
                    self.events.push(line["event"].clone());
                }
                return Ok(Some(line));
            }
            let Some(chunk) = self.response.chunk().await? else { return Ok(None) };
            self.rest.extend_from_slice(&chunk);
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                self.lines.push_back(serde_json::from_slice(&line)?);
            }
        }
    }
}
