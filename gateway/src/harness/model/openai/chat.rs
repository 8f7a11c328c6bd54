//! Chat Completions. Local servers leave out much: usage, ids, numbers of calls, even the streaming.

use serde_json::{Map, Value, json};

use super::super::draft::Draft;
use super::super::provider::Answer;
use super::super::schema::schema;
use super::super::turns::{Turn, turns};
use super::super::{Block, ModelError, Request, Role, Stop, ThinkingSetting};
use super::{count, images, parse, text, url};
use crate::brain::Home;

/// What ends a stream.
const DONE: &[u8] = b"[DONE]";
/// The part of a thought that is thinking.
const THINKING: u64 = 0;
/// The part that is text.
const TEXT: u64 = 1;
/// The first part that is a call.
const CALLS: u64 = 2;

/// The request as the API has it.
pub(super) fn body(request: &Request<'_>, home: Home) -> Value {
    let Request { transcript, tools, settings } = request;
    let mut messages = Vec::new();
    if !transcript.system.trim().is_empty() {
        messages.push(json!({"role": "system", "content": transcript.system}));
    }
    for turn in turns(transcript) {
        match turn.role {
            Role::User => user(&turn, &mut messages),
            Role::Assistant => messages.extend(assistant(&turn)),
        }
    }
    // `OpenAI` itself refuses the old name with its newer models; many others know no other.
    let limit = match home {
        Home::Own => "max_completion_tokens",
        Home::Other => "max_tokens",
    };
    let mut body = json!({
        "model": settings.model,
        limit: settings.max_output_tokens,
        "messages": messages,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if !tools.is_empty() {
        let function = tools.iter().map(|tool| {
            json!({"type": "function", "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": schema(tool),
            }})
        });
        body["tools"] = function.collect();
    }
    if let ThinkingSetting::Effort(effort) = settings.thinking {
        body["reasoning_effort"] = effort.name().into();
    }
    body
}

/// Results are messages of their own. A result can hold no image: those follow behind the last one.
fn user(turn: &Turn<'_>, messages: &mut Vec<Value>) {
    let mut parts = Vec::new();
    for said in &turn.blocks {
        match &*said.block {
            Block::Text(text) => parts.push(json!({"type": "text", "text": text})),
            Block::Image(image) => parts.push(json!({"type": "image_url", "image_url": {"url": url(image)}})),
            Block::ToolResult(result) => {
                let id = &result.tool_use_id;
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": text(result)}));
                for (number, image) in images(result).enumerate() {
                    let text = format!("Image {} of the result of {id}:", number + 1);
                    parts.push(json!({"type": "text", "text": text}));
                    parts.push(json!({"type": "image_url", "image_url": {"url": url(image)}}));
                }
            }
            Block::Thinking(_) | Block::ToolUse(_) => {}
        }
    }
    match &parts[..] {
        [] => {}
        // Servers without images often take text only as a string.
        [only] if only["type"] == "text" => messages.push(json!({"role": "user", "content": only["text"]})),
        _ => messages.push(json!({"role": "user", "content": parts})),
    }
}

fn assistant(turn: &Turn<'_>) -> Option<Value> {
    let (mut texts, mut calls) = (Vec::new(), Vec::new());
    for said in &turn.blocks {
        match &*said.block {
            Block::Text(text) => texts.push(text.as_str()),
            Block::ToolUse(call) => {
                let arguments = Value::Object(call.input.to_object()).to_string();
                calls.push(json!({
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": arguments},
                }));
            }
            Block::Thinking(_) | Block::Image(_) | Block::ToolResult(_) => {}
        }
    }
    if texts.is_empty() && calls.is_empty() {
        return None;
    }
    let content = if texts.is_empty() { Value::Null } else { texts.join("\n\n").into() };
    let mut message = json!({"role": "assistant", "content": content});
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Some(message)
}

/// Reads the answer to its end. `draft.stop` stays empty when it broke off.
pub(super) async fn read(answer: &mut Answer, draft: &mut Draft<'_>) -> Result<(), ModelError> {
    let mut calls = Calls::default();
    while let Some(data) = answer.next().await? {
        if data.trim_ascii() == DONE {
            draft.stop.get_or_insert(Stop::EndTurn);
            return Ok(());
        }
        let chunk = parse(&data)?;
        if chunk.get("error").is_some_and(|error| !error.is_null()) || chunk["object"] == "error" {
            return Err(answer.judged(&chunk));
        }
        count(&chunk["usage"], "prompt_tokens", "completion_tokens", draft);
        // Only one answer was asked for.
        let Some(choice) = chunk["choices"].get(0) else { continue };
        // The whole message, of a server that does not stream.
        let delta = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
        go_on(delta, draft, &mut calls);
        if let Some(reason) = choice["finish_reason"].as_str() {
            let stop = stop(reason);
            // A refusal is known before the reason, which does not tell of it.
            draft.stop = Some(if draft.stop == Some(Stop::Refusal) { Stop::Refusal } else { stop });
        }
    }
    Ok(())
}

fn go_on(delta: &Value, draft: &mut Draft<'_>, calls: &mut Calls) {
    for field in ["reasoning_content", "reasoning"] {
        if let Some(thinking) = delta[field].as_str().filter(|thinking| !thinking.is_empty()) {
            draft.thinking(THINKING, thinking);
            break;
        }
    }
    match &delta["content"] {
        Value::String(text) => draft.text(TEXT, text),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).for_each(|text| draft.text(TEXT, text));
        }
        _ => {}
    }
    if let Some(refusal) = delta["refusal"].as_str().filter(|refusal| !refusal.is_empty()) {
        draft.text(TEXT, refusal);
        draft.stop = Some(Stop::Refusal);
    }
    for call in delta["tool_calls"].as_array().into_iter().flatten() {
        calls.go_on(call, draft);
    }
    // From before there were several.
    if delta["function_call"].is_object() {
        let call = Map::from_iter([("function".to_owned(), delta["function_call"].clone())]);
        calls.go_on(&Value::Object(call), draft);
    }
}

