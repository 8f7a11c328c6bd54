//! Responses. Nothing is stored there: reasoning comes encrypted, is kept privately, and is given back with the next
//! request.

use serde_json::{Value, json};

use super::super::draft::Draft;
use super::super::provider::Answer;
use super::super::schema::schema;
use super::super::turns::turns;
use super::super::{Block, ModelError, Opaque, Request, Role, Seen, Stop, ThinkingSetting, ToolResult};
use super::{PROVIDER, count, parse, text, url};

/// The request as the API has it.
pub(super) fn body(request: &Request<'_>) -> Value {
    let Request { transcript, tools, settings } = request;
    let mut input = Vec::new();
    for turn in turns(transcript) {
        for said in &turn.blocks {
            item(turn.role, &said.block, &mut input);
        }
    }
    let mut body = json!({
        "model": settings.model,
        "input": input,
        "max_output_tokens": settings.max_output_tokens,
        "store": false,
        "stream": true,
    });
    if !transcript.system.trim().is_empty() {
        body["instructions"] = transcript.system.as_str().into();
    }
    if !tools.is_empty() {
        let function = tools.iter().map(|tool| {
            json!({
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": schema(tool),
                // Strict schemas know no optional arguments.
                "strict": false,
            })
        });
        body["tools"] = function.collect();
    }
    if let ThinkingSetting::Effort(effort) = settings.thinking {
        body["reasoning"] = json!({"effort": effort.name(), "summary": "auto"});
        // Models that don't reason refuse it.
        body["include"] = json!(["reasoning.encrypted_content"]);
    }
    body
}

fn item(role: Role, block: &Block, input: &mut Vec<Value>) {
    match (role, block) {
        (Role::User, Block::Text(text)) => said("user", json!({"type": "input_text", "text": text}), input),
        (Role::Assistant, Block::Text(text)) => {
            said("assistant", json!({"type": "output_text", "text": text}), input);
        }
        (_, Block::Image(image)) => {
            said("user", json!({"type": "input_image", "image_url": url(image)}), input);
        }
        (_, Block::Thinking(thinking)) => {
            let is_own =
                |opaque: &&Opaque| opaque.provider == PROVIDER && opaque.value["type"] == "reasoning";
            let own = thinking.opaque.as_ref().filter(is_own);
            input.extend(own.map(|opaque| opaque.value.clone()));
        }
        (_, Block::ToolUse(call)) => {
            let arguments = Value::Object(call.input.to_object()).to_string();
            input.push(json!({
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": arguments,
            }));
        }
        (_, Block::ToolResult(result)) => input.push(json!({
            "type": "function_call_output",
            "call_id": result.tool_use_id,
            "output": output(result),
        })),
    }
}

/// A piece of a message: of the last one, when that is of the same role.
fn said(role: &str, piece: Value, input: &mut Vec<Value>) {
    if let Some(last) = input.last_mut().filter(|last| last["role"] == role)
        && let Some(content) = last["content"].as_array_mut()
    {
        content.push(piece);
        return;
    }
    input.push(json!({"type": "message", "role": role, "content": [piece]}));
}

fn output(result: &ToolResult) -> Value {
    if !result.content.iter().any(|seen| matches!(seen, Seen::Image(_))) {
        return text(result).into();
    }
    let text = json!({"type": "input_text", "text": text(result)});
    let images = super::images(result).map(|image| json!({"type": "input_image", "image_url": url(image)}));
    std::iter::once(text).chain(images).collect()
}

