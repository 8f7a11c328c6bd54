//! What the loop asks of a model, and what it gets back.
//!
//! **Invariant:** a [`Model`] holds no state between calls. What it answers depends on the [`Request`] alone, so that
//! any process can go on with any transcript, with another model if need be.
//!
//! What one provider alone understands (signatures of thoughts, encrypted reasoning) is [`Opaque`]: it is kept, given
//! back to the same provider, and shown to nobody.

mod anthropic;
mod draft;
mod error;
mod openai;
mod provider;
mod schema;
pub mod scripted;
mod transcript;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::anthropic::Anthropic;
use self::openai::OpenAi;
use self::scripted::Scripted;
use crate::brain::{BadBrain, BrainSetting, Reach};
use crate::hand::Variables;

pub use crate::brain::ThinkingSetting;
pub use error::{Again, ModelError};
pub use transcript::{
    Block, Breakpoint, Image, Message, Opaque, Role, Seen, Thinking, ToolInput, ToolResult, ToolUse,
    Transcript,
};

/// Something that reads a transcript and says what comes next.
#[async_trait]
pub trait Model: Send + Sync + 'static {
    /// The next thought. `out` is told of it piece by piece as it comes; only what is returned counts, since a stream may
    /// break off after pieces of it were told. May be dropped at any await: nothing of it stays.
    async fn think(&self, request: &Request<'_>, out: &mut dyn Emit) -> Result<Thought, ModelError>;
}

/// Why there is no model for what is set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoModel {
    /// The settings make no sense.
    #[error(transparent)]
    Setting(#[from] BadBrain),
    /// The provider can't be reached from here, whatever it is asked.
    #[error("the model can't be reached: {0}")]
    Reach(String),
}

/// The model that is set up so. Touches nothing: keys are read, by `variables` where they stand in the environment, with
/// each request.
pub fn of(setting: &BrainSetting, variables: Variables) -> Result<Arc<dyn Model>, NoModel> {
    Ok(match setting.resolve()?.reach {
        Reach::Anthropic(endpoint) => Arc::new(Anthropic::new(&endpoint, variables).map_err(NoModel::Reach)?),
        Reach::OpenAi(endpoint, api) => {
            Arc::new(OpenAi::new(&endpoint, api, variables).map_err(NoModel::Reach)?)
        }
        Reach::Scripted(first_token, token) => Arc::new(Scripted { first_token, token }),
    })
}

/// What a model is asked.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What was said so far.
    pub transcript: &'a Transcript,
    /// What it may call. The order is part of the cached prefix: keep it stable.
    pub tools: &'a [ToolDefinition],
    /// How it is to think.
    pub settings: &'a Settings,
}

/// A tool as a model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// Its full name, `hand__tool`: at most 64 of `[a-zA-Z0-9_-]`.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments, an object.
    pub input_schema: Map<String, Value>,
}

/// How a model is to think.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The model, as its provider names it.
    pub model: String,
    /// Most tokens of one thought, what it thinks included.
    pub max_output_tokens: u32,
    /// Whether and how long it thinks before it speaks.
    pub thinking: ThinkingSetting,
}

impl Settings {
    /// As they are set.
    pub fn of(setting: &BrainSetting) -> Result<Self, BadBrain> {
        let brain = setting.resolve()?;
        Ok(Self { model: brain.model, max_output_tokens: brain.max_tokens, thinking: brain.thinking })
    }
}

/// Takes a thought piece by piece. Must not block: what is too much is dropped.
pub trait Emit: Send {
    /// A piece came.
    fn emit(&mut self, delta: Delta<'_>);
}

/// Drops all pieces.
pub struct EmitNothing;

impl Emit for EmitNothing {
    fn emit(&mut self, _: Delta<'_>) {}
}

/// A piece of a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta<'a> {
    /// Text that goes on.
    Text(&'a str),
    /// Thinking that goes on, as far as the provider shows it.
    Thinking(&'a str),
    /// A call begins: its name is known, its arguments are still coming.
    ToolUse {
        /// The provider's id of the call.
        id: &'a str,
        /// The tool's full name.
        name: &'a str,
    },
}

/// What a model said.
#[derive(Clone, Debug, PartialEq)]
pub struct Thought {
    /// In order: text, thinking, calls. May be empty.
    pub blocks: Vec<Block>,
    /// Why it ended.
    pub stop: Stop,
    /// What it cost. All zero when the provider does not say.
    pub usage: Usage,
    /// From asking to the first piece of any kind.
    pub ttft: Duration,
}

impl Thought {
    /// The calls that it asks for.
    pub fn tool_uses(&self) -> impl Iterator<Item = &ToolUse> {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolUse(tool_use) => Some(tool_use),
            Block::Text(_) | Block::Image(_) | Block::Thinking(_) | Block::ToolResult(_) => None,
        })
    }
}

/// Why a thought ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model has nothing more to say.
    EndTurn,
    /// It waits for the results of its calls.
    ToolUse,
    /// [`Settings::max_output_tokens`] were used up: the last block may be cut short. A call that was cut short has
    /// [`ToolInput::Broken`].
    MaxTokens,
    /// The model, or its provider, will not answer this. Trying again is pointless.
    Refusal,
    /// The provider paused a long turn: give the thought back as it is, and it goes on.
    Pause,
    /// The context window is full: the thought is cut short, and the transcript must become shorter.
    ContextFull,
}

/// What a thought cost, in tokens. What was read from or written to the cache is not in `input`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Read, beside what the cache had.
    #[serde(rename = "input_tokens")]
    pub input: u64,
    /// Written, thinking included.
    #[serde(rename = "output_tokens")]
    pub output: u64,
    /// Read from the provider's cache.
    #[serde(rename = "cache_read_input_tokens")]
    pub cache_read: u64,
    /// Written to the provider's cache.
    #[serde(rename = "cache_creation_input_tokens")]
    pub cache_written: u64,
}
