//! Talking to QEMU: one JSON object a line, over a socket that is ours alone.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// How long QEMU may take for an answer; saving a machine's memory to a slow disk is the longest.
const ANSWER: Duration = Duration::from_mins(2);
/// Most bytes of an answer.
const MOST: u64 = 1 << 20;
/// Pause between two looks at something that takes a while.
const LOOK: Duration = Duration::from_millis(20);

/// A connection that has been greeted.
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
}

/// QEMU refused something, or is gone.
#[derive(Debug, thiserror::Error)]
pub(super) enum QmpError {
    #[error("QEMU says: {0}")]
    Refused(String),
    #[error("QEMU does not answer ({0})")]
    Gone(#[from] io::Error),
}

impl Qmp {
    /// Greets.
    pub(super) async fn new(stream: UnixStream) -> Result<Self, QmpError> {
        let mut qmp = Self { stream: BufReader::new(stream) };
        qmp.line().await?;
        qmp.ask("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Asks for one thing.
    pub(super) async fn ask(&mut self, execute: &str, arguments: Value) -> Result<Value, QmpError> {
        let mut request = json!({"execute": execute, "arguments": arguments}).to_string();
        request.push('\n');
        self.stream.write_all(request.as_bytes()).await?;
        loop {
            let mut answer = self.line().await?;
            if let Some(error) = answer.get("error") {
                let why = error["desc"].as_str().unwrap_or("it failed").trim_end_matches('.');
                return Err(QmpError::Refused(why.to_owned()));
            }
            // All else is news of things that happen.
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    /// A command of the monitor for people, which answers with text when it fails.
    pub(super) async fn monitor(&mut self, command: &str) -> Result<(), QmpError> {
        let said = self.ask("human-monitor-command", json!({"command-line": command})).await?;
        match said.as_str().map(str::trim) {
            None | Some("") => Ok(()),
            Some(why) => {
                Err(QmpError::Refused(why.trim_start_matches("Error: ").trim_end_matches('.').to_owned()))
            }
        }
    }

    /// Writes the memory and the devices of the machine, which stands still from here on, to a file in QEMU's folder.
    pub(super) async fn write_state(&mut self, file: &'static str) -> Result<(), QmpError> {
        self.ask("stop", json!({})).await?;
        // The whole bandwidth: nothing else waits for it.
        self.ask("migrate-set-parameters", json!({"max-bandwidth": 4_u64 << 30})).await?;
        self.ask("migrate", json!({"uri": format!("exec:cat > {file}")})).await?;
        self.until("query-migrate", |status| match status {
            "completed" => Some(Ok(())),
            "failed" | "cancelled" => Some(Err(QmpError::Refused("its state could not be written".into()))),
            _ => None,
        })
        .await
    }

    /// Waits until the machine that is read from a file is whole, and lets it run.
    pub(super) async fn run_incoming(&mut self) -> Result<(), QmpError> {
        self.until("query-status", |status| (status != "inmigrate").then_some(Ok(()))).await?;
        self.run().await
    }

    /// Lets the machine run.
    pub(super) async fn run(&mut self) -> Result<(), QmpError> {
        self.ask("cont", json!({})).await.map(drop)
    }

    async fn until(
        &mut self,
        question: &str,
        done: impl Fn(&str) -> Option<Result<(), QmpError>>,
    ) -> Result<(), QmpError> {
        let asking = async {
            loop {
                let answer = self.ask(question, json!({})).await?;
                if let Some(end) = done(answer["status"].as_str().unwrap_or_default()) {
                    return end;
                }
                sleep(LOOK).await;
            }
        };
        timeout(ANSWER, asking).await.map_err(io::Error::from)?
    }

    async fn line(&mut self) -> Result<Value, QmpError> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(MOST);
        if timeout(ANSWER, limited.read_until(b'\n', &mut line)).await.map_err(io::Error::from)?? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(serde_json::from_slice(&line).map_err(io::Error::from)?)
    }
}
