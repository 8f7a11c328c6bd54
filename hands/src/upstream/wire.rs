//! JSON-RPC as it is on the wire, the same over both transports.

use bytes::Bytes;
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::mcp::{Object, RpcError};

/// Most bytes of one message from a server: 64 MiB.
pub(super) const MESSAGE_MAX: usize = 64 << 20;
/// The version of the stateless era.
pub(super) const MODERN: &str = "2026-07-28";
/// The versions that begin with `initialize`, newest first.
pub(super) const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Keys of `_meta` that are between two neighbours, never passed on.
const RESERVED: &str = "io.modelcontextprotocol/";
/// JSON-RPC: no such method.
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
/// JSON-RPC: something failed inside.
pub(super) const INTERNAL: i64 = -32603;

/// How a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Era {
    /// 2026-07-28: stateless.
    Modern,
    /// Up to 2025-11-25: `initialize`, and a session.
    Legacy,
}

/// Why there is no answer to a message of ours.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Nothing of it was sent.
    #[error("{0}")]
    Unreached(String),
    /// It was sent, and no whole answer came back.
    #[error("{0}")]
    Cut(String),
    /// The answer is larger than [`MESSAGE_MAX`].
    #[error("it answered with more than {} MiB, which is the limit", MESSAGE_MAX >> 20)]
    TooLarge,
    /// HTTP refused it.
    #[error("it answered with HTTP status {status}{why}")]
    Refused {
        /// The status.
        status: u16,
        /// What else the answer says, with the punctuation before it.
        why: String,
    },
    /// The server does not know our session any more: certainly nothing ran.
    #[error("it has forgotten the session")]
    SessionGone,
    /// The answer is no JSON-RPC.
    #[error("its answer is no JSON-RPC message: {0}")]
    Nonsense(String),
    /// It took longer than a limit of ours.
    #[error("it did not answer within {0} s")]
    Slow(u64),
}

/// What an exchange with a server gives, one after the other. Ends with the answer.
#[derive(Debug)]
pub(super) enum Event {
    /// News that belongs to it.
    Notification { method: String, params: Object },
    /// A question that belongs to it.
    Question { id: Value, method: String, params: Object },
    /// Its end.
    Answer(Result<Object, RpcError>),
}

/// A message from a server.
#[derive(Debug)]
pub(super) enum Incoming {
    Notification { method: String, params: Object },
    Request { id: Value, method: String, params: Object },
    Response { id: Value, reply: Result<Object, RpcError> },
}

#[derive(Deserialize)]
struct Raw {
    id: Option<Value>,
    method: Option<String>,
    #[serde(default)]
    params: Option<Object>,
    result: Option<Value>,
    error: Option<Value>,
}

impl Incoming {
    /// Reads one. The error says what is wrong with it.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let raw: Raw = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let params = raw.params.unwrap_or_default();
        match (raw.method, raw.id) {
            (Some(method), Some(id)) if !id.is_null() => Ok(Self::Request { id, method, params }),
            (Some(method), _) => Ok(Self::Notification { method, params }),
            (None, id) => {
                let id = id.unwrap_or(Value::Null);
                match (raw.result, raw.error) {
                    (_, Some(error)) => Ok(Self::Response { id, reply: Err(rpc_error(&error)) }),
                    (Some(Value::Object(result)), None) => Ok(Self::Response { id, reply: Ok(result) }),
                    (Some(_), None) => {
                        let error = internal("the server's result is no JSON object");
                        Ok(Self::Response { id, reply: Err(error) })
                    }
                    (None, None) => Err("it is no request, notification or response".to_owned()),
                }
            }
        }
    }
}

fn rpc_error(error: &Value) -> RpcError {
    RpcError::deserialize(error).unwrap_or_else(|_| RpcError {
        code: error["code"].as_i64().unwrap_or(INTERNAL),
        message: error["message"].as_str().unwrap_or("the server gave an error without a message").to_owned(),
        data: error.get("data").cloned(),
    })
}

/// An error that we put in the place of an answer.
pub(super) fn internal(message: impl Into<String>) -> RpcError {
    RpcError { code: INTERNAL, message: message.into(), data: None }
}

/// A request as we send it.
#[derive(Clone, Copy)]
pub(super) struct Outgoing<'a> {
    /// Its method.
    pub(super) method: &'a str,
    /// Its params.
    pub(super) params: Params<'a>,
}

/// The params of a request: what is passed on, what answers questions, and `_meta`.
#[derive(Clone, Copy)]
pub(super) struct Params<'a> {
    pub(super) base: Base<'a>,
    /// `inputResponses` and `requestState` of a round after the first.
    pub(super) round: Option<(&'a Object, Option<&'a Value>)>,
    pub(super) meta: Meta<'a>,
}

/// The params that are passed on.
#[derive(Clone, Copy)]
pub(super) enum Base<'a> {
    /// As they are.
    Object(&'a Object),
    /// Of `tools/call`.
    Call { name: &'a str, arguments: &'a Object },
}

