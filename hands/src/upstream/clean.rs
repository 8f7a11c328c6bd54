//! What a server says it offers, made safe to pass on.
//!
//! A definition that would break a client, or show a person or a model something other than what it is, is cleaned where
//! that leaves it usable, and else left out. Either way a sentence says so. Pure: fetches nothing, `$ref` least of all
//! (2026-07-28, server/tools: network references are not dereferenced).

mod headers;
mod schema;

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use crate::mcp::Object;

/// Longest name of a tool or prompt, in characters. (2026-07-28, server/tools: 128.)
const NAME_MAX: usize = 128;
/// Longest URI, in bytes.
const URI_MAX: usize = 8 << 10;
/// Longest description or title, in bytes. Clients cut at 2 to 4 KB.
const TEXT_MAX: usize = 16 << 10;
/// Largest definition, in bytes of JSON.
const DEFINITION_MAX: usize = 256 << 10;
/// Sentences that are kept of one list; the rest is counted.
const PROBLEMS_MAX: usize = 50;

/// Definitions that can be passed on, and what was done to the others.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Cleaned {
    /// In the server's order.
    pub(super) items: Vec<Arc<Object>>,
    /// One sentence for each that was changed or left out.
    pub(super) problems: Vec<String>,
}

/// A kind of definition.
#[derive(Clone, Copy)]
struct Kind {
    /// What it is called in a sentence.
    noun: &'static str,
    /// The member that names one.
    key: &'static str,
    /// What else it has to be.
    check: fn(&mut Object, &mut Vec<String>) -> Result<(), String>,
}

/// Items of `tools/list`.
pub(super) fn tools(items: Vec<Value>) -> Cleaned {
    clean(items, Kind { noun: "tool", key: "name", check: tool })
}

/// Items of `prompts/list`.
pub(super) fn prompts(items: Vec<Value>) -> Cleaned {
    clean(items, Kind { noun: "prompt", key: "name", check: prompt })
}

/// Items of `resources/list`.
pub(super) fn resources(items: Vec<Value>) -> Cleaned {
    clean(items, Kind { noun: "resource", key: "uri", check: resource })
}

/// Items of `resources/templates/list`.
pub(super) fn templates(items: Vec<Value>) -> Cleaned {
    clean(items, Kind { noun: "resource template", key: "uriTemplate", check: resource })
}

fn clean(items: Vec<Value>, kind: Kind) -> Cleaned {
    let mut cleaned = Cleaned::default();
    let mut seen = HashSet::new();
    for item in items {
        let label = label(&item, kind);
        match one(item, kind, &mut seen) {
            Ok((item, changes)) => {
                cleaned.items.push(Arc::new(item));
                cleaned.problems.extend(changes.into_iter().map(|change| format!("{label}: {change}")));
            }
            Err(why) => cleaned.problems.push(format!("{label} is left out: {why}")),
        }
    }
    let more = cleaned.problems.len().saturating_sub(PROBLEMS_MAX);
    if more > 0 {
        cleaned.problems.truncate(PROBLEMS_MAX);
        cleaned.problems.push(format!("and {more} more of the kind"));
    }
    cleaned
}

/// How a sentence calls an item, whatever stands in its name.
fn label(item: &Value, kind: Kind) -> String {
    const SHOWN_MAX: usize = 60;
    match item.get(kind.key).and_then(Value::as_str) {
        Some(name) if name.chars().count() <= SHOWN_MAX => format!("the {} {name:?}", kind.noun),
        Some(name) => {
            let shown: String = name.chars().take(SHOWN_MAX).collect();
            format!("the {} {shown:?}…", kind.noun)
        }
        None => format!("a {} without a {}", kind.noun, kind.key),
    }
}

fn one(item: Value, kind: Kind, seen: &mut HashSet<String>) -> Result<(Object, Vec<String>), String> {
    let Value::Object(mut item) = item else { return Err("it is no object".to_owned()) };
    let size = serde_json::to_vec(&item).map_or(usize::MAX, |json| json.len());
    if size > DEFINITION_MAX {
        return Err(format!("it has {size} bytes, and the most is {DEFINITION_MAX}"));
    }
    let name = match item.get(kind.key) {
        Some(Value::String(name)) => name.clone(),
        _ => return Err(format!("its {} is no text", kind.key)),
    };
    check_name(&name, kind)?;
    if !seen.insert(name) {
        return Err("another one before it has the same name".to_owned());
    }
    let mut changes = Vec::new();
    (kind.check)(&mut item, &mut changes)?;
    clean_texts(&mut item, &mut changes);
    Ok((item, changes))
}

