//! `x-mcp-header` annotations: arguments that a client repeats in `Mcp-Param-*` headers.
//!
//! A client must not use a tool whose annotations break the rules (2026-07-28, basic/transports/streamable-http), so such a
//! tool is left out here.

use std::collections::HashSet;

use serde_json::Value;

use crate::mcp::Object;

/// The annotation.
const ANNOTATION: &str = "x-mcp-header";

/// Checks the annotations of an input schema: tokens, unique in any case, on primitive arguments, reached through
/// `properties` alone.
pub(super) fn check(schema: &Object) -> Result<(), String> {
    let mut seen = HashSet::new();
    properties(schema, &mut seen)?;
    let reached = seen.len();
    if count(&Value::Object(schema.clone())) > reached {
        return Err(format!("an {ANNOTATION} stands where no argument is"));
    }
    Ok(())
}

fn properties(schema: &Object, seen: &mut HashSet<String>) -> Result<(), String> {
    let Some(Value::Object(properties_)) = schema.get("properties") else { return Ok(()) };
    for (argument, property) in properties_ {
        let Value::Object(property) = property else { continue };
        if let Some(header) = property.get(ANNOTATION) {
            let why = |why: &str| Err(format!("the {ANNOTATION} of its argument {argument:?} {why}"));
            let Value::String(header) = header else { return why("is no text") };
            if header.is_empty() || !header.bytes().all(is_tchar) {
                return why("is no header name");
            }
            if !matches!(property.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean"))
            {
                return why("is not on a string, an integer or a boolean");
            }
            if !seen.insert(header.to_ascii_lowercase()) {
                return why("is that of another argument, too");
            }
        }
        properties(property, seen)?;
    }
    Ok(())
}

/// How many annotations there are, wherever they stand. A property that has the annotation's name is none.
fn count(value: &Value) -> usize {
    match value {
        Value::Object(object) => object
            .iter()
            .map(|(key, value)| match (key.as_str(), value) {
                (ANNOTATION, Value::Object(_)) => count(value),
                (ANNOTATION, _) => 1,
                ("const" | "default" | "enum" | "examples", _) => 0,
                _ => count(value),
            })
            .sum(),
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 0,
    }
}

/// A character of a token (RFC 9110, section 5.6.2).
fn is_tchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
