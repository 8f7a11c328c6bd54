//! The Messages API of Anthropic, and of those who speak as it does.
//!
//! Prefixes are cached up to four places, which is all that the API takes: behind the tools and the system text, and at
//! the last three breakpoints of the transcript.

mod answer;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use super::provider::{KeyHeader, Provider};
use super::schema::schema;
use super::turns::{Said, Turn, turns};
use super::{Block, Emit, Image, Model, ModelError, Request, Role, Seen, Thinking, ThinkingSetting, Thought};
use crate::brain::Endpoint;
use crate::hand::Variables;

/// The version of the API.
const VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");
/// Breakpoints of the transcript that are sent, beside the one behind tools and system text.
const BREAKPOINTS_MAX: usize = 3;
/// What is told of a failure without words, or with pictures.
const FAILED: &str = "The tool failed.";
/// Who understands the proofs of its thinking.
const PROVIDER: &str = "anthropic";

/// Models behind the Messages API.
pub(super) struct Anthropic {
    provider: Provider,
}

impl Anthropic {
    /// Touches nothing. The error is a sentence.
    pub(super) fn new(endpoint: &Endpoint, variables: Variables) -> Result<Self, String> {
        let provider = Provider::new(endpoint, "/v1/messages", KeyHeader::ApiKey, variables)?;
        Ok(Self { provider })
    }
}

#[async_trait]
impl Model for Anthropic {
    async fn think(&self, request: &Request<'_>, out: &mut dyn Emit) -> Result<Thought, ModelError> {
        let mut draft = super::draft::Draft::new(out);
        let version = (HeaderName::from_static("anthropic-version"), VERSION);
        let mut answer = self.provider.ask(&body(request), &[version]).await?;
        answer::read(&mut answer, &mut draft).await?;
        let Some(stop) = draft.stop else {
            return Err(ModelError::BrokenOff { why: "the stream ended before the answer did".to_owned() });
        };
        Ok(draft.finish(stop))
    }
}

/// The request as the API has it.
fn body(request: &Request<'_>) -> Value {
    let Request { transcript, tools, settings } = request;
    let mut body = json!({
        "model": settings.model,
        "max_tokens": settings.max_output_tokens,
        "messages": messages(&turns(transcript)),
        "stream": true,
    });
    let mut tools: Vec<_> = tools
        .iter()
        .map(|tool| json!({"name": tool.name, "description": tool.description, "input_schema": schema(tool)}))
        .collect();
    if !transcript.system.trim().is_empty() {
        body["system"] = json!([cached(json!({"type": "text", "text": transcript.system}))]);
    } else if let Some(last) = tools.last_mut() {
        *last = cached(last.take());
    }
    if !tools.is_empty() {
        body["tools"] = Value::Array(tools);
    }
    match settings.thinking {
        ThinkingSetting::Off => {}
        // It goes on thinking with the next prompt.
        ThinkingSetting::Budget(_) if goes_on_without_thinking(&body["messages"]) => {}
        ThinkingSetting::Budget(tokens) => {
            body["thinking"] = json!({"type": "enabled", "budget_tokens": tokens});
        }
        ThinkingSetting::Effort(effort) => {
            body["thinking"] = json!({"type": "adaptive"});
            body["output_config"] = json!({"effort": effort.name()});
        }
    }
    body
}

/// Whether the calls that were answered last were made without signed thinking: by another provider's model, or before
/// thinking was set. The API then refuses to think in the middle of them.
fn goes_on_without_thinking(messages: &Value) -> bool {
    let messages = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(last) = messages.iter().rfind(|message| message["role"] == "assistant") else { return false };
    let content = last["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is = |block: &Value, kinds: &[&str]| kinds.iter().any(|kind| block["type"] == *kind);
    content.iter().any(|block| is(block, &["tool_use"]))
        && !content.first().is_some_and(|block| is(block, &["thinking", "redacted_thinking"]))
}

fn messages(turns: &[Turn<'_>]) -> Vec<Value> {
    let ends = turns.iter().flat_map(|turn| &turn.blocks).filter(|said| said.ends_stable).count();
    let mut skipped = ends.saturating_sub(BREAKPOINTS_MAX);
    let mut messages = Vec::new();
    for turn in turns {
        let mut content = Vec::new();
        for Said { block, ends_stable } in &turn.blocks {
            let Some(value) = value(block) else { continue };
            let keep = *ends_stable && {
                let early = skipped > 0;
                skipped = skipped.saturating_sub(1);
                !early
            };
            content.push(if keep { cached(value) } else { value });
        }
        let role = match turn.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        if !content.is_empty() {
            messages.push(json!({"role": role, "content": content}));
        }
    }
    messages
}

fn cached(mut value: Value) -> Value {
    value["cache_control"] = json!({"type": "ephemeral"});
    value
}

/// None for thinking that the API did not sign.
fn value(block: &Block) -> Option<Value> {
    Some(match block {
        Block::Text(text) => json!({"type": "text", "text": text}),
        Block::Image(image) => self::image(image),
        Block::Thinking(thinking) => return self::thinking(thinking),
        Block::ToolUse(call) => {
            json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.input.to_object()})
        }
        Block::ToolResult(result) => {
            let content: Vec<_> = result.content.iter().filter_map(seen).collect();
            let mut value =
                json!({"type": "tool_result", "tool_use_id": result.tool_use_id, "content": content});
            if result.is_error {
                failed(&mut value);
            }
            value
        }
    })
}

/// Of what failed, the API takes text alone, and wants some.
fn failed(value: &mut Value) {
    let Some(content) = value["content"].as_array_mut() else { return };
    let only_text = content.iter().all(|piece| piece["type"] == "text");
    if content.is_empty() || !only_text {
        content.insert(0, json!({"type": "text", "text": FAILED}));
    }
    if only_text {
        value["is_error"] = Value::Bool(true);
    }
}

fn seen(seen: &Seen) -> Option<Value> {
    match seen {
        Seen::Text(text) if text.trim().is_empty() => None,
        Seen::Text(text) => Some(json!({"type": "text", "text": text})),
        Seen::Image(image) => Some(self::image(image)),
    }
}

fn image(image: &Image) -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}})
}

/// The proof is the block as it came, without its text.
fn thinking(thinking: &Thinking) -> Option<Value> {
    let proof = thinking.opaque.as_ref().filter(|opaque| opaque.provider == PROVIDER)?;
    let mut block: Map<String, Value> = proof.value.as_object()?.clone();
    match block.get("type")?.as_str()? {
        "thinking" => {
            block.insert("thinking".to_owned(), thinking.text.as_str().into());
        }
        "redacted_thinking" => {}
        _ => return None,
    }
    Some(Value::Object(block))
}
