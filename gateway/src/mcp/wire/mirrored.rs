//! `Mcp-Param-*`: arguments that a tool's schema wants repeated in headers, by `x-mcp-header` on a property.
//!
//! Whoever routes by such a header must not be able to be told one thing, and the tool another.

use std::collections::HashSet;

use http::HeaderMap;
use http::header::HeaderName;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::refusal::Refusal;
use super::{Era, headers};

/// What such a header's name begins with.
const PREFIX: &str = "mcp-param-";
/// The annotation in a schema.
const ANNOTATION: &str = "x-mcp-header";

/// Holds every `Mcp-Param-*` header of a `tools/call` against the arguments in `body`. A client from before 2026-07-28
/// knows of no such headers and need not send any.
pub(super) fn check(
    headers: &HeaderMap,
    schema: &Map<String, Value>,
    body: &[u8],
    era: Era,
) -> Result<(), Refusal> {
    let mut annotated = Vec::new();
    collect(schema, &mut Vec::new(), &mut annotated);
    let present: HashSet<&str> =
        headers.keys().map(HeaderName::as_str).filter(|name| name.starts_with(PREFIX)).collect();
    if present.is_empty() && (annotated.is_empty() || era == Era::Legacy) {
        return Ok(());
    }
    let arguments = arguments(body)?;
    let mut declared = HashSet::new();
    for (path, header) in annotated {
        let Ok(name) = format!("{PREFIX}{header}").to_ascii_lowercase().parse::<HeaderName>() else {
            continue;
        };
        let argument =
            path.iter().try_fold(&arguments, |value, key| value.get(*key)).filter(|value| !value.is_null());
        compare(&name, headers::decoded(headers, &name)?, argument)?;
        declared.insert(name.as_str().to_owned());
    }
    match present.iter().find(|name| !declared.contains(**name)) {
        Some(extra) => Err(Refusal::HeaderMismatch(format!("the tool has no argument for {extra}"))),
        None => Ok(()),
    }
}

fn compare(name: &HeaderName, header: Option<String>, argument: Option<&Value>) -> Result<(), Refusal> {
    let why = match (header, argument) {
        (None, None) => return Ok(()),
        (None, Some(_)) => format!("{name} is missing"),
        (Some(_), None) => format!("{name} repeats an argument that is not given"),
        (Some(header), Some(argument)) if says(&header, argument) => return Ok(()),
        (Some(_), Some(_)) => format!("{name} differs from its argument"),
    };
    Err(Refusal::HeaderMismatch(why))
}

/// Whether the header says what the argument is; integers by their value, so that `42.0` is `42`.
fn says(header: &str, argument: &Value) -> bool {
    match argument {
        Value::String(text) => header == text,
        Value::Bool(value) => header == if *value { "true" } else { "false" },
        Value::Number(number) => header.parse::<serde_json::Number>().is_ok_and(|header| {
            let same = |a: &serde_json::Number, b: &serde_json::Number| a.as_f64() == b.as_f64();
            // A float says which integer it is only up to 2^53; beyond, the digits decide.
            if header.is_f64() || number.is_f64() { same(&header, number) } else { header == *number }
        }),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

/// Every annotated property that is reached through `properties` alone, as (path, header).
fn collect<'a>(
    schema: &'a Map<String, Value>,
    path: &mut Vec<&'a str>,
    found: &mut Vec<(Vec<&'a str>, &'a str)>,
) {
    let Some(Value::Object(properties)) = schema.get("properties") else { return };
    for (name, property) in properties {
        let Value::Object(property) = property else { continue };
        path.push(name);
        if let Some(header) =
            property.get(ANNOTATION).and_then(Value::as_str).filter(|header| !header.is_empty())
        {
            found.push((path.clone(), header));
        }
        collect(property, path, found);
        path.pop();
    }
}

/// The arguments, read once more because the envelope does not keep them: only such a tool pays for it.
fn arguments(body: &[u8]) -> Result<Value, Refusal> {
    #[derive(Deserialize)]
    struct Call {
        params: Params,
    }
    #[derive(Deserialize)]
    struct Params {
        #[serde(default)]
        arguments: Value,
    }
    let call: Call = serde_json::from_slice(body).map_err(|error| Refusal::NotJson(error.to_string()))?;
    Ok(call.params.arguments)
}
