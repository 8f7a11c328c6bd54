//! The Responses API.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use gateway::harness::model::scripted::{Act, Play, call_id};
use gateway::harness::model::{
    Block, Message, Seen, Stop, ToolDefinition, ToolInput, ToolResult, ToolUse, Transcript,
};
use http::HeaderMap;
use serde_json::{Value, json};

use super::chat::{arguments, kind, sound, text};
use super::{Asked, Frame, Server, Way, Wire, bearer, lawful, pieces};

pub(super) async fn answer(server: Server, headers: HeaderMap, body: Bytes) -> Response {
    super::answer::<Responses>(&Arc::clone(&server), "/v1/responses", headers, &body)
}

struct Responses;

impl Wire for Responses {
    fn admit(headers: &HeaderMap) -> Result<(), (u16, String)> {
        bearer(headers)
    }

    fn parse(body: &Value) -> Result<Asked, String> {
        for tool in body["tools"].as_array().into_iter().flatten() {
            sound(&tool["parameters"])?;
        }
        let items = body["input"].as_array().map(Vec::as_slice).unwrap_or_default();
        check(items)?;
        let mut messages: Vec<Message> = Vec::new();
        // What a thought has said is several items, and one message.
        let mut thought = Vec::new();
        for item in items {
            match (item["type"].as_str(), item["role"].as_str()) {
                (Some("reasoning"), _) if item["encrypted_content"].is_null() => {
                    return Err(format!("Item {} not found: store is false", item["id"]));
                }
                (Some("reasoning"), _) => {}
                (Some("message"), Some("assistant")) => thought.push(Block::Text(text(&item["content"]))),
                (Some("function_call"), _) => thought.push(Block::ToolUse(called(item)?)),
                (Some("function_call_output"), _) => {
                    let id = item["call_id"].as_str().unwrap_or_default();
                    let known = |block: &Block| matches!(block, Block::ToolUse(call) if call.id == id);
                    let said = messages.iter().flat_map(|message| &message.blocks).chain(&thought);
                    if !said.into_iter().any(known) {
                        return Err(format!(
                            "No tool call found for function call output with call_id {id}."
                        ));
                    }
                    end(&mut thought, &mut messages);
                    messages.push(Message::user(vec![Block::ToolResult(ToolResult {
                        tool_use_id: id.to_owned(),
                        content: vec![Seen::Text(text(&item["output"]))],
                        is_error: false,
                    })]));
                }
                _ => {
                    end(&mut thought, &mut messages);
                    messages.push(Message::user(vec![Block::Text(text(&item["content"]))]));
                }
            }
        }
        end(&mut thought, &mut messages);
        let system = body["instructions"].as_str().unwrap_or_default().to_owned();
        let tools = body["tools"].as_array().into_iter().flatten().map(|tool| {
            let text = |field: &str| tool[field].as_str().unwrap_or_default().to_owned();
            let input_schema = tool["parameters"].as_object().cloned().unwrap_or_default();
            ToolDefinition { name: text("name"), description: text("description"), input_schema }
        });
        let tools = tools.collect();
        Ok(Asked { transcript: Transcript { system, messages }, tools, way: Way::of(body) })
    }

    fn stream(play: &Play, body: &Value) -> Vec<Frame> {
        let mut events = vec![json!({"type": "response.created", "response": response(play, body, &[])})];
        let items = items(play, body);
        for (part, item) in (0_u64..).zip(&items) {
            let mut begun = item.clone();
            begun["status"] = "in_progress".into();
            for field in ["content", "summary"] {
                if begun[field].is_array() {
                    begun[field] = json!([]);
                }
            }
            if begun["arguments"].is_string() {
                begun["arguments"] = "".into();
            }
            events.push(json!({"type": "response.output_item.added", "output_index": part, "item": begun}));
            let (kind, whole) = match item["type"].as_str() {
                Some("message") => ("response.output_text.delta", &item["content"][0]["text"]),
                Some("reasoning") => ("response.reasoning_summary_text.delta", &item["summary"][0]["text"]),
                _ => ("response.function_call_arguments.delta", &item["arguments"]),
            };
            let deltas = pieces(whole.as_str().unwrap_or_default());
            events.extend(deltas.map(|piece| json!({"type": kind, "output_index": part, "delta": piece})));
            events.push(json!({"type": "response.output_item.done", "output_index": part, "item": item}));
        }
        let waits = play.acts.iter().filter_map(|act| match act {
            Act::Wait(time) => Some(Frame::Wait(*time)),
            Act::Say(_) | Act::Think(_) | Act::Call { .. } | Act::Fail(_) => None,
        });
        let mut frames: Vec<_> = waits.collect();
        if !matches!(play.acts.last(), Some(Act::Fail(_))) {
            let kind = match play.stop {
                Stop::MaxTokens | Stop::ContextFull | Stop::Refusal => "response.incomplete",
                Stop::EndTurn | Stop::ToolUse | Stop::Pause => "response.completed",
            };
            events.push(json!({"type": kind, "response": response(play, body, &items)}));
        }
        for (number, event) in events.iter_mut().enumerate() {
            event["sequence_number"] = number.into();
            let kind = event["type"].as_str().unwrap_or_default();
            frames.push(Frame::Bytes(format!("event: {kind}\ndata: {event}\n\n").into()));
        }
        frames
    }

