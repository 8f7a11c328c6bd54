//! The Chat Completions API.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use gateway::harness::model::scripted::{Act, Play, call_id};
use gateway::harness::model::{
    Block, Message, Seen, Stop, ToolDefinition, ToolInput, ToolResult, ToolUse, Transcript,
};
use http::HeaderMap;
use serde_json::{Value, json};

use super::{Asked, Frame, Server, Way, Wire, bearer, lawful, pieces};

pub(super) async fn answer(server: Server, headers: HeaderMap, body: Bytes) -> Response {
    super::answer::<Chat>(&Arc::clone(&server), "/v1/chat/completions", headers, &body)
}

struct Chat;

impl Wire for Chat {
    fn admit(headers: &HeaderMap) -> Result<(), (u16, String)> {
        bearer(headers)
    }

    fn parse(body: &Value) -> Result<Asked, String> {
        let said = list(&body["messages"]);
        answered(said)?;
        let calls = said.iter().flat_map(|message| list(&message["tool_calls"]));
        lawful::calls(calls.map(|call| (&call["function"]["name"], &call["id"])))?;
        let parts = said.iter().flat_map(|message| list(&message["content"]));
        let pictures = parts.filter(|part| part["type"] == "image_url");
        pictures.into_iter().try_for_each(|part| lawful::url(&part["image_url"]["url"]))?;
        for tool in list(&body["tools"]) {
            sound(&tool["function"]["parameters"])?;
        }
        let mut transcript = Transcript::default();
        for message in said {
            match message["role"].as_str() {
                Some("system" | "developer") => transcript.system = text(&message["content"]),
                Some("user") => {
                    transcript.messages.push(Message::user(vec![Block::Text(text(&message["content"]))]));
                }
                Some("assistant") => transcript.messages.push(Message::assistant(spoken(message)?)),
                Some("tool") => {
                    let result = ToolResult {
                        tool_use_id: message["tool_call_id"].as_str().unwrap_or_default().to_owned(),
                        content: vec![Seen::Text(text(&message["content"]))],
                        is_error: false,
                    };
                    transcript.messages.push(Message::user(vec![Block::ToolResult(result)]));
                }
                other => return Err(format!("Invalid value for role: {other:?}")),
            }
        }
        let tools = list(&body["tools"]).iter().map(|tool| {
            let text = |field: &str| tool["function"][field].as_str().unwrap_or_default().to_owned();
            let input_schema = tool["function"]["parameters"].as_object().cloned().unwrap_or_default();
            ToolDefinition { name: text("name"), description: text("description"), input_schema }
        });
        Ok(Asked { transcript, tools: tools.collect(), way: Way::of(body) })
    }

    fn stream(play: &Play, body: &Value) -> Vec<Frame> {
        let chunk = |delta: Value, reason: Option<&str>| {
            event(&json!({
                "id": "chatcmpl-scripted",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": body["model"],
                "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
            }))
        };
        let mut frames = vec![chunk(json!({"role": "assistant", "content": ""}), None)];
        let (mut calls, mut spoke) = (0, false);
        for act in &play.acts {
            match act {
                Act::Say(text) => {
                    let line = if spoke { format!("\n{text}") } else { text.clone() };
                    frames.extend(pieces(&line).map(|piece| chunk(json!({"content": piece}), None)));
                    spoke = true;
                }
                Act::Think(text) => {
                    let pieces = pieces(text).map(|piece| chunk(json!({"reasoning_content": piece}), None));
                    frames.extend(pieces);
                }
                Act::Call { name, input } => {
                    let begin = json!({"index": calls, "id": call_id(play.first_call + calls), "type": "function",
                        "function": {"name": name, "arguments": ""}});
                    frames.push(chunk(json!({"tool_calls": [begin]}), None));
                    for piece in pieces(&arguments(input)) {
                        let more = json!({"index": calls, "function": {"arguments": piece}});
                        frames.push(chunk(json!({"tool_calls": [more]}), None));
                    }
                    calls += 1;
                }
                Act::Wait(time) => frames.push(Frame::Wait(*time)),
                Act::Fail(_) => return frames,
            }
        }
        frames.push(chunk(json!({}), Some(reason(play.stop))));
        if body["stream_options"]["include_usage"] == true {
            frames.push(event(
                &json!({"object": "chat.completion.chunk", "choices": [], "usage": usage(play)}),
            ));
        }
        frames.push(Frame::Bytes(Bytes::from_static(b"data: [DONE]\n\n")));
        frames
    }

