//! The Messages API.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use gateway::harness::model::scripted::{Act, Play, call_id};
use gateway::harness::model::{
    Block, Image, Message, Opaque, Seen, Stop, Thinking, ToolDefinition, ToolInput, ToolResult, ToolUse,
    Transcript,
};
use http::HeaderMap;
use serde_json::{Map, Value, json};

use super::{Asked, Frame, KEY, Server, Way, Wire, bearer, lawful, pieces};

/// The versions of the API: the one that our client speaks, and the one that the SDK of today does.
const VERSIONS: [&str; 2] = ["2023-06-01", "2026-10-21"];
/// Places that can be marked with `cache_control`.
const MARKS_MAX: usize = 4;

pub(super) async fn answer(server: Server, headers: HeaderMap, body: Bytes) -> Response {
    super::answer::<Messages>(&Arc::clone(&server), "/v1/messages", headers, &body)
}

struct Messages;

impl Wire for Messages {
    fn admit(headers: &HeaderMap) -> Result<(), (u16, String)> {
        // The official SDK gives the key as a bearer token.
        if headers.get("x-api-key").is_none_or(|key| key != KEY) && bearer(headers).is_err() {
            return Err((401, "invalid x-api-key".to_owned()));
        }
        if headers
            .get("anthropic-version")
            .is_none_or(|version| !VERSIONS.iter().any(|known| version == known))
        {
            return Err((400, "anthropic-version: header is required".to_owned()));
        }
        Ok(())
    }

    fn parse(body: &Value) -> Result<Asked, String> {
        check(body)?;
        let system = match &body["system"] {
            Value::String(text) => text.clone(),
            blocks => texts(blocks),
        };
        let messages = list(&body["messages"]).iter().map(message).collect();
        let tools = list(&body["tools"]).iter().map(tool).collect();
        Ok(Asked { transcript: Transcript { system, messages }, tools, way: Way::of(body) })
    }

    fn stream(play: &Play, body: &Value) -> Vec<Frame> {
        let mut start = whole(play, body);
        start["content"] = json!([]);
        start["stop_reason"] = Value::Null;
        start["usage"]["output_tokens"] = json!(1);
        let mut frames = vec![event(&json!({"type": "message_start", "message": start}))];
        frames.push(event(&json!({"type": "ping"})));
        let mut index = 0;
        for (block, wait) in blocks(play) {
            if let Some(time) = wait {
                frames.push(Frame::Wait(time));
                continue;
            }
            frames.extend(deltas(index, &block));
            index += 1;
        }
        if matches!(play.acts.last(), Some(Act::Fail(_))) {
            return frames;
        }
        frames.push(event(&json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason(play.stop), "stop_sequence": null},
            "usage": {"output_tokens": play.usage.output},
        })));
        frames.push(event(&json!({"type": "message_stop"})));
        frames
    }

    fn whole(play: &Play, body: &Value) -> Value {
        whole(play, body)
    }

    fn error(status: u16, words: &str) -> Value {
        let kind = match status {
            400 => "invalid_request_error",
            401 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            529 => "overloaded_error",
            _ => "api_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": words}, "request_id": "req_1"})
    }

    fn error_event(status: u16, words: &str) -> String {
        format!("event: error\ndata: {}\n\n", Self::error(status, words))
    }
}