    fn whole(play: &Play, body: &Value) -> Value {
        response(play, body, &items(play, body))
    }

    fn error(status: u16, words: &str) -> Value {
        json!({"error": {"message": words, "type": kind(status), "param": null, "code": null}})
    }

    fn error_event(status: u16, words: &str) -> String {
        let error = json!({"type": "error", "code": kind(status), "message": words, "param": null});
        format!("event: error\ndata: {error}\n\n")
    }
}

fn end(thought: &mut Vec<Block>, messages: &mut Vec<Message>) {
    if !thought.is_empty() {
        messages.push(Message::assistant(std::mem::take(thought)));
    }
}

/// What is refused in any list of items.
fn check(items: &[Value]) -> Result<(), String> {
    let calls = items.iter().filter(|item| item["type"] == "function_call");
    lawful::calls(calls.map(|call| (&call["name"], &call["call_id"])))?;
    for (place, item) in items.iter().enumerate() {
        let next = items.get(place + 1).map(|next| (&next["type"], &next["role"]));
        let follows = next.is_some_and(|(kind, role)| {
            ["reasoning", "function_call"].iter().any(|known| kind == known) || role == "assistant"
        });
        if item["type"] == "reasoning" && !follows {
            return Err(
                "Item of type 'reasoning' was provided without its required following item.".to_owned()
            );
        }
        for part in [&item["content"], &item["output"]].into_iter().filter_map(Value::as_array).flatten() {
            if part["type"] == "input_image" {
                lawful::url(&part["image_url"])?;
            }
        }
    }
    Ok(())
}

fn called(item: &Value) -> Result<ToolUse, String> {
    let text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
    let input = serde_json::from_str(&text("arguments")).map_err(|error| format!("arguments: {error}"))?;
    Ok(ToolUse { id: text("call_id"), name: text("name"), input: ToolInput::Object(input) })
}

fn items(play: &Play, body: &Value) -> Vec<Value> {
    let encrypted = body["include"].as_array().is_some_and(|list| !list.is_empty());
    let (mut items, mut calls): (Vec<Value>, usize) = (Vec::new(), 0);
    for act in &play.acts {
        let number = items.len();
        match act {
            Act::Say(line) => match items.last_mut().filter(|item| item["type"] == "message") {
                Some(item) => {
                    let before = item["content"][0]["text"].as_str().unwrap_or_default();
                    item["content"][0]["text"] = format!("{before}\n{line}").into();
                }
                None => items.push(json!({
                    "id": format!("msg_{number}"), "type": "message", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": line, "annotations": []}],
                })),
            },
            Act::Think(text) => {
                let mut item = json!({
                    "id": format!("rs_{number}"), "type": "reasoning",
                    "summary": [{"type": "summary_text", "text": text}],
                });
                if encrypted {
                    item["encrypted_content"] = "ZW5jcnlwdGVk".into();
                }
                items.push(item);
            }
            Act::Call { name, input } => {
                items.push(json!({
                    "id": format!("fc_{number}"), "type": "function_call", "status": "completed",
                    "call_id": call_id(play.first_call + calls), "name": name, "arguments": arguments(input),
                }));
                calls += 1;
            }
            Act::Wait(_) | Act::Fail(_) => {}
        }
    }
    items
}

fn response(play: &Play, body: &Value, output: &[Value]) -> Value {
    let (status, reason) = match play.stop {
        Stop::MaxTokens | Stop::ContextFull => ("incomplete", Some("max_output_tokens")),
        Stop::Refusal => ("incomplete", Some("content_filter")),
        Stop::EndTurn | Stop::ToolUse | Stop::Pause => ("completed", None),
    };
    let (input, written) = (play.usage.input, play.usage.output);
    json!({
        "id": "resp_scripted",
        "object": "response",
        "created_at": 1,
        "model": body["model"],
        "status": status,
        "incomplete_details": reason.map(|reason| json!({"reason": reason})),
        "output": output,
        "usage": {
            "input_tokens": input,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "total_tokens": input + written,
        },
    })
}