    fn whole(play: &Play, body: &Value) -> Value {
        let (mut calls, mut texts) = (Vec::new(), Vec::new());
        for act in &play.acts {
            match act {
                Act::Say(text) => texts.push(text.as_str()),
                Act::Call { name, input } => calls.push(json!({
                    "id": call_id(play.first_call + calls.len()),
                    "type": "function",
                    "function": {"name": name, "arguments": arguments(input)},
                })),
                Act::Think(_) | Act::Wait(_) | Act::Fail(_) => {}
            }
        }
        let mut message = json!({"role": "assistant", "content": texts.join("\n")});
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        json!({
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reason(play.stop)}],
            "usage": usage(play),
        })
    }

    fn error(status: u16, words: &str) -> Value {
        json!({"error": {"message": words, "type": kind(status), "param": null, "code": null}})
    }

    fn error_event(status: u16, words: &str) -> String {
        format!("data: {}\n\n", Self::error(status, words))
    }
}

/// How `OpenAI`'s APIs call an error of this status.
pub(super) fn kind(status: u16) -> &'static str {
    match status {
        400 | 401 | 404 => "invalid_request_error",
        429 => "rate_limit_exceeded",
        529 => "server_overloaded",
        _ => "server_error",
    }
}

/// What is taken as a schema.
pub(super) fn sound(schema: &Value) -> Result<(), String> {
    if schema["type"] != "object" || schema["properties"].is_null() || !schema["anyOf"].is_null() {
        return Err(format!("Invalid schema for function: {schema}"));
    }
    Ok(())
}

/// Every call is answered by a message of its own, right behind.
fn answered(said: &[Value]) -> Result<(), String> {
    for (number, message) in said.iter().enumerate() {
        for (place, call) in list(&message["tool_calls"]).iter().enumerate() {
            let behind = said[number + 1..].iter().take_while(|message| message["role"] == "tool");
            if !behind.into_iter().any(|answer| answer["tool_call_id"] == call["id"]) {
                return Err(format!(
                    "An assistant message with 'tool_calls' must be followed by tool messages: number {place} of \
                     message {number} is not"
                ));
            }
        }
    }
    Ok(())
}

fn spoken(message: &Value) -> Result<Vec<Block>, String> {
    let mut blocks = vec![Block::Text(text(&message["content"]))];
    for call in list(&message["tool_calls"]) {
        let text = call["function"]["arguments"].as_str().unwrap_or_default();
        // Chat templates of local servers read the arguments.
        let input = serde_json::from_str(text).map_err(|error| format!("tool_calls: {error}"))?;
        blocks.push(Block::ToolUse(ToolUse {
            id: call["id"].as_str().unwrap_or_default().to_owned(),
            name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
            input: ToolInput::Object(input),
        }));
    }
    Ok(blocks)
}

pub(super) fn arguments(input: &ToolInput) -> String {
    match input {
        ToolInput::Object(object) => Value::Object(object.clone()).to_string(),
        ToolInput::Broken(text) => text.clone(),
    }
}

fn usage(play: &Play) -> Value {
    let (input, output) = (play.usage.input, play.usage.output);
    json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output})
}

fn reason(stop: Stop) -> &'static str {
    match stop {
        Stop::ToolUse => "tool_calls",
        Stop::MaxTokens | Stop::ContextFull => "length",
        Stop::Refusal => "content_filter",
        Stop::EndTurn | Stop::Pause => "stop",
    }
}

/// Content that is a string or a list of parts.
pub(super) fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        parts => list(parts).iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
    }
}

fn event(data: &Value) -> Frame {
    Frame::Bytes(format!("data: {data}\n\n").into())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
