//! The vocabulary of a hand that is an MCP server: what it has beyond tools.
//!
//! JSON goes through as it came: whatever this version does not know is kept. Ids, tokens and cursors of either
//! side never stand in these types; whoever is in front makes its own.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, watch};

use crate::{CallContext, HandError, Handle};

/// A JSON object as it came.
pub type Object = Map<String, Value>;

/// What a server answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The `result` of its response, whole. Never one that asks for input: [`Ask`] has dealt with that.
    Result(Arc<Object>),
    /// The `error` of its response.
    Error(RpcError),
}

/// A JSON-RPC error as a server gave it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    /// Its code.
    pub code: i64,
    /// Its sentence, from the server.
    pub message: String,
    /// What else it says.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub data: Option<Value>,
}

/// A request that is passed on.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Such as `resources/read`.
    pub method: String,
    /// Its params without `_meta`, in the server's own names and URIs.
    pub params: Object,
}

/// Who calls, as far as a server may know of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Caller {
    /// The capabilities that the client declared, for this request or for its session. Empty for a caller that is no
    /// MCP client.
    pub capabilities: Object,
    /// The least severe log messages that it wants to see (`debug` … `emergency`). None: no messages.
    pub log_level: Option<String>,
    /// `_meta` of its request without what concerns the client and the gateway alone: `io.modelcontextprotocol/*`,
    /// `progressToken` and the gateway's own keys.
    pub meta: Object,
}

/// News of a running request, from the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// The params of `notifications/progress` without the token. Already strictly increasing.
    Progress(Object),
    /// The params of `notifications/message`. Already no less severe than the caller wants.
    Log(Object),
}

/// Puts questions to whoever called, in whatever way its era has.
#[async_trait]
pub trait Ask: Send + Sync + 'static {
    /// Puts `questions` (2026-07-28, basic/patterns/mrtr: `inputRequests`, key → `{method, params}`) and waits for the
    /// answers, key → result. Answers may be missing. Without questions, it waits until the caller comes back.
    async fn ask(&self, questions: Object) -> Result<Object, Unasked>;
}

/// Why there are no answers.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unasked {
    /// The caller can't be asked such a thing: it did not declare the capability.
    #[error("the client did not declare the capability {0}")]
    Incapable(String),
    /// The client answered with a JSON-RPC error.
    #[error("the client answered: {}", .0.message)]
    Refused(RpcError),
    /// The caller has gone away, or did not come back in time.
    #[error("nobody answered")]
    GivenUp,
}

/// For callers that can't be asked anything.
pub struct AskNobody;

#[async_trait]
impl Ask for AskNobody {
    async fn ask(&self, questions: Object) -> Result<Object, Unasked> {
        let method = questions.values().find_map(|question| question.get("method")?.as_str());
        Err(Unasked::Incapable(method.unwrap_or("to be asked").to_owned()))
    }
}

/// What a hand has that is an MCP server.
#[async_trait]
pub trait McpFace: Send + Sync {
    /// What the server offers, as last seen; kept when it is dead. Touches no server.
    fn catalogue(&self) -> Arc<Catalogue>;

    /// Fires when the catalogue has changed: what the server offers, or whether it is down. Not for another reason of
    /// being down.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Looks what the server offers now, with a connection of its own where there is none. Takes no longer than the
    /// hand's limits for a first connection and for lists.
    async fn refresh(&self) -> Result<(), HandError>;

    /// Has what somebody else saw that the server offers, instead of `before`. None, and nothing done, when that is not
    /// what this hand knows any more. Whether the server is down stays as it is.
    fn know(&self, before: &Arc<Catalogue>, now: Catalogue) -> Option<Arc<Catalogue>>;

    /// Passes a request on and waits for its answer: `resources/read`, `prompts/get`, `completion/complete`, `tasks/*`.
    async fn request(
        &self,
        handle: &Handle,
        request: Request,
        context: CallContext,
    ) -> Result<Reply, HandError>;

    /// Follows a resource: whenever the server says that it was updated, its URI is sent to `updates`. Ends when the
    /// receiver is dropped; the sender is dropped when the server is lost.
    async fn follow(
        &self,
        handle: &Handle,
        uri: String,
        updates: mpsc::Sender<String>,
    ) -> Result<(), HandError>;
}

/// What a server offers. Definitions are as it gave them, after those that would harm clients were cleaned or left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Catalogue {
    /// The protocol version that it speaks; empty before it was first reached.
    pub version: String,
    /// `serverInfo`.
    pub server: Object,
    /// `capabilities`.
    pub capabilities: Object,
    /// `instructions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Items of `tools/list`, in the server's order.
    pub tools: Vec<Arc<Object>>,
    /// Items of `resources/list`.
    pub resources: Vec<Arc<Object>>,
    /// Items of `resources/templates/list`.
    pub templates: Vec<Arc<Object>>,
    /// Items of `prompts/list`.
    pub prompts: Vec<Arc<Object>>,
    /// What was cleaned, capped or left out, one sentence each.
    pub problems: Vec<String>,
    /// When it was last seen to be so (RFC 3339); empty before it was first reached.
    pub seen_at: String,
    /// Why the server can't be reached, and since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<Down>,
}

/// A server that can't be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Down {
    /// Since when (RFC 3339).
    pub since: String,
    /// Why, in a sentence for a person.
    pub why: String,
}