/// Reads the answer to its end. `draft.stop` stays empty when it broke off.
pub(super) async fn read(answer: &mut Answer, draft: &mut Draft<'_>) -> Result<(), ModelError> {
    while let Some(data) = answer.next().await? {
        // Of servers that end every stream so.
        if data.trim_ascii() == b"[DONE]" {
            return Ok(());
        }
        let event = parse(&data)?;
        let part = event["output_index"].as_u64().unwrap_or(0);
        let delta = event["delta"].as_str().unwrap_or_default();
        match event["type"].as_str() {
            Some("response.output_item.added") => begin(part, &event["item"], draft),
            Some("response.output_item.done") => end(part, &event["item"], draft),
            Some("response.output_text.delta") => draft.text(part, delta),
            Some("response.refusal.delta") => {
                draft.text(part, delta);
                draft.stop = Some(Stop::Refusal);
            }
            Some("response.reasoning_summary_text.delta" | "response.reasoning_text.delta") => {
                draft.thinking(part, delta);
            }
            Some("response.reasoning_summary_part.added") if !draft.text_of(part).is_empty() => {
                draft.thinking(part, "\n\n");
            }
            Some("response.function_call_arguments.delta") => draft.arguments(part, &event["delta"]),
            Some("response.completed" | "response.incomplete") => {
                complete(&event["response"], draft);
                return Ok(());
            }
            Some("response.failed") => return Err(answer.judged(&event["response"])),
            Some("error") => return Err(answer.judged(&event)),
            // The whole answer, of a server that does not stream.
            None if event["object"] == "response" && event["status"] == "failed" => {
                return Err(answer.judged(&event));
            }
            None if event["object"] == "response" => complete(&event, draft),
            Some(_) | None => {}
        }
    }
    Ok(())
}

fn begin(part: u64, item: &Value, draft: &mut Draft<'_>) {
    if item["type"] == "function_call" && !draft.has(part) {
        draft.tool(part, item["call_id"].as_str(), item["name"].as_str().unwrap_or_default());
    }
}

/// The item is whole, and counts more than its pieces: some servers send none.
fn end(part: u64, item: &Value, draft: &mut Draft<'_>) {
    match item["type"].as_str() {
        Some("message") if !draft.has(part) => {
            for piece in item["content"].as_array().into_iter().flatten() {
                draft.text(part, piece["text"].as_str().unwrap_or_default());
                if let Some(refusal) = piece["refusal"].as_str() {
                    draft.text(part, refusal);
                    draft.stop = Some(Stop::Refusal);
                }
            }
        }
        Some("function_call") => {
            begin(part, item, draft);
            whole(part, &item["arguments"], draft);
        }
        Some("reasoning") => reasoning(part, item, draft),
        Some(_) | None => {}
    }
}

/// Arguments as they are in the end. When they are no JSON, the pieces stay, which are the same.
fn whole(part: u64, arguments: &Value, draft: &mut Draft<'_>) {
    let parsed = match arguments {
        Value::String(text) => serde_json::from_str(text).ok(),
        other => Some(other.clone()),
    };
    match parsed {
        Some(object @ Value::Object(_)) => draft.arguments(part, &object),
        Some(_) | None if draft.has_arguments(part) => {}
        Some(_) | None => draft.arguments(part, arguments),
    }
}

fn reasoning(part: u64, item: &Value, draft: &mut Draft<'_>) {
    if draft.text_of(part).is_empty() {
        let all = item["summary"].as_array().into_iter().chain(item["content"].as_array()).flatten();
        let texts: Vec<_> = all.filter_map(|piece| piece["text"].as_str()).collect();
        draft.thinking(part, &texts.join("\n\n"));
    }
    // Without it the item means nothing to a server that stored nothing.
    if item["encrypted_content"].as_str().is_some_and(|text| !text.is_empty()) {
        let mut value = item.clone();
        if let Some(object) = value.as_object_mut() {
            // Of the answer, and refused in a request.
            object.remove("status");
        }
        draft.opaque(part, Opaque { provider: PROVIDER.to_owned(), value });
    }
}

fn complete(response: &Value, draft: &mut Draft<'_>) {
    for (part, item) in (0..).zip(response["output"].as_array().into_iter().flatten()) {
        if !draft.has(part) {
            end(part, item, draft);
        }
    }
    count(&response["usage"], "input_tokens", "output_tokens", draft);
    let reason = response["incomplete_details"]["reason"].as_str();
    let stop = match (response["status"].as_str(), reason) {
        (Some("incomplete"), Some("content_filter")) => Stop::Refusal,
        (Some("incomplete"), _) => Stop::MaxTokens,
        _ => Stop::EndTurn,
    };
    draft.stop.get_or_insert(stop);
}