/// `_meta` of a request of ours.
#[derive(Clone, Copy, Default)]
pub(super) struct Meta<'a> {
    /// What the caller says.
    pub(super) caller: Option<&'a Object>,
    /// For the stateless era: the capabilities of this one request.
    pub(super) capabilities: Option<&'a Object>,
    /// For the stateless era: the messages that are wanted.
    pub(super) log_level: Option<&'a str>,
    /// The token for its progress.
    pub(super) progress: Option<u64>,
}

impl<'a> Outgoing<'a> {
    /// A request of the gateway's own.
    pub(super) fn plain(method: &'a str, params: &'a Object) -> Self {
        let meta = Meta::default();
        Self { method, params: Params { base: Base::Object(params), round: None, meta } }
    }

    /// Its bytes, in the words of `era`.
    pub(super) fn body(&self, id: u64, era: Era) -> Bytes {
        #[derive(Serialize)]
        struct Body<'b> {
            jsonrpc: &'static str,
            id: u64,
            method: &'b str,
            params: InEra<'b>,
        }
        let params = InEra { params: &self.params, era };
        to_bytes(&Body { jsonrpc: "2.0", id, method: self.method, params })
    }

    /// What the method is applied to, for the header `Mcp-Name`.
    pub(super) fn name(&self) -> Option<&'a str> {
        let key = match self.method {
            "tools/call" | "prompts/get" => "name",
            "resources/read" => "uri",
            "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
            _ => return None,
        };
        match self.params.base {
            Base::Call { name, .. } => Some(name),
            Base::Object(params) => params.get(key).and_then(Value::as_str),
        }
    }
}

/// A notification of ours.
pub(super) fn notification(method: &str, params: &Value) -> Bytes {
    to_bytes(&serde_json::json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

/// Our answer to a server's request.
pub(super) fn response(id: &Value, reply: &Result<Value, RpcError>) -> Bytes {
    let key = if reply.is_ok() { "result" } else { "error" };
    let said = match reply {
        Ok(result) => result.clone(),
        Err(error) => serde_json::to_value(error).unwrap_or_default(),
    };
    to_bytes(&serde_json::json!({"jsonrpc": "2.0", "id": id, key: said}))
}

fn to_bytes(message: &impl Serialize) -> Bytes {
    // Maps with text for keys can always be written.
    Bytes::from(serde_json::to_vec(message).unwrap_or_default())
}

struct InEra<'a> {
    params: &'a Params<'a>,
    era: Era,
}

impl Serialize for InEra<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Params { base, round, meta } = self.params;
        let mut map = serializer.serialize_map(None)?;
        match base {
            Base::Call { name, arguments } => {
                map.serialize_entry("name", name)?;
                map.serialize_entry("arguments", arguments)?;
            }
            Base::Object(params) => {
                let ours = |key: &str| key == "_meta" || (round.is_some() && is_of_round(key));
                for (key, value) in params.iter().filter(|(key, _)| !ours(key)) {
                    map.serialize_entry(key, value)?;
                }
            }
        }
        if let Some((responses, state)) = round {
            map.serialize_entry("inputResponses", responses)?;
            if let Some(state) = state {
                map.serialize_entry("requestState", state)?;
            }
        }
        let meta = MetaInEra { meta, era: self.era };
        if !meta.is_empty() {
            map.serialize_entry("_meta", &meta)?;
        }
        map.end()
    }
}

fn is_of_round(key: &str) -> bool {
    key == "inputResponses" || key == "requestState"
}

struct MetaInEra<'a> {
    meta: &'a Meta<'a>,
    era: Era,
}

impl MetaInEra<'_> {
    fn is_empty(&self) -> bool {
        self.era == Era::Legacy
            && self.meta.progress.is_none()
            && self.meta.caller.is_none_or(Object::is_empty)
    }
}

impl Serialize for MetaInEra<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Empty {}
        let mut map = serializer.serialize_map(None)?;
        let passed = |key: &str| !key.starts_with(RESERVED) && key != "progressToken";
        for (key, value) in self.meta.caller.into_iter().flatten().filter(|(key, _)| passed(key)) {
            map.serialize_entry(key, value)?;
        }
        if let Some(token) = self.meta.progress {
            map.serialize_entry("progressToken", &token)?;
        }
        if self.era == Era::Modern {
            map.serialize_entry("io.modelcontextprotocol/protocolVersion", MODERN)?;
            map.serialize_entry("io.modelcontextprotocol/clientInfo", &ClientInfo::OURS)?;
            let key = "io.modelcontextprotocol/clientCapabilities";
            match self.meta.capabilities {
                Some(capabilities) => map.serialize_entry(key, capabilities)?,
                None => map.serialize_entry(key, &Empty {})?,
            }
            if let Some(level) = self.meta.log_level {
                map.serialize_entry("io.modelcontextprotocol/logLevel", level)?;
            }
        }
        map.end()
    }
}

/// How we name ourselves to a server.
#[derive(Serialize)]
pub(super) struct ClientInfo {
    name: &'static str,
    version: &'static str,
}

impl ClientInfo {
    pub(super) const OURS: Self = Self { name: "manyhands", version: env!("CARGO_PKG_VERSION") };
}
