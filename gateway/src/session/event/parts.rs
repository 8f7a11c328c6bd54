//! The smaller parts of events.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::EventId;

/// A hand in an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandRef {
    /// Its name.
    pub name: String,
    /// Its kind, such as `sandbox`.
    pub kind: String,
}

/// What an MCP server's answer to `tools/call` has beside its content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultRest {
    /// Its `structuredContent`, any JSON.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "given")]
    pub structured: Option<Value>,
    /// The other members of its result, `_meta` included.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub more: Option<Map<String, Value>>,
    /// The JSON-RPC error that it was, instead of a result.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<Value>,
}

/// A value that is there, be it `null`.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A stored output in an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRef {
    /// Its key among the session's outputs. Readers ask by the event's `seq`.
    pub id: String,
    /// Its size.
    pub bytes: u64,
    /// What it is, when it is not what the tool printed or an image.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub holds: Option<Holds>,
}

/// What a stored output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// The whole result of an MCP server's tool, as JSON.
    Result,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    /// As asked.
    Ok,
    /// The tool failed.
    Error,
    /// Somebody who may said no.
    Denied,
    /// The caller gave up.
    Cancelled,
    /// Its time ran out.
    Timeout,
    /// The hand died under it.
    Lost,
    /// The process that ran it is gone: it may or may not have run.
    Unknown,
}

/// What became of an instance's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// It is there for the next instance.
    Kept,
    /// It is not.
    Gone,
}

/// What a provider alone understands of an event, such as the signature of a thought. It goes back to that provider and
/// nowhere else.
#[derive(Clone, PartialEq)]
pub struct Private(pub Value);

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Private")
    }
}

/// What a person says of a call that waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confirmation {
    /// It may run.
    Allow,
    /// It may not.
    Deny,
}

/// What a policy says of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// It may run.
    Allow,
    /// A person is to say, wherever they are.
    Ask,
    /// A person is to say, on the machine of the gateway.
    #[serde(rename = "ask-owner")]
    AskOwner,
    /// It may not run.
    Deny,
}

impl Permission {
    /// Whether a person is to say.
    pub fn asks(self) -> bool {
        matches!(self, Self::Ask | Self::AskOwner)
    }
}

/// Why the built-in loop stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StopReason {
    /// The model had nothing more to say.
    EndTurn,
    /// Calls wait for a person's word.
    RequiresAction {
        /// Their `agent.tool_use`.
        event_ids: Vec<EventId>,
    },
    /// The model could not be had, and trying again is over.
    RetriesExhausted,
    /// A person said stop.
    Interrupted,
    /// The answer was cut short at its largest size.
    MaxTokens,
    /// The model, or its provider, will not answer this.
    Refusal,
    /// A budget is used up.
    BudgetExhausted {
        /// Which: the name of its setting.
        budget: String,
    },
}

/// What went wrong, in a word and in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorSaid {
    /// A word for programs.
    #[serde(rename = "type")]
    pub kind: String,
    /// A sentence for people.
    pub message: String,
}

/// What becomes of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RetryStatus {
    /// It is tried again.
    Retrying {
        /// After this long, in milliseconds.
        after_ms: u64,
    },
    /// It was tried often enough.
    Exhausted,
    /// Trying again would not help.
    Terminal,
}

/// What a model is asked for, when it is not the next thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A summary of what came before.
    Compaction,
}

/// Why a model's answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelStop {
    /// It had nothing more to say.
    EndTurn,
    /// It waits for the results of its calls.
    ToolUse,
    /// It reached its largest size.
    MaxTokens,
    /// It, or its provider, will not answer this.
    Refusal,
    /// The provider paused a long turn.
    Pause,
    /// The context window is full.
    ContextFull,
}

/// What a model request cost, in tokens. What was read from or written to the provider's cache is not in `input_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelUsage {
    /// Read, beside what the cache had.
    pub input_tokens: u64,
    /// Written, thinking included.
    pub output_tokens: u64,
    /// Read from the provider's cache.
    pub cache_read_input_tokens: u64,
    /// Written to the provider's cache.
    pub cache_creation_input_tokens: u64,
}

impl ModelUsage {
    /// All that the model was told.
    pub fn context(&self) -> u64 {
        self.input_tokens + self.cache_read_input_tokens + self.cache_creation_input_tokens
    }

    /// How much of what the model was told came from the provider's cache, from 0 to 1. None: it was told nothing.
    #[expect(clippy::cast_precision_loss, reason = "nobody tells a model 2^53 tokens")]
    pub fn cache_hit_rate(&self) -> Option<f64> {
        let context = self.context();
        (context > 0).then(|| self.cache_read_input_tokens as f64 / context as f64)
    }

    /// Takes in what another request cost.
    pub fn add(&mut self, other: Self) {
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.cache_read_input_tokens += other.cache_read_input_tokens;
        self.cache_creation_input_tokens += other.cache_creation_input_tokens;
    }
}
