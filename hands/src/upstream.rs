//! An MCP server as a hand, of either era, over HTTP or as a child process: the only MCP client.

mod clean;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::mcp::{Catalogue, McpFace, Reply, Request};
use crate::{Call, CallContext, Hand, HandError, Handle, InstanceId, Lease, Outcome, Tool};

/// How a server is reached and used.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// The hand's name, for logs and sentences.
    pub name: String,
    /// Where it is.
    pub reach: Reach,
    /// Which era it speaks.
    pub protocol: Protocol,
    /// Who shares one server process, or one session of an HTTP server from before 2026-07-28.
    pub share: Share,
    /// The longest that one call may take.
    pub call_max: Duration,
}

/// Where a server is.
#[derive(Clone, Debug)]
pub enum Reach {
    /// Behind a Streamable HTTP URL, `http://` or `https://`.
    Http {
        /// Its URL.
        url: String,
        /// Headers of every request. None can replace one of the protocol's.
        headers: Vec<(String, Given)>,
    },
    /// A child process that speaks on stdin and stdout.
    Stdio {
        /// Program and arguments. No shell.
        command: Vec<String>,
        /// Its working directory; the gateway's when there is none.
        directory: Option<PathBuf>,
        /// Its environment beside `PATH`, `HOME`, `LANG`, `TZ` and `TMPDIR`. Nothing else of the gateway's.
        environment: Vec<(String, Given)>,
    },
}

/// A value that is read where it is used, and shows itself to nobody.
#[derive(Clone)]
pub struct Given(Arc<dyn Fn() -> Result<SecretString, String> + Send + Sync>);

impl Given {
    /// What `read` gives. Its error is a sentence for a person.
    pub fn new(read: impl Fn() -> Result<SecretString, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Reads it.
    pub fn read(&self) -> Result<SecretString, String> {
        (self.0)()
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Given(…)")
    }
}

/// Which era a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Found out once, and again after a failure.
    #[default]
    Auto,
    /// 2026-07-28, stateless.
    Modern,
    /// 2025-11-25 and before, by `initialize`.
    Legacy,
}

/// Who shares a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Each session of the gateway has its own.
    Session,
    /// All sessions of one owner have one.
    Principal,
    /// Everybody has the same. For servers that keep nothing of their callers.
    All,
}

/// The hand.
pub struct Upstream {
    config: UpstreamConfig,
    catalogue: watch::Sender<Arc<Catalogue>>,
    changes: watch::Sender<u64>,
}

impl Upstream {
    /// A hand that knows of its server what `known` says; it touches nothing yet.
    pub fn new(config: UpstreamConfig, known: Catalogue) -> Self {
        Self { config, catalogue: watch::Sender::new(Arc::new(known)), changes: watch::Sender::new(0) }
    }
}

#[async_trait]
impl Hand for Upstream {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        Ok(Vec::new())
    }

    async fn provision(&self, lease: &Lease) -> Result<Handle, HandError> {
        Ok(Handle { instance: lease.instance.clone() })
    }

    async fn execute(&self, _: &Handle, call: &Call, _: CallContext) -> Result<Outcome, HandError> {
        Err(HandError::UnknownTool(call.tool.clone()))
    }

    fn alive(&self, _: &Handle) -> bool {
        true
    }

    async fn release(&self, _: Handle) -> Result<(), HandError> {
        Ok(())
    }

    async fn reap(&self, _: &[InstanceId]) -> Result<(), HandError> {
        Ok(())
    }

    fn mcp(&self) -> Option<&dyn McpFace> {
        Some(self)
    }

    fn about(&self) -> Value {
        json!({"name": self.config.name})
    }
}

#[async_trait]
impl McpFace for Upstream {
    fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.borrow().clone()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn refresh(&self) -> Result<(), HandError> {
        Ok(())
    }

    async fn request(&self, _: &Handle, request: Request, _: CallContext) -> Result<Reply, HandError> {
        Err(HandError::UnknownTool(request.method))
    }

    async fn follow(&self, _: &Handle, _: String, _: mpsc::Sender<String>) -> Result<(), HandError> {
        Ok(())
    }
}
