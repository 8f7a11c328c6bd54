//! A gateway in this process whose hands `fx` and `quiet` (without a log) are the scripted one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use gateway::config::Config;
use gateway::serve::{Auth, Gateway, Server};
use hands::Hand;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::scripted::{Scripted, Seen};
use crate::mcp::client::{Client, Era};

pub(super) struct Running {
    pub(super) gateway: Arc<Gateway>,
    pub(super) hand: Arc<Scripted>,
    pub(super) url: String,
    /// How many there were, each with a token of its own.
    clients: AtomicUsize,
    stop: CancellationToken,
    served: Option<JoinHandle<()>>,
    _directory: TempDir,
}

const HANDS: &str = r#"
[hands.fx]
kind = "mcp"
url = "http://127.0.0.1:9/mcp"
[hands.quiet]
kind = "mcp"
url = "http://127.0.0.1:9/mcp"
log = false
"#;

pub(super) async fn start() -> Result<Running> {
    start_with("").await
}

/// The same with more in its file.
pub(super) async fn start_with(more: &str) -> Result<Running> {
    let directory = tempfile::tempdir()?;
    let mut config = Config::parse(&format!("{more}\n{HANDS}"), "manyhands.toml".as_ref(), [])?;
    config.data = directory.path().join("data");
    config.listen = "127.0.0.1:0".parse()?;
    let hand = Arc::new(Scripted::new());
    let made = hand.clone();
    let maker = Box::new(move |_: &gateway::registry::Making<'_>| Ok(made.clone() as Arc<dyn Hand>));
    let server = Server::bind_with(config, Auth::Token, maker).await?;
    let gateway = server.gateway().clone();
    let url = format!("http://{}", server.address());
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let served = TaskTracker::new().spawn(async move { server.run(stopped).await.expect("it serves") });
    Ok(Running {
        gateway,
        hand,
        url,
        clients: AtomicUsize::new(0),
        stop,
        served: Some(served),
        _directory: directory,
    })
}

impl Running {
    pub(super) fn seen(&self) -> &Seen {
        &self.hand.seen
    }

    pub(super) async fn token(&self, name: &str) -> Result<String> {
        use secrecy::ExposeSecret as _;
        Ok(self.gateway.tokens.create(name, None).await?.expose_secret().to_owned())
    }

    /// A client at `path`, with the capabilities.
    pub(super) async fn client_at(&self, path: &str, era: Era, capabilities: Value) -> Result<Client> {
        let token = self.token(&format!("t{}", self.clients.fetch_add(1, Ordering::SeqCst))).await?;
        self.client_of(&token, path, era, capabilities).await
    }

    pub(super) async fn client_of(
        &self,
        token: &str,
        path: &str,
        era: Era,
        capabilities: Value,
    ) -> Result<Client> {
        let mut client =
            Client::unconnected(&format!("{}{path}", self.url), token, era).declaring(capabilities);
        if era == Era::Legacy {
            client.initialize().await?;
        }
        Ok(client)
    }

    /// A client of the whole gateway that declares nothing.
    pub(super) async fn client(&self, era: Era) -> Result<Client> {
        self.client_at("/mcp/sessions/s", era, json!({})).await
    }

    /// Ends the gateway in order.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        let served = self.served.take().context("it is stopped once")?;
        tokio::time::timeout(crate::mcp::client::HANGS, served).await.context("it does not end")??;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The result without what the gateway adds.
pub(super) fn bare(mut result: Value) -> Result<Value> {
    let object = result.as_object_mut().context("no object")?;
    object.remove("resultType");
    object.remove("ttlMs");
    object.remove("cacheScope");
    let mut empty = false;
    if let Some(meta) = object.get_mut("_meta").and_then(Value::as_object_mut) {
        meta.retain(|key, _| !key.starts_with("manyhands/") && key != "io.modelcontextprotocol/serverInfo");
        empty = meta.is_empty();
    }
    if empty {
        object.remove("_meta");
    }
    Ok(result)
}

/// The events of a session, read through a client of the whole gateway.
pub(super) async fn events(client: &Client, session: &str) -> Result<Vec<Value>> {
    let page = client.read_json(&format!("session://{session}/events?after=0&limit=1000")).await?;
    let events = page["events"].as_array().context("no events")?.clone();
    ensure!(page["has_more"] == false, "there are more");
    Ok(events)
}

/// How many of one type.
pub(super) fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["type"] == kind).count()
}