/// What the API refuses a request for.
fn check(body: &Value) -> Result<(), String> {
    let messages = list(&body["messages"]);
    if body["max_tokens"].as_u64().is_none_or(|tokens| tokens == 0) {
        return Err("max_tokens: field required".to_owned());
    }
    if messages.first().is_none_or(|first| first["role"] != "user") {
        return Err("messages: first message must use the \"user\" role".to_owned());
    }
    let marks = body.to_string().matches("\"cache_control\":").count();
    if marks > MARKS_MAX {
        return Err(format!("A maximum of 4 blocks with cache_control may be provided. Found {marks}."));
    }
    let budget = body["thinking"]["budget_tokens"].as_u64().unwrap_or(0);
    if budget > 0 && body["max_tokens"].as_u64().is_some_and(|max| max <= budget) {
        return Err("`max_tokens` must be greater than `thinking.budget_tokens`".to_owned());
    }
    let last = messages.iter().rfind(|message| message["role"] == "assistant");
    let first = last.map(|last| last["content"][0]["type"].clone()).unwrap_or_default();
    let calls =
        last.is_some_and(|last| list(&last["content"]).iter().any(|block| block["type"] == "tool_use"));
    if budget > 0 && calls && first != "thinking" && first != "redacted_thinking" {
        return Err(format!("Expected `thinking` or `redacted_thinking`, but found `{first}`"));
    }
    for tool in list(&body["tools"]) {
        let schema = &tool["input_schema"];
        if schema["type"] != "object" || !schema["anyOf"].is_null() {
            return Err(
                "tools: input_schema does not support oneOf, allOf, or anyOf at the top level".to_owned()
            );
        }
    }
    for (number, message) in messages.iter().enumerate() {
        let content = list(&message["content"]);
        if content.is_empty() && !message["content"].is_string() {
            return Err(format!("messages.{number}: all messages must have non-empty content"));
        }
        for block in content {
            if block["type"] == "text" && block["text"].as_str().is_none_or(|text| text.trim().is_empty()) {
                return Err("messages: text content blocks must contain non-whitespace text".to_owned());
            }
            if block["type"] == "thinking" && !block["cache_control"].is_null() {
                return Err("cache_control cannot be set for thinking blocks".to_owned());
            }
        }
        let next = messages.get(number + 1);
        pairs(number, content, next.map(|next| list(&next["content"])).unwrap_or_default())?;
        if message["role"] == "assistant" {
            ends_well(content.last().unwrap_or(&Value::Null), next)?;
        }
        content.iter().try_for_each(failed)?;
    }
    let blocks = || messages.iter().flat_map(|message| list(&message["content"]));
    lawful::calls(
        blocks().filter(|block| block["type"] == "tool_use").map(|call| (&call["name"], &call["id"])),
    )?;
    let inner = blocks().flat_map(|block| list(&block["content"]));
    let pictures = blocks().chain(inner).filter(|block| block["type"] == "image").map(image);
    pictures.into_iter().try_for_each(|image| lawful::picture(&image.media_type, &image.data))
}

/// How a message of the model may end.
fn ends_well(last: &Value, next: Option<&Value>) -> Result<(), String> {
    let text = last["text"].as_str().unwrap_or_default();
    if last["type"] == "thinking" || last["type"] == "redacted_thinking" {
        return Err("The final block in an assistant message cannot be `thinking`.".to_owned());
    }
    if next.is_none() && text.trim_end() != text {
        return Err("final assistant content cannot end with trailing whitespace".to_owned());
    }
    Ok(())
}

/// What a result that is an error may hold.
fn failed(result: &Value) -> Result<(), String> {
    let content = list(&result["content"]);
    if result["is_error"] == true
        && (content.is_empty() || content.iter().any(|piece| piece["type"] != "text"))
    {
        return Err(
            "tool_result: all content must be type \"text\" if `is_error` is true, and some".to_owned()
        );
    }
    Ok(())
}

/// Each call has its result in the next message, before anything else.
fn pairs(number: usize, content: &[Value], next: &[Value]) -> Result<(), String> {
    let calls: Vec<_> = content.iter().filter(|block| block["type"] == "tool_use").collect();
    let results: Vec<_> = next.iter().take_while(|block| block["type"] == "tool_result").collect();
    for call in &calls {
        if !results.iter().any(|result| result["tool_use_id"] == call["id"]) {
            return Err(format!(
                "messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: {}",
                call["id"]
            ));
        }
    }
    let answers = next.iter().filter(|block| block["type"] == "tool_result").count();
    if answers != results.len() || answers > calls.len() {
        return Err(format!("messages.{}: unexpected `tool_result` block", number + 1));
    }
    Ok(())
}

fn message(message: &Value) -> Message {
    let blocks = match &message["content"] {
        Value::String(text) => vec![Block::text(text)],
        blocks => list(blocks).iter().filter_map(block).collect(),
    };
    if message["role"] == "user" { Message::user(blocks) } else { Message::assistant(blocks) }
}

fn block(block: &Value) -> Option<Block> {
    let text = |field: &str| block[field].as_str().unwrap_or_default().to_owned();
    Some(match block["type"].as_str()? {
        "text" => Block::Text(text("text")),
        "image" => Block::Image(image(block)),
        "thinking" => Block::Thinking(Thinking {
            text: text("thinking"),
            opaque: Some(Opaque { provider: "anthropic".to_owned(), value: block.clone() }),
        }),
        "tool_use" => Block::ToolUse(ToolUse {
            id: text("id"),
            name: text("name"),
            input: ToolInput::Object(block["input"].as_object().cloned().unwrap_or_default()),
        }),
        "tool_result" => Block::ToolResult(ToolResult {
            tool_use_id: text("tool_use_id"),
            content: seen(&block["content"]),
            is_error: block["is_error"] == true,
        }),
        _ => return None,
    })
}