/// Which call a piece belongs to.
#[derive(Default)]
struct Calls {
    /// The part of the last one.
    last: Option<u64>,
}

impl Calls {
    fn go_on(&mut self, piece: &Value, draft: &mut Draft<'_>) {
        let function = &piece["function"];
        let id = piece["id"].as_str().filter(|id| !id.is_empty());
        let name = function["name"].as_str().filter(|name| !name.is_empty());
        let numbered = piece["index"].as_u64().map(|index| index.saturating_add(CALLS));
        let known = id.and_then(|id| draft.call(id));
        let part = match (known, numbered, self.last) {
            (Some(part), _, _) => part,
            // Some number every call 0: one with another id and a name is another one.
            (None, Some(part), Some(last)) if draft.has(part) && id.is_some() && name.is_some() => {
                last.saturating_add(1)
            }
            (None, Some(part), _) if draft.has(part) || name.is_some() => part,
            // Without a number, a name begins a call, and all else goes on with the last.
            (None, _, Some(last)) if name.is_some() => last.saturating_add(1),
            (None, _, Some(last)) => last,
            (None, _, None) => CALLS,
        };
        if !draft.has(part) {
            // What no name came before is no call.
            let Some(name) = name else { return };
            draft.tool(part, id, name);
        }
        draft.arguments(part, &function["arguments"]);
        self.last = Some(self.last.unwrap_or(part).max(part));
    }
}

fn stop(reason: &str) -> Stop {
    match reason {
        "tool_calls" | "function_call" => Stop::ToolUse,
        "length" => Stop::MaxTokens,
        "content_filter" => Stop::Refusal,
        // `stop`, and what is not known yet.
        _ => Stop::EndTurn,
    }
}
