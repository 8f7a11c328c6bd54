//! Models over HTTP, against a server of our own that speaks as the real ones do, and the scripted model itself.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod chat;
mod keys;
mod lawful;
mod messages;
mod responses;
mod scripted;
mod sdk;
mod streams;
mod trouble;

use std::sync::Arc;

use gateway::brain::{Api, BrainSetting, Provider};
use gateway::harness::model::{
    self, Block, Breakpoint, Delta, Emit, Image, Message, Model, ModelError, Opaque, Request, Seen, Settings,
    Thinking, Thought, ToolDefinition, ToolInput, ToolResult, ToolUse, Transcript,
};
use secrecy::SecretString;
use serde_json::{Map, Value, json};
use tests::models::{KEY, Models};

/// The variable that holds the key, for the clients of these tests.
const VARIABLE: &str = "KEY_OF_THE_TESTS";

fn variables(name: &str) -> Option<SecretString> {
    (name == VARIABLE).then(|| KEY.into())
}

/// Which API is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoken {
    Messages,
    Chat,
    Responses,
}

const ALL: [Spoken; 3] = [Spoken::Messages, Spoken::Chat, Spoken::Responses];

fn setting(server: &Models, spoken: Spoken) -> BrainSetting {
    let (provider, api, path) = match spoken {
        Spoken::Messages => (Provider::Anthropic, None, ""),
        Spoken::Chat => (Provider::OpenAi, Some(Api::Chat), "/v1"),
        Spoken::Responses => (Provider::OpenAi, Some(Api::Responses), "/v1"),
    };
    BrainSetting {
        provider: Some(provider),
        model: Some("test-model".to_owned()),
        base_url: Some(format!("{}{path}", server.url)),
        api,
        key_env: Some(VARIABLE.to_owned()),
        ..BrainSetting::default()
    }
}

/// A client and what it is asked with.
struct Client {
    model: Arc<dyn Model>,
    settings: Settings,
    tools: Vec<ToolDefinition>,
}

impl Client {
    fn of(setting: &BrainSetting) -> Self {
        let model = model::of(setting, variables).unwrap();
        Self { model, settings: Settings::of(setting).unwrap(), tools: Vec::new() }
    }

    fn new(server: &Models, spoken: Spoken) -> Self {
        Self::of(&setting(server, spoken))
    }

    /// The thought, and what was told of it on the way.
    async fn think(&self, transcript: &Transcript) -> (Result<Thought, ModelError>, Told) {
        let mut told = Told::default();
        let request = Request { transcript, tools: &self.tools, settings: &self.settings };
        let thought = self.model.think(&request, &mut told).await;
        (thought, told)
    }

    async fn thought(&self, transcript: &Transcript) -> Thought {
        self.think(transcript).await.0.unwrap()
    }

    async fn error(&self, transcript: &Transcript) -> ModelError {
        self.think(transcript).await.0.unwrap_err()
    }
}

/// Everything that was told of a thought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    text: String,
    thinking: String,
    calls: Vec<String>,
    pieces: usize,
}

impl Emit for Told {
    fn emit(&mut self, delta: Delta<'_>) {
        self.pieces += 1;
        match delta {
            Delta::Text(text) => self.text.push_str(text),
            Delta::Thinking(text) => self.thinking.push_str(text),
            Delta::ToolUse { name, .. } => self.calls.push(name.to_owned()),
        }
    }
}

/// A prompt.
fn prompt(text: &str) -> Transcript {
    Transcript { system: String::new(), messages: vec![Message::user(vec![Block::text(text)])] }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => panic!("{other} is no object"),
    }
}

fn result(id: &str, text: &str) -> Block {
    let content = vec![Seen::Text(text.to_owned())];
    Block::ToolResult(ToolResult { tool_use_id: id.to_owned(), content, is_error: false })
}

fn tool(name: &str) -> ToolDefinition {
    let input_schema = object(json!({"type": "object", "properties": {"command": {"type": "string"}}}));
    ToolDefinition { name: name.to_owned(), description: format!("Runs {name}."), input_schema }
}

/// A conversation with one of everything, in an order that no provider wants.
fn everything() -> Transcript {
    let image = || Image { media_type: "image/png".to_owned(), data: "iVBORw0KGgo=".to_owned() };
    let call = |id: &str, input| {
        Block::ToolUse(ToolUse { id: id.to_owned(), name: "sandbox__bash".to_owned(), input })
    };
    let proof = |provider: &str, value: Value| Some(Opaque { provider: provider.to_owned(), value });
    let thinking = |text: &str, opaque| Block::Thinking(Thinking { text: text.to_owned(), opaque });
    let seen = vec![Seen::Text("a b".to_owned()), Seen::Image(image())];
    let mut messages = vec![
        Message::user(vec![Block::text("What is in there?"), Block::Image(image()), Block::text(" ")]),
        Message::assistant(vec![
            thinking("I look.", proof("anthropic", json!({"type": "thinking", "signature": "c2ln"}))),
            thinking("", proof("anthropic", json!({"type": "redacted_thinking", "data": "cmVk"}))),
            thinking(
                "I look.",
                proof(
                    "openai",
                    json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}),
                ),
            ),
            thinking("Nobody signed this.", None),
            Block::text("I will look."),
            call("call_1", ToolInput::Object(object(json!({"command": "ls"})))),
            call("call_2", ToolInput::Broken("{\"command\": \"l".to_owned())),
        ]),
        Message::user(vec![Block::text("Hurry up.")]),
        Message::user(vec![
            Block::ToolResult(ToolResult {
                tool_use_id: "call_1".to_owned(),
                content: seen,
                is_error: false,
            }),
            Block::ToolResult(ToolResult {
                tool_use_id: "call_2".to_owned(),
                content: vec![Seen::Text("The arguments are no JSON.".to_owned())],
                is_error: true,
            }),
        ]),
        Message::assistant(vec![Block::text("Two files.")]),
        Message::user(vec![Block::text("@say Thank you.")]),
    ];
    for message in &mut messages {
        message.breakpoint = Some(Breakpoint);
    }
    Transcript { system: "You are careful.".to_owned(), messages }
}