fn seen(content: &Value) -> Vec<Seen> {
    if let Value::String(text) = content {
        return vec![Seen::Text(text.clone())];
    }
    let piece = |piece: &Value| match piece["type"].as_str() {
        Some("image") => Seen::Image(image(piece)),
        _ => Seen::Text(piece["text"].as_str().unwrap_or_default().to_owned()),
    };
    list(content).iter().map(piece).collect()
}

fn image(block: &Value) -> Image {
    let source = |field: &str| block["source"][field].as_str().unwrap_or_default().to_owned();
    Image { media_type: source("media_type"), data: source("data") }
}

fn tool(tool: &Value) -> ToolDefinition {
    let text = |field: &str| tool[field].as_str().unwrap_or_default().to_owned();
    let input_schema = tool["input_schema"].as_object().cloned().unwrap_or_default();
    ToolDefinition { name: text("name"), description: text("description"), input_schema }
}

fn texts(blocks: &Value) -> String {
    list(blocks).iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

fn whole(play: &Play, body: &Value) -> Value {
    let content: Vec<_> =
        blocks(play).into_iter().filter(|(_, wait)| wait.is_none()).map(|(block, _)| block).collect();
    json!({
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": reason(play.stop),
        "stop_sequence": null,
        "usage": play.usage,
    })
}

/// The blocks of an answer, with the waits between them.
fn blocks(play: &Play) -> Vec<(Value, Option<std::time::Duration>)> {
    let mut blocks: Vec<(Value, Option<std::time::Duration>)> = Vec::new();
    let mut call = play.first_call;
    for act in &play.acts {
        match act {
            Act::Say(text) => match blocks.last_mut().filter(|(block, _)| block["type"] == "text") {
                Some((block, _)) => {
                    block["text"] = format!("{}\n{text}", block["text"].as_str().unwrap_or_default()).into();
                }
                None => blocks.push((json!({"type": "text", "text": text}), None)),
            },
            Act::Think(text) => {
                blocks.push((json!({"type": "thinking", "thinking": text, "signature": "c2lnbmVk"}), None));
            }
            Act::Call { name, input } => {
                let id = call_id(call);
                call += 1;
                // Broken arguments can be streamed only: whole, the API has no place for them.
                let input = match input {
                    ToolInput::Object(object) => Value::Object(object.clone()),
                    ToolInput::Broken(text) => text.as_str().into(),
                };
                blocks.push((json!({"type": "tool_use", "id": id, "name": name, "input": input}), None));
            }
            Act::Wait(time) => blocks.push((Value::Null, Some(*time))),
            Act::Fail(_) => {}
        }
    }
    blocks
}

fn deltas(index: u64, block: &Value) -> Vec<Frame> {
    let mut start = block.clone();
    let mut parts = Vec::new();
    match block["type"].as_str() {
        Some("text") => {
            start["text"] = "".into();
            let text = block["text"].as_str().unwrap_or_default();
            parts.extend(pieces(text).map(|piece| json!({"type": "text_delta", "text": piece})));
        }
        Some("thinking") => {
            start["thinking"] = "".into();
            start["signature"] = "".into();
            let text = block["thinking"].as_str().unwrap_or_default();
            parts.extend(pieces(text).map(|piece| json!({"type": "thinking_delta", "thinking": piece})));
            parts.push(json!({"type": "signature_delta", "signature": block["signature"]}));
        }
        _ => {
            start["input"] = Value::Object(Map::new());
            let text = match &block["input"] {
                Value::String(broken) => broken.clone(),
                input => input.to_string(),
            };
            parts.push(json!({"type": "input_json_delta", "partial_json": ""}));
            let json = pieces(&text).map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
            parts.extend(json);
        }
    }
    let mut frames = vec![json!({"type": "content_block_start", "index": index, "content_block": start})];
    let deltas =
        parts.into_iter().map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta}));
    frames.extend(deltas);
    frames.push(json!({"type": "content_block_stop", "index": index}));
    frames.iter().map(event).collect()
}

fn event(data: &Value) -> Frame {
    let kind = data["type"].as_str().unwrap_or_default();
    Frame::Bytes(format!("event: {kind}\ndata: {data}\n\n").into())
}

fn reason(stop: Stop) -> &'static str {
    match stop {
        Stop::EndTurn => "end_turn",
        Stop::ToolUse => "tool_use",
        Stop::MaxTokens => "max_tokens",
        Stop::Refusal => "refusal",
        Stop::Pause => "pause_turn",
        Stop::ContextFull => "model_context_window_exceeded",
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
