//! An MCP server as a hand, of either era, over HTTP or as a child process: the only MCP client.
//!
//! ```text
//! Upstream ── servers: which one serves which handle ── connection: a child process, or a session of a URL
//!    │                                                       │ lifecycle: which era, and beginning in it
//!    └─ relay: one request and all around it ────────────────┤ lists, listen, follow: what changes
//!                                                            └ http | stdio: JSON-RPC on the wire
//! ```
//!
//! JSON goes through as it came. Ids, progress tokens and `io.modelcontextprotocol/*` of `_meta` are always our own.
//!
//! **Invariant:** a slow, dead or lying server harms nobody but its own calls: nothing that another server's calls need
//! is held while one is waited for, and everything that comes from a server has a limit.

mod clean;
mod connection;
mod follow;
mod http;
mod inspect;
mod lifecycle;
mod listen;
mod lists;
mod pending;
mod relay;
mod servers;
mod shared;
mod stdio;
mod wire;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

pub use self::inspect::inspect;
pub use self::lifecycle::Limits;
pub use crate::web::Trust;

use self::relay::{Ended, Relay};
use self::servers::Servers;
use self::shared::Shared;
use self::wire::{Base, internal};
use crate::mcp::{Catalogue, McpFace, Object, Reply, Request};
use crate::{
    Call, CallContext, Effects, Ending, Hand, HandError, Handle, InstanceId, Lease, Outcome, Progress, Tool,
};

/// How long a resource may take to be followed.
const FOLLOW_MAX: Duration = Duration::from_secs(30);
/// Most bytes of a tool's description where its whole definition is not shown.
const DESCRIPTION_MAX: usize = 2_000;

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
        /// Who signs its certificate, behind `https://`.
        trust: Trust,
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
    shared: Arc<Shared>,
    servers: Servers,
}

impl Upstream {
    /// A hand that knows of its server what `known` says; it touches nothing yet.
    pub fn new(config: UpstreamConfig, known: Catalogue) -> Self {
        Self::limited(config, known, Limits::default())
    }

    /// The same with other limits.
    pub fn limited(config: UpstreamConfig, known: Catalogue, limits: Limits) -> Self {
        let shared = Shared::new(config, known, limits);
        Self { servers: Servers::new(Arc::clone(&shared)), shared }
    }

    /// Ends every server and waits until nothing of them runs.
    pub async fn shutdown(&self) {
        self.servers.shutdown().await;
    }

    async fn relay(
        &self,
        handle: &Handle,
        method: &str,
        base: Base<'_>,
        context: &CallContext,
    ) -> Result<Ended, HandError> {
        let link = self.servers.link(handle)?;
        let (shared, servers) = (&self.shared, &self.servers);
        Relay { shared, servers, handle, method, base, context }.run(&link).await
    }

    fn too_long(&self) -> String {
        let limit = self.shared.config.call_max.as_secs_f64();
        format!(
            "{} did not answer within {limit} s, the limit of a call. It was told to stop.",
            self.shared.whom()
        )
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.cancel.cancel();
    }
}

