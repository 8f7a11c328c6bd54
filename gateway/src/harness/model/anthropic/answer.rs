//! The stream that answers, event by event. What is unknown is passed over: the API grows.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::draft::Draft;
use super::super::provider::{Answer, malformed};
use super::super::{ModelError, Opaque, Stop};
use super::PROVIDER;

/// An event of the stream.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart {
        message: Message,
    },
    ContentBlockStart {
        index: u64,
        content_block: Value,
    },
    ContentBlockDelta {
        index: u64,
        delta: Value,
    },
    ContentBlockStop {
        index: u64,
    },
    MessageDelta {
        delta: MessageDelta,
        #[serde(default)]
        usage: Value,
    },
    MessageStop,
    /// The whole answer, of a server that does not stream.
    Message {
        #[serde(default)]
        content: Vec<Value>,
        #[serde(default)]
        stop_reason: Option<String>,
        #[serde(default)]
        usage: Value,
    },
    Error {
        error: Value,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    usage: Value,
}

#[derive(Deserialize)]
struct MessageDelta {
    #[serde(default)]
    stop_reason: Option<String>,
}

/// Reads the answer to its end. `draft.stop` stays empty when it broke off.
pub(super) async fn read(answer: &mut Answer, draft: &mut Draft<'_>) -> Result<(), ModelError> {
    let mut proofs = Proofs::default();
    while let Some(data) = answer.next().await? {
        let event = serde_json::from_slice(&data).map_err(|error| malformed(&error))?;
        match event {
            Event::MessageStart { message } => count(&message.usage, draft),
            Event::ContentBlockStart { index, content_block } => begin(index, &content_block, draft),
            Event::ContentBlockDelta { index, delta } => go_on(index, &delta, draft, &mut proofs),
            Event::ContentBlockStop { index } => proofs.end(index, draft),
            Event::MessageDelta { delta, usage } => {
                count(&usage, draft);
                draft.stop = delta.stop_reason.as_deref().map(stop).or(draft.stop);
            }
            Event::MessageStop => {
                draft.stop.get_or_insert(Stop::EndTurn);
                return Ok(());
            }
            Event::Message { content, stop_reason, usage } => {
                (0..).zip(&content).for_each(|(index, block)| begin(index, block, draft));
                count(&usage, draft);
                draft.stop = stop_reason.as_deref().map(stop);
            }
            Event::Error { error } => return Err(answer.judged(&error)),
            Event::Unknown => {}
        }
    }
    Ok(())
}

fn begin(index: u64, block: &Value, draft: &mut Draft<'_>) {
    match block["type"].as_str() {
        Some("text") => draft.text(index, block["text"].as_str().unwrap_or_default()),
        Some("thinking") => {
            draft.thinking(index, block["thinking"].as_str().unwrap_or_default());
            if let Some(signature) = block["signature"].as_str().filter(|signature| !signature.is_empty()) {
                draft.opaque(index, signed(signature));
            }
        }
        // It has no text: the whole block is the proof.
        Some("redacted_thinking") => draft.opaque(index, proof(block.clone())),
        Some("tool_use") => {
            draft.tool(index, block["id"].as_str(), block["name"].as_str().unwrap_or_default());
            // Empty, but for servers that give it whole.
            if block["input"].as_object().is_some_and(|input| !input.is_empty()) {
                draft.arguments(index, &block["input"]);
            }
        }
        kind => tracing::debug!(kind, "a kind of block that is not known: passed over"),
    }
}

fn go_on(index: u64, delta: &Value, draft: &mut Draft<'_>, proofs: &mut Proofs) {
    let text = |field: &str| delta[field].as_str().unwrap_or_default();
    match delta["type"].as_str() {
        Some("text_delta") => draft.text(index, text("text")),
        Some("thinking_delta") => draft.thinking(index, text("thinking")),
        Some("signature_delta") => proofs.go_on(index, text("signature")),
        Some("input_json_delta") => draft.arguments(index, &delta["partial_json"]),
        _ => {}
    }
}

/// Signatures while they come.
#[derive(Default)]
struct Proofs(Option<(u64, String)>);

impl Proofs {
    fn go_on(&mut self, index: u64, piece: &str) {
        match &mut self.0 {
            Some((own, text)) if *own == index => text.push_str(piece),
            other => *other = Some((index, piece.to_owned())),
        }
    }

    fn end(&mut self, index: u64, draft: &mut Draft<'_>) {
        if let Some((_, signature)) = self.0.take_if(|(own, _)| *own == index) {
            draft.opaque(index, signed(&signature));
        }
    }
}

fn signed(signature: &str) -> Opaque {
    proof(json!({"type": "thinking", "signature": signature}))
}

fn proof(value: Value) -> Opaque {
    Opaque { provider: PROVIDER.to_owned(), value }
}

/// Numbers are totals; later ones replace earlier ones.
fn count(usage: &Value, draft: &mut Draft<'_>) {
    let total = &mut draft.usage;
    for (field, place) in [
        ("input_tokens", &mut total.input),
        ("output_tokens", &mut total.output),
        ("cache_read_input_tokens", &mut total.cache_read),
        ("cache_creation_input_tokens", &mut total.cache_written),
    ] {
        if let Some(tokens) = usage[field].as_u64() {
            *place = tokens;
        }
    }
}

fn stop(reason: &str) -> Stop {
    match reason {
        "tool_use" => Stop::ToolUse,
        "max_tokens" => Stop::MaxTokens,
        "refusal" => Stop::Refusal,
        "pause_turn" => Stop::Pause,
        "model_context_window_exceeded" => Stop::ContextFull,
        // `end_turn`, `stop_sequence`, and what is not known yet.
        _ => Stop::EndTurn,
    }
}