fn check_name(name: &str, kind: Kind) -> Result<(), String> {
    if name.is_empty() {
        return Err(format!("its {} is empty", kind.key));
    }
    if name.chars().any(is_hidden) {
        return Err(format!("its {} has control or direction characters", kind.key));
    }
    if kind.key == "name" && name.chars().count() > NAME_MAX {
        return Err(format!("its name has more than {NAME_MAX} characters"));
    }
    if kind.key != "name" && (name.len() > URI_MAX || name.contains(char::is_whitespace)) {
        return Err(format!("its {} has spaces, or more than {URI_MAX} bytes", kind.key));
    }
    Ok(())
}

fn tool(tool: &mut Object, changes: &mut Vec<String>) -> Result<(), String> {
    let Some(Value::Object(schema)) = tool.get_mut("inputSchema") else {
        return Err("it has no inputSchema that is an object".to_owned());
    };
    match schema.get("type") {
        Some(Value::String(kind)) if kind == "object" => {}
        None => {
            schema.insert("type".to_owned(), Value::from("object"));
            changes.push("its inputSchema did not say that it is an object".to_owned());
        }
        Some(_) => return Err("its inputSchema is not that of an object".to_owned()),
    }
    headers::check(schema)?;
    schema::clean(schema, "inputSchema", changes)?;
    match tool.get_mut("outputSchema") {
        None => {}
        Some(Value::Object(schema)) => schema::clean(schema, "outputSchema", changes)?,
        Some(_) => {
            tool.remove("outputSchema");
            changes.push("its outputSchema was no object and is taken away".to_owned());
        }
    }
    for key in ["annotations", "_meta", "execution"] {
        remove_unless(tool, key, Value::is_object, changes);
    }
    for key in ["description", "title"] {
        remove_unless(tool, key, Value::is_string, changes);
    }
    Ok(())
}

fn prompt(prompt: &mut Object, changes: &mut Vec<String>) -> Result<(), String> {
    if let Some(arguments) = prompt.get("arguments") {
        let named = |argument: &Value| argument.get("name").is_some_and(Value::is_string);
        if !arguments.as_array().is_some_and(|arguments| arguments.iter().all(named)) {
            return Err("its arguments are no list of named ones".to_owned());
        }
    }
    for key in ["description", "title"] {
        remove_unless(prompt, key, Value::is_string, changes);
    }
    remove_unless(prompt, "_meta", Value::is_object, changes);
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "the checks of all kinds have one type")]
fn resource(resource: &mut Object, changes: &mut Vec<String>) -> Result<(), String> {
    if !resource.get("name").is_some_and(Value::is_string) {
        let uri = resource.get("uri").or_else(|| resource.get("uriTemplate")).cloned().unwrap_or_default();
        resource.insert("name".to_owned(), uri);
        changes.push("it had no name: its URI is shown instead".to_owned());
    }
    for key in ["description", "title", "mimeType"] {
        remove_unless(resource, key, Value::is_string, changes);
    }
    remove_unless(resource, "size", Value::is_number, changes);
    for key in ["annotations", "_meta"] {
        remove_unless(resource, key, Value::is_object, changes);
    }
    Ok(())
}

/// Takes a member away that is of the wrong type: clients refuse a whole list for one of them.
fn remove_unless(object: &mut Object, key: &str, is_right: fn(&Value) -> bool, changes: &mut Vec<String>) {
    if object.get(key).is_some_and(|value| !is_right(value)) {
        object.remove(key);
        changes.push(format!("its {key} was of the wrong type and is taken away"));
    }
}

/// Cleans every description and title in a definition, those of arguments included.
fn clean_texts(object: &mut Object, changes: &mut Vec<String>) {
    let (mut hidden, mut long) = (0, 0);
    walk_texts(object, &mut |text| {
        if text.contains(is_hidden_in_text) {
            text.retain(|c| !is_hidden_in_text(c));
            hidden += 1;
        }
        if text.len() > TEXT_MAX {
            text.truncate(text.floor_char_boundary(TEXT_MAX));
            long += 1;
        }
    });
    if hidden > 0 {
        changes.push("control or direction characters are taken out of its texts".to_owned());
    }
    if long > 0 {
        changes.push(format!("its texts are cut at {TEXT_MAX} bytes"));
    }
}

fn walk_texts(object: &mut Object, clean: &mut impl FnMut(&mut String)) {
    for (key, value) in object {
        match value {
            Value::String(text) if matches!(key.as_str(), "description" | "title" | "name") => clean(text),
            Value::Object(inner) => walk_texts(inner, clean),
            Value::Array(items) => {
                for item in items.iter_mut().filter_map(Value::as_object_mut) {
                    walk_texts(item, clean);
                }
            }
            _ => {}
        }
    }
}

/// Characters that make a text look like another one: control characters, the directions of bidirectional text, and the
/// invisible tags in which instructions can be hidden from people.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{E0000}'..='\u{E007F}')
}

fn is_hidden_in_text(c: char) -> bool {
    is_hidden(c) && !matches!(c, '\n' | '\r' | '\t')
}

#[cfg(test)]
mod tests;
