//! The protocol's own headers, and how a value gets into one.
//! (<https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http>)

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{HeaderName, HeaderValue};
use serde_json::Value;

use crate::mcp::Object;

/// The version of a request.
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The method in the body.
pub(super) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// What the method is applied to.
pub(super) const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The session of the legacy era.
pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// Where a stream is to go on.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// What begins the name of a header that repeats an argument.
const PARAM: &str = "mcp-param-";
/// The annotation of an argument that is repeated in a header.
const ANNOTATION: &str = "x-mcp-header";
/// How deep in a schema such an annotation is looked for.
const DEPTH_MAX: usize = 32;

/// The name of a header that repeats an argument.
pub(crate) type ParamHeader = HeaderName;

/// Whether only the protocol may set a header.
pub(super) fn is_of_protocol(name: &HeaderName) -> bool {
    const OTHERS: [&str; 9] = [
        "accept",
        "connection",
        "content-length",
        "content-type",
        "host",
        "last-event-id",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    name.as_str().starts_with("mcp-") || OTHERS.contains(&name.as_str())
}

/// A value as a header can have it.
pub(super) fn encoded(text: &str) -> HeaderValue {
    let space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bytes = text.as_bytes();
    let looks_packed = text.starts_with("=?base64?") && text.ends_with("?=");
    let plain = bytes.iter().all(|byte| (0x20..=0x7e).contains(byte))
        && !space(bytes.first())
        && !space(bytes.last())
        && !looks_packed;
    let value = if plain {
        HeaderValue::from_str(text)
    } else {
        HeaderValue::from_str(&format!("=?base64?{}?=", BASE64_STANDARD.encode(bytes)))
    };
    // Neither form has a byte that a header can't have.
    value.unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Which arguments of a tool are repeated in headers, by its schema: the path of each, and its header.
pub(crate) fn param_headers(tool: &Object) -> Vec<(Vec<String>, ParamHeader)> {
    let mut found = Vec::new();
    if let Some(Value::Object(schema)) = tool.get("inputSchema") {
        collect(schema, &mut Vec::new(), &mut found);
    }
    found
}

fn collect(schema: &Object, path: &mut Vec<String>, found: &mut Vec<(Vec<String>, ParamHeader)>) {
    let Some(Value::Object(properties)) = schema.get("properties") else { return };
    if path.len() >= DEPTH_MAX {
        return;
    }
    for (key, property) in properties {
        let Value::Object(property) = property else { continue };
        path.push(key.clone());
        if let Some(Value::String(name)) = property.get(ANNOTATION)
            && !name.is_empty()
            && let Ok(name) = HeaderName::try_from(format!("{PARAM}{name}"))
        {
            found.push((path.clone(), name));
        }
        collect(property, path, found);
        path.pop();
    }
}

/// The headers that repeat these arguments.
pub(crate) fn with_params(
    headers: &[(Vec<String>, ParamHeader)],
    arguments: &Object,
) -> Vec<(ParamHeader, HeaderValue)> {
    headers
        .iter()
        .filter_map(|(path, name)| {
            let (first, rest) = path.split_first()?;
            let value = rest.iter().try_fold(arguments.get(first)?, |value, key| value.get(key))?;
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Bool(value) => value.to_string(),
                Value::Number(number) => number.to_string(),
                Value::Null | Value::Array(_) | Value::Object(_) => return None,
            };
            Some((name.clone(), encoded(&text)))
        })
        .collect()
}