#[async_trait]
impl Hand for Upstream {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        Ok(self.shared.catalogue().tools.iter().filter_map(tool).collect())
    }

    async fn provision(&self, lease: &Lease, _: &dyn Progress) -> Result<Handle, HandError> {
        self.servers.provision(lease).await
    }

    async fn execute(
        &self,
        handle: &Handle,
        call: &Call,
        context: CallContext,
    ) -> Result<Outcome, HandError> {
        let base = Base::Call { name: &call.tool, arguments: &call.arguments };
        Ok(match self.relay(handle, "tools/call", base, &context).await? {
            Ended::Reply(reply) => {
                let failed = match &reply {
                    Reply::Result(result) => result.get("isError") == Some(&Value::Bool(true)),
                    Reply::Error(_) => true,
                };
                let ending = if failed { Ending::Error } else { Ending::Ok };
                Outcome { ending, content: Vec::new(), reply: Some(reply) }
            }
            Ended::Cancelled => Outcome::ended(Ending::Cancelled, "Cancelled: the server was told to stop."),
            Ended::TimedOut => Outcome::ended(Ending::Timeout, self.too_long()),
        })
    }

    fn alive(&self, handle: &Handle) -> bool {
        self.servers.alive(handle)
    }

    async fn release(&self, handle: Handle) -> Result<(), HandError> {
        self.servers.release(&handle.instance).await;
        Ok(())
    }

    async fn reap(&self, instances: &[InstanceId]) -> Result<(), HandError> {
        match &self.shared.config.reach {
            Reach::Stdio { .. } => stdio::reap(instances).await,
            Reach::Http { .. } => Ok(()),
        }
    }

    async fn shutdown(&self) {
        self.servers.shutdown().await;
    }

    fn mcp(&self) -> Option<&dyn McpFace> {
        Some(self)
    }

    fn about(&self) -> Value {
        let UpstreamConfig { name, reach, protocol, share, call_max } = &self.shared.config;
        let catalogue = self.shared.catalogue();
        let transport = match reach {
            Reach::Http { .. } => json!({"http": self.shared.place()}),
            Reach::Stdio { command, directory, .. } => json!({"command": command, "directory": directory}),
        };
        json!({
            "name": name,
            "transport": transport,
            "protocol": match protocol {
                Protocol::Auto => "auto",
                Protocol::Modern => wire::MODERN,
                Protocol::Legacy => "legacy",
            },
            "share": match share {
                Share::Session => "session",
                Share::Principal => "principal",
                Share::All => "all",
            },
            "call_max_s": call_max.as_secs_f64(),
            "era": match catalogue.version.as_str() {
                "" => Value::Null,
                wire::MODERN => json!("stateless"),
                _ => json!("sessions"),
            },
            "version": catalogue.version,
            "server": catalogue.server,
            "capabilities": catalogue.capabilities,
            "tools": catalogue.tools.len(),
            "resources": catalogue.resources.len(),
            "templates": catalogue.templates.len(),
            "prompts": catalogue.prompts.len(),
            "problems": catalogue.problems,
            "seen_at": catalogue.seen_at,
            "down": catalogue.down,
        })
    }
}

#[async_trait]
impl McpFace for Upstream {
    fn catalogue(&self) -> Arc<Catalogue> {
        self.shared.catalogue()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes()
    }

    fn know(&self, before: &Arc<Catalogue>, now: Catalogue) -> Option<Arc<Catalogue>> {
        self.shared.know(before, now)
    }

    async fn refresh(&self) -> Result<(), HandError> {
        self.servers.look().await
    }

    async fn request(
        &self,
        handle: &Handle,
        request: Request,
        context: CallContext,
    ) -> Result<Reply, HandError> {
        let base = Base::Object(&request.params);
        Ok(match self.relay(handle, &request.method, base, &context).await? {
            Ended::Reply(reply) => reply,
            Ended::Cancelled => Reply::Error(internal("cancelled")),
            Ended::TimedOut => Reply::Error(internal(self.too_long())),
        })
    }

    async fn follow(
        &self,
        handle: &Handle,
        uri: String,
        updates: mpsc::Sender<String>,
    ) -> Result<(), HandError> {
        let link = self.servers.link(handle)?;
        let following = async {
            let connection = link.connection(&self.servers, &handle.instance).await?;
            let followed = follow::follow(&connection, uri, updates).await;
            let followed = followed.map_err(|failure| self.shared.error(&failure))?;
            followed.map_err(|error| HandError::Unavailable {
                why: format!("{} refused: {} ({})", self.shared.whom(), error.message, error.code),
                remedy: "follow a resource that it has".to_owned(),
            })
        };
        match tokio::time::timeout(FOLLOW_MAX, following).await {
            Ok(followed) => followed,
            Err(_) => Err(self.shared.error(&wire::Failure::Slow(FOLLOW_MAX.as_secs()))),
        }
    }
}

/// A definition in the words of this crate.
fn tool(definition: &Arc<Object>) -> Option<Tool> {
    let text = |key: &str| definition.get(key).and_then(Value::as_str);
    let hint =
        |key: &str| definition.get("annotations").and_then(|all| all.get(key)).and_then(Value::as_bool);
    let description = text("description").unwrap_or_default();
    let end = description.floor_char_boundary(DESCRIPTION_MAX);
    Some(Tool {
        name: text("name")?.to_owned(),
        description: description[..end].to_owned(),
        input_schema: Arc::new(
            definition.get("inputSchema").and_then(Value::as_object).cloned().unwrap_or_default(),
        ),
        effects: match (hint("readOnlyHint"), hint("destructiveHint")) {
            (Some(true), _) => Effects::ReadOnly,
            (_, Some(false)) => Effects::Additive,
            _ => Effects::Destructive,
        },
        definition: Some(Arc::clone(definition)),
    })
}
