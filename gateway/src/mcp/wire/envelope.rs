//! The JSON-RPC envelope of one message: read once, strictly, before anything acts on it.
//!
//! Two parsers that disagree about a message are a hole: one authorises what the other runs. So whatever they could
//! read differently is refused here: doubled keys, deep nesting, broken UTF-8, ids that are no ids, batches.

use std::fmt;

use serde::Serialize;
use serde::de::{self, DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::refusal::Refusal;
use super::scan::{Checked, Keep, Key, Keys};

/// The `_meta` key that names the protocol version of a request since 2026-07-28.
const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// A request's id: a string or an integer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct Id(Value);

/// What kind of message it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// Wants an answer.
    Request(Id),
    /// Wants none.
    Notification,
    /// Answers a request of ours.
    Response,
}

/// What the guard needs to know of a message. The bytes go on unchanged.
#[derive(Debug)]
pub(super) struct Envelope {
    /// Request, notification or response.
    pub(super) kind: Kind,
    /// The method; empty for a response.
    pub(super) method: String,
    /// The params, where `arguments` is checked, but kept as an empty value of its kind.
    pub(super) params: Map<String, Value>,
}

impl Envelope {
    /// Reads one message. The id is given beside the refusal when it could still be read.
    pub(super) fn read(body: &[u8]) -> Result<Self, (Refusal, Option<Id>)> {
        let text = std::str::from_utf8(body).map_err(|error| {
            (Refusal::NotJson(format!("not UTF-8 after {} bytes", error.valid_up_to())), None)
        })?;
        let raw = Raw::read(text).map_err(|error| (refusal(&error), None))?;
        let id = raw.readable_id();
        raw.envelope().map_err(|why| (Refusal::InvalidRequest(why.to_owned()), id))
    }

    /// The id of a request.
    pub(super) fn id(&self) -> Option<&Id> {
        match &self.kind {
            Kind::Request(id) => Some(id),
            Kind::Notification | Kind::Response => None,
        }
    }

    /// Whether it is a request for this method.
    pub(super) fn requests(&self, method: &str) -> bool {
        self.id().is_some() && self.method == method
    }

    /// The protocol version that `_meta` names.
    pub(super) fn meta_version(&self) -> Option<&str> {
        self.params.get("_meta")?.get(META_VERSION)?.as_str()
    }

    /// A string among the params.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.params.get(key)?.as_str()
    }
}

/// Every member of the message that has a meaning, as it stood there.
#[derive(Default)]
struct Raw {
    jsonrpc: Option<Value>,
    id: Option<Value>,
    method: Option<Value>,
    params: Option<Value>,
    result: Option<IgnoredAny>,
    error: Option<IgnoredAny>,
}

impl Raw {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let mut json = serde_json::Deserializer::from_str(text);
        let raw = json.deserialize_any(Members)?;
        json.end()?;
        Ok(raw)
    }

    fn readable_id(&self) -> Option<Id> {
        self.id.as_ref().filter(|id| is_id(id)).map(|id| Id(id.clone()))
    }

    fn envelope(self) -> Result<Envelope, &'static str> {
        if self.jsonrpc.as_ref().and_then(Value::as_str) != Some("2.0") {
            return Err("\"jsonrpc\" must be \"2.0\"");
        }
        let method = match self.method {
            Some(Value::String(method)) => Some(method),
            Some(_) => return Err("\"method\" must be a string"),
            None => None,
        };
        let params = match self.params {
            Some(Value::Object(params)) => params,
            None | Some(Value::Null) => Map::new(),
            Some(_) => return Err("\"params\" must be an object"),
        };
        let kind = match (&method, self.id, self.result, self.error) {
            (Some(_), None, None, None) => Kind::Notification,
            (Some(_), Some(id), None, None) if is_id(&id) => Kind::Request(Id(id)),
            (Some(_), Some(_), None, None) => return Err("\"id\" must be a string or an integer"),
            (None, Some(id), Some(_), None) if is_id(&id) => Kind::Response,
            (None, id, None, Some(_)) if id.as_ref().is_none_or(|id| id.is_null() || is_id(id)) => {
                Kind::Response
            }
            _ => return Err("neither a request, a notification nor a response"),
        };
        Ok(Envelope { kind, method: method.unwrap_or_default(), params })
    }
}

/// A string, or a number without a fraction that fits 64 bits (`1.0` is one).
fn is_id(id: &Value) -> bool {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53: beyond it a float no longer says which integer it is
    match id {
        Value::String(_) => true,
        Value::Number(number) => {
            number.is_i64()
                || number.as_f64().is_some_and(|n| number.is_f64() && n.fract() == 0.0 && n.abs() < EXACT)
        }
        _ => false,
    }
}

/// Syntax is a parse error, everything that the walk itself found is an invalid request.
fn refusal(error: &serde_json::Error) -> Refusal {
    let said = error.to_string();
    if error.is_data() {
        let why = said.split(" at line ").next().unwrap_or(&said);
        return Refusal::InvalidRequest(why.to_owned());
    }
    Refusal::NotJson(said)
}

/// The top level: exactly one object.
struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one JSON-RPC message (batches are not part of MCP)")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        let mut seen = Keys::default();
        let mut raw = Raw::default();
        while let Some(Key(key)) = entries.next_key()? {
            let checked = |keep| Checked { keep, depth: 1 };
            match &*key {
                "jsonrpc" => raw.jsonrpc = Some(entries.next_value_seed(checked(Keep::Whole))?),
                "id" => raw.id = Some(entries.next_value_seed(checked(Keep::Whole))?),
                "method" => raw.method = Some(entries.next_value_seed(checked(Keep::Whole))?),
                "params" => raw.params = Some(entries.next_value_seed(Params)?),
                other => {
                    entries.next_value_seed(checked(Keep::Kind))?;
                    match other {
                        "result" => raw.result = Some(IgnoredAny),
                        "error" => raw.error = Some(IgnoredAny),
                        _ => {}
                    }
                }
            }
            seen.add(key)?;
        }
        Ok(raw)
    }
}

/// The params: kept, but for what a tool is given, which can be large and concerns only the tool.
struct Params;

impl<'de> DeserializeSeed<'de> for Params {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Params {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"params\" to be an object")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut seen = Keys::default();
        let mut kept = Map::new();
        while let Some(Key(key)) = entries.next_key()? {
            let keep = if key == "arguments" { Keep::Kind } else { Keep::Whole };
            let value = entries.next_value_seed(Checked { keep, depth: 2 })?;
            kept.insert(key.clone().into_owned(), value);
            seen.add(key)?;
        }
        Ok(Value::Object(kept))
    }
}
